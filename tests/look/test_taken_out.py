"""Any exclude list, any format, any stream, any world size: nothing moves, and nothing of what is out comes out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import NO_LIST, ExcludeList
from tests.internals import ExcludeEntry as Entry

import penstock as ps

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
LENGTHS = (5, 1, 9, 3, 3, 12, 1, 7, 4, 2, 6, 3)
COUNT = len(LENGTHS)
STARTS = np.concatenate([[0], np.cumsum(LENGTHS)])
TOKENS = {"pbin": "c.pbin", "megatron": "c.idx", "flat-tokens": "c.zarr", "token-files": "files"}
ROWS = {"jsonl": "a.jsonl", "mds": "mds", "jsonl-files": "raw"}
PACKINGS = {
    "chunk": lambda n: ps.Chunk(n),
    "chunk, shift": lambda n: ps.Chunk(n, labels="shift"),
    "chunk, start-zero": lambda n: ps.Chunk(n, labels="start-zero"),
    "whole": lambda n: ps.Whole(n),
    "whole, start-zero": lambda n: ps.Whole(n, labels="start-zero"),
    "best fit": lambda n: ps.BestFit(n + 13),
    "megatron": lambda n: ps.MegatronBlocks(n, labels="shift"),
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same documents, whose ids are told apart, and the same samples, in each format."""
    root = tmp_path_factory.mktemp("taken")
    documents = [np.append(np.arange(a, b) + 100, 0).astype(np.uint16) for a, b in pairwise(STARTS)]
    (root / "files").mkdir()
    parts = {"files/a.pbin": documents[:5], "files/b.pbin": documents[5:]}
    for name, some in {**{one: documents for one in TOKENS.values() if one != "files"}, **parts}.items():
        format = {".idx": "megatron", ".zarr": "flat-tokens"}.get(Path(name).suffix, "pbin")
        options = {} if format == "flat-tokens" else {"token_bytes": 2}
        with ps.create(root / name, format=format, eos_id=0, **options) as writer:
            for one in some:
                writer.write({"tokens": one})
    with ps.create(root / "mds", format="mds", columns={"id": "int"}, size_limit=60) as writer:
        for n in range(COUNT):
            writer.write({"id": n})
    (root / "raw").mkdir()
    for name, rows in {"a.jsonl": range(COUNT), "raw/a.jsonl": range(5), "raw/b.jsonl": range(5, COUNT)}.items():
        (root / name).write_text("".join(json.dumps({"id": n}) + "\n" for n in rows))
    return root


def opened(path: Path, gone: Sequence[int]) -> tuple[Any, Any]:
    """The dataset without some of its samples, and with them."""
    whole = ps.open(path, excludes=NO_LIST)
    said = ("", "asked", "2026-11-22", "one", None, whole.fingerprint)
    return ps.open(path, excludes=ExcludeList(tuple(Entry(n, None, *said) for n in gone))), whole


gone_of = st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=COUNT - 1, unique=True)


@settings(max_examples=EXAMPLES or 30, deadline=None)
@given(gone_of, st.sampled_from([*TOKENS]), st.sampled_from([*PACKINGS]), st.integers(2, 9), st.integers(0, 3))
def test_windows(there: Path, gone: list[int], format: str, packing: str, length: int, seed: int) -> None:
    seen, whole = opened(there / TOKENS[format], gone)
    ids = np.concatenate([np.arange(STARTS[n], STARTS[n + 1]) for n in gone]) + 100
    mine, theirs = (PACKINGS[packing](length)(one) for one in (seen, whole))
    assert (len(mine), mine.fingerprint) == (len(theirs), theirs.fingerprint)
    got, want = (ps.Shuffle(one, seed).get_batch(np.arange(2 * len(one))) for one in (mine, theirs))
    assert got.keys() == want.keys()
    for name, values in want.items():
        if name in ("tokens", "inputs", "targets"):
            hidden = np.isin(values, ids)
            assert np.array_equal(got[name], np.where(hidden, 0, values)), name
        elif name == "loss_mask":
            targets = want["targets"] if "targets" in want else want["tokens"][:, 1:]
            inputs = want["inputs"] if "inputs" in want else want["tokens"][:, :-1]
            out = np.isin(targets, ids) | ((targets == 0) & np.isin(inputs, ids))
            whose = out | ((targets == 0) & (inputs == 0))  # an EOS at the start of a window may be of any document
            assert np.array_equal(got[name] & ~whose, want[name] & ~whose)
            assert not (got[name] & out).any()
        elif name != "substituted":
            assert all(map(np.array_equal, got[name], values)), name
    row = mine[len(mine) // 2]
    assert not any(
        np.isin(values, ids).any() for name, values in row.items() if name in ("tokens", "inputs", "targets")
    )


@settings(max_examples=EXAMPLES or 12, deadline=None)
@given(
    gone_of, st.sampled_from([*ROWS]), st.sampled_from(["shuffle", "blocks", "in order", "blend", "stages"]),
    st.sampled_from([1, 2, 3, 4, 6]), st.integers(0, 3),
)  # fmt: skip
def test_streams(there: Path, gone: list[int], format: str, order: str, world: int, seed: int) -> None:
    def stream_of(source: Any) -> Any:
        if order == "in order":
            return ps.Sequential(source)
        shuffled = ps.Shuffle(source, seed, mode="blocks" if order == "blocks" else "global")
        if order == "stages":
            return ps.Stages([(10, shuffled), (None, ps.Shuffle(source, seed + 1))])
        other = ps.Sequential(ps.open(there / "files" / "a.pbin", excludes=NO_LIST))
        named = {"a": shuffled, "b": ps.Map(other, _as_row)}
        return ps.Blend(named, {"a": 2, "b": 1}, seed=seed) if order == "blend" else shuffled

    seen, whole = opened(there / ROWS[format], gone)
    mine, theirs = stream_of(seen), stream_of(whole)
    assert mine.fingerprint == theirs.fingerprint
    want = [theirs[position]["id"] for position in range(2 * COUNT)]
    got = [mine[position]["id"] for position in range(2 * COUNT)]
    assert not {int(one) for one in got} & set(gone)
    assert [one == other for one, other in zip(got, want, strict=True)] == [one not in gone for one in want]
    rows: list[list[int]] = []
    for rank in range(world):
        with ps.Loader(mine, 12, rank=rank, world=world, workers=0) as loader:
            rows.append(next(iter(loader))["id"].tolist())
    assert [rows[place % world][place // world] for place in range(12)] == [int(one) for one in got[:12]]


def _as_row(_sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": 1000}


@settings(max_examples=EXAMPLES or 15, deadline=None)
@given(gone_of, st.sampled_from([*ROWS]), st.integers(4, 9), st.integers(0, 3))
def test_groups_by_length(there: Path, gone: list[int], format: str, room: int, seed: int) -> None:
    seen, whole = opened(there / ROWS[format], gone)
    mine, theirs = (ps.PackByLength(one, room, lambda row: int(row["id"]) % 4 + 1, name="n") for one in (seen, whole))
    assert (len(mine), mine.fingerprint) == (len(theirs), theirs.fingerprint)
    left = [[int(one) for one in theirs[n]["id"] if one not in gone] for n in range(len(theirs))]
    got, want = (ps.Shuffle(one, seed) for one in (mine, theirs))
    for position in range(2 * len(theirs)):
        ids = [int(one) for one in got[position]["id"]]
        assert not set(ids) & set(gone)
        assert ids == (left[want.locate(position).index] or ids)

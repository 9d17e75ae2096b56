"""The verbs as shared work: whoever does it, on every store, the bytes are those of one process; what is refused."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reshape.test_by_executor import lines, shards, tokens

import penstock as ps
from penstock.codec import hashes
from penstock.executors import InlineExecutor
from penstock.formats._manifest import FileDigests
from penstock.reshape import pieces, rows, share_layout, share_shards, share_tasks, shares, shuffle
from penstock.reshape.rewrite import Written
from penstock.store.place import place_of

Verb = Callable[..., list[Written]]


def filtered(source: str, folder: str, **how: Any) -> list[Written]:
    fields = source.endswith(".jsonl") or os.path.exists(f"{source}/index.json")
    condition = {"where": "id % 3 != 1"} if fields else {"min_tokens": 20, "max_tokens": 80}
    chosen = np.arange(0, 240, 2)
    return [ps.filter(source, _target(source, folder), indices=chosen, **condition, **how).output]


def merged(source: str, folder: str, **how: Any) -> list[Written]:
    return [ps.merge([source, source], _target(source, folder), **how).output]


def shuffled(source: str, folder: str, **how: Any) -> list[Written]:
    return [ps.shuffle(source, _target(source, folder), seed=3, **how)]


def split(source: str, folder: str, **how: Any) -> list[Written]:
    return list(ps.split(source, f"{folder}/parts", ratio=(3, 1), by="content", **how))


VERBS = {"filter": filtered, "merge": merged, "shuffle": shuffled, "split": split}
SOURCES = {
    "pbin": tokens("pbin"),
    "megatron": tokens("megatron"),
    "jsonl": lines,
    "mds": shards("mds", size_limit=1500, hashes=["sha1"]),
    "mds.zstd": shards("mds", size_limit=1500, compression="zstd:3"),
    "csv": shards("csv", size_limit=1500),
}
CASES = [(verb, format) for verb in VERBS for format in SOURCES]
CASES = [case for case in CASES if case[0] != "merge" or case[1] in ("pbin", "megatron", "jsonl")]
CASES.remove(("shuffle", "mds.zstd"))


def _target(source: str, folder: str) -> str:
    return f"{folder}/out{'.jsonl' if source.endswith('.jsonl') else ''}"


class Dying:
    """An executor whose process is stopped after so many results."""

    def __init__(self, after: int) -> None:
        self.after = after

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for number, result in enumerate(InlineExecutor().map(fn, tasks)):
            if number == self.after:
                raise KeyboardInterrupt
            yield result


class Elsewhere:
    """As an engine runs tasks: each twice, and nothing crosses but what is pickled."""

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            there = pickle.dumps((fn, task))
            for _ in range(2):
                known, one = pickle.loads(there)
                found = known(one)
            yield pickle.loads(pickle.dumps(found))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and tasks of a few thousand bytes."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 5000)
    monkeypatch.setattr(shuffle, "PIECE_BYTES", 5000)
    monkeypatch.setattr(rows, "RUN_BYTES", 2000)
    monkeypatch.setattr(rows.runs, "__defaults__", (0, None, 2000))
    for module in (share_tasks, share_layout, shares):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4096)
    for module in (share_tasks, hashes):
        monkeypatch.setattr(module, "BLOCK_TOKENS", 1000)
    monkeypatch.setattr(share_shards, "_GROUP_BYTES", 4096)
    monkeypatch.setitem(FileDigests.__init__.__kwdefaults__, "block_bytes", 4096)


@pytest.fixture
def s3_folder(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a folder of one's own in an object store."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return f"s3://bucket/{tmp_path.name}"


def files_of(folder: str) -> dict[str, bytes]:
    place = place_of(folder)
    names = [path[len(place.path) + 1 :] for path in place.store.list(place.path)] if place.exists() else []
    return {name: place.store.get(f"{place.path}/{name}") for name in names}


def hidden(folder: str) -> list[str]:
    names = place_of(folder).names()
    return [name for name in names if name.startswith(".")]


# --- one digest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["disk", "s3"])
@pytest.mark.parametrize(("verb", "format"), CASES)
def test_an_array_with_a_killed_a_doubled_and_a_missing_share(
    verb: str, format: str, where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source, do = str(SOURCES[format](tmp_path)), VERBS[verb]
    do(source, f"{tmp_path}/alone")
    expected = files_of(f"{tmp_path}/alone")
    folder = f"{tmp_path}/shared" if where == "disk" else f"{request.getfixturevalue('s3_folder')}/shared"
    with contextlib.suppress(KeyboardInterrupt):
        do(source, folder, part=(0, 4), executor=Dying(1))
    for index in (1, 1, 3):
        assert do(source, folder, part=(index, 4), executor=Elsewhere())[0].part == (index, 4)
    assert not [name for name in files_of(folder) if "/." not in f"/{name}"]
    missing = do(source, folder, finish=True, no_work=True)[0].missing
    assert missing
    assert set(missing) <= {0, 1, 2, 3}
    report = do(source, folder, finish=True)
    assert files_of(folder) == expected
    assert hidden(folder) == []
    assert sum(one.samples for one in report) == sum(one.samples for one in do(source, f"{tmp_path}/again"))
    for late in ({"part": (2, 4)}, {"finish": True}, {"finish": True, "no_work": True}):
        assert all(one.was_complete for one in do(source, folder, **late))
    assert files_of(folder) == expected

"""What goes along with an output: from which row of which source each of its rows is, and the exclude list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.internals import (
    NO_LIST,
    WAITING_EXCLUDE_LIST,
    SeededOrder,
    chunk,
    chunk_range,
    excluded_samples,
    owner_of,
    place_of,
    read_row_map,
    waiting_files,
)

import penstock as ps
from penstock.errors import Excluded, PrepareError

COUNT = 14
GONE = (2, 3, 9, 13)
NAMES = {"pbin": "a.pbin", "megatron": "a.idx", "flat-tokens": "a.zarr", "jsonl": "a.jsonl", "mds": "mds"}


def make(path: Path, format: str, count: int = COUNT) -> Path:
    """Samples that tell their number."""
    path.parent.mkdir(exist_ok=True)
    if format == "jsonl":
        path.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(count)))
        return path
    of_tokens: dict[str, Any] = {"eos_id": 0} | ({} if format == "flat-tokens" else {"token_bytes": 2})
    options = {"columns": {"id": "int"}, "size_limit": 90} if format == "mds" else of_tokens
    with ps.create(path, format=format, **options) as writer:
        for n in range(count):
            tokens = np.array([n + 1] * (n % 4 + 1) + [0], np.uint16)
            writer.write({"id": n} if format == "mds" else {"tokens": tokens})
    return path


def numbers(path: Any) -> list[int]:
    source: Any = ps.open(path, excludes=NO_LIST)
    return [int(one["tokens"][0]) - 1 if "tokens" in one else one["id"] for one in source]


def check(path: Any, *, kept: bool) -> list[int]:
    """The numbers of a dataset, whose row map and exclude list are right."""
    found, source = numbers(path), ps.open(path)
    mapped = read_row_map(place_of(path), source.manifest)
    assert mapped is not None
    assert mapped.rows.tolist() == found
    excluded = [place for place, n in enumerate(found) if n in GONE]
    assert [one.index for one in excluded_samples(path).entries] == excluded
    assert kept or not excluded
    for place in excluded:
        with pytest.raises(Excluded, match="asked for"):
            source[place]
    return found


@pytest.mark.parametrize("format", NAMES)
@pytest.mark.parametrize("kept", [False, True])
def test_each_verb_tells_rows_and_copies_entries(tmp_path: Path, format: str, kept: bool) -> None:
    path, out = make(tmp_path / "in" / NAMES[format], format), tmp_path / "out"
    ps.exclude(path, indices=GONE, reason="asked for")
    rows = [n for n in range(COUNT) if kept or n not in GONE]
    how: dict[str, Any] = {"keep_map": True, "keep_excluded": kept}
    out.mkdir()

    def name(verb: str) -> Path:
        return out / f"{verb}{path.suffix or '-mds'}"

    ps.merge([path], name("merge"), **how)
    assert check(name("merge"), kept=kept) == rows
    ps.shuffle(path, name("shuffle"), seed=3, **how)
    assert check(name("shuffle"), kept=kept) == [rows[n] for n in SeededOrder(len(rows), 3).rows_at(0, len(rows))]
    ps.filter(path, name("filter"), indices=[0, 2, 4, 9], **how)
    assert check(name("filter"), kept=kept) == [n for n in (0, 2, 4, 9) if n in rows]
    chunk(path, name("chunk"), chunk_id=1, num_chunks=3, **how)
    assert check(name("chunk"), kept=kept) == rows[slice(*chunk_range(len(rows), 1, 3))]
    for by in ("position", "content"):
        parts = ps.split(path, out / by, ratio=[1, 1], seed=2, by=by, **how)
        assert sorted(n for one in parts for n in check(one.path, kept=kept)) == rows
    assert not waiting_files(out)


def test_workers_and_several_sources(tmp_path: Path) -> None:
    paths = [make(tmp_path / name, "jsonl") for name in ("a.jsonl", "b.jsonl")]
    for path in paths:
        ps.exclude(path, indices=GONE, reason="asked for")
    how: dict[str, Any] = {"keep_map": True, "workers": 2}
    ps.filter(paths[0], tmp_path / "w.jsonl", where="id % 2 == 1", keep_excluded=True, **how)
    assert check(tmp_path / "w.jsonl", kept=True) == list(range(1, COUNT, 2))
    parts = ps.split(paths[0], tmp_path / "parts", ratio=[1, 1], by="content", **how)
    assert sorted(n for one in parts for n in check(one.path, kept=False)) == [n for n in range(COUNT) if n not in GONE]
    ps.merge(paths, tmp_path / "m.jsonl", keep_excluded=True, **how)
    assert [one.index for one in excluded_samples(tmp_path / "m.jsonl").entries] == [*GONE, *(n + COUNT for n in GONE)]
    ps.merge(paths, tmp_path / "n.jsonl", **how)
    mapped: Any = read_row_map(place_of(tmp_path / "n.jsonl"), ps.open(tmp_path / "n.jsonl").manifest)
    kept = [n for n in range(COUNT) if n not in GONE]
    assert mapped.rows.tolist() == [*kept, *(n + COUNT for n in kept)]
    assert [one.rows for one in mapped.inputs] == [COUNT, COUNT]
    for part in (0, 1):
        ps.merge(paths, tmp_path / "m2.jsonl", keep_excluded=True, keep_map=True, part=(part, 2))
    ps.merge(paths, tmp_path / "m2.jsonl", keep_excluded=True, keep_map=True, finish=True)
    assert (tmp_path / "m2.jsonl").read_bytes() == (tmp_path / "m.jsonl").read_bytes()
    lists = [excluded_samples(tmp_path / name).entries for name in ("m.jsonl", "m2.jsonl")]
    assert [one.index for one in lists[0]] == [one.index for one in lists[1]]


@pytest.mark.parametrize("format", ["pbin", "mds"])
@pytest.mark.parametrize("verb", ["merge", "split"])
def test_nobody_opens_the_data_before_their_list_is_there(tmp_path: Path, format: str, verb: str) -> None:
    path, out = make(tmp_path / NAMES[format], format), tmp_path / f"out{'.pbin' if format == 'pbin' else ''}"
    ps.exclude(path, indices=GONE, reason="asked for")

    def work() -> list[str]:
        if verb == "merge":
            return [ps.merge([path], out, keep_excluded=True).output.path]
        parts = ps.split(path, tmp_path / "parts", ratio=[1, 1], keep_excluded=True)
        return [one.path for one in parts]

    class Killed(BaseException):
        pass

    with mock.patch.object(*owner_of("settle_waiting"), side_effect=Killed), pytest.raises(Killed):
        work()
    made = [one.removesuffix(WAITING_EXCLUDE_LIST) for one in map(str, waiting_files(tmp_path))]
    assert made
    visible = [one for one in made if Path(one).exists()]
    assert visible
    for one in visible:
        with pytest.raises(PrepareError, match="their exclude list is missing"):
            ps.open(one)
    expected = sorted(n for one in work() for n in numbers(one) if n in GONE)
    assert expected == list(GONE)
    for one in visible:
        assert len(excluded_samples(one).entries) == len([n for n in numbers(one) if n in GONE])
    assert not waiting_files(tmp_path)
    (tmp_path / "again").mkdir()
    with (
        mock.patch.object(*owner_of("settle_waiting"), side_effect=OSError("full")),
        pytest.raises(OSError, match="full"),
    ):
        ps.merge([path], tmp_path / "again" / out.name, keep_excluded=True)
    with pytest.raises(PrepareError, match="their exclude list is missing"):
        ps.open(tmp_path / "again" / out.name)

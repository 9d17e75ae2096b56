"""The verbs by any executor: the same bytes, names and ranges alone on the way, errors in their place, nothing left."""

from __future__ import annotations

import functools
import importlib
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import ROW_MODULE, CopyRows, pieces_beside, replace
from tests.reshape.datasets import write_lines, write_tokens

import penstock as ps
from penstock.errors import ConfigError, PrepareError
from penstock.executors import ProcessExecutor

Make = Callable[[Path], Path]
KEPT = "Finished parts are kept: run the same command again to resume"


@dataclass
class Counting:
    """Runs tasks here, each twice as an engine may, and counts what crosses."""

    num_tasks: int = 0
    crossed: list[int] = field(default_factory=list[int])

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            self.num_tasks += 1
            there = pickle.dumps((fn, task))
            fn, task = pickle.loads(there)
            fn(task)
            back = pickle.dumps(fn(task))
            self.crossed.append(len(there) + len(back))
            yield pickle.loads(back)


def tokens(format: str) -> Make:
    def make(folder: Path) -> Path:
        documents = [[number % 200 + 1] * (number % 90) for number in range(400)]
        return write_tokens(folder / "in", documents, format=format, eos_id=0)

    return make


def lines(folder: Path) -> Path:
    return write_lines(folder / "in.jsonl", [f"text {number} " * (number % 50) for number in range(400)], last=False)


def shards(format: str, **options: Any) -> Make:
    def make(folder: Path) -> Path:
        with ps.create(folder / "in", format=format, columns={"id": "int", "text": "str"}, **options) as writer:
            for number in range(250):
                writer.write({"id": number, "text": f"text {number} " * (number % 30)})
        return folder / "in"

    return make


def in_tars(folder: Path, **options: Any) -> Path:
    with ps.create(folder / "in", format="webdataset", maxcount=70, **options) as writer:
        for number in range(300):
            writer.write({"__key__": f"k{number:03d}", "txt": b"t" * (number % 20), "json": {"n": number}})
    return folder / "in"


def filtered(source: Path, folder: Path, **how: Any) -> None:
    if (source / "index.json").exists() or source.suffix == ".jsonl":
        ps.filter(source, folder / f"where{source.suffix}", where="id % 3 == 1 and len(text) > 20", **how)
        how |= {"match": "7", "invert": True}
    else:
        how |= {"min_tokens": 20, "max_tokens": 50}
    ps.filter(source, folder / f"both{source.suffix}", indices=np.arange(0, 240, 3), **how)


def merged(source: Path, folder: Path, **how: Any) -> None:
    ps.merge([source] if (source / ".nv-meta").exists() else [source, source], folder / f"out{source.suffix}", **how)


def shuffled(source: Path, folder: Path, **how: Any) -> None:
    how |= {} if source.name == "in" and (source / ".nv-meta").exists() else {"memory_bytes": 15_000}
    ps.shuffle(source, folder / f"out{source.suffix}", seed=3, **how)


def through_buckets(source: Path, folder: Path, **how: Any) -> None:
    ps.shuffle(source, folder / f"out{source.suffix}", seed=3, memory_bytes=3000, **how)


def _once(source: Path, folder: Path, *, verb: Callable[..., None], **how: Any) -> None:
    """One output, where a case makes several."""
    out = folder / f"out{source.suffix}"
    if verb is filtered:
        ps.filter(source, out, indices=np.arange(0, 240, 3), **how)
    elif verb is merged:
        merged(source, folder, **how)
    elif verb is shuffled:
        ps.shuffle(source, out, seed=3, **how)
    else:
        ps.split(source, folder / "content", ratio=(3, 1), by="content", **how)


def split(source: Path, folder: Path, **how: Any) -> None:
    ps.split(source, folder / "position", ratio=(3, 1), **how)
    ps.split(source, folder / "content", ratio=(3, 1), by="content", **how)


ROWS = {
    "pbin": tokens("pbin"),
    "megatron": tokens("megatron"),
    "flat-tokens": tokens("flat-tokens"),
    "jsonl": lines,
    "mds": shards("mds", size_limit=4000, hashes=["sha1"]),
    "mds.zstd": shards("mds", size_limit=4000, compression="zstd:3"),
    "csv": shards("csv", size_limit=4000),
}
CASES = [(verb, name) for verb in (filtered, merged, shuffled, through_buckets, split) for name in ROWS]
CASES += [(merged, "tars"), (shuffled, "tars"), (split, "tars")]


def made(verb: Callable[..., None], source: Path, folder: Path, **how: Any) -> dict[str, bytes]:
    folder.mkdir(parents=True)
    verb(source, folder, **how)
    # Its rows alone follow from the data: see ARCHITECTURE, "Writer".
    files = (one for one in folder.rglob("*") if one.is_file() and one.suffix != ".sqlite")
    return {str(one.relative_to(folder)): one.read_bytes() for one in files}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "row_task_bytes", 5000)
    replace(monkeypatch, "shuffle_task_bytes", 5000)
    replace(monkeypatch, "shard_task_bytes", 1000)
    replace(monkeypatch, "tar_task_bytes", 2000)
    replace(monkeypatch, "rows_run_bytes", 2000)
    replace(monkeypatch, "defaults_of_runs", (0, None, 2000))
    replace(monkeypatch, "shuffle_least_memory_bytes", 1)
    replace(monkeypatch, "tar_samples_at_once", 64)


@pytest.mark.parametrize(("verb", "name"), CASES, ids=[f"{verb.__name__}-{name}" for verb, name in CASES])
def test_who_works_changes_no_byte(verb: Callable[..., None], name: str, tmp_path: Path) -> None:
    source, own = (in_tars if name == "tars" else ROWS[name])(tmp_path), Counting()
    expected = made(verb, source, tmp_path / "alone")
    assert expected
    assert made(verb, source, tmp_path / "own", executor=own) == expected
    if verb is merged and name in ("pbin", "megatron"):
        assert not own.num_tasks  # joined where they lie, and smaller than a block
        return
    assert own.num_tasks > 3
    assert max(own.crossed) < (16_000 if name == "tars" else 2500)
    assert sorted(os.listdir(tmp_path / "own")) == sorted(os.listdir(tmp_path / "alone"))


@pytest.mark.parametrize("verb", [filtered, shuffled, split])
@pytest.mark.parametrize("name", ["flat-tokens", "jsonl", "mds.zstd"])
def test_workers_read_also_where_one_process_writes(verb: Callable[..., None], name: str, tmp_path: Path) -> None:
    source = ROWS[name](tmp_path)
    ps.exclude(source, indices=[3, 4], reason="asked for")
    for how in ({"keep_map": True}, {"keep_excluded": True}):
        folder, own = tmp_path / next(iter(how)), Counting()
        expected = made(verb, source, folder / "alone", **how)
        found = made(verb, source, folder / "own", executor=own, **how)
        assert found.keys() == expected.keys()
        assert {one for one in expected if found[one] != expected[one]} <= {one for one in expected if "exclude" in one}
        assert own.num_tasks > 3


def test_by_two_processes(tmp_path: Path) -> None:
    with ProcessExecutor(2) as pool:
        for name in ("jsonl", "pbin", "tars"):
            (folder := tmp_path / name).mkdir()
            source = (in_tars if name == "tars" else ROWS[name])(folder)
            for verb, other in CASES:
                if other == name:
                    alone = made(verb, source, folder / f"{verb.__name__}-alone")
                    assert made(verb, source, folder / f"{verb.__name__}-two", executor=pool) == alone


@pytest.mark.parametrize("name", ["jsonl", "mds", "flat-tokens"])
def test_any_number_of_workers_writes_the_same(name: str, tmp_path: Path) -> None:
    source, expected = ROWS[name](tmp_path), dict[str, bytes]()
    for how in ({}, {"executor": "inline"}, *({"executor": "processes", "workers": count} for count in (1, 2, 3))):
        found = made(merged, source, tmp_path / "-".join(map(str, how.values())) / "made", **how)
        expected = expected or found
        assert found == expected


def test_an_error_keeps_its_place(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [str(number) for number in range(300)])
    where = "100 / (float(text) - 217) != 0"
    said = set[str]()
    for how in ({}, {"executor": Counting()}):
        with pytest.raises(PrepareError) as refused:
            ps.filter(source, tmp_path / "b.jsonl", where=where, **how)
        assert "the line at index 217" in str(refused.value)
        said.add(str(refused.value).removesuffix(f". {KEPT}"))
    assert len(said) == 1
    assert not (tmp_path / "b.jsonl").exists()


def test_a_task_that_kills_its_workers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly_make.py").write_text(
        f"import os, {ROW_MODULE} as r\n"
        "class Deadly(r.Make):\n"
        "    def __call__(self, rows, task):\n"
        "        return r.Copy()(rows, task) if task.first == 0 else os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    replace(monkeypatch, "copy_of_merge", importlib.import_module("deadly_make").Deadly)
    source = write_lines(tmp_path / "a.jsonl", [str(number) for number in range(300)])
    with pytest.raises(
        PrepareError, match=r"killed 3 workers and was given up: found task 1 \(.*a.jsonl, samples \d"
    ) as refused:
        ps.merge([source], tmp_path / "b.jsonl", workers=2)
    assert str(refused.value).count(KEPT) == 1
    replace(monkeypatch, "copy_of_merge", CopyRows)
    ps.merge([source], tmp_path / "b.jsonl", executor=Counting())
    assert (tmp_path / "b.jsonl").read_bytes() == Path(source).read_bytes()


class Breaking:
    """Does one task, then fails as a pool does whose process was killed."""

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            yield fn(task)
            raise BrokenProcessPool("a process was terminated abruptly")


@pytest.mark.parametrize("verb", [filtered, merged, shuffled, split])
@pytest.mark.parametrize("name", ["pbin", "megatron", "jsonl", "mds", "tars"])
def test_finished_parts_are_kept_if_the_executor_breaks(verb: Callable[..., None], name: str, tmp_path: Path) -> None:
    if (verb, name) in ((filtered, "tars"), (merged, "pbin"), (merged, "megatron")):
        return  # tars have no filter, and these merges no parts
    source = (in_tars if name == "tars" else ROWS[name])(tmp_path)
    once = functools.partial(_once, verb=verb)
    expected = made(once, source, tmp_path / "alone")
    with pytest.raises(PrepareError, match="executor Breaking failed") as refused:
        made(once, source, tmp_path / "broken", executor=Breaking())
    assert str(refused.value).count(KEPT) == 1
    assert [
        one
        for one in (tmp_path / "broken").rglob("*")
        if one.parent.parent.name == "parts" or one.parent.name == "files"
    ]
    once(source, tmp_path / "broken", executor=Counting())
    found = {str(one.relative_to(tmp_path / "broken")): one for one in (tmp_path / "broken").rglob("*")}
    assert {name: found[name].read_bytes() for name in expected} == expected


def test_what_a_killed_run_left_goes_with_the_next_one(tmp_path: Path) -> None:
    source, left = write_lines(tmp_path / "a.jsonl", ["x"]), pieces_beside(tmp_path / "b.jsonl")
    left.mkdir()
    (left / "0f.piece").write_bytes(b"half")
    (left / "lock").write_bytes(b"")
    ps.merge([source], tmp_path / "b.jsonl")
    assert not left.exists()


def test_an_unknown_executor_is_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(ConfigError, match="unknown executor"):
        ps.merge([source], tmp_path / "b.jsonl", executor="rays")
    assert not [name for name in os.listdir(tmp_path) if "b.jsonl" in name]

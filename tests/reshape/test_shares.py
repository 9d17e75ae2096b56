"""The verbs as shared work: whoever does it, on every store, the bytes are those of one process; what is refused."""

from __future__ import annotations

import contextlib
import operator
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import internals
from tests.internals import (
    FileDigests,
    Layout,
    ObjectPart,
    PartName,
    Plan,
    ShardWriter,
    SharedBlocks,
    Written,
    current,
    main,
    place_of,
    put,
    read_index,
    status_of,
)
from tests.reshape.test_by_executor import Counting, in_tars, lines, shards, tokens

import penstock as ps
from penstock.errors import ConfigError, Corrupt, PenstockError
from penstock.executors import InlineExecutor, ProcessExecutor

Verb = Callable[..., list[Written]]


def filtered(source: str, folder: str, **how: Any) -> list[Written]:
    fields = source.endswith(".jsonl") or (os.path.exists(f"{source}/index.json") and not source.endswith("-files"))
    condition = {"where": "id % 3 != 1"} if fields else {"min_tokens": 20, "max_tokens": 80}
    chosen = np.arange(0, 240, 2)
    return [ps.filter(source, _target(source, folder), indices=chosen, **condition, **how).output]


def merged(source: str, folder: str, **how: Any) -> list[Written]:
    count = 1 if place_of(source).child(".nv-meta/.info.json").exists() else 2  # keys differ
    return [ps.merge([source] * count, _target(source, folder), **how).output]


def shuffled(source: str, folder: str, **how: Any) -> list[Written]:
    return [ps.shuffle(source, _target(source, folder), seed=3, **how)]


def split(source: str, folder: str, **how: Any) -> list[Written]:
    how |= {"to": "pbin"} if source.endswith("-files") else {}
    return list(ps.split(source, f"{folder}/parts", ratio=(3, 1), by="content", **how))


VERBS = {"filter": filtered, "merge": merged, "shuffle": shuffled, "split": split}


def excluded(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """The same, of which some is excluded."""

    def made(folder: Path) -> Path:
        ps.exclude(source := make(folder), indices=[0, 7, 8, 200], reason="asked for")
        return source

    return made


def token_files(format: str) -> Callable[[Path], Path]:
    """A folder of a few of them."""

    def made(folder: Path) -> Path:
        ps.convert(tokens("pbin")(folder), folder / "in-files", to=format, file_tokens=3000)
        assert len(ps.open(folder / "in-files").block_starts) > 5
        return folder / "in-files"

    return made


def in_tars_of_two_splits(folder: Path) -> Path:
    return in_tars(folder, split_ratio=(0.7, 0.3, 0))


SOURCES = {
    "flat-tokens": tokens("flat-tokens"),
    "pbin": tokens("pbin"),
    "megatron": tokens("megatron"),
    "pbin files": token_files("pbin"),
    "megatron files": token_files("megatron"),
    "jsonl": lines,
    "mds": shards("mds", size_limit=1500, hashes=["sha1"]),
    "mds.zstd": shards("mds", size_limit=1500, compression="zstd:3"),
    "csv": shards("csv", size_limit=1500),
    "pbin, some excluded": excluded(tokens("pbin")),
    "pbin files, some excluded": excluded(token_files("pbin")),
    "jsonl, some excluded": excluded(lines),
    "mds, some excluded": excluded(shards("mds", size_limit=1500)),
    "tars": in_tars,
    "tars, two splits": in_tars_of_two_splits,
    "tars, some excluded": excluded(in_tars),
}
CASES = [(verb, format) for verb in VERBS for format in SOURCES]
CASES = [case for case in CASES if case[0] != "filter" or "tars" not in case[1]]
CASES.remove(("split", "tars, two splits"))
CASES.remove(("shuffle", "mds.zstd"))
CASES.remove(("shuffle", "flat-tokens"))


def _target(source: str, folder: str) -> str:
    return f"{folder}/out{'.jsonl' if source.endswith('.jsonl') else '.pbin' if source.endswith('-files') else ''}"


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
    internals.replace(monkeypatch, "row_task_bytes", 5000)
    internals.replace(monkeypatch, "shuffle_task_bytes", 5000)
    internals.replace(monkeypatch, "shard_task_bytes", 5000)
    internals.replace(monkeypatch, "tar_task_bytes", 2000)
    internals.replace(monkeypatch, "rows_run_bytes", 2000)
    internals.replace(monkeypatch, "defaults_of_runs", (0, None, 2000))
    internals.replace(monkeypatch, "shard_group_bytes", 4096)
    small_blocks(monkeypatch, 4096, 1000)


def small_blocks(monkeypatch: pytest.MonkeyPatch, block_bytes: int, block_tokens: int) -> None:
    internals.replace(monkeypatch, "digest_block_bytes", block_bytes)
    internals.replace(monkeypatch, "digest_block_tokens", block_tokens)
    monkeypatch.setitem(FileDigests.__init__.__kwdefaults__, "block_bytes", block_bytes)


@pytest.fixture
def s3_folder(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a folder of one's own in an object store."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return f"s3://bucket/{tmp_path.name}"


def files_of(folder: str) -> dict[str, bytes]:
    place = place_of(folder)
    names = [path[len(place.path) + 1 :] for path in place.store.list(place.path)] if place.exists() else []
    # Of sqlite its rows alone follow from the data.
    return {name: place.store.get(f"{place.path}/{name}") for name in names if not name.endswith(".sqlite")}


def hidden(folder: str) -> list[str]:
    names = place_of(folder).names()
    return [name for name in names if name.startswith(".")]


# --- one digest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "format", "where"),
    [
        *((*case, "disk") for case in CASES),
        *((*case, "s3") for case in (("filter", "megatron"), ("shuffle", "jsonl"), ("split", "mds"))),
        *(
            (*case, "s3")
            for case in (("shuffle", "pbin files"), ("merge", "csv"), ("filter", "flat-tokens"), ("split", "tars"))
        ),
        *((*case, "s3") for case in (("merge", "tars, some excluded"), ("shuffle", "tars, two splits"))),
    ],
)
def test_an_array_with_a_killed_a_doubled_and_a_missing_share(
    verb: str,
    format: str,
    where: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, do = str(SOURCES[format](tmp_path)), VERBS[verb]
    if where == "s3":  # fewer requests: each part is one
        internals.replace(monkeypatch, "row_task_bytes", 20_000)
        internals.replace(monkeypatch, "shuffle_task_bytes", 20_000)
    do(source, f"{tmp_path}/alone")
    expected = files_of(f"{tmp_path}/alone")
    folder = f"{tmp_path}/shared" if where == "disk" else f"{request.getfixturevalue('s3_folder')}/shared"
    with contextlib.suppress(KeyboardInterrupt):
        do(source, folder, part=(0, 4), executor=Dying(1))
    for index in (1, 1, 3):
        assert do(source, folder, part=(index, 4), executor=Elsewhere())[0].part == (index, 4)
    seen = [name for name in files_of(folder) if "/." not in f"/{name}"]  # shards that no index lists may be there
    assert not [name for name in seen if "/shard" not in name and "/zarr" not in name]
    missing = do(source, folder, finish=True, no_work=True)[0].missing
    assert missing
    assert set(missing) <= {0, 1, 2, 3}
    report = do(source, folder, finish=True)
    assert files_of(folder) == expected
    assert hidden(folder) == []
    again = do(source, f"{tmp_path}/again")
    assert [replace(one, path="") for one in report] == [replace(one, path="") for one in again]
    for late in ({"part": (2, 4)}, {"finish": True}, {"finish": True, "no_work": True}):
        assert all(one.was_complete for one in do(source, folder, **late))
    assert files_of(folder) == expected


def test_by_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, current("hashes_block_bytes"), 1 << 24)  # as they are in those processes
    source = str(SOURCES["pbin"](tmp_path))
    with ProcessExecutor(2) as pool:
        split(source, f"{tmp_path}/alone")
        split(source, f"{tmp_path}/two", finish=True, executor=pool)
    assert files_of(f"{tmp_path}/two") == files_of(f"{tmp_path}/alone")


@pytest.mark.parametrize("format", ["pbin", "megatron"])
def test_a_merge_in_one_bucket_is_the_stores_own(
    format: str, tmp_path: Path, s3_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part is made, and hardly a byte is carried: what is copied lies where it lies."""
    small_blocks(monkeypatch, 1 << 16, 10_000)
    internals.replace(monkeypatch, "least_part_bytes", 4096)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 4096)
    planned: list[ObjectPart] = []
    plan_parts = current("plan_parts")

    def noted(*given: Any) -> list[ObjectPart]:
        planned.extend(found := plan_parts(*given))
        return found

    internals.replace(monkeypatch, "plan_parts", noted)
    with ps.create(tmp_path / "a", format=format, token_bytes=2, eos_id=0) as writer:
        for _ in range(4):
            writer.write({"tokens": np.r_[np.arange(1, 30_000), 0]})
    for one in tmp_path.glob("a*"):
        place = place_of(f"{s3_folder}/{one.name}")
        put(place.store, place.path, one.read_bytes())
    merged(f"{tmp_path}/a", f"{tmp_path}/alone")
    source = f"{s3_folder}/a"
    (written,) = merged(source, f"{s3_folder}/out", part=(0, 2))
    assert written.samples == 0
    merged(source, f"{s3_folder}/out", finish=True)
    alone, shared = files_of(f"{tmp_path}/alone"), files_of(f"{s3_folder}/out")
    assert {name for name in alone if alone[name] != shared[name]} <= {name for name in alone if ".penstock" in name}
    sizes = dict.fromkeys((True, False), 0)
    for part in planned:
        sizes[part.carried] += sum(length for _, _, length in part.extents)
    assert sizes[False] > 9 * sizes[True]


def test_a_finisher_that_was_killed_between_two_outputs_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, commit = str(SOURCES["pbin"](tmp_path)), SharedBlocks.commit
    split(source, f"{tmp_path}/alone")

    def once(self: Any, group: int, known: Any) -> Any:
        if group == 1:
            raise KeyboardInterrupt
        return commit(self, group, known)

    with monkeypatch.context() as patch:
        internals.replace(patch, "blocks_commit", once)
        with pytest.raises(KeyboardInterrupt):
            split(source, f"{tmp_path}/out", finish=True)
    assert "in_train" in files_of(f"{tmp_path}/out/parts")
    with pytest.raises(ConfigError, match="a distributed job for this output is unfinished"):
        split(source, f"{tmp_path}/out")
    split(source, f"{tmp_path}/out", finish=True)
    assert files_of(f"{tmp_path}/out") == files_of(f"{tmp_path}/alone")


@pytest.mark.parametrize(("format", "where"), [("megatron", "s3"), ("flat-tokens", "s3"), ("megatron", "disk")])
def test_a_second_finisher_waits_for_the_first(
    format: str, where: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, opened, waits = str(SOURCES[format](tmp_path)), current("open_writer_of_rows"), threading.Event()
    folder = f"{tmp_path}/shared" if where == "disk" else request.getfixturevalue("s3_folder")
    if where == "s3":
        internals.replace(monkeypatch, "row_task_bytes", 20_000)
    filtered(source, f"{tmp_path}/alone")
    filtered(source, folder, part=(0, 1))
    begun: list[Future[list[Written]]] = []

    def looked(seconds: float) -> bool:
        waits.set()
        time.sleep(seconds)
        return False

    @contextlib.contextmanager
    def held(*given: Any, **options: Any) -> Iterator[Any]:
        with opened(*given, **options) as writer:
            if not begun:
                begun.append(pool.submit(filtered, source, folder, finish=True))
                assert waits.wait(30)
            yield writer

    internals.replace(monkeypatch, "wait_for_others", looked)
    internals.replace(monkeypatch, "open_writer_of_rows", held)
    with ThreadPoolExecutor(1) as pool:
        (first,) = filtered(source, folder, finish=True)
        (second,) = begun[0].result(60)
    assert (first.was_complete, second.was_complete) == (False, True)
    assert files_of(folder) == files_of(f"{tmp_path}/alone")


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "source", "how", "said"),
    [
        ("shuffle", "mds.zstd", {}, "needs random access to rows.*without compression"),
        ("shuffle", "pbin", {"memory_bytes": 1 << 30}, "a fixed 64 MiB of rows.*--memory-mb"),
        ("filter", "pbin", {"dry_run": True}, "a dry run always covers the whole job"),
        ("filter", "pbin", {"token_bytes": 1}, "can't be made narrower"),
    ],
)
def test_what_can_not_be_shared_is_refused_first(
    verb: str, source: str, how: dict[str, Any], said: str, tmp_path: Path
) -> None:
    given = str(in_tars(tmp_path) if source == "tars" else SOURCES[source](tmp_path))
    before = sorted(os.listdir(tmp_path))
    for sharing in ({"part": (0, 2)}, {"finish": True}):
        with pytest.raises(PenstockError, match=said):
            VERBS[verb](given, f"{tmp_path}/out", **how, **sharing)
        assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(("verb", "format"), [("filter", "flat-tokens"), ("merge", "mds"), ("shuffle", "tars")])
def test_a_dataset_of_files_in_a_bucket_is_never_replaced_whoever_works(
    verb: str, format: str, tmp_path: Path, s3_folder: str
) -> None:
    source, do, own = str(SOURCES[format](tmp_path)), VERBS[verb], Counting()
    do(source, s3_folder, overwrite=True)  # nothing is there yet
    before = files_of(s3_folder)
    assert all(one.was_complete for one in do(source, s3_folder, overwrite=True, part=(0, 2)))
    (other := tmp_path / "other").mkdir()
    source = str(excluded(SOURCES[format])(other))
    for how in ({}, {"executor": own}, {"part": (0, 2)}, {"finish": True}, {"finish": True, "no_work": True}):
        with pytest.raises(ConfigError, match=r"can't be replaced atomically.*Write to a new path"):
            do(source, s3_folder, overwrite=True, **how)
    assert not own.num_tasks  # before anything is made
    assert files_of(s3_folder) == before


def test_other_work_is_refused_by_name_and_thrown_away_when_asked(tmp_path: Path) -> None:
    source, output = str(SOURCES["pbin"](tmp_path)), tmp_path / "out"
    ps.filter(source, output, min_tokens=20, part=(0, 2))
    with pytest.raises(ConfigError, match=r"differs: --min_tokens: found 21, expected 20.*--restart"):
        ps.filter(source, output, min_tokens=21, part=(1, 2))
    with pytest.raises(ConfigError, match="different numbers of parts"):
        ps.filter(source, output, min_tokens=20, part=(1, 3))
    with pytest.raises(ConfigError, match="a distributed job for this output is unfinished"):
        ps.merge([source], output)
    with pytest.raises(ConfigError, match=r"only applies to distributed jobs.*--finish"):
        ps.filter(source, output, min_tokens=21, restart=True)
    assert ps.filter(source, output, min_tokens=21, finish=True, restart=True).output.samples
    ps.filter(source, tmp_path / "alone", min_tokens=21)
    assert output.read_bytes() == (tmp_path / "alone").read_bytes()
    told: list[object] = []
    for how in ({}, {"part": (0, 2)}):  # the cost is not said of what is refused
        with pytest.raises(ConfigError, match="the output exists"):
            ps.shuffle(source, output, seed=1, announce=told.append, **how)
    assert not told


@pytest.mark.parametrize("part", [None, (0, 2)])
def test_an_output_that_exists_is_named_by_what_is_there(tmp_path: Path, part: tuple[int, int] | None) -> None:
    source = lines(tmp_path)
    ps.merge([source], tmp_path / "b.jsonl")
    with pytest.raises(ConfigError, match="the output exists") as caught:
        ps.merge([source, source], tmp_path / "b.jsonl", part=part)
    assert (caught.value.path, caught.value.found) == (str(tmp_path / "b.jsonl"), None)


@pytest.mark.parametrize(
    ("verb", "format"), [("filter", "pbin"), ("merge", "mds"), ("shuffle", "tars"), ("split", "jsonl, some excluded")]
)
def test_another_version_another_plan_and_a_stale_worker_are_refused_by_name(
    verb: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, do, folder = str(SOURCES[format](tmp_path)), VERBS[verb], str(tmp_path / "made")
    do(source, f"{tmp_path}/alone")
    do(source, folder, part=(0, 3))
    before = files_of(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Plan.__init__, "__defaults__", (*(Plan.__init__.__defaults__ or ())[:-1], 99))
        for late in ({"part": (1, 3)}, {"finish": True}, {"finish": True, "no_work": True}):
            with pytest.raises(ConfigError, match=r"the version of Penstock that started it.*--restart"):
                do(source, folder, **late)
    with pytest.raises(ConfigError, match="different numbers of parts"):
        do(source, folder, part=(1, 2))
    if verb != "merge":
        ps.exclude(source, indices=[11], reason="asked for meanwhile")
        with pytest.raises(ConfigError, match=r"unfinished work for this output differs: .*(has changed|excluded)"):
            do(source, folder, finish=True)
        ps.exclude(source, indices=[11], undo=True)
    assert files_of(folder) == before
    do(source, folder, finish=True)
    assert files_of(folder) == files_of(f"{tmp_path}/alone")


def test_two_workers_that_disagree_are_found(tmp_path: Path) -> None:
    source, output = str(SOURCES["pbin"](tmp_path)), tmp_path / "out"
    ps.merge([source, source], output, part=(0, 1))
    (mark,) = list(internals.work_beside(tmp_path / "out").glob("*/files/00000000-*"))
    (mark.parent / f"00000000-{'0' * 32}--1").touch()
    with pytest.raises(Corrupt, match="two workers disagree on block 0"):
        ps.merge([source, source], output, finish=True)


@pytest.mark.parametrize(
    "line",
    [
        ("filter", "SOURCE", "-o", "OUT.pbin", "--min-tokens", "20"),
        ("merge", "SOURCE", "SOURCE", "-o", "OUT.pbin"),
        ("shuffle", "SOURCE", "-o", "OUT.pbin", "--seed", "1"),
        ("split", "SOURCE", "-o", "OUT", "--ratio", "3,1"),
        ("verify", "SOURCE", "--depth", "full", "--work", "OUT"),
    ],
    ids=operator.itemgetter(0),
)
def test_what_nobody_divided_is_no_array(
    line: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(SOURCES["pbin"](tmp_path))
    words = [one.replace("SOURCE", source).replace("OUT", f"{tmp_path}/out") for one in line]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--finish", "--no-work"])
    said = capsys.readouterr().out
    assert ended.value.code == 14
    assert "Run with --finish to complete them, or distribute them with --part I/N" in said
    assert "--array" not in said


def test_the_command_prints_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = str(SOURCES["pbin"](tmp_path)), str(tmp_path / "out.pbin")
    line = ["filter", source, "-o", output, "--min-tokens", "20"]

    def run(*more: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([*line, *more])
        return int(ended.value.code or 0), capsys.readouterr().out.strip()

    assert run("--part", "1/3")[1].startswith(f"{output}: part 1 of 3: ")
    assert run("--finish", "--no-work") == (14, "--array=0,2")
    assert not status_of(place_of(output)).complete
    status, said = run("--finish")
    assert (status, said.endswith("removed")) == (0, True)
    assert run("--part", "0/3")[1].startswith("already complete: ")


# --- growth, and the cut ---------------------------------------------------------------------------------------------


def test_a_block_names_only_what_it_lies_in(tmp_path: Path) -> None:
    place, counts = place_of(str(tmp_path)), list[int]()
    for size in (100, 1000):
        laid = [PartName(task, 0, True, 1, 300, 0, "0" * 16) for task in range(size)]
        layout = Layout.of(laid, place, 2, 2, 0, lambda _: b"h" * 12)
        counts.append(sum(len(block.stretches) for block in layout.blocks()))
    assert counts[1] <= 12 * counts[0]


@pytest.mark.parametrize("first", [0, 900])
def test_shards_end_where_the_writer_ends_them(first: int, tmp_path: Path) -> None:
    lengths = np.r_[first, np.random.default_rng(5).integers(0, 400, 200), 700, 10]
    with ps.create(tmp_path / "a", format="csv", columns={"a": "str"}, size_limit=500) as writer:
        assert isinstance(writer, ShardWriter)
        borders = writer.borders(lengths)
        writer.write_run(np.zeros(int(lengths.sum()), np.uint8), lengths)
    counts = [shard.samples for shard in read_index(place_of(str(tmp_path)).store, str(tmp_path / "a")).shards]
    assert borders == [0, *np.cumsum(counts)[:-1].tolist()]

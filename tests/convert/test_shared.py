"""Conversions that many workers share: one digest whoever does them, on every store; and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.internals import (
    GROUPED,
    STALE_WORK,
    Plan,
    SharedWork,
    current,
    nth_staged_name,
    place_of,
    put,
    replace,
    status_of,
    work_beside,
    work_name,
)
from tests.shared_work import Dying, files_of

import penstock as ps
from penstock.convert import ConvertReport
from penstock.errors import ConfigError, Corrupt, PenstockError, PrepareError
from penstock.testing.datasets import files_in

Share = Callable[..., ConvertReport]
ROWS = 150
FEW = 30
GROUPS = 8


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Share:
    """`convert` of some lines into groups of shards, or of tokens into parts."""
    for name, rows in (("a", ROWS), ("few", FEW)):
        lines = (json.dumps({"id": n, "text": "x" * (n % 50)}) for n in range(rows))
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for name, rows in (("t", ROWS), ("few", FEW)):
        with ps.create(tmp_path / f"{name}.pbin", format="pbin", token_bytes=2) as writer:
            for n in range(rows):
                writer.write({"tokens": [*range(1, n % 17), 0] if n % 7 else []})
    replace(monkeypatch, "convert_task_tokens", 30)

    def run(output: Any = None, **options: Any) -> ConvertReport:
        source = options.pop("source", "a.jsonl")
        how: dict[str, Any] = {"to": "mds", "executor": "inline"}
        how |= {"group_rows": 20 if source == "a.jsonl" else 5} if source.endswith("jsonl") else {}
        how |= {"size_limit": 500} if options.get("to", "mds") in GROUPED else {}
        return ps.convert(tmp_path / source, output or tmp_path / "out", **how | options)

    return run


@pytest.fixture
def whole(tmp_path: Path, share: Share) -> dict[str, bytes]:
    """The files of a run that nobody shares."""
    assert share(tmp_path / "whole").groups == GROUPS
    return files_in(tmp_path / "whole")


@pytest.fixture
def s3_bucket(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a place of one's own in an object store."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return f"s3://bucket/{tmp_path.name}"


# --- one digest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("disk", {}),
        ("disk", {"to": "json-shards", "compression": "zstd:3", "hashes": ["sha1"]}),
        ("s3", {}),
        ("s3", {"to": "csv", "group_rows": 25}),
        ("disk", {"to": "webdataset", "maxcount": 33}),
        ("disk", {"to": "webdataset", "maxsize": 40_000, "pattern": "a/%05d.tar", "split": "val"}),
        ("s3", {"to": "webdataset", "source": "few.jsonl", "maxcount": 14}),
        ("disk", {"to": "folder"}),
        ("s3", {"to": "folder", "source": "few.jsonl"}),
        ("disk", {"to": "pbin", "source": "t.pbin", "eos": ("add", 99), "token_bytes": 4}),
        ("disk", {"to": "megatron", "source": "t.pbin"}),
        ("s3", {"to": "megatron", "source": "few.pbin", "dtype": "int64"}),
        ("disk", {"to": "flat-tokens", "source": "t.pbin", "chunk_tokens": 256}),
        ("disk", {"to": "flat-tokens", "source": "t.pbin", "chunk_tokens": 256, "split": "train"}),
        ("disk", {"to": "pbin", "source": "t.pbin", "file_tokens": 250}),
        ("disk", {"to": "flat-tokens", "source": "t.pbin", "file_tokens": 250, "chunk_tokens": 256}),
        ("s3", {"to": "megatron", "source": "few.pbin", "file_tokens": 60}),
    ],
)
def test_an_array_with_a_killed_a_doubled_and_a_missing_part(
    where: str, options: dict[str, Any], tmp_path: Path, share: Share, request: pytest.FixtureRequest
) -> None:
    share(tmp_path / "whole/out", **options)
    folder = f"{tmp_path}/made" if where == "disk" else request.getfixturevalue("s3_bucket")
    output = f"{folder}/out"
    with pytest.raises(KeyboardInterrupt):
        share(output, part=(0, 5), executor=Dying(1), **options)
    for index in (1, 1, 3, 2):
        assert share(output, part=(index, 5), **options).part == (index, 5)
    with pytest.raises(PenstockError):
        ps.open(output)
    before = share(output, finish=True, no_work=True, **options)
    assert before.digest is None
    assert before.missing == status_of(place_of(output)).missing_shares
    assert set(before.missing) in ({0, 4}, {4})
    told = status_of(place_of(output))
    assert [(one.share, one.error) for one in told.failed] == [("0/5", "KeyboardInterrupt")]
    assert told.running == ()
    report = share(output, finish=True, **options)
    rows = FEW if options.get("source", "").startswith("few") else ROWS
    assert (report.samples, report.missing) == (rows, ())
    assert files_of(folder) == files_of(f"{tmp_path}/whole") != {}
    for late in ({"part": (4, 5)}, {"finish": True}, {"finish": True, "no_work": True}):
        again = share(output, **late, **options)
        assert (again.was_complete, again.digest) == (True, report.digest)
    assert [name for name in place_of(folder).names() if name.startswith(".")] == []
    assert status_of(place_of(output)).complete


def test_the_commit_alone(share: Share, s3_bucket: str, whole: dict[str, bytes]) -> None:
    """An array that runs twice writes groups, then copies them: nothing is left but the commit."""
    output = f"{s3_bucket}/out"
    share(output, part=(0, 2))
    share(output, part=(1, 2))
    assert "index.json" not in files_of(output)
    assert share(output, finish=True, no_work=True).missing == (0,)
    found = status_of(place_of(output))
    assert (found.complete, found.missing, found.files) == (False, 0, 4)
    share(output, part=(0, 2))
    assert share(output, finish=True, no_work=True).samples == ROWS
    assert files_of(output) == whole
    for index in (0, 1):
        share(f"{s3_bucket}/b", part=(index, 2), group_rows=15)
    assert share(f"{s3_bucket}/b", restart=True).reused_groups == 0
    assert files_of(f"{s3_bucket}/b") == whole


@pytest.mark.parametrize("where", ["disk", "s3"])
def test_alone_goes_on_where_others_stopped(
    where: str, tmp_path: Path, share: Share, whole: dict[str, bytes], request: pytest.FixtureRequest
) -> None:
    output = f"{tmp_path}/out" if where == "disk" else f"{request.getfixturevalue('s3_bucket')}/out"
    share(output, part=(1, 3))
    report = share(output)
    assert (report.groups, report.reused_groups) == (GROUPS, 3)
    assert files_of(output) == whole


def test_two_finishers(tmp_path: Path, share: Share, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    share(part=(0, 2))
    begin, seen = SharedWork.begin, list[ConvertReport]()

    def meanwhile(work: SharedWork, plan: Any, tasks: int) -> None:
        begin(work, plan, tasks)
        monkeypatch.undo()
        seen.append(share(finish=True))

    monkeypatch.setattr(SharedWork, "begin", meanwhile)
    assert share(finish=True).samples == seen[0].samples == ROWS
    assert files_in(tmp_path / "out") == whole


def test_a_finisher_that_is_killed_with_the_old_dataset_in_its_hands(tmp_path: Path, share: Share) -> None:
    """The new one is there, and what it replaced lies hidden beside it: the same array again sweeps that."""
    shares: list[dict[str, Any]] = [{"part": (0, 2)}, {"part": (1, 2)}, {"finish": True}]
    inputs = os.listdir(tmp_path)
    for one in shares:
        share(overwrite=True, **one)
    hidden = tmp_path / nth_staged_name("out", 0)
    hidden.mkdir()
    (hidden / "index.json").write_text("{}")
    assert all(share(overwrite=True, **one).was_complete for one in shares)
    assert set(os.listdir(tmp_path)) == {*inputs, "out"}


def test_a_finish_reads_nothing_back(tmp_path: Path, share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wrote a group has read it back: what is left is second names, an index and a side file."""

    for index in range(2):
        share(part=(index, 2))
    replace(monkeypatch, "group_batches", None)
    assert share(finish=True, no_work=True).samples == ROWS


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"to": "pbin", "source": "few.pbin"}, {"token_bytes": 4}),
        ({"to": "megatron", "source": "few.pbin"}, {"dtype": "int32"}),
        ({"to": "flat-tokens", "source": "few.pbin"}, {"chunk_tokens": 512}),
        ({"to": "pbin", "source": "few.pbin", "file_tokens": 60}, {"token_bytes": 4, "file_tokens": 80}),
        ({"to": "pbin", "source": "few.pbin", "file_tokens": 60}, {"file_tokens": 80}),
        ({"to": "webdataset", "source": "few.jsonl"}, {"maxcount": 7}),
        ({"to": "folder", "source": "few.jsonl"}, {"group_rows": 7}),
        ({"source": "few.jsonl"}, {"size_limit": 300}),
    ],
)
def test_late_shares_know_their_plan(share: Share, options: dict[str, Any], other: dict[str, Any]) -> None:
    """What is there is done, whatever the share says of replacing it; and it is not done where it is another thing."""
    made = share(finish=True, **options)
    for late in ({"part": (1, 2)}, {"finish": True}, {"finish": True, "no_work": True}):
        for more in ({}, {"overwrite": True}):
            again = share(**late, **more, **options)
            assert (again.was_complete, again.samples, again.digest) == (True, made.samples, made.digest)
    with pytest.raises(ConfigError, match="the output exists"):
        share(part=(1, 2), **options | other)
    assert not share(part=(1, 2), overwrite=True, **options | other).was_complete
    assert share(finish=True, overwrite=True, **options | other).was_complete is False
    assert share(part=(0, 2), overwrite=True, **options | other).was_complete
    with pytest.raises(ConfigError, match="the output exists"):
        share(part=(1, 2), **options)


def test_a_share_that_ends_when_others_do(tmp_path: Path, share: Share, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of all groups goes by those that others wrote meanwhile too."""

    options: dict[str, Any] = {"to": "webdataset", "source": "few.jsonl", "maxcount": 8}
    share(tmp_path / "whole/out", **options)
    output, own_groups = tmp_path / "made/out", current("pass_groups")

    def meanwhile(*given: Any) -> Any:
        found = own_groups(*given)
        monkeypatch.undo()
        share(output, part=(1, 2), **options)
        return found

    replace(monkeypatch, "pass_groups", meanwhile)  # pyright: ignore[reportPrivateUsage]
    share(output, part=(0, 2), **options)
    assert share(output, finish=True, **options).samples == FEW
    assert files_in(tmp_path / "made") == files_in(tmp_path / "whole")


def test_tokens_by_workers_of_one_run(tmp_path: Path, share: Share) -> None:
    """Workers that are asked for are given work, also where the target holds tokens."""
    for to in ("pbin", "megatron"):
        assert share(tmp_path / f"a/{to}", source="few.pbin", to=to).groups is None
        assert (share(tmp_path / f"b/{to}", source="few.pbin", to=to, workers=2, executor="processes").groups or 0) > 5
    assert files_in(tmp_path / "a") == files_in(tmp_path / "b")


# --- what is refused -------------------------------------------------------------------------------------------------


def test_other_work_is_refused(tmp_path: Path, share: Share) -> None:
    share(part=(0, 3))
    for options, what in (
        ({"part": (1, 4)}, r"--part I/4.*--part I/3"),
        ({"part": (1, 3), "group_rows": 30}, "unfinished work for this output differs: --group-rows"),
        ({"finish": True, "compression": "zstd"}, "unfinished work for this output differs: --compression"),
        ({"part": (1, 3), "restart": True}, "restart"),
        ({"no_work": True}, "--finish"),
        ({"part": (3, 3)}, "the part is out of range"),
        ({"to": "csv"}, "unfinished work for this output differs"),
        ({"finish": True, "overwrite": True}, "unfinished work for this output differs: --overwrite"),
    ):
        with pytest.raises(ConfigError, match=what):
            share(**options)
    assert share(restart=True).reused_groups == 0


@pytest.mark.parametrize("options", [{"part": (0, 2)}, {"finish": True}, {"restart": True}])
def test_what_is_one_stream_can_not_be_shared(tmp_path: Path, share: Share, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"jsonl is written by a single process.*token formats.*mds.*webdataset"):
        ps.convert(tmp_path / "a.jsonl", tmp_path / "out", to="jsonl", **options)
    if "restart" not in options:
        with pytest.raises(ConfigError, match="from an iterator"):
            ps.convert(iter([{"a": 1}]), tmp_path / "out", to="mds", **options)
    assert not (tmp_path / "out").exists()


def test_workers_that_disagree(tmp_path: Path, share: Share) -> None:
    share(part=(0, 2))
    [part, *_] = sorted(work_beside(tmp_path / "out").glob("*/parts/*/*.part"))
    part.with_name(part.name.rpartition("-")[0] + f"-{'0' * 16}.part").write_bytes(part.read_bytes())
    with pytest.raises(Corrupt, match=r"two workers disagree on task 0.*--restart"):
        share(finish=True)


def test_a_plan_that_is_damaged_or_gone(tmp_path: Path, share: Share, cli: Any) -> None:
    """`status` says so, and nobody goes on with it."""
    share(part=(0, 2))
    [head, piece] = work_beside(tmp_path / "out") / "plan", *work_beside(tmp_path / "out").glob("*/plan-00000")
    for file, data in (
        (head, head.read_bytes().replace(b'"tasks":8', b'"tasks":1')),
        (piece, piece.read_bytes()[:20]),
        (piece, piece.read_bytes().replace(b"--group-rows", b"--group-cows")),
        (piece, None),
    ):
        before = file.read_bytes()
        file.unlink() if data is None else file.write_bytes(data)
        code, told = cli("status", str(tmp_path / "out"))
        assert (code, "the plan of unfinished work is damaged" in told) == (6, True)
        with pytest.raises(Corrupt, match="the plan of unfinished work is damaged"):
            share(part=(1, 2))
        file.write_bytes(before)
    assert share(finish=True).samples == ROWS


@pytest.mark.parametrize("options", [{}, {"to": "webdataset"}, {"to": "megatron", "source": "t.pbin"}])
def test_work_that_another_version_began_is_refused_by_name(
    options: dict[str, Any], tmp_path: Path, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    share(part=(0, 2), **options)
    before = files_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Plan.__init__, "__defaults__", (*(Plan.__init__.__defaults__ or ())[:-1], 99))
        for late in ({"part": (1, 2)}, {"finish": True}, {"finish": True, "no_work": True}):
            with pytest.raises(ConfigError, match=r"the version of Penstock that started it.*--restart"):
                share(**late, **options)
    assert files_in(tmp_path) == before
    assert share(finish=True, **options).samples == ROWS


@pytest.mark.parametrize("to", ["webdataset", "folder"])
def test_nothing_becomes_an_empty_dataset_whoever_converts_it(to: str, tmp_path: Path, share: Share) -> None:
    with ps.create(tmp_path / "none", format="mds", columns={"id": "int", "text": "str"}, size_limit=10) as writer:
        writer.write({"id": 1, "text": "longer than a shard, so that the first one is empty"})
    index = json.loads((tmp_path / "none/index.json").read_bytes())
    (tmp_path / "none/index.json").write_text(json.dumps(index | {"shards": index["shards"][:1]}))
    (tmp_path / "none/.penstock").unlink(missing_ok=True)
    found = list[dict[str, bytes]]()
    for name, how in (("alone", {}), ("shared", {"finish": True}), ("array", {"part": (0, 2)})):
        share(tmp_path / name / "out", source="none", to=to, **how)
        if how == {"part": (0, 2)}:
            share(tmp_path / name / "out", source="none", to=to, finish=True)
        found.append({one: data for one, data in files_in(tmp_path / name).items() if not one.endswith(".sqlite")})
    assert found[0] == found[1] == found[2]
    assert len(ps.open(tmp_path / "array/out")) == 0


def test_a_part_that_is_damaged(tmp_path: Path, share: Share) -> None:
    share(part=(0, 2))
    [part, *_] = sorted(work_beside(tmp_path / "out").glob("*/parts/*/*.part"))
    part.write_bytes(b"{}")
    with pytest.raises(Corrupt, match="a part of unfinished work is damaged"):
        share(finish=True)


def test_what_lies_in_an_object_store(share: Share, s3_bucket: str, whole: dict[str, bytes]) -> None:
    place = place_of(f"{s3_bucket}/out")
    put(place.store, place.child("thesis.tex").path, b"precious")
    with pytest.raises(ConfigError, match=r"files exist, but no index\.json.*thesis"):
        share(place.path)
    assert files_of(place.path) == {"thesis.tex": b"precious"}
    share(f"{s3_bucket}/b")
    for options in ({"overwrite": True}, {"overwrite": True, "part": (0, 2), "group_rows": 30}):
        with pytest.raises(ConfigError, match="can't be replaced atomically"):
            share(f"{s3_bucket}/b", **options)
    share(f"{s3_bucket}/c", part=(0, 1))
    shards = place_of(f"{s3_bucket}/c").child("shard.00000.mds")
    put(shards.store, shards.path, b"of somebody else")
    for path in list(shards.store.list(f"{s3_bucket}/{work_name('c')}")):
        if "/files/" in path:
            shards.store.delete(path)
    with pytest.raises(PrepareError, match="another run wrote a file with this name"):
        share(f"{s3_bucket}/c", finish=True)
    assert files_of(f"{s3_bucket}/b") == whole


@pytest.mark.parametrize(
    ("error", "stays"), [(OSError("full"), True), (KeyboardInterrupt(), True), (ConfigError("no"), False)]
)
def test_what_is_kept(
    error: BaseException, stays: bool, tmp_path: Path, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is stopped keeps its work; one that is refused keeps none, unless others share it."""

    write = current("write_group")

    def failing(job: Any, task: Any) -> Any:
        if task[0].number == 2:
            raise error
        return write(job, task)

    replace(monkeypatch, "write_group", failing)
    for number, (options, kept) in enumerate((({}, stays), ({"part": (0, 1)}, True))):
        with pytest.raises(type(error)):
            share(tmp_path / f"out{number}", **options)
        assert work_beside(tmp_path / f"out{number}").exists() == kept
    if kept:
        assert str(error) in str(status_of(place_of(tmp_path / "out1")).failed[0].error)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command(
    tmp_path: Path, share: Share, whole: dict[str, bytes], cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = str(tmp_path / "out")
    how = ["convert", f"{tmp_path}/a.jsonl", output, "--to", "mds", "--group-rows", "20", "--size-limit", "500"]
    how += ["--executor", "inline"]
    assert cli(*how, "--part", "3/3")[0] == 2
    assert cli("status", output)[0] == 9
    code, said = cli(*how, "--finish", "--no-work")
    assert (code, "8 of 8 tasks are missing. Run with --finish" in said) == (14, True)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    code, said = cli(*how, "--part", "auto/3")
    assert (code, "part 1 of 3: 50 samples" in said) == (0, True)
    code, said = cli(*how, "--finish", "--no-work")
    assert (code, said) == (14, "--array=0,2\n")
    code, said = cli("status", output, "--json")
    found = json.loads(said)
    assert (code, found["done"], found["missing"], found["missing_shares"]) == (14, 3, 5, [0, 2])
    stale = work_beside(tmp_path / "out") / STALE_WORK
    stale.mkdir()
    (stale / "plan-00000").write_text("{}")
    assert cli("status", output, "--sweep")[0] == 14
    assert not stale.exists()
    code, said = cli(*how, "--finish")
    assert (code, "3 of 8 groups kept from an earlier run" in said) == (0, True)
    assert "already complete: 150 samples" in cli(*how, "--part", "2/3")[1]
    assert files_in(tmp_path / "out") == whole
    assert cli("status", output)[0] == 0
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []

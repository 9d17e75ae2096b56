"""Preparations that many workers share: the same files whoever does them, on every store; and what is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.internals import (
    METADATA_WORK,
    OF_METADATA,
    PrepareSummary,
    SharedWork,
    current,
    main,
    place_of,
    prepare_webdataset,
    replace,
    status_of,
    sweep,
)
from tests.shared_work import Dying, files_of
from tests.store.between import between

import penstock as ps
from penstock.errors import ConfigError, Corrupt, PrepareError
from penstock.executors import InlineExecutor
from penstock.testing.cluster import upload
from penstock.testing.datasets import files_in

from .test_run import write_tar

SHARDS = 7
Share = Callable[..., PrepareSummary]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    for shard in range(SHARDS):
        members = [(f"k{shard}_{number}.txt", b"text" * number) for number in range(3)]
        write_tar(tmp_path / "bare" / f"s_{shard}.tar", members)
    return tmp_path / "bare"


@pytest.fixture
def whole(bare: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of a run that nobody shares."""
    shutil.copytree(bare, tmp_path / "whole")
    share(tmp_path / "whole")
    return files_in(tmp_path / "whole")


@pytest.fixture(params=["disk", "s3"])
def root(request: pytest.FixtureRequest, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "disk":
        return str(shutil.copytree(bare, tmp_path / "here" / "set"))
    request.getfixturevalue("s3_server")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    upload(bare, f"s3://bucket/{tmp_path.name}/set")
    return f"s3://bucket/{tmp_path.name}/set"


def share(root: Any, **options: Any) -> PrepareSummary:
    return prepare_webdataset(root, **{"split_ratio": (5, 1, 1), "executor": "inline"} | options)


def test_an_array_with_a_killed_a_doubled_and_a_missing_part(root: str, whole: dict[str, bytes]) -> None:
    with pytest.raises(KeyboardInterrupt):
        share(root, part=(0, 5), executor=Dying(1))
    for index in (1, 1, 3, 2):
        done = share(root, part=(index, 5))
        assert (done.part, done.wrote) == ((index, 5), ())
    assert not place_of(root).child(".nv-meta").exists()
    before = share(root, finish=True, no_work=True)
    found = status_of(place_of(root))
    assert before.missing == found.missing_shares == (4,)  # the killed one's second shard was put
    assert (found.done, found.tasks, found.complete) == (6, SHARDS, False)
    report = share(root, finish=True)
    assert (report.num_samples, report.num_reused, report.missing) == (21, 6, ())
    assert files_of(root) == whole
    for late in ({"part": (4, 5)}, {"finish": True}, {"finish": True, "no_work": True}):
        again = share(root, **late)
        assert (again.was_complete, again.shard_counts, again.uuid) == (True, report.shard_counts, report.uuid)
    assert files_of(root) == whole
    assert status_of(place_of(root)).complete


@pytest.mark.parametrize("members", [[("k4_2.txt", b"texttext")], [(f"k9_{n}.txt", b"text" * n) for n in range(3)]])
def test_a_late_share_where_a_tar_is_another_one_since(
    root: str, members: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    """It is not done then: not where the tar is shorter, nor where its samples lie where the old ones lay."""
    share(root, finish=True)
    tar = place_of(root).child("s_3.tar")
    tar.store.delete(tar.path)
    write_tar(tmp_path / "new.tar", members)
    staged = tar.store.stage(tar.path)
    staged.write((tmp_path / "new.tar").read_bytes())
    staged.commit()
    for late in ({"part": (0, 3)}, {"finish": True}, {"finish": True, "no_work": True}):
        with pytest.raises(ConfigError, match="already prepared"):
            share(root, **late)


@pytest.mark.parametrize("options", [{}, {"tar_index_only": True}], ids=["anew", "indexes"])
def test_a_late_share_of_what_is_replaced(root: str, options: dict[str, Any]) -> None:
    """It is done, as without `overwrite`; but not where a tar is another one since, or a file of the metadata."""
    share(root)
    asked = {"split_ratio": None, **options} if options else {"split_ratio": (1, 1, 5), "overwrite": True}
    share(root, part=(1, 3), **asked)
    report = share(root, finish=True, **asked)
    assert (report.num_reused, report.was_complete) == (2, False)
    before = files_of(root)
    for late in ({"part": (0, 3)}, {"finish": True}, {"finish": True, "no_work": True}):
        again = share(root, **late, **asked)
        assert (again.was_complete, again.shard_counts, again.uuid) == (True, report.shard_counts, report.uuid)
    assert files_of(root) == before
    assert status_of(place_of(root)).complete
    assert not share(root, finish=True, restart=True, **asked).was_complete
    keys = place_of(root).child(".nv-meta/index.keys")
    keys.store.delete(keys.path)
    assert not share(root, part=(0, 3), **asked).was_complete
    assert not share(root, finish=True, **asked).was_complete
    if not root.startswith("s3"):
        os.utime(f"{root}/s_3.tar", (5, 5))
        assert not share(root, part=(0, 3), **asked).was_complete
        share(root, finish=True, **asked)
    assert files_of(root).keys() == before.keys()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_share_that_looked_before_the_end_and_began_after_it(
    root: str, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would begin then nobody would end."""
    if overwrite:
        share(root)
    asked: dict[str, Any] = {"split_ratio": (1, 1, 5), "overwrite": overwrite}
    share(root, part=(0, 2), **asked)
    opened = current("open_work_of_prepare")

    def after_the_end(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        share(root, finish=True, **asked)
        return opened(*given, **options)

    replace(monkeypatch, "open_work_of_prepare", after_the_end)
    assert share(root, part=(1, 2), **asked).was_complete
    assert not place_of(root).child(OF_METADATA).exists()
    assert status_of(place_of(root)).complete


def test_processes_and_alone_where_others_stopped(root: str, whole: dict[str, bytes]) -> None:
    share(root, part=(1, 3))
    report = share(root, executor="processes", workers=2)
    assert report.num_reused == 2
    assert files_of(root) == whole


def test_two_finishers(bare: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    share(bare, part=(0, 2))
    begin, seen = SharedWork.begin, list[PrepareSummary]()

    def meanwhile(work: SharedWork, plan: Any, tasks: int) -> None:
        begin(work, plan, tasks)
        monkeypatch.undo()
        seen.append(share(bare, finish=True))

    monkeypatch.setattr(SharedWork, "begin", meanwhile)
    assert share(bare, finish=True).num_samples == seen[0].num_samples == 21
    assert files_in(bare) == whole


def test_a_run_killed_before_its_last_folder_is_gone(bare: Path, whole: dict[str, bytes]) -> None:
    share(bare)
    (bare / METADATA_WORK).mkdir()
    assert share(bare).was_complete
    assert files_in(bare) == whole
    assert not (bare / METADATA_WORK).exists()


def test_other_work_is_refused_by_name(root: str) -> None:
    share(root, part=(0, 3))
    with pytest.raises(ConfigError, match="differs: --split-ratio"):
        share(root, part=(1, 3), split_ratio=(1, 1, 1))
    with pytest.raises(ConfigError, match="different numbers of parts"):
        share(root, part=(1, 4))
    with pytest.raises(ConfigError, match="this option can't be combined with part"):
        share(root, part=(1, 3), restart=True)
    with pytest.raises(ConfigError, match="no_work"):
        share(root, no_work=True)
    assert share(root, restart=True, split_ratio=(1, 1, 1)).num_reused == 0


def test_alone_goes_on_with_what_is_the_same(bare: Path, tmp_path: Path) -> None:
    """A damaged shard is left out, or mended, and what was found in the others counts still."""
    share(bare, part=(0, 2))
    (bare / "s_0.tar").write_bytes(b"damaged" * 200)
    with pytest.raises(Corrupt):
        share(bare)
    assert status_of(place_of(bare)).done == 3
    assert share(bare, exclude="s_0", split_ratio=(1, 0, 0)).num_reused >= 3
    expected = shutil.copytree(bare, tmp_path / "again", ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    share(expected, exclude="s_0", split_ratio=(1, 0, 0))
    assert files_in(bare) == files_in(expected)


def test_a_shard_that_was_touched_is_scanned_again(bare: Path, whole: dict[str, bytes]) -> None:
    share(bare, part=(0, 1))
    os.utime(bare / "s_3.tar", (5, 5))
    assert share(bare).num_reused == SHARDS - 1
    assert files_in(bare) == whole


def test_workers_that_disagree_are_found(bare: Path) -> None:
    share(bare, part=(0, 1))
    [part] = (bare / OF_METADATA).glob("*/parts/02/*.part")
    shutil.copy(part, part.with_name(part.name.replace(part.name[-21:-5], "0" * 16)))
    with pytest.raises(Corrupt, match="two workers disagree on task 2"):
        share(bare, finish=True)
    part.write_bytes(b"damaged")
    part.with_name(part.name.replace(part.name[-21:-5], "0" * 16)).unlink()
    with pytest.raises(Corrupt, match="a part of unfinished work is damaged"):
        share(bare, finish=True)
    assert share(bare, restart=True).num_samples == 21


def test_a_worker_that_comes_while_one_works_alone(bare: Path) -> None:
    class Meanwhile(InlineExecutor):
        def map(self, fn: Any, tasks: Any) -> Any:
            with pytest.raises(PrepareError, match="another run"):
                share(bare, part=(0, 2))
            return super().map(fn, tasks)

    assert share(bare, executor=Meanwhile()).num_samples == 21


def test_the_command(bare: Path, whole: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["prepare", str(bare), "--split-ratio", "5,1,1", *words])
        return int(ended.value.code or 0), capsys.readouterr().out

    assert run("--part", "0/3")[1].startswith(f"{bare}: part 0 of 3: 3 shards, 9 samples")
    assert run("--finish", "--no-work") == (14, "--array=1-2\n")
    assert status_of(place_of(bare)).missing_shares == (1, 2)
    assert run("--finish")[0] == 0
    assert run("--finish")[1].startswith(f"{bare}: already complete")
    assert files_in(bare) == whole
    assert sweep(place_of(bare)) == []
    (bare / "a.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit) as ended:
        main(["prepare", str(bare / "a.jsonl"), "--part", "0/3"])
    assert ended.value.code == 2


def test_the_facade(bare: Path, whole: dict[str, bytes]) -> None:
    assert ps.prepare(bare, split_ratio=[5, 1, 1], part=(0, 2)).part == (0, 2)  # type: ignore[union-attr]
    ps.prepare(bare, split_ratio=[5, 1, 1], finish=True)
    assert files_in(bare) == whole


@pytest.mark.parametrize("every", [4, 7])
def test_faults_of_a_store_all_the_way(
    bare: Path, whole: dict[str, bytes], every: int, s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_REMOTE_BACKOFF_S", "0.01")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    url = f"s3://bucket/{tmp_path.name}/set"
    upload(bare, url)
    kinds: list[Any] = ["503", "unanswered", "cut", "500", "expired", "half"]
    seen: list[str] = []

    def chosen(method: str, path: str) -> Any:
        seen.append(path)
        return kinds[len(seen) // every % len(kinds)] if len(seen) % every == 0 else ""

    with between(s3_server) as proxy:
        monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
        proxy.fault = chosen
        share(url, part=(0, 2))
        share(url, finish=True)
        proxy.fault = lambda method, path: ""
        assert files_of(url) == whole
    assert len(seen) > 5 * every


@pytest.mark.parametrize("call", ["fsync", "link", "rename"])
@pytest.mark.parametrize("left", [1, 4, 9, 20])
def test_a_full_disk(
    bare: Path, whole: dict[str, bytes], call: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = getattr(os, call), [left]

    def full(*given: Any, **how: Any) -> Any:
        calls[0] -= 1
        if calls[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*given, **how)

    for part in ((0, 2), (1, 2), None):
        with monkeypatch.context() as patch, contextlib.suppress(OSError):
            patch.setattr(os, call, full)
            share(bare, part=part, finish=part is None)
    for part in ((0, 2), (1, 2), None):
        share(bare, part=part, finish=part is None)
    assert files_in(bare) == whole

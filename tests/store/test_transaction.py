"""Files that change together: kills, errors, rivals, readers in between, planted logs, and version 0.2 next to it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store.transactions import (
    NAMES,
    FailingOs,
    content,
    fail_at,
    files_in,
    interrupted,
    kill_at,
    killed,
    memory_folder,
    names_in,
    places_of,
    read_across,
    seen,
    seen_by_others,
    version_of,
    write,
)

import penstock as ps
from penstock.errors import ConfigError, Corrupt, PenstockError, PrepareError, UnsafeData, Unsupported
from penstock.store import lock as claims
from penstock.store._leftovers import Kept
from penstock.store.names import lock_path
from penstock.store.transaction import CommitLog, OutputFiles, Transaction, paths_of, read_committed, read_log
from penstock.testing import FaultyOs

SEED = int(os.environ.get("CRASH_SEED", "1"))
OLD_REVISION = "c3b67e91"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as path:
        yield path


# --- without faults ----------------------------------------------------------------------------------------------


def test_it_writes_replaces_and_leaves_nothing(folder: Path) -> None:
    assert seen(folder) is None
    for version in "AB":
        assert write(folder, version) == "written"
        assert (seen(folder), seen_by_others(folder), names_in(folder)) == (version, version, sorted(NAMES))


def test_nothing_changes_without_commit(folder: Path) -> None:
    write(folder, "A")
    with Transaction(files_in(folder), "plan") as transaction:
        transaction.stage("x.bin").write(b"new")

    def fails() -> None:
        with Transaction(files_in(folder), "plan") as transaction:
            transaction.stage("x.bin").write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert (seen(folder), names_in(folder)) == ("A", sorted(NAMES))


def test_old_files_are_removed(folder: Path) -> None:
    write(folder, "A")
    with Transaction(files_in(folder), "plan") as transaction:
        for name in ("x.idx", "x.bin"):
            transaction.stage(name).write(b"new")
        transaction.commit(remove=["x.planes"])
    assert names_in(folder) == ["x.bin", "x.idx", "x.penstock"]


def test_an_existing_file_stays_if_it_must_be_new(folder: Path) -> None:
    (folder / "x.penstock").write_bytes(b"of somebody else")
    with Transaction(files_in(folder), "plan") as transaction:
        for name in NAMES:
            transaction.stage(name)
        with pytest.raises(ConfigError, match="exists"):
            transaction.commit(new=["x.penstock"])
    assert names_in(folder) == ["x.penstock"]


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_in_the_place_of_a_file_is_an_error_before_anything_changes(name: str, folder: Path) -> None:
    write(folder, "A")
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(ConfigError, match=name):
        write(folder, "B")
    assert names_in(folder) == sorted(NAMES)


def test_wrong_use_is_an_error(folder: Path) -> None:
    with Transaction(files_in(folder), "plan") as transaction:
        for name in ("x.other", "../x.bin", "", "x.bin/"):
            with pytest.raises(ValueError, match="not a file of this output"):
                transaction.stage(name)
        with pytest.raises(ValueError, match="no files"):
            transaction.commit()
        transaction.stage("x.bin")
        with pytest.raises(ValueError, match="staged twice"):
            transaction.stage("x.bin")
        with pytest.raises(ValueError, match="not files of this output"):
            transaction.commit(remove=["other"])
        transaction.commit()
        with pytest.raises(ValueError, match="already committed"):
            transaction.stage("x.idx")


# --- kills and errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, "A"])
def test_killed_at_each_call(before: str | None) -> None:
    places = places_of(before)
    assert len(places) >= 40
    assert {place: found for place in places if (found := interrupted(before, kill_at(place)))} == {}


@pytest.mark.parametrize("before", [None, "A"])
def test_killed_twice(before: str | None) -> None:
    """A sample; all pairs are in tests/crash."""
    rng = random.Random(f"{SEED} {before}")
    places = places_of(before)
    pairs = rng.sample(list(itertools.product(places, places)), 40)
    assert {pair: found for pair in pairs if (found := interrupted(before, *map(kill_at, pair)))} == {}


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EACCES", "KeyboardInterrupt"])
@pytest.mark.parametrize("before", [None, "A"])
def test_each_call_fails(before: str | None, error: str) -> None:
    """One call fails, or all from there on; an interrupt comes before a call or right after it."""
    code = getattr(errno, error, 0)
    found: dict[tuple[int, bool], list[str]] = {}
    for place, more in itertools.product(places_of(before, with_reads=True), (False, True)):
        raised = OSError(code, os.strerror(code)) if code else KeyboardInterrupt()
        fault = fail_at(place, raised, forever=more and bool(code), after=more and not code)
        found[place, more] = interrupted(before, fault)
    assert {place: problems for place, problems in found.items() if problems} == {}


@pytest.mark.parametrize("before", [None, "A"])
def test_the_disk_is_full_from_a_call_on(before: str | None, folder: Path) -> None:
    if before is not None:
        write(folder, before)
    outcomes = set[str | None]()
    for place in places_of(before):
        with contextlib.suppress(OSError):
            write(folder, "B", FaultyOs(place, "enospc"))
        outcomes.add(seen(folder))
    assert outcomes == {before, "B"}


def test_a_failed_commit_is_completed_by_the_next_writer_of_another_plan(folder: Path) -> None:
    write(folder, "A")
    place = max(place for place in places_of("A") if place) - 6
    killed(lambda: write(folder, "B", FaultyOs(place, "kill")))
    assert read_log(files_in(folder)) is not None
    with Transaction(files_in(folder), "plan C") as transaction:
        assert not transaction.is_complete
    assert (seen(folder), names_in(folder)) == ("B", sorted(NAMES))


def test_the_same_plan_learns_that_it_is_complete(folder: Path) -> None:
    outcomes = set[str]()
    for place in places_of(None):
        killed(lambda place=place: write(folder, "B", FaultyOs(place, "kill")))
        outcomes.add(write(folder, "B"))
        for name in NAMES:
            (folder / name).unlink()
    assert outcomes == {"written", "complete B"}


def test_a_log_of_renamed_files_does_not_undo_later_writes(folder: Path) -> None:
    """The log was left because its removal failed; meanwhile another tool wrote the dataset anew."""
    log = CommitLog("plan", None, NAMES, ("x.idx", "x.planes"))
    write(folder, "A")
    Path(files_in(folder).log_path).write_bytes(log.encode(""))
    assert seen(folder) == "A"
    with Transaction(files_in(folder), "other"):
        pass
    assert (seen(folder), names_in(folder)) == ("A", sorted(NAMES))


# --- writers at the same time ------------------------------------------------------------------------------------


def test_rival_threads_and_processes(folder: Path) -> None:
    """Only one is inside at any time, and a reader sees whole versions."""
    write(folder, "A")
    stop_s = time.monotonic() + 1.5

    def compete(version: str) -> int:
        written = 0
        while time.monotonic() < stop_s:
            try:
                with Transaction(files_in(folder), version) as transaction:
                    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))  # fails if another is inside
                    for name in NAMES:
                        transaction.stage(name).write(content(name, version))
                    os.unlink(folder / "inside")
                    transaction.commit()
                    written += 1
            except PrepareError:
                time.sleep(0.0002)
        return written

    children = []
    for version in "CD":
        if (child := os.fork()) == 0:
            try:
                os._exit(0 if compete(version) else 2)
            except BaseException:
                os._exit(1)
        children.append(child)
    wrote: dict[str, int] = {}

    def compete_in_thread(version: str) -> None:
        wrote[version] = compete(version)

    threads = [threading.Thread(target=compete_in_thread, args=[version]) for version in "EF"]
    for thread in threads:
        thread.start()
    versions: set[str | None] = set()
    while time.monotonic() < stop_s:
        try:
            versions.add(seen(folder))
        except PrepareError:  # too many writers: no mixture either
            continue
    for thread in threads:
        thread.join()
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert versions <= set("ACDEF")
    assert sum(wrote.values()) > 0
    assert names_in(folder) == sorted(NAMES)


def test_a_lock_that_was_removed_meanwhile_is_not_held(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer removes its lock file between our `open` and our `flock`, and a third one makes a new one."""
    opened, real = [], claims.open_lock

    def open_lock(path: str, os_module: Any) -> int:
        fd = real(path, os_module)
        opened.append(fd)
        if len(opened) == 1:
            os.unlink(path)
        return fd

    monkeypatch.setattr(claims, "open_lock", open_lock)
    with Transaction(files_in(folder), "plan"):
        assert len(opened) == 2
        with pytest.raises(PrepareError, match="another run is writing"), Transaction(files_in(folder), "plan"):
            pass


def test_the_lock_of_another_writer_is_not_removed(folder: Path) -> None:
    lock = Path(lock_path(files_in(folder).path))
    with Transaction(files_in(folder), "plan"):
        lock.unlink()
        with Transaction(files_in(folder), "other"):
            was = lock.stat().st_ino
            with pytest.raises(PrepareError), Transaction(files_in(folder), "third"):
                pass
            assert lock.stat().st_ino == was
        lock.write_bytes(b"")
    assert lock.exists()


# --- readers in between ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, "A"])
def test_a_reader_before_each_call(before: str | None, folder: Path) -> None:
    """It sees the old version or the new one, another tool never sees a mixture, and reading changes nothing."""
    if before is not None:
        write(folder, before)

    class Reading:
        def __init__(self) -> None:
            self.versions: list[str | None] = []

        def __getattr__(self, name: str) -> Any:
            was = names_in(folder)
            self.versions.append(seen(folder))
            assert seen_by_others(folder) in (None, before, "B")
            assert names_in(folder) == was
            return getattr(os, name)

    reading = Reading()
    write(folder, "B", reading)
    assert len(reading.versions) >= 40
    assert [*dict.fromkeys(reading.versions)] == [before, "B"]


@pytest.mark.parametrize("before", [None, "A"])
def test_a_reader_across_two_calls(before: str | None) -> None:
    """A sample; all pairs are in tests/crash."""
    count = len(places_of(before))
    pairs = [(first, second) for first in range(count) for second in range(count - first + 1)]
    rng = random.Random(f"{SEED} {before}")
    assert [found for pair in rng.sample(pairs, 60) for found in read_across(before, *pair)] == []


def test_a_reader_gives_up_if_nothing_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.transaction._PAUSE_SECONDS", 0)
    numbers = itertools.count()
    with pytest.raises(PrepareError, match="changes while it is read"):
        read_committed(files_in(folder), lambda _: (folder / "x.bin").write_text(f"{next(numbers):100}"))


def test_errors_of_a_reader_are_raised(folder: Path) -> None:
    def read(_: object) -> None:
        raise Corrupt("damaged")

    with pytest.raises(Corrupt):
        read_committed(files_in(folder), read)


def test_a_read_only_directory(folder: Path) -> None:
    """A commit that can't be completed there is read from the staging directory."""
    write(folder, "A")
    place = places_of("A")[-1] - 8
    killed(lambda: write(folder, "B", FaultyOs(place, "kill")))
    was = names_in(folder)
    for path, mode in ((folder, 0o555), (Path(files_in(folder).staging_path), 0o555)):
        path.chmod(mode)

    def work() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        assert seen(folder) == "B"
        with pytest.raises(PermissionError):
            write(folder, "C")
        assert seen(folder) == "B"

    try:
        assert not killed(work)
    finally:
        folder.chmod(0o755)
        Path(files_in(folder).staging_path).chmod(0o755)
    assert names_in(folder) == was
    assert write(folder, "B") == "complete B"


# --- what others plant -------------------------------------------------------------------------------------------

GOOD = {"plan": "p", "result": None, "files": ["x.bin", "x.idx"], "remove": ["x.idx"], "version": 1}
LOGS: dict[str, tuple[bytes, type[PenstockError]]] = {
    "empty": (b"", Corrupt),
    "binary": (bytes(range(256)), Corrupt),
    "deep": (b"[" * 100_000, Corrupt),
    "huge": (b" " * (1 << 21), Corrupt),
    "huge JSON": (json.dumps(GOOD | {"result": "x" * (1 << 20)}).encode(), Corrupt),
    "a list": (b"[]", Corrupt),
    "no version": (b"{}", Corrupt),
    "a version that is a word": (json.dumps(GOOD | {"version": "1"}).encode(), Corrupt),
    "version 2": (json.dumps(GOOD | {"version": 2}).encode(), Unsupported),
    "another key": (json.dumps(GOOD | {"also": 1}).encode(), Unsupported),
    "a missing key": (json.dumps({k: v for k, v in GOOD.items() if k != "remove"}).encode(), Unsupported),
    "no files": (json.dumps(GOOD | {"files": []}).encode(), Corrupt),
    "files that are a word": (json.dumps(GOOD | {"files": "x.bin"}).encode(), Corrupt),
    "a name that is a number": (json.dumps(GOOD | {"files": [1]}).encode(), Corrupt),
    "a plan that is a number": (json.dumps(GOOD | {"plan": 1}).encode(), Corrupt),
} | {
    f"{key} {name!r}": (json.dumps(GOOD | {key: [*GOOD[key], name]}).encode(), UnsafeData)  # type: ignore[dict-item]
    for key in ("files", "remove")
    for name in (
        *("", ".", "..", "../victim", "/etc/passwd", "victim", "inner/victim", "./x.bin", "x.bin/", "x.bin\0"),
        *("x.plane.../victim", "x.plane.\udc80/..", "x.plane.\ud800", "x.plane.", "x.plane." + "y" * 300),
    )
}


@pytest.fixture
def planted(folder: Path) -> OutputFiles:
    """A dataset that another commit is said to replace, and files that must stay."""
    inner = folder / "inner"
    inner.mkdir()
    for path in (folder / "victim", inner / "victim", inner / "x.idx"):
        path.write_bytes(b"must stay")
    output = folder / "output"
    output.mkdir()
    write(output, "A")
    (output / "victim").write_bytes(b"must stay")
    os.makedirs(files_in(output).staging_path)
    for name in ("x.bin", "x.idx"):
        Path(files_in(output).staged_path_of(name)).write_bytes(content(name, "B"))
    return OutputFiles(str(output), NAMES, ("x.plane.",))


def tree_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Path → kind and content of everything below a directory, links not followed."""
    found: dict[str, tuple[int, bytes]] = {}
    for root, folders, names in os.walk(folder):
        for path in (Path(root, name) for name in folders + names):
            mode = path.lstat().st_mode
            data = os.readlink(path).encode() if stat.S_ISLNK(mode) else b""
            found[str(path)] = (mode, path.read_bytes() if stat.S_ISREG(mode) else data)
    return found


def require_refused(files: OutputFiles, kind: type[PenstockError], folder: Path, named: str) -> None:
    """Neither a reader nor a writer goes by what was planted, both name it, and nothing changes."""
    was = tree_of(folder)
    for work in (lambda: paths_of(files), lambda: Transaction(files, "p").__enter__()):
        with pytest.raises(kind) as caught:
            work()
        assert caught.value.path == named
        assert tree_of(folder) == was


@pytest.mark.parametrize("name", LOGS)
def test_a_planted_log_is_an_error(name: str, planted: OutputFiles, folder: Path) -> None:
    data, kind = LOGS[name]
    if name.endswith("'x.plane.'"):  # a name that the output can have
        return
    Path(planted.log_path).write_bytes(data)
    require_refused(planted, kind, folder, planted.log_path)


@pytest.mark.parametrize("kind", ["a link", "a link to nothing", "a directory", "a pipe"])
def test_a_log_that_is_no_regular_file_is_an_error(kind: str, planted: OutputFiles, folder: Path) -> None:
    (folder / "log").write_text(json.dumps(GOOD))
    if "link" in kind:
        os.symlink(folder / ("nothing" if "nothing" in kind else "log"), planted.log_path)
    else:
        (os.mkdir if "directory" in kind else os.mkfifo)(planted.log_path)
    require_refused(planted, UnsafeData, folder, planted.log_path)


@pytest.mark.parametrize("name", ["x.bin", "x.idx"])
@pytest.mark.parametrize("kind", ["a link", "a directory", "a pipe"])
def test_a_staged_file_that_is_no_regular_file_is_an_error(
    kind: str, name: str, planted: OutputFiles, folder: Path
) -> None:
    Path(planted.log_path).write_text(json.dumps(GOOD))
    path = planted.staged_path_of(name)
    os.unlink(path)
    os.symlink(folder / "victim", path) if kind == "a link" else (os.mkdir if "dir" in kind else os.mkfifo)(path)
    require_refused(planted, UnsafeData, folder, path)


def test_a_staging_directory_that_is_a_link_is_an_error(planted: OutputFiles, folder: Path) -> None:
    Path(planted.log_path).write_text(json.dumps(GOOD))
    os.rename(planted.staging_path, folder / "moved")
    os.symlink(folder / "moved", planted.staging_path)
    require_refused(planted, UnsafeData, folder, planted.staging_path)


@pytest.mark.parametrize("kept", [None, Kept()])
@pytest.mark.parametrize("kind", ["a link", "a file", "a link inside", "a second name inside", "a pipe inside"])
def test_nothing_is_written_through_what_was_planted(
    kind: str, kept: Kept | None, planted: OutputFiles, folder: Path
) -> None:
    os.rename(planted.staging_path, folder / "moved")
    was = tree_of(folder)
    if kind == "a link":
        os.symlink(folder / "moved", planted.staging_path)
    elif kind == "a file":
        Path(planted.staging_path).write_bytes(b"")
    else:
        os.mkdir(planted.staging_path)
        path = planted.staged_path_of("x.bin")
        if kind == "a link inside":
            os.symlink(folder / "victim", path)
        else:
            os.mkfifo(path) if "pipe" in kind else os.link(folder / "victim", path)
    write(Path(planted.folder), "B", kept=kept)
    assert seen(Path(planted.folder)) == "B"
    assert {path: tree_of(folder).get(path) for path in was if "/x." not in path or "moved" in path} == {
        path: data for path, data in was.items() if "/x." not in path or "moved" in path
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_log_of_another_user_in_a_sticky_directory_is_an_error(planted: OutputFiles, folder: Path) -> None:
    os.chmod(planted.folder, 0o1777)
    Path(planted.log_path).write_text(json.dumps(GOOD))
    os.chown(planted.log_path, 65534, 65534)
    require_refused(planted, UnsafeData, folder, planted.log_path)
    for name in NAMES:  # of a dataset of that user it is right
        os.chown(planted.path_of(name), 65534, 65534)
    assert paths_of(planted)["x.idx"] == planted.staged_path_of("x.idx")


# --- continuing --------------------------------------------------------------------------------------------------


def test_staged_files_of_a_killed_run_are_compared(folder: Path) -> None:
    size = sum(len(content(name, "B")) for name in NAMES)
    for place in places_of(None):
        killed(lambda place=place: write(folder, "B", FaultyOs(place, "kill"), Kept()))
        kept = Kept()
        outcome = write(folder, "B", kept=kept)
        assert seen(folder) == "B"
        assert names_in(folder) == sorted(NAMES)
        assert outcome != "written" or 0 <= kept.bytes <= size
        for name in NAMES:
            (folder / name).unlink()
    staging = Path(files_in(folder).staging_path)
    staging.mkdir()
    for name in NAMES:  # of other work, longer
        (staging / name).write_bytes(content(name, "B")[:5000] + bytes(100_000))
    kept = Kept()
    write(folder, "B", kept=kept)
    assert seen(folder) == "B"


def test_kept_bytes_are_counted(folder: Path) -> None:
    rng = random.Random(1)
    data = rng.randbytes(3 << 20)

    def work(kept: Kept, stop: bool) -> None:
        with Transaction(files_in(folder), "plan", kept=kept) as transaction:
            transaction.stage("x.bin").write(data)
            if stop:
                os.kill(os.getpid(), signal.SIGKILL)
            transaction.stage("x.idx").write(b"index")
            transaction.commit()

    assert killed(lambda: work(Kept(), True))
    kept = Kept()
    work(kept, False)
    assert kept.bytes == len(data)
    assert (folder / "x.bin").read_bytes() == data


def test_an_error_keeps_staged_files_if_asked(folder: Path) -> None:
    def fails(kept: Kept) -> None:
        with Transaction(files_in(folder), "plan", kept=kept) as transaction:
            transaction.stage("x.bin").write(b"data")
            raise RuntimeError

    for hold in (False, True):
        with pytest.raises(RuntimeError):
            fails(Kept(hold=hold))
        assert Path(files_in(folder).staging_path).exists() == hold


# --- version 0.2 -------------------------------------------------------------------------------------------------

WRITER = """
import sys, penstock as ps
with ps.create(sys.argv[1], format="megatron", token_bytes=2, overwrite=True) as writer:
    writer.write({"tokens": [7] * 10})
    print("inside", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def old_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of version 0.2.0."""
    folder = tmp_path_factory.mktemp("old")
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", OLD_REVISION, "src/penstock"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip("no version 0.2 in this checkout")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"


@pytest.fixture
def start_old(old_version: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run Python code with version 0.2.0."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environment = {**os.environ, "PYTHONPATH": str(old_version)}
        started.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def dataset_files(folder: Path) -> OutputFiles:
    return OutputFiles(str(folder), ("d.bin", "d.idx.penstock", "d.idx"))


def stage_dataset(transaction: Transaction, folder: Path) -> None:
    """Stage a Megatron dataset of one document."""
    (folder / "new").mkdir(exist_ok=True)
    with ps.create(folder / "new" / "d", format="megatron", token_bytes=2, overwrite=True) as writer:
        writer.write({"tokens": [8] * 20})
    for name in transaction.files.names:
        transaction.stage(name).write((folder / "new" / name).read_bytes())


def test_a_writer_of_version_02_and_a_transaction_exclude_each_other(
    folder: Path, start_old: Callable[..., subprocess.Popen[str]]
) -> None:
    old = start_old(WRITER, folder / "d")
    assert old.stdout is not None
    assert old.stdout.readline() == "inside\n"
    with pytest.raises(PrepareError, match="another run is writing"), Transaction(dataset_files(folder), "plan"):
        pass
    assert old.communicate("", timeout=60)[1] == ""
    with Transaction(dataset_files(folder), "plan") as transaction:
        _, said = start_old(WRITER, folder / "d").communicate("", timeout=60)
        assert "another run is writing this output" in said
        stage_dataset(transaction, folder)
        transaction.commit()
    assert ps.open(folder / "d")[0]["tokens"].tolist() == [8] * 20


def test_version_02_does_not_write_over_an_interrupted_commit(
    folder: Path, start_old: Callable[..., subprocess.Popen[str]]
) -> None:
    def write_dataset(os_module: Any) -> None:
        with Transaction(dataset_files(folder), "plan", os_module=os_module) as transaction:
            stage_dataset(transaction, folder)
            transaction.commit()

    counting = FaultyOs()
    write_dataset(counting)
    renames = [place for place, name in enumerate(counting.calls, 1) if name == "rename"]
    assert len(renames) == 4
    for interrupt, place in itertools.product(("kill", "raise"), (renames[0] + 1, renames[1], renames[3])):
        broken = OSError(errno.EIO, "Input/output error")
        faulty = FaultyOs(place, "kill") if interrupt == "kill" else FailingOs(place, broken, forever=True)
        if interrupt == "kill":
            assert killed(lambda faulty=faulty: write_dataset(faulty))
        else:
            with pytest.raises(OSError, match="Input/output"):
                write_dataset(faulty)
        was = names_in(folder)
        assert ".d.bin.commit" in was
        if place == renames[1]:
            _, said = start_old(WRITER, folder / "d").communicate("", timeout=60)
            assert "in the place of the lock is another thing" in said
            assert names_in(folder) == was
        write_dataset(os)
        assert names_in(folder) == ["d.bin", "d.idx", "d.idx.penstock", "new"]


SHARE = """
import sys, penstock as ps
from penstock.store import lock
ps.filter(sys.argv[1], sys.argv[2], min_tokens=5, part=(0, 2))
print("done", flush=True)
if len(sys.argv) > 3:
    with lock.hold_lock(sys.argv[3], shared=True):
        print("held", flush=True)
        sys.stdin.read()
"""


def test_unfinished_work_of_version_02_needs_restart(
    folder: Path, start_old: Callable[..., subprocess.Popen[str]]
) -> None:
    with ps.create(folder / "in.pbin", format="pbin", token_bytes=2) as writer:
        for number in range(100):
            writer.write({"tokens": [number] * 10})
    output, restart = folder / "out.pbin", {"finish": True, "restart": True}
    old = start_old(SHARE, folder / "in.pbin", output, folder / ".out.pbin.work" / "lock")
    assert old.stdout is not None
    said = [old.stdout.readline() for _ in range(2)]
    assert said == ["done\n", "held\n"], old.communicate()[1]
    was = tree_of(folder)
    for options in ({"part": (1, 2)}, {"finish": True}, {}):
        with pytest.raises(ConfigError, match="--restart"):
            ps.filter(folder / "in.pbin", output, min_tokens=5, **options)
    with pytest.raises(PrepareError, match="another"):
        ps.filter(folder / "in.pbin", output, min_tokens=5, **restart)
    assert tree_of(folder) == was
    old.communicate("", timeout=60)
    (folder / ".out.pbin.work" / "of somebody else").write_bytes(b"")
    ps.filter(folder / "in.pbin", output, min_tokens=5, **restart)
    assert os.listdir(folder / ".out.pbin.work") == ["of somebody else"]
    assert len(ps.open(output)) == 100


def test_staged_files_of_a_killed_writer_of_version_02_go(
    folder: Path, start_old: Callable[..., subprocess.Popen[str]]
) -> None:
    old = start_old(WRITER, folder / "d")
    assert old.stdout is not None
    old.stdout.readline()
    old.kill()
    old.wait()
    assert any(name.endswith(".staged") for name in names_in(folder))
    with Transaction(dataset_files(folder), "plan") as transaction:
        stage_dataset(transaction, folder)
        transaction.commit()
    assert names_in(folder) == ["d.bin", "d.idx", "d.idx.penstock", "new"]


def test_versions_differ() -> None:
    """The helper that all of this relies on."""
    assert version_of({name: content(name, "A") for name in NAMES}) == "A"
    assert version_of({name: content(name, "AB"[name == "x.bin"]) for name in NAMES}) == "mixture"
    assert version_of(dict.fromkeys(NAMES)) is None

"""The local store: the laws of all stores, and what only files have."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import stat
from pathlib import Path

import pytest

from penstock.errors import ConfigError, NotFound
from penstock.store.local import LocalStore
from penstock.store.lock import hold_lock
from penstock.store.names import is_staged_name, nth_staged_name
from penstock.testing.faults import FaultMode, FaultStore, FaultyOs, count_operations
from penstock.testing.stores import StoreSuite, put

OLD = b"the old file"
NEW = b"the new file, " * 100_000  # more than one piece


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def store(self) -> LocalStore:
        return LocalStore()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path / "root")


def write_both(store: LocalStore, folder: Path, *, overwrite: bool) -> None:
    """Two files in a new folder, the second of a header, a body and a copied part."""
    (folder / "part.bin").write_bytes(b"part" * 1000)
    side = store.stage(str(folder / "new" / "side"), overwrite=overwrite)
    try:
        side.write(b"side")
        main = store.stage(str(folder / "new" / "main"), overwrite=overwrite)
        try:
            main.write(NEW)
            main.append_file(str(folder / "part.bin"))
            main.write_at(0, b"THE")
            store.commit([side, main])
        finally:
            main.abort()
    finally:
        side.abort()


WHOLE = b"THE" + NEW[3:] + b"part" * 1000


def operations(tmp_path: Path, *, overwrite: bool) -> int:
    folder = tmp_path / "counting"
    folder.mkdir()
    if overwrite:
        put(LocalStore(), str(folder / "new" / "main"), OLD)
    return count_operations(lambda store: write_both(store, folder, overwrite=overwrite))


def look(folder: Path, *, overwrite: bool) -> None:
    """The old file, the whole new one, or nothing; and never the second without the first."""
    main = folder / "new" / "main"
    if not main.exists():
        assert not overwrite
        return
    found = main.read_bytes()
    assert found == WHOLE or (overwrite and found == OLD)
    if found == WHOLE:
        assert (folder / "new" / "side").read_bytes() == b"side"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("mode", ["raise", "tear", "enospc"])
def test_error_at_every_operation(tmp_path: Path, mode: FaultMode, overwrite: bool) -> None:
    total = operations(tmp_path, overwrite=overwrite)
    assert total > 20
    for n in range(1, total + 1):
        folder = tmp_path / f"{n}"
        folder.mkdir()
        if overwrite:
            put(LocalStore(), str(folder / "new" / "main"), OLD)
        error = None
        try:
            write_both(FaultStore(n, mode), folder, overwrite=overwrite)
        except OSError as caught:
            error = caught
        look(folder, overwrite=overwrite)
        if error is None:
            assert (folder / "new" / "main").read_bytes() == WHOLE
        else:
            assert error.errno == (errno.ENOSPC if mode == "enospc" else errno.EIO)
        assert not [name for _, _, names in os.walk(folder) for name in names if is_staged_name(name)]
        write_both(LocalStore(), folder, overwrite=True)
        assert (folder / "new" / "main").read_bytes() == WHOLE


def test_short_reads_and_writes_are_gone_on_with(tmp_path: Path) -> None:
    for n in range(1, operations(tmp_path, overwrite=False) + 1):
        folder = tmp_path / f"{n}"
        folder.mkdir()
        write_both(FaultStore(n, "short"), folder, overwrite=False)
        assert (folder / "new" / "main").read_bytes() == WHOLE
        store = FaultStore(2, "short")
        assert store.get(str(folder / "new" / "main")) == WHOLE


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("mode", ["kill", "tear-kill"])
def test_kill_at_every_operation(tmp_path: Path, mode: FaultMode, overwrite: bool) -> None:
    for n in range(1, operations(tmp_path, overwrite=overwrite) + 1):
        folder = tmp_path / f"{n}"
        folder.mkdir()
        if overwrite:
            put(LocalStore(), str(folder / "new" / "main"), OLD)
        pid = os.fork()
        if pid == 0:
            write_both(FaultStore(n, mode), folder, overwrite=overwrite)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        look(folder, overwrite=overwrite)
        write_both(LocalStore(), folder, overwrite=True)
        assert (folder / "new" / "main").read_bytes() == WHOLE
        assert sorted(path.name for path in (folder / "new").iterdir()) == ["main", "side"]


def test_both_are_synced_before_one_is_visible(tmp_path: Path) -> None:
    calls: list[str] = []

    class Watching(FaultyOs):
        def _call(self, name, call, *args, **kwargs):
            if name in ("fsync", "link", "rename"):
                calls.append(name)
            return super()._call(name, call, *args, **kwargs)

    write_both(LocalStore(Watching()), tmp_path, overwrite=False)
    first_link = calls.index("link")
    assert calls[:first_link].count("fsync") >= 2
    assert calls[first_link + 1 :].count("fsync") >= 1
    assert calls[-1] == "fsync"  # the folder, after the last name appeared


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_file_system_without_links(tmp_path: Path, code: int) -> None:
    class NoLinks(FaultyOs):
        def _call(self, name, call, *args, **kwargs):
            if name == "link":
                raise OSError(code, os.strerror(code))
            return super()._call(name, call, *args, **kwargs)

    store = LocalStore(NoLinks())
    put(store, str(tmp_path / "a"), b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
    staged = store.stage(str(tmp_path / "b"))
    put(LocalStore(), str(tmp_path / "b"), b"other")
    with pytest.raises(ConfigError):
        staged.commit()
    assert (tmp_path / "b").read_bytes() == b"other"


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS])
def test_file_system_without_kernel_copies(tmp_path: Path, code: int) -> None:
    class NoCopies(FaultyOs):
        def _call(self, name, call, *args, **kwargs):
            if name == "copy_file_range":
                raise OSError(code, os.strerror(code))
            return super()._call(name, call, *args, **kwargs)

    write_both(LocalStore(NoCopies()), tmp_path, overwrite=False)
    assert (tmp_path / "new" / "main").read_bytes() == WHOLE


def test_leftover_of_a_dead_writer_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    dead = tmp_path / nth_staged_name("a", 0)
    dead.write_bytes(b"left")
    other = tmp_path / ".a.b.0123abcd.staged"
    other.write_bytes(b"of another file")
    living = LocalStore().stage(path)
    living.write(b"living")
    assert dead.read_bytes() != b"left"  # the name is that of the living one now
    put(LocalStore(), path, b"second")
    assert len([name for name in os.listdir(tmp_path) if is_staged_name(name)]) == 2
    with pytest.raises(ConfigError):
        living.commit()
    assert sorted(os.listdir(tmp_path)) == [".a.b.0123abcd.staged", "a"]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        put(LocalStore(), str(tmp_path / "a"), b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_dangling_link_is_an_existing_output(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError):
        LocalStore().stage(str(tmp_path / "a"))


def test_file_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(NotFound):
        LocalStore().get(str(tmp_path / "a" / "b"))
    with pytest.raises(NotFound):
        LocalStore().size(str(tmp_path / "a" / "b"))
    with pytest.raises(OSError, match=r"a"):
        LocalStore().stage(str(tmp_path / "a" / "b"))


def test_pickle() -> None:
    assert isinstance(pickle.loads(pickle.dumps(LocalStore())), LocalStore)
    again = pickle.loads(pickle.dumps(FaultStore(3, "tear", errno.ENOSPC)))
    assert (again.faults.fail_at, again.faults.mode, again.faults.errno) == (3, "tear", errno.ENOSPC)


def _hold(path: str, held: multiprocessing.synchronize.Event, done: multiprocessing.synchronize.Event) -> None:
    with hold_lock(path):
        held.set()
        done.wait(30)


def test_lock_between_processes(tmp_path: Path) -> None:
    path = str(tmp_path / "folder" / "lock")
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    child = context.Process(target=_hold, args=(path, held, done))
    child.start()
    assert held.wait(30)
    with hold_lock(path, wait=False) as had:
        assert not had
    done.set()
    child.join(30)
    with hold_lock(path, wait=False) as had:
        assert had


def test_a_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    for _ in range(2):  # the second time both are names of one file already
        assert LocalStore().link(str(first), str(second))
        assert second.read_bytes() == b"1"
        assert sorted(os.listdir(tmp_path)) == ["first", "second"]
    with pytest.raises(OSError, match="first"):
        LocalStore().link(str(tmp_path / "no" / "first"), str(second))

    def refuses(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuses)
    assert not LocalStore().link(str(first), str(tmp_path / "third"))
    assert sorted(os.listdir(tmp_path)) == ["first", "second"]


@pytest.mark.parametrize("url", ["s3://bucket/a.pbin", "s3:/bucket/a.pbin", "file:///a/b", "gs:/bucket/a"])
def test_a_url_is_no_path(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore()
    for start in (store.stage, store.stage_folder, store.claim):
        for path in (url, f"{tmp_path}/{url}"):
            with pytest.raises(ConfigError, match="a URL instead of a local path"):
                start(path)
    assert not any(tmp_path.iterdir())

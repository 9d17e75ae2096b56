"""Faults happen where and how they were asked for."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import signal
import sys
from pathlib import Path

import pytest
from tests.internals import system_calls

from penstock.store import LocalStore
from penstock.testing.faults import COUNTED, FaultMode, FaultStore, FaultyOs, count_operations, faults_everywhere


def two_writes(store: LocalStore, path: Path) -> None:
    """open, write, write, close of a plain file: four operations."""
    system = system_calls(store)
    fd = system.open(str(path), os.O_RDWR | os.O_CREAT)
    try:
        system.write(fd, b"first half")
        system.write(fd, b"second half")
    finally:
        system.close(fd)


def test_operations_are_counted(tmp_path: Path) -> None:
    store = FaultStore()
    two_writes(store, tmp_path / "a")
    assert store.faults.calls == ["open", "write", "write", "close"]
    assert count_operations(lambda store: two_writes(store, tmp_path / "a")) == 4
    assert (tmp_path / "a").read_bytes() == b"first halfsecond half"


def test_everything_counted_is_a_function_of_os() -> None:
    assert all(callable(getattr(os, name)) for name in COUNTED)


def test_the_rest_passes_through(tmp_path: Path) -> None:
    faults = FaultyOs(1)
    assert faults.path is os.path
    assert faults.O_CREAT == os.O_CREAT
    assert faults.stat(tmp_path).st_size == os.stat(tmp_path).st_size
    assert faults.operations == 0
    with pytest.raises(AttributeError):
        _ = faults.no_such_function


@pytest.mark.parametrize(
    ("mode", "fail_at", "content"),
    [
        ("raise", 2, b""),
        ("raise", 3, b"first half"),
        ("tear", 2, b"first"),
        ("tear", 3, b"first halfsecon"),
        ("enospc", 3, b"first half"),
        ("raise", 4, b"first halfsecond half"),
    ],
)
def test_errors(tmp_path: Path, mode: FaultMode, fail_at: int, content: bytes) -> None:
    with pytest.raises(OSError, match="operation") as caught:
        two_writes(FaultStore(fail_at, mode), tmp_path / "a")
    assert caught.value.errno == (errno.ENOSPC if mode == "enospc" else errno.EIO)
    assert (tmp_path / "a").read_bytes() == content


def test_error_number_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(PermissionError):
        two_writes(FaultStore(1, "raise", errno.EACCES), tmp_path / "a")


def test_close_that_fails_has_closed(tmp_path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        with pytest.raises(OSError, match="close"):
            two_writes(FaultStore(4, "raise"), tmp_path / str(number))
    assert len(os.listdir("/proc/self/fd")) < before + 5


def test_full_disk_stays_full(tmp_path: Path) -> None:
    store = FaultStore(2, "enospc")
    with pytest.raises(OSError, match="operation"):
        two_writes(store, tmp_path / "a")
    for wrong in (lambda: system_calls(store).mkdir(str(tmp_path / "b")), lambda: store.stage(str(tmp_path / "c"))):
        with pytest.raises(OSError, match="No space left"):
            wrong()
    assert store.get(str(tmp_path / "a")) == b""
    store.delete(str(tmp_path / "a"))


def test_short_moves_half_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    fd = os.open(tmp_path / "a", os.O_RDWR)
    assert FaultyOs(1, "short").pread(fd, 10, 0) == b"01234"
    assert FaultyOs(1, "short").pwrite(fd, b"abcd", 0) == 2
    assert FaultyOs(1, "short").write(fd, b"x") == 1
    os.close(fd)
    assert (tmp_path / "a").read_bytes() == b"xb23456789"


@pytest.mark.parametrize(("mode", "content"), [("kill", b"first half"), ("tear-kill", b"first halfsecon")])
def test_kill(tmp_path: Path, mode: FaultMode, content: bytes) -> None:
    pid = os.fork()
    if pid == 0:
        two_writes(FaultStore(3, mode), tmp_path / "a")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == content


def test_everywhere_inside_the_block(tmp_path: Path) -> None:
    with faults_everywhere(FaultyOs()) as faults:
        staged = LocalStore().stage(str(tmp_path / "a"))
        staged.write(b"x")
        staged.commit()
        assert faults.operations > 3
        assert sys.modules[LocalStore.__module__].os is faults
    assert sys.modules[LocalStore.__module__].os is os
    before = faults.operations
    LocalStore().get(str(tmp_path / "a"))
    assert faults.operations == before


def test_copy_in_another_process_counts_from_0() -> None:
    faults = FaultyOs(5, "tear", errno.EACCES)
    faults.calls += ["open", "write", "close"]
    again = pickle.loads(pickle.dumps(faults))
    assert (again.fail_at, again.mode, again.errno, again.operations) == (5, "tear", errno.EACCES, 0)

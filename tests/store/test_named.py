"""Errors of the system name the file, and on a full disk what was wanted and what is free."""

from __future__ import annotations

import errno
import os
import pickle
import re
import sqlite3
from pathlib import Path

import pytest

from penstock.errors import NotFound
from penstock.formats.samples.sqlite import system_errors
from penstock.store._files import named
from penstock.store.local import LocalStore
from penstock.testing import FaultStore, count_operations

FULL = r"No space left on device: ([\d,]+ bytes left to write, )?[\d,]+ bytes free there"


def test_a_write_that_fails_names_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    staged = LocalStore().stage(str(tmp_path / "out"))
    monkeypatch.setattr(os, "write", fail)
    staged.write(bytes(3000))
    with pytest.raises(OSError, match=FULL) as error:
        staged.commit()
    assert error.value.filename == str(tmp_path / "out")
    assert "3,000 bytes left to write" in str(error.value)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_room_for_a_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = list(os.statvfs(tmp_path))
    for free_files, said in ((0, ", but no free inodes (df -i)"), (7, "")):
        there[5:8] = 100, free_files, free_files
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(there))
        text = named(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), str(tmp_path / "a")).strerror
        assert text == f"No space left on device: {there[4] * there[1]:,} bytes free there{said}"


def test_every_operation_of_a_writer_that_fails_names_a_file(tmp_path: Path) -> None:
    def work(store: LocalStore) -> None:
        staged = store.stage(str(tmp_path / "out"), overwrite=True)
        staged.write(b"x" * 100)
        staged.commit()

    told: list[str] = []
    for at in range(1, count_operations(work) + 1):
        try:
            work(FaultStore(at))
        except OSError as error:
            told.append(error.filename)
    assert len(told) >= 4
    assert not [one for one in told if not one or ".staged" in one]


def test_hidden_names_are_told_as_they_will_be() -> None:
    for hidden in ("/a/.out.0123abcd.staged/x.mds", "/a/.out.lock.staged/x.mds"):
        assert named(OSError(errno.EIO, "bad", hidden), "/b").filename == "/a/out/x.mds"
    missing = NotFound("no such file", path="/a")
    assert named(missing, "/b") is missing
    assert missing.filename is None


@pytest.mark.parametrize(
    ("code", "number"),
    [
        (sqlite3.SQLITE_FULL, errno.ENOSPC),
        (sqlite3.SQLITE_IOERR | 10 << 8, errno.EIO),
        (sqlite3.SQLITE_READONLY, errno.EROFS),
        (sqlite3.SQLITE_CANTOPEN, errno.EACCES),
    ],
)
def test_what_sqlite_says_of_the_system(code: int, number: int, tmp_path: Path) -> None:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as found, system_errors(str(tmp_path / "a")):
        raise error
    assert (found.value.errno, found.value.filename) == (number, str(tmp_path / "a"))


def test_what_sqlite_says_of_the_data_passes() -> None:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"), system_errors("a"):
        connection.execute("SELECT * FROM sqlite_master")


def test_what_cant_be_looked_at_is_not_taken_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"")
    store = LocalStore()
    assert list(store.list(str(tmp_path))) == [str(tmp_path / "in" / "a")]
    assert not store.exists(str(tmp_path / ("x" * 300)))
    scandir = os.scandir

    def refuse(path: str) -> object:
        if os.fspath(path).endswith("in"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        list(store.list(str(tmp_path)))
    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(PermissionError):
        store.is_folder(str(tmp_path / "in"))

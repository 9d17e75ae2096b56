"""Small files: read once, and made together with one sync; a name is that of a whole file, or of none."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NotFound, UnsafeData
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from penstock.store.names import TOGETHER, lock_path
from penstock.store.put import HIDDEN, SMALL_BYTES, NamesBeside, read_small
from penstock.testing.faults import FaultStore

NAMES = [f"{number}.idx" for number in range(5)]


def make(store: LocalStore, folder: Path) -> list[str]:
    staged = store.stage_files(str(folder))
    try:
        for name in NAMES:
            staged.write(name, name.encode() * 9)
        return staged.commit()
    finally:
        staged.abort()


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


WHOLE = {name: name.encode() * 9 for name in NAMES}


def test_they_are_visible_together_and_nothing_is_left(tmp_path: Path) -> None:
    assert make(LocalStore(), tmp_path) == []
    assert visible(tmp_path) == WHOLE
    assert set(os.listdir(tmp_path)) == set(NAMES)


@pytest.mark.parametrize("mode", ["raise", "tear", "short", "enospc"])
def test_any_call_may_fail(tmp_path: Path, mode: Any) -> None:
    counting = FaultStore()
    make(counting, tmp_path)
    total = len(counting.faults.calls)
    assert total > 4 * len(NAMES)
    for at in range(1, total + 1):
        folder = tmp_path / f"{mode}{at}"
        folder.mkdir()
        try:
            left = make(FaultStore(at, mode), folder)
        except OSError:
            pass
        else:
            assert visible(folder) == {name: data for name, data in WHOLE.items() if name not in left}
        found = visible(folder)
        assert found.items() <= WHOLE.items(), at
        left = make(LocalStore(), folder)  # removes what is left
        assert sorted(left) == sorted(found)
        assert visible(folder) == WHOLE
        assert set(os.listdir(folder)) == set(NAMES), at


def test_no_name_is_there_before_all_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Library:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def syncfs(self, fd: int) -> int:
            seen.append((sorted(os.listdir(f"/proc/self/fd/{fd}")), visible(tmp_path)))
            ctypes.set_errno(errno.EIO)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", Library)
    with pytest.raises(OSError, match="Input/output error"):
        make(LocalStore(), tmp_path)
    assert seen == [(NAMES, {})]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [None, errno.ENOSYS])
def test_without_such_a_call_each_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None) -> None:
    class Library:
        def __init__(self, *_: Any, **__: Any) -> None:
            if code is not None:
                self.syncfs = lambda _: (ctypes.set_errno(code), -1)[1]

    monkeypatch.setattr(ctypes, "CDLL", Library)
    store = FaultStore()
    make(store, tmp_path)
    assert store.faults.calls.count("fsync") == len(NAMES) + 1
    assert visible(tmp_path) == WHOLE


def test_names_of_others_are_left_to_them(tmp_path: Path) -> None:
    (tmp_path / "1.idx").write_bytes(b"theirs")
    claim = LocalStore().claim(str(tmp_path / "3.idx"))
    assert make(LocalStore(), tmp_path) == ["1.idx", "3.idx"]
    claim.release()
    assert visible(tmp_path) == {name: data for name, data in WHOLE.items() if name != "3.idx"} | {"1.idx": b"theirs"}


def test_where_there_are_no_links_names_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refused)
    assert make(LocalStore(), tmp_path) == NAMES
    assert os.listdir(tmp_path) == []


def test_two_at_once(tmp_path: Path) -> None:
    store = LocalStore()
    first, second = store.stage_files(str(tmp_path)), store.stage_files(str(tmp_path))
    first.write("a", b"a")
    second.write("a", b"a")
    assert (first.commit(), second.commit()) == ([], ["a"])
    assert os.listdir(tmp_path) == ["a"]


def test_a_guard_holds_what_is_made(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "set/in").symlink_to(tmp_path / "other")
    with pytest.raises(UnsafeData):
        LocalStore().within(str(tmp_path / "set")).stage_files(str(tmp_path / "set/in"))


# --- reading -----------------------------------------------------------------------------------------------------


def test_small_files_are_read_once(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        Path(path).write_bytes(path.encode())
    store = FaultStore()
    found = read_small(store, *paths)
    assert isinstance(found, MemoryStore)
    assert [found.get(path) for path in paths] == [path.encode() for path in paths]
    assert store.faults.calls.count("open") == 2
    with pytest.raises(NotFound):
        found.size(str(tmp_path / "c"))


def test_others_are_left_to_their_store(tmp_path: Path) -> None:
    small, large, pipe, link = (tmp_path / name for name in ("small", "large", "pipe", "link"))
    small.write_bytes(b"x" * SMALL_BYTES)
    large.write_bytes(b"x" * (SMALL_BYTES + 1))
    os.mkfifo(pipe)
    link.symlink_to("/etc/passwd")
    store = LocalStore().within(str(tmp_path))
    assert read_small(store, str(small)) is not store
    for path in (large, pipe, link, tmp_path, tmp_path / "nothing"):
        assert read_small(store, str(small), str(path)) is store
    memory = MemoryStore({"a": b""})
    assert read_small(memory, "a") is memory


@pytest.mark.parametrize("count", [3, 300])
def test_names_beside(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / f"{number}.jsonl") for number in range(count)]
    (tmp_path / "0.idx").touch()
    (tmp_path / "1.idx").symlink_to(tmp_path / "nowhere")
    names = NamesBeside(paths, (".idx", *HIDDEN))
    looked: list[str] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (looked.append(path), listdir(path))[1])
    assert [names.has(str(tmp_path / f"{number}.idx")) for number in range(3)] == [True, True, False]
    assert names.is_listed() == (count == 300)
    assert len(looked) == (count == 300)


def test_what_writers_hide_is_seen(tmp_path: Path) -> None:
    long = "x" * 240
    for number in range(8):
        (tmp_path / f"{number}.jsonl").touch()
    staged = LocalStore().stage(str(tmp_path / "0.idx"))
    claims = [LocalStore().claim(str(tmp_path / name)) for name in ("1.idx", long)]
    (tmp_path / ".2.idx.unfinished").touch()
    (tmp_path / ".3.idx.other").touch()
    folder = LocalStore().stage_files(str(tmp_path))
    names = NamesBeside([str(tmp_path)] * 99, (".idx", *HIDDEN))
    seen = [
        name
        for name in ("0.idx", "1.idx", "2.idx", "3.idx", "4.idx", long, TOGETHER)
        if names.has_unfinished(str(tmp_path / name))
    ]
    assert seen == ["0.idx", "1.idx", "2.idx", long, TOGETHER]
    assert Path(lock_path(str(tmp_path / "1.idx"))).exists()
    for one in (staged, folder):
        one.abort()
    for claim in claims:
        claim.release()

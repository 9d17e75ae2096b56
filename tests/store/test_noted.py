"""Notes of versions that a host saw: they spare requests, and hide no file that was replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.store import _heads
from penstock.store.cache import CachedStore
from penstock.store.remote import RemoteStore
from penstock.testing import FileServer

OLD, NEW = b"a" * 5000, b"b" * 5000


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({"x": OLD}) as one:
        yield one


def opened(server: FileServer, folder: Path) -> CachedStore:
    return CachedStore(RemoteStore(server.url), str(folder))


def read(store: CachedStore, server: FileServer) -> bytes:
    return store.mapped_copy(f"{server.url}/x", size_bytes=5000).tobytes()


def asked(server: FileServer) -> list[str]:
    found = [method for method, _, _ in server.log]
    server.log.clear()
    return found


def seen(folder: Path) -> Path:
    return next((folder / "remote").glob("*.seen"))


def test_the_second_asks_nothing(server: FileServer, tmp_path: Path) -> None:
    stores = [opened(server, tmp_path) for _ in range(3)]
    assert [read(store, server) for store in stores] == [OLD] * 3
    assert asked(server) == ["GET"]


def test_a_file_that_was_replaced_is_seen_by_the_next_run(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(opened(server, tmp_path), server) == OLD
    server.files["x"] = NEW  # of the same size
    asked(server)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    assert read(opened(server, tmp_path), server) == NEW
    assert asked(server) == ["HEAD", "GET"]
    assert read(opened(server, tmp_path), server) == NEW  # the note was renewed, for all
    assert asked(server) == []


def test_a_note_of_a_clock_that_was_ahead_is_asked_again(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + 3600)
        assert read(opened(server, tmp_path), server) == OLD
    server.files["x"] = NEW
    assert read(opened(server, tmp_path), server) == NEW


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 5000, b"\xff\xfe", b'{"url": 1}'])
def test_a_torn_note_costs_a_request(data: bytes, server: FileServer, tmp_path: Path) -> None:
    assert read(opened(server, tmp_path), server) == OLD
    seen(tmp_path).write_bytes(data)
    assert read(opened(server, tmp_path), server) == OLD


def test_a_copy_that_is_gone_is_fetched_again(server: FileServer, tmp_path: Path) -> None:
    assert read(opened(server, tmp_path), server) == OLD
    for path in (tmp_path / "remote").glob("*.copy"):
        path.unlink()
    assert read(opened(server, tmp_path), server) == OLD


def test_a_link_in_its_place_is_not_followed(server: FileServer, tmp_path: Path) -> None:
    assert read(opened(server, tmp_path), server) == OLD
    note, other = seen(tmp_path), tmp_path / "other"
    other.write_bytes(b"precious")
    note.unlink()
    note.symlink_to(other)
    for path in (tmp_path / "remote").glob("*.copy"):
        path.unlink()
    assert read(opened(server, tmp_path), server) == OLD
    assert other.read_bytes() == b"precious"


def test_everybody_who_writes_to_the_folder_is_not_believed(server: FileServer, tmp_path: Path) -> None:
    assert read(opened(server, tmp_path), server) == OLD
    folder, note = tmp_path / "remote", seen(tmp_path)
    os.chmod(folder, 0o1777)
    assert _heads.noted(str(folder), f"{server.url}/x", 5000, time.time())[1]
    note.chmod(0o666)
    assert _heads.noted(str(folder), f"{server.url}/x", 5000, time.time()) == (None, False)

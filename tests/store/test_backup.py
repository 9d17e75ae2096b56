"""What repair keeps: under a free name, once, and never over something that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.abc import Store
from penstock.store import LocalStore, MemoryStore
from penstock.store.names import nth_staged_name
from penstock.store.put import back_up
from penstock.testing.counting import CountingStore


def put(store: Store, path: str, data: bytes) -> None:
    staged = store.stage(path, overwrite=True)
    staged.write(data)
    staged.commit()


@pytest.mark.parametrize("kind", ["local", "memory", "elsewhere"])
def test_each_under_a_free_name(tmp_path: Path, kind: str) -> None:
    store: Store = {"local": LocalStore(), "memory": MemoryStore(), "elsewhere": CountingStore(MemoryStore())}[kind]
    path = str(tmp_path / "a")
    put(store, path, b"first")
    put(store, f"{path}.bak", b"of the user")
    assert back_up(store, path) == f"{path}.bak1"
    put(store, path, b"second")
    assert back_up(store, path) == f"{path}.bak2"
    assert [store.get(f"{path}.bak{n}") for n in ("", 1, 2)] == [b"of the user", b"first", b"second"]


def test_one_with_the_same_bytes_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5_000_000)
    store = LocalStore()
    names = {back_up(store, str(tmp_path / "a")) for _ in range(3)}
    assert names == {str(tmp_path / "a.bak")}
    (tmp_path / "a").write_bytes(b"x" * 4_999_999 + b"y")
    assert back_up(store, str(tmp_path / "a")) == str(tmp_path / "a.bak1")


def test_empty_files_and_folders_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "a.bak").mkdir()
    assert back_up(LocalStore(), str(tmp_path / "a")) == str(tmp_path / "a.bak1")
    assert (tmp_path / "a.bak1").read_bytes() == b""


def test_what_a_killed_repair_left_goes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    back_up(LocalStore(), str(tmp_path / "a"))
    hidden = tmp_path / nth_staged_name("a.bak", 0)
    hidden.hardlink_to(tmp_path / "a.bak")
    assert back_up(LocalStore(), str(tmp_path / "a")) == str(tmp_path / "a.bak")
    assert not hidden.exists()

"""Staged folders: hidden until commit, whole afterwards, whatever fails or dies in between."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from penstock.errors import ConfigError, PenstockError
from penstock.store import LocalStore, MemoryStore
from penstock.store.base import Store
from penstock.testing.datasets import files_in
from penstock.testing.faults import FaultMode, FaultStore, count_operations

OLD = {"a/0": b"old", "meta": b"old meta"}
NEW = {"a/0": b"new", "a/1": b"x" * ((1 << 20) + 5), "b/c/0": b"deep", "meta": b"new meta"}


def own_files(path: str) -> list[str]:
    """What the datasets of this file list."""
    return [*(OLD | NEW), "link"]


def write(store: Store, path: str, files: dict[str, bytes], *, overwrite: bool = False) -> None:
    assert store.stages_folders
    folder = store.stage_folder(path, overwrite=overwrite, own=own_files)
    try:
        for name, data in files.items():
            file = folder.stage(name)
            try:
                file.write(data)
                file.commit()
            finally:
                file.abort()
        folder.commit()
    finally:
        folder.abort()


def start(root: Path, *, overwrite: bool) -> Path:
    path = root / "new" / "set"
    if overwrite:
        write(LocalStore(), str(path), OLD)
    return path


def look(path: Path, *, overwrite: bool) -> None:
    """The old folder, the whole new one, or nothing."""
    if path.exists():
        found = files_in(path)
        assert found == NEW or (overwrite and found == OLD)
    else:
        assert not overwrite


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_hidden_until_commit(tmp_path: Path, kind: str) -> None:
    store: Store = LocalStore() if kind == "local" else MemoryStore()
    assert store.stages_folders
    path = str(tmp_path / "set")
    folder = store.stage_folder(path)
    file = folder.stage("a/0")
    file.write(b"data")
    file.commit()
    assert not store.exists(path)
    if kind == "local":
        assert list(store.list(str(tmp_path))) == []
    folder.commit()
    folder.abort()
    assert [store.get(name) for name in store.list(path)] == [b"data"]
    with pytest.raises(ConfigError):
        store.stage_folder(path)
    write(store, path, OLD, overwrite=True)
    assert {name.removeprefix(path + "/"): store.get(name) for name in store.list(path)} == OLD
    dropped = store.stage_folder(path + "2")
    dropped.stage("a").commit()
    dropped.abort()
    assert not store.exists(path + "2")


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_the_first_to_commit_wins_and_a_part_can_be_moved_in(tmp_path: Path, kind: str) -> None:
    store: Store = LocalStore() if kind == "local" else MemoryStore()
    assert store.stages_folders
    path = str(tmp_path / "set")
    first, second, third = (store.stage_folder(path) for _ in range(3))
    for folder, name in ((first, "one/0"), (second, "two/0"), (third, "one/1")):
        file = folder.stage(name)
        file.write(name.encode())
        file.commit()
    first.commit()
    with pytest.raises(ConfigError):
        third.commit()
    second.commit("two", f"{path}/two")
    assert {name: store.get(f"{path}/{name}") for name in ("one/0", "two/0")} == {"one/0": b"one/0", "two/0": b"two/0"}
    assert len(list(store.list(path))) == 2
    if kind == "local":
        assert os.listdir(tmp_path) == ["set"]


def test_beside_keeps_the_hidden_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    folder = LocalStore().stage_folder(str(tmp_path / "group" / "train"), beside=str(tmp_path / "group"))
    folder.stage("0").commit()
    assert os.listdir(tmp_path / "group") == []
    folder.commit()
    assert files_in(tmp_path) == {"group/train/0": b""}


def test_an_empty_folder_counts_as_nothing_and_a_file_does_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write(LocalStore(), str(tmp_path / "empty"), NEW)
    assert files_in(tmp_path / "empty") == NEW
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(ConfigError):
        LocalStore().stage_folder(str(tmp_path / "file"))
    late = LocalStore().stage_folder(str(tmp_path / "late"))
    (tmp_path / "late").write_bytes(b"mine")
    with pytest.raises(ConfigError):
        late.commit()
    assert (tmp_path / "late").read_bytes() == b"mine"


def test_a_replaced_folder_loses_links_but_not_what_they_show(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"mine")
    path = start(tmp_path, overwrite=True)
    (path / "link").symlink_to(tmp_path / "kept")
    (path / "other").symlink_to(tmp_path / "kept")
    with pytest.raises(ConfigError, match="found other"):
        write(LocalStore(), str(path), NEW, overwrite=True)
    (path / "other").unlink()
    write(LocalStore(), str(path), NEW, overwrite=True)
    assert files_in(path) == NEW
    assert os.listdir(path.parent) == ["set"]
    assert (tmp_path / "kept" / "file").read_bytes() == b"mine"


def test_a_file_system_without_exchange_keeps_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda *args, **kwargs: object())
    path = start(tmp_path, overwrite=True)
    with pytest.raises(ConfigError, match="can't replace a folder"):
        write(LocalStore(), str(path), NEW, overwrite=True)
    assert files_in(path) == OLD
    assert os.listdir(path.parent) == ["set"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("mode", ["raise", "tear", "enospc"])
def test_error_at_every_operation(tmp_path: Path, mode: FaultMode, overwrite: bool) -> None:
    counted = start(tmp_path / "counted", overwrite=overwrite)
    total = count_operations(lambda store: write(store, str(counted), NEW, overwrite=overwrite))
    assert total > 20
    for n in range(1, total + 1):
        path = start(tmp_path / str(n), overwrite=overwrite)
        try:
            write(FaultStore(n, mode), str(path), NEW, overwrite=overwrite)
        except (OSError, PenstockError):
            look(path, overwrite=overwrite)
        else:
            assert files_in(path) == NEW
        if path.parent.exists():
            assert os.listdir(path.parent) in ([], ["set"]), f"{mode} at {n} of {total}"


@pytest.mark.parametrize("overwrite", [False, True])
def test_kill_at_every_operation(tmp_path: Path, overwrite: bool) -> None:
    counted = start(tmp_path / "counted", overwrite=overwrite)
    total = count_operations(lambda store: write(store, str(counted), NEW, overwrite=overwrite))
    fork = multiprocessing.get_context("fork")
    for n in range(1, total + 1):
        path = start(tmp_path / str(n), overwrite=overwrite)
        child = fork.Process(
            target=write, args=(FaultStore(n, "kill"), str(path), NEW), kwargs={"overwrite": overwrite}
        )
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        look(path, overwrite=overwrite)
        write(LocalStore(), str(path), NEW, overwrite=True)
        assert files_in(path) == NEW
        assert os.listdir(path.parent) == ["set"], f"killed at {n} of {total}"


def test_everything_is_synced_before_it_is_visible(tmp_path: Path) -> None:
    calls: list[str] = []

    class Watching(FaultStore):
        def __init__(self) -> None:
            super().__init__()
            counted = self.faults._call

            def watched(name: str, *args: object, **kwargs: object) -> object:
                calls.append(name)
                return counted(name, *args, **kwargs)

            self.faults._call = watched

    write(Watching(), str(tmp_path / "set"), NEW)
    visible = calls.index("rename")
    folders = 4  # the set, a, b and b/c
    assert calls[:visible].count("fsync") == len(NEW) + folders
    assert "fsync" in calls[visible + 1 :]

"""What is computed once a host: once, under a lock, mapped, and never in the way."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.store.derived import DerivedCache, Put, cache_folder
from penstock.store.local import LocalStore
from penstock.testing.faults import FaultyOs, faults_everywhere
from penstock.types import IntArray


class Built(Exception):
    """Raised where nothing should be built."""


def never() -> IntArray:
    raise Built


def test_built_once_and_mapped(tmp_path: Path) -> None:
    cache = DerivedCache(str(tmp_path))
    first = cache.array("key", "int64", lambda: np.arange(5))
    again = cache.array("key", "int64", never)
    for array in (first, again):
        assert array.dtype == np.int64
        assert array.tolist() == [0, 1, 2, 3, 4]
        assert not array.flags.writeable
        assert not array.flags.owndata
    assert sorted(os.listdir(tmp_path / "derived")) == ["key.json", "key.npy", "key.npy.lock"]


def test_empty_array(tmp_path: Path) -> None:
    cache = DerivedCache(str(tmp_path))
    assert cache.array("empty", "int64", lambda: np.empty(0, np.int64)).shape == (0,)


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"garbage" * 100, "cut", "pickle", "matrix"])
def test_damaged_file_is_built_again(tmp_path: Path, damage: bytes | str) -> None:
    cache = DerivedCache(str(tmp_path))
    cache.array("key", "int64", lambda: np.arange(1000))
    path = tmp_path / "derived" / "key.npy"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    elif damage == "pickle":
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    elif damage == "matrix":
        np.save(path, np.zeros((2, 2), np.int64))
    elif isinstance(damage, bytes):
        path.write_bytes(damage)
    assert cache.array("key", "int64", lambda: np.arange(1000)).tolist() == list(range(1000))
    assert cache.array("key", "int64", never)[-1] == 999


def test_other_dtype_is_built_again(tmp_path: Path) -> None:
    cache = DerivedCache(str(tmp_path))
    cache.array("key", "int64", lambda: np.arange(5))
    assert cache.array("key", "int32", lambda: np.arange(5, dtype=np.int32)).dtype == np.int32


def test_error_of_the_builder_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    cache = DerivedCache(str(tmp_path))
    with pytest.raises(Built):
        cache.array("key", "int64", never)
    assert os.listdir(tmp_path / "derived") == []
    assert cache.array("key", "int64", lambda: np.arange(2)).tolist() == [0, 1]


def test_an_array_in_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def feed(put: Put) -> None:
        run = np.empty(3, np.int64)
        for first in range(0, 9, 3):
            run[:] = range(first, first + 3)
            put(run)  # and it is written over

    for count in range(2):
        found = DerivedCache(str(tmp_path)).fed("key", "int32", feed if count == 0 else lambda put: never())
        assert found.tolist() == list(range(9))
        assert found.dtype == np.int32
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING, logger="penstock"):
        assert DerivedCache(str(tmp_path / "file")).fed("key", "int64", feed).tolist() == list(range(9))
    assert DerivedCache(str(tmp_path)).fed("none", "int64", lambda put: None).shape == (0,)


def test_what_a_feeder_raises_leaves_nothing(tmp_path: Path) -> None:
    def feed(put: Put) -> None:
        put(np.arange(3))
        raise Built

    with pytest.raises(Built):
        DerivedCache(str(tmp_path)).fed("key", "int64", feed)
    assert os.listdir(tmp_path / "derived") == []


@pytest.mark.parametrize("key", ["", "a/b", "../up", "a\0b", "x" * 201])
def test_keys_are_file_names(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError):
        DerivedCache(str(tmp_path)).array(key, "int64", never)


def test_folder_that_can_not_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING, logger="penstock"):
        array = DerivedCache(str(tmp_path / "file")).array("key", "int64", lambda: np.arange(3))
    assert array.tolist() == [0, 1, 2]
    assert not array.flags.writeable
    assert "computing it in memory" in caplog.text


@pytest.mark.filterwarnings("error")
def test_full_disk_at_every_operation(tmp_path: Path) -> None:
    with faults_everywhere(FaultyOs()) as counting:
        DerivedCache(str(tmp_path / "count")).array("key", "int64", lambda: np.arange(3))
    assert counting.operations > 5
    for n in range(1, counting.operations + 1):
        folder = tmp_path / str(n)
        with faults_everywhere(FaultyOs(n, "enospc")):
            assert DerivedCache(str(folder)).array("key", "int64", lambda: np.arange(3)).tolist() == [0, 1, 2]
        assert DerivedCache(str(folder)).array("key", "int64", lambda: np.arange(3)).tolist() == [0, 1, 2]


def _build_slowly(folder: str, log: str, start: multiprocessing.synchronize.Barrier) -> None:
    def build() -> IntArray:
        with open(log, "a") as lines:
            lines.write("built\n")
        return np.arange(100_000)

    start.wait(30)
    if DerivedCache(folder).array("key", "int64", build)[-1] != 99_999:
        os._exit(1)


def test_one_process_builds_and_the_others_wait(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)
    log = str(tmp_path / "log")
    workers = [context.Process(target=_build_slowly, args=(str(tmp_path), log, start)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert Path(log).read_text() == "built\n"


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", "/given")
    assert cache_folder() == "/given"
    assert DerivedCache().folder == "/given/derived"
    monkeypatch.setenv("PENSTOCK_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == "/xdg/penstock"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == "/home/me/.cache/penstock"


def test_file_is_plain_npy(tmp_path: Path) -> None:
    DerivedCache(str(tmp_path)).array("key", "int64", lambda: np.arange(5))
    data = LocalStore().get(str(tmp_path / "derived" / "key.npy"))
    assert data.startswith(b"\x93NUMPY")
    assert np.load(tmp_path / "derived" / "key.npy", allow_pickle=False).tolist() == [0, 1, 2, 3, 4]


def test_a_url_is_no_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder `s3:` was made in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_CACHE", "s3://bucket/cache")
    with pytest.raises(ConfigError, match="a local path"):
        cache_folder()
    with pytest.raises(ConfigError, match="a local path"):
        DerivedCache().array("a", "int64", lambda: np.arange(3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["key.npy", "key.json"])
@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo])
def test_no_file_in_its_place(
    tmp_path: Path, name: str, put: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "derived").mkdir()
    put(tmp_path / "derived" / name)
    with caplog.at_level(logging.WARNING):
        found = DerivedCache(str(tmp_path)).array("key", "int64", lambda: np.arange(5))
    assert found.tolist() == [0, 1, 2, 3, 4]
    assert str(tmp_path / "derived" / name) in caplog.text
    assert not (tmp_path / "derived" / name).is_file()

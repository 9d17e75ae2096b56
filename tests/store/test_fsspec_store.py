"""Stores of fsspec: the laws, over its own store in memory."""

from __future__ import annotations

import itertools
import pickle
import sys
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.abc import Store
from penstock.errors import ConfigError, MissingExtra, NotFound, Unreachable
from penstock.store import _remote_output
from penstock.store.cache import CachedStore
from penstock.store.fsspec_store import FsspecStore, knows
from penstock.store.place import resolve
from penstock.testing.stores import StoreSuite, put

_folders = itertools.count()


class TestFsspecStore(StoreSuite):
    @pytest.fixture
    def store(self) -> FsspecStore:
        return FsspecStore("memory")

    @pytest.fixture
    def root(self) -> str:
        return f"memory://suite/{next(_folders)}"


class TestCachedFsspecStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> CachedStore:
        return CachedStore(FsspecStore("memory"), str(tmp_path / "cache"))

    @pytest.fixture
    def root(self) -> str:
        return f"memory://cached/{next(_folders)}"


class TestLargeFiles(StoreSuite):
    """Those that are uploaded under a hidden name first."""

    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setattr(_remote_output, "ONE_PUT_BYTES", 0)
        return FsspecStore("memory")

    @pytest.fixture
    def root(self) -> str:
        return f"memory://large/{next(_folders)}"


def test_resolve() -> None:
    store, path = resolve("memory://folder/a.bin")
    assert path == "memory://folder/a.bin"
    assert isinstance(store, CachedStore)
    put(store, path, b"0123456789")
    assert fsspec.open(path).open().read() == b"0123456789"
    assert pickle.loads(pickle.dumps(store)).get(path, 2, 3) == b"234"
    assert store.stats().requests > 0


def test_unknown_schemes_and_options() -> None:
    assert knows("hf")
    assert not knows("nosuch")
    with pytest.raises(NotFound):
        FsspecStore("memory").size("memory://missing")


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match=r"pip install fsspec"):
        resolve("memory://a")


def test_errors_of_the_file_system_name_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, *given: object, **named: object) -> None:
        raise RuntimeError("broken")

    store = FsspecStore("memory")
    put(store, "memory://x/a", b"abc")
    for name in ("cat_ranges", "info"):
        with monkeypatch.context() as patch:
            patch.setattr(f"fsspec.implementations.memory.MemoryFileSystem.{name}", broken)
            with pytest.raises(Unreachable, match="broken") as caught:
                store.get_ranges("memory://x/a", [(0, 1)])
            assert caught.value.path == "memory://x/a"


def test_a_short_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FsspecStore("memory")
    put(store, "memory://x/b", b"abc")
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.cat_ranges", lambda *a, **k: [b""])
    with pytest.raises(Unreachable, match="the response is too short"):
        store.get_ranges("memory://x/b", [(0, 2)])


def test_a_file_system_that_needs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paramiko", None)
    with pytest.raises(ConfigError, match="sftp"):
        FsspecStore("sftp").size("sftp://host/a")


class Hosted(MemoryFileSystem):
    """As sftp and hdfs: a URL names the host, and a file system is of one."""

    protocol = "hosted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    asked: ClassVar[list[str]] = []

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(**options)
        self.asked.append(host)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol("/" + path.removeprefix("hosted://").partition("/")[2])

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"host": path.removeprefix("hosted://").partition("/")[0]}


def test_the_host_of_a_url_is_asked() -> None:
    fsspec.register_implementation("hosted", Hosted, clobber=True)
    store, path = resolve("hosted://one/folder/a.bin")
    put(store, path, b"abc")
    again, other = pickle.loads(pickle.dumps(store)), resolve("hosted://two/folder/a.bin")[0]
    assert again.get(path) == store.get(path) == b"abc"
    assert list(again.list("hosted://one/folder")) == [path]
    assert other.get("hosted://two/folder/a.bin") == b"abc"  # one dictionary for all hosts here
    assert Hosted.asked == ["one", "two"]

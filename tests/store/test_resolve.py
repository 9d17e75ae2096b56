"""URL → store and path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock._secrets import redact
from penstock.errors import ConfigError
from penstock.store.cache import CachedStore
from penstock.store.local import LocalStore
from penstock.store.place import resolve
from penstock.store.remote import RemoteStore


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("a/b.pbin", "a/b.pbin"),
        ("/a/b.pbin", "/a/b.pbin"),
        ("file:///a/b%20c.pbin", "/a/b c.pbin"),
        ("a b%20c", "a b%20c"),
        ("c:odd", "c:odd"),
        (Path("a") / "b", "a/b"),
    ],
)
def test_local(url: str | Path, path: str) -> None:
    store, found = resolve(url)
    assert isinstance(store, LocalStore)
    assert found == path


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/a")[1] == str(tmp_path / "a")


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("s3://bucket/a b/c.bin", "s3://bucket"),
        ("gs://bucket/a", "gs://bucket"),
        ("az://container/a/", "az://container"),
        ("https://host:8080/a/b%20c", "https://host:8080"),
    ],
)
def test_remote(url: str, base: str) -> None:
    store, path = resolve(url)
    assert path == url.rstrip("/")
    assert isinstance(store, CachedStore)
    assert isinstance(store.remote, RemoteStore)
    assert store.remote.base == base


@pytest.mark.parametrize("url", ["nosuch+scheme://a", "s3:///a", "https://host/a?signature=x"])
def test_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(url)
    assert caught.value.path == redact(url)
    assert url.partition(":")[0] in str(caught.value)


@pytest.mark.parametrize("url", ["a\0b", "x" * 256, "/a/" + "é" * 128 + "/b", "file:///a%00b"])
def test_names_that_no_file_can_have(url: str) -> None:
    with pytest.raises(ConfigError, match="not a valid file name"):
        resolve(url)


def test_local_paths_load_nothing_of_remote_stores() -> None:
    code = "import sys; from penstock.store.place import resolve; resolve('a'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "penstock.store.local" in loaded
    assert not {"penstock.store.remote", "penstock.store.cache", "obstore", "fsspec"} & {*loaded}

"""URL → store and path."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.store.local import LocalStore
from penstock.store.resolve import resolve


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


@pytest.mark.parametrize("url", ["ftp://host/a", "nosuch+scheme://a"])
def test_unknown_scheme(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(url)
    assert caught.value.path == url
    assert url.partition(":")[0] in str(caught.value)

"""Places: what a user gives, resolved once; names joined, taken and shown by the place alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from penstock.store.place import Place, dataset_at, place_of

URL = "https://user:secret@host/a/b.pbin?key=secret"


def test_a_path_is_local(tmp_path: Path) -> None:
    place = place_of(tmp_path / "a" / "b.pbin")
    assert place.is_local
    assert (place.name, place.folder().name) == ("b.pbin", "a")
    assert place.child("c").path == str(tmp_path / "a" / "b.pbin" / "c")
    assert place.child("/etc/passwd").path == str(tmp_path / "a" / "b.pbin") + "//etc/passwd"
    assert place.beside(".penstock").path == str(tmp_path / "a" / "b.pbin.penstock")
    assert not place.exists()


def test_names_with_slashes_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = place_of("a/b/")
    assert (place.name, place.beside(".x").path, place.child("c").path) == ("b", "a/b.x", "a/b/c")
    assert place.absolute == place.shown == str(tmp_path / "a" / "b")
    assert place_of("b").folder().path == str(tmp_path)
    assert [place_of(one).bare().path for one in ("a/b//", "a/b", "/")] == ["a/b", "a/b", "/"]


def test_a_url_stays_one() -> None:
    place = place_of("s3://bucket/a/b.pbin/")
    assert not place.is_local
    assert place.path == place.absolute == "s3://bucket/a/b.pbin"
    assert (place.name, place.child("c/d").path, place.beside(".x").path) == (
        "b.pbin",
        "s3://bucket/a/b.pbin/c/d",
        "s3://bucket/a/b.pbin.x",
    )
    assert place.folder().path == "s3://bucket/a"
    bucket = place.folder().folder()
    assert bucket.path == bucket.folder().path == "s3://bucket", "above a bucket is nothing"


def test_secrets_are_not_shown() -> None:
    place = Place(MemoryStore({}), URL)
    assert "secret" not in place.shown
    assert "secret" not in repr(place)
    assert "secret" not in str(place)


def test_a_place_stays_itself_and_a_store_may_be_given(tmp_path: Path) -> None:
    store = MemoryStore({"a": b"1"})
    place = place_of("a", store)
    assert place == Place(store, "a")
    assert place_of(place) is place
    assert place.exists()
    assert not place.is_folder()


def test_a_dataset_is_read_within_its_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"secret")
    (tmp_path / "data").mkdir()
    os.symlink(tmp_path / "out", tmp_path / "data" / "link")
    path = str(tmp_path / "data" / "link")
    guarded = dataset_at(tmp_path / "data").store
    assert isinstance(guarded, LocalStore)
    with pytest.raises(Exception, match="link"):
        guarded.get(path)
    assert dataset_at(tmp_path / "data", follow_links=True).store.get(path) == b"secret"


def test_a_url_that_lost_a_slash() -> None:
    with pytest.raises(ConfigError, match="a missing slash"):
        place_of("s3:/bucket/a")

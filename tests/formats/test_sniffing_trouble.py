"""What can't be read, or a store that does not answer, is said; it is not taken for a file of no format, or another."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.errors import Denied, NotFound, Unreachable, Unsupported
from penstock.formats import sniff
from penstock.store import LocalStore

_TROUBLE = {
    "EIO": lambda path: OSError(errno.EIO, os.strerror(errno.EIO), path),
    "EACCES": lambda path: PermissionError(errno.EACCES, os.strerror(errno.EACCES), path),
    "unreachable": lambda path: Unreachable("the store doesn't answer", path=path),
}


def _failing(store: LocalStore, error: Exception, at: str, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """The store, in which reads of one path fail."""
    real = LocalStore.get

    def get(self: LocalStore, path: str, *args: int, **options: int) -> bytes:
        if path == at:
            raise error
        return real(self, path, *args, **options)

    monkeypatch.setattr(LocalStore, "get", get)
    return store


def _mds(folder: Path) -> tuple[str, str]:
    path = str(folder / "mds")
    with penstock.create(path, format="mds", columns={"text": "str"}) as writer:
        writer.write({"text": "a"})
    return path, f"{path}/index.json"


def _of(name: str) -> Callable[[Path], tuple[str, str]]:
    def make(folder: Path) -> tuple[str, str]:
        path = str(folder / name)
        Path(path).write_bytes(b"PAR1")
        return path, path

    return make


@pytest.mark.parametrize("trouble", _TROUBLE)
@pytest.mark.parametrize("make", [_mds, _of("a.parquet"), _of("a.idx")])
def test_trouble_is_said(
    make: Callable[[Path], tuple[str, str]], trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = make(tmp_path)
    error = _TROUBLE[trouble](read)
    with pytest.raises(type(error)) as met:
        sniff(_failing(LocalStore(), error, read, monkeypatch), path)
    assert met.value is error


def test_a_store_that_denies_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As S3 does for whoever may read objects and not list them."""
    index = str(tmp_path / "index.json")
    store = _failing(LocalStore(), Denied("no right to read", path=index), index, monkeypatch)
    with pytest.raises((NotFound, Unsupported)):
        sniff(store, str(tmp_path))

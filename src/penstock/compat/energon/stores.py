"""Energon's names of file stores and cache pools."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from types import GenericAlias
from typing import Any

from penstock import cook
from penstock.compat.energon.cookers import SampleDecoder
from penstock.compat.unused import say_unused
from penstock.cook import Lazy, Prefetch
from penstock.cook.stores import add_source
from penstock.errors import ConfigError
from penstock.formats import open_source
from penstock.types import SourceInfo

__all__ = ["Lazy"]

DirectLazy = Lazy
FileCacheLazy = Lazy


class FileStore(ABC):
    """Files by name. A store of your own is a subclass with `__getitem__` and `get_path`.

    The stores of datasets, which cookers get and the functions below make, are instances of it, too.
    """

    __class_getitem__ = classmethod(GenericAlias)
    decode = None  # what Lazy asks: what `__getitem__` gives is the value

    @abstractmethod
    def __getitem__(self, key: str, /) -> tuple[Any, SourceInfo]:
        """The value of one file, and where it is from."""

    @abstractmethod
    def get_path(self) -> str:
        """Path of the dataset."""

    def get(self, key: str, sample: Any = None) -> Any:
        """The value of one file; the `__sources__` of `sample`, where one is given, name the file from then on."""
        value, info = self[key]
        if sample is not None:
            add_source(sample, info)
        return value

    def get_media_metadata(self, key: str) -> Any:
        """Media metadata of one file; a store of your own may override this."""
        raise ConfigError("this store has no media metadata", found=type(self).__name__, expected=f"of {key!r}")


FileStore.register(cook.FileStore)


def SystemFileStore(base_dir: str | os.PathLike[str], *, follow_links: bool = False) -> cook.FileStore:
    """The files of a folder, as bytes."""
    source: Any = open_source(os.fspath(base_dir), format="folder", raw=True, follow_links=follow_links)
    return cook.FileStore(source)


def WebdatasetFileStore(path: str | os.PathLike[str], *, follow_links: bool = False) -> cook.FileStore:
    """The files of a prepared WebDataset, of all its splits, as bytes."""
    source: Any = open_source(os.fspath(path), format="webdataset", raw=True, follow_links=follow_links)
    return cook.FileStore(source)


def JsonlFileStore(path: str | os.PathLike[str], *, follow_links: bool = False) -> cook.FileStore:
    """The lines of a JSONL by `"N.json"`, as bytes."""
    source: Any = open_source(os.fspath(path), format="jsonl", flavor="energon", raw=True, follow_links=follow_links)
    return cook.FileStore(source)


def DecodeFileStore(inner: Any, *, decoder: Any) -> Any:
    """A store whose files are decoded by their extension, or by a `decode` of the decoder's own."""
    if type(decoder) is SampleDecoder and isinstance(inner, cook.FileStore):
        return cook.FileStore(inner.source, decoder.options, inner.key)
    return _Decoded(inner, decoder)


class _Decoded(FileStore):
    """The files of another store, each decoded by its name."""

    def __init__(self, inner: Any, decoder: Any) -> None:
        self._inner = inner
        self._decoder = decoder

    def __getitem__(self, key: str, /) -> tuple[Any, SourceInfo]:
        raw, info = self._inner[key]
        return self._decoder.decode(key, raw), info

    def get_path(self) -> str:
        return self._inner.get_path()

    def get_media_metadata(self, key: str) -> Any:
        return self._inner.get_media_metadata(key)


def PrimaryFileStore(inner: cook.FileStore, current_key: str) -> cook.FileStore:
    """A store in which a name that begins with a dot is a file of the sample with this key."""
    return inner.of(current_key)


@dataclass(frozen=True, slots=True)
class MockLazy:
    """A lazy value of a function, for tests.

    Attributes:
        fname: passed to the function.
        get_fn: gives the value.
    """

    fname: str
    get_fn: Callable[[str], Any]

    __class_getitem__ = classmethod(GenericAlias)

    def get(self, sample: Any = None) -> Any:
        """The value."""
        del sample
        return self.get_fn(self.fname)


@dataclass(frozen=True, slots=True)
class Kept:
    """A lazy value that is here already, and what it was called where that was said."""

    value: Any
    info: SourceInfo | None = field(default=None, compare=False)
    fname: str | None = None

    def get(self, sample: Any = None) -> Any:
        """The value."""
        if sample is not None and self.info is not None:
            add_source(sample, self.info)
        return self.value


class CachePool:
    """Reads files on demand: Energon's `NoCachePool`."""

    def get(self, ds: Any, fname: str, sample: Any = None) -> Any:
        """A file's value now."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: Any, fname: str) -> Lazy:
        """A handle to a file."""
        return Lazy(ds, fname)

    def to_cache(self, data: Any, name: str) -> Kept:
        """A handle to a value, which stays in memory; `name` is its `fname`."""
        return Kept(data, fname=name)

    def close(self) -> None:
        """Nothing is open."""


NoCachePool = CachePool


class FileStoreCachePool(CachePool):
    """Fetches files in the background into memory, up to a bound; remote ones stay in the cache folder of their store.

    Args:
        parent_cache_dir, max_cache_count, method: change nothing, which is logged: stored bytes are kept in memory, and
            decoded when they are taken; what is remote stays in the folder `PENSTOCK_CACHE`.
        num_workers: files fetched at once.
        max_cache_size_gbytes: of files that were fetched and are not taken yet; in memory, so at most 1 is used, which
            is logged.
    """

    def __init__(
        self,
        *,
        parent_cache_dir: Any = None,
        num_workers: int = 8,
        max_cache_size_gbytes: float = 1.0,
        max_cache_count: int | None = None,
        method: str = "raw",
    ) -> None:
        unused = {"parent_cache_dir": parent_cache_dir, "max_cache_count": max_cache_count, "method": method}
        because = "stored bytes are kept in memory; what is remote stays in the folder PENSTOCK_CACHE"
        say_unused("FileStoreCachePool", because, unused, {"method": "raw"})
        if max_cache_size_gbytes > 1.0:
            size = {"max_cache_size_gbytes": max_cache_size_gbytes}
            say_unused("FileStoreCachePool", "it is in memory, and at most 1 GiB", size, {})
        self._ahead = Prefetch(num_workers, int(min(max_cache_size_gbytes, 1.0) * (1 << 30)))

    def get_lazy(self, ds: Any, fname: str) -> Lazy:
        """A handle to a file, whose fetch starts now; for a store of your own, when its value is needed."""
        return self._ahead.lazy(ds, fname) if isinstance(ds, cook.FileStore) else Lazy(ds, fname)

    def close(self) -> None:
        """Stop fetching."""
        self._ahead.close()

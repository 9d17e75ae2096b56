"""Energon's names of file stores and cache pools."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import GenericAlias
from typing import Any

from penstock import cook
from penstock.compat.energon.cookers import SampleDecoder
from penstock.compat.energon.source_info import as_there
from penstock.compat.unused import say_unused
from penstock.cook import Prefetch
from penstock.cook.stores import add_source
from penstock.errors import ConfigError
from penstock.formats import open_source
from penstock.types import SourceInfo

DirectLazy = cook.Lazy
FileCacheLazy = cook.Lazy


class Lazy(ABC):
    """File that is fetched when it is used: the result of cache pools, and `MockLazy`.

    Attributes:
        ds: store of the file, if it has one.
        fname: its name.

    Examples:
        >>> from penstock.compat.energon import CachePool, Lazy, WebdatasetFileStore
        >>> lazy = CachePool().get_lazy(WebdatasetFileStore("pictures"), "003.txt")
        >>> isinstance(lazy, Lazy), lazy.fname, lazy.get()
        (True, '003.txt', b'picture 3')
    """

    ds: Any
    fname: Any
    __class_getitem__ = classmethod(GenericAlias)

    @abstractmethod
    def get(self, sample: Any = None) -> Any:
        """Return the value."""


Lazy.register(cook.Lazy)


class FileStore(ABC):
    """Base class of stores of named files. Your own store is a subclass with `__getitem__` and `get_path`.

    The stores of datasets, as passed to cookers and returned by the functions below, are instances of it too.

    Examples:
        >>> from penstock.compat.energon import FileStore, SourceInfo
        >>> class Memory(FileStore):
        ...     def __init__(self, files):
        ...         self.files = files
        ...     def __getitem__(self, key, /):
        ...         source = SourceInfo(dataset_path="memory", index=key, shard_name="", file_names=(key,))
        ...         return self.files[key], source
        ...     def get_path(self):
        ...         return "memory"
        >>> Memory({"a.txt": "Open the gate."}).get("a.txt")
        'Open the gate.'
    """

    __class_getitem__ = classmethod(GenericAlias)
    decode = None  # what Lazy asks: what `__getitem__` gives is the value

    @abstractmethod
    def __getitem__(self, key: str, /) -> tuple[Any, SourceInfo]:
        """Return the value of one file, and its origin."""

    @abstractmethod
    def get_path(self) -> str:
        """Return the path of the dataset."""

    def get(self, key: str, sample: Any = None) -> Any:
        """Return the value of one file, and add the file to the `__sources__` of `sample` if given."""
        value, info = self[key]
        if sample is not None:
            add_source(sample, info)
        return value

    def get_media_metadata(self, key: str) -> Any:
        """Return the media metadata of one file. Your own store may override it."""
        raise ConfigError("this store has no media metadata", found=type(self).__name__, expected=f"of {key!r}")


FileStore.register(cook.FileStore)


class _Files(FileStore):
    """Files of a Penstock dataset, which a subclass may change when they are read."""

    def __init__(self, files: cook.FileStore) -> None:
        self.files = files

    def __getitem__(self, key: str, /) -> tuple[Any, SourceInfo]:
        return self.files[key]

    def get_path(self) -> str:
        return self.files.get_path()

    def get_media_metadata(self, key: str) -> Any:
        return self.files.get_media_metadata(key)


class SystemFileStore(_Files):
    """Store of the files of a directory, as bytes.

    Args:
        base_dir: the directory.
        follow_links: allow links to files outside the directory.

    Examples:
        >>> from penstock.compat.energon import SystemFileStore
        >>> SystemFileStore(".").get("docs.jsonl")[:12]
        b'{"id": "a1",'
    """

    def __init__(self, base_dir: str | os.PathLike[str] | None = None, *, follow_links: bool = False) -> None:
        if base_dir is None:
            what = "a store without a folder would let names in the data read every file of the machine"
            raise ConfigError(what, hint="Pass the folder with the files as base_dir")
        super().__init__(_files(base_dir, follow_links, format="folder"))


class WebdatasetFileStore(_Files):
    """Store of the files of a prepared WebDataset, of all its splits, as bytes.

    Examples:
        >>> from penstock.compat.energon import WebdatasetFileStore
        >>> store = WebdatasetFileStore("pictures")
        >>> store.get("003.txt")
        b'picture 3'
        >>> value, source = store["003.txt"]
        >>> source.shard_name, source.index
        ('shard_000001.tar', '003.txt')
    """

    def __init__(self, dataset_path: str | os.PathLike[str], *, follow_links: bool = False) -> None:
        super().__init__(_files(dataset_path, follow_links, format="webdataset"))


class JsonlFileStore(_Files):
    """Store of the lines of a JSONL file, named `"N.json"`, as bytes.

    Examples:
        >>> from penstock.compat.energon import JsonlFileStore
        >>> JsonlFileStore("docs.jsonl").get("2.json")[:12]
        b'{"id": "a3",'
    """

    def __init__(self, jsonl_path: str | os.PathLike[str], *, follow_links: bool = False) -> None:
        super().__init__(_files(jsonl_path, follow_links, format="jsonl", flavor="energon"))


def _files(path: Any, follow_links: bool, **options: Any) -> cook.FileStore:
    source: Any = open_source(str(path), raw=True, follow_links=follow_links, **options)
    return cook.FileStore(source, described=as_there)


class DecodeFileStore(FileStore):
    """Store of the files of another store, decoded by extension, or by the decoder's own `decode`.

    Examples:
        >>> from penstock.compat.energon import DecodeFileStore, SampleDecoder, WebdatasetFileStore
        >>> store = DecodeFileStore(WebdatasetFileStore("pictures"), decoder=SampleDecoder(image_decode="rgb8"))
        >>> store.get("003.png").shape, store.get("003.txt")
        ((6, 8, 3), 'picture 3')
    """

    def __init__(self, inner: Any, *, decoder: Any) -> None:
        self.inner = inner
        self.decoder = decoder
        below = files_of(inner)
        ours = type(decoder) is SampleDecoder and below is not None
        self.files = replace(below, decode=decoder.options) if ours and below is not None else None

    def __getitem__(self, key: str, /) -> tuple[Any, SourceInfo]:
        if self.files is not None:
            return self.files[key]
        raw, info = self.inner[key]
        return self.decoder.decode(key, raw), info

    def get_path(self) -> str:
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> Any:
        return self.inner.get_media_metadata(key)


class PrimaryFileStore(FileStore):
    """Store in which a name that begins with a dot is a file of the sample with this key.

    Examples:
        >>> from penstock.compat.energon import PrimaryFileStore, WebdatasetFileStore
        >>> store = PrimaryFileStore(WebdatasetFileStore("pictures"), current_key="003")
        >>> store.get(".txt"), store.get("000.txt")
        (b'picture 3', b'picture 0')
    """

    def __init__(self, inner: Any, current_key: str) -> None:
        self.inner = inner
        self.current_key = current_key
        below = files_of(inner)
        self.files = None if below is None else below.of(current_key)

    def __getitem__(self, key: str, /) -> tuple[Any, SourceInfo]:
        return self.inner[self._whole(key)]

    def get_path(self) -> str:
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> Any:
        return self.inner.get_media_metadata(self._whole(key))

    def _whole(self, key: str) -> str:
        return self.current_key + key if key.startswith(".") else key


def files_of(store: Any) -> cook.FileStore | None:
    """Return Penstock's files behind a store, which can be prefetched, if the program's own code isn't in between."""
    if isinstance(store, cook.FileStore):
        return store
    known = (SystemFileStore, WebdatasetFileStore, JsonlFileStore, DecodeFileStore, PrimaryFileStore)
    return store.files if type(store) in known else None


@dataclass(frozen=True, slots=True)
class MockLazy(Lazy):
    """Lazy value of a function, for tests.

    Attributes:
        fname: argument of the function.
        get_fn: function that returns the value.

    Examples:
        >>> from penstock.compat.energon import MockLazy
        >>> lazy = MockLazy("a.txt", get_fn=str.upper)
        >>> lazy.fname, lazy.get()
        ('a.txt', 'A.TXT')
    """

    fname: str
    get_fn: Callable[[str], Any]

    def get(self, sample: Any = None) -> Any:
        """Return the value."""
        del sample
        return self.get_fn(self.fname)


@dataclass(frozen=True, slots=True)
class Kept(Lazy):
    """A lazy value that is already available, with its name if known."""

    value: Any
    info: SourceInfo | None = field(default=None, compare=False)
    fname: str | None = None

    def get(self, sample: Any = None) -> Any:
        """Return the value."""
        if sample is not None and self.info is not None:
            add_source(sample, self.info)
        return self.value


class CachePool:
    """Cache pool that reads files on demand: Energon's `NoCachePool`.

    Examples:
        >>> from penstock.compat.energon import CachePool, WebdatasetFileStore
        >>> pool, store = CachePool(), WebdatasetFileStore("pictures")
        >>> pool.get(store, "003.txt"), pool.get_lazy(store, "004.txt").get()
        (b'picture 3', b'picture 4')
        >>> pool.to_cache([1, 2, 3], "numbers").get()
        [1, 2, 3]
    """

    def get(self, ds: Any, fname: str, sample: Any = None) -> Any:
        """Return a file's value."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: Any, fname: str) -> cook.Lazy:
        """Return a handle to a file."""
        return cook.Lazy(ds, fname)

    def to_cache(self, data: Any, name: str) -> Kept:
        """Return a handle to a value, which stays in memory; `name` becomes its `fname`."""
        return Kept(data, fname=name)

    def close(self) -> None:
        """Do nothing."""


NoCachePool = CachePool


class FileStoreCachePool(CachePool):
    """Cache pool that fetches files in the background into memory, up to a limit.

    Remote files also stay in the cache folder of their store.

    Args:
        parent_cache_dir, max_cache_count, method: ignored, with a log message: stored bytes are kept in memory and
            decoded when they are used; remote files stay in the directory `PENSTOCK_CACHE`.
        num_workers: number of files fetched at a time.
        max_cache_size_gbytes: limit for fetched files that haven't been used yet. They are in memory, so at most 1 is
            used, with a log message.

    Examples:
        >>> from penstock.compat.energon import FileStoreCachePool, WebdatasetFileStore
        >>> pool = FileStoreCachePool(num_workers=2)
        >>> lazy = pool.get_lazy(WebdatasetFileStore("pictures"), "003.txt")  # the fetch starts
        >>> lazy.get()
        b'picture 3'
        >>> pool.close()
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
        because = "stored bytes are kept in memory; remote files stay in the folder PENSTOCK_CACHE"
        say_unused("FileStoreCachePool", because, unused, {"method": "raw"})
        if max_cache_size_gbytes > 1.0:
            size = {"max_cache_size_gbytes": max_cache_size_gbytes}
            say_unused("FileStoreCachePool", "it is in memory, and at most 1 GiB", size, {})
        self._ahead = Prefetch(num_workers, int(min(max_cache_size_gbytes, 1.0) * (1 << 30)))

    def get_lazy(self, ds: Any, fname: str) -> cook.Lazy:
        """Return a handle to a file; its fetch starts now, or in custom stores when its value is needed."""
        files = files_of(ds)
        return cook.Lazy(ds, fname) if files is None else self._ahead.lazy(files, fname)

    def close(self) -> None:
        """Stop fetching."""
        self._ahead.close()

"""Files by name, decoded by their extension: stores of datasets, and handles that are fetched on demand."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import GenericAlias
from typing import Any, TypeAlias

from penstock._access import capability
from penstock._threads import Pool
from penstock.abc import SupportsFiles
from penstock.codec.parts import DecodeOptions, decode_part
from penstock.types import MediaMetadata, SourceInfo

Described: TypeAlias = Callable[[SourceInfo], SourceInfo]


@dataclass(frozen=True, slots=True)
class FileStore:
    """Named files of a dataset, for cook functions.

    Attributes:
        source: a WebDataset, a directory, or a JSONL file in Energon's flavor.
        decode: how to decode files, by extension; None returns bytes.
        key: key of the sample being cooked, which is put before names that begin with a dot. None: names are complete.
        described: function that changes how a file is described in the `__sources__` of samples.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import FileStore
        >>> store = FileStore(ps.open("pictures", raw=True))
        >>> store.get("002.txt")
        b'picture 2'
        >>> store.of("003").get(".txt")
        b'picture 3'
    """

    source: SupportsFiles
    decode: DecodeOptions | None = None
    key: str | None = None
    described: Described | None = None

    __class_getitem__ = classmethod(GenericAlias)  # FileStore[bytes] documents the type of its files

    def get(self, name: str, sample: Any = None) -> Any:
        """Return the value of one file, and add the file to the `__sources__` of `sample` if given.

        Raises:
            NotFound: the file doesn't exist.
            FormatError: the file can't be decoded.
        """
        value, info = self[name]
        if sample is not None:
            add_source(sample, info)
        return value

    def __getitem__(self, name: str, /) -> tuple[Any, SourceInfo]:
        """Return the value of one file, and its origin."""
        data, shard = self.read(name)
        return (data if self.decode is None else decode_part(name, data, self.decode)), self.info(name, shard)

    def read(self, name: str) -> tuple[bytes, str | None]:
        """Return the stored bytes of one file, and its shard if the dataset has shards."""
        name, with_shard = self.whole(name), capability(self.source, "get_with_shard")
        return (self.source.get(name), None) if with_shard is None else with_shard(name)

    def info(self, name: str, shard: str | None = None) -> SourceInfo:
        """Return the origin of a file; without a shard, the dataset's path is used."""
        name, path = self.whole(name), self.get_path()
        info = SourceInfo(path, name, path if shard is None else shard, (name,))
        return info if self.described is None else self.described(info)

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """Return the indexed metadata of one media file, or raise `NotFound`."""
        return self.source.get_media_metadata(self.whole(name))

    def get_path(self) -> str:
        """Return the path of the dataset."""
        return str(capability(self.source, "path") or "")

    def of(self, key: str) -> FileStore:
        """Return the same store for the sample with this key."""
        return replace(self, key=key)

    def whole(self, name: str) -> str:
        """Return the full name: names that begin with a dot are prefixed with the sample's key."""
        return self.key + name if self.key is not None and name.startswith(".") else name


def add_source(sample: Any, info: SourceInfo) -> None:
    """Add to the `__sources__` of a sample, a dict or an object."""
    if isinstance(sample, dict):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), info)
    else:
        sample.__sources__ = (*(getattr(sample, "__sources__", None) or ()), info)


def stores_of(
    aux: Mapping[str, Any], decode: DecodeOptions | None, described: Described | None = None
) -> dict[str, FileStore]:
    """Return name → store, for sources or stores."""
    return {
        name: one if isinstance(one, FileStore) else FileStore(one, decode, described=described)
        for name, one in aux.items()
    }


_THREADS = 8
_MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Lazy:
    """Handle to a file in a store, fetched at first use. It is picklable, without prefetched bytes.

    Attributes:
        store: store of the file.
        name: name of the file.
        ahead: the running fetch, if any.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import FileStore, Lazy
        >>> picture = Lazy(FileStore(ps.open("pictures", raw=True)), "002.txt")
        >>> picture.get()
        b'picture 2'
    """

    store: FileStore
    name: str
    ahead: _Fetch | None = field(default=None, compare=False, repr=False)

    __class_getitem__ = classmethod(GenericAlias)  # Lazy[bytes] documents the result of `get`

    @property
    def ds(self) -> FileStore:
        """The store, under Energon's name for it."""
        return self.store

    @property
    def fname(self) -> str:
        """The name, under Energon's name for it."""
        return self.name

    def get(self, sample: Any = None) -> Any:
        """Return the file's value, as often as you like; the file is added to the sources of `sample`.

        Raises:
            NotFound: the file doesn't exist.
            FormatError: the file can't be decoded.
        """
        taken = None if self.ahead is None else self.ahead.take()
        if taken is None:
            return self.store.get(self.name, sample)
        data, shard = taken
        if sample is not None:
            add_source(sample, self.store.info(self.name, shard))
        return data if self.store.decode is None else decode_part(self.name, data, self.store.decode)

    def __reduce__(self) -> tuple[object, ...]:
        return (Lazy, (self.store, self.name))


class Prefetch:
    """Background fetcher of files, up to a number of bytes.

    Files beyond that are fetched when they are used.

    The bytes of a remote dataset also go into its store's cache, so a later epoch finds them there. Memory:
    `most_bytes`, and one file per thread.

    Args:
        threads: number of files fetched at a time.
        most_bytes: limit for fetched bytes that haven't been used yet.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import FileStore, Prefetch
        >>> store = FileStore(ps.open("pictures", raw=True))
        >>> prefetch = Prefetch(threads=2)
        >>> pictures = [prefetch.lazy(store, f"{number:03}.txt") for number in range(3)]
        >>> [picture.get() for picture in pictures]
        [b'picture 0', b'picture 1', b'picture 2']
        >>> prefetch.close()
    """

    def __init__(self, threads: int = _THREADS, most_bytes: int = _MOST_BYTES) -> None:
        self._given = (threads, most_bytes)
        self._pool: Pool | None = None
        # The garbage collector may delete a counted handle while this thread holds the lock.
        self._lock = threading.RLock()
        self._held_bytes = 0

    def __reduce__(self) -> tuple[object, ...]:
        return (Prefetch, self._given)

    def lazy(self, store: FileStore, name: str) -> Lazy:
        """Return a handle to a file, and start to fetch it if the prefetched bytes are below the limit."""
        if not self.has_room():
            return Lazy(store, name)
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self._given[0], "penstock-prefetch")
            pool = self._pool
        # Not while holding the lock: submitting takes a lock of all pools, under which handles may be deleted.
        fetch = _Fetch(self)
        fetch.begin(pool, store, name)
        return Lazy(store, name, fetch)

    @property
    def held_bytes(self) -> int:
        """Bytes fetched but not yet used."""
        return self._held_bytes

    def has_room(self) -> bool:
        """Return whether another file may be prefetched."""
        return self._held_bytes < self._given[1]

    def hold(self, num_bytes: int) -> None:
        """Add to the count of held bytes; a negative number subtracts."""
        with self._lock:
            self._held_bytes += num_bytes

    def close(self) -> None:
        """Stop fetching; files that aren't being fetched yet are fetched on demand."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


class _Fetch:
    """One fetch: the bytes are delivered once, and dropped with the handle at the latest."""

    __slots__ = ("_future", "_lock", "_owner", "_read", "_wanted")

    def __init__(self, owner: Prefetch) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._read: tuple[bytes, str | None] | None = None
        self._wanted = True
        self._future: Future[None] | None = None

    def begin(self, pool: Pool, store: FileStore, name: str) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile: fetched on request
            self._future = pool.submit(_run, self, store, name)

    def has_room(self) -> bool:
        return self._owner.has_room()

    def keep(self, read: tuple[bytes, str | None]) -> None:
        """Store the bytes and their shard."""
        with self._lock:
            if self._wanted:
                self._read = read
                self._owner.hold(len(read[0]))

    def take(self) -> tuple[bytes, str | None] | None:
        """Return the bytes and their shard; None if they were taken before, or the caller has to fetch them."""
        future = self._future
        if future is not None and not future.cancel():
            future.exception()  # waits; an error is raised again, with more detail, when the caller fetches
        with self._lock:
            return self._drop()

    def __del__(self) -> None:
        self._drop()

    def _drop(self) -> tuple[bytes, str | None] | None:
        read, self._read, self._wanted = self._read, None, False
        if read is not None:
            self._owner.hold(-len(read[0]))
        return read


def _run(fetch: _Fetch, store: FileStore, name: str) -> None:
    # Checked again: many fetches may have started before the first one finished.
    if fetch.has_room():
        fetch.keep(store.read(name))

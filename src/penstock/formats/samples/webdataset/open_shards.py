"""Open shards: their indexes, and their bytes, mapped or read."""

from __future__ import annotations

import resource
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._secrets import logger
from penstock.errors import Corrupt, NotFound, Truncated
from penstock.formats._sources import way_to_read
from penstock.formats.samples.webdataset.members import Members, read_members
from penstock.formats.samples.webdataset.nvmeta import prepare_command
from penstock.formats.samples.webdataset.samples import Range
from penstock.formats.samples.webdataset.shards import LinkedParts, index_path, scan_shard
from penstock.store.base import Store
from penstock.store.derived import DerivedCache
from penstock.store.fingerprint import OpenedFile, file_key
from penstock.types import IntArray, ReadMode

_log = logger()
_SCAN_VERSION = "tar-idx-2"
_MAPPED_INDEX_BYTES = 1 << 16
_LEAST_OPEN, _MOST_OPEN = 64, 4096
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class OpenShard:
    """One shard: its index, int64[n_samples + 1], its size, its bytes if they are mapped, and its linked parts."""

    path: str
    offsets: memoryview
    size_bytes: int
    view: memoryview | None
    linked: LinkedParts


class OpenShards:
    """Shards of a dataset, each opened at its first use. Thread-safe, picklable, safe after fork.

    Memory: the indexes of open shards, 8 bytes per sample, mapped if larger than 64 KiB. At most a quarter of the files
    that the process may open; the shard opened first is evicted. A shard without an index is scanned by its headers,
    once per host.

    Args:
        store: the store of the shards.
        root: the dataset's folder.
        counts: shard → number of its samples.
        read: see `penstock.open`.
        info: state of the list of shards when it was opened, if known: reading a shard written later with another list
            is an error.
    """

    def __init__(
        self, store: Store, root: str, counts: dict[str, int], read: ReadMode, info: OpenedFile | None = None
    ) -> None:
        self._store = store
        self._root = root.rstrip("/")
        self._counts = counts
        self._read: ReadMode = read
        self._info = info
        self._maps = way_to_read(store, root, read) == "mmap"
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = max(_LEAST_OPEN, min(_MOST_OPEN, limit // 4))
        self._far = store if store.keeps_copies else None
        self._open: dict[str, OpenShard] = {}
        self._lock = threading.Lock()
        self._said = False
        self._members: Members | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (OpenShards, (self._store, self._root, self._counts, self._read, self._info))

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def get(self, name: str) -> OpenShard:
        """Return a shard, opening it if necessary.

        Raises:
            NotFound: the shard doesn't exist.
            Corrupt: the index, or the shard if it has none, doesn't fit the list of shards.
        """
        found = self._open.get(name)
        if found is None:
            found = self._load(name)
            with self._lock:
                while len(self._open) >= self._most:
                    del self._open[next(iter(self._open))]
                self._open[name] = found
        return found

    def range(self, name: str, place: int) -> tuple[int, int]:
        """Return `(start_bytes, stop_bytes)` of a sample in a shard; bytes before the first sample belong to it.

        Raises:
            Corrupt: the index doesn't fit the shard.
        """
        shard = self._open.get(name) or self.get(name)
        start, stop = (0 if place == 0 else shard.offsets[place]), shard.offsets[place + 1]
        if not 0 <= start <= stop <= shard.size_bytes:
            raise self._misfit(shard, start, stop)
        return start, stop

    def read_range(self, name: str, place: int) -> Range:
        start, stop = self.range(name, place)
        shard = self._open.get(name) or self.get(name)
        linked = self.linked_contents(name, place) if shard.linked else ()
        if shard.view is not None:
            return Range(shard.path, shard.view, 0, start, stop, linked)
        data = self.get_ranges(shard.path, [(start, stop)])[0]
        return Range(shard.path, memoryview(data), start, start, stop, linked)

    @property
    def members(self) -> Members:
        if self._members is None:
            self._members = read_members(self._store, self._root)
        return self._members

    def linked_contents(self, name: str, place: int) -> tuple[tuple[str, bytes], ...]:
        linked = self.members.linked.get(name, {}).get(place, ())
        return tuple((one.part, self.read_content(name, one.content_bytes, one.size_bytes)) for one in linked)

    def read_ranges(self, names: Sequence[str], places: Sequence[int]) -> list[Range]:
        """Return the bytes of samples, each by shard and place in it; one call per shard if nothing is mapped."""
        found: list[Range] = []
        to_read: dict[str, list[int]] = {}
        for name, place in zip(names, places, strict=True):
            start, stop = self.range(name, place)
            shard = self._open.get(name) or self.get(name)
            if shard.view is None:
                to_read.setdefault(name, []).append(len(found))
            linked = self.linked_contents(name, place) if shard.linked else ()
            found.append(Range(shard.path, shard.view or _NOTHING, 0, start, stop, linked))
        for name, rows in to_read.items():
            ranges = [(found[row].start, found[row].stop) for row in rows]
            for row, data in zip(rows, self.get_ranges(self.path(name), ranges), strict=True):
                one = found[row]
                found[row] = one._replace(view=memoryview(data), base=one.start)
        return found

    def read_content(self, name: str, start_bytes: int, size_bytes: int) -> bytes:
        """Return the bytes of one part.

        Raises:
            Truncated: the shard is too short.
        """
        shard = self._open.get(name) or self.get(name)
        stop_bytes = start_bytes + size_bytes
        if start_bytes < 0 or size_bytes < 0 or stop_bytes > shard.size_bytes:
            raise Truncated(
                "the part index has offsets beyond the end of its shard", path=shard.path, offset_bytes=start_bytes,
                found=f"{shard.size_bytes} bytes", expected=f"{stop_bytes} bytes", hint=self._remake(),
            )  # fmt: skip
        if shard.view is not None:
            return bytes(shard.view[start_bytes:stop_bytes])
        return self.get_ranges(shard.path, [(start_bytes, stop_bytes)])[0]

    def get_ranges(self, path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Read ranges of a shard that isn't mapped.

        Raises:
            Corrupt: the shard was replaced since the dataset was opened.
        """
        pieces = self._store.get_ranges(path, ranges)
        self._require_same(path)
        return pieces

    def _require_same(self, path: str) -> None:
        if self._info is not None:
            self._info.require_not_later(path)

    def _load(self, name: str) -> OpenShard:
        store: Any = self._store
        path = self.path(name)
        offsets, linked = self._index(name), self.members.linked.get(name, {})
        if self._maps:
            view = memoryview(store.mmap(path))
            self._require_same(path)
            return OpenShard(path, memoryview(offsets), len(view), view, linked)
        if self._far is not None:
            # The last sample ends there. The end of the archive is never read.
            size_bytes = int(offsets[-1])
            self._far.expect_size(path, size_bytes, exact=False)
        else:
            size_bytes = store.size(path)
        self._require_same(path)
        return OpenShard(path, memoryview(offsets), size_bytes, None, linked)

    def _index(self, name: str) -> Any:
        """Return int64[n_samples + 1], the index of a shard."""
        store: Any = self._store
        index = index_path(self.path(name))
        expected = (self._counts[name] + 1) * 8
        try:
            data = None if self._far is None else store.get(index)
            index_bytes = store.size(index) if data is None else len(data)
        except NotFound:
            offsets = self._scan(name, index)
            if offsets.nbytes != expected:
                found = f"{len(offsets) - 1} samples"
                hint = f"Prepare the dataset again: {prepare_command(self._root, '--overwrite')}"
                raise Corrupt(
                    "a shard doesn't match the list of shards", path=self.path(name), found=found,
                    expected=f"{self._counts[name]} samples", hint=hint,
                ) from None  # fmt: skip
            return offsets
        if index_bytes != expected:
            raise Corrupt(
                "the index of a shard doesn't match the list of shards", path=index, found=f"{index_bytes} bytes",
                expected=f"{expected} bytes, for {self._counts[name]} samples", hint=self._remake(),
            )  # fmt: skip
        if self._maps and index_bytes > _MAPPED_INDEX_BYTES:
            return store.mmap(index).view(np.int64)
        return np.frombuffer(store.get(index) if data is None else data, np.int64)

    def _scan(self, name: str, index: str) -> IntArray:
        """Return the index of a shard without one, by its headers; cached."""
        store, path = self._store, self.path(name)
        if not self._said:
            self._said = True
            _log.warning("%s: no index: shards are scanned once and cached. %s", index, self._remake())
        key = f"{_SCAN_VERSION}-{file_key(store, 'webdataset', path)}"
        return DerivedCache().array(key, "int64", lambda: scan_shard(store, path).offsets)

    def _remake(self) -> str:
        return f"Create the index: {prepare_command(self._root, '--tar-index-only')}"

    def _misfit(self, shard: OpenShard, start: int, stop: int) -> Corrupt | Truncated:
        kind = Truncated if 0 <= start <= stop else Corrupt
        return kind(
            "the index of a shard doesn't match the shard", path=shard.path, offset_bytes=max(0, start),
            found=f"{shard.size_bytes} bytes", expected=f"a sample from byte {start} to {stop}",
            hint=f"Download the shard again, or: {self._remake()}",
        )  # fmt: skip

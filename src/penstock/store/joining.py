"""Staged files that are made of ranges of files of their own store, whose bytes need not be downloaded.

On a disk the kernel copies such ranges. In an object store the writer gets a `JoiningStore` instead: written bytes are
kept in the cache folder, ranges are remembered, and at the commit the store joins both, if it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from penstock.abc import Staged
from penstock.store._remote_output import publish, scratch_file
from penstock.store.base import Store
from penstock.store.compose import Extent, compose
from penstock.store.local import LocalStaged, output_exists
from penstock.store.put import aborting
from penstock.store.remote import RemoteStore
from penstock.types import Buffer

_STREAM_BYTES = 1 << 24


@runtime_checkable
class _TakesRanges(Protocol):
    """A staged file that takes ranges of files of its store."""

    def append_range(self, path: str, start_bytes: int, length_bytes: int) -> None: ...


def append_range(staged: Staged, store: Store, extent: Extent) -> None:
    """Append a range of another file of its store to a staged file.

    The kernel copies it on this machine, and the store itself if `staged` comes from a `JoiningStore`. Otherwise all
    bytes are read and written.

    Raises:
        NotFound: no such file.
        Truncated: it is too short.
    """
    path, start, length = extent
    if isinstance(staged, _TakesRanges):
        staged.append_range(path, start, length)
    elif store.is_local:
        staged.append_file(path, start, length)
    else:
        for chunk in _chunks(store, extent):
            staged.write(chunk)


def _chunks(store: Store, extent: Extent) -> Iterator[bytes]:
    path, start, length = extent
    for first in range(start, start + length, _STREAM_BYTES):
        yield store.get_ranges(path, [(first, min(start + length, first + _STREAM_BYTES))])[0]


def joining(store: Store, work: str | None) -> Store:
    """Return the store for a writer, whose files an object store may join itself.

    Args:
        store: where the files go.
        work: digest of the plan of other writers of the same output; None if the writer replaces an output.
    """
    remote = store.origin
    return JoiningStore(store, remote, work) if isinstance(remote, RemoteStore) else store


@dataclass(frozen=True, slots=True)
class JoiningStore(Store):
    """An object store whose staged files take ranges of its files; see `joining`.

    Attributes:
        whole: the store.
        remote: the same, without local copies.
        work: see `joining`.
    """

    whole: Store
    remote: RemoteStore
    work: str | None = None

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        return self.whole.get(path, start_bytes, length_bytes)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self.whole.get_ranges(path, ranges)

    def size(self, path: str) -> int:
        return self.whole.size(path)

    def exists(self, path: str) -> bool:
        return self.whole.exists(path)

    def is_folder(self, path: str) -> bool:
        return self.whole.is_folder(path)

    def list(self, prefix: str) -> Iterator[str]:
        return self.whole.list(prefix)

    def delete(self, path: str) -> None:
        self.whole.delete(path)

    def sweep(self, path: str) -> None:
        self.remote.sweep(path)

    def sweep_folder(self, path: str) -> None:
        self.remote.sweep_folder(path)

    def stage(self, path: str, *, overwrite: bool = False) -> JoinedStaged:
        """Start a file, or raise `ConfigError` if it exists and `overwrite` is false."""
        if not overwrite and self.remote.exists(path):
            raise output_exists(path)
        return JoinedStaged(self, path, overwrite, scratch_file(path))

    def commit(self, staged: Sequence[Staged]) -> None:
        publish(staged)


@dataclass(slots=True)
class JoinedStaged:
    """A staged file of a `JoiningStore`; see `penstock.abc.Staged`."""

    _store: JoiningStore
    path: str
    _overwrite: bool
    _here: LocalStaged
    _extents: list[Extent] = field(default_factory=list[Extent])
    _size_bytes: int = 0

    def write(self, data: Buffer) -> int:
        return self._grown(lambda: self._here.write(data))

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        """Overwrite written bytes at the start of the file."""
        self._here.write_at(offset_bytes, data)

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        found, place, stop_bytes = list[bytes](), 0, offset_bytes + length_bytes
        for path, start, length in self._extents:
            low, high = max(offset_bytes, place), min(stop_bytes, place + length)
            if low < high:
                first = start + low - place
                if path:
                    found += self._store.remote.get_ranges(path, [(first, first + high - low)])
                else:
                    found.append(self._here.read_at(first, high - low))
            place += length
        return b"".join(found)

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        return self._grown(lambda: self._here.append_file(path, start_bytes, length_bytes))

    def append_range(self, path: str, start_bytes: int, length_bytes: int) -> None:
        """Append a range of a file of the store."""
        if length_bytes:
            self._extents.append((path, start_bytes, length_bytes))
            self._size_bytes += length_bytes

    def tell(self) -> int:
        return self._size_bytes

    def sync(self) -> None:
        """Make the bytes that were written here durable."""
        self._here.sync()

    def commit(self) -> None:
        """Have the store join its ranges and the written bytes; otherwise upload all of them."""
        store = self._store
        try:
            self._here.sync()
            here = self._here.hidden_path
            extents = [(path or here, start, length) for path, start, length in self._extents]
            joins = any(path for path, _, _ in self._extents)
            if joins and compose(store.whole, extents, self.path, here=here, create=not self._overwrite):
                return
            with aborting(store.whole.stage(self.path, overwrite=self._overwrite)) as staged:
                for path, start, length in extents:
                    if path == here:
                        staged.append_file(path, start, length)
                    else:
                        append_range(staged, store.remote, (path, start, length))
                staged.commit()
        finally:
            self.abort()

    def abort(self) -> None:
        self._here.abort()

    def _grown(self, append: Callable[[], int]) -> int:
        """Append to the local file, which is a range without a path."""
        start = self._here.tell()
        added = append()
        last = self._extents[-1] if self._extents else None
        if last is not None and not last[0] and last[1] + last[2] == start:
            self._extents[-1] = ("", last[1], last[2] + added)
        elif added:
            self._extents.append(("", start, added))
        self._size_bytes += added
        return added

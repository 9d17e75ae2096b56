"""A store in a dict, for tests and small data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock.errors import ConfigError, NotFound, Truncated
from penstock.store._leftovers import Owned, listed, refuse_unlisted
from penstock.store.base import Range, Store
from penstock.store.local import LocalStore, output_exists
from penstock.store.lock import MemoryClaim
from penstock.types import Buffer


class MemoryStore(Store):
    """Store of files in a dict, path → bytes.

    Args:
        files: initial files.

    Examples:
        >>> from penstock.store import MemoryStore
        >>> store = MemoryStore({"data/a.txt": b"hello"})
        >>> list(store.list("data")), store.size("data/a.txt")
        (['data/a.txt'], 5)
    """

    __slots__ = ("_taken", "files")

    in_memory = stages_folders = has_claims = True

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files: dict[str, bytes] = {} if files is None else files
        self._taken: dict[str, int] = {}

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Return the bytes `[start, start + length)`, fewer only at the end of the file, or raise `NotFound`."""
        data = self._file(path)
        return data[start_bytes:] if length_bytes is None else data[start_bytes : start_bytes + length_bytes]

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return one bytes object per `(start_bytes, stop_bytes)`, or raise `Truncated`."""
        data = self._file(path)
        for start, stop in ranges:
            if stop > len(data):
                raise Truncated(
                    "the file ends before the end of a range", path=path, offset_bytes=start, expected=f"byte {stop}"
                )
        return [data[start:stop] for start, stop in ranges]

    def mmap(self, path: str) -> NDArray[np.uint8]:
        """Return the file as uint8[size_bytes], read-only."""
        return np.frombuffer(self._file(path), np.uint8)

    def size(self, path: str) -> int:
        """Return the size in bytes, or raise `NotFound`."""
        return len(self._file(path))

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory of this name."""
        return path in self.files or self.is_folder(path)

    def is_folder(self, path: str) -> bool:
        """Return whether there is a file below `path`."""
        return any(name.startswith(path.rstrip("/") + "/") for name in self.files)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield all files below the directory `prefix`, in byte order of their paths."""
        if not self.is_folder(prefix):
            raise NotFound("no such file or folder", path=prefix)
        start = prefix.rstrip("/") + "/"
        yield from sorted((name for name in self.files if name.startswith(start)), key=str.encode)

    def stage(self, path: str, *, overwrite: bool = False) -> MemoryStaged:
        """Start a file, or raise `ConfigError` if it exists and `overwrite` is false."""
        if not overwrite and path in self.files:
            raise output_exists(path)
        return MemoryStaged(self.files, path, overwrite=overwrite)

    def stage_folder(
        self, path: str, *, overwrite: bool = False, beside: str | None = None, own: Owned | None = None
    ) -> MemoryStagedFolder:
        """Start a directory; see `Store`."""
        if self.exists(path):
            if not overwrite:
                raise output_exists(path)
            self.require_replaceable(path, own)
        return MemoryStagedFolder(self, path, overwrite=overwrite, own=own)

    def claim(self, path: str, *, shared: bool = False) -> MemoryClaim:
        return MemoryClaim(self._taken, path, shared=shared)

    def require_replaceable(self, path: str, own: Owned | None) -> None:
        """Raise `ConfigError` if a file is at `path`, or the directory has files that its dataset doesn't list."""
        if path in self.files:
            raise ConfigError(
                "the existing output is not a folder", path=path, hint="Choose another output, or remove it"
            )
        names = set(listed(own, path) or ())
        refuse_unlisted(path, [name for name in self.names_in(path) if name not in names], names=bool(names))

    def names_in(self, path: str) -> list[str]:
        """Return the paths of the files in a directory, relative to it."""
        return [name[len(path.rstrip("/")) + 1 :] for name in self.list(path)]

    def delete(self, path: str) -> None:
        """Remove one file, or raise `NotFound`."""
        self._file(path)
        del self.files[path]

    def _file(self, path: str) -> bytes:
        try:
            return self.files[path]
        except KeyError:
            raise NotFound("no such file or folder", path=path) from None


class MemoryStaged:
    """One staged file of a `MemoryStore`; see `penstock.abc.Staged`."""

    __slots__ = ("_data", "_files", "_overwrite", "path")

    def __init__(self, files: dict[str, bytes], path: str, *, overwrite: bool) -> None:
        self.path = path
        self._files = files
        self._overwrite = overwrite
        self._data: bytearray | None = bytearray()

    def write(self, data: Buffer) -> int:
        view = byte_view(data)
        self._open += view
        return len(view)

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        view = byte_view(data)
        self._open[offset_bytes : offset_bytes + len(view)] = view

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        return bytes(self._open[offset_bytes : offset_bytes + length_bytes])

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        store = MemoryStore(self._files) if path in self._files else LocalStore()
        stop_bytes = store.size(path) if length_bytes is None else start_bytes + length_bytes
        return self.write(store.get_ranges(path, [(start_bytes, stop_bytes)])[0])

    def tell(self) -> int:
        return len(self._open)

    def sync(self) -> None:
        """Do nothing."""

    def commit(self) -> None:
        if not self._overwrite and self.path in self._files:
            self.abort()
            raise output_exists(self.path)
        self._files[self.path] = bytes(self._open)
        self._data = None

    def commit_as(self, path: str) -> bool:
        self.path = path
        if path in self._files:
            self.abort()
            return False
        self.commit()
        return True

    def abort(self) -> None:
        self._data = None

    @property
    def _open(self) -> bytearray:
        if self._data is None:
            raise ValueError(f"{self.path}: the staged file was already committed or aborted")
        return self._data

    @_open.setter
    def _open(self, data: bytearray) -> None:
        self._data = data


class MemoryStagedFolder:
    """One staged folder of a `MemoryStore`; see `penstock.store.base.StagedFolder`."""

    __slots__ = ("_files", "_overwrite", "_own", "_store", "path")

    def __init__(self, store: MemoryStore, path: str, *, overwrite: bool, own: Owned | None) -> None:
        self.path = path
        self._own = own
        self._store = store
        self._overwrite = overwrite
        self._files: dict[str, bytes] = {}

    def stage(self, name: str) -> MemoryStaged:
        return MemoryStaged(self._files, name, overwrite=False)

    def size(self, path: str) -> int:
        return len(self._files[path])

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [bytes(self._files[path][start:stop]) for start, stop in ranges]

    def commit(self, part: str | None = None, path: str | None = None) -> None:
        target = path or self.path
        if self._store.exists(target):
            if not self._overwrite:
                self.abort()
                raise output_exists(target)
            self._store.require_replaceable(target, self._own)
            for name in list(self._store.list(target)):
                self._store.delete(name)
        start = "" if part is None else part + "/"
        for name, data in self._files.items():
            if name.startswith(start):
                self._store.files[f"{target.rstrip('/')}/{name[len(start) :]}"] = data
        self.abort()

    def abort(self) -> None:
        self._files.clear()

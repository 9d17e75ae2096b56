"""Stores of bytes, and staged files, which appear whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from penstock.types import Buffer


class Staged(Protocol):
    """File that is invisible until `commit`.

    Contract: invisible before `commit`, durable after it. After `abort`, or if the process dies, the old file (or none)
    is there. `sync` makes the bytes durable without making them visible, so that several files can be synced first and
    then made visible one after another; see `Store.commit`.

    Examples:
        >>> from penstock.store import LocalStore
        >>> store = LocalStore()
        >>> staged = store.stage("notes.txt")
        >>> staged.write(b"hello")
        5
        >>> store.exists("notes.txt")
        False
        >>> staged.commit()
        >>> store.get("notes.txt")
        b'hello'
    """

    path: str
    """Final path of the file."""

    def write(self, data: Buffer) -> int:
        """Append, and return the number of bytes written (always all)."""
        ...

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        """Overwrite bytes already written, such as a header."""
        ...

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Return bytes already written, fewer only at their end."""
        ...

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        """Append a range of a local file, copied by the kernel if possible; return the bytes appended."""
        ...

    def tell(self) -> int:
        """Return the number of bytes appended so far."""
        ...

    def sync(self) -> None:
        """Make the bytes durable, but not yet visible."""
        ...

    def commit(self) -> None:
        """Sync the file, then make it visible under its final path, durably."""
        ...

    def abort(self) -> None:
        """Discard the file. A second call, or a call after `commit`, does nothing."""
        ...


class Store(Protocol):
    """Store of files. Paths are those of the store: plain paths in the local one.

    A store is thread-safe and picklable, because sources pass it to other threads and processes. An error about a path
    is one of `penstock.errors` with `path=`. A read-only store raises an error in `stage` and `delete`.

    Examples:
        >>> from penstock.abc import Store
        >>> from penstock.store import LocalStore, MemoryStore
        >>> def total_bytes(store: Store, folder: str) -> int:
        ...     return sum(store.size(path) for path in store.list(folder))
        >>> total_bytes(MemoryStore({"data/a": b"12345", "data/b": b"678"}), "data")
        8
        >>> total_bytes(LocalStore(), "pictures") > 0
        True
    """

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Return the bytes `[start, start + length)`, fewer only at the end of the file.

        Raises:
            NotFound: the file doesn't exist.
        """
        ...

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return one bytes object per `(start_bytes, stop_bytes)`, or raise `Truncated` if the file is shorter."""
        ...

    def size(self, path: str) -> int:
        """Return the size in bytes, or raise `NotFound`."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory of this name."""
        ...

    def is_folder(self, path: str) -> bool:
        """Return whether there is a directory of this name."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Yield all files below the directory `prefix`, in byte order of their paths, except staged ones.

        Raises:
            NotFound: the directory doesn't exist.
        """
        ...

    def stage(self, path: str, *, overwrite: bool = False) -> Staged:
        """Start a file.

        Raises:
            ConfigError: the file exists and `overwrite` is false (checked again at commit).
        """
        ...

    def commit(self, staged: Sequence[Staged]) -> None:
        """Sync all files, then make them visible in this order; the last one makes a dataset visible."""
        ...

    def delete(self, path: str) -> None:
        """Remove one file, or raise `NotFound`."""
        ...

"""Stores of bytes, and staged files, which appear whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from penstock.types import Buffer


class Staged(Protocol):
    """A file that is invisible until `commit`.

    Laws: invisible before `commit`; durable after it; after `abort`, or if the process dies, the old file
    (or none) is there. `sync` makes the bytes durable and leaves them invisible, so that several files are
    first all synced and then made visible one after another: see `Store.commit`.
    """

    path: str
    """The final path."""

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
        """`sync`, then make visible under the final path, durably."""
        ...

    def abort(self) -> None:
        """Discard the file. A second call, or a call after `commit`, does nothing."""
        ...


class Store(Protocol):
    """A place for files. Paths are those of the store: plain paths for the local one.

    A source takes its store to other threads and processes, so a store is thread-safe and picklable. An error of a
    path is one of `penstock.errors` with `path=`. A store that is only read refuses `stage` and `delete`.
    """

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Return the bytes `[start, start + length)`, fewer only at the end of the file.

        Raises:
            NotFound: no such file.
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
            NotFound: no such folder.
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

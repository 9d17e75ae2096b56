"""Where bytes are: stores, files and folders that appear whole, what is worked out once a host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview | NDArray[Any]


class Staged(Protocol):
    """A file that nobody sees until `commit`.

    Laws: invisible before `commit`; durable after it; after `abort`, or if the process dies, the old file
    (or none) is there. `sync` makes the bytes durable and leaves them invisible, so that several files are
    first all synced and then made visible one after another: see `Store.commit`.
    """

    path: str
    """The final path."""

    def write(self, data: Buffer) -> int:
        """Append; returns bytes written (always all of them)."""
        ...

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        """Overwrite bytes already written, such as a header."""
        ...

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Bytes already written; fewer only at their end."""
        ...

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        """Append a range of a local file, copied by the kernel where it can; returns bytes appended."""
        ...

    def tell(self) -> int:
        """Bytes appended so far."""
        ...

    def sync(self) -> None:
        """Make the bytes durable, still invisible."""
        ...

    def commit(self) -> None:
        """`sync`, then make visible under the final path, durably."""
        ...

    def abort(self) -> None:
        """Drop it. A second call, or a call after `commit`, does nothing."""
        ...


class Store(Protocol):
    """A place for files. Paths are those of the store: plain paths for the local one."""

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Bytes `[start, start + length)`; fewer only at the end of the file.

        Raises:
            NotFound: no such file.
        """
        ...

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """One bytes object for each `(start_bytes, stop_bytes)`; raises `Truncated` where the file is shorter."""
        ...

    def size(self, path: str) -> int:
        """Size in bytes; raises `NotFound`."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or a folder of this name is there."""
        ...

    def is_folder(self, path: str) -> bool:
        """Whether a folder of this name is there."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """All files under the folder `prefix`, in byte order of their paths, staged ones left out."""
        ...

    def stage(self, path: str, *, overwrite: bool = False) -> Staged:
        """Begin a file.

        Raises:
            ConfigError: the file exists and `overwrite` is false (asked again at commit).
        """
        ...

    def commit(self, staged: Sequence[Staged]) -> None:
        """Sync all, then make visible in the given order; the last is the one that makes a dataset visible."""
        ...

    def delete(self, path: str) -> None:
        """Remove one file; raises `NotFound`."""
        ...


@runtime_checkable
class SupportsMmap(Protocol):
    """A store whose files can be mapped."""

    def mmap(self, path: str) -> NDArray[np.uint8]:
        """uint8[size_bytes]: the file, mapped read-only; empty for an empty file."""
        ...


@runtime_checkable
class SupportsCopies(Protocol):
    """A remote store that keeps whole, checked local copies of its files.

    Laws: a copy is visible only when its size and hashes are right; a copy that is wrong raises `Corrupt` or
    `Truncated` and is not kept; whoever holds a mapping keeps its bytes though the copy be evicted.
    """

    def mapped_copy(
        self, path: str, *, size_bytes: int | None = None, hashes: Mapping[str, str] | None = None
    ) -> NDArray[np.uint8]:
        """uint8[size_bytes]: the whole file, fetched once a host and mapped read-only.

        Args:
            path: file in this store.
            size_bytes: the size that an index states.
            hashes: algorithm → lower-case hex digest that an index states; checked when the copy is made.
        """
        ...

    def expect_hashes(self, path: str, hashes: Mapping[str, str]) -> None:
        """Say what an index states of a file: whatever copy of it is used or made later is checked by it."""
        ...

    def local_copy(self, path: str, *, size_bytes: int | None = None, hashes: Mapping[str, str] | None = None) -> str:
        """Local path of the copy, for libraries that open files by name; it may be evicted after that."""
        ...


class StagedFolder(Protocol):
    """A folder of files that nobody sees until `commit`.

    Laws: as `Staged`, for the folder as a whole; where it replaces a folder, there is one or the other at any time.
    """

    path: str
    """The final path."""

    def stage(self, name: str) -> Staged:
        """Begin a file in it, by its path inside; its own `commit` makes it durable and leaves it hidden."""
        ...

    def commit(self, part: str | None = None, path: str | None = None) -> None:
        """Make it visible, durably; with `part`, that folder in it alone, under `path`.

        Raises:
            ConfigError: something stands there and `overwrite` is false.
        """
        ...

    def abort(self) -> None:
        """Drop it. A second call, or a call after `commit`, does nothing."""
        ...


@runtime_checkable
class SupportsExpectedReads(Protocol):
    """A store that plans by what is going to be read."""

    def expect_reads(self, reads: Mapping[str, tuple[int, int]]) -> None:
        """Say what comes: path → requests that it would take, and bytes of all of them."""
        ...


@runtime_checkable
class SupportsFolders(Protocol):
    """A store that can make whole folders visible at once."""

    def stage_folder(
        self,
        path: str,
        *,
        overwrite: bool = False,
        beside: str | None = None,
        own: Callable[[str], Collection[str] | None] | None = None,
    ) -> StagedFolder:
        """Begin a folder.

        Args:
            path: where it will be; an empty folder there counts as nothing.
            overwrite: replace a folder that is there, where `own` lists every file in it.
            beside: keep the hidden files next to this path; by default next to `path`.
            own: gives the files that a dataset in a folder lists itself, by their paths in it, the one that makes it
                visible last; None where none is there.

        Raises:
            ConfigError: something stands at `path` and `overwrite` is false, or it is more than `own` lists (asked
                again at commit).
        """
        ...


@runtime_checkable
class SupportsLinks(Protocol):
    """A store whose files can have several names."""

    def link(self, path: str, name: str) -> bool:
        """Give a file a second name, durably and in one step in the place of a file of that name.

        Returns:
            False where the file system has no such names; nothing is changed then.
        """
        ...


class Derived(Protocol):
    """Things computed once a host and mapped: decoded document starts, plans, permutations."""

    def array(self, key: str, dtype: str, build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The 1-d array stored under `key`, built under a lock where it is missing; read-only and mapped.

        `key` is a digest of all that the array depends on: fingerprint, parameters, version.
        """
        ...

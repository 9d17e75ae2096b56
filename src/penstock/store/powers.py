"""Protocols of Penstock's own stores, for its own formats; no plug-in implements them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.abc import Staged, Store
from penstock.store._objects import Head
from penstock.store._ranges import Range
from penstock.store._traffic import Counters, Traffic


@runtime_checkable
class CopyingStore(Protocol):
    """A remote store that keeps whole, checked local copies of its files.

    Laws: a copy is visible only when its size and hashes are right; a copy that is wrong raises `Corrupt` or
    `Truncated` and is not kept; a mapping keeps its bytes after the copy is evicted.
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
        """Set the hashes that an index states for a file: every copy of it, present or later, is checked by them."""
        ...

    def expect_size(self, path: str, size_bytes: int, *, exact: bool = True) -> None:
        """Set the size that an index states for a file: it is not asked for, and held against the first answer.

        Without `exact` it is about that, of a file that an index names: by it the way to read it is chosen.
        """
        ...

    def survey(self, folder: str, most: int) -> None:
        """List a folder that will be read, of up to so many files: of what is there, or is not, nothing more is asked.

        Not for writers.
        """
        ...

    def local_copy(self, path: str, *, size_bytes: int | None = None, hashes: Mapping[str, str] | None = None) -> str:
        """Local path of the copy, for libraries that open files by name; it may be evicted after that."""
        ...

    def prefetch(self, reads: Mapping[str, tuple[int, int]]) -> None:
        """Hint what will be read: path → number of requests, and bytes of all of them."""
        ...

    def peek(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """`get_ranges` of a few bytes that say nothing of what else will be read: no reason to fetch the file whole."""
        ...

    def version(self, path: str) -> str:
        """Names the version of a file, as far as this process knows it without a request; else `""`."""
        ...

    def stats(self) -> Traffic:
        """What this process asked for and fetched."""
        ...

    def copied_to(self, path: str) -> str | None:
        """Local path of a file's copy; None where there is none that can be had without a request."""
        ...

    def forget(self, path: str) -> None:
        """Forget what is known of a file, such as where its copy is."""
        ...

    def capacity_bytes(self) -> int:
        """What all copies together may take; looks at all of them where no budget is set."""
        ...

    @property
    def folder(self) -> str | None:
        """The cache folder; None for the user's."""
        ...


@runtime_checkable
class PeekingStore(Protocol):
    """A remote store that tells what is in a folder by one request, however much that is."""

    def first_names(self, path: str) -> list[str]:
        """Some files under a folder, by their paths in it; none where the store does not list."""
        ...


@runtime_checkable
class ListsLevels(Protocol):
    """A remote store that tells what lies right in a folder, without what lies in the folders in it."""

    def level(self, folder: str) -> tuple[list[str], list[str]]:
        """Names of folders, and of files, in no order; none where the store does not list, or nothing is there."""
        ...


class Remote(Store, Protocol):
    """A store that is far away."""

    def head(self, path: str) -> Head:
        """Size and version of a file; raises `NotFound`."""
        ...

    def fetch(self, path: str, ranges: Sequence[Range]) -> tuple[list[bytes], Head]:
        """`get_ranges`, and size and version of the file that they are of.

        Raises:
            RangesIgnored: only whole files can be had.
        """
        ...

    @property
    def counters(self) -> Counters:
        """Counts the requests and bytes."""
        ...


@runtime_checkable
class MayListNothing(Protocol):
    """A remote store that may be one without listings, as a web server is: there, what is no file may be a folder."""

    @property
    def lists_nothing(self) -> bool:
        """Whether it is one."""
        ...


@runtime_checkable
class FetchesStarts(Protocol):
    """A remote store that gives the beginning of a file of which nothing is known, and what it is, by one request."""

    def fetch_start(self, path: str, length_bytes: int | None = None, /) -> tuple[bytes, Head]:
        """The first bytes, all of a small file, and size and version; raises `NotFound` and `RangesIgnored`."""
        ...


@runtime_checkable
class ListsHeads(Protocol):
    """A remote store whose listings say of each file what an answer would."""

    def heads_under(self, folder: str, most: int, /) -> Mapping[str, Head] | None:
        """Path → size and version of all files under a folder; None where there are more than `most`, or unknown."""
        ...


class Readable(Protocol):
    """Files that can be read: those of a store, or of a staged folder by their names in it."""

    def size(self, path: str, /) -> int:
        """Size in bytes."""
        ...

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]], /) -> list[bytes]:
        """One bytes object for each `(start_bytes, stop_bytes)`, all inside the file."""
        ...


class StagedFolder(Readable, Protocol):
    """A folder of files that is invisible until `commit`.

    Laws: as `Staged`, for the folder as a whole; where it replaces a folder, there is one or the other at any time.
    """

    path: str
    """The final path."""

    def stage(self, name: str) -> Staged:
        """Start a file in it, by its path inside; its own `commit` makes it durable, leaves it hidden, and readable."""
        ...

    def commit(self, part: str | None = None, path: str | None = None) -> None:
        """Make it visible, durably; with `part`, that folder in it alone, under `path`.

        Raises:
            ConfigError: something stands there and `overwrite` is false.
        """
        ...

    def abort(self) -> None:
        """Discard the file. A second call, or a call after `commit`, does nothing."""
        ...


@runtime_checkable
class NamedLate(Protocol):
    """A staged file whose name may be chosen when it is committed: one that tells its content."""

    def commit_as(self, path: str) -> bool:
        """`Staged.commit` under another name in the same folder; false where one of that name is there already."""
        ...


@runtime_checkable
class FolderStore(Protocol):
    """A store that can make whole folders visible at once."""

    def stage_folder(
        self,
        path: str,
        *,
        overwrite: bool = False,
        beside: str | None = None,
        own: Callable[[str], Collection[str] | None] | None = None,
    ) -> StagedFolder:
        """Start a folder.

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

"""Base class of all stores: optional features are flags, or methods with a default.

A store that doesn't override `stage` and `delete` is read-only. `adapted` wraps a plug-in's store that only implements
`penstock.abc.Store`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock import abc
from penstock.abc import Staged, SupportsMmap
from penstock.errors import Corrupt, FormatError, NotFound, Truncated, Unsupported
from penstock.store._leftovers import Kept
from penstock.store._links import LinkGuard
from penstock.store._local_staged import LocalStagedFiles
from penstock.store.lock import Claim
from penstock.store.transaction import Transaction
from penstock.types import Buffer

Range = tuple[int, int]
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Head:
    """Size and version of a remote file.

    Attributes:
        size_bytes: size of the file.
        version: identifier of this version (ETag), without the prefix of a weak one; `""` if unknown.
        modified: time of the last change, as text; `""` if unknown.
    """

    size_bytes: int
    version: str
    modified: str = ""

    @property
    def identity(self) -> str:
        """Identifier of this version of the file; `""` if there is none."""
        return self.version or self.modified

    def contradicts(self, other: Head) -> bool:
        """Return whether these can't describe the same version; unknown values contradict nothing."""
        if self.size_bytes != other.size_bytes:
            return True
        if self.version and other.version:
            return self.version != other.version
        return bool(self.modified and other.modified) and self.modified != other.modified


class RangesIgnored(Unsupported):
    """A server that ignores ranges and sends the whole file."""


class Store:
    """Store of files; see `penstock.abc.Store` for the contract of the first nine methods.

    Attributes:
        is_local: the files are on this machine, under their own paths.
        in_memory: the files only exist in this process.
        server: scheme and host, or scheme and bucket, of all paths; empty for other stores.
        keeps_copies: a remote store that keeps whole, checked local copies of its files (`CachedStore`).
        stages_folders: whole folders become visible at once (`stage_folder`).
        has_claims: `claim` excludes other writers; otherwise an object in the store does; see `store._remote_output`.
        lists_levels: `first_names` and `level` are available: a remote store.
        read_only: error text of a store that can't be written.
        read_only_hint: its hint.
        guard: rejects links out of a dataset's directory; None allows them.
        replaces_planes: writers replace tokens together with their planes.
    """

    __slots__ = ()

    is_local: bool = False
    in_memory: bool = False
    keeps_copies: bool = False
    stages_folders: bool = False
    has_claims: bool = False
    lists_levels: bool = False
    read_only: str = "this store is read-only"
    read_only_hint: str | None = None
    guard: LinkGuard | None = None
    replaces_planes: bool = False

    # --- every store ---------------------------------------------------------------------------------------------

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Return the bytes `[start, start + length)`, fewer only at the end of the file, or raise `NotFound`."""
        size_bytes = self.size(path)
        stop_bytes = size_bytes if length_bytes is None else min(size_bytes, start_bytes + length_bytes)
        return self.get_ranges(path, [(start_bytes, stop_bytes)])[0] if start_bytes < stop_bytes else b""

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return one bytes object per `(start_bytes, stop_bytes)`, or raise `Truncated`."""
        raise Unsupported("this store can't read files", path=path)

    def size(self, path: str) -> int:
        """Return the size in bytes, or raise `NotFound`."""
        raise Unsupported("this store can't read files", path=path)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory of this name."""
        raise Unsupported("this store can't read files", path=path)

    def is_folder(self, path: str) -> bool:
        """Return whether there is a directory of this name."""
        return False

    def list(self, prefix: str) -> Iterator[str]:
        """Yield all files below the directory `prefix`, in byte order of their paths, except staged ones."""
        return iter(())

    def stage(self, path: str, *, overwrite: bool = False) -> Staged:
        """Start a file, or raise `ConfigError` if it exists and `overwrite` is false."""
        self._refuse(path)

    def stage_new(self, path: str) -> Staged:
        """Start a file that must be new. A remote store finds out at the commit, without a further request."""
        return self.stage(path)

    def commit(self, staged: Sequence[Staged]) -> None:
        """Sync all files, then publish them in order: a file is visible only after the earlier ones are durable."""
        for file in staged:
            file.sync()
        for file in staged:
            file.commit()

    def delete(self, path: str) -> None:
        """Remove one file, or raise `NotFound`."""
        self._refuse(path)

    def delete_listed(self, paths: Iterable[str]) -> None:
        """Remove files that a listing named, without asking whether they still exist."""
        for path in paths:
            with contextlib.suppress(NotFound):
                self.delete(path)

    def _refuse(self, path: str) -> NoReturn:
        raise Unsupported(self.read_only, path=path, hint=self.read_only_hint)

    # --- views and commits ---------------------------------------------------------------------------------------

    @property
    def server(self) -> str:
        return ""

    def view(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> NDArray[np.uint8]:
        """Return the bytes of `get` as uint8[k], mapped if the store can map files."""
        if not isinstance(self, SupportsMmap):
            return np.frombuffer(self.get(path, start_bytes, length_bytes), np.uint8)
        return self.mmap(path)[start_bytes : None if length_bytes is None else start_bytes + length_bytes]

    @contextlib.contextmanager
    def reader(self, path: str) -> Generator[tuple[Callable[[int, int], bytes], int]]:
        """Yield a function that reads the bytes `[start, stop)` of a file, and the file's size in bytes."""
        yield (lambda start, stop: self.get(path, start, stop - start)), self.size(path)

    def stored_in(self, paths: Iterable[str]) -> tuple[Store, Iterable[str]]:
        """Return the files that contain the files at `paths`, and their store."""
        return self, paths

    @property
    def origin(self) -> Store:
        """Underlying store of a cache, or this store; reads from it see the current files."""
        return self

    def within(self, path: str | None) -> Store:
        """Return this store for the dataset at `path`, without links out of its directory; None allows all links."""
        return self

    def real_path(self, path: str) -> str:
        """Return the path of a file that is opened by name, or raise `UnsafeData` if a link leaves the dataset."""
        return path

    def current_path(self, path: str) -> str:
        """Return where a file is now: during a commit, in the staging directory."""
        return path

    def keeping(self, kept: Kept) -> Store:
        """Return this store for writers that continue the staged files of a killed run, if it can."""
        return self

    def replacing_planes(self) -> Store:
        """Return this store for writers that replace tokens together with their planes."""
        return self

    def read_committed(self, path: str, read: Callable[[Store], ResultT]) -> ResultT:
        """Call `read` with a store that shows the output at `path` as of its last commit."""
        return read(self)

    def reading_commit(self, path: str) -> Store:
        """Return the store of `read_committed`, for readers that tolerate a concurrent commit."""
        return self

    # --- writing on this machine ---------------------------------------------------------------------------------

    def stage_folder(
        self,
        path: str,
        *,
        overwrite: bool = False,
        beside: str | None = None,
        own: Callable[[str], Collection[str] | None] | None = None,
    ) -> StagedFolder:
        """Start a folder that becomes visible at once; only if `stages_folders`.

        Args:
            path: final path; an empty folder there counts as missing.
            overwrite: replace a folder if `own` lists every file in it.
            beside: keep the hidden files next to this path; by default next to `path`.
            own: returns the files that a dataset in a folder lists, as relative paths, the one that makes it visible
                last; None if there is no dataset.

        Raises:
            ConfigError: `path` exists and `overwrite` is false, or it contains more than `own` lists (checked again at
                commit).
        """
        raise Unsupported("this store can't publish a folder at once", path=path)

    def claim(self, path: str, *, shared: bool = False) -> Claim:
        """Claim an output until `release`, jointly with other `shared` claims; `path` must not be a link.

        Raises:
            PrepareError: another writer holds it.
        """
        return Claim()

    def holding(self, claim: Claim) -> Store:
        """Return this store for writers that share `claim`."""
        return self

    def stage_files(self, folder: str) -> LocalStagedFiles:
        """Start small files in an existing directory that become visible together."""
        raise Unsupported("this store can't publish several files at once", path=folder)

    def transaction(self, path: str) -> Transaction | None:
        """Return a writer of the output that `path` identifies and the caller has claimed; None if unsupported."""
        return None

    def link(self, path: str, name: str) -> bool:
        """Hard-link a file to a second name, replacing a file of that name; return False if there are no hard links."""
        return False

    def move_new(self, path: str, target: str) -> bool:
        """Move a local file or directory in one file system, durably; return False if the target exists."""
        raise Unsupported("this store can't move local files", path=target)

    def rename(self, path: str, name: str) -> None:
        """Rename a file in its directory, durably and atomically, replacing a file of that name."""
        raise Unsupported("this store can't rename files", path=path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory tree without following links; files that can't be removed stay."""

    def remove_folder(self, path: str) -> None:
        """Remove one empty directory; object stores have none."""

    def sweep(self, path: str) -> None:
        """Remove what killed writers of a visible file left."""

    def sweep_folder(self, path: str) -> None:
        """Remove what killed writers left in a folder whose dataset is complete."""

    # --- remote stores -------------------------------------------------------------------------------------------

    @property
    def lists_nothing(self) -> bool:
        """Whether this store can't list files, such as a web server: any path that isn't a file may be a folder."""
        return False

    def first_names(self, path: str) -> list[str]:
        """Return relative paths of some files under a folder, by one request; none if the store can't list."""
        return []

    def level(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the names of the folders and of the files directly in a folder, unordered; empty if unknown."""
        return [], []

    def head(self, path: str) -> Head:
        """Return size and version of a file, or raise `NotFound`."""
        return Head(self.size(path), "")

    def heads_under(self, folder: str, most: int) -> Mapping[str, Head] | None:
        """Return path → size and version of all files under a folder, or None if unknown or more than `most`."""
        return None

    def version(self, path: str) -> str:
        """Return the version of a file if this process has it without a request, else `""`."""
        return ""

    def peek(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Return a few bytes like `get_ranges`, without counting them as a reason to fetch the whole file."""
        return self.get_ranges(path, ranges)

    def prefetch(self, reads: Mapping[str, tuple[int, int]]) -> None:
        """Announce future reads: path → number of requests, and their total size in bytes."""

    def survey(self, folder: str, most: int) -> None:
        """List a folder of up to `most` files that will be read, so that no request per file is needed."""

    # --- copies of remote files ----------------------------------------------------------------------------------

    def mapped_copy(
        self, path: str, *, size_bytes: int | None = None, hashes: Mapping[str, str] | None = None
    ) -> NDArray[np.uint8]:
        """Return the whole file as uint8[size_bytes], fetched once per host and mapped read-only.

        A copy is visible only when its size and hashes are right. A mapping keeps its bytes after the copy is evicted.

        Args:
            path: file in this store.
            size_bytes: size recorded in an index.
            hashes: algorithm → lower-case hex digest recorded in an index; checked when the copy is made.

        Raises:
            NotFound: no such file.
            Truncated, Corrupt: its size or hashes differ.
            ConfigError: it is larger than the cache limit, or than the limit for files in memory.
        """
        raise Unsupported("this store keeps no local copies", path=path)

    def local_copy(self, path: str, *, size_bytes: int | None = None, hashes: Mapping[str, str] | None = None) -> str:
        """Return the local path of a copy, for libraries that open files by name; it may be evicted later."""
        raise Unsupported("this store keeps no local copies", path=path)

    def copied_to(self, path: str) -> str | None:
        """Return the local path of a file's copy, or None if no copy is available without a request."""
        return None

    def expect_hashes(self, path: str, hashes: Mapping[str, str]) -> None:
        """Set the hashes that an index records for a file; every copy of it is checked against them."""

    def expect_size(self, path: str, size_bytes: int, *, exact: bool = True) -> None:
        """Set the size that an index records for a file, which saves a request; without `exact`, a rough size."""

    def check_copies(self) -> None:
        """Check every copy against its digest before it is used, regardless of its record."""

    def forget(self, path: str) -> None:
        """Drop this process's cached information about a file."""

    def capacity_bytes(self) -> int:
        """Return the limit on the size of all copies together."""
        return 0

    @property
    def folder(self) -> str | None:
        """Cache folder, or None for the user's."""
        return None


class View(Store):
    """A store that forwards its calls to another one, `inner`, except for those that a subclass overrides."""

    def __init__(self, inner: abc.Store) -> None:
        self.inner = inner

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        return self.inner.get(path, start_bytes, length_bytes)

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        return self.inner.get_ranges(path, ranges)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_folder(self, path: str) -> bool:
        return self.inner.is_folder(path)

    def list(self, prefix: str) -> Iterator[str]:
        return self.inner.list(prefix)

    def stage(self, path: str, *, overwrite: bool = False) -> Staged:
        return self.inner.stage(path, overwrite=overwrite)

    def commit(self, staged: Sequence[Staged]) -> None:
        self.inner.commit(staged)

    def delete(self, path: str) -> None:
        self.inner.delete(path)


class _MappedView(View):
    def mmap(self, path: str) -> NDArray[np.uint8]:
        inner: Any = self.inner
        return inner.mmap(path)


def adapted(store: abc.Store) -> Store:
    """Return `store` itself if it is a `Store`, else a view of it with the defaults of all other methods."""
    if isinstance(store, Store):
        return store
    return _MappedView(store) if isinstance(store, SupportsMmap) else View(store)


class StagedView:
    """A staged file that forwards its calls to another one; see `penstock.abc.Staged`."""

    __slots__ = ("path", "staged")

    def __init__(self, staged: Staged) -> None:
        self.staged = staged
        self.path = staged.path

    def write(self, data: Buffer) -> int:
        return self.staged.write(data)

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        self.staged.write_at(offset_bytes, data)

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        return self.staged.read_at(offset_bytes, length_bytes)

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        return self.staged.append_file(path, start_bytes, length_bytes)

    def tell(self) -> int:
        return self.staged.tell()

    def sync(self) -> None:
        self.staged.sync()

    def commit(self) -> None:
        self.staged.commit()

    def abort(self) -> None:
        self.staged.abort()


class Readable(Protocol):
    """Files that can be read: those of a store, or of a staged folder by relative paths."""

    def size(self, path: str, /) -> int: ...

    def get_ranges(self, path: str, ranges: Sequence[Range], /) -> list[bytes]: ...


class StagedFolder(Readable, Protocol):
    """A folder of files that is invisible until `commit`.

    The contract of `Staged` applies to the folder as a whole. If it replaces a folder, either the old or the new one
    exists at any time.
    """

    path: str
    """Final path of the folder."""

    def stage(self, name: str) -> Staged:
        """Start a file at a relative path; its `commit` makes it durable and readable here, but leaves it hidden."""
        ...

    def commit(self, part: str | None = None, path: str | None = None) -> None:
        """Publish the folder durably, or only the subfolder `part` under `path`; raise `ConfigError` if it exists."""
        ...

    def abort(self) -> None:
        """Discard the folder. A second call, or a call after `commit`, does nothing."""
        ...


@runtime_checkable
class NamedLate(Protocol):
    """A staged file whose name may be chosen at its commit, because the name depends on the content."""

    def commit_as(self, path: str) -> bool:
        """Commit under another name in the same folder; return False if that name exists."""
        ...


def require_inside(path: str, ranges: Sequence[Range], size_bytes: int) -> None:
    """Raise `Truncated` if a range ends after the end of the file."""
    for start, stop in ranges:
        if stop > size_bytes:
            found, expected = f"{size_bytes} bytes", f"at least {stop} bytes"
            what = "the file ends before the end of a range"
            raise Truncated(what, path=path, offset_bytes=start, found=found, expected=expected)


def changed_while_read(path: str, found: str, expected: str, kind: type[FormatError] = Corrupt) -> FormatError:
    """Return the error for a file that changed since it was opened."""
    hint = "Don't replace a dataset while it is being read; open it again"
    return kind("the file changed while it was being read", path=path, found=found, expected=expected, hint=hint)

"""Local files: reads, maps, and the only code that makes bytes durable.

A staged file is next to its final path as `.<name>.<8 hex>.staged`, a function of its name (`_leftovers.py`), locked by
its writer with `flock`. A commit is flush, fsync(file), link or rename, fsync(folder). A killed process leaves at most
such a staged file, never a partial final file. The next `stage` of the same path removes leftovers of dead writers, or
continues one of them. A staged folder works the same way: its files and folders are fsynced, then the whole folder is
renamed, or exchanged with the folder that it replaces.

Every system call goes through the `os` module given to `LocalStore`, so that `penstock.testing.FaultStore` can inject
errors, partial writes and kills into any call.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._regular import open_descriptor, require_regular
from penstock.errors import NotFound, Truncated
from penstock.store._files import (
    NO_SECOND_NAME,
    TAKEN,
    NamingOs,
    a_folder,
    cannot_open,
    cannot_read,
    files_below,
    is_folder,
    is_free,
    is_link,
    is_there,
    make_folders,
    not_found,
    output_exists,
    read_range,
    remove_tree,
    require_movable,
    require_no_url,
    require_replaceable_file,
    status_of,
    sync_folder,
)
from penstock.store._leftovers import Kept, Owned, drop_second_names, give_name, require_replaceable
from penstock.store._links import LinkGuard
from penstock.store._local_staged import LocalStaged, LocalStagedFiles, LocalStagedFolder, sweep_indexes
from penstock.store.base import Store
from penstock.store.lock import Claim, LocalClaim
from penstock.store.mapped import map_open
from penstock.store.names import NEXT, TOGETHER
from penstock.store.transaction import OutputFiles, Transaction, complete_commit, output_files, paths_of, read_committed

ResultT = TypeVar("ResultT")
_NONE: Mapping[str, str] = MappingProxyType({})


class LocalStore(Store):
    """Store for the files of this machine. It is stateless, safe in threads and after fork, and picklable.

    Args:
        os_module: module for all system calls.
        kept: continue the files of killed writers if their bytes agree, and count the reused bytes; by default such
            files are removed.
        claim: claim on an output; writers of this store join it.
        guard: rejects links out of a dataset's directory; None follows them.
        replaces_planes: writers replace tokens together with their planes; otherwise replacing tokens with planes is an
            error.
        staged: path of a file → where it is during a commit; see `reading_commit`.

    Examples:
        >>> from penstock.store import LocalStore
        >>> store = LocalStore()
        >>> store.get("docs.jsonl", 0, 10)
        b'{"id": "a1'
        >>> store.exists("chat-mds"), store.is_folder("chat-mds")
        (True, True)
    """

    __slots__ = ("_claim", "_kept", "_os", "_staged", "guard", "replaces_planes")

    is_local = stages_folders = has_claims = True

    def __init__(
        self,
        os_module: Any = os,
        *,
        kept: Kept | None = None,
        claim: LocalClaim | None = None,
        guard: LinkGuard | None = None,
        replaces_planes: bool = False,
        staged: Mapping[str, str] = _NONE,
    ) -> None:
        self._os = os_module
        self._kept = kept
        self._claim = claim
        self.guard = guard
        self.replaces_planes = replaces_planes
        self._staged = staged

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(LocalStore, guard=self.guard), () if self._os is os else (self._os,))

    def __repr__(self) -> str:
        return "LocalStore()"

    # --- reading -------------------------------------------------------------------------------------------------

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Return the bytes `[start, start + length)`, fewer only at the end of the file, or raise `NotFound`."""
        with self.opened(path) as fd:
            status = self._os.fstat(fd)
            require_regular(status, path)
            left_bytes = max(0, status.st_size - start_bytes)
            length_bytes = left_bytes if length_bytes is None else min(left_bytes, length_bytes)
            return read_range(self._os, fd, start_bytes, length_bytes)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return one bytes object per `(start_bytes, stop_bytes)`, opening the file once, or raise `Truncated`."""
        with self.opened(path) as fd:
            pieces = [read_range(self._os, fd, start, stop - start) for start, stop in ranges]
        for (start, stop), data in zip(ranges, pieces, strict=True):
            if len(data) != stop - start:
                found, expected = f"{len(data)} bytes", f"{stop - start} bytes"
                what = "the file ends before the end of a range"
                raise Truncated(what, path=path, offset_bytes=start, found=found, expected=expected)
        return pieces

    def mmap(self, path: str) -> NDArray[np.uint8]:
        """Return the file as uint8[size_bytes], mapped read-only, or raise `NotFound`."""
        with self.opened(path) as fd:
            status = self._os.fstat(fd)
            require_regular(status, path)
            if stat.S_ISDIR(status.st_mode):
                raise a_folder(path)
            return map_open(fd, status.st_size)

    @contextlib.contextmanager
    def reader(self, path: str) -> Generator[tuple[Callable[[int, int], bytes], int]]:
        """Open the file once; see `Store`."""
        named = NamingOs(os, path)
        with self.opened(path) as fd:
            status = named.fstat(fd)
            require_regular(status, path)
            yield (lambda start, stop: named.pread(fd, stop - start, start)), status.st_size

    def size(self, path: str) -> int:
        """Return the size of a file in bytes, or raise `NotFound`, also for a directory."""
        try:
            status = self._os.stat(self.current_path(path))
        except (OSError, ValueError) as error:
            raise cannot_open(error, path) from None
        if stat.S_ISDIR(status.st_mode):
            raise NotFound("this is a folder, not a file", path=path)
        require_regular(status, path)
        return status.st_size

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory of this name."""
        return status_of(self._os.lstat, self.current_path(path)) is not None

    def is_folder(self, path: str) -> bool:
        """Return whether `path` is a directory."""
        return (status := status_of(self._os.stat, path)) is not None and stat.S_ISDIR(status.st_mode)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield all files below the directory `prefix`, in byte order of their relative paths, except staged ones."""
        if not self.is_folder(prefix):
            raise not_found(prefix)
        yield from files_below(prefix)

    # --- writing -------------------------------------------------------------------------------------------------

    def stage(self, path: str, *, overwrite: bool = False) -> LocalStaged:
        """Start a file and make missing directories; raise `ConfigError` if it exists and `overwrite` is false."""
        require_no_url(path)
        self.require_target(path)
        if overwrite:
            require_replaceable_file(path)
            require_movable(path)
        elif is_there(path):
            self.sweep(path)
            raise output_exists(path)
        return LocalStaged(self._os, path, overwrite=overwrite, kept=self._kept)

    def stage_folder(
        self, path: str, *, overwrite: bool = False, beside: str | None = None, own: Owned | None = None
    ) -> LocalStagedFolder:
        """Start a directory; see `Store`."""
        require_no_url(path)
        self.require_target(path)
        if not is_free(path):
            if not overwrite:
                raise output_exists(path)
            require_replaceable(path, own)
            require_movable(path)
        return LocalStagedFolder(self._os, path, overwrite=overwrite, beside=beside, kept=self._kept, own=own)

    def stage_files(self, folder: str) -> LocalStagedFiles:
        require_no_url(folder)
        self.require_target(os.path.join(folder, TOGETHER))
        return LocalStagedFiles(self._os, folder)

    def claim(self, path: str, *, shared: bool = False) -> Claim:
        require_no_url(path)
        self.require_target(path)
        if self._claim is not None and os.path.realpath(path) == os.path.realpath(self._claim.path):
            return Claim()
        os_module = NamingOs(self._os, path)
        claim = LocalClaim(os_module, path, shared=shared)
        try:
            if not shared:
                complete_commit(output_files(path), os_module)
        except BaseException:
            claim.release()
            raise
        return claim

    def transaction(self, path: str) -> Transaction:
        require_no_url(path)
        self.require_target(path)
        files = output_files(path)
        return Transaction(files, "", claim=Claim(), kept=self._kept, os_module=self._os)

    def read_committed(self, path: str, read: Callable[[LocalStore], ResultT]) -> ResultT:
        files = output_files(os.path.realpath(path) if is_link(path) else path)
        return read_committed(files, lambda paths: read(self._reading(files, paths)))

    def reading_commit(self, path: str) -> LocalStore:
        files = output_files(os.path.realpath(path) if is_link(path) else path)
        return self._reading(files, paths_of(files)) if is_there(files.log_path) else self

    def _reading(self, files: OutputFiles, paths: Mapping[str, str | None]) -> LocalStore:
        moved: dict[str, str] = {}
        for name, path in paths.items():
            final = os.path.join(os.path.realpath(files.folder), name)
            if path is None and is_there(final):
                moved[final] = f"{final}/"  # to be removed: a path that no file can have
            elif path is not None and path != files.path_of(name):
                moved[final] = path
        return self._with(staged={**self._staged, **moved}) if moved else self

    def current_path(self, path: str) -> str:
        staged = self._staged.get(os.path.realpath(path)) if self._staged else None
        return path if staged is None or not (staged.endswith("/") or is_there(staged)) else staged

    def holding(self, claim: Claim) -> LocalStore:
        return self._with(claim=claim) if isinstance(claim, LocalClaim) else self

    def replacing_planes(self) -> LocalStore:
        return self._with(replaces_planes=True)

    def keeping(self, kept: Kept) -> LocalStore:
        return self._with(kept=kept)

    def within(self, path: str | None) -> LocalStore:
        guard = None if path is None else LinkGuard(path)
        return self._with(guard=guard)

    def _with(self, **changed: Any) -> LocalStore:
        same: dict[str, Any] = {
            "kept": self._kept,
            "claim": self._claim,
            "guard": self.guard,
            "replaces_planes": self.replaces_planes,
            "staged": self._staged,
        }
        return LocalStore(self._os, **(same | changed))

    def require_target(self, path: str) -> None:
        """Raise `UnsafeData` if a link leads writes at `path` out of the dataset's directory."""
        if self.guard is not None:
            self.guard.require_target(path)

    def real_path(self, path: str) -> str:
        path = self.current_path(path)
        return path if self.guard is None else self.guard.require(path)

    def delete(self, path: str) -> None:
        """Remove one file, or raise `NotFound`."""
        self.require_target(path)
        try:
            self._os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found(path) from None

    def sweep(self, path: str) -> None:
        """Remove leftovers of a writer that was killed just after its file became visible."""
        drop_second_names(self._os, path)
        sweep_indexes(self._os, path, [f".idx{NEXT}"])  # the old index of a file that was replaced

    def link(self, path: str, name: str) -> bool:
        self.require_target(name)
        return give_name(self._os, path, name)

    def rename(self, path: str, name: str) -> None:
        self._os.rename(path, name)
        sync_folder(self._os, os.path.dirname(os.path.abspath(name)))

    def move_new(self, path: str, target: str) -> bool:
        self.require_target(target)
        for made in make_folders(self._os, os.path.dirname(os.path.abspath(target))):
            sync_folder(self._os, os.path.dirname(made))
        try:
            if is_folder(path):
                self._os.rename(path, target)
            else:
                self._os.link(path, target)
                self._os.unlink(path)
        except OSError as error:
            if error.errno in TAKEN:
                return False
            if error.errno not in NO_SECOND_NAME:
                raise
            if is_there(target):
                return False
            self._os.rename(path, target)
        sync_folder(self._os, os.path.dirname(os.path.abspath(target)))
        return True

    def remove_tree(self, path: str) -> None:
        remove_tree(self._os, path)

    def remove_folder(self, path: str) -> None:
        self._os.rmdir(path)

    @contextlib.contextmanager
    def opened(self, path: str) -> Generator[int]:
        """Yield a descriptor of the file, open for reading, or raise `NotFound` or `UnsafeData`."""
        path = self.current_path(path)
        try:
            fd = open_descriptor(path, self._os)
        except (OSError, ValueError) as error:
            raise cannot_open(error, path) from None
        try:
            if self.guard is not None:
                self.guard.check_open(path, fd)
            yield fd
        except OSError as error:
            raise cannot_read(error, path) from None
        finally:
            self._os.close(fd)

"""Stores that write nothing, for dry runs.

An output is opened in such a store by the same code as in a real one, so it fails for the same reasons, including
missing permissions and the claims of other writers. New files are only visible in this store.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from penstock.abc import Staged
from penstock.store.base import Range, Store, View
from penstock.store.local import LocalStore, output_exists
from penstock.store.memory import MemoryStore
from penstock.store.place import Place


def dry_place(place: Place) -> Place:
    """Return the same place in a store that writes nothing."""
    if place.store.is_local:
        return Place(
            LocalStore(DryOs(), guard=place.store.guard, replaces_planes=place.store.replaces_planes), place.path
        )
    return Place(DryStore(place.store), place.path)


class DryOs:
    """The `os` module for a store that writes nothing; new files are unnamed."""

    def __init__(self) -> None:
        self._made: dict[str, os.stat_result | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        real = not self._is_made(path)
        if real and (os.path.lexists(path) or not flags & os.O_CREAT):
            if flags & os.O_CREAT and flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            kept = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_DIRECTORY
            if flags & os.O_ACCMODE != os.O_RDONLY and not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return os.open(path, flags & kept | os.O_RDONLY, mode)
        if real:
            self._require_room(path)
        fd = os.memfd_create("penstock", os.MFD_CLOEXEC)
        self._made[os.path.abspath(path)] = os.fstat(fd)
        return fd

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        if self._is_made(path) or os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._require_room(path)
        self._made[os.path.abspath(path)] = None

    def stat(self, path: str, **how: Any) -> os.stat_result:
        return self._made.get(os.path.abspath(path)) or os.stat(path, **how)

    def lstat(self, path: str) -> os.stat_result:
        return self._made.get(os.path.abspath(path)) or os.lstat(path)

    def write(self, fd: int, data: Any) -> int:
        return len(data)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        return len(data)

    def copy_file_range(self, source: int, target: int, count: int, *offsets: int) -> int:
        return count

    def unlink(self, path: str) -> None:
        self._made.pop(os.path.abspath(path), None)

    rmdir = unlink

    def rename(self, path: str, target: str) -> None:
        pass

    link = rename

    def ftruncate(self, fd: int, length: int) -> None:
        """Do nothing."""

    def fsync(self, fd: int) -> None:
        """Do nothing."""

    def _is_made(self, path: str) -> bool:
        return os.path.abspath(path) in self._made

    def _require_room(self, path: str) -> None:
        folder = os.path.dirname(os.path.abspath(path))
        if self._is_made(folder):
            return
        os.stat(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            refused = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(refused, os.strerror(refused), path)


_READING = (
    *(
        "first_names",
        "level",
        "head",
        "heads_under",
        "version",
        "peek",
        "prefetch",
        "survey",
        "mapped_copy",
        "local_copy",
    ),
    *("copied_to", "expect_hashes", "expect_size", "check_copies", "forget", "capacity_bytes", "stage_folder", "claim"),
)


class DryStore(View):
    """A store that reads files in place and writes them to memory."""

    inner: Store

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.keeps_copies, self.stages_folders = store.keeps_copies, store.stages_folders
        self.lists_levels, self.has_claims = store.lists_levels, store.has_claims
        self._memory = MemoryStore()
        for name in _READING:
            setattr(self, name, getattr(store, name))

    @property
    def folder(self) -> str | None:
        return self.inner.folder

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        return self._of(path).get(path, start_bytes, length_bytes)

    def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        return self._of(path).get_ranges(path, ranges)

    def size(self, path: str) -> int:
        return self._of(path).size(path)

    def exists(self, path: str) -> bool:
        return self._memory.exists(path) or self.inner.exists(path)

    def is_folder(self, path: str) -> bool:
        return self._memory.is_folder(path) or self.inner.is_folder(path)

    def stage(self, path: str, *, overwrite: bool = False) -> Staged:
        self.inner.stage(path, overwrite=overwrite).abort()  # raises if the store is read-only
        if not overwrite and self._memory.exists(path):
            raise output_exists(path)
        return self._memory.stage(path, overwrite=overwrite)

    def commit(self, staged: Sequence[Staged]) -> None:
        for file in staged:
            file.commit()

    def delete(self, path: str) -> None:
        """Remove a file that was written here; files of the inner store stay."""
        if self._memory.exists(path):
            self._memory.delete(path)

    def _of(self, path: str) -> Store:
        return self._memory if self._memory.exists(path) else self.inner

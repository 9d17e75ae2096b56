"""Local files: reads, maps, and the one place that makes bytes durable.

A staged file lives beside its final path as `.<name>.<8 hex>.staged`, held under `flock` by its writer. A commit is
flush → fsync(file) → link or rename → fsync(folder). A process that dies leaves at most such a staged file, never a
half-written final one; the next `stage` of the same path removes leftovers whose owner is gone, or goes on with one. A
staged folder works alike: its files and folders are fsynced, then the whole is renamed, or exchanged with the folder
that it replaces.

Every system call goes through the `os` module handed to `LocalStore`, so that `penstock.testing.FaultStore` can fail,
tear or kill at any of them.
"""

from __future__ import annotations

import contextlib
import errno
import mmap as _mmap
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._buffers import byte_view
from penstock._regular import open_descriptor, require_regular
from penstock.abc import Buffer, Staged
from penstock.errors import NotFound, Truncated
from penstock.store._claims import JoinedClaim, LocalClaim
from penstock.store._files import (
    cannot_open,
    cannot_read,
    copy_range,
    files_below,
    is_free,
    make_folders,
    not_found,
    output_exists,
    publish_folder,
    read_range,
    remove_tree,
    start_writeback,
    status_of,
    sync_folder,
)
from penstock.store._leftovers import (
    Kept,
    drop_second_names,
    make_staged,
    remove_others,
    staged_name,
    take_leftovers,
    write_what_differs,
)
from penstock.store._named import NamingOs, raised
from penstock.store._replaced import Owned, drop_replaced, require_replaceable

_COALESCE_BYTES = 1 << 20
_WRITEBACK_BYTES = 1 << 24
_WRITE_BYTES = 1 << 17  # larger writes take page cache in larger pieces: measured 4 times as slow
_NO_LINK = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStore:
    """Files of this machine. Stateless: safe in threads, after fork, and picklable with the real `os`.

    Args:
        os_module: does the work.
        kept: go on with what killed writers left, where bytes agree, and count these; by default it is removed.
        claim: an output that is held already: writers of this store join in it.
    """

    __slots__ = ("_claim", "_kept", "_os")

    def __init__(self, os_module: Any = os, *, kept: Kept | None = None, claim: LocalClaim | None = None) -> None:
        self._os = os_module
        self._kept = kept
        self._claim = claim

    def __reduce__(self) -> tuple[object, ...]:
        return (LocalStore, ()) if self._os is os else (LocalStore, (self._os,))

    def __repr__(self) -> str:
        return "LocalStore()"

    # --- reading -------------------------------------------------------------------------------------------------

    def get(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """Bytes `[start, start + length)`, fewer only at the end of the file; raises `NotFound`."""
        with self._opened(path) as fd:
            status = self._os.fstat(fd)
            require_regular(status, path)
            left_bytes = max(0, status.st_size - start_bytes)
            return self.pread(fd, start_bytes, left_bytes if length_bytes is None else min(left_bytes, length_bytes))

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """One bytes object for each `(start_bytes, stop_bytes)`, over one open file; raises `Truncated`."""
        with self._opened(path) as fd:
            pieces = [self.pread(fd, start, stop - start) for start, stop in ranges]
        for (start, stop), data in zip(ranges, pieces, strict=True):
            if len(data) != stop - start:
                found, expected = f"{len(data)} bytes", f"{stop - start} bytes"
                what = "the file ends inside a range"
                raise Truncated(what, path=path, offset_bytes=start, found=found, expected=expected)
        return pieces

    def mmap(self, path: str) -> NDArray[np.uint8]:
        """uint8[size_bytes]: the file, mapped read-only; empty for an empty file; raises `NotFound`."""
        with self._opened(path) as fd:
            status = self._os.fstat(fd)
            require_regular(status, path)
            if stat.S_ISDIR(status.st_mode):
                raise NotFound("this is a folder, not a file", path=path)
            if status.st_size == 0:
                return np.empty(0, np.uint8)
            return np.frombuffer(_mmap.mmap(fd, 0, access=_mmap.ACCESS_READ), np.uint8)

    def size(self, path: str) -> int:
        """Size in bytes; raises `NotFound`, also for a folder."""
        try:
            status = self._os.stat(path)
        except (OSError, ValueError) as error:
            raise cannot_open(error, path) from None
        if stat.S_ISDIR(status.st_mode):
            raise NotFound("this is a folder, not a file", path=path)
        require_regular(status, path)
        return status.st_size

    def exists(self, path: str) -> bool:
        """Whether a file or a folder of this name is there."""
        return status_of(self._os.lstat, path) is not None

    def is_folder(self, path: str) -> bool:
        """Whether `path` is a folder."""
        return (status := status_of(self._os.stat, path)) is not None and stat.S_ISDIR(status.st_mode)

    def list(self, prefix: str) -> Iterator[str]:
        """All files under the folder `prefix`, in byte order of their relative paths, staged ones left out."""
        if not self.is_folder(prefix):
            raise not_found(prefix)
        yield from files_below(prefix)

    # --- writing -------------------------------------------------------------------------------------------------

    def stage(self, path: str, *, overwrite: bool = False) -> LocalStaged:
        """Begin a file, making missing folders; raises `ConfigError` where it exists and `overwrite` is false."""
        if not overwrite and os.path.lexists(path):
            self.sweep(path)
            raise output_exists(path)
        return LocalStaged(self._os, path, overwrite=overwrite, kept=self._kept)

    def stage_folder(
        self, path: str, *, overwrite: bool = False, beside: str | None = None, own: Owned | None = None
    ) -> LocalStagedFolder:
        """Begin a folder; see `penstock.abc.SupportsFolders`."""
        if not is_free(path):
            if not overwrite:
                raise output_exists(path)
            require_replaceable(path, own)
        return LocalStagedFolder(self._os, path, overwrite=overwrite, beside=beside, kept=self._kept, own=own)

    def claim(self, path: str, *, shared: bool = False) -> LocalClaim | JoinedClaim:
        """Take an output, until it is released; raises `PrepareError` where another writer has it."""
        if self._claim is not None and os.path.abspath(path) == os.path.abspath(self._claim.path):
            return JoinedClaim()
        return LocalClaim(NamingOs(self._os, path), path, shared=shared)

    def holding(self, claim: LocalClaim) -> LocalStore:
        """This store for writers that join in `claim`."""
        return LocalStore(self._os, kept=self._kept, claim=claim)

    def commit(self, staged: Sequence[Staged]) -> None:
        """Sync all, then publish in order: a later file is visible only after the earlier ones are durable."""
        for one in staged:
            one.sync()
        for one in staged:
            one.commit()

    def delete(self, path: str) -> None:
        """Remove one file; raises `NotFound`."""
        try:
            self._os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found(path) from None

    def sweep(self, path: str) -> None:
        """Remove what a writer of a visible file left that was killed just before its end."""
        drop_second_names(self._os, path)

    def link(self, path: str, name: str) -> bool:
        """Give a file a second name, in the place of a file of that name; see `penstock.abc.SupportsLinks`."""
        taken = os.path.lexists(name)
        temp = os.path.join(os.path.dirname(name), staged_name(os.path.basename(name))) if taken else name
        try:
            self._os.link(path, temp)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return False
        if taken:
            try:
                self._os.rename(temp, name)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    self._os.unlink(temp)  # also where both were names of one file already
        sync_folder(self._os, os.path.dirname(os.path.abspath(name)))
        return True

    def rename(self, path: str, name: str) -> None:
        """Give a file another name in its folder, durably and in one step in the place of a file of that name."""
        self._os.rename(path, name)
        sync_folder(self._os, os.path.dirname(os.path.abspath(name)))

    def remove_folder(self, path: str) -> None:
        """Remove one empty folder."""
        self._os.rmdir(path)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Generator[int]:
        try:
            fd = open_descriptor(path, self._os)
        except (OSError, ValueError) as error:
            raise cannot_open(error, path) from None
        try:
            yield fd
        except OSError as error:
            raise cannot_read(error, path) from None
        finally:
            self._os.close(fd)

    def pread(self, fd: int, start_bytes: int, length_bytes: int) -> bytes:
        """Bytes of an open file, fewer only at its end."""
        return read_range(self._os, fd, start_bytes, length_bytes)


class LocalStaged:
    """One staged local file; see `penstock.abc.Staged`. Not for use by several threads at once."""

    __slots__ = (
        *("_fd", "_folders", "_inside", "_kept", "_left_bytes", "_os", "_overwrite", "_pending", "_size_bytes"),
        *("_temp", "_writeback_bytes", "path"),
    )

    def __init__(
        self, os_module: Any, path: str, *, overwrite: bool, inside: bool = False, kept: Kept | None = None
    ) -> None:
        self.path = path
        self._kept = kept
        self._left_bytes = 0  # of a killed writer's file that is taken over
        self._os = os_module = NamingOs(os_module, path)
        self._overwrite = overwrite
        self._inside = inside  # of a staged folder: hidden already, so it has its final name at once
        self._pending = bytearray()
        self._size_bytes = 0
        self._writeback_bytes = 0
        folder, name = os.path.split(os.path.abspath(path))
        self._folders = make_folders(os_module, folder)
        self._fd = -1
        self._temp = ""
        try:
            taken = None if inside else take_leftovers(os_module, folder, name, keep=kept is not None)
            if taken is not None:
                self._temp, self._fd = taken
            else:
                flags = 0 if inside and kept is not None else os.O_EXCL
                self._temp, self._fd = make_staged(os_module, folder, name, flags, hidden=not inside)
            self._left_bytes = os_module.fstat(self._fd).st_size
        except BaseException:
            self.abort()
            raise

    def write(self, data: Buffer) -> int:
        """Append; returns bytes written."""
        if self._fd < 0:
            raise ValueError(f"{self.path}: the staged file is committed or aborted")
        view = byte_view(data)
        if len(view) < _COALESCE_BYTES:
            self._pending += view
            if len(self._pending) >= _COALESCE_BYTES:
                self._flush()
        else:
            self._flush()
            self._write_all(view)
        return len(view)

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        """Overwrite bytes already written."""
        self._flush()
        view = byte_view(data)
        while view:
            written = self._os.pwrite(self._fd, view, offset_bytes)
            view, offset_bytes = view[written:], offset_bytes + written

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Bytes already written."""
        self._flush()
        return LocalStore(self._os).pread(self._fd, offset_bytes, length_bytes)

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        """Append a range of a local file, copied by the kernel where it can; raises `Truncated`."""
        self._flush()
        given = NamingOs(self._os, path)
        source = open_descriptor(path, given)
        try:
            status = given.fstat(source)
            require_regular(status, path)
            if length_bytes is None:
                length_bytes = int(status.st_size) - start_bytes
            copied_bytes = 0
            while self._left_bytes > self._size_bytes and copied_bytes < length_bytes:
                step_bytes = min(_COALESCE_BYTES, length_bytes - copied_bytes)
                piece = given.pread(source, step_bytes, start_bytes + copied_bytes)
                self._write_all(memoryview(piece))
                copied_bytes += len(piece)
                if not piece:
                    break
            rest_bytes = copy_range(self._os, source, self._fd, start_bytes + copied_bytes, length_bytes - copied_bytes)
        finally:
            self._os.close(source)
        self._grow(rest_bytes)
        copied_bytes += rest_bytes
        if copied_bytes != length_bytes:
            raise Truncated(
                "the file ends inside a range",
                path=path,
                offset_bytes=start_bytes,
                found=f"{copied_bytes} bytes",
                expected=f"{length_bytes} bytes",
            )
        return copied_bytes

    @property
    def hidden_path(self) -> str:
        """Where the bytes are until `commit`; all of them after `sync`."""
        return self._temp

    def tell(self) -> int:
        """Bytes appended so far."""
        return self._size_bytes + len(self._pending)

    def sync(self) -> None:
        """Make the bytes durable, still invisible."""
        self._flush()
        if self._left_bytes > self._size_bytes:
            self._os.ftruncate(self._fd, self._size_bytes)
        self._os.fsync(self._fd)

    def commit(self) -> None:
        """Sync, then make visible under the final path, durably."""
        try:
            self.sync()
            if not self._inside:
                self._publish()
        except BaseException:
            self.abort()
            raise
        self._temp = ""
        self._close()
        if self._inside:
            return
        sync_folder(self._os, os.path.dirname(os.path.abspath(self.path)))
        for folder in self._folders:
            sync_folder(self._os, os.path.dirname(folder))

    def abort(self) -> None:
        """Drop it, and the folders that were made for it; does nothing a second time."""
        if self._temp and not (self._kept is not None and self._kept.hold):
            with contextlib.suppress(OSError):
                self._os.unlink(self._temp)
            self._temp = ""
            for folder in reversed(self._folders):
                with contextlib.suppress(OSError):
                    self._os.rmdir(folder)
        self._close()

    def _publish(self) -> None:
        if self._overwrite:
            self._os.rename(self._temp, self.path)
            return
        try:
            # A link fails where the name is taken: nothing that appeared meanwhile is overwritten.
            self._os.link(self._temp, self.path)
        except FileExistsError:
            raise output_exists(self.path) from None
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            if os.path.lexists(self.path):
                raise output_exists(self.path) from None
            self._os.rename(self._temp, self.path)
            return
        with contextlib.suppress(FileNotFoundError):  # whoever is refused meanwhile takes it for that of a dead writer
            self._os.unlink(self._temp)

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, bytearray()
            self._write_all(memoryview(pending))

    def _write_all(self, view: memoryview) -> None:
        while view:
            if self._kept is not None and self._size_bytes < self._left_bytes:
                written = write_what_differs(self._os, self._fd, self._size_bytes, view, self._kept)
                self._os.lseek(self._fd, written, os.SEEK_CUR)
            else:
                written = self._os.write(self._fd, view[:_WRITE_BYTES])
            self._grow(written)
            view = view[written:]

    def _grow(self, written_bytes: int) -> None:
        """Count what was written, and let the disk begin with it: `sync` then waits for the rest alone."""
        self._size_bytes += written_bytes
        if self._size_bytes - self._writeback_bytes >= _WRITEBACK_BYTES:
            start_writeback(self._os, self._fd, self._writeback_bytes, self._size_bytes - self._writeback_bytes)
            self._writeback_bytes = self._size_bytes

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._os.close(fd)


class LocalStagedFolder:
    """One staged local folder; see `penstock.abc.StagedFolder`. `stage` may be called from several threads."""

    __slots__ = ("_fd", "_kept", "_made", "_names", "_os", "_overwrite", "_own", "_temp", "path")

    def __init__(
        self,
        os_module: Any,
        path: str,
        *,
        overwrite: bool,
        beside: str | None,
        kept: Kept | None = None,
        own: Owned | None = None,
    ) -> None:
        self.path = path
        self._own = own
        self._kept = kept
        self._names: set[str] = set()
        self._os = os_module = NamingOs(os_module, path)
        self._overwrite = overwrite
        self._fd = -1
        self._temp = ""
        parent, name = os.path.dirname(os.path.abspath(beside or path)), os.path.basename(os.path.abspath(path))
        self._made = make_folders(os_module, parent)
        try:
            taken = take_leftovers(os_module, parent, name, keep=kept is not None, want_folder=True, own=own)
            if taken is not None:
                self._temp, self._fd = taken
                return
            self._temp, self._fd = make_staged(os_module, parent, name, is_folder=True)
        except BaseException:
            self.abort()
            raise

    def stage(self, name: str) -> LocalStaged:
        """Begin a file in it; its `commit` makes it durable and leaves it as hidden as the folder."""
        self._names.add(os.path.normpath(name))
        return LocalStaged(self._os, os.path.join(self._temp, name), overwrite=False, inside=True, kept=self._kept)

    def commit(self, part: str | None = None, path: str | None = None) -> None:
        """Make it visible, durably; with `part`, that folder in it alone, under `path`."""
        source = self._temp if part is None else os.path.join(self._temp, part)
        target = os.path.abspath(path or self.path)
        try:
            if self._kept is not None:
                remove_others(self._os, self._temp, self._names)
            for folder, _, _ in os.walk(source, topdown=False, onerror=raised):
                sync_folder(self._os, folder)
            replaced = publish_folder(self._os, source, target, self._own, overwrite=self._overwrite)
        except BaseException:
            self.abort()
            raise
        try:
            for folder in (target, *self._made):
                sync_folder(self._os, os.path.dirname(folder))
        finally:
            try:
                if replaced is not None:
                    drop_replaced(self._os, source, replaced, target)
            finally:
                if replaced is not None and os.path.lexists(source):
                    self._temp = ""  # what could not be removed is looked at by the next writer
                self.abort()  # drops what is left: what was not asked for

    def abort(self) -> None:
        """Drop it, and the folders that were made for it; does nothing a second time."""
        if self._temp and not (self._kept is not None and self._kept.hold):
            temp, self._temp = self._temp, ""
            remove_tree(self._os, temp)
            for folder in reversed(self._made):
                with contextlib.suppress(OSError):
                    self._os.rmdir(folder)
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._os.close(fd)

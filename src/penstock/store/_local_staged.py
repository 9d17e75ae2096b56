"""Local files and folders that are invisible before their commit; see `local`."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from typing import Any

from penstock._arrays import byte_view
from penstock._regular import open_descriptor, require_regular
from penstock.errors import ConfigError, Truncated
from penstock.store._files import (
    NO_SECOND_NAME,
    NamingOs,
    copy_range,
    exchange,
    is_free,
    is_there,
    make_folders,
    output_exists,
    raised,
    read_range,
    remove_tree,
    require_replaceable_file,
    start_writeback,
    sync_files,
    sync_folder,
)
from penstock.store._leftovers import (
    Kept,
    Owned,
    drop_replaced,
    make_staged,
    remove_others,
    remove_own,
    require_replaceable,
    take_leftovers,
    write_what_differs,
)
from penstock.store.names import NEXT, TOGETHER, lock_path
from penstock.types import Buffer

_COALESCE_BYTES = 1 << 20
_WRITEBACK_BYTES = 1 << 24
_WRITE_BYTES = 1 << 17  # larger writes allocate page cache in larger pieces, measured 4 times as slow


class LocalStaged:
    """One staged local file; see `penstock.abc.Staged`. Not thread-safe."""

    __slots__ = (
        *("_fd", "_folders", "_inside", "_kept", "_left_bytes", "_os", "_overwrite", "_pending", "_size_bytes"),
        *("_temp", "_writeback_bytes", "path"),
    )

    def __init__(
        self, os_module: Any, path: str, *, overwrite: bool, inside: bool = False, kept: Kept | None = None
    ) -> None:
        self.path = path
        self._kept = kept
        self._left_bytes = 0  # size of a killed writer's file that is continued
        self._os = os_module = NamingOs(os_module, path)
        self._overwrite = overwrite
        self._inside = inside  # in a staged folder, which is hidden, a file has its final name at once
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
        if self._fd < 0:
            raise ValueError(f"{self.path}: the staged file was already committed or aborted")
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
        self._flush()
        view = byte_view(data)
        while view:
            written = self._os.pwrite(self._fd, view, offset_bytes)
            view, offset_bytes = view[written:], offset_bytes + written

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        self._flush()
        return read_range(self._os, self._fd, offset_bytes, length_bytes)

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        """Append a range of a local file, by the kernel if it can; raise `Truncated`."""
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
                "the file ends before the end of a range",
                path=path,
                offset_bytes=start_bytes,
                found=f"{copied_bytes} bytes",
                expected=f"{length_bytes} bytes",
            )
        return copied_bytes

    @property
    def hidden_path(self) -> str:
        """Path of the bytes until `commit`; complete after `sync`."""
        return self._temp

    def emptied(self) -> str:
        """Drop a killed writer's bytes; return the hidden path, for a library that writes the file itself."""
        self._os.ftruncate(self._fd, 0)
        self._left_bytes = 0
        return self._temp

    def tell(self) -> int:
        return self._size_bytes + len(self._pending)

    def sync(self) -> None:
        self._flush()
        if self._left_bytes > self._size_bytes:
            self._os.ftruncate(self._fd, self._size_bytes)
        self._os.fsync(self._fd)

    def commit(self) -> None:
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
        sweep_indexes(self._os, self.path)
        sync_folder(self._os, os.path.dirname(os.path.abspath(self.path)))
        for folder in self._folders:
            sync_folder(self._os, os.path.dirname(folder))

    def commit_as(self, path: str) -> bool:
        """Commit under another name in its folder; return False if that name is taken."""
        self.path = path
        try:
            self.commit()
        except ConfigError:
            if not is_there(path):
                raise
            return False
        return True

    def abort(self) -> None:
        if self._temp and not (self._kept is not None and self._kept.hold):
            remove_own(self._os, self._fd, self._temp)
            self._temp = ""
            for folder in reversed(self._folders):
                with contextlib.suppress(OSError):
                    self._os.rmdir(folder)
        self._close()

    def _publish(self) -> None:
        if self._overwrite:
            require_replaceable_file(self.path)
            self._os.rename(self._temp, self.path)
            return
        try:
            # A link fails if the name exists, so a file that appeared meanwhile isn't overwritten.
            self._os.link(self._temp, self.path)
        except FileExistsError:
            raise output_exists(self.path) from None
        except OSError as error:
            if error.errno not in NO_SECOND_NAME:
                raise
            if is_there(self.path):
                raise output_exists(self.path) from None
            self._os.rename(self._temp, self.path)
            return
        with contextlib.suppress(FileNotFoundError):  # version 0.1 mistakes it for a dead writer's file
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
        """Count written bytes and start their writeback, so that `sync` only waits for the rest."""
        self._size_bytes += written_bytes
        if self._size_bytes - self._writeback_bytes >= _WRITEBACK_BYTES:
            start_writeback(self._os, self._fd, self._writeback_bytes, self._size_bytes - self._writeback_bytes)
            self._writeback_bytes = self._size_bytes

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._os.close(fd)


class LocalStagedFiles:
    """Small new files of one folder that become visible together, with a single sync.

    Until the commit they are in a separate hidden folder. The next writer of this kind removes the folder of a killed
    writer. Files aren't claimed: a name that exists or is claimed by another writer is skipped.
    """

    __slots__ = ("_hidden", "_names", "_os", "folder")

    def __init__(self, os_module: Any, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self._names: list[str] = []
        self._os = NamingOs(os_module, folder)
        path = os.path.join(self.folder, TOGETHER)
        self._hidden = LocalStagedFolder(os_module, path, overwrite=False, beside=None)

    def write(self, name: str, data: bytes) -> None:
        """Add a complete file."""
        path = os.path.join(self._hidden.hidden_path, name)
        fd = self._os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[self._os.write(fd, view) :]
        finally:
            self._os.close(fd)
        self._names.append(name)

    def commit(self) -> list[str]:
        """Make the files durable, then visible; return the names that exist, are claimed, or can't be linked."""
        hidden, left = self._hidden.hidden_path, list[str]()
        sync_files(self._os, hidden, self._names)
        for name in self._names:
            path = os.path.join(self.folder, name)
            try:
                if is_there(lock_path(path)):
                    left.append(name)
                else:
                    self._os.link(os.path.join(hidden, name), path)  # fails if the name exists
            except OSError:
                left.append(name)
        sync_folder(self._os, self.folder)
        self.abort()
        return left

    def abort(self) -> None:
        self._hidden.abort()


class LocalStagedFolder:
    """One staged local folder; see `penstock.store.base.StagedFolder`. `stage` is thread-safe."""

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
        """Start a file in the folder; its `commit` makes it durable, but not visible."""
        self._names.add(os.path.normpath(name))
        return LocalStaged(self._os, os.path.join(self._temp, name), overwrite=False, inside=True, kept=self._kept)

    @property
    def hidden_path(self) -> str:
        return self._temp

    def size(self, path: str) -> int:
        return os.stat(os.path.join(self._temp, path)).st_size

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with open(os.path.join(self._temp, path), "rb", buffering=0) as file:
            return [read_range(os, file.fileno(), start, stop - start) for start, stop in ranges]

    def commit(self, part: str | None = None, path: str | None = None) -> None:
        """Make the folder visible, durably; with `part`, only that subfolder, under `path`."""
        source = self._temp if part is None else os.path.join(self._temp, part)
        target = os.path.abspath(path or self.path)
        try:
            if self._kept is not None:
                remove_others(self._os, self._temp, self._names)
            for folder, _, _ in os.walk(source, topdown=False, onerror=raised):
                sync_folder(self._os, folder)
            replaced = _publish_folder(self._os, source, target, self._own, overwrite=self._overwrite)
        except BaseException:
            self.abort()
            raise
        try:
            sweep_indexes(self._os, target)
            for folder in (target, *self._made):
                sync_folder(self._os, os.path.dirname(folder))
        finally:
            try:
                if replaced is not None:
                    drop_replaced(self._os, source, replaced, target)
            finally:
                if replaced is not None and is_there(source):
                    self._temp = ""  # the next writer handles what couldn't be removed
                self.abort()  # drops the other contents

    def abort(self) -> None:
        if self._temp and not (self._kept is not None and self._kept.hold):
            temp, self._temp = self._temp, ""
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._fd), os.lstat(temp)):
                    remove_tree(self._os, temp)
            for folder in reversed(self._made):
                with contextlib.suppress(OSError):
                    self._os.rmdir(folder)
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._os.close(fd)


def sweep_indexes(os_module: Any, path: str, suffixes: Sequence[str] = (".idx", f".idx{NEXT}")) -> None:
    """Remove line indexes staged for `path` by an interrupted JSONL writer, because the format may differ now."""
    folder, name = os.path.split(os.path.abspath(path))
    for stem in {name, os.path.splitext(name)[0]}:
        for suffix in suffixes:
            take_leftovers(os_module, folder, stem + suffix, keep=False)


def _publish_folder(
    os_module: Any, source: str, target: str, own: Owned | None, *, overwrite: bool
) -> list[str] | None:
    """Rename a folder to its final name, or exchange it with the folder that it replaces.

    Returns:
        The files that the replaced dataset lists; None if nothing was replaced. Raises as `require_replaceable`.
    """
    if overwrite and not is_free(target):
        names = require_replaceable(target, own)  # again, for files that appeared since the output was started
        exchange(source, target)
        return names
    try:
        os_module.rename(source, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise output_exists(target) from None
        raise
    return None

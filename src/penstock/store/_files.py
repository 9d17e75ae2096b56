"""Operations on local files: system calls through a given `os` module, and their errors."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import re
import resource
import stat
from collections.abc import Callable, Generator, Sequence
from typing import Any

from penstock._regular import not_regular
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.store.names import final_path, is_staged_name

_STEP_BYTES = 1 << 20
_COPY_BYTES = 1 << 26
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux's renameat2
_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
_NO_CALL = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
_URL_INSIDE = re.compile(r"(?:^|/)(?:s3|gs|az|azure|hf|https?|file):/", re.IGNORECASE)
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}

NO_SECOND_NAME = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""Error numbers of a file system without hard links."""

TAKEN = {errno.EEXIST, errno.ENOTEMPTY}
"""Error numbers for a name that already exists."""


def copy_range(os_module: Any, source: int, target: int, start_bytes: int, length_bytes: int) -> int:
    """Append a range of the file `source` to `target`, by the kernel if it can; return the bytes copied."""
    copied_bytes = 0
    in_kernel = True
    while copied_bytes < length_bytes:
        step_bytes = min(_COPY_BYTES, length_bytes - copied_bytes)
        if in_kernel:
            try:
                moved = os_module.copy_file_range(source, target, step_bytes, start_bytes + copied_bytes)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise
                in_kernel = False
                continue
        else:
            view = memoryview(os_module.pread(source, min(step_bytes, _STEP_BYTES), start_bytes + copied_bytes))
            moved = len(view)
            while view:
                view = view[os_module.write(target, view) :]
        if moved == 0:
            break
        copied_bytes += moved
    return copied_bytes


def start_writeback(os_module: Any, fd: int, start_bytes: int, length_bytes: int) -> None:
    """Start to write a range to the disk, without waiting; if that fails, `fsync` does it later."""
    with contextlib.suppress(OSError):
        # Linux begins to write the range's dirty pages. It drops only clean pages, and a growing file has none.
        os_module.posix_fadvise(fd, start_bytes, length_bytes, os.POSIX_FADV_DONTNEED)


def sync_folder(os_module: Any, folder: str) -> None:
    fd = os_module.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os_module.fsync(fd)
    finally:
        os_module.close(fd)


def sync_files(os_module: Any, folder: str, names: Sequence[str]) -> None:
    """Make files of a directory durable: by one call for their file system if possible."""
    with contextlib.ExitStack() as stack:
        fd = os_module.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os_module.close, fd)
        call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if call is not None and call(fd) == 0:
            return
        if call is not None and (code := ctypes.get_errno()) not in _NO_CALL:
            raise OSError(code, os.strerror(code), folder)
    for name in names:
        fd = os_module.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os_module.fsync(fd)
        finally:
            os_module.close(fd)


def remove_tree(os_module: Any, root: str) -> None:
    """Remove a directory tree without following links, also at its root; what can't be removed stays."""
    if is_link(root):
        return
    for folder, folders, names in os.walk(root, topdown=False):
        links = [name for name in folders if is_link(os.path.join(folder, name))]
        for remove, name in [*((os_module.unlink, name) for name in names + links), (os_module.rmdir, "")]:
            try_to_remove(remove, os.path.join(folder, name) if name else folder)


def try_to_remove(remove: Callable[[str], object], path: str) -> None:
    """Call `remove`, a second time after an error, which may be temporary; what can't be removed stays."""
    try:
        remove(path)
    except OSError:
        with contextlib.suppress(OSError):
            remove(path)


def exchange(first: str, second: str) -> None:
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None or call(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE):
        raise ConfigError(
            "this file system can't replace a folder atomically",
            path=second,
            found="no such call" if call is None else os.strerror(ctypes.get_errno()),
            hint="Write to another name, delete the old folder, then rename",
        )


def files_below(folder: str) -> list[str]:
    """Return all files below a directory, in byte order of their relative paths, except staged ones.

    Raises:
        OSError: a directory can't be read.
    """
    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=raised):
        folders[:] = [name for name in folders if not is_staged_name(name)]
        found += [os.path.join(parent, name) for name in names if not is_staged_name(name)]
    return sorted(found, key=os.fsencode)  # all paths begin with the folder, so this sorts by relative path


def make_folders(os_module: Any, folder: str) -> list[str]:
    """Make a directory and its parents; return the missing ones, the outermost first."""
    missing: list[str] = []
    while not is_folder(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    for one in missing:
        with contextlib.suppress(FileExistsError):
            os_module.mkdir(one)
    return missing


def is_free(path: str) -> bool:
    """Return whether a directory may be put at `path`: there is nothing, or an empty directory."""
    if not is_there(path):
        return True
    if not is_folder(path):
        return False
    with os.scandir(path) as entries:  # one entry is enough: the folder may hold a million
        return next(entries, None) is None


def not_found(path: str) -> NotFound:
    """Return the error for a path without a file, or a broken link."""
    if is_link(path):
        return NotFound("a broken link", path=path, found=os.path.realpath(path), hint="Check the link")
    return NotFound("no such file or folder", path=path, hint="Check the path")


def require_no_url(path: str) -> None:
    """Raise `ConfigError` for a URL that was turned into a path: a directory `s3:` is never made."""
    if _URL_INSIDE.search(path):
        hint = "Pass the URL as a string, scheme://…"
        raise ConfigError("a URL instead of a local path", path=path, hint=hint)


def output_exists(path: str, standing: str | None = None) -> ConfigError:
    """Return the error for an existing output; `standing` is another existing file, such as an index."""
    hint = "Choose another output, or pass overwrite (--overwrite)"
    return ConfigError("the output exists", path=path, found=None if standing == path else standing, hint=hint)


def require_replaceable_file(path: str, *, follow_links: bool = False) -> None:
    """Raise `ConfigError` if a directory or a special file is at `path`.

    With `follow_links`, look at the target of a link; otherwise the link itself is replaced.
    """
    found = status_of(os.stat if follow_links else os.lstat, path)
    if found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        what = "the output is a folder" if stat.S_ISDIR(found.st_mode) else "the output is not a regular file"
        raise ConfigError(what, path=path, hint="Name a file")


def require_movable(path: str) -> None:
    """Raise `PermissionError` before the work if another user's file in a sticky directory is at `path`."""
    found, user = status_of(os.lstat, path), os.geteuid()
    folder = status_of(os.stat, os.path.dirname(path) or ".") if found is not None and user != 0 else None
    if found is None or folder is None or not folder.st_mode & stat.S_ISVTX or user in (found.st_uid, folder.st_uid):
        return
    raise PermissionError(errno.EPERM, "a file of another user in a sticky folder can't be replaced", path)


def read_range(os_module: Any, fd: int, start_bytes: int, length_bytes: int) -> bytes:
    data: bytes = os_module.pread(fd, length_bytes, start_bytes)
    if len(data) == length_bytes or not data:
        return data
    pieces = [data]
    have_bytes = len(data)
    while have_bytes < length_bytes:
        piece = os_module.pread(fd, length_bytes - have_bytes, start_bytes + have_bytes)
        if not piece:
            break
        pieces.append(piece)
        have_bytes += len(piece)
    return b"".join(pieces)


def cannot_open(error: OSError | ValueError, path: str) -> Exception:
    """Return the error for a file that can't be opened or looked up; long or invalid names aren't found."""
    if isinstance(error, OSError) and error.errno not in _NOT_THERE:
        return named(error, path)
    return not_found(path)


def cannot_read(error: OSError, path: str) -> Exception:
    """Return the error for an open file that can't be read, because it isn't a regular file."""
    if error.errno == errno.EISDIR:
        return a_folder(path)
    return not_regular(path, "a pipe") if error.errno == errno.ESPIPE else named(error, path)


def a_folder(path: str) -> NotFound:
    return NotFound("this is a folder, not a file", path=path)


_FULL = (errno.ENOSPC, errno.EDQUOT)
_LIMIT = "files of a process: at most"
_FREE = "bytes free there"
_AMOUNT = {"write": 1, "pwrite": 1, "copy_file_range": 2}  # name → position of the argument with the data or its length


def named(error: OSError, path: str, wanted_bytes: int = 0) -> OSError:
    """Add the path and the free or allowed space to an error of the system, and return the error.

    Args:
        error: the error; errors that Penstock raises itself stay unchanged.
        path: path of the file, if the error has none; hidden names are replaced by final names.
        wanted_bytes: number of bytes to write, 0 if unknown.
    """
    if isinstance(error, PenstockError) or error.errno is None:
        return error
    what = error.strerror or os.strerror(error.errno)
    where = path if error.filename is None or isinstance(error.filename, int) else os.fsdecode(error.filename)
    error.filename = final_path(where)
    if error.filename2 is not None:  # a rename: users only know the final name
        del error.filename2
    if error.errno in _FULL and _FREE not in what:
        wanted = f"{wanted_bytes:,} bytes left to write, " if wanted_bytes else ""
        what = f"{what}: {wanted}{_free(path)}"
    if error.errno == errno.EMFILE and _LIMIT not in what:
        what = f"{what} ({_LIMIT} {resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}, ulimit -n)"
    # Set both, because a pickled error is restored from its arguments.
    error.args, error.strerror = (error.errno, what), what
    return error


@contextlib.contextmanager
def naming(path: str) -> Generator[None]:
    """Add `path` to errors of the system in the block that have no path."""
    try:
        yield
    except OSError as error:
        raise named(error, path) from None


class NamingOs:
    """The `os` module for the files of one output; its errors are `named` with the output's path."""

    __slots__ = ("_os", "_path")

    def __init__(self, os_module: Any, path: str) -> None:
        self._os = os_module.plain if isinstance(os_module, NamingOs) else os_module
        self._path = path

    @property
    def plain(self) -> Any:
        return self._os

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._os, name)
        return functools.partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, call: Any, *args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except OSError as error:
            amount: Any = args[_AMOUNT[name]] if name in _AMOUNT else 0
            raise named(error, self._path, amount if isinstance(amount, int) else len(amount)) from None


def raised(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _free(path: str) -> str:
    """Return the free space in the file system of a path that may not exist yet; 0 bytes if unknown."""
    folder = os.path.dirname(os.path.abspath(path))
    while True:
        try:
            status = os.statvfs(folder)
        except OSError:
            if folder == os.path.dirname(folder):
                return f"0 {_FREE}"
            folder = os.path.dirname(folder)
        else:
            no_more = ", but no free inodes (df -i)" if status.f_files and not status.f_favail else ""
            return f"{status.f_bavail * status.f_frsize:,} {_FREE}{no_more}"


def status_of(ask: Callable[[str], os.stat_result], path: str) -> os.stat_result | None:
    """Return the result of a `stat` function for a path, or None if the path doesn't or can't exist."""
    try:
        return ask(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            return None
        raise


def is_there(path: str) -> bool:
    """Return whether a path exists, even as a broken link."""
    return status_of(os.lstat, path) is not None


def is_link(path: str) -> bool:
    return (found := status_of(os.lstat, path)) is not None and stat.S_ISLNK(found.st_mode)


def leads_somewhere(path: str) -> bool:
    """Return whether a path exists, following links."""
    return status_of(os.stat, path) is not None


def is_folder(path: str) -> bool:
    """Return whether a path is a directory, following links."""
    return (found := status_of(os.stat, path)) is not None and stat.S_ISDIR(found.st_mode)


def is_file(path: str) -> bool:
    """Return whether a path is a regular file, following links."""
    return (found := status_of(os.stat, path)) is not None and stat.S_ISREG(found.st_mode)


_SYSTEMS = frozenset(("9p", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"))


def on_network(path: str, mounts: str = "/proc/self/mountinfo") -> bool:
    """Return whether `path` is on a network file system, where a failed read of a mapping kills the process.

    False if the system has no list of `mounts`.
    """
    place = os.path.realpath(path)
    best = ("", "")
    with contextlib.suppress(OSError), open(mounts, "rb") as lines:
        for line in lines:
            left, _, right = line.partition(b" - ")
            mount = os.fsdecode(left.split()[4].replace(rb"\040", b" ")).rstrip("/")
            if len(mount) >= len(best[0]) and (place + "/").startswith(mount + "/"):
                best = (mount, right.split()[0].decode())
    return best[1] in _SYSTEMS or best[1].startswith("fuse.")

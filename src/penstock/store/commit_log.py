"""Redo logs of local outputs, and reading by them: what a commit is about to rename; see `store.transaction`.

A log may come from anybody who can write to the directory. So it must be a small regular file that names only files
which the output can have, and staged files must be regular files in a real directory. Everything else is an error.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar, cast

from penstock.errors import ConfigError, Corrupt, PenstockError, PrepareError, UnsafeData, Unsupported
from penstock.store._files import hidden_stem, is_there, read_range, status_of

ResultT = TypeVar("ResultT")

_VERSION = 1
_MAX_LOG_BYTES = 1 << 20
_MAX_TRIES = 100
_PAUSE_SECONDS = 0.01
_PLAIN_NAME = re.compile(r"[^/\0\ud800-\udfff]{1,255}")
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV)


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Names of the files that one local output can have.

    Attributes:
        folder: the directory of all files.
        names: the first name identifies the output; the last name is the file that makes the output visible.
        prefixes: names that begin with one of these belong to the output, too.
    """

    folder: str
    names: tuple[str, ...]
    prefixes: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Path that identifies the output, for locks and messages."""
        return self.path_of(self.names[0])

    @property
    def staging_path(self) -> str:
        """Staging directory."""
        return self._hidden("new")

    @property
    def log_path(self) -> str:
        """Redo log."""
        return self._hidden("commit")

    def path_of(self, name: str) -> str:
        """Return the final path of a file."""
        return os.path.join(self.folder, name)

    def staged_path_of(self, name: str) -> str:
        """Return the path of a file in the staging directory."""
        return os.path.join(self.staging_path, name)

    def owns(self, name: str) -> bool:
        """Return whether the output can have a file of this name."""
        return name in self.names or (name.startswith(self.prefixes) and _PLAIN_NAME.fullmatch(name) is not None)

    def is_staged(self, name: str) -> bool:
        """Return whether a file is in the staging directory; raise `UnsafeData` if it isn't a regular file there."""
        for path, is_kind in ((self.staging_path, stat.S_ISDIR), (self.staged_path_of(name), stat.S_ISREG)):
            status = status_of(os.lstat, path)
            if status is None:
                return False
            if not is_kind(status.st_mode):
                kind = "directory" if is_kind is stat.S_ISDIR else "regular file"
                raise UnsafeData(f"staged data of an interrupted commit is not a {kind}", path=path, hint=self._hint)
        return True

    @property
    def _hint(self) -> str:
        return f"If you don't know who made it, remove {self.log_path}"

    def _hidden(self, suffix: str) -> str:
        return os.path.join(self.folder, f".{hidden_stem(self.names[0])}.{suffix}")


def output_files(path: str) -> OutputFiles:
    """Return the files of the output that `path` identifies: the two files and the side file of a Megatron dataset."""
    folder, name = os.path.split(os.path.abspath(path))
    stem = name.removesuffix(".bin")
    return OutputFiles(folder, (name,) if stem == name else (name, f"{stem}.idx.penstock", f"{stem}.idx"))


@dataclass(frozen=True, slots=True)
class CommitLog:
    """Content of a redo log.

    Attributes:
        plan: identifies the work that wrote the files.
        result: plain JSON that the same work returns if it is run again.
        files: staged files in the order in which they are renamed.
        remove: files to remove before, in order.
    """

    plan: str
    result: Any
    files: tuple[str, ...]
    remove: tuple[str, ...]
    version: int = _VERSION

    def encode(self, path: str) -> bytes:
        """Return the bytes of the log; raise `ConfigError`, which names the output `path`, if they are too many."""
        data = json.dumps(asdict(self)).encode()
        if len(data) > _MAX_LOG_BYTES:
            raise ConfigError("the result of the work is too large", path=path, found=f"{len(data):,} bytes")
        return data


def read_log(files: OutputFiles) -> CommitLog | None:
    """Return the redo log of an output, or None if there is none.

    Raises:
        UnsafeData: it isn't a regular file, or names files that the output can't have.
        Corrupt: it isn't a log, or is too large.
        Unsupported: another version wrote it.
    """
    path = files.log_path
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _NOT_A_FILE:
            raise
        raise _unsafe_log(path, "is not a regular file") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _unsafe_log(path, "is not a regular file")
        if not _may_replace(status.st_uid, files):
            raise _unsafe_log(path, "belongs to another user")
        data = read_range(os, fd, 0, _MAX_LOG_BYTES + 1)
    finally:
        os.close(fd)
    return _decode_log(data, files)


def _may_replace(user: int, files: OutputFiles) -> bool:
    """Return whether a user may replace the files of an output: in a sticky directory, only their owner may."""
    folder = os.stat(files.folder)
    if not folder.st_mode & stat.S_ISVTX or user in (os.geteuid(), folder.st_uid, 0):
        return True
    found = [status_of(os.lstat, files.path_of(name)) for name in files.names]
    return all(one is None or one.st_uid == user for one in found)


def _decode_log(data: bytes, files: OutputFiles) -> CommitLog:
    path = files.log_path
    if len(data) > _MAX_LOG_BYTES:
        raise _damaged_log(path, f"more than {_MAX_LOG_BYTES:,} bytes")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise _damaged_log(path, "invalid JSON") from None
    log = cast(dict[str, Any], content) if isinstance(content, dict) else {}
    if type(version := log.get("version")) is not int:
        raise _damaged_log(path, "no version")
    if version != _VERSION or log.keys() != {one.name for one in fields(CommitLog)}:
        found = f"version {version}" if version != _VERSION else f"the keys {', '.join(sorted(log))}"
        hint = "Run the command again with the version of Penstock that was interrupted"
        raise Unsupported("another version of Penstock began this commit", path=path, found=found, hint=hint)
    if type(log["plan"]) is not str or not log["files"] or not all(map(_are_names, (log["files"], log["remove"]))):
        raise _damaged_log(path, "values of other types")
    for name in (*log["files"], *log["remove"]):
        if not files.owns(name):
            raise _unsafe_log(path, "names a file of something else", name)
    return CommitLog(log["plan"], log["result"], tuple(log["files"]), tuple(log["remove"]))


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(type(name) is str for name in cast(list[Any], value))


def _damaged_log(path: str, found: str) -> Corrupt:
    hint = f"Remove {path}, and write the output again"
    return Corrupt("the log of an interrupted commit is damaged", path=path, found=found, hint=hint)


def _unsafe_log(path: str, what: str, found: str | None = None) -> UnsafeData:
    return UnsafeData(f"the log of an interrupted commit {what}", path=path, found=found, hint=f"Remove {path}")


def paths_of(files: OutputFiles) -> dict[str, str | None]:
    """Return the path of each file of an output, also during a commit; None for a file that doesn't exist.

    The files may change afterwards: see `read_committed`.
    """
    log = read_log(files)
    names = () if log is None else log.files
    is_pending = log is not None and files.is_staged(log.files[-1])
    paths: dict[str, str | None] = {}
    for name in files.names:
        if is_pending and name in names and files.is_staged(name):
            paths[name] = files.staged_path_of(name)
        elif is_pending and log is not None and name in log.remove and name not in names:
            paths[name] = None
        else:
            paths[name] = files.path_of(name) if is_there(files.path_of(name)) else None
    return paths


def read_committed(files: OutputFiles, read: Callable[[dict[str, str | None]], ResultT]) -> ResultT:
    """Call `read` with the paths of an output (see `paths_of`) until nothing has changed meanwhile.

    Args:
        files: of the output.
        read: opens them. It may be called several times.

    Raises:
        PrepareError: the output changes all the time.
    """
    for _ in range(_MAX_TRIES):
        before = _snapshot(files)
        try:
            result = read(dict(before[0]))
        except (PenstockError, OSError):
            if _snapshot(files) == before:
                raise
        else:
            if _snapshot(files) == before:
                return result
        time.sleep(_PAUSE_SECONDS)
    raise PrepareError("the dataset changes while it is read", path=files.path, hint="Wait for its writer")


def _snapshot(files: OutputFiles) -> tuple[dict[str, str | None], list[tuple[int, ...] | None]]:
    """Return paths, and the identities of the log and of the file at each path."""
    log, paths = _identity(files.log_path), paths_of(files)
    return paths, [log, *(None if path is None else _identity(path) for path in paths.values())]


def _identity(path: str) -> tuple[int, ...] | None:
    found = status_of(os.stat, path)
    return None if found is None else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

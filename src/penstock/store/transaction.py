"""Commit the files of a local output together: readers see all old files or all new files.

While an output is written, its directory contains three hidden names. `<name>` is the first file of the output.

| name | what it is |
|---|---|
| `.<name>.lock.staged` | Lock of the writer (`flock`), held until the commit; the same as in version 0.2. |
| `.<name>.new/` | Staging directory: new files under their final names. |
| `.<name>.commit` | Redo log, in JSON: the files to rename and to remove, the plan and the result of the work. |

The log is the commit. It becomes visible when all staged files are durable, and from then on nothing staged is deleted.
Renaming the files is a separate step that may be repeated: after a kill or an error, the next writer completes it
(rolls forward). Readers never rename or delete. They follow the log: a file that the log names is read from the staging
directory until it has been renamed; see `read_committed`.

Other tools, which don't know the log, see no mixture of old and new files either. The old *last file* (an index without
which the other files aren't a dataset) is removed before any other file changes, and the new one is renamed last.
Version 0.2 doesn't know the log either, and would write a new output that the log then replaces. So the lock file has a
second name in the staging directory during a commit: version 0.2 rejects such a lock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypeVar, cast

from penstock.errors import ConfigError, Corrupt, PenstockError, PrepareError, UnsafeData, Unsupported
from penstock.store._files import (
    NamingOs,
    is_there,
    output_exists,
    read_range,
    remove_tree,
    require_movable,
    require_replaceable_file,
    status_of,
    sync_folder,
)
from penstock.store._leftovers import Kept, take_leftovers
from penstock.store._local_staged import LocalStaged
from penstock.store.lock import Claim, LocalClaim, block_old_writers
from penstock.store.names import COMMIT_LOG, LOCK_FILE, NEW_LOG_NAME, STAGING, hidden_path, lock_path

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
        return hidden_path(self.path, STAGING)

    @property
    def log_path(self) -> str:
        return hidden_path(self.path, COMMIT_LOG)

    def path_of(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def staged_path_of(self, name: str) -> str:
        return os.path.join(self.staging_path, name)

    def owns(self, name: str) -> bool:
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


class Transaction:
    """Writer of one output of several files. A context manager; without `commit`, nothing changes.

    On entry it takes the lock and completes an interrupted commit. If the same plan was committed then, `is_complete`
    is true, and there is nothing to do.

    Args:
        files: names that the output can have.
        plan: identifies the work.
        claim: lock on the output, which is released on exit. By default a new one.
        kept: continue the staged files of a killed run, and count the bytes that needn't be written; see `LocalStore`.
        os_module: module that does the work.

    Attributes:
        is_complete: whether the same plan was committed already, by a run that was killed before it returned.
        result: the result that this run recorded.

    Raises:
        PrepareError: another run is writing this output.
        UnsafeData, Corrupt, Unsupported: see `read_log`.
    """

    def __init__(
        self,
        files: OutputFiles,
        plan: str,
        *,
        claim: Claim | None = None,
        kept: Kept | None = None,
        os_module: Any = os,
    ) -> None:
        self.files = files
        self.is_complete = False
        self.result: Any = None
        self._plan = plan
        self._claim = claim
        self._kept = kept
        self._os = NamingOs(os_module, files.path)
        self._staged: dict[str, LocalStaged] = {}
        self._has_log = False
        self._is_committed = self._is_closed = False

    def open(self) -> Self:
        """Take the lock, complete an interrupted commit, and make the staging directory."""
        claim, self._claim = self._claim, None
        self._claim = LocalClaim(self._os, self.files.path) if claim is None else claim
        try:
            log = read_log(self.files)
            if log is not None:
                self._has_log = True
                self._roll_forward(log)
                self.is_complete = log.plan == self._plan
                self.result = log.result if self.is_complete else None
            self._open_staging()
        except BaseException:
            self._claim.release()
            raise
        return self

    def close(self) -> None:
        """Drop what isn't committed, and release the lock. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True  # afterwards the staging directory is that of another writer
        try:
            for one in self._staged.values():
                one.abort()
            if not self._has_log and not (self._kept is not None and self._kept.hold and not self._is_committed):
                remove_tree(self._os, self.files.staging_path)
        finally:
            if self._claim is not None:
                self._claim.release()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def stage(self, name: str) -> LocalStaged:
        """Start a file. Files become visible in the order of these calls, the last name of the output at the end."""
        if name in self._staged or not self.files.owns(name):
            raise ValueError(f"{name}: staged twice, or not a file of this output")
        if self._is_committed:
            raise ValueError(f"{self.files.path}: the output was already committed")
        require_replaceable_file(self.files.path_of(name))
        require_movable(self.files.path_of(name))
        staged = LocalStaged(
            self._os.plain, self.files.staged_path_of(name), overwrite=False, inside=True, kept=self._kept
        )
        self._staged[name] = staged
        return staged

    def commit(
        self,
        result: Any = None,
        *,
        remove: Sequence[str] = (),
        new: Collection[str] = (),
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Make all staged files visible, in place of the old ones.

        If this raises after the log became visible, the output is committed, and the next writer completes the commit.

        Args:
            result: plain JSON for a run of the same plan; see `result` of the class.
            remove: files of the old output that are removed.
            new: files that must not replace existing ones.
            check: called when the staged files are durable; may raise an error to cancel the commit.

        Raises:
            ConfigError: a file exists, or a directory or special file is in its place.
        """
        last = self.files.names[-1]
        names = [name for name in self._staged if name != last] + [last] * (last in self._staged)
        if self._is_committed or not names or not all(map(self.files.owns, remove)):
            raise ValueError(f"{self.files.path}: committed twice, no files, or not files of this output")
        # A single file is replaced by one rename. With several, other tools must not see the old last file.
        removed = dict.fromkeys([*names[-1:] * (len(names) + len(remove) > 1), *remove])
        log = CommitLog(self._plan, result, tuple(names), tuple(removed))
        data = log.encode(self.files.path)
        for one in self._staged.values():
            one.commit()
        check()
        for name in (*names, *remove):
            require_replaceable_file(self.files.path_of(name))
            require_movable(self.files.path_of(name))
            if name in new and is_there(self.files.path_of(name)):
                raise output_exists(self.files.path, self.files.path_of(name))
        try:
            self._write_log(data)
            self._roll_forward(log)
        except OSError:
            if not self._has_log:
                raise
            sync_folder(self._os, self.files.folder)  # a second try, because an error may be temporary
            self._roll_forward(log)

    def _open_staging(self) -> None:
        folder, path, is_joined = self.files.folder, self.files.staging_path, not isinstance(self._claim, LocalClaim)
        for (
            name
        ) in self.files.names:  # what a killed writer of version 0.2 left: staged files, and locks of other files
            take_leftovers(self._os, folder, name, keep=False)
            if not is_joined and name != self.files.names[0] and is_there(lock_path(self.files.path_of(name))):
                LocalClaim(self._os, self.files.path_of(name)).release()
        if is_there(path):
            # The removal of an earlier log may not be durable yet. That log must not come back with other staged files.
            sync_folder(self._os, folder)
            if self._kept is not None and _is_own_folder(path):
                return
            remove_tree(self._os, path)
            if is_there(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
                self._os.unlink(path)
        try:
            self._os.mkdir(path)
        except FileExistsError:
            what = "the staging directory of the output can't be removed"
            raise ConfigError(what, path=path, hint="Remove it, or choose another output") from None

    def _write_log(self, data: bytes) -> None:
        path = self.files.staged_path_of(NEW_LOG_NAME)
        fd = self._os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[self._os.write(fd, view) :]
            self._os.fsync(fd)
        finally:
            self._os.close(fd)
        block_old_writers(self._os, self.files.path)
        sync_folder(self._os, self.files.staging_path)
        self._has_log = True  # before the rename: an interrupt may come right after it
        try:
            self._os.rename(path, self.files.log_path)
        except BaseException:
            self._has_log = is_there(self.files.log_path)
            raise
        sync_folder(self._os, self.files.folder)

    def _roll_forward(self, log: CommitLog) -> None:
        _roll_forward(self._os, self.files, log)
        self._has_log, self._is_committed = False, bool(self._staged)
        remove_tree(self._os, self.files.staging_path)


def complete_commit(files: OutputFiles, os_module: Any = os) -> None:
    """Complete an interrupted commit of an output whose lock the caller holds, and remove what it left."""
    log = read_log(files)
    if log is not None:
        _roll_forward(os_module, files, log)
        remove_tree(os_module, files.staging_path)
    elif is_there(files.staging_path):
        with contextlib.suppress(OSError):  # files of a run that was killed before its commit stay
            for name in {NEW_LOG_NAME, LOCK_FILE}.intersection(os.listdir(files.staging_path)):
                os_module.unlink(files.staged_path_of(name))
            os_module.rmdir(files.staging_path)


def _roll_forward(os_module: Any, files: OutputFiles, log: CommitLog) -> None:
    """Rename and remove what the log names. May be repeated, from any state in which it was interrupted."""
    folder, *others, last = files.folder, *log.files
    if files.is_staged(last):  # else all is renamed, and the files of today may be those of a later writer
        staged = [name for name in others if files.is_staged(name)]
        for number, name in enumerate(log.remove):
            with contextlib.suppress(FileNotFoundError):
                os_module.unlink(files.path_of(name))
            if number == 0:
                sync_folder(os_module, folder)
        for name in staged:
            os_module.rename(files.staged_path_of(name), files.path_of(name))
        if others:
            sync_folder(os_module, folder)
        os_module.rename(files.staged_path_of(last), files.path_of(last))
        sync_folder(os_module, folder)
    with contextlib.suppress(FileNotFoundError):
        os_module.unlink(files.log_path)
    sync_folder(os_module, folder)


def _is_own_folder(path: str) -> bool:
    """Return whether a directory contains only regular files of this user, with one name each."""
    user, status = os.geteuid(), os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user:
        return False
    with os.scandir(path) as entries:
        found = [entry.stat(follow_symlinks=False) for entry in entries]
    return all(one.st_uid == user and stat.S_ISREG(one.st_mode) and one.st_nlink == 1 for one in found)

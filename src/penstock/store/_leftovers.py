"""Hidden files of killed writers: the next writer of the same output removes them or continues them.

A writer that continues a file is expected to write the same bytes again: each piece is compared, and only differences
are written. So a killed run resumes at read speed, without a journal, and no old bytes get into the result.

The hidden names of a file are numbered and depend only on its final name. A writer takes the first name that no running
writer has, so hidden files are found without listing the directory. Names after a gap in the numbering, and the random
names of version 0.1, are found by a listing that each process makes once per directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock._secrets import logger
from penstock.errors import ConfigError, PenstockError, Unreachable
from penstock.store._files import (
    NO_SECOND_NAME,
    is_folder,
    is_link,
    is_there,
    raised,
    remove_tree,
    sync_folder,
    try_to_remove,
)
from penstock.store.names import (
    KEPT_FOLDER,
    is_staged_for,
    is_staged_name,
    nth_staged_name,
    staged_start,
    start_of_staged,
)

Owned: TypeAlias = Callable[[str], "Collection[str] | None"]
"""Maps a folder to the files of the dataset in it, as relative paths, the one that makes it visible last; None if there
is no dataset."""

_SHOWN = 3
_log = logger()


def listed(own: Owned | None, folder: str) -> list[str] | None:
    """Return the files of a directory's dataset; None without one, or if its list is damaged or names files outside."""
    try:
        names = None if own is None else own(folder)
    except PenstockError as error:
        if isinstance(error, Unreachable):
            raise
        return None
    names = None if names is None else list(names)
    return names if names is None or all(map(_is_inside, names)) else None


def _is_inside(name: str) -> bool:
    """Return whether a name stays inside its directory; lists are untrusted, and their files are removed."""
    return "\0" not in name and not any(piece in ("", ".", "..") for piece in name.split("/"))


def unlisted_files(
    folder: str, names: Collection[str], unfinished: Callable[[str], bool] | None = None
) -> Iterator[str]:
    """Yield the relative paths of a directory's other contents: files, links and empty directories.

    Args:
        folder: the directory.
        names: names of the expected files.
        unfinished: returns whether a name belongs to unfinished work, which is skipped.

    Raises:
        OSError: a directory in it can't be read.
    """
    known = set(names)
    above = folders_of(known)
    for root, folders, files in os.walk(folder, onerror=raised):
        folders[:] = sorted(name for name in folders if not is_staged_name(name))
        inner = "" if root == folder else os.path.relpath(root, folder) + "/"
        if not inner and unfinished is not None:
            folders[:] = [name for name in folders if f"{name}/" in above or not unfinished(name)]
            files = [name for name in files if not unfinished(name)]
        links = [name for name in folders if is_link(os.path.join(root, name))]
        for name in sorted(files + links):
            is_way = f"{inner}{name}/" in above  # for a link: files below it don't belong to this folder
            if (inner + name not in known or is_way) and not is_staged_name(name):
                yield inner + name
        if inner and not files and not folders and inner not in above:
            yield inner


def folders_of(names: Collection[str]) -> set[str]:
    """Return the directories of files, as relative paths that end in a slash."""
    return {name[: place + 1] for name in names for place, letter in enumerate(name) if letter == "/"}


def require_replaceable(folder: str, own: Owned | None) -> list[str]:
    """Return the files of the dataset in a directory; raise `ConfigError` without one, or if there are other files."""
    if not is_folder(folder) or is_link(folder):
        raise ConfigError(
            "the existing output is not a folder", path=folder, hint="Choose another output, or remove it"
        )
    names = listed(own, folder)
    refuse_unlisted(folder, list(unlisted_files(folder, names or ())), names=names is not None)
    return names or []


def refuse_unlisted(folder: str, others: Sequence[str], *, names: bool) -> None:
    """Raise `ConfigError` if a directory contains `others`; without `names`, because it has no dataset."""
    if names and not others:
        return
    more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    raise ConfigError(
        "the folder contains files that aren't part of its dataset"
        if names
        else "the folder doesn't contain a dataset in this format",
        path=folder,
        found=", ".join(others[:_SHOWN]) + more if others else None,
        expected="only files listed in the index of the dataset",
        hint="Choose another output, or remove them",
    )


def drop_replaced(os_module: Any, folder: str, names: Collection[str], target: str) -> None:
    """Remove the files of a replaced dataset; if there is anything else, the directory stays.

    Args:
        os_module: module that does the work.
        folder: hidden directory of the replaced dataset.
        names: names of the files that it lists, the one that makes it visible last.
        target: the output; a directory that stays is renamed to a name next to it, and logged.
    """
    if next(unlisted_files(folder, names), None) is None:
        _remove_listed(os_module, folder, names)
    left = next(unlisted_files(folder, names), None)
    if left is not None:  # a file that appeared at the last moment
        kept = f"{target}{KEPT_FOLDER}{secrets.token_hex(4)}"
        os_module.rename(folder, kept)
        _log.warning(
            "%s: the replaced output contains %s, which isn't part of its dataset: kept as %s", target, left, kept
        )


def _remove_listed(os_module: Any, folder: str, names: Collection[str]) -> None:
    """Remove the files in the order of `names`, which may be duplicate or missing, then empty directories."""
    for name in names:
        if is_there(path := os.path.join(folder, name)):
            try_to_remove(os_module.unlink, path)
    for root, _, files in os.walk(folder, topdown=False):
        hidden = any(map(is_staged_name, os.path.relpath(root, folder).split("/")))
        for name in files:
            if hidden or is_staged_name(name):  # a killed writer left it
                try_to_remove(os_module.unlink, os.path.join(root, name))
        try_to_remove(os_module.rmdir, root)


_PIECE_BYTES = 1 << 20
_MOST_FOLDERS = 1 << 12


@dataclass(slots=True)
class Kept:
    """Reuse of killed writers' files: bytes already written; with `hold`, aborted files stay for the next run."""

    bytes: int = 0
    hold: bool = False


def give_name(os_module: Any, path: str, name: str) -> bool:
    """Hard-link a file to `name`, replacing a file of that name; return False if the file system has no hard links."""
    taken = is_there(name)
    folder, base = os.path.split(name)
    numbers = itertools.count()
    while True:
        temp = os.path.join(folder, nth_staged_name(base, next(numbers))) if taken else name
        try:
            os_module.link(path, temp)
            break
        except OSError as error:
            if taken and error.errno == errno.EEXIST:
                continue
            if error.errno not in NO_SECOND_NAME:
                raise
            return False
    if taken:
        try:
            os_module.rename(temp, name)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os_module.unlink(temp)  # needed if both already were names of one file
    sync_folder(os_module, os.path.dirname(os.path.abspath(name)))
    return True


def make_staged(
    os_module: Any, folder: str, name: str, flags: int = os.O_EXCL, *, hidden: bool = True, is_folder: bool = False
) -> tuple[str, int]:
    """Make a staged file or directory, and lock it; return its path and open descriptor.

    Args:
        os_module: module that does the work.
        folder: its directory.
        name: its final name.
        flags: `os.O_EXCL`, or 0 for a file that may exist.
        hidden: use a hidden name.
        is_folder: make a directory.
    """
    how = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_CREAT | flags
    numbers = itertools.count()
    while True:
        path = os.path.join(folder, nth_staged_name(name, next(numbers)) if hidden else name)
        made = False
        try:
            if is_folder:
                os_module.mkdir(path)
                made = True
            fd = os_module.open(path, how | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if hidden and isinstance(error, FileExistsError):
                continue  # a running writer has this name
            if made and isinstance(error, FileNotFoundError):
                continue  # removed before it could be locked
            if made:
                with contextlib.suppress(OSError):
                    os_module.rmdir(path)
            raise
        if not hidden and os.fstat(fd).st_nlink > 1:  # writes would be visible under another name
            os_module.unlink(path)
        elif _is_locked(os_module, fd, path) or not hidden:
            return path, fd
        os_module.close(fd)


def _is_locked(os_module: Any, fd: int, path: str) -> bool:
    """Lock a new file; return False if another writer mistook it for a dead writer's file and removes it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os_module.fstat(fd), os_module.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def take_leftovers(
    os_module: Any, folder: str, name: str, *, keep: bool, want_folder: bool = False, own: Owned | None = None
) -> tuple[str, int] | None:
    """Remove the leftovers of dead writers of `name` in `folder`.

    Args:
        os_module: module that does the work.
        folder: the directory.
        name: the final name.
        keep: return one of them instead of removing it.
        want_folder: return a directory, not a file.
        own: lists the files of a dataset in a directory; only these are removed from a replaced dataset.

    Returns:
        Path and open, locked descriptor, or None.
    """
    taken: tuple[str, int] | None = None
    for entry in _left_behind(folder, name):
        path = os.path.join(folder, entry)
        with contextlib.suppress(OSError):
            kind = os.lstat(path).st_mode
            is_folder = stat.S_ISDIR(kind)
            if not is_folder and not stat.S_ISREG(kind):
                continue  # no writer makes a link or a pipe
            how = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR
            fd = os_module.open(path, how | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer runs
                if not _is_of(fd, path):
                    continue  # its writer ended meanwhile, and this file belongs to another writer
                # A file with a second name is already visible, and so would be any write to it.
                hidden = is_folder or os.fstat(fd).st_nlink == 1
                names = listed(own, path) if is_folder else None
                if names is not None and next(unlisted_files(path, names), None) is not None:
                    drop_replaced(os_module, path, names, os.path.join(folder, name))
                elif keep and taken is None and is_folder == want_folder and hidden and _is_own(path, fd):
                    taken, fd = (path, fd), -1
                elif is_folder:
                    remove_tree(os_module, path)
                else:
                    os_module.unlink(path)
            finally:
                if fd >= 0:
                    os_module.close(fd)
    return taken


def _left_behind(folder: str, name: str) -> Iterator[str]:
    """Yield hidden names in `folder` of running and dead writers of `name`; some may no longer exist."""
    known = _listed_once(folder, os.getpid()).pop(staged_start(name), ())
    yield from (entry for entry in known if is_staged_for(entry, name))
    for number in itertools.count():
        entry = nth_staged_name(name, number)
        if not is_there(os.path.join(folder, entry)):
            return
        yield entry


@functools.lru_cache(maxsize=_MOST_FOLDERS)
def _listed_once(folder: str, _pid: int) -> dict[str, list[str]]:
    """Return start of a hidden name → hidden names, as listed when this process first wrote in the directory."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):
        for entry in filter(is_staged_name, os.listdir(folder)):
            found.setdefault(start_of_staged(entry), []).append(entry)
    return found


def remove_own(os_module: Any, fd: int, path: str) -> None:
    """Remove the file of an open descriptor that holds its lock, if it still has this name."""
    for _ in range(2):  # an error may be temporary
        with contextlib.suppress(OSError):
            if _is_of(fd, path):
                os_module.unlink(path)
            return


def _is_of(fd: int, path: str) -> bool:
    return os.path.samestat(os.fstat(fd), os.lstat(path))


def _is_own(path: str, fd: int) -> bool:
    """Return whether a file, or everything in a directory, belongs to this user and isn't a link."""
    user = os.geteuid()
    if os.fstat(fd).st_uid != user:
        return False
    for root, folders, names in os.walk(path):
        for name in folders + names:
            status = os.lstat(os.path.join(root, name))
            if status.st_uid != user or not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
                return False
    return True


def drop_second_names(os_module: Any, path: str) -> None:
    """Remove the hidden names of a visible file, left by a writer that was killed between its last two calls."""
    folder, name = os.path.split(os.path.abspath(path))
    with contextlib.suppress(OSError):
        visible = os.stat(path)
        if visible.st_nlink == 1:
            return
        for entry in _left_behind(folder, name):
            hidden = os.path.join(folder, entry)
            with contextlib.suppress(OSError):
                if os.path.samestat(os.lstat(hidden), visible):
                    fd = os_module.open(hidden, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
                        remove_own(os_module, fd, hidden)
                    finally:
                        os_module.close(fd)


def write_what_differs(os_module: Any, fd: int, offset_bytes: int, view: memoryview, kept: Kept) -> int:
    """Write a piece of `view` unless the file already has these bytes; return its length."""
    piece = view[:_PIECE_BYTES]
    if os_module.pread(fd, len(piece), offset_bytes) == bytes(piece):
        kept.bytes += len(piece)
        return len(piece)
    return os_module.pwrite(fd, piece, offset_bytes)


def remove_others(os_module: Any, root: str, names: set[str]) -> None:
    """Remove the files under `root` that are not in `names`, relative to it, then empty directories."""
    for folder, _, files in os.walk(root, topdown=False, onerror=raised):
        for name in files:
            path = os.path.join(folder, name)
            if os.path.relpath(path, root) not in names:
                os_module.unlink(path)
        if folder != root and not os.listdir(folder):
            os_module.rmdir(folder)


_YOUNG_S = 60.0  # a younger file may not be locked yet by its writer


def sweep(folder: str) -> None:
    """Remove staged files of dead writers; once per process and directory."""
    _sweep(folder, os.getpid())


@functools.cache
def _sweep(folder: str, _pid: int) -> None:
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            if is_staged_name(entry):
                remove_if_dead(os.path.join(folder, entry))


def remove_if_dead(path: str) -> None:
    """Remove a file unless its owner holds its lock, or it is less than a minute old."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A time in the future comes from a clock that was set back since, and doesn't protect the file.
            if abs(time.time() - os.fstat(fd).st_mtime) > _YOUNG_S:
                os.unlink(path)
        finally:
            os.close(fd)

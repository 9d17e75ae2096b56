"""What a killed writer left: hidden files, removed by the next writer of the same thing, or taken over by it.

Who takes a file over writes the same bytes again, as far as anybody knows: each piece is compared with what stands
there, and only what differs is written. So a run that was killed goes on at the speed of reading, nothing has to be
remembered, and nothing old can get into the result.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from dataclasses import dataclass
from typing import Any

from penstock.store._files import NO_SECOND_NAME, remove_tree, sync_folder
from penstock.store._named import raised
from penstock.store._replaced import STAGED_SUFFIX, Owned, drop_replaced, is_staged_name, listed, strangers

_PIECE_BYTES = 1 << 20


@dataclass(slots=True)
class Kept:
    """What is kept of a killed writer's files, over all files of a store.

    Attributes:
        bytes: found written already.
        hold: files that are given up stay for the next run, instead of being removed.
    """

    bytes: int = 0
    hold: bool = False


__all__ = [
    "Kept",
    "is_staged_for",
    "make_staged",
    "remove_others",
    "staged_name",
    "staged_start",
    "take_leftovers",
    "write_what_differs",
]


def staged_name(name: str, token: str | None = None) -> str:
    """A hidden name for a file that will be called `name`; `token` is 8 hex digits, by default random ones."""
    return f"{staged_start(name)}{token or secrets.token_hex(4)}{STAGED_SUFFIX}"


def is_staged_for(entry: str, name: str) -> bool:
    """Whether a file name is one that `staged_name` gives for `name`."""
    start = staged_start(name)
    return entry.startswith(start) and is_staged_name(entry) and len(entry) == len(start) + 8 + len(STAGED_SUFFIX)


def give_name(os_module: Any, path: str, name: str) -> bool:
    """Give a file a second name, in the place of a file of that name."""
    taken = os.path.lexists(name)
    temp = os.path.join(os.path.dirname(name), staged_name(os.path.basename(name))) if taken else name
    try:
        os_module.link(path, temp)
    except OSError as error:
        if error.errno not in NO_SECOND_NAME:
            raise
        return False
    if taken:
        try:
            os_module.rename(temp, name)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os_module.unlink(temp)  # also where both were names of one file already
    sync_folder(os_module, os.path.dirname(os.path.abspath(name)))
    return True


def make_staged(
    os_module: Any, folder: str, name: str, flags: int = os.O_EXCL, *, hidden: bool = True, is_folder: bool = False
) -> tuple[str, int]:
    """Make a staged file or folder, and lock it; returns its path and open descriptor.

    Args:
        os_module: does the work.
        folder: where.
        name: what it will be called.
        flags: `os.O_EXCL`, or 0 for a file that may be there.
        hidden: under a hidden name until then.
        is_folder: make a folder.
    """
    how = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_CREAT | flags
    while True:
        path = os.path.join(folder, staged_name(name) if hidden else name)
        if is_folder:
            os_module.mkdir(path)
        try:
            fd = os_module.open(path, how | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if is_folder and isinstance(error, FileNotFoundError):
                continue  # as below, before it could be locked
            if is_folder:
                with contextlib.suppress(OSError):
                    os_module.rmdir(path)
            raise
        if not hidden and os.fstat(fd).st_nlink > 1:  # another name of it would see what is written
            os_module.unlink(path)
        elif _is_locked(os_module, fd, path) or not hidden:
            return path, fd
        os_module.close(fd)


def _is_locked(os_module: Any, fd: int, path: str) -> bool:
    """Lock what was just made; False where another writer took it for that of a dead one, and removes it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os_module.fstat(fd), os_module.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def take_leftovers(
    os_module: Any, folder: str, name: str, *, keep: bool, want_folder: bool = False, own: Owned | None = None
) -> tuple[str, int] | None:
    """Remove what dead writers of `name` left in `folder`.

    Args:
        os_module: does the work.
        folder: where.
        name: what it would have been called.
        keep: take one of them over, instead of removing it.
        want_folder: the one to take over is a folder, else a file.
        own: tells what a dataset in a folder lists: of one that was replaced, nothing else is removed.

    Returns:
        Path and open, locked descriptor of the one that is taken over; None where there is none.
    """
    taken: tuple[str, int] | None = None
    for entry in os.listdir(folder):
        if not is_staged_for(entry, name):
            continue
        path = os.path.join(folder, entry)
        with contextlib.suppress(OSError):
            kind = os.lstat(path).st_mode
            is_folder = stat.S_ISDIR(kind)
            if not is_folder and not stat.S_ISREG(kind):
                continue  # no writer makes a link or a pipe
            how = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR
            fd = os_module.open(path, how | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
                # A file with a second name is visible already: what is written to it would be seen.
                hidden = is_folder or os.fstat(fd).st_nlink == 1
                names = listed(own, path) if is_folder else None
                if names is not None and next(strangers(path, names), None) is not None:
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


def _is_own(path: str, fd: int) -> bool:
    """Whether a file, or all in a folder, is of this user and no link: nothing else is written to, and none escapes."""
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
    """Remove the hidden names of a visible file: what a writer leaves that is killed between its last two calls."""
    folder, name = os.path.split(os.path.abspath(path))
    with contextlib.suppress(OSError):
        visible = os.stat(path)
        if visible.st_nlink == 1:
            return
        for entry in os.listdir(folder):
            hidden = os.path.join(folder, entry)
            if entry.startswith(staged_start(name)) and is_staged_name(entry):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.lstat(hidden), visible):
                        os_module.unlink(hidden)


def write_what_differs(os_module: Any, fd: int, offset_bytes: int, view: memoryview, kept: Kept) -> int:
    """Have a piece of `view` stand at `offset_bytes`; returns its length."""
    piece = view[:_PIECE_BYTES]
    if os_module.pread(fd, len(piece), offset_bytes) == bytes(piece):
        kept.bytes += len(piece)
        return len(piece)
    return os_module.pwrite(fd, piece, offset_bytes)


def remove_others(os_module: Any, root: str, names: set[str]) -> None:
    """Remove the files under `root` that are not in `names` (paths relative to it)."""
    for folder, _, files in os.walk(root, onerror=raised):
        for name in files:
            path = os.path.join(folder, name)
            if os.path.relpath(path, root) not in names:
                os_module.unlink(path)


def staged_start(name: str) -> str:
    """What the hidden names begin with that `staged_name` gives."""
    # Cut so that a long final name still leaves room below the usual 255 bytes.
    return f".{os.fsdecode(os.fsencode(name)[:200])}."

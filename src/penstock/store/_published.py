"""Files in the cache folder, with a record that shows whether they changed since their publication.

The record `<name>.json` holds what the file is, its xxh3-128 digest, and owner, inode, size and time of the last change
(ctime) right after publication. While these four are the same, the file was not written to, and it is trusted without
reading it. Otherwise its digest decides, at the first use in a process.

Only its owner may write to a file or its record. Both are trusted if they belong to this user, to root or to the owner
of the folder; or to any user, if the folder is not writable by everybody.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codec.hashes import hex_digest
from penstock.store.local import LocalStore
from penstock.store.mapped import map_open
from penstock.store.put import aborting

DIGEST = "xxh3_128"
_MOST_RECORD_BYTES = 1 << 16
_MOST_MAPPED = 128
_TOUCH_S = 30.0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Published:
    """A file in the cache folder.

    Attributes:
        path: of the file.
        data: uint8[size_bytes], mapped read-only.
        about: content of its record; empty without a trusted one.
        identity: current owner, inode, size and time of the last change.
        unchanged: they are those of its publication, and others can't write to it.
    """

    path: str
    data: NDArray[np.uint8]
    about: Mapping[str, Any]
    identity: tuple[int, ...]
    unchanged: bool

    def is_right(self, start_bytes: int = 0) -> bool:
        """Return whether the bytes from `start_bytes` on have the recorded digest; reads all of them."""
        return self.about.get("digest") == hex_digest(DIGEST, self.data[start_bytes:])


def open_published(path: str) -> Published | None:
    """Return the file at `path`, correct or not; None if it can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        data = map_open(fd, status.st_size)
    finally:
        os.close(fd)
    about = _record(path) if _is_believed(path, status) else {}
    identity = _identity(status)
    unchanged = about.get("identity") == list(identity) and not status.st_mode & _OTHERS_WRITE
    return Published(path, data, about, identity, unchanged)


def write_record(path: str, about: Mapping[str, Any], digest: str) -> None:
    """Write the record of a file that was published, or found correct, and make the file read-only.

    Args:
        path: of the file.
        about: information for its readers.
        digest: of its bytes, or of those that `Published.is_right` looks at.
    """
    _seal(path)
    with aborting(LocalStore().stage(_record_path(path), overwrite=True)) as staged:
        text = {**about, "digest": digest, "identity": list(_identity(os.stat(path, follow_symlinks=False)))}
        staged.write(json.dumps(text).encode())
        staged.sync()
        _seal(staged.hidden_path)
        staged.commit()


def require_publishable(path: str) -> None:
    """Raise `OSError` if a directory or a special file has the name of a file or its record."""
    for one in (path, _record_path(path)):
        with contextlib.suppress(FileNotFoundError):
            mode = os.lstat(one).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                raise OSError(errno.EEXIST, f"{one} is not a regular file", one)


def note_use(path: str) -> None:
    """Set the time of a file's record to now, if allowed: touching the file would change its ctime."""
    with contextlib.suppress(OSError):
        os.utime(_record_path(path))


def remove_published(path: str) -> None:
    """Remove a file and its record, if allowed."""
    for one in (path, _record_path(path)):
        with contextlib.suppress(OSError):
            os.unlink(one)


def _record_path(path: str) -> str:
    return os.path.splitext(path)[0] + ".json"


def _record(path: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        fd = os.open(_record_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and not status.st_mode & _OTHERS_WRITE and _is_believed(path, status):
                found = json.loads(file.read(_MOST_RECORD_BYTES))
                return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    return {}


def _is_believed(path: str, status: os.stat_result) -> bool:
    folder = os.stat(os.path.dirname(path))
    return status.st_uid in (0, os.geteuid(), folder.st_uid) or not folder.st_mode & stat.S_IWOTH


def _seal(path: str) -> None:
    mode = stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode)
    if mode & 0o222:
        os.chmod(path, mode & ~0o222)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_uid, status.st_ino, status.st_size, status.st_ctime_ns


@dataclass(frozen=True, slots=True)
class _Mapped:
    copy: Published
    whole: bool
    noted: float


class InUse:
    """The most recently used copies that a process has mapped, and the files for which it looked on the disk.

    A mapping holds a file open, so their number is bounded.
    """

    __slots__ = ("_looked", "_mapped")

    def __init__(self) -> None:
        self._mapped: OrderedDict[str, _Mapped] = OrderedDict()
        self._looked: set[str] = set()

    def get(self, path: str, *, whole: bool) -> Published | None:
        """Return the mapped copy of a file; with `whole`, only one that was checked completely."""
        known = self._mapped.get(path)
        return known.copy if known is not None and (known.whole or not whole) else None

    def used(self, path: str) -> Published | None:
        """Return the mapped copy of a file, and note its use now and then."""
        known = self._mapped.get(path)
        if known is None:
            return None
        if time.monotonic() - known.noted > _TOUCH_S:
            note_use(self.keep(path, known.copy, whole=known.whole).path)
        return known.copy

    def keep(self, path: str, copy: Published, *, whole: bool) -> Published:
        self._mapped[path] = _Mapped(copy, whole, time.monotonic())
        while len(self._mapped) > _MOST_MAPPED:
            dropped, _ = self._mapped.popitem(last=False)
            self._looked.discard(dropped)  # its copy may still be on the disk
        return copy

    def is_first_look(self, path: str) -> bool:
        """Return whether this is the first call for a file: copies are looked for on the disk once."""
        is_first = path not in self._looked
        self._looked.add(path)
        return is_first

    def look_again(self) -> None:
        self._looked.clear()

    def forget(self, path: str) -> None:
        self._mapped.pop(path, None)
        self._looked.discard(path)

    def clear(self) -> None:
        self._mapped.clear()
        self._looked.clear()

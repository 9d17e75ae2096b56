"""Versions of remote files that this host has seen, so that each of its processes need not request them again.

`<name>.seen` in the folder of the copies records size and version of a file, and when a server reported them. It counts
for a store that was opened before, or at most a minute after; otherwise the version is requested once, for all. The
name is a digest of the URL. A file without an index may decide which dataset this is: then the note counts only for
stores that were opened before. A lost or torn note costs a request.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

import msgspec

from penstock._digest import digest
from penstock.store.base import Head

_MOST_BYTES = 1 << 12
_BEFORE_S = 60.0
_CLOCK_S = 5.0


class _Seen(msgspec.Struct, frozen=True):
    """A note.

    Attributes:
        url: digest of the URL.
        size_bytes, version, modified: as in `Head`.
        seen_s: when, by the clock of this host.
    """

    url: str
    size_bytes: int
    version: str
    modified: str
    seen_s: float


def noted(
    folder: str, url: str, size_bytes: int | None, opened_s: float, *, decides: bool = False
) -> tuple[Head | None, bool]:
    """Return the note of a file, or None, and whether it counts for a store opened at `opened_s`."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fd = os.open(_path(folder, url), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            about, around = os.fstat(fd), os.stat(folder)
            mine = about.st_uid in (0, os.geteuid(), around.st_uid) or not around.st_mode & stat.S_IWOTH
            if not stat.S_ISREG(about.st_mode) or not mine or about.st_mode & stat.S_IWOTH:
                return None, False
            one = msgspec.json.decode(os.read(fd, _MOST_BYTES), type=_Seen)
        finally:
            os.close(fd)
        if one.url == digest(url) and size_bytes in (None, one.size_bytes) and (one.version or one.modified):
            before_s = 0.0 if decides else _BEFORE_S
            is_young = opened_s - before_s <= one.seen_s <= time.time() + _CLOCK_S
            return Head(one.size_bytes, one.version, one.modified), is_young
    return None, False


def note(folder: str, url: str, head: Head) -> None:
    """Note what a server reported just now, if it reported a version and the folder is writable."""
    if not head.identity:
        return
    data = msgspec.json.encode(_Seen(digest(url), head.size_bytes, head.version, head.modified, time.time()))
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(_path(folder, url), flags, 0o644)
        try:
            if os.fstat(fd).st_nlink == 1:
                os.ftruncate(fd, 0)
                os.pwrite(fd, data, 0)
        finally:
            os.close(fd)


def deciding_path(folder: str, url: str) -> str:
    """Return the lock of the process that requests the first bytes of a file that nobody has seen."""
    return _path(folder, url).removesuffix("seen") + "lock"


def drop_lock(folder: str, url: str) -> None:
    """Remove that lock, which its process still holds."""
    with contextlib.suppress(OSError):
        os.unlink(deciding_path(folder, url))


def _path(folder: str, url: str) -> str:
    return os.path.join(folder, f"{digest('seen', url)[:32]}.seen")

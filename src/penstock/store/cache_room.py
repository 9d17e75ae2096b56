"""Space management of the cache folder: a running total, and a scan of the folder only if the total is in doubt.

The total is in the file that all processes of the host lock while they make room. It is raised before a copy is
fetched, and lowered if the fetch fails, so a killed process leaves it too high, never too low. Copies removed by hand,
or by a run at its end, leave it too high as well. The folder is scanned again

- if a copy would not fit according to the total,
- if the total is missing or damaged,
- after a reboot,
- if some users may write to the folder but not to the file, and
- when the number of copies has doubled since the last scan.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from penstock._digest import digest
from penstock.store._leftovers import remove_if_dead
from penstock.store.derived import cache_folder, remove_published
from penstock.store.lock import hold_lock, locked_file
from penstock.store.names import LOCK_FILE

COPY_NAME = re.compile(r"^[0-9a-f]{32}\.(copy|json|lock)$")
_NOTE = re.compile(r"^[0-9a-f]{32}\.seen$")
_NOTE_S = 30 * 86400.0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_BYTES = 1 << 10
_FEW_COPIES = 256
_MANY_COPIES = 1 << 10
_SPARE = 32
"""With more than `_MANY_COPIES` copies, 1/32 of the budget is freed at once, so that scans are rare."""
_CLOCK_S = 60.0

Found: TypeAlias = "tuple[float, int, str]"
"""Last use, size in bytes and path of a copy, or of the lock of a copy that is being fetched."""


class _Total(msgspec.Struct, frozen=True):
    """Content of the file: the fields of `Room`, the boot during which it was written, and a digest."""

    used_bytes: int
    copies: int
    counted: int
    boot: str
    check: str


@dataclass(slots=True)
class Room:
    """Total of the copies while it is locked; changes are written at the end.

    Attributes:
        used_bytes: size of all copies, including those that are being fetched.
        copies: number of copies.
        counted: number of copies at the last scan of the folder; -1 if a scan is necessary.
    """

    used_bytes: int = 0
    copies: int = 0
    counted: int = -1

    @property
    def in_doubt(self) -> bool:
        """Whether the folder must be scanned before the total is valid."""
        return self.counted < 0 or self.copies > 2 * self.counted + _FEW_COPIES

    def look(self, folder: str, own_lock: str) -> list[Found]:
        """Scan the folder and count all copies except this process's reservation."""
        found = [one for one in _scan(folder) if one[2] != own_lock]
        self.used_bytes = sum(one_bytes for _, one_bytes, _ in found)
        self.copies = self.counted = len(found)
        return found

    def evict(self, found: list[Found], allowed_bytes: int, size_bytes: int) -> None:
        """Remove the least recently used copies, if allowed, until `size_bytes` more fit."""
        spare_bytes = allowed_bytes // _SPARE if len(found) > _MANY_COPIES else 0
        if self.used_bytes + size_bytes <= allowed_bytes:
            return
        for _, one_bytes, path in sorted(found):
            if self.used_bytes + size_bytes + spare_bytes <= allowed_bytes:
                break
            if path.endswith(LOCK_FILE):
                remove_if_dead(path)
            else:
                remove_published(path)
            if not os.path.exists(path):
                self.used_bytes -= one_bytes
                self.copies -= 1


@contextlib.contextmanager
def room_in(folder: str) -> Generator[Room]:
    """Yield the total of the copies in `folder`, locked for this process."""
    with locked_file(os.path.join(folder, f"budget{LOCK_FILE}")) as fd:
        room = Room()
        with contextlib.suppress(OSError):
            room = _read(fd, folder)
        before = Room(room.used_bytes, room.copies, room.counted)
        try:
            yield room
        finally:
            if room != before:
                with contextlib.suppress(OSError):  # another user's file: then nobody trusts it, see `_read`
                    _write(fd, folder, room)


def _read(fd: int, folder: str) -> Room:
    """Return the recorded total, or a `Room` in doubt if the record can't be trusted."""
    about, around = os.fstat(fd), os.stat(folder)
    if _missing_rights(about, around):
        return Room()
    try:
        total = msgspec.json.decode(os.pread(fd, _MOST_BYTES, 0), type=_Total)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Room()
    if total != _total(total.used_bytes, total.copies, total.counted) or total.used_bytes < 0:
        return Room()
    return Room(total.used_bytes, total.copies, total.counted)


def _write(fd: int, folder: str, room: Room) -> None:
    about, around = os.fstat(fd), os.stat(folder)
    if _missing_rights(about, around):
        with contextlib.suppress(PermissionError):
            os.fchmod(fd, stat.S_IMODE(about.st_mode) | around.st_mode & _OTHERS_WRITE)
    data = msgspec.json.encode(_total(max(0, room.used_bytes), max(0, room.copies), room.counted))
    os.ftruncate(fd, 0)  # after a kill here, the folder is scanned again
    os.pwrite(fd, data, 0)


def _missing_rights(about: os.stat_result, around: os.stat_result) -> bool:
    """Return whether some user may write to the folder but not to the file."""
    needed = around.st_mode & _OTHERS_WRITE
    same_group = about.st_gid == around.st_gid or not needed & stat.S_IWGRP or bool(needed & stat.S_IWOTH)
    return bool(needed & ~about.st_mode) or not same_group


def _total(used_bytes: int, copies: int, counted: int) -> _Total:
    boot = _boot()
    return _Total(used_bytes, copies, counted, boot, digest(used_bytes, copies, counted, boot))


def _boot() -> str:
    """Return the id of the current boot; a total from an earlier boot may be older than the copies."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _scan(folder: str) -> list[Found]:
    found: dict[str, Found] = {}
    used: dict[str, float] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if _NOTE.match(entry.name):
                _drop_old(entry)
            if not COPY_NAME.match(entry.name):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith("json"):
                    used[entry.name[:32]] = status.st_mtime
                else:
                    found[entry.name] = (status.st_mtime, status.st_size, entry.path)
    latest_s = time.time() + _CLOCK_S
    return [
        (_when(used.get(name[:32], when) if name.endswith("copy") else when, latest_s), size_bytes, path)
        for name, (when, size_bytes, path) in found.items()
    ]


def _drop_old(entry: os.DirEntry[str]) -> None:
    """Remove a version note that is a month old; a note saves at most one request."""
    with contextlib.suppress(OSError):
        if entry.stat(follow_symlinks=False).st_mtime < time.time() - _NOTE_S:
            os.unlink(entry.path)


def _when(used_s: float, latest_s: float) -> float:
    """Return a time to sort by; times in the future, from a clock that was set back, come first."""
    return used_s if used_s <= latest_s else used_s - (1 << 40)


_DERIVED, _REMOTE = "derived", "remote"


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Content of one folder of the cache: `derived` (computed: indexes, orders), `remote` (copies), or another."""

    name: str
    files: int
    size_bytes: int


def cache_use(folder: str | None = None) -> list[CacheUse]:
    """Return the folders of the cache, sorted by name; none if there is no cache yet."""
    root, found = folder or cache_folder(), list[CacheUse]()
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        sizes = list(_sizes(os.path.join(root, name)))
        found.append(CacheUse(name, len(sizes), sum(sizes)))
    return found


def trim_cache(keep_bytes: int, folder: str | None = None) -> int:
    """Remove the least recently used files until all take at most `keep_bytes`; return the removed bytes."""
    root = folder or cache_folder()
    derived, remote = os.path.join(root, _DERIVED), os.path.join(root, _REMOTE)
    computed = list(_computed(derived))
    with contextlib.ExitStack() as stack:
        room = stack.enter_context(room_in(remote)) if os.path.isdir(remote) else None
        copies = room.look(remote, "") if room is not None else []
        before_bytes = left_bytes = sum(one[1] for one in (*computed, *copies))
        for one in sorted([*computed, *copies]):
            if left_bytes <= keep_bytes:
                break
            if one[2].endswith(".npy"):
                _remove_computed(one[2])
            elif room is not None:
                room.evict([one], room.used_bytes - 1, 0)
            left_bytes -= 0 if os.path.exists(one[2]) else one[1]
    return before_bytes - left_bytes


def _computed(folder: str) -> Iterator[Found]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".npy") and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    yield max(about.st_atime, about.st_mtime), about.st_size, entry.path


def _remove_computed(path: str) -> None:
    with contextlib.suppress(OSError), hold_lock(path + LOCK_FILE, wait=False) as had:
        if had:
            remove_published(path)
            os.unlink(path + LOCK_FILE)


def _sizes(path: str) -> Iterator[int]:
    if not os.path.isdir(path):
        with contextlib.suppress(OSError):
            yield os.lstat(path).st_size
    for root, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(root, name)).st_size


def about_copy(path: str) -> tuple[float, int]:
    """Return a copy's last use, in seconds since the epoch, and its size in bytes; zeros if it is gone."""
    try:
        record = f"{os.path.splitext(path)[0]}.json"
        return os.path.getmtime(record if os.path.exists(record) else path), os.path.getsize(path)
    except FileNotFoundError:
        return 0.0, 0


def remove_copy(path: str) -> None:
    """Remove a copy of a remote file and its record, if allowed; processes that map it keep it."""
    with room_in(os.path.dirname(path)) as room:
        room.evict([(*about_copy(path), path)], room.used_bytes - 1, 0)

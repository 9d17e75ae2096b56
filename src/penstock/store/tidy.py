"""Use of the cache folder, and its removal while other processes run.

Mapped files stay readable, and missing ones are fetched or computed again: nobody fails. Files that are being written,
and locks of running writers, stay.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.store._room import Found, room_in
from penstock.store.derived import cache_folder, remove_published
from penstock.store.lock import hold_lock

_DERIVED, _REMOTE = "derived", "remote"


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Content of one folder of the cache.

    Attributes:
        name: of the folder: `derived` (computed: indexes, orders), `remote` (copies), or another.
        files: their number.
        size_bytes: of them.
    """

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
    """Remove the least recently used files until copies and computed files take at most `keep_bytes`.

    Returns:
        Bytes that were removed.
    """
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
    with contextlib.suppress(OSError), hold_lock(path + ".lock", wait=False) as had:
        if had:
            remove_published(path)
            os.unlink(path + ".lock")


def _sizes(path: str) -> Iterator[int]:
    if not os.path.isdir(path):
        with contextlib.suppress(OSError):
            yield os.lstat(path).st_size
    for root, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(root, name)).st_size


def about_copy(path: str) -> tuple[float, int]:
    """Return when a copy was last used, in seconds since the epoch, and its bytes; zeros if it is gone."""
    try:
        record = f"{os.path.splitext(path)[0]}.json"
        return os.path.getmtime(record if os.path.exists(record) else path), os.path.getsize(path)
    except FileNotFoundError:
        return 0.0, 0


def remove_copy(path: str) -> None:
    """Remove a copy of a remote file and its record, if allowed; processes that map it keep it."""
    with room_in(os.path.dirname(path)) as room:
        room.evict([(*about_copy(path), path)], room.used_bytes - 1, 0)

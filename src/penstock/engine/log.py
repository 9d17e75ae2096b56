"""Who works on shared work, from when to when, and why it failed: a small file a share and host, told by `status`.

It only tells: nothing is decided by it, so whoever can't write it works on. It goes with the work.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from penstock._pool import Pool
from penstock._secrets import redact
from penstock.errors import NotFound, PenstockError
from penstock.store.place import Place
from penstock.store.put import put

_NAME = re.compile(r"[^A-Za-z0-9.-]+")
_MOST_BYTES = 1 << 14
_MOST_LETTERS = 1000
_READERS = 16
_LAST_S = 1 << 37  # no calendar tells later times


@dataclass(frozen=True, slots=True)
class Entry:
    """What one share did on one host, the last time that it ran there.

    Attributes:
        share: `"3/64"`, as `--part` says it, or `"finish"`.
        host: its name.
        process: its number there.
        began_s: time since the epoch, by the clock of that host.
        ended_s: the same; None for one at work, and for one that was killed.
        error: why it ended; None where it did its work.
    """

    share: str
    host: str
    process: int
    began_s: float
    ended_s: float | None = None
    error: str | None = None


def begin(folder: Place, part: tuple[int, int] | None) -> Entry:
    """Say that a share, or with None the end, is at work."""
    share = "finish" if part is None else f"{part[0]}/{part[1]}"
    entry = Entry(share, platform.node() or "unknown", os.getpid(), time.time())
    _write(folder, entry)
    return entry


def end(folder: Place, entry: Entry, error: BaseException | None) -> None:
    """Say how it ended."""
    told = None if error is None else redact(str(error) or type(error).__name__)[:_MOST_LETTERS]
    _write(folder, replace(entry, ended_s=time.time(), error=told))


def unsettled(folder: Place) -> list[Entry]:
    """The last of each share that no later run of it, there or elsewhere, ended well; by time of beginning."""
    every = entries(folder)
    good = [one for one in every if one.ended_s is not None and one.error is None]
    done_s = {one.share: one.ended_s or 0.0 for one in sorted(good, key=lambda one: one.ended_s or 0.0)}
    return [one for one in every if one.began_s > done_s.get(one.share, 0.0)]


def entries(folder: Place) -> list[Entry]:
    """What there is, by time of beginning; what can't be read is left out."""
    with contextlib.suppress(NotFound):
        paths: Sequence[str] = list(folder.store.list(folder.path))
        with Pool(_READERS, "log") as pool:
            found = list(pool.map(lambda path: _read(folder.child(path[len(folder.path) + 1 :])), paths))
        return sorted((one for one in found if one is not None), key=lambda one: (one.began_s, one.share, one.host))
    return []


def _write(folder: Place, entry: Entry) -> None:
    name = _NAME.sub("-", f"{entry.share}-of-{entry.host}"[:200])
    with contextlib.suppress(OSError, PenstockError):
        put(folder.store, folder.child(name).path, msgspec.json.encode(entry))


def _read(file: Place) -> Entry | None:
    with contextlib.suppress(OSError, PenstockError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        entry = msgspec.json.decode(file.store.get(file.path, 0, _MOST_BYTES), type=Entry)
        if all(0 <= at_s < _LAST_S for at_s in (entry.began_s, entry.ended_s or 0)):
            return entry
    return None

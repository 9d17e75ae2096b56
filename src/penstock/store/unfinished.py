"""The mark of work whose output may be visible in part, or visible and not checked yet.

`.<name>.unfinished` stands beside an output from just before its first file becomes visible until the work is done. So
a run that was killed in between is known, and the same command goes on with what is there.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import msgspec

from penstock.abc import Store
from penstock.errors import NotFound, PenstockError
from penstock.store.resolve import absolute

_MOST_BYTES = 1 << 20


def mark_path(target_path: str) -> str:
    """Path of the mark."""
    folder, name = os.path.split(absolute(target_path))
    return os.path.join(folder, f".{os.fsdecode(os.fsencode(name)[:200])}.unfinished")


def set_mark(store: Store, target_path: str, what: dict[str, Any]) -> None:
    """Say durably that `what` (plain JSON) is about to become visible."""
    staged = store.stage(mark_path(target_path), overwrite=True)
    try:
        staged.write(msgspec.json.encode(what, order="sorted"))
    except BaseException:
        staged.abort()
        raise
    staged.commit()


def has_mark(store: Store, target_path: str, what: dict[str, Any]) -> bool:
    """Whether a run that did the same was killed before it was done."""
    with contextlib.suppress(NotFound, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        path = mark_path(target_path)
        if store.size(path) <= _MOST_BYTES:
            return msgspec.json.decode(store.get(path)) == msgspec.to_builtins(what)
    return False


def remove_mark(store: Store, target_path: str) -> None:
    """The work is done, or nothing of it is there; what can't be removed is hidden and harms nobody."""
    with contextlib.suppress(PenstockError, OSError):
        store.delete(mark_path(target_path))

"""Flow control between one producer and one consumer, by the number and memory of batches."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from queue import Empty, SimpleQueue
from sys import getsizeof
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

AHEAD_BYTES = 1 << 18
"""Small results may be produced ahead up to this many bytes."""

LEAST_BYTES = 1 << 12
"""What each result counts as, at least."""


class CreditWindow:
    """Counts results that are produced and consumed, and blocks the producer while it is too far ahead.

    It may be `prefetch` results ahead. Of small results it may be further ahead, once the first is consumed, while they
    take less than `AHEAD_BYTES`. Waking a thread costs as much as a small batch, so a blocked producer wakes only when
    half of these bytes are consumed.

    One thread produces, another consumes.

    Args:
        prefetch: results that may always be ahead.
    """

    def __init__(self, prefetch: int) -> None:
        self._prefetch = prefetch
        # Each has one writer, so no lock is needed.
        self._produced = self._produced_bytes = 0
        self._consumed = self._consumed_bytes = 0
        self._asleep = self._stopped = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def wait(self) -> bool:
        """Block until another result may be produced; False once the window is closed."""
        while not self._stopped:
            if self._has_room(AHEAD_BYTES):
                return True
            self._asleep = True
            # Checked again: what was consumed a moment ago woke nobody, as nobody was asleep.
            if not self._has_room(AHEAD_BYTES // 2) and not self._stopped:
                self._wakes.get()
            self._asleep = False
        return False

    def sleep(self, seconds: float) -> bool:
        """Block for `seconds`, or until the window is closed; returns whether it is."""
        end_s = time.monotonic() + seconds
        while not self._stopped and (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(Empty):
                self._wakes.get(timeout=left_s)
        return self._stopped

    @property
    def num_produced(self) -> int:
        """Results produced so far."""
        return self._produced

    def produced(self, result_bytes: int) -> int:
        """Count a result that was produced; returns the bytes that it counts as."""
        counted_bytes = max(result_bytes, LEAST_BYTES)
        self._produced += 1
        self._produced_bytes += counted_bytes
        return counted_bytes

    def consumed(self, results: int, result_bytes: int) -> None:
        """Count results that were consumed, and wake the producer once it has credits again."""
        self._consumed += results
        self._consumed_bytes += result_bytes
        if self._asleep and self._has_room(AHEAD_BYTES // 2):
            self._asleep = False
            self._wakes.put(None)

    def stop(self) -> None:
        """Close the window: a blocked producer wakes and ends."""
        self._stopped = True
        self._wakes.put(None)

    def _has_room(self, limit_bytes: int) -> bool:
        if self._produced - self._consumed < self._prefetch:
            return True
        # Not before the first is consumed: its consumer would wait for the GIL, too.
        return bool(self._consumed) and self._produced_bytes - self._consumed_bytes < limit_bytes


LARGE = 1 << 40
"""Size of what can't be measured, in bytes: more than any limit."""

_OBJECT_BYTES = 64
_MOST_ITEMS, _MOST_DEEP = 1 << 10, 5
_NUMBERS: frozenset[type] = frozenset({int, float, bool, type(None)})
_TEXTS: frozenset[type] = frozenset({str, bytes})


def size_bytes(value: Any) -> int:
    """About the bytes of memory that a result keeps: of arrays, tensors and texts; else `LARGE`.

    Of dataclasses, fields like `__key__` and `__sources__` don't count: they tell where samples come from.
    """
    try:
        return _size(value, 0)
    except Exception:  # an object may do anything when it is asked; that is no fault of the batch
        return LARGE


def _size(value: Any, deep: int) -> int:
    kind = type(value)
    if kind is list or kind is tuple:
        return _of_items(value, deep)
    if kind is dict:
        return _of_items(list(value.values()), deep)
    if kind in _TEXTS:
        return getsizeof(value)
    if kind in _NUMBERS:
        return _OBJECT_BYTES
    if isinstance(value, np.ndarray):
        return _of_array(cast(NDArray[Any], value))
    if isinstance(value, np.generic):
        return _OBJECT_BYTES
    if isinstance(value, dict):
        return _of_items(list(cast("dict[Any, Any]", value).values()), deep)
    storage = getattr(value, "untyped_storage", None)
    if storage is not None:  # of a torch tensor: a view keeps all of it
        return _OBJECT_BYTES + storage().nbytes()
    names = _names(kind)
    return LARGE if names is None else _of_items([getattr(value, name) for name in names], deep)


def _of_array(array: NDArray[Any]) -> int:
    if type(array) is not np.ndarray or array.dtype.hasobject:
        return LARGE
    base: Any = array.base
    if base is None:
        return _OBJECT_BYTES + array.nbytes
    # A view keeps all of what it is a view of.
    return _OBJECT_BYTES + base.nbytes if isinstance(base, np.ndarray) and base.base is None else LARGE


def _of_items(items: Any, deep: int) -> int:
    if deep == _MOST_DEEP or len(items) > _MOST_ITEMS:
        return LARGE
    kinds = set(map(type, items))
    if kinds <= _TEXTS:
        return sum(map(getsizeof, items))
    if kinds <= _NUMBERS:
        return _OBJECT_BYTES * len(items)
    total = 0
    for one in items:
        total += _size(one, deep + 1)
    return total


@functools.lru_cache
def _names(kind: Any) -> tuple[str, ...] | None:
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(one.name for one in dataclasses.fields(kind) if not one.name.startswith("__"))

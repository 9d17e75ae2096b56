"""About how much memory a batch takes: what decides how many of them may be made ahead."""

from __future__ import annotations

import dataclasses
import functools
from sys import getsizeof
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

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

"""A bound on mappings and other values of many files that a process holds and can make again.

Linux allows a process 65,530 mappings, and each library takes its own. A dataset of 10^5 files would exceed that; one
of 10^3 files with a descriptor each would exceed the usual limit on those. So a value of one file of many, which can
be made again from its path, is in a `Held`:

```
self._mapped = Held(partial(_map_run, store, path, start_bytes, stop_bytes))  # nothing is opened yet
self._mapped.get()[start:stop]  # mapped now, if it isn't
```

All `Held` of a process share one bound, whether they hold a mapping, a decoded index or an opened source. A value that
was returned stays with its user; only the next `get` makes it again.
"""

from __future__ import annotations

import errno
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Generic, TypeAlias, TypeVar

MOST_HELD = 1 << 14
"""Values held at once in a process: a quarter of the mappings that Linux allows."""

USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What the system says where a process has all the files or mappings that it may have."""

T = TypeVar("T")
Ring: TypeAlias = "deque[weakref.ref[Held[Any]]]"
"""What is held, in the order in which it is looked at for something to let go."""


class Held(Generic[T]):
    """A value made at first use, dropped when too many are held, the least used first, and made again when needed.

    Safe in threads: two may make the value at once, and one of the two stays. Safe after fork; not pickled. `get` costs
    a call and two attributes while the value is held.

    Args:
        make: returns the value, never None, the same each time. A method is referred to weakly, so that its object may
            own this one: the value goes with the object.
        ring: values that share the bound; all of the process by default.
        most: the bound.
    """

    __slots__ = ("__weakref__", "_make", "_most", "_ring", "_used", "_value")

    def __init__(self, make: Callable[[], T], *, ring: Ring | None = None, most: int | None = None) -> None:
        self._make = weakref.WeakMethod(make) if isinstance(make, MethodType) else partial(_same, make)
        self._ring = _of_process if ring is None else ring
        self._most = most
        self._value: T | None = None
        self._used = False

    def get(self) -> T:
        """Return the value, made if necessary."""
        value = self._value
        if value is not None:
            self._used = True
            return value
        make_room(self._ring, MOST_HELD if self._most is None else self._most)
        make = self._make()
        if make is None:
            raise ReferenceError("the object that owns this value was deleted")
        value = making_room(make, self._ring)
        self._value, self._used = value, True
        self._ring.append(weakref.ref(self))
        return value

    def held(self) -> T | None:
        """Return the value if it is held; None otherwise."""
        return self._value

    def stays(self) -> bool:
        """Return whether the value was used since the last call; otherwise drop it."""
        used, self._used = self._used, False
        if not used:
            self._value = None
        return used and self._value is not None


def _same(make: T) -> T:
    return make


def make_room(ring: Ring, most: int) -> None:
    """Drop values that were not used since the last look, until fewer than `most` are held. O(1) per access."""
    # Each step is one call of the deque, which threads may share: no lock that a fork could leave taken.
    while len(ring) >= most:
        try:
            one = ring.popleft()()
        except IndexError:  # another thread took it
            return
        if one is not None and one.stays():
            ring.append(weakref.ref(one))


def making_room(make: Callable[[], T], ring: Ring | None = None) -> T:
    """Call `make`; if the system has no file or mapping left, drop all values and call it again."""
    try:
        return make()
    except OSError as error:
        if error.errno not in USED_UP:
            raise
    make_room(_of_process if ring is None else ring, 1)
    return make()


_of_process: Ring = deque()  # the bound is the process's own: each source of it takes from the same

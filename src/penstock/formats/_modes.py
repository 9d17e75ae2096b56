"""Choice of how a source is read and shuffled, by the location of its bytes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.abc import SupportsMmap
from penstock.errors import Truncated, Unsupported
from penstock.store._files import on_network
from penstock.store.base import Store
from penstock.types import ReadMode

Mode = Literal["global", "blocks"]


def preferred_mode(store: Store, *, compressed: bool = False) -> Mode:
    """Return `"blocks"` if reading a sample costs as much as its neighbors: one request, or decoding one block."""
    return "blocks" if compressed or not isinstance(store, SupportsMmap) else "global"


def way_to_read(store: Store, path: str, read: ReadMode) -> Literal["mmap", "pread"]:
    """Return how to read files under `path`; raise `Unsupported` for `"mmap"` if the store can't map files."""
    if read == "auto":
        safe = not (store.is_local and on_network(path))
        return "mmap" if safe and isinstance(store, SupportsMmap) else "pread"
    if read == "mmap" and not isinstance(store, SupportsMmap):
        raise Unsupported("files of this store can't be mapped", path=path, hint='Open with read="pread"')
    return read


def map_least(
    store: Any, path: str, least_bytes: int, what: str = "the file became shorter after it was opened"
) -> NDArray[np.uint8]:
    """Map a file read-only, as uint8[n]; raise `Truncated` with the text `what` if it has fewer than `least_bytes`."""
    mapped: NDArray[np.uint8] = store.mmap(path)
    if len(mapped) < least_bytes:
        hint = "Don't replace a dataset while it is being read"
        raise Truncated(what, path=path, offset_bytes=len(mapped), expected=f"{least_bytes} bytes", hint=hint)
    return mapped

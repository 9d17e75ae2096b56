"""How a source is best read, and best shuffled, by where its bytes are."""

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
    """`"blocks"` where a sample costs what its neighbours cost too: a request, or the decoding of a block."""
    return "blocks" if compressed or not isinstance(store, SupportsMmap) else "global"


def way_to_read(store: Store, path: str, read: ReadMode) -> Literal["mmap", "pread"]:
    """What `read=` means for files under `path`; raises `Unsupported` for `"mmap"` in a store without maps."""
    if read == "auto":
        safe = not (store.is_local and on_network(path))
        return "mmap" if safe and isinstance(store, SupportsMmap) else "pread"
    if read == "mmap" and not isinstance(store, SupportsMmap):
        raise Unsupported("files of this store can't be mapped", path=path, hint='Open with read="pread"')
    return read


def map_least(
    store: Any, path: str, least_bytes: int, what: str = "the file became shorter after it was opened"
) -> NDArray[np.uint8]:
    """uint8[n]: a file of a store that maps, read-only; raises `Truncated`, and says `what`, below `least_bytes`."""
    mapped: NDArray[np.uint8] = store.mmap(path)
    if len(mapped) < least_bytes:
        hint = "Don't replace a dataset while it is being read"
        raise Truncated(what, path=path, offset_bytes=len(mapped), expected=f"{least_bytes} bytes", hint=hint)
    return mapped

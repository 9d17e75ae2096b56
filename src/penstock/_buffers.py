"""One view of whatever holds bytes."""

from __future__ import annotations

import numpy as np

from penstock.types import Buffer


def byte_view(data: Buffer) -> memoryview:
    """The bytes of a buffer or an array, without a copy where it is contiguous."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B")

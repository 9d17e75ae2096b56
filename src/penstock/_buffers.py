"""Views of objects that contain bytes."""

from __future__ import annotations

import numpy as np

from penstock.types import Buffer


def byte_view(data: Buffer) -> memoryview:
    """Return the bytes of a buffer or an array, without a copy if it is contiguous."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B")

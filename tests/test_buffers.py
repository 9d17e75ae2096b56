"""One view of whatever holds bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock._arrays import byte_view


@pytest.mark.parametrize(
    "data",
    [
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"xabcdx")[1:5],
        np.frombuffer(b"abcd", np.uint16),
        np.frombuffer(b"abcd", np.uint8).reshape(2, 2),
        np.frombuffer(b"a-b-c-d-", np.uint8)[::2],
        np.frombuffer(b"ab__cd__", np.uint16)[::2],
    ],
)
def test_bytes(data: Any) -> None:
    view = byte_view(data)
    assert view.format == "B"
    assert view.ndim == 1
    assert view.tobytes() == b"abcd"


def test_contiguous_data_are_not_copied() -> None:
    array = np.zeros(4, np.uint16)
    view = byte_view(array)
    array[0] = 1
    assert view[0] == 1


@pytest.mark.parametrize("data", [b"", np.empty(0, np.uint32), np.empty((0, 3), np.int64)])
def test_nothing(data: Any) -> None:
    assert len(byte_view(data)) == 0

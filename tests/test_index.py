"""Indices and positions from callers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock._arrays import as_index, as_indices, as_position, as_positions


def test_one_index() -> None:
    assert [as_index(index, 3) for index in (0, 2, -1, -3)] == [0, 2, 2, 0]
    assert type(as_index(np.uint8(2), 3)) is int  # pyright: ignore[reportArgumentType]
    for index in (3, -4, 1 << 80):
        with pytest.raises(IndexError, match=str(index)):
            as_index(index, 3)
    with pytest.raises(IndexError):
        as_index(0, 0)


def test_indices_of_a_batch() -> None:
    for given in ([2, 0], (2, 0), range(2, -1, -2), np.array([2, 0], dtype=np.uint8), np.array([2, 0])):
        found = as_indices(given, 3)
        assert found.dtype == np.int64
        assert found.tolist() == [2, 0]
    assert as_indices([], 0).dtype == np.int64
    for outside in ([-1], [0, 3], [1 << 62]):
        with pytest.raises(IndexError):
            as_indices(outside, 3)


def test_an_index_beyond_int64_is_no_index() -> None:
    for outside in (np.array([1 << 63], dtype=np.uint64), [1 << 63], [1 << 70]):
        with pytest.raises(IndexError):
            as_indices(outside, 3)
        with pytest.raises(IndexError):
            as_positions(outside)


def test_int64_arrays_are_not_copied() -> None:
    given = np.array([1, 2])
    assert as_indices(given, 3) is given
    assert as_positions(given) is given


def test_positions() -> None:
    assert as_position(1 << 70) == 1 << 70
    assert as_positions([5, 1 << 62]).tolist() == [5, 1 << 62]
    with pytest.raises(IndexError, match="-1"):
        as_position(-1)
    with pytest.raises(IndexError, match="-2"):
        as_positions([3, -2])


@pytest.mark.parametrize("wrong", [[0.5], ["a"], [True], [[0, 1]], 3, np.zeros((2, 2), dtype=np.int64)])
def test_what_is_no_run_of_integers(wrong: Any) -> None:
    with pytest.raises(TypeError):
        as_indices(wrong, 10)
    with pytest.raises(TypeError):
        as_positions(wrong)

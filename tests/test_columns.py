"""Samples to columns and back together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock._arrays import column, scatter, stack


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], "int64"),
        ([-(1 << 63), (1 << 63) - 1], "int64"),
        ([1.5, float("nan")], "float64"),
        ([True, False], "bool"),
        ([np.uint16(3), np.uint16(4)], "uint16"),
        ([np.bool_(True)], "bool"),
    ],
)
def test_numbers_of_one_kind_are_an_array(values: list[Any], dtype: str) -> None:
    found = column(values)
    assert isinstance(found, np.ndarray)
    assert found.dtype == dtype
    assert [repr(value) for value in found.tolist()] == [
        repr(value.item() if isinstance(value, np.generic) else value) for value in values
    ]


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5],
        [1, True],
        [1, None],
        [1, 1 << 63],
        [np.int8(1), np.int16(2)],
        ["a", "b"],
        [b"a"],
        [None, None],
        [[1], [2]],
        [{"a": 1}],
        [np.str_("a"), np.str_("bc")],
    ],
)
def test_everything_else_is_a_list(values: list[Any]) -> None:
    found = column(values)
    assert isinstance(found, list)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_arrays_of_one_shape_and_dtype_are_stacked() -> None:
    assert column([np.zeros((2, 3)), np.ones((2, 3))]).shape == (2, 2, 3)
    assert isinstance(column([np.zeros(2), np.zeros(3)]), list)
    assert isinstance(column([np.zeros(2), np.zeros(2, dtype=np.float32)]), list)


def test_stack_is_a_copy() -> None:
    array = np.zeros(2)
    stack([{"x": array}])["x"][0] = 1
    assert array.tolist() == [0, 0]


def test_missing_fields_are_none() -> None:
    assert stack([{"a": 1}, {"a": 2, "b": "x"}])["b"] == [None, "x"]
    assert stack([]) == {}


def test_scatter_puts_rows_in_their_places() -> None:
    left, right = np.array([2, 0]), np.array([1])
    batch = scatter([(left, {"n": np.array([20, 0])}), (right, {"n": np.array([10])})], 3)
    assert batch["n"].tolist() == [0, 10, 20]
    assert isinstance(batch["n"], np.ndarray)
    mixed = scatter([(left, {"n": np.array([20, 0])}), (right, {"n": ["ten"]})], 3)
    assert mixed["n"] == [0, "ten", 20]
    widths = scatter([(left, {"x": np.zeros((2, 3))}), (right, {"x": np.zeros((1, 4))})], 3)
    assert [len(row) for row in widths["x"]] == [3, 4, 3]
    assert scatter([(left, {"n": np.array([20, 0])}), (right, {"m": [1]})], 3) == {
        "n": [0, None, 20],
        "m": [None, 1, None],
    }

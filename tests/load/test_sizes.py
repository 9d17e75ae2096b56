from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from penstock.compat import energon as en
from penstock.load.workers import LARGE, size_bytes

Pair = namedtuple("Pair", "a b")


@dataclass
class Holder:
    value: Any
    __sources__: Any = None


class Named(dict[str, Any]):
    pass


def nested(value: Any, deep: int) -> Any:
    for _ in range(deep):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (None, 0, 100),
        (1.5, 0, 100),
        ("a" * 1000, 1000, 1100),
        ("\U0001f600" * 1000, 4000, 4100),
        (b"a" * 1000, 1000, 1100),
        (np.zeros(1000), 8000, 8100),
        (["a" * 100] * 10, 1000, 2000),
        ([b"a", "b", None, 3], 2, 500),
        ({"x": np.zeros(10, np.uint8), "y": ["a" * 90, 1]}, 100, 500),
        (Named(x=np.zeros(1000, np.uint8)), 1000, 1100),
        (Holder("a" * 1000, object()), 1000, 1100),
        (en.TextSample(__key__="k", __restore_key__=(), __sources__=(object(),), text="a" * 500), 500, 600),
        (({"x": [Holder(np.zeros(500, np.uint8))]}, {"read": 0.1}, None), 500, 1000),
    ],
)
def test_sizes(value: Any, least: int, most: int) -> None:
    assert least <= size_bytes(value) <= most


@pytest.mark.parametrize(
    "value",
    [
        object(),
        [object()],
        {"x": object()},
        Holder(object()),
        nested(1, 9),
        list(range(5000)),
        {1, 2},
        Pair(1, object()),
        np.ma.masked_array([1, 2], [0, 1]),
    ],
)
def test_what_can_not_be_told_is_large(value: Any) -> None:
    assert size_bytes(value) >= LARGE


def test_tensors_have_a_size() -> None:
    import torch

    assert 8000 <= size_bytes({"x": torch.zeros(1000, dtype=torch.float64)}) <= 8200

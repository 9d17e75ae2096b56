"""Document starts decoded in runs: the same as all at once, or a refusal that leads there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from penstock.formats.tokens.pbin.index import NotStraight, doc_starts, feed_starts, read_index
from penstock.formats.tokens.pbin.layout import Geometry, find_layout
from penstock.store.local import LocalStore
from penstock.types import IntArray

Build = Callable[..., bytes]
Put = Callable[..., str]


def geometry_of(path: str, layout: str) -> Geometry:
    found = find_layout(LocalStore(), path, layout)
    assert isinstance(found, Geometry)
    return found


def fed(path: str, layout: str = "h12le") -> IntArray:
    runs: list[IntArray] = []
    feed_starts(LocalStore(), path, geometry_of(path, layout), lambda run: runs.append(run.copy()))
    return np.concatenate(runs)


@pytest.mark.parametrize("layout", ["h12le", "h12le-abs", "h12be", "h8", "h4"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_equal_to_all_at_once(packed: Build, put: Put, layout: str, protocol: int) -> None:
    docs = [[1] * (n % 7 + 1) for n in range(3000)]
    path = put(packed(docs, layout, protocol=protocol))
    geometry = geometry_of(path, layout)
    assert fed(path, layout).tolist() == doc_starts(read_index(LocalStore(), path, geometry), geometry, path).tolist()


@pytest.mark.parametrize(
    "pairs",
    [
        [(0, 2), (4, 2)],  # a hole
        [(0, 4), (2, 2)],  # an overlap
        [(0, 2), (2, 2)],  # ends early
        [(0, 3), (3, 3)],  # half tokens
        [(0, 2), (2, 1 << 62)],  # leaves the file
    ],
)
def test_what_is_not_straight_is_left_to_the_other_way(packed: Build, put: Put, pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(NotStraight):
        fed(put(packed([[1], [2], [3]], pairs=pairs)))


def test_a_tuple_that_stands_there_twice(packed: Build, put: Put) -> None:
    empty = (2, 0)
    path = put(packed([[1], [], [], [2]], pairs=[(0, 2), empty, empty, (2, 2)]))
    with pytest.raises(NotStraight):
        fed(path)
    geometry = geometry_of(path, "h12le")
    assert doc_starts(read_index(LocalStore(), path, geometry), geometry, path).tolist() == [0, 1, 1, 1, 2]

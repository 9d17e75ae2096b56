"""`subset`: ranges in samples and in percent, and ranges of ranges."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import is_token_source

from penstock.errors import ConfigError
from penstock.mix import subset
from penstock.testing.memory import MemorySource, MemoryTokens


def numbers(length: int) -> MemorySource:
    return MemorySource([{"n": i} for i in range(length)])


def values(source: Any) -> list[int]:
    return [source[index]["n"] for index in range(len(source))]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([3, 6], range(3, 6)),
        ([3, "end"], range(3, 20)),
        (["0%", "100%"], range(20)),
        (["0%", "12.5%"], range(2)),
        (["12.5%", "50%"], range(2, 10)),
        (["50%", "end"], range(10, 20)),
        (["50%", "50%"], range(0)),
        ([20, "end"], range(0)),
        ((0, 20), range(20)),
    ],
)
def test_ranges(bounds: Any, expected: range) -> None:
    assert values(subset(numbers(20), bounds)) == list(expected)


def test_ranges_of_ranges() -> None:
    source = numbers(20)
    assert values(subset(subset(source, [4, "end"]), ["50%", "100%"])) == list(range(12, 20))
    assert values(subset(subset(source, [4, 14]), ["50%", "100%"])) == list(range(9, 14))
    assert values(subset(subset(source, ["50%", "100%"]), ["0%", "50%"])) == list(range(10, 15))
    assert values(subset(subset(source, [4, "end"]), [2, 5])) == list(range(6, 9))
    assert values(subset(subset(source, [4, 14]), [2, "end"])) == list(range(6, 14))
    # Half of a half is a quarter of the whole: 9 · 0.25 = 2.25, though half of 4.5 would first be cut to 4.
    assert values(subset(subset(numbers(9), ["0%", "50%"]), ["50%", "100%"])) == [2, 3]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 300), st.lists(st.integers(0, 100), min_size=1, max_size=6))
def test_percentages_that_meet_leave_nothing_out(size: int, cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), 100]
    parts = [values(subset(numbers(size), [f"{low}%", f"{high}%"])) for low, high in pairwise(borders)]
    assert [value for part in parts for value in part] == list(range(size))


@pytest.mark.parametrize(
    "bounds",
    [
        [3],
        [1, 2, 3],
        "10%",
        [5, 3],
        [-1, 3],
        [0, 21],
        [21, "end"],
        ["60%", "40%"],
        ["0%", "101%"],
        ["-1%", "50%"],
        ["0%", 5],
        [5, "50%"],
        ["0", "5"],
        ["x%", "5%"],
        ["end", "end"],
        [0.5, 3],
        [True, 3],
        [None, 3],
    ],
)
def test_ranges_that_are_none(bounds: Any) -> None:
    with pytest.raises(ConfigError):
        subset(numbers(20), bounds)


def test_numbers_in_a_part_by_percentages_are_refused() -> None:
    with pytest.raises(ConfigError, match="Apply the range in samples"):
        subset(subset(numbers(20), ["0%", "50%"]), [0, 3])
    with pytest.raises(ConfigError, match="inside the part"):
        subset(subset(numbers(20), [3, 8]), [0, 6])


def test_of_tokens_it_is_a_token_source() -> None:
    part = subset(MemoryTokens([[1, 2], [3], [4, 5]]), [1, "end"])
    assert is_token_source(part)
    assert part.tokens(0, 3).tolist() == [3, 4, 5]


def test_samples_that_are_left_out_are_counted() -> None:
    class Excluding(MemorySource):
        """Every third of 12 samples is left out."""

        split_size = 12

        def kept_before(self, place: int, /) -> int:
            return sum(1 for other in range(place) if other % 3)

    source = Excluding([{"n": place} for place in range(12) if place % 3])
    assert values(subset(source, [0, 6])) == [1, 2, 4, 5]
    assert values(subset(source, ["50%", "100%"])) == [7, 8, 10, 11]
    assert values(subset(subset(source, [3, "end"]), ["0%", "50%"])) == [4, 5]
    with pytest.raises(ConfigError):
        subset(source, [0, 13])

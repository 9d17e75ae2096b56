"""All pairs of kills of a transaction, and readers across all pairs of its calls.

`make crash` tests all pairs, and `make slow` an eighth of them. Smaller samples are in tests/store.
"""

from __future__ import annotations

import itertools
import os

import pytest
from tests.store.transactions import interrupted, kill_at, places_of, read_across

GROUPS = 16
CHOSEN = range(GROUPS) if "CRASH_ROUNDS" in os.environ else range(2)


@pytest.mark.parametrize("group", CHOSEN)
@pytest.mark.parametrize("before", [None, "A"])
def test_killed_twice(before: str | None, group: int) -> None:
    places = places_of(before)
    pairs = list(itertools.product(places, places))[group::GROUPS]
    assert len(pairs) >= 100
    assert {pair: found for pair in pairs if (found := interrupted(before, *map(kill_at, pair)))} == {}


@pytest.mark.parametrize("group", CHOSEN)
@pytest.mark.parametrize("before", [None, "A"])
def test_a_reader_across_two_calls(before: str | None, group: int) -> None:
    count = len(places_of(before))
    pairs = [(first, second) for first in range(count) for second in range(count - first + 1)][group::GROUPS]
    assert len(pairs) >= 50
    assert [found for pair in pairs for found in read_across(before, *pair)] == []

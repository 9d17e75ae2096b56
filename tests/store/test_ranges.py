"""Which requests are made for ranges, and how answers are cut."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store._requests import cut_answers, plan_requests

DATA = bytes(range(256)) * 4
RANGES = st.lists(
    st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA))).map(lambda pair: (min(pair), max(pair))), max_size=8
)


@settings(deadline=None, max_examples=150)
@given(ranges=RANGES, gap=st.integers(0, 50), part=st.integers(1, 300))
def test_answers_are_slices(ranges: list[tuple[int, int]], gap: int, part: int) -> None:
    requests = plan_requests(ranges, gap_bytes=gap, part_bytes=part)
    answers = [DATA[start:stop] for start, stop in requests]
    assert cut_answers(ranges, requests, answers) == [DATA[start:stop] for start, stop in ranges]
    assert all(0 < stop - start <= part for start, stop in requests)
    assert requests == sorted(requests)
    # No byte twice, and none further from a wanted one than a gap.
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(requests))
    wanted = {at for start, stop in ranges for at in range(start, stop)}
    asked = {at for start, stop in requests for at in range(start, stop)}
    assert wanted <= asked
    assert len(asked - wanted) <= gap * max(0, len(ranges) - 1)


def test_a_gap_is_read_or_left_out() -> None:
    assert plan_requests([(0, 10), (15, 20)], gap_bytes=5, part_bytes=100) == [(0, 20)]
    assert plan_requests([(0, 10), (15, 20)], gap_bytes=4, part_bytes=100) == [(0, 10), (15, 20)]
    assert plan_requests([(0, 20), (5, 10), (30, 30)], gap_bytes=0, part_bytes=100) == [(0, 20)]
    assert plan_requests([], gap_bytes=4, part_bytes=100) == []

"""Segments with padding, against the rule written out; the rest is tested through the packings."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pack.labels import segments, starts_after


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.integers(1, 10), st.data())
def test_segments_before_padding(rows: int, length: int, data: st.DataObject) -> None:
    starts = np.array(data.draw(st.lists(st.booleans(), min_size=rows * length, max_size=rows * length)), dtype=bool)
    starts = starts.reshape(rows, length)
    used = np.array(data.draw(st.lists(st.integers(0, length), min_size=rows, max_size=rows)), dtype=np.int64)
    before = starts.copy()
    columns = segments(starts, used)
    assert np.array_equal(starts, before)
    assert columns["segment_ids"].shape == columns["positions"].shape == (rows, length)
    assert len(columns["cu_seqlens"]) == len(columns["max_seqlen"]) == rows
    for row in range(rows):
        end = int(used[row])
        borders = [column for column in range(end) if column == 0 or starts[row, column]]
        assert columns["cu_seqlens"][row].tolist() == [*borders, end]
        ids = [sum(border <= column for border in borders) for column in range(end)]
        assert columns["segment_ids"][row].tolist() == ids + [0] * (length - end)
        places = [column - max(border for border in borders if border <= column) for column in range(end)]
        assert columns["positions"][row].tolist() == places + [0] * (length - end)
        assert columns["max_seqlen"][row] == max(np.diff([*borders, end]), default=0)
    for name in ("segment_ids", "positions", "max_seqlen"):
        assert columns[name].dtype == np.int32


def test_without_padding_a_row_is_full() -> None:
    starts = np.array([[False, True, False], [False, False, False]])
    columns = segments(starts)
    assert columns["segment_ids"].tolist() == [[1, 2, 2], [1, 1, 1]]
    assert columns["positions"].tolist() == [[0, 0, 1], [0, 1, 2]]
    assert [borders.tolist() for borders in columns["cu_seqlens"]] == [[0, 1, 3], [0, 3]]


def test_a_token_after_eos_starts_a_document() -> None:
    blocks = np.array([[9, 9, 1, 9, 2]], dtype=np.uint16)
    assert starts_after(blocks, 9).tolist() == [[True, True, True, False, True]]
    assert starts_after(blocks, 9, np.array([False])).tolist() == [[False, True, True, False, True]]

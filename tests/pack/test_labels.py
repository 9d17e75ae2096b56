"""Segments with padding, against the rule written out; the rest is tested through the packings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.pack.labels import mask_between, segments, starts_after


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


def kept_slowly(row: list[int], begin_id: int, end_id: int) -> list[bool] | None:
    """The rule for one token after another; None where markers don't alternate."""
    kept: list[bool] = []
    depth = 0
    for place, token in enumerate(row):
        # A begin marker counts for the token after it: at the end of a row it counts for nothing.
        opens, closes = place > 0 and row[place - 1] == begin_id, token == end_id
        if (opens and depth == 1) or (closes and not opens and depth == 0):
            return None
        depth += opens - closes
        kept.append(depth == 1)
    return kept


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.data())
def test_masks_between_markers(rows: int, length: int, data: st.DataObject) -> None:
    ids = st.lists(st.integers(0, 3), min_size=length, max_size=length)
    targets = np.array(data.draw(st.lists(ids, min_size=rows, max_size=rows)), dtype=np.uint8)
    if not ((targets == 1).any() and (targets == 2).any()):
        assert not mask_between(targets, 1, 2).any()
        return
    expected = [kept_slowly(row, 1, 2) for row in targets.tolist()]
    if None in expected:
        with pytest.raises(ConfigError, match=f"row {expected.index(None)} don't alternate"):
            mask_between(targets, 1, 2)
    else:
        assert mask_between(targets, 1, 2).tolist() == expected


def test_markers_are_two() -> None:
    with pytest.raises(ConfigError, match="differ"):
        mask_between(np.zeros((1, 3), np.int32), 5, 5)


def test_masks_of_one_window() -> None:
    assert mask_between(np.array([9, 1, 7, 2, 9]), 1, 2).tolist() == [False, False, True, False, False]
    with pytest.raises(ConfigError, match="markers don't alternate: found an end marker without a begin at 0"):
        mask_between(np.array([2, 1, 7, 2]), 1, 2)
    with pytest.raises(ConfigError, match="two begins by 2"):
        mask_between(np.array([1, 1, 7, 2]), 1, 2)
    # Here Modalities sees nothing wrong, and keeps everything from the second marker on.
    with pytest.raises(ConfigError, match="two begins by 2"):
        mask_between(np.array([1, 1, 2, 9]), 1, 2)

"""`Whole`: one document a window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.pack import Whole
from penstock.testing.memory import MemoryTokens
from penstock.testing.sources import SourceLaws
from penstock.testing.strategies import token_documents
from penstock.types import Extent, Place, Sample, TokenArray

DOCUMENTS = [[1, 2, 3, 0], [4, 0], [], [0], [5, 6, 7, 8, 9, 0], [2, 2, 2, 2, 2]]


def expected_window(document: Any, length: int, pad_id: int, dtype: Any) -> Sample:
    """The window of one document, by the rule for one token after another."""
    tokens = [int(token) for token in document]
    used = min(len(tokens), length)
    padded = (tokens + [pad_id] * (length + 1))[: length + 1]
    return {
        "tokens": np.array(padded[:length], dtype=dtype),
        "inputs": np.array(padded[:length], dtype=dtype),
        "targets": np.array(padded[1:], dtype=dtype),
        "loss_mask": np.array([column + 1 < len(tokens) for column in range(length)]),
        "segment_ids": np.array([1] * used + [0] * (length - used), dtype=np.int32),
        "positions": np.array([*range(used)] + [0] * (length - used), dtype=np.int32),
        "cu_seqlens": np.array([0, used] if used else [0], dtype=np.int32),
        "max_seqlen": used,
    }


@pytest.mark.parametrize("pad_id", [0, 2])
@pytest.mark.parametrize("length", [1, 4, 30])
class TestWhole(SourceLaws):
    @pytest.fixture
    def source(self, length: int, pad_id: int) -> Any:
        return Whole(length, pad_id=pad_id)(MemoryTokens(DOCUMENTS))

    @pytest.fixture
    def expected(self, length: int, pad_id: int) -> list[Sample]:
        return [expected_window(document, length, pad_id, np.uint8) for document in DOCUMENTS]


def start_zero_window(document: Any, length: int, dtype: Any) -> Sample:
    """The window whose tokens are all targets, by the rule for one token after another."""
    tokens = [int(token) for token in document][:length]
    used = len(tokens)
    targets = tokens + [0] * (length - used)
    return {
        **expected_window(document, length, 0, dtype),
        "inputs": np.array([targets[column - 1] if 0 < column < used else 0 for column in range(length)], dtype),
        "targets": np.array(targets, dtype),
        "loss_mask": np.arange(length) < used,
    }


@pytest.mark.parametrize("length", [1, 4, 30])
class TestStartZero(SourceLaws):
    @pytest.fixture
    def source(self, length: int) -> Any:
        return Whole(length, labels="start-zero")(MemoryTokens(DOCUMENTS))

    @pytest.fixture
    def expected(self, length: int) -> list[Sample]:
        return [start_zero_window(document, length, np.uint8) for document in DOCUMENTS]


@settings(max_examples=40, deadline=None)
@given(token_documents(max_id=3, dtype="uint16", min_docs=1), st.integers(1, 20), st.data())
def test_any_documents(documents: list[TokenArray], length: int, data: st.DataObject) -> None:
    windows = Whole(length, pad_id=3)(MemoryTokens(documents, dtype="uint16"))
    indices = data.draw(st.lists(st.integers(0, len(documents) - 1), max_size=6))
    batch = windows.get_batch(indices)
    for row, index in enumerate(indices):
        expected = expected_window(documents[index], length, 3, np.uint16)
        assert {name: np.asarray(column[row]).tolist() for name, column in batch.items()} == {
            name: np.asarray(value).tolist() for name, value in expected.items()
        }


def test_where_a_window_is() -> None:
    class WithExtents(MemoryTokens):
        def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
            return (Extent("f", start, stop - start),)

    windows = Whole(4)(WithExtents(DOCUMENTS))
    assert windows.place_of(4) == Place(documents=((4, 0, 4),), extents=(Extent("f", 7, 4),))
    assert windows.place_of(1) == Place(documents=((1, 0, 2),), extents=(Extent("f", 4, 2),))
    assert windows.place_of(2) == Place(documents=())


@pytest.mark.parametrize(("length", "pad_id"), [(0, 0), (-3, 0), (4, -1), (4, 256)])
def test_options_that_can_not_work(length: int, pad_id: int) -> None:
    source = MemoryTokens(DOCUMENTS, dtype="uint8")
    with pytest.raises(ConfigError):
        Whole(length, pad_id=pad_id)(source)


def test_labels_that_can_not_be() -> None:
    with pytest.raises(ConfigError, match="unknown labels"):
        Whole(4, labels="start")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="padded with 0"):
        Whole(4, pad_id=1, labels="start-zero")


def test_what_it_tells_of_other_labels() -> None:
    source = MemoryTokens(DOCUMENTS)
    shift, zero = Whole(4)(source), Whole(4, labels="start-zero")(source)
    assert shift.fingerprint == Whole(4, labels="shift")(source).fingerprint != zero.fingerprint
    assert "labels" not in shift.recipe()
    assert zero.recipe()["labels"] == "start-zero"
    assert zero.summary().startswith("Whole  length=4 pad_id=0 labels=start-zero")


def test_what_it_tells_of_itself() -> None:
    source = MemoryTokens(DOCUMENTS)
    windows = Whole(4, pad_id=1)(source)
    assert windows.children() == {"source": source}
    assert windows.recipe() == {
        "kind": "whole",
        "version": "whole-1",
        "length": 4,
        "pad_id": 1,
        "source": source.recipe(),
    }
    assert len({Whole(*options)(source).fingerprint for options in ((4, 1), (4, 0), (5, 1))}) == 3

"""`MegatronBlocks`: blocks that begin with a document, against the rule written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._tokens import flags_between
from penstock.errors import ConfigError
from penstock.order import Shuffle
from penstock.pack import Chunk, MegatronBlocks, megatron_blocks
from penstock.pack.megatron_blocks import block_starts
from penstock.store.derived import DerivedCache
from penstock.testing.elsewhere import pickled_copy
from penstock.testing.memory import MemoryTokens
from penstock.testing.sources import SourceLaws
from penstock.testing.strategies import token_documents
from penstock.types import Extent, Place, Sample, TokenArray

# Lengths 4, 2, 0, 1, 11, 3, 5, 2: with blocks of 5 one fits exactly, one is longer than two blocks.
DOCUMENTS = [[1, 2, 3, 0], [4, 0], [], [0], [*range(10, 20), 0], [5, 6, 0], [7, 8, 9, 9, 0], [5, 0]]


def starts_slowly(lengths: list[int], length: int, read: int) -> list[int]:
    """First token of each block, one document after another; an empty document holds nothing that could be read."""
    lengths = [one for one in lengths if one]
    starts: list[int] = []
    doc = 0
    while sum(lengths[:doc]) + read <= sum(lengths):
        starts.append(sum(lengths[:doc]))
        fitting, held = doc, 0
        while fitting < len(lengths) and held + lengths[fitting] <= length:
            held += lengths[fitting]
            fitting += 1
        doc = max(fitting, doc + 1)
    return starts


def block(documents: Any, start: int, length: int, *, labels: bool) -> Sample:
    """One block by the rule for one token after another."""
    tokens = [(int(token), number) for number, document in enumerate(documents) for token in document]
    held = tokens[start : start + length]
    dtype = np.uint8
    sample: Sample = {"tokens": np.array([token for token, _ in held], dtype=dtype)}
    if not labels:
        return sample
    numbers = [number for _, number in held]
    borders = [0, *(i for i in range(1, length) if numbers[i] != numbers[i - 1])]
    following = tokens[start + 1 : start + length + 1]
    return sample | {
        "inputs": sample["tokens"],
        "targets": np.array([token for token, _ in following], dtype=dtype),
        "loss_mask": np.array([numbers[i] == following[i][1] for i in range(length)]),
        "segment_ids": np.array([sum(b <= i for b in borders) for i in range(length)], dtype=np.int32),
        "positions": np.array([i - max(b for b in borders if b <= i) for i in range(length)], dtype=np.int32),
        "cu_seqlens": np.array([*borders, length], dtype=np.int32),
        "max_seqlen": int(max(np.diff([*borders, length]))),
    }


@pytest.mark.parametrize("labels", [None, "shift"])
@pytest.mark.parametrize("length", [1, 3, 5, 8])
class TestMegatronBlocks(SourceLaws):
    @pytest.fixture
    def source(self, length: int, labels: Any) -> Any:
        return MegatronBlocks(length, labels=labels)(MemoryTokens(DOCUMENTS))

    @pytest.fixture
    def expected(self, length: int, labels: Any) -> list[Sample]:
        lengths = [len(document) for document in DOCUMENTS]
        starts = starts_slowly(lengths, length, length + (labels == "shift"))
        return [block(DOCUMENTS, start, length, labels=labels is not None) for start in starts]


def test_the_rule_on_one_example() -> None:
    blocks = MegatronBlocks(5)(MemoryTokens(DOCUMENTS))
    assert [blocks[i]["tokens"].tolist() for i in range(len(blocks))] == [
        [1, 2, 3, 0, 4],  # the second document does not fit …
        [4, 0, 0, 10, 11],  # … and begins the next block
        [10, 11, 12, 13, 14],  # longer than a block: the rest of it is left out
        [5, 6, 0, 7, 8],
        [7, 8, 9, 9, 0],  # fits exactly
    ]
    assert blocks.starts.tolist() == [0, 4, 7, 18, 21]
    assert blocks.left_out_tokens == 6 + 2
    assert blocks.repeated_tokens == 1 + 2 + 2


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 12), st.booleans())
def test_starts_of_any_documents(lengths: list[int], length: int, one_more: bool) -> None:
    doc_starts = np.cumsum([0, *lengths], dtype=np.int64)
    read = length + one_more
    expected = starts_slowly(lengths, length, read)
    assert block_starts(doc_starts, length, read).tolist() == expected
    if sum(lengths) < read:
        return
    blocks = MegatronBlocks(length, labels="shift" if one_more else None)(MemoryTokens([[1] * n for n in lengths]))
    held = np.zeros(sum(lengths), dtype=int)
    for start in expected:
        assert start in doc_starts
        held[start : start + length] += 1
    assert blocks.left_out_tokens == (held == 0).sum()
    assert blocks.repeated_tokens == (held - 1)[held > 1].sum()


def test_plan_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(5).integers(0, 40, 2000)
    doc_starts = np.append(0, np.cumsum(lengths))
    whole = block_starts(doc_starts, 64, 64)
    assert whole.tolist() == starts_slowly(lengths.tolist(), 64, 64)
    for size in (1, 2, 7, 100):
        monkeypatch.setattr(megatron_blocks, "_CHUNK_DOCS", size)
        assert np.array_equal(block_starts(doc_starts, 64, 64), whole)


@settings(max_examples=40, deadline=None)
@given(token_documents(max_id=3, dtype="uint16", min_docs=1), st.integers(1, 6), st.data())
def test_flags_of_any_windows(documents: list[TokenArray], length: int, data: st.DataObject) -> None:
    source = MemoryTokens(documents, dtype="uint16")
    last = source.num_tokens - length
    starts = np.array(data.draw(st.lists(st.integers(0, last), max_size=8)) if last >= 0 else [], dtype=np.int64)
    first = {int(start) for start, stop in zip(source.doc_starts, source.doc_starts[1:], strict=False) if start < stop}
    expected = [[start + column in first for column in range(length)] for start in starts.tolist()]
    assert flags_between(source.doc_starts, starts, length).tolist() == expected


def test_the_plan_is_made_once_and_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packing = MegatronBlocks(5, derived=DerivedCache(str(tmp_path)))
    starts = packing(MemoryTokens(DOCUMENTS)).starts
    assert not starts.flags.writeable
    monkeypatch.setattr(megatron_blocks, "block_starts", None)
    copy = pickled_copy(packing(MemoryTokens(DOCUMENTS)))
    assert copy.starts.tolist() == starts.tolist() == [0, 4, 7, 18, 21]
    with pytest.raises(TypeError):
        MegatronBlocks(6, derived=DerivedCache(str(tmp_path)))(MemoryTokens(DOCUMENTS)).starts  # noqa: B018
    # Documents that differ in their lengths alone have a plan of their own.
    monkeypatch.undo()
    other = MemoryTokens([[1, 2], [3, 0, 4, 0], *DOCUMENTS[2:]])
    assert packing(other).starts.tolist() == MegatronBlocks(5)(other).starts.tolist() != starts.tolist()


def test_where_a_block_is() -> None:
    class WithExtents(MemoryTokens):
        def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
            return (Extent("f", start, stop - start),)

    blocks = MegatronBlocks(5)(WithExtents(DOCUMENTS))
    assert blocks.place_of(1) == Place(documents=((1, 0, 2), (3, 0, 1), (4, 0, 2)), extents=(Extent("f", 4, 5),))
    at = Shuffle(blocks, 0).locate(3)
    assert at.documents == blocks.place_of(at.index).documents


def test_nothing_is_planned_before_it_is_needed() -> None:
    class NoIndex(MemoryTokens):
        @property
        def doc_starts(self) -> Any:
            raise AssertionError

    blocks = MegatronBlocks(5)(NoIndex(DOCUMENTS))
    assert "blocks" not in blocks.summary().replace("MegatronBlocks", "")
    assert blocks.fingerprint
    with pytest.raises(AssertionError):
        len(blocks)


@pytest.mark.parametrize(("length", "labels"), [(0, None), (-1, None), (4, "start-zero"), (29, None), (28, "shift")])
def test_options_that_can_not_work(length: int, labels: Any) -> None:
    with pytest.raises(ConfigError):
        MegatronBlocks(length, labels=labels)(MemoryTokens(DOCUMENTS))


def test_what_it_tells_of_itself() -> None:
    source = MemoryTokens(DOCUMENTS)
    blocks = MegatronBlocks(4, labels="shift")(source)
    assert blocks.recipe() == {
        "kind": "megatron-blocks",
        "version": "megatron-blocks-1",
        "length": 4,
        "labels": "shift",
        "source": source.recipe(),
    }
    made = [MegatronBlocks(4, labels="shift"), MegatronBlocks(4), MegatronBlocks(5), Chunk(4)]
    assert len({packing(source).fingerprint for packing in made}) == 4
    assert len(blocks) == 5
    assert f"blocks={len(blocks)}" in str(blocks)

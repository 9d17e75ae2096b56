"""`Concat`: sources end to end, and token sources as one run of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.abc import SupportsDocumentFlags, SupportsTokenExtents, is_token_source
from penstock.errors import ConfigError
from penstock.mix import Concat
from penstock.order import Shuffle
from penstock.pack import Chunk
from penstock.testing.memory import MemorySource, MemoryTokens
from penstock.testing.sources import SourceLaws, TokenSourceLaws
from penstock.types import Extent, Field, Place, Sample, Schema

A: list[Sample] = [{"n": n, "x": np.arange(3), "text": "a" * n} for n in range(4)]
B: list[Sample] = [{"n": n, "x": np.arange(n % 4), "text": "b"} for n in range(10, 16)]
DOCUMENTS = [[[1, 2, 3, 0], [4, 0]], [], [[0], [5, 6, 7, 8, 9, 0], [2, 0]], [[3, 0]]]
FLAT = [document for part in DOCUMENTS for document in part]


class TestConcat(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Concat([MemorySource(A), MemorySource([]), MemorySource(B)])

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [*A, *B]


@pytest.mark.parametrize("start_flags", [False, True])
class TestConcatTokens(TokenSourceLaws):
    @pytest.fixture
    def source(self, start_flags: bool) -> Any:
        return Concat([MemoryTokens(part, eos_id=0, start_flags=start_flags) for part in DOCUMENTS])

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"tokens": np.array(document, dtype=np.uint8)} for document in FLAT]


@pytest.mark.parametrize("labels", ["shift", "start-zero"])
@pytest.mark.parametrize("start_flags", [False, True])
def test_windows_cross_borders(start_flags: bool, labels: Any) -> None:
    parts = [MemoryTokens(part, eos_id=0, start_flags=start_flags) for part in DOCUMENTS]
    one = Chunk(5, labels=labels)(MemoryTokens(FLAT, eos_id=0))
    joined = Chunk(5, labels=labels)(Concat(parts))
    assert len(joined) == len(one)
    for index in range(len(one)):
        assert {name: np.asarray(value).tolist() for name, value in joined[index].items()} == {
            name: np.asarray(value).tolist() for name, value in one[index].items()
        }
        assert joined.documents_of(index) == one.documents_of(index)


def test_columns_stay_arrays_where_all_agree() -> None:
    joined = Concat([MemorySource(A), MemorySource(B)])
    batch = joined.get_batch([5, 0, 3, 5])
    assert batch["n"].tolist() == [11, 0, 3, 11]
    assert isinstance(batch["x"], np.ndarray)
    assert batch["x"].tolist() == [[0, 1, 2]] * 4
    ragged = joined.get_batch([7, 0])
    assert [x.tolist() for x in ragged["x"]] == [[0], [0, 1, 2]]


def test_fields_that_only_one_source_has() -> None:
    joined = Concat([MemorySource([{"a": 1}]), MemorySource([{"b": 2}])])
    assert joined.get_batch([1, 0]) == {"a": [None, 1], "b": [2, None]}


def test_one_child_is_read_in_one_call() -> None:
    calls: list[list[int]] = []

    class Counting(MemorySource):
        def get_batch(self, indices: Any, /) -> Any:
            calls.append(list(indices))
            return super().get_batch(indices)

    Concat([Counting(A), Counting(B)]).get_batch([5, 1, 9, 0, 4])
    assert calls == [[1, 0], [1, 5, 0]]


def test_of_token_sources_it_is_one() -> None:
    plain, flagged = ([MemoryTokens(part, eos_id=0, start_flags=flags) for part in DOCUMENTS] for flags in (0, 1))
    assert is_token_source(Concat(plain))
    assert not is_token_source(Concat([MemorySource(A)]))
    assert not isinstance(Concat(plain), SupportsDocumentFlags)
    assert not isinstance(Concat([*plain[:1], *flagged]), SupportsDocumentFlags)
    assert isinstance(Concat(flagged), SupportsDocumentFlags)
    assert not isinstance(Concat(plain), SupportsTokenExtents)


class WithExtents(MemoryTokens):
    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        return (Extent(str(len(self)), start, stop - start),)


def test_file_ranges_across_borders() -> None:
    joined = Concat([WithExtents([[1, 2, 3]]), WithExtents([]), WithExtents([[4], [5, 6]])])
    assert isinstance(joined, SupportsTokenExtents)
    assert joined.token_extent(1, 5) == (Extent("1", 1, 2), Extent("2", 0, 2))
    assert joined.token_extent(3, 4) == (Extent("2", 0, 1),)
    assert joined.token_extent(3, 3) == ()


def test_tokens_inside_one_source_are_not_copied() -> None:
    parts = [MemoryTokens([[1, 2, 3]]), MemoryTokens([[4, 5]])]
    joined = Concat(parts)
    assert np.shares_memory(joined.tokens(3, 5), parts[1].tokens(0, 2))
    assert joined.tokens(2, 4).tolist() == [3, 4]


def test_what_does_not_belong_together() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Concat([])
    with pytest.raises(ConfigError, match="token widths"):
        Concat([MemoryTokens([[1]]), MemoryTokens([[1]], dtype="uint32")])
    text = MemorySource(A, Schema((Field("text", "text"),)))
    with pytest.raises(ConfigError, match="schemas"):
        Concat([text, MemorySource(B)])
    with pytest.raises(ConfigError, match="schemas"):
        Concat([MemorySource(A), MemoryTokens([[1]])])


def test_different_tokenizers_are_taken_only_when_asked() -> None:
    parts = [MemoryTokens([[1]], tokenizer_digest=digest) for digest in ("aa", None, "bb")]
    with pytest.raises(ConfigError, match="mixed_tokenizers=True"):
        Concat(parts)
    assert Concat(parts, mixed_tokenizers=True).tokenizer_digest is None
    assert Concat(parts[:2]).tokenizer_digest is None
    assert Concat([parts[0], parts[0]]).tokenizer_digest == "aa"


def test_the_eos_id_is_known_where_all_agree() -> None:
    zero, one, unknown = (MemoryTokens([[1]], eos_id=eos_id) for eos_id in (0, 1, None))
    assert Concat([zero, zero]).eos_id == 0
    assert Concat([zero, one]).eos_id is None
    assert Concat([zero, unknown]).eos_id is None


class InBlocks(MemorySource):
    preferred_mode = "blocks"

    @property
    def block_starts(self) -> Any:
        return np.array([0, 2, len(self)])

    def place_of(self, index: int, /) -> Place:
        return Place(key=f"k{index}")


def test_blocks_and_places_are_those_of_the_sources() -> None:
    joined = Concat([MemorySource(A), InBlocks(B)])
    assert joined.block_starts.tolist() == [0, 4, 6, 10]
    assert joined.preferred_mode == "blocks"
    assert Concat([MemorySource(A)]).preferred_mode == "global"
    assert joined.place_of(-1) == Place(key="k5")
    assert Shuffle(joined, 1).version == "blocks-1"


def test_what_it_tells_of_itself() -> None:
    a, b = MemorySource(A), MemorySource(B)
    joined = Concat([a, b])
    assert joined.children() == {"0": a, "1": b}
    assert joined.recipe() == {"kind": "concat", "sources": [a.recipe(), b.recipe()]}
    assert joined.fingerprint != Concat([b, a]).fingerprint


def test_many_sources_print_on_a_screen() -> None:
    text = str(Concat([MemorySource(A) for _ in range(1000)]))
    assert len(text.splitlines()) <= 24
    assert "984 more" in text

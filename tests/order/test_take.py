"""`Take`: parts of sources obey the laws of sources, parts of token sources those of token sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock._kinds import is_token_source
from penstock.abc import SupportsDocumentFlags, SupportsKeys
from penstock.errors import ConfigError, NotFound
from penstock.order import Take
from penstock.testing.memory import KeyedSource, MemorySource, MemoryTokens
from penstock.testing.sources import SourceLaws, TokenSourceLaws
from penstock.types import Extent, IntArray, Place, Sample

SAMPLES = [{"n": n, "text": "x" * n} for n in range(10)]
DOCUMENTS = [[5, 6, 0], [0], [9, 1, 0], [], [7, 0], [3, 3, 3, 0]]


class TestTake(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Take(MemorySource(SAMPLES), 2, 7)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return SAMPLES[2:7]


class TestTakeOfKeys(TestTake):
    @pytest.fixture
    def source(self) -> Any:
        return Take(KeyedSource(SAMPLES, "n"), 2, 7)


def test_keys_are_those_of_the_part() -> None:
    part = Take(KeyedSource(SAMPLES, "n"), 2, 7)
    assert isinstance(part, SupportsKeys)
    assert part.key_run is not None
    assert (part.key_of(-1), part.index_of("3"), part.key_run(1, 3)) == ("6", 1, ["3", "4"])
    with pytest.raises(NotFound, match=r"'7'.*sample 7 of the source.*inside \[2, 7\)"):
        part.index_of("7")
    assert not isinstance(Take(MemorySource(SAMPLES), 0, 1), SupportsKeys)


@pytest.mark.parametrize("start_flags", [False, True])
class TestTakeTokens(TokenSourceLaws):
    @pytest.fixture
    def source(self, start_flags: bool) -> Any:
        return Take(MemoryTokens(DOCUMENTS, eos_id=0, start_flags=start_flags), 1, 5)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"tokens": np.array(document, dtype=np.uint8)} for document in DOCUMENTS[1:5]]


def test_of_a_token_source_it_is_one() -> None:
    plain, flagged = (Take(MemoryTokens(DOCUMENTS, start_flags=flags), 1, 4) for flags in (False, True))
    assert is_token_source(plain)
    assert not is_token_source(Take(MemorySource(SAMPLES), 1, 4))
    assert isinstance(plain, SupportsDocumentFlags)
    assert isinstance(flagged, SupportsDocumentFlags)
    assert plain.token_extent is None


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 11), (4, 3), (11, 11)])
def test_ranges_outside_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ConfigError):
        Take(MemorySource(SAMPLES), start, stop)


def test_bounds_are_integers() -> None:
    wrong: Any = 1.5
    with pytest.raises(TypeError):
        Take(MemorySource(SAMPLES), wrong, 3)


def test_an_empty_part() -> None:
    part = Take(MemorySource(SAMPLES), 4, 4)
    assert len(part) == 0
    assert part.block_starts.tolist() == [0]
    assert part.get_batch([]) == {}


class InBlocks(MemorySource):
    preferred_mode = "blocks"

    @property
    def block_starts(self) -> IntArray:
        return np.array([0, 3, 3, 8, 10])

    def place_of(self, index: int, /) -> Place:
        return Place(key=f"k{index}")


def test_blocks_and_places_are_those_of_the_source() -> None:
    part = Take(InBlocks(SAMPLES), 2, 9)
    assert part.block_starts.tolist() == [0, 1, 6, 7]
    assert part.preferred_mode == "blocks"
    assert part.place_of(0) == Place(key="k2")
    assert Take(MemorySource(SAMPLES), 2, 9).preferred_mode == "global"


class WithExtents(MemoryTokens):
    def __init__(self) -> None:
        super().__init__(DOCUMENTS)

    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        return (Extent("f", start, stop - start),)


def test_file_ranges_are_moved() -> None:
    part = Take(WithExtents(), 2, 5)
    assert part.token_extent is not None
    assert part.token_extent(1, 4) == (Extent("f", 5, 3),)


def test_what_it_tells_of_itself() -> None:
    source = MemoryTokens(DOCUMENTS, eos_id=0, tokenizer_digest="abc")
    part = Take(source, 1, 4)
    assert (part.eos_id, part.tokenizer_digest) == (0, "abc")
    assert part.recipe() == {"kind": "take", "start": 1, "stop": 4, "source": source.recipe()}
    assert part.children() == {"source": source}
    assert len({Take(source, *bounds).fingerprint for bounds in ((1, 4), (1, 5), (0, 4))} | {source.fingerprint}) == 4

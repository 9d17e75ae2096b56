"""The sources in memory obey the laws of all sources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.testing.memory import MemorySource, MemoryTokens
from penstock.testing.sources import SourceLaws, TokenSourceLaws
from penstock.types import Field, Sample, Schema

SAMPLES: list[Sample] = [
    {"text": "a", "n": 1, "x": np.arange(3, dtype=np.float32)},
    {"text": "", "n": -5, "x": np.array([np.nan, 0, 1], dtype=np.float32)},
    {"text": "é", "n": 1 << 40, "x": np.zeros(3, dtype=np.float32)},
    {"text": "d", "n": 0, "x": np.ones(3, dtype=np.float32)},
]
DOCUMENTS = [[5, 6, 0], [0], [65_535, 1, 0], [], [7, 0]]


class TestMemorySource(SourceLaws):
    @pytest.fixture
    def source(self) -> MemorySource:
        fields = (Field("text", "text"), Field("n", "int"), Field("x", "ndarray", "float32", (3,)))
        return MemorySource(
            [{key: np.copy(value) if key == "x" else value for key, value in sample.items()} for sample in SAMPLES],
            Schema(fields),
        )

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return SAMPLES


class TestOpenMemorySource(SourceLaws):
    @pytest.fixture
    def source(self) -> MemorySource:
        return MemorySource([{"a": 1}, {"b": "x"}, {"a": 2, "b": [1, None]}])

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"a": 1}, {"b": "x"}, {"a": 2, "b": [1, None]}]


class TestMemoryTokens(TokenSourceLaws):
    @pytest.fixture
    def source(self) -> MemoryTokens:
        return MemoryTokens(DOCUMENTS)

    @pytest.fixture
    def expected(self) -> list[dict[str, Any]]:
        return [{"tokens": np.array(document, dtype=np.uint16)} for document in DOCUMENTS]


def test_fingerprints_tell_contents_apart() -> None:
    sources = [
        MemorySource(SAMPLES),
        MemorySource(SAMPLES[:3]),
        MemorySource([]),
        MemoryTokens(DOCUMENTS),
        MemoryTokens(DOCUMENTS, eos_id=0),
        MemoryTokens(DOCUMENTS, dtype="uint32"),
        MemoryTokens([[5, 6], [0, 0], [65_535, 1, 0], [], [7, 0]]),
    ]
    assert len({source.fingerprint for source in sources}) == len(sources)


def test_id_that_does_not_fit() -> None:
    with pytest.raises(ConfigError):
        MemoryTokens([[256]], dtype="uint8")
    with pytest.raises(ConfigError):
        MemoryTokens([[-1]])

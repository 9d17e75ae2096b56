"""Datasets of tests of Streaming's names."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as ps


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two streams of 60 and 40 samples, several shards each."""
    for name, first, count in (("a", 0, 60), ("b", 100, 40)):
        with ps.create(tmp_path / name, format="mds", columns={"id": "int", "text": "str"}, size_limit=400) as writer:
            for number in range(first, first + count):
                writer.write({"id": number, "text": "x" * (number % 7)})
    return tmp_path

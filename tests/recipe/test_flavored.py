"""Samples with subflavors keep the laws of a source."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.abc import SupportsFiles, SupportsKeys
from penstock.recipe.flavored import Flavored
from penstock.testing import MemorySource, SourceLaws
from penstock.types import Sample

from .conftest import GOLDEN


class TestFlavored(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        rows = [{"__subflavors__": {"a": 0, "n": number}, "n": number} for number in range(9)]
        return Flavored(MemorySource(rows), {"a": 1})

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"__subflavors__": {"a": 1, "n": number}, "n": number} for number in range(9)]


class TestOverWebdataset(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Flavored(ps.open(GOLDEN / "data" / "ds_b"), {"src": "b"})

    @pytest.fixture
    def expected(self) -> list[Any]:
        below = ps.open(GOLDEN / "data" / "ds_b")
        return [{**below[index], "__subflavors__": {"src": "b"}} for index in range(len(below))]


def test_powers_pass_through() -> None:
    source: Any = Flavored(ps.open(GOLDEN / "data" / "aux_img", raw=True), {"a": 1})
    assert isinstance(source, SupportsKeys)
    assert isinstance(source, SupportsFiles)
    assert source.key_of(source.index_of("img_003")) == "img_003"
    assert source.get("img_003.png")
    assert not isinstance(Flavored(MemorySource([{}]), {}), SupportsKeys)

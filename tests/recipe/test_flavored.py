"""Samples with subflavors keep the laws of a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.internals import Flavored, explain_step, run_of

import penstock as ps
from penstock.abc import SupportsFiles, SupportsKeys
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


def test_excluded_samples_are_replaced_below_subflavors(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id": {number}}}\n' for number in range(20)))
    ps.exclude(path, indices=[5, 11], reason="license")
    recipe = {
        "kind": "shuffle", "seed": 3,
        "source": {"kind": "subflavors", "subflavors": {"a": 1}, "source": {"kind": "open", "path": str(path)}},
    }  # fmt: skip
    stream = ps.open_recipe(recipe)
    batches = iter(ps.Loader(stream, 4, rank=0, world=1, workers=0))
    read = [batch["id"].tolist() for _, batch in zip(range(10), batches, strict=False)]
    assert {5, 11} & {one for ids in read for one in ids} == set()
    run = run_of(stream, 4, 1, None)
    explained = [explain_step(run, step)["samples"] for step in range(10)]
    assert [[row["index"] for row in rows] for rows in explained] == read
    assert sorted(row["instead_of"] for rows in explained for row in rows if "instead_of" in row) == [5, 5, 11, 11]

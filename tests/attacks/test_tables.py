"""Hostile Parquet files, and datasets saved by Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import Corrupt, TooLarge
from penstock.formats.tables.hf import HfBlocks
from penstock.formats.tables.parquet import ParquetBlocks
from penstock.prepare.tokens.tables import groups_in, open_table
from penstock.store.local import LocalStore
from penstock.store.place import Place

OPTIONAL, REQUIRED = b"\x15\x0c\x25\x02", b"\x15\x0c\x25\x00"


def count_groups(place: Place) -> int:
    with open_table(place, "parquet") as table:
        return len(groups_in(table, place, 0, 1 << 40))


@pytest.fixture
def contradicting(tmp_path: Path) -> str:
    """A file whose schema says that a column is never null; how many nulls there are stands beside its data."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"row {n}" for n in range(20)]}), path, row_group_size=5)
    data = path.read_bytes()
    assert data.count(OPTIONAL) == 1
    path.write_bytes(data.replace(OPTIONAL, REQUIRED))
    return str(path)


def test_a_column_that_contradicts_the_schema_ends_no_process(contradicting: str, confined: Callable[..., Any]) -> None:
    assert confined(lambda: len(ps.open(contradicting))) == 20
    assert confined(lambda: count_groups(Place(LocalStore(), contradicting))) == 4
    for look in (lambda: ps.open(contradicting)[7], lambda: next(iter(ps.open(contradicting)))):
        found = confined(look)
        assert isinstance(found, Corrupt), found
        assert "histogram" in str(found)
    assert {one.code for one in confined(lambda: ps.verify(contradicting, depth="full"))} == {"parquet.damaged"}
    found = confined(lambda: ps.open(contradicting).place_of(7).extents[0].offset_bytes)  # type: ignore[attr-defined]
    assert isinstance(found, int), found


@pytest.mark.parametrize("name", ["parquet", "hf"])
def test_more_than_memory_holds_is_no_damage(
    name: str, tmp_path: Path, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(golden / "hf")
    if name == "parquet":
        path = str(tmp_path / "a.parquet")
        pq.write_table(pa.table({"text": ["a"]}), path)

    def fail(*given: Any, **options: Any) -> Any:
        raise pa.ArrowMemoryError("malloc of size 480000000 failed")

    monkeypatch.setattr(ParquetBlocks if name == "parquet" else HfBlocks, "read", fail)
    for look in (lambda: ps.open(path)[0], lambda: ps.verify(path, depth="full")):
        with pytest.raises(TooLarge, match="malloc of size 480000000"):
            look()

"""Hostile Parquet files, and datasets saved by Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.internals import HfBlocks, ParquetBlocks, Place, main, open_table, replace
from tests.internals import row_groups_in as groups_in

import penstock as ps
from penstock.errors import Corrupt, TooLarge
from penstock.store import LocalStore

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


def _repeated(value: str, n_rows: int) -> pa.Table:
    places = pa.array(np.zeros(n_rows, np.int32))
    return pa.table({"text": pa.DictionaryArray.from_arrays(places, pa.array([value]))})


def test_one_long_value_in_many_rows_is_refused(tmp_path: Path, confined: Callable[..., Any]) -> None:
    """4 GB of text in a file of a few hundred bytes: no verb takes more than the limit of a row group."""
    path = tmp_path / "a.parquet"
    pq.write_table(_repeated("x" * 200_000, 20_000), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1000
    for look in (lambda: ps.open(path)[0], lambda: ps.verify(path)):
        found = confined(look, 700 << 20)
        assert isinstance(found, TooLarge), found
        assert "at most 268,435,456 bytes" in str(found)
    # Packing and scans read in batches, and those fit.
    assert confined(lambda: next(ps.open(path).tables(0, 20_000))[1]["text"][0].as_py()[:3], 500 << 20) == "xxx"  # type: ignore[attr-defined]


def test_rows_of_fixed_width_are_counted_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": np.zeros(100_000, np.int64), "b": np.zeros(100_000, np.int8)}), path)
    assert len(ps.open(path)) == 100_000
    replace(monkeypatch, "least_group_bytes", 1 << 16)
    with pytest.raises(TooLarge, match="found at least 1,200,000 bytes"):
        ps.open(path)[0]


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_groups_read_in_batches_hold_the_same_rows(
    use_dictionary: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    rows = [{"text": "long " * (n % 7), "n": n, "more": [{"x": "y" * (n % 3)}, {"x": None}]} for n in range(2000)]
    pq.write_table(pa.Table.from_pylist(rows), path, use_dictionary=use_dictionary, row_group_size=700)
    replace(monkeypatch, "group_batch_bytes", 100)
    replace(monkeypatch, "least_group_bytes", 1 << 20)
    replace(monkeypatch, "unpacked_ratio", 0)
    source = ps.open(path)
    assert list(source) == rows
    assert source[1234] == rows[1234]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_text_that_is_not_utf_8(kind: str, tmp_path: Path) -> None:
    offsets, data = pa.array(["abc", "def"]).buffers()[1], pa.py_buffer(b"ab\xffdef")
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])})
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    for arguments in (["head", str(path)], ["convert", str(path), str(tmp_path / "o"), "--to", "mds"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 6, arguments
    assert [one.code for one in ps.verify(str(path), depth="full")] == [
        "parquet.damaged" if kind == "parquet" else "hf.damaged"
    ]

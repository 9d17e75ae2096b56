"""Places of row groups, held against what pyarrow says of good files."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.parquet_footer import TAIL_BYTES, row_group_extents


def footer_of(data: bytes) -> bytes:
    size_bytes = int.from_bytes(data[-TAIL_BYTES:-4], "little")
    return data[-TAIL_BYTES - size_bytes : -TAIL_BYTES]


def written(table: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


ROWS = [{"text": f"row {n % 7}", "n": n, "tags": [{"a": n % 2 == 0, "b": [1.5] * (n % 3)}]} for n in range(40)]
GOOD = footer_of(written(pa.Table.from_pylist(ROWS), row_group_size=9))
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False, "write_statistics": False},
    "indexes": {"write_page_index": True, "write_page_checksum": True, "store_schema": False},
    "sorted": {"sorting_columns": [pq.SortingColumn(0)], "compression": "zstd"},
    "bloom": {"use_dictionary": ["text"], "column_encoding": {"n": "DELTA_BINARY_PACKED"}},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("rows", [ROWS, ROWS[:0]])
def test_as_pyarrow_says(name: str, rows: list[Any]) -> None:
    data = written(pa.Table.from_pylist(rows, pa.Table.from_pylist(ROWS).schema), row_group_size=9, **OPTIONS[name])
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    expected: list[tuple[int, int]] = []
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        columns = [group.column(number) for number in range(group.num_columns)]
        starts = [one.dictionary_page_offset or one.data_page_offset for one in columns]
        expected.append((min(starts), sum(one.total_compressed_size for one in columns)))
    assert row_group_extents(footer_of(data)) == expected
    assert len(expected) == (5 if rows else 1)


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_an_error_or_numbers(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    try:
        found = row_group_extents(bytes(data))
    except ValueError:
        return
    assert all(isinstance(number, int) for pair in found for number in pair)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "ends in the middle"),
        (GOOD[:-1], "ends in the middle"),
        (b"\x1c" * 300, "nested too deeply"),
        (b"\x1f\0", "unknown type 15"),
        (b"\x45\2\0", "type 5 instead of a list"),
        (b"\x49\x15\2\0", "type 5 instead of structs"),
        (b"\x16" + b"\xff" * 11, "longer than 64 bits"),
        (b"\x49\xfc" + b"\xff" * 8 + b"\1", "ends in the middle"),
        (b"\x18\xff\xff\xff\xff\7a\0", "ends in the middle"),
    ],
)
def test_no_footer(data: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        row_group_extents(data)

"""Locations of the row groups of a Parquet file, from its footer in Thrift's compact protocol.

A column in a footer that pyarrow has opened may still crash the process when pyarrow is asked about it (level sizes
that contradict the schema, a column with its own key). So pyarrow reads and checks rows, and locations come from here.

| struct | field | content |
|---|---|---|
| FileMetaData | 4 | list of RowGroup |
| RowGroup | 1 | list of ColumnChunk |
| ColumnChunk | 3 | ColumnMetaData |
| ColumnMetaData | 1 | i32: physical type |
| ColumnMetaData | 2, 3 | lists: encodings, path in the schema |
| ColumnMetaData | 5, 6 | i64: number of values, uncompressed bytes |
| ColumnMetaData | 7, 9, 11 | i64: compressed bytes, offset of the first data page, offset of the dictionary, if any |
| PageHeader | 2 | i32: uncompressed bytes |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock._limits import MOST_NESTING

TAIL_BYTES = 8
"""`u32` the size of the footer, and `PAR1`."""

_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY = (1, 2), 3, (4, 5, 6), 7, 8
_LISTS, _MAP, _STRUCT, _UUID = (9, 10), 11, 12, 13
_FIXED_BYTES = {_BYTE: 1, _DOUBLE: 8, _UUID: 16}
_ROW_GROUPS, _COLUMNS, _META = 4, 1, 3
_TYPE, _ENCODINGS, _PATH, _VALUES, _UNCOMPRESSED, _SIZE, _DATA, _DICTIONARY = 1, 2, 3, 5, 6, 7, 9, 11
_PAGE_BYTES = 2
_DELTA_BYTE_ARRAY = 7

BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY = 6, 7
"""Physical types without a fixed width."""


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """One column of a row group.

    Attributes:
        stored_bytes, uncompressed_bytes: size in the file, and decompressed.
        dictionary_offset_bytes: offset of the dictionary page; None without one.
        shares_prefixes: values may repeat the beginnings of earlier ones (`DELTA_BYTE_ARRAY`).
    """

    column: str
    type: int
    num_values: int
    stored_bytes: int
    uncompressed_bytes: int
    dictionary_offset_bytes: int | None
    shares_prefixes: bool


def row_group_extents(footer: bytes) -> list[tuple[int, int]]:
    """Return the first byte and the size of each row group; zeros for one without columns.

    Raises:
        ValueError: this isn't a footer.
    """
    reader = _Reader(footer)
    found: list[tuple[int, int]] = []
    try:
        for number, kind in reader.fields():
            if number == _ROW_GROUPS:
                found += [_extent(reader) for _ in reader.items(kind)]
            else:
                reader.skip(kind)
    except IndexError:
        raise ValueError("the footer ends in the middle of a value") from None
    return found


def row_group_columns(footer: bytes) -> list[list[ColumnChunk]]:
    """Return the columns of each row group; encrypted ones are omitted.

    Raises:
        ValueError: the footer is damaged.
    """
    reader = _Reader(footer)
    groups: list[list[ColumnChunk]] = []
    try:
        for number, kind in reader.fields():
            if number == _ROW_GROUPS:
                groups += [_chunks(reader) for _ in reader.items(kind)]
            else:
                reader.skip(kind)
    except IndexError:
        raise ValueError("the footer ends in the middle of a value") from None
    return groups


def page_bytes(header: bytes) -> int | None:
    """Return the uncompressed bytes of a page by its header; None if the header is damaged."""
    reader = _Reader(header)
    try:
        for number, kind in reader.fields():
            if number == _PAGE_BYTES and kind in _INTEGERS:
                return reader.integer()
            reader.skip(kind)
    except (IndexError, ValueError):
        pass
    return None


def _chunks(reader: _Reader) -> list[ColumnChunk]:
    chunks: list[ColumnChunk] = []
    for number, kind in reader.fields():
        if number != _COLUMNS:
            reader.skip(kind)
            continue
        for _ in reader.items(kind):
            for inner, inner_kind in reader.fields():
                if inner == _META and inner_kind == _STRUCT:
                    chunks.append(_chunk(reader))
                else:
                    reader.skip(inner_kind)
    return chunks


def _chunk(reader: _Reader) -> ColumnChunk:
    numbers: dict[int, int] = {}
    encodings: list[int] = []
    path: list[bytes] = []
    for number, kind in reader.fields():
        if number == _ENCODINGS and kind in _LISTS:
            encodings = reader.integers()
        elif number == _PATH and kind in _LISTS:
            path = reader.strings()
        elif kind in _INTEGERS:
            numbers[number] = reader.integer()
        else:
            reader.skip(kind)
    return ColumnChunk(
        path[0].decode(errors="replace") if path else "",
        numbers.get(_TYPE, 0),
        numbers.get(_VALUES, 0),
        numbers.get(_SIZE, 0),
        numbers.get(_UNCOMPRESSED, 0),
        numbers.get(_DICTIONARY),
        _DELTA_BYTE_ARRAY in encodings,
    )


def _extent(reader: _Reader) -> tuple[int, int]:
    starts: list[int] = []
    size_bytes = 0
    for number, kind in reader.fields():
        if number != _COLUMNS:
            reader.skip(kind)
            continue
        for _ in reader.items(kind):
            column = _column(reader)
            if _DATA in column:
                starts.append(min(column[_DATA], column.get(_DICTIONARY, column[_DATA])))
            size_bytes += column.get(_SIZE, 0)
    return min(starts, default=0), size_bytes


def _column(reader: _Reader) -> dict[int, int]:
    """Return the numbers of one column chunk by field; empty if its metadata is encrypted."""
    found: dict[int, int] = {}
    for number, kind in reader.fields():
        if number != _META or kind != _STRUCT:
            reader.skip(kind)
            continue
        for inner, inner_kind in reader.fields():
            if inner in (_SIZE, _DATA, _DICTIONARY) and inner_kind in _INTEGERS:
                found[inner] = reader.integer()
            else:
                reader.skip(inner_kind)
    return found


@dataclass(slots=True)
class _Reader:
    """Cursor in Thrift's compact protocol. Each yielded item must be read or skipped before the next one."""

    data: bytes
    at: int = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 15

    def items(self, kind: int) -> Iterator[None]:
        """Yield once per struct of a list."""
        if kind not in _LISTS:
            raise ValueError(f"a value of type {kind} instead of a list")
        count, item = self._list()
        if count and item != _STRUCT:
            raise ValueError(f"a list of type {item} instead of structs")
        for _ in range(count):
            yield None

    def integer(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def integers(self) -> list[int]:
        return [self.integer() for _ in range(self._list()[0])]

    def strings(self) -> list[bytes]:
        strings: list[bytes] = []
        for _ in range(self._list()[0]):
            length_bytes = self._unsigned()
            self.at += length_bytes
            if self.at > len(self.data):
                raise IndexError
            strings.append(self.data[self.at - length_bytes : self.at])
        return strings

    def skip(self, kind: int, depth: int = 0, *, is_item: bool = False) -> None:
        if depth > MOST_NESTING:
            raise ValueError("the footer is nested too deeply")
        if kind in _BOOLEANS:
            self.at += is_item  # for a field, the type is the value
        elif kind in _INTEGERS:
            self._unsigned()
        elif kind == _BINARY:
            length_bytes = self._unsigned()
            self.at += length_bytes
        elif kind in _LISTS:
            count, item = self._list()
            for _ in range(count):
                self.skip(item, depth + 1, is_item=True)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self.skip(kinds >> 4, depth + 1, is_item=True)
                self.skip(kinds & 15, depth + 1, is_item=True)
        elif kind in _FIXED_BYTES:
            self.at += _FIXED_BYTES[kind]
        else:
            raise ValueError(f"unknown type {kind}")
        if self.at > len(self.data):
            raise IndexError

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number longer than 64 bits")
        return value | byte << shift

    def _list(self) -> tuple[int, int]:
        head = self._byte()
        return (head >> 4 if head >> 4 < 15 else self._unsigned()), head & 15

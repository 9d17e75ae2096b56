"""Parquet and Arrow files as input: each row becomes a line of JSON, with the columns that are asked for as its keys.

So fields, joined fields and jq patterns mean the same as for JSONL. A row group, or a record batch, is read as a whole.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from penstock._optional import require
from penstock.errors import ConfigError, Corrupt
from penstock.formats.tables.arrow import EXTRA, arrow_faults, to_rows, too_large
from penstock.formats.tables.hf import HfBlocks, load_blocks
from penstock.formats.tables.parquet import GroupSizes, footer_extents
from penstock.prepare.tokens.chat.normalize import NullFields
from penstock.prepare.tokens.inputs import Kind
from penstock.prepare.tokens.select import Selection
from penstock.store.place import Place
from penstock.store.powers import CopyingStore

_BATCH_ROWS = 512
_SHOWN = 12


class Table(Protocol):
    """A file while it is open; its groups are numbered from 0."""

    @property
    def schema(self) -> Any: ...
    @property
    def num_rows(self) -> int: ...
    def begins(self) -> list[int]: ...
    def batches(self, group: int, keys: list[str], /) -> Iterator[Any]: ...


def table_lines(
    source: Place,
    kind: Kind,
    start_bytes: int,
    stop_bytes: int,
    selection: Selection,
    nulls: NullFields | None = None,
) -> Generator[tuple[int, bytes]]:
    """`(offset, lines)` of the groups that begin in a range: 512 rows at a time, as JSON.

    Offsets are those of the groups, and of lines in what is made of a group. Memory: a few times 512 rows, and a
    column's page of Parquet; a record batch of Arrow is mapped.

    Args:
        source: the file.
        kind: what it is.
        start_bytes, stop_bytes: the range.
        selection: tells the columns; all but binary ones where it may look at any.
        nulls: of conversations, drops the null fields of structs and notes them.

    Raises:
        Corrupt: the file is damaged.
        Unsupported: a column holds a value that Python's types can't.
    """
    nulls = nulls or NullFields()
    with open_table(source, kind) as table:
        keys = selection.columns(table.schema.names)
        if keys is None:
            keys = [field.name for field in table.schema if "binary" not in str(field.type)]
        encode = msgspec.json.Encoder().encode_lines
        for group, offset_bytes in groups_in(table, source, start_bytes, stop_bytes):
            for batch in table.batches(group, keys):
                rows = to_rows(batch, source.path)
                lines = encode(rows if selection.chat is None else list(map(nulls.drop, rows)))
                yield offset_bytes, lines
                offset_bytes += len(lines)


def require_columns(source: Place, kind: Kind, selection: Selection) -> None:
    """Raise `ConfigError` where a column that is asked for is not there, or can't hold text.

    Raises:
        Corrupt: the file is damaged.
        MissingExtra: pyarrow is not installed.
    """
    keys = selection.top_keys()
    if keys is None:
        return
    with open_table(source, kind) as table:
        schema = table.schema
        for key in () if selection.has_row(schema.names) else keys:
            if key not in schema.names:
                names = ", ".join(schema.names[:_SHOWN]) + (", …" if len(schema.names) > _SHOWN else "")
                raise ConfigError(
                    f"no column {key!r}", path=source.path, expected=names, hint="Specify one with field= (--field)"
                )
            if "binary" in str(schema.field(key).type):
                raise ConfigError(
                    f"the column {key!r} is not text",
                    path=source.path,
                    found=str(schema.field(key).type),
                    expected="string",
                )


def count_rows(source: Place, kind: Kind) -> int:
    """Rows of a file, as its footer, or the heads of its record batches, say; raises `Corrupt`."""
    with open_table(source, kind) as table:
        return table.num_rows


def groups_in(table: Table, source: Place, start_bytes: int, stop_bytes: int) -> list[tuple[int, int]]:
    """`(number, first byte)` of the groups of a range of a file: those that begin in it.

    A group that lies before its predecessor, or behind the file, counts as beginning with the one before: so ranges
    that cover the file hold every group once, in order.
    """
    last_bytes = source.store.size(source.path) - 1
    begins = enumerate(itertools.accumulate((min(start, last_bytes) for start in table.begins()), max))
    return [(number, begin) for number, begin in begins if start_bytes <= max(0, begin) < stop_bytes]


@dataclass(frozen=True, slots=True)
class _Parquet:
    source: Place
    file: Any
    sizes: GroupSizes

    @property
    def schema(self) -> Any:
        return self.file.schema_arrow

    @property
    def num_rows(self) -> int:
        return self.file.metadata.num_rows

    def begins(self) -> list[int]:
        return [first_bytes for first_bytes, _ in footer_extents(self.source.store, self.source.path)]

    def batches(self, group: int, keys: list[str], /) -> Iterator[Any]:
        rows = min(_BATCH_ROWS, self.sizes.batch_rows(group, keys) or _BATCH_ROWS)
        return self.file.iter_batches(batch_size=rows, row_groups=[group], columns=keys, use_threads=False)


@dataclass(frozen=True, slots=True)
class _Arrow:
    blocks: HfBlocks
    size_bytes: int

    @property
    def schema(self) -> Any:
        return self.blocks.schema

    @property
    def num_rows(self) -> int:
        return int(self.blocks.starts[-1])

    def begins(self) -> list[int]:
        """In Arrow's file format nobody is told where batches lie: they count as equally long."""
        batches = self.blocks.batches
        told = [start if length_bytes >= 0 else None for _, start, length_bytes in batches]
        return [n * self.size_bytes // len(batches) if start is None else start for n, start in enumerate(told)]

    def batches(self, group: int, keys: list[str], /) -> Iterator[Any]:
        yield from self.blocks.read(group, keys).to_batches(max_chunksize=_BATCH_ROWS)


@contextlib.contextmanager
def open_table(source: Place, kind: Kind) -> Generator[Table]:
    """The file, while the block runs; what pyarrow refuses then becomes `Corrupt`."""
    if kind == "parquet":
        with _parquet(source) as file:
            yield _Parquet(source, file, GroupSizes(source.store, source.path))
        return
    with arrow_faults(source.path):
        yield _Arrow(load_blocks(source.store, [source.path], mapped=True), source.store.size(source.path))


@contextlib.contextmanager
def _parquet(source: Place) -> Generator[Any]:
    """A `pyarrow.parquet.ParquetFile`."""
    pyarrow = require("pyarrow", extra=EXTRA)
    parquet = require("pyarrow.parquet", extra=EXTRA)
    try:
        with parquet.ParquetFile(_by_name(source)) as file:
            yield file
    except MemoryError as error:
        raise too_large(source.path, error) from error
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise _damaged(source, error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _damaged(source, error) from error


def _by_name(source: Place) -> str:
    """A Parquet file by a name of this machine: itself, or its copy in the cache."""
    if isinstance(source.store, CopyingStore):
        return source.store.local_copy(source.path)
    return source.path


def _damaged(source: Place, error: Exception) -> Corrupt:
    found = str(error).partition("\n")[0]
    return Corrupt("the Parquet file is damaged", path=source.path, found=found, hint="Copy it again")

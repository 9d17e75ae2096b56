"""Parquet files as input: each row becomes a line of JSON, with the columns that are asked for as its keys.

So fields, joined fields and jq patterns mean the same as for JSONL. A row group is read as a whole.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from penstock._optional import require
from penstock.errors import ConfigError, Corrupt
from penstock.formats.tables.arrow import too_large
from penstock.formats.tables.parquet import footer_extents
from penstock.prepare.tokens.select import Selection
from penstock.store.place import Place
from penstock.store.powers import CopyingStore

MAGIC = b"PAR1"

_BATCH_ROWS = 512
_SHOWN = 12


def groups_in(source: Place, start_bytes: int, stop_bytes: int) -> list[tuple[int, int]]:
    """`(number, first byte)` of the row groups of a range of a file: those that begin in it.

    A group that lies before its predecessor, or behind the file, counts as beginning with the one before: so ranges
    that cover the file hold every group once, in order.

    Raises:
        Corrupt: the file is damaged.
    """
    with _opened(source):
        starts = [first_bytes for first_bytes, _ in footer_extents(source.store, source.path)]
    last_bytes = source.store.size(source.path) - 1
    begins = enumerate(itertools.accumulate((min(start, last_bytes) for start in starts), max))
    return [(number, begin) for number, begin in begins if start_bytes <= max(0, begin) < stop_bytes]


def require_columns(source: Place, selection: Selection) -> None:
    """Raise `ConfigError` where a column that is asked for is not there, or can't hold text.

    Raises:
        Corrupt: the file is damaged.
        MissingExtra: pyarrow is not installed.
    """
    keys = selection.top_keys()
    if keys is None:
        return
    with _opened(source) as file:
        schema = file.schema_arrow
        for key in keys:
            if key not in schema.names:
                names = ", ".join(schema.names[:_SHOWN]) + (", …" if len(schema.names) > _SHOWN else "")
                raise ConfigError(
                    f"no column {key!r}", path=source.path, expected=names, hint="Name one with field= (--field)"
                )
            if "binary" in str(schema.field(key).type):
                raise ConfigError(
                    f"the column {key!r} is not text",
                    path=source.path,
                    found=str(schema.field(key).type),
                    expected="string",
                )


def row_lines(source: Place, group: int, start_bytes: int, selection: Selection) -> Iterator[tuple[int, bytes]]:
    """`(offset, lines)` of a row group: 512 rows at a time, as JSON. Memory: a few times these, and a column's page.

    Args:
        source: the file.
        group: number of the row group.
        start_bytes: where its lines are said to begin.
        selection: tells the columns; all but binary ones where it may look at any.

    Raises:
        Corrupt: the file is damaged.
    """
    with _opened(source) as file:
        keys = selection.top_keys()
        if keys is None:
            keys = [field.name for field in file.schema_arrow if "binary" not in str(field.type)]
        encode = msgspec.json.Encoder().encode_lines
        batches = file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=keys, use_threads=False)
        for batch in batches:
            lines = encode(batch.to_pylist())
            yield start_bytes, lines
            start_bytes += len(lines)


def count_rows(source: Place) -> int:
    """Rows of a file, as its footer says; raises `Corrupt`."""
    with _opened(source) as file:
        return file.metadata.num_rows


@contextlib.contextmanager
def _opened(source: Place) -> Generator[Any]:
    """A `pyarrow.parquet.ParquetFile`; what pyarrow refuses while it is open becomes `Corrupt`."""
    pyarrow = require("pyarrow", extra="parquet")
    parquet = require("pyarrow.parquet", extra="parquet")
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

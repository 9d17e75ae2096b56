"""Rows of tables (Parquet, Arrow of Hugging Face) as lines of JSON, for the verbs on lines.

A line has the same content as in the output of `penstock convert`. Line offsets are found by one pass over the rows per
host and cached: 16 bytes per row. A block of rows is decoded and converted as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock._digest import digest
from penstock._optional import require
from penstock._threads import Pool
from penstock.codec.json_lines import encode_line
from penstock.errors import ConfigError, Corrupt, NotFound, Unsupported
from penstock.formats.tables.arrow import EXTRA, ArrowSource
from penstock.store.base import Store, require_inside
from penstock.store.derived import DerivedCache, Put
from penstock.store.fingerprint import file_key, files_key
from penstock.store.place import Place
from penstock.types import IntArray

_VERSION = "table-lines-1"
_STEP = 1024
_HELD_BYTES = 1 << 26
_AT_ONCE = 16
_LEAVES = ("null", "boolean", "integer", "floating", "string", "large_string")
_LISTS = ("list", "large_list", "fixed_size_list")


class TableLines(Store):
    """Lines of a table, as a store with a single file, their text. Read-only, thread-safe, picklable.

    Memory: blocks of text of 64 MiB, or one larger block.

    Args:
        source: source of the rows.
        place: place of the table.
        format: format of the table.

    Raises:
        Unsupported: JSON can't represent the type of a column.
    """

    read_only = "the rows of a table are read-only"

    def __init__(self, source: ArrowSource, place: Place, format: str) -> None:
        self.source = source
        self.place = place
        self.format = format
        self._known: IntArray | None = None
        self._held: tuple[tuple[int, bytes], ...] = ()  # replaced as a whole, so threads need no lock
        _require_json(source, place.path)

    def __reduce__(self) -> tuple[object, ...]:
        return (TableLines, (self.source, self.place, self.format))

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    @property
    def text(self) -> tuple[Store, str]:
        return self, self.place.path

    def line_ranges(self) -> IntArray:
        """Start and length in bytes of the line of each row, without its line end: int64[n, 2], mapped."""
        if self._known is None:
            self._known = DerivedCache().fed(f"{_VERSION}-{self._key()}", "int64", self._feed).reshape(-1, 2)
        return self._known

    # --- as a store --------------------------------------------------------------------------------------------------

    def size(self, path: str) -> int:
        if path != self.place.path:
            raise NotFound("no such file", path=path)
        lines = self.line_ranges()
        return int(lines[-1].sum()) + 1 if len(lines) else 0

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        require_inside(path, ranges, self.size(path))
        return [self._read(start, stop) for start, stop in ranges]

    def exists(self, path: str) -> bool:
        return path == self.place.path

    # --- inside ------------------------------------------------------------------------------------------------------

    def _key(self) -> str:
        """Return a cache key of all that the lines depend on: the columns and the state of the files."""
        store, files = self.source.files
        with Pool(_AT_ONCE, "penstock-states") as pool:  # one request per file in a remote store
            states = list(pool.map(partial(_state_of, store, self.format), files))
        return digest(str(self.source.arrow_schema.remove_metadata()), *states)

    def _feed(self, put: Put) -> None:
        start = 0
        for block in range(len(self.source.block_starts) - 1):
            for lines in self._lines_of(block):
                lengths = np.fromiter(map(len, lines), np.int64, len(lines))
                starts = start + np.cumsum(lengths) - lengths
                put(np.stack([starts, lengths - 1], 1).reshape(-1))
                start += int(lengths.sum())

    def _lines_of(self, block: int) -> Iterator[list[bytes]]:
        first, stop = self.source.block_starts[block : block + 2].tolist()
        for at in range(first, stop, _STEP):
            rows = self.source.get_samples(np.arange(at, min(stop, at + _STEP)))
            try:
                yield [encode_line(row) + b"\n" for row in rows]
            except (TypeError, ValueError, RecursionError) as error:
                what = f"a row between {at} and {at + len(rows)} that JSON can't hold: {error}"
                raise ConfigError(what, path=self.place.path) from None

    def _read(self, start: int, stop: int) -> bytes:
        lines, borders = self.line_ranges(), self.source.block_starts
        first, last = (int(np.searchsorted(lines[:, 0], at, side="right")) - 1 for at in (start, stop - 1))
        low, high = (int(np.searchsorted(borders, row, side="right")) - 1 for row in (first, last))
        begins = int(lines[borders[low], 0])
        text = self._text_of(low) if low == high else b"".join(map(self._text_of, range(low, high + 1)))
        return text[start - begins : stop - begins]

    def _text_of(self, block: int) -> bytes:
        held = self._held
        for number, text in held:
            if number == block:
                return text
        text = b"".join(one for lines in self._lines_of(block) for one in lines)
        ends = self.line_ranges()[self.source.block_starts[block : block + 2] - np.array([0, 1])]
        expected = int(ends[1].sum()) + 1 - int(ends[0, 0])
        if len(text) != expected:
            what = "these rows changed after they were scanned"
            raise Corrupt(what, path=self.place.path, found=f"{len(text)} bytes", expected=f"{expected} bytes")
        left_bytes = _HELD_BYTES - len(text)
        kept = [(block, text)]
        for one in held:
            left_bytes -= len(one[1])
            if left_bytes < 0:
                break
            kept.append(one)
        self._held = tuple(kept)
        return text


def _state_of(store: Store, name: str, path: str) -> str:
    return files_key(path, store, [path]) if store.is_local else file_key(store, name, path)


def _require_json(source: ArrowSource, path: str) -> None:
    """Raise `Unsupported` if JSON can't represent a column, before anything is read."""
    names = {one.name: str(one.type) for one in source.arrow_schema if not _is_json(one.type)}
    if names:
        raise Unsupported(
            f"JSON can't represent the column {next(iter(names))!r}",
            path=path,
            found=", ".join(f"{name}: {kind}" for name, kind in names.items()),
            expected="text, numbers, booleans, or lists and structs of them",
            hint="Write the table without it or as text, or use `penstock convert … --to mds`, which keeps bytes",
        )


def _is_json(kind: Any) -> bool:
    types = require("pyarrow", extra=EXTRA).types
    if any(getattr(types, f"is_{one}")(kind) for one in _LEAVES):
        return True
    if types.is_dictionary(kind):
        return _is_json(kind.value_type)
    if types.is_struct(kind):
        return all(_is_json(kind.field(place).type) for place in range(kind.num_fields))
    is_list = any(getattr(types, f"is_{one}")(kind) for one in _LISTS)
    return is_list and _is_json(kind.value_type)

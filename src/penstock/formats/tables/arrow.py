"""Rows of Arrow tables in blocks: the common part of parquet and hf.

A block is the unit of decoding: a row group or a record batch. A few decoded blocks are cached.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import as_index, as_indices, column
from penstock._digest import digest
from penstock._optional import require
from penstock.abc import SupportsMmap
from penstock.errors import ConfigError, Corrupt, PenstockError, TooLarge, Unsupported
from penstock.formats._sources import StoredSource, redacted
from penstock.store.base import Store
from penstock.store.fingerprint import OpenedFile, once_a_host, opened_file, sample_fingerprint
from penstock.types import Batch, Extent, Field, IntArray, OpenOptions, Place, Sample, Schema

EXTRA = "parquet"

_HELD_BYTES = 1 << 26
_HELD_BLOCKS = 8
_STEP = 1024
_FEW_ROWS = 64
_FILE_STRUCT = {"bytes", "path"}


class Blocks(Protocol):
    """Blocks of a dataset, found when the first of them is needed."""

    def pieces(self, block: int, columns: list[str] | None, /) -> Iterator[Any]:
        """Yield the rows of `read` as several `pyarrow.Table`, without holding all of them in memory."""
        ...

    @property
    def schema(self) -> Any: ...

    @property
    def starts(self) -> IntArray:
        """First row of each block, and the number of rows at the end: int64[n_blocks + 1]."""
        ...

    def read(self, block: int, columns: list[str] | None, /) -> Any:
        """Return one block as a `pyarrow.Table` with these columns. Thread-safe."""
        ...

    def extent(self, block: int, /) -> Extent: ...


class ArrowSource(StoredSource):
    """Rows of all blocks in order; see `penstock.abc.Source`. Returned by `penstock.open`.

    A sample is a dict of plain Python values, as converted by `pyarrow`; null is None. Files are opened at the first
    access to a row. Memory: up to 8 blocks in 64 MiB, or the last block; 8 bytes per block, and some 200 bytes per
    local file.

    Args:
        store: the store of the files.
        path: the dataset.
        name: name of the format.
        files: paths of the data files, in order.
        options: options of `penstock.open`.
        load: finds the blocks.
        reopen: function and arguments that reopen the source in another process.
        given: the pattern or list that selected the files, if `path` is only their common folder; else None.
    """

    stated = ("split", "columns", "follow_links")

    def __init__(
        self,
        store: Store,
        path: str,
        name: str,
        files: Sequence[str],
        options: OpenOptions,
        load: Callable[[], Blocks],
        reopen: tuple[Any, ...],
        given: str | list[str] | None = None,
    ) -> None:
        super().__init__(store, path, options)
        self.path = path
        self.title = name
        self._is_compressed = name == "parquet"
        self._files = tuple(files)
        self._load = load
        self._reopen = reopen
        self._given = given
        self._known: Blocks | None = None
        self._opened: dict[str, OpenedFile] = {}  # local files, which are reopened for each block
        self._held: tuple[tuple[int, Any], ...] = ()  # replaced as a whole, so threads need no lock

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen

    @property
    def arrow_schema(self) -> Any:
        """Schema of the rows with the selected columns, a `pyarrow.Schema`."""
        schema = self._blocks.schema
        names = self._columns
        return schema if names is None else require("pyarrow", extra=EXTRA).schema([schema.field(one) for one in names])

    @property
    def schema(self) -> Schema:
        """Columns and the dtypes of numbers."""
        return Schema(tuple(_field(one) for one in self.arrow_schema))

    def _find_fingerprint(self) -> str:
        above = len(self.path.rstrip("/")) + 1
        files = [(path[above:], path) for path in self._files]

        def find() -> str:
            sizes = [[name, self._store.size(path)] for name, path in files]
            return sample_fingerprint(self._store, self.title, digest(sizes).encode(), files)

        return once_a_host(self._store, self._files, self.title, find)

    @property
    def files(self) -> tuple[Store, tuple[str, ...]]:
        return self._store, self._files

    def _read_files(self) -> tuple[Store, tuple[str, ...]]:
        return self.files

    @property
    def size_bytes(self) -> int:
        return sum(map(self._store.size, self._files))

    @property
    def block_starts(self) -> IntArray:
        """First row of each block, and `len` at the end: int64[n_blocks + 1]."""
        return self._blocks.starts

    def details(self) -> dict[str, Any]:
        return {
            "files": len(self._files),
            "blocks": len(self._blocks.starts) - 1,
            "columns": {one.name: str(one.type) for one in self.arrow_schema},
        }

    def __len__(self) -> int:
        return int(self._blocks.starts[-1])

    def __getitem__(self, index: int, /) -> Sample:
        place = as_index(index, len(self))
        block = int(np.searchsorted(self._blocks.starts, place, side="right")) - 1
        with self._naming(block):
            row = self._table(block).slice(place - int(self._blocks.starts[block]), 1)
            return to_rows(row, self._blocks.extent(block).path)[0]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the rows at `indices` (int64[k]) as columns; each block is read once."""
        chosen = as_indices(indices, len(self))
        if not len(chosen):
            return {}
        blocks = np.searchsorted(self._blocks.starts, chosen, side="right") - 1
        parts: list[tuple[NDArray[np.intp], dict[str, Any]]] = []
        for block in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == block)
            with self._naming(block):
                taken = _take(self._table(block), chosen[rows] - self._blocks.starts[block])
                path, names = self._blocks.extent(block).path, taken.column_names
                parts.append((rows, {name: _values(name, taken.column(name), path) for name in names}))
        return {name: _together([(rows, part[name]) for rows, part in parts], len(chosen)) for name in parts[0][1]}

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """Return the rows at `indices` (int64[k]), in that order."""
        chosen = as_indices(indices, len(self))
        blocks = np.searchsorted(self._blocks.starts, chosen, side="right") - 1
        found: list[Any] = [None] * len(chosen)
        for block in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == block)
            with self._naming(block):
                table = _take(self._table(block), chosen[rows] - self._blocks.starts[block])
                taken = to_rows(table, self._blocks.extent(block).path)
                if len(taken) != len(rows):
                    raise Corrupt("the rows have no columns", path=self.path)
            for row, sample in zip(rows.tolist(), taken, strict=True):
                found[row] = sample
        return found

    def __iter__(self) -> Iterator[Sample]:
        for start in range(0, len(self), _STEP):
            yield from self.get_samples(np.arange(start, min(len(self), start + _STEP)))

    def holds_ids(self, name: str, /) -> bool:
        """Return true if the column exists and holds lists of integers."""
        from penstock.formats.tables.lists import holds_ids

        schema = self.arrow_schema
        return name in schema.names and holds_ids(schema.field(name).type)

    def holds_marks(self, name: str, /) -> bool:
        """Return true if the column exists and holds lists of numbers or booleans."""
        from penstock.formats.tables.lists import holds_marks

        schema = self.arrow_schema
        return name in schema.names and holds_marks(schema.field(name).type)

    def id_column(self, name: str, /) -> Any:
        from penstock.formats.tables.lists import ListColumn

        return ListColumn(self, name)

    def tables(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Yield rows `[start, stop)` in order as `(first row, pyarrow.Table)`; long blocks in pieces."""
        blocks = self._blocks
        first = int(np.searchsorted(blocks.starts, start, side="right")) - 1
        for block in range(first, len(blocks.starts) - 1):
            at, end = blocks.starts[block : block + 2].tolist()
            few = min(end, stop) - max(at, start) < _FEW_ROWS  # decode and cache it completely
            with self._naming(block):
                for table in [self._table(block)] if few else blocks.pieces(block, self._columns):
                    self._require_same(block)
                    low, high = max(start, at), min(stop, at + table.num_rows)
                    if low < high:
                        yield low, table.slice(low - at, high - low)
                    at += table.num_rows
                    if at >= stop:
                        return

    def place_of(self, index: int, /) -> Place:
        place = as_index(index, len(self))
        return Place(extents=(self._blocks.extent(int(np.searchsorted(self._blocks.starts, place, side="right")) - 1),))

    def recipe(self) -> dict[str, Any]:
        return {**super().recipe(), "path": redacted(self.path if self._given is None else self._given)}

    def shown(self) -> dict[str, Any]:
        samples = None if self._known is None else len(self)
        return {"path": self.path, "files": len(self._files), "samples": samples}

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _blocks(self) -> Blocks:
        # Two threads may both get here. They find the same blocks, and one copy is freed.
        if self._known is None:
            opened = (opened_file(self._store, path) for path in self._files)
            self._opened = {one.path: one for one in opened if one is not None}
            blocks = self._load()
            _require_columns(blocks.schema, self._options.columns, self.path)
            self._known = blocks
        return self._known

    @property
    def _columns(self) -> list[str] | None:
        return None if self._options.columns is None else list(self._options.columns)

    def _table(self, block: int) -> Any:
        held = self._held
        for number, table in held:
            if number == block:
                return table
        table = self._blocks.read(block, self._columns)
        self._require_same(block)
        left_bytes = _HELD_BYTES - table.nbytes
        kept: list[tuple[int, Any]] = [(block, table)]
        for one in held[: _HELD_BLOCKS - 1]:
            left_bytes -= one[1].nbytes
            if left_bytes < 0:
                break
            kept.append(one)
        self._held = tuple(kept)
        return table

    @contextlib.contextmanager
    def _naming(self, block: int) -> Generator[None]:
        """Name the file in decoding errors, and its replacement if that is their reason."""
        try:
            with arrow_faults(lambda: self._blocks.extent(block)):
                yield
        except Corrupt:
            self._require_same(block)
            raise

    def _require_same(self, block: int) -> None:
        """Raise `FormatError` if the file of a block was replaced since the blocks were found."""
        if (opened := self._opened.get(self._blocks.extent(block).path)) is not None:
            opened.require_same()


# --- files ---------------------------------------------------------------------------------------------------------


def open_file(store: Store, path: str, *, mapped: bool = True) -> Any:
    """Open a file in any store as a `pyarrow.NativeFile`, over its mapping or else range by range.

    Raises:
        NotFound: the file doesn't exist.
    """
    pyarrow = require("pyarrow", extra=EXTRA)
    if mapped and isinstance(store, SupportsMmap):
        return pyarrow.BufferReader(pyarrow.py_buffer(store.mmap(path)))
    return pyarrow.PythonFile(_Ranges(store, path), mode="r")


class _Ranges(io.RawIOBase):
    def __init__(self, store: Store, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._size_bytes = store.size(path)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        base = (0, self._at, self._size_bytes)[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left_bytes = max(0, self._size_bytes - self._at)
        length_bytes = left_bytes if size < 0 else min(size, left_bytes)
        data = self._store.get(self._path, self._at, length_bytes) if length_bytes else b""
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()


@contextlib.contextmanager
def arrow_faults(where: str | Callable[[], Extent], offset_bytes: int | None = None) -> Generator[None]:
    """Turn errors of pyarrow into `Corrupt`; errors of the system stay `OSError`.

    Args:
        where: the file, or a function that returns the place of the error.
        offset_bytes: offset in the file.
    """
    pyarrow = require("pyarrow", extra=EXTRA)
    try:
        yield
    except (pyarrow.ArrowException, ValueError, EOFError, OverflowError, MemoryError, OSError) as error:
        if isinstance(error, PenstockError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        if not isinstance(where, str):
            extent = where()
            where, offset_bytes = extent.path, extent.offset_bytes
        if isinstance(error, MemoryError):
            raise too_large(where, error) from error
        raise damaged(where, error, offset_bytes) from error


def too_large(path: str, error: object) -> TooLarge:
    """Return the error for a block that doesn't fit into memory, or whose stated size is wrong."""
    found = str(error).partition("\n")[0] or "not enough memory"
    hint = "Rewrite it with smaller row groups or batches, or use a machine with more memory"
    what = "a block of rows does not fit into memory, or its size is damaged"
    return TooLarge(what, path=path, found=found, hint=hint)


def damaged(path: str, error: object, offset_bytes: int | None = None) -> Corrupt:
    found = str(error).partition("\n")[0] or type(error).__name__
    return Corrupt("the file is damaged", path=path, offset_bytes=offset_bytes, found=found, hint="Copy it again")


def block_starts(counts: Sequence[int], path: str) -> IntArray:
    """Return int64[n_blocks + 1], first row of each block, from the row counts in the files; raise `Corrupt`."""
    if min(counts, default=0) < 0 or sum(counts) > np.iinfo(np.int64).max:
        found = f"{min(counts)} to {max(counts)} rows per block"
        raise Corrupt("the file has too many rows", path=path, found=found, hint="Copy it again")
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def require_same_schema(schema: Any, first: Any, path: str, columns: Sequence[str] | None = None) -> None:
    """Raise `Unsupported` if a file's columns, or the selected ones, differ from those of the first file."""
    both = [[one for one in each if columns is None or one.name in columns] for each in (schema, first)]
    if schema.equals(first) if columns is None else _by_name(both[0]) == _by_name(both[1]):
        return
    types, expected = _by_name(both[0]), _by_name(both[1])
    separately = "convert the files of each kind separately, and merge the results"
    read_others = "" if columns is not None else "; or select other columns with --columns (columns=)"
    for name in types if types.keys() == expected.keys() else ():
        if types[name] != expected[name]:
            raise Unsupported(
                f"the column {name!r} has a different type than in the first file",
                path=path,
                found=types[name],
                expected=expected[name],
                hint=f"Cast the column to one type in all files; or {separately}{read_others}",
            )
    shown = [", ".join(f"{one.name}: {one.type}" for one in each) for each in both]
    hint = separately[0].upper() + separately[1:]
    if columns is None:
        hint += (
            "; or select columns that all files have: "
            "--tokens-column (tokens_column=), or --columns of `head` (columns=)"
        )
    raise Unsupported(
        "the columns differ from those of the first file", path=path, found=shown[0], expected=shown[1], hint=hint
    )


def _by_name(fields: Sequence[Any]) -> dict[str, Any]:
    return {one.name: one.type for one in fields}


# --- columns -------------------------------------------------------------------------------------------------------


def is_file_struct(arrow_type: Any) -> bool:
    """Return true for files as Hugging Face stores images and audio: `{"bytes": …, "path": …}`."""
    types = require("pyarrow", extra=EXTRA).types
    if not types.is_struct(arrow_type):
        return False
    names: set[str] = {arrow_type.field(place).name for place in range(arrow_type.num_fields)}
    return names == _FILE_STRUCT and str(arrow_type.field("bytes").type) in ("binary", "large_binary")


def _require_columns(schema: Any, columns: tuple[str, ...] | None, path: str) -> None:
    if len(set(schema.names)) != len(schema.names):
        raise Unsupported("two columns have the same name", path=path, found=", ".join(schema.names))
    for name in columns or ():
        if name not in schema.names:
            raise ConfigError(f"no column {name!r}", path=path, expected=", ".join(schema.names))


def _field(one: Any) -> Field:
    types = require("pyarrow", extra=EXTRA).types
    kind = one.type.value_type if types.is_dictionary(one.type) else one.type
    if types.is_boolean(kind):
        return Field(one.name, "bool", "bool", ())
    if types.is_integer(kind):
        return Field(one.name, "int", str(kind), ())
    if types.is_floating(kind):
        return Field(one.name, "float", {"halffloat": "float16", "float": "float32"}.get(str(kind), "float64"), ())
    if "string" in str(kind) and not types.is_nested(kind):
        return Field(one.name, "text")
    if "binary" in str(kind) and not types.is_nested(kind):
        return Field(one.name, "bytes")
    if is_file_struct(kind):
        return Field(one.name, "file")
    return Field(one.name, "json" if types.is_nested(kind) else str(kind))


def to_rows(table: Any, path: str) -> list[Sample]:
    """Return the rows of a `pyarrow.Table` or record batch as dicts of plain Python values.

    Raises:
        Unsupported: Python has no equivalent of a value, such as a time with nanoseconds.
    """
    try:
        return table.to_pylist()
    except (ValueError, OverflowError):
        for name in table.column_names:
            _to_list(name, table.column(name), path)
        raise


def _to_list(name: str, values: Any, path: str) -> list[Any]:
    try:
        return values.to_pylist()
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError) as error:
        if isinstance(error, require("pyarrow", extra=EXTRA).ArrowException):
            raise
        found = f"{values.type}: {str(error).partition('. Install pandas')[0]}"
        what = f"the column {name!r} holds a value that Python types can't represent"
        hint = "Cast the column to another type, such as timestamp[us] or string; or select the other columns"
        raise Unsupported(what, path=path, found=found, hint=f"{hint}: --columns of `convert` (columns=)") from error


def _take(table: Any, rows: IntArray) -> Any:
    """Return rows of a `pyarrow.Table`, even if `pyarrow` can only slice a column's type."""
    pyarrow = require("pyarrow", extra=EXTRA)
    try:
        return table.take(rows)
    except pyarrow.ArrowException:
        return pyarrow.concat_tables([table.slice(row, 1) for row in rows.tolist()] or [table.slice(0, 0)])


def _values(name: str, chunks: Any, path: str) -> Any:
    types = require("pyarrow", extra=EXTRA).types
    if not chunks.null_count:
        if types.is_boolean(chunks.type):
            return chunks.to_numpy()
        if types.is_integer(chunks.type) and str(chunks.type) != "uint64":
            return chunks.to_numpy().astype(np.int64, copy=False)
        if types.is_floating(chunks.type):
            return chunks.to_numpy().astype(np.float64, copy=False)
    return _to_list(name, chunks, path)


def _together(parts: list[tuple[NDArray[np.intp], Any]], n_rows: int) -> Any:
    if all(isinstance(values, np.ndarray) for _, values in parts):
        joined = np.empty(n_rows, parts[0][1].dtype)
        for rows, values in parts:
            joined[rows] = values
        return joined
    found: list[Any] = [None] * n_rows
    for rows, values in parts:
        plain = values.tolist() if isinstance(values, np.ndarray) else values
        for row, value in zip(rows.tolist(), plain, strict=True):
            found[row] = value
    return column(found)

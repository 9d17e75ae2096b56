"""parquet: rows of a Parquet file, or of all Parquet files in a folder. Read-only.

A file begins and ends with `PAR1`. The final one follows the footer and a `u32` with the footer's size. The footer
holds the schema and the list of row groups. Rows are those of all files in the byte order of their paths; all files
have the same columns. A row group is decoded as a whole.

Limits: those of pyarrow; a row group must fit into memory.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock._limits import GROUP_BATCH_BYTES, LEAST_GROUP_BYTES, UNPACKED_RATIO
from penstock._optional import require
from penstock.codec.parquet_footer import (
    BYTE_ARRAY,
    FIXED_LEN_BYTE_ARRAY,
    TAIL_BYTES,
    ColumnChunk,
    page_bytes,
    row_group_columns,
    row_group_extents,
)
from penstock.errors import ConfigError, Corrupt, NotFound, TooLarge
from penstock.formats._folders import first_entries
from penstock.formats._registry import refuse_to_create, repair_nothing
from penstock.formats.tables.arrow import (
    EXTRA,
    ArrowSource,
    arrow_faults,
    block_starts,
    open_file,
    require_same_schema,
)
from penstock.formats.tables.check import check_blocks
from penstock.store._links import walk_files
from penstock.store.base import Store
from penstock.store.find import files_of_all, find_files, one_store, select_files, survey
from penstock.store.patterns import is_pattern
from penstock.store.place import absolute
from penstock.store.put import beginning_of
from penstock.types import Depth, Extent, Finding, IntArray, OpenOptions, Sniff, Traits

T = TypeVar("T")

MAGIC = b"PAR1"
SUFFIXES = (".parquet", ".pq")
_BATCH_VALUES = 1 << 22
_MOST_FOOTERS = 8
_PAGE_HEADER_BYTES = 64
_WIDTHS = {0: 0.125, 1: 4, 2: 8, 3: 8, 4: 4, 5: 8, BYTE_ARRAY: 4}
"""Bytes of a value in memory, by its physical type."""


@dataclass(frozen=True, slots=True)
class ParquetBlocks:
    """Row groups; see `_arrow.Blocks`.

    Attributes:
        store: the store of the files.
        mapped: files are memory-mapped.
        groups: file of each row group, and its number in the file.
        extents: places of the row groups of a file, loaded on demand.
        shapes: sizes of the row groups of a file, loaded on demand.
        footers: footers of the files read last.
    """

    store: Store
    mapped: bool
    schema: Any
    starts: IntArray
    groups: tuple[tuple[str, int], ...]
    extents: dict[str, list[tuple[int, int]]] = field(default_factory=dict[str, list[tuple[int, int]]])
    shapes: dict[str, GroupSizes] = field(default_factory=dict[str, "GroupSizes"])
    footers: _Footers = field(default_factory=lambda: _Footers())

    def read(self, block: int, columns: list[str] | None, /) -> Any:
        path, group = self.groups[block]
        with self.footers.opened(self.store, path, mapped=self.mapped) as file:
            rows = self._sizes(path).batch_rows(group, columns, whole=True)
            if rows is None:
                table = file.read_row_group(group, columns=columns, use_threads=False)
            else:
                table = _read_in_batches(file, path, group, columns, rows, self._sizes(path))
        expected = int(self.starts[block + 1] - self.starts[block])
        if table.num_rows != expected:
            raise Corrupt(
                f"row group {group} has the wrong number of rows", path=path, found=table.num_rows, expected=expected
            )
        return table

    def pieces(self, block: int, columns: list[str] | None, /) -> Iterator[Any]:
        """Yield a row group in pieces of about 4 million values."""
        pyarrow = require("pyarrow", extra=EXTRA)
        path, group = self.groups[block]
        expected, found = int(self.starts[block + 1] - self.starts[block]), 0
        with self.footers.opened(self.store, path, mapped=self.mapped) as file:
            about = file.metadata.row_group(group)
            values = sum(about.column(one).num_values for one in range(about.num_columns))
            rows = max(1, min(_BATCH_VALUES * max(1, expected) // max(1, values), 1 << 20))
            rows = min(rows, self._sizes(path).batch_rows(group, columns) or rows)
            for batch in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
                found += batch.num_rows
                yield pyarrow.Table.from_batches([batch])
        if found != expected:
            what = f"row group {group} has the wrong number of rows"
            raise Corrupt(what, path=path, found=found, expected=expected)

    def _sizes(self, path: str) -> GroupSizes:
        if path not in self.shapes:
            self.shapes[path] = GroupSizes(self.store, path)
        return self.shapes[path]

    def extent(self, block: int, /) -> Extent:
        path, group = self.groups[block]
        if path not in self.extents:
            self.extents[path] = footer_extents(self.store, path)
        return Extent(path, *self.extents[path][group])


class GroupSizes:
    """Upper limits of the decoded size of row groups, from the footer and the headers of dictionary pages.

    A few bytes can encode any number of equal values, so sizes are compared with limits before a group is read.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path
        self._groups = _from_footer(row_group_columns, store, path)
        self._known: dict[tuple[int, tuple[str, ...] | None, bool], int | None] = {}

    def most_bytes(self, group: int) -> int:
        stored_bytes = sum(max(0, one.stored_bytes) for one in self._groups[group])
        return max(LEAST_GROUP_BYTES, UNPACKED_RATIO * min(stored_bytes, self._store.size(self._path)))

    def batch_rows(self, group: int, columns: Sequence[str] | None, *, whole: bool = False) -> int | None:
        """Return the size of a batch in rows that is sure to fit into memory, or None if any size is fine.

        Args:
            group: the row group.
            columns: the selected columns; None for all.
            whole: all batches are needed at once.

        Raises:
            TooLarge: `whole` is true, and values of fixed width alone exceed the limit.
        """
        key = (group, None if columns is None else tuple(columns), whole)
        if key not in self._known:
            self._known[key] = self._batch_rows(group, columns, whole=whole)
        return self._known[key]

    def _batch_rows(self, group: int, columns: Sequence[str] | None, *, whole: bool) -> int | None:
        fixed_bytes = repeated_bytes = longest_bytes = 0
        for one in self._groups[group]:
            if columns is not None and not any(f"{one.column}.".startswith(f"{name}.") for name in columns):
                continue
            plain_bytes = max(0, one.uncompressed_bytes)
            if one.type == FIXED_LEN_BYTE_ARRAY:
                fixed_bytes += one.num_values
            else:
                fixed_bytes += int(one.num_values * _WIDTHS.get(one.type, 8))
            if one.type in (BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY):
                value_bytes = self._longest_repeated(one, plain_bytes)
                longest_bytes += value_bytes
                repeated_bytes += value_bytes * one.num_values
        most_bytes = self.most_bytes(group)
        if whole and fixed_bytes > most_bytes:
            raise self.too_large(group, f"at least {fixed_bytes:,} bytes")
        if repeated_bytes <= (most_bytes if whole else GROUP_BATCH_BYTES):
            return None
        return max(1, GROUP_BATCH_BYTES // max(1, longest_bytes))

    def _longest_repeated(self, chunk: ColumnChunk, plain_bytes: int) -> int:
        """Return the largest size of a value that can be stored once and repeated many times."""
        if chunk.shares_prefixes:
            return plain_bytes
        if not chunk.dictionary_offset_bytes:
            return 0
        if plain_bytes * chunk.num_values <= GROUP_BATCH_BYTES:
            return plain_bytes
        header = self._store.get(self._path, chunk.dictionary_offset_bytes, _PAGE_HEADER_BYTES)
        size_bytes = page_bytes(header)
        return plain_bytes if size_bytes is None or size_bytes < 0 else size_bytes

    def too_large(self, group: int, found: str) -> TooLarge:
        what = f"row group {group} expands beyond the limit for its stored size"
        hint = "Rewrite the file with smaller row groups"
        return TooLarge(
            what, path=self._path, found=found, expected=f"at most {self.most_bytes(group):,} bytes", hint=hint
        )


def _read_in_batches(file: Any, path: str, group: int, columns: list[str] | None, rows: int, sizes: GroupSizes) -> Any:
    pyarrow = require("pyarrow", extra=EXTRA)
    batches: list[Any] = []
    size_bytes, most_bytes = 0, sizes.most_bytes(group)
    for batch in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
        size_bytes += batch.nbytes
        if size_bytes > most_bytes:
            del batch, batches[:]  # an error keeps the variables of its frames
            raise sizes.too_large(group, f"more than {size_bytes:,} bytes")
        batches.append(batch)
    if not batches:
        return file.read_row_group(group, columns=columns, use_threads=False)
    return pyarrow.Table.from_batches(batches).combine_chunks()


def open_parquet(store: Store, path: str, options: OpenOptions) -> ArrowSource:
    """Open the rows of a file, or of a folder of files.

    Raises:
        NotFound: the path doesn't exist, or the folder has no Parquet files.
        MissingExtra: pyarrow is not installed.
    """
    if _is_pattern(store, path):
        return open_several([path], options)
    files = parquet_files(store, path)
    mapped = options.read != "pread"
    again = (open_parquet, (store, path, options))
    return ArrowSource(
        store, path, "parquet", files, options, functools.partial(_load, store, files, mapped, options.columns), again
    )


def open_several(paths: Sequence[str], options: OpenOptions) -> ArrowSource:
    """Open the rows of several files, folders and patterns, in byte order of the paths of all files.

    Raises:
        NotFound: a path doesn't exist, or there are no Parquet files.
        ConfigError: a file is listed twice, or the files are in several stores.
        UnsafeData: a link leads out of a searched folder.
    """
    store = one_store(paths)
    files = files_of_all(paths, SUFFIXES, "Parquet", follow_links=options.follow_links)
    survey(store, files)
    root, mapped = os.path.commonpath([os.path.dirname(absolute(file)) for file in files]), options.read != "pread"
    again, given = (open_several, (tuple(paths), options)), paths[0] if len(paths) == 1 else list(paths)
    load = functools.partial(_load, store, files, mapped, options.columns)
    return ArrowSource(store, root, "parquet", [absolute(file) for file in files], options, load, again, given)


def parquet_files(store: Store, path: str) -> list[str]:
    if not store.is_folder(path):
        store.size(path)
        return [path]
    root = path.rstrip("/") or path
    if store.is_local:
        names = sorted(walk_files(root, store.guard, hidden=False), key=os.fsencode)
    else:
        names = [one[len(root) + 1 :] for one in store.list(root)]
    files = select_files((f"{root}/{name}" for name in names if not _is_hidden(name)), SUFFIXES)
    if not files:
        raise NotFound("no Parquet file in this folder", path=path, expected=" or ".join(SUFFIXES))
    return files


def _load(store: Store, files: Sequence[str], mapped: bool, columns: Sequence[str] | None) -> ParquetBlocks:
    """Read the footers; files may differ in columns that aren't selected."""
    schema: Any = None
    groups: list[tuple[str, int]] = []
    counts: list[int] = []
    for path in files:
        with _opened(store, path, mapped=mapped) as file:
            if schema is None:
                schema = file.schema_arrow
            require_same_schema(file.schema_arrow, schema, path, columns)
            for number in range(file.metadata.num_row_groups):
                if n_rows := file.metadata.row_group(number).num_rows:
                    counts.append(n_rows)
                    groups.append((path, number))
    starts = block_starts(counts, files[0])
    return ParquetBlocks(store, mapped, schema, starts, tuple(groups))


def footer_extents(store: Store, path: str) -> list[tuple[int, int]]:
    """Return offset and size of each row group of a file that pyarrow has opened; raise `Corrupt`.

    Doesn't use pyarrow, which aborts the process if the metadata of a column is inconsistent.
    """
    return _from_footer(row_group_extents, store, path)


def _from_footer(parse: Callable[[bytes], T], store: Store, path: str) -> T:
    end = store.size(path) - TAIL_BYTES
    size_bytes = int.from_bytes(store.get(path, max(0, end), 4), "little")
    if not 0 <= size_bytes <= end:
        raise Corrupt("the footer is longer than the file", path=path, found=f"{size_bytes} bytes")
    try:
        return parse(store.get(path, end - size_bytes, size_bytes))
    except ValueError as error:
        raise Corrupt("the footer is damaged", path=path, found=str(error), hint="Copy it again") from None


@contextlib.contextmanager
def _opened(store: Store, path: str, *, mapped: bool, footer: Any = None) -> Generator[Any]:
    """Open a `pyarrow.parquet.ParquetFile`; errors of pyarrow inside the context become `Corrupt`."""
    parquet = require("pyarrow.parquet", extra=EXTRA)
    with arrow_faults(path), parquet.ParquetFile(open_file(store, path, mapped=mapped), metadata=footer) as file:
        yield file


class _Footers:
    """Cache of a few parsed footers: otherwise pyarrow parses the whole footer again for each row group."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (_Footers, ())

    @contextlib.contextmanager
    def opened(self, store: Store, path: str, *, mapped: bool) -> Generator[Any]:
        known = self._known.get(path)
        with _opened(store, path, mapped=mapped, footer=known) as file:
            if known is None:
                self._known = {path: file.metadata} | dict(list(self._known.items())[: _MOST_FOOTERS - 1])
            yield file


def _is_hidden(name: str) -> bool:
    """Return true for files that tools keep next to the data: `_metadata`, `.hidden`."""
    return any(piece.startswith(("_", ".")) for piece in name.split("/"))


class _Parquet:
    name = "parquet"
    traits = Traits(remote=True, verify=True, suffixes=SUFFIXES, made_by="Parquet")

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Recognize a file by its magic, and a folder by the names in it."""
        if store.is_folder(path):
            far = store.first_names(path)
            if _are_parquet(far) or (store.is_local and _holds_parquet(path)):
                return Sniff(True, "a folder with Parquet files")
            return Sniff(False, "a folder without Parquet files")
        if _is_pattern(store, path):
            return _sniff_pattern(path)
        if beginning_of(store, path, len(MAGIC)) != MAGIC:
            return Sniff(False, "it does not begin and end with PAR1")
        end_bytes = max(0, store.size(path) - len(MAGIC))
        if path.endswith(SUFFIXES) or store.get(path, end_bytes, len(MAGIC)) == MAGIC:
            return Sniff(True, "it begins with PAR1")
        return Sniff(False, "it does not begin and end with PAR1")

    open = staticmethod(open_parquet)
    open_list = staticmethod(open_several)
    create = refuse_to_create

    def check(self, store: Store, path: str, options: OpenOptions, depth: Depth, /) -> list[Finding]:
        return check_blocks(open_parquet(store, path, options), self.name, depth)

    repair = repair_nothing


def _is_pattern(store: Store, path: str) -> bool:
    return is_pattern(path) and not store.exists(path)


def _sniff_pattern(path: str) -> Sniff:
    try:
        files = list(find_files(path, [SUFFIXES], "Parquet", follow_links=True))
    except (NotFound, ConfigError):
        return Sniff(False, "no Parquet file matches this pattern")
    are_all = all(file.endswith(SUFFIXES) for file in files)
    return Sniff(are_all, f"{len(files)} Parquet files" if are_all else "not all of the files are Parquet")


_PAPERS = (".md", ".txt", ".json", ".yaml", ".yml", ".crc")
"""Suffixes of other files that may be next to Parquet files."""


def _are_parquet(names: Sequence[str]) -> bool:
    """Return true if all files are Parquet files, except for hidden and auxiliary files."""
    shown = [name for name in names if not _is_hidden(name) and not name.endswith(_PAPERS)]
    return bool(shown) and all(name.endswith(SUFFIXES) for name in shown)


def _holds_parquet(root: str) -> bool:
    """Return true if the first files of a folder, or of its subfolders, are Parquet files without other data."""
    shown = (one for one in first_entries(root) if not one.name.startswith(("_", ".")))
    return _are_parquet([one.name for one in shown if not one.is_dir(follow_symlinks=False)])


FORMAT = _Parquet()

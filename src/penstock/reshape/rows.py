"""Documents, lines or samples of a dataset as rows of units.

A unit is a token id of a document, a byte of a line (with its line end), or a byte of a stored sample. Rows are read in
runs of some MB, back to back, as writers take them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock import abc
from penstock._access import excluded_of
from penstock._kinds import is_token_source
from penstock.abc import SupportsMmap, TokenSource
from penstock.codec.fields import mds_field
from penstock.codec.joined_digest import documents_in
from penstock.codec.tokens import dtype_for
from penstock.engine.rows import BLOCK_ROWS, NOTHING_EXCLUDED, PIECE_UNITS, Excluded, InPlace, StoredRows, require_read
from penstock.errors import ConfigError, Corrupt, Unsupported
from penstock.formats import find_format, get_format, sniff
from penstock.formats._excluded import require_list_named
from penstock.formats._exclusions import carried_list, excluded_list, kept, places_in_whole, stored, whole_of
from penstock.formats._opening import open_at, open_options
from penstock.formats._planes import require_all_listed
from penstock.formats._proof import AnyProof, DocumentsProof, Proof, Provable, require_as_recorded
from penstock.formats.jsonl.scan import fault_of
from penstock.formats.jsonl.source import decode_line
from penstock.formats.shards.files import Folder, offset_table, read_whole
from penstock.formats.shards.find_index import index_folder
from penstock.formats.shards.merge import Part, common_layout
from penstock.formats.shards.source import ShardSource, codec_of
from penstock.formats.tables.arrow import ArrowSource
from penstock.formats.tables.lines import TableLines
from penstock.store._files import on_network
from penstock.store.base import Store
from penstock.store.place import Data, Place, dataset_at
from penstock.types import Extent, IntArray, Manifest, OpenOptions, Sample


@runtime_checkable
class OneRun(Protocol):
    """A token source whose tokens may be in one file as a writer of the same width would store them."""

    def token_run(self) -> Extent | None:
        """Return the file range of all tokens, back to back and little-endian as wide as `dtype`, or None."""
        ...


@runtime_checkable
class ManyFiles(Protocol):
    """A token source of many files that share no document."""

    def by_file(self, indices: IntArray, /) -> Iterator[tuple[IntArray, TokenSource, IntArray]]:
        """Return, per file with some of these documents: places in `indices`, the file, and indices in it."""
        ...


def can_pick(source: Any) -> bool:
    """Return whether documents can be read one by one without reading more."""
    if isinstance(source, ManyFiles):
        return any(can_pick(file) for _, file, _ in source.by_file(np.zeros(1, np.int64)))
    return isinstance(source, OneRun) and source.token_run() is not None


def pick(store: Store, source: TokenSource, indices: IntArray) -> NDArray[Any]:
    """Return uint[n]: the documents at these indices, back to back; one call to the store per file."""
    found = [b""] * len(indices)
    if isinstance(source, ManyFiles):
        for places, file, within in source.by_file(indices):
            for place, data in zip(places.tolist(), _each(store, file, within), strict=True):
                found[place] = data
    else:
        found = _each(store, source, indices)
    return np.frombuffer(b"".join(found), dtype_for(source.dtype.itemsize, "<"))


def _each(store: Store, source: TokenSource, indices: IntArray) -> list[bytes]:
    width, doc_starts = source.dtype.itemsize, source.doc_starts
    pairs = list(zip(doc_starts[indices].tolist(), doc_starts[indices + 1].tolist(), strict=True))
    run = source.token_run() if isinstance(source, OneRun) else None
    if run is None:  # a file among others that is stored in another way
        return [source.tokens(*pair).astype(dtype_for(width, "<"), copy=False).tobytes() for pair in pairs]
    return store.get_ranges(run.path, [(run.offset_bytes + a * width, run.offset_bytes + b * width) for a, b in pairs])


_NEWLINE = b"\n"


def is_tars(place: Place, format: str | None, layout: str | None) -> bool:
    """Return whether a dataset is a WebDataset; see `penstock.reshape.tars`."""
    return (get_format(format) if format else sniff(place.store, place.path, layout=layout)).name == "webdataset"


@runtime_checkable
class Lines(Protocol):
    """A source of lines in one file."""

    @property
    def fingerprint(self) -> str: ...

    def line_ranges(self) -> IntArray:
        """Return int64[n, 2]: start and length in bytes of each line, without its line end."""
        ...

    @property
    def text(self) -> tuple[Store, str]:
        """Store and path of their bytes: a file, or the joined content of several."""
        ...


class TokenRows(StoredRows):
    """The documents of a token source."""

    def __init__(self, source: TokenSource, place: Place, format: str, excluded: Excluded) -> None:
        run = source.token_run() if place.is_local and isinstance(source, OneRun) else None
        run = None if run is None else replace(run, path=place.store.real_path(run.path))
        super().__init__(place, format, source.dtype, source, excluded, run)
        self._proof: DocumentsProof | None = None

    def __len__(self) -> int:
        return len(self.source.doc_starts) - 1

    def prove(self, first: int, stop: int) -> None:
        self._proof = self._proof or DocumentsProof(self.source)
        self._proof.require(first, stop)

    def document_digest(self) -> str | None:
        """Return the document digest of the side file if it is joinable."""
        manifest: Manifest | None = getattr(self.source, "manifest", None)
        digest = None if manifest is None else manifest.digest
        return digest if digest is not None and 0 < documents_in(digest) == len(self) else None

    def ranges(self, rows: slice | IntArray) -> tuple[IntArray, IntArray]:
        doc_starts = self.source.doc_starts
        if isinstance(rows, slice):
            borders = np.asarray(doc_starts[rows.start : rows.stop + 1], np.int64)
            return borders[:-1], np.diff(borders)
        starts = doc_starts[rows]
        return starts, doc_starts[rows + 1] - starts

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.source.tokens(start, stop)

    def token_run(self) -> Extent | None:
        """Return the range of all tokens in a local file, little-endian as wide as `dtype`, or None."""
        return self.run if self.can_view() else None

    def decode(self, row: memoryview, index: int) -> Mapping[str, Any]:
        return {"tokens": np.asarray(row)}

    def can_pick(self) -> bool:
        return can_pick(stored(whole_of(self.source)))

    def pick(self, rows: IntArray) -> NDArray[Any]:
        whole, gone = stored(whole_of(self.source)), self.excluded.indices
        return pick(self.place.store, whole, rows if gone is None else places_in_whole(rows, gone))


class LineRows(StoredRows):
    """The lines of a file. The last one gets a line end if it has none.

    Args:
        lines: int64[n, 2]: start and length in bytes of each line, without its line end.
        place: the file.
        source: the source of the lines, if there is one.
        excluded: the excluded samples, which aren't among the lines.
    """

    def __init__(
        self, lines: IntArray, place: Place, source: Lines | None = None, excluded: Excluded = NOTHING_EXCLUDED
    ) -> None:
        self._size_bytes = place.store.size(place.path)
        run = Extent(place.path, 0, self._size_bytes) if place.is_local else None
        super().__init__(place, "jsonl", np.dtype(np.uint8), source, excluded, run)
        self._lines = lines
        self._proof: AnyProof | None = None

    def __len__(self) -> int:
        return len(self._lines)

    def prove(self, first: int, stop: int) -> None:
        if self._proof is None:
            self._proof = (self.source.proof() if isinstance(self.source, Provable) else None) or Proof(())
        if first < stop:
            starts, lengths = self.ranges(slice(first, stop))
            self._proof.require(int(starts.min()), int((starts + lengths).max()))

    def ranges(self, rows: slice | IntArray) -> tuple[IntArray, IntArray]:
        lines = np.asarray(self._lines[rows])
        return lines[:, 0], lines[:, 1] + 1

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return uint8[stop - start]: bytes of the file; the one after its end is a line end."""
        data = self.place.store.get(self.place.path, start, min(stop, self._size_bytes) - start)
        if stop > self._size_bytes:
            data += _NEWLINE
        return require_read(np.frombuffer(data, np.uint8), stop - start, self.place)

    def decode(self, row: memoryview, index: int) -> Mapping[str, Any]:
        return fields_of(bytes(row[:-1]), self.place, index)

    def can_pick(self) -> bool:
        return not isinstance(self.source, TableLines)

    def pick(self, rows: IntArray) -> NDArray[np.uint8]:
        starts, lengths = self.ranges(rows)
        stops = np.minimum(starts + lengths, self._size_bytes).tolist()
        ranges = list(zip(starts.tolist(), stops, strict=True))
        found = self.place.store.get_ranges(self.place.path, ranges)
        ends = (one if one.endswith(_NEWLINE) else one + _NEWLINE for one in found)
        return np.frombuffer(b"".join(ends), np.uint8)


def fields_of(line: bytes, place: Place, index: int) -> Mapping[str, Any]:
    """Return the fields of a line without its line end; raises `Corrupt` for invalid JSON."""
    try:
        value = decode_line(line)
    except (ValueError, RecursionError):
        found = fault_of(line)
        raise Corrupt(
            f"the line at index {index} is not valid JSON", path=place.path, found=found, hint="Mend it"
        ) from None
    return value if isinstance(value, dict) else {"value": value}


def opener_of(rows: StoredRows, options: Mapping[str, Any]) -> Callable[[], StoredRows]:
    """Return what opens these rows in another process, with the exclude list that was read then; picklable."""
    table, known = rows.source, {**options, "excludes": rows.excluded.listed}
    place, name = (table.place, table.format) if isinstance(table, TableLines) else (rows.place, rows.format)
    return functools.partial(open_rows, place, format=name, **known)


def open_rows(
    given: Data,
    *,
    format: str | None = None,
    store: abc.Store | None = None,
    keep_excluded: bool = False,
    **options: Any,
) -> StoredRows:
    """Open the documents, lines or samples of a dataset without the excluded ones.

    Args:
        given: file, directory or URL.
        format: its format; detected by default.
        store: its store; by default that of the path.
        keep_excluded: include excluded samples; see `Excluded.carried`.
        options: options of `penstock.open`; `drop_planes` ignores the planes of tokens.

    Raises:
        NotFound, ConfigError: the dataset doesn't exist; tokens with planes.
        Unsupported: the format has no documents, lines or samples in shards.
    """
    place = dataset_at(given, store, follow_links=options.get("follow_links", False))
    # Not mapped: what is read once, from one end to the other, then takes no memory.
    bare = {"planes": None} if options.pop("drop_planes", False) else {}
    known = open_options({"read": "pread", **options, **bare})
    chosen = find_format(place, format, known)
    seen = open_at(chosen, place.store, place.path, known)
    require_list_named(chosen, place.store, place.path, known, seen)
    if not is_token_source(stored(seen)) or known.tokens_column is not None:  # documents are proved when they are read
        require_as_recorded(chosen, place.store, place.path, known, seen)
    source, excluded = stored(seen), Excluded(excluded_of(seen), excluded_list(seen))
    if keep_excluded:
        seen, excluded = source, Excluded(carried=carried_list(seen))
    if is_token_source(source):
        if known.planes is not None and known.split is None:
            require_all_listed(chosen.name, place.store, place.path, source)
        return TokenRows(kept(seen), place, chosen.name, excluded)
    if isinstance(source, Lines):
        return LineRows(_left(source.line_ranges(), excluded), Place(*source.text), source, excluded)
    if isinstance(source, ArrowSource):
        table = TableLines(source, place, chosen.name)
        return LineRows(_left(table.line_ranges(), excluded), Place(*table.text), table, excluded)
    if isinstance(source, ShardSource):
        return SampleRows(source, place, chosen.name, known, excluded)
    suffix = ".mds --to mds" if chosen.name in ("folder", "webdataset") else ".jsonl"  # JSON can't hold media
    made = f"{place.name.rpartition('.')[0] or place.name}{suffix}"
    raise Unsupported(
        f"this command doesn't support samples of the format {chosen.name!r}",
        path=place.path,
        expected="tokens, JSONL, tables or shards",
        hint=f"Convert them first: `penstock convert {place.path} {made}`",
    )


def _left(lines: IntArray, excluded: Excluded) -> IntArray:
    return lines if excluded.indices is None else np.delete(lines, excluded.indices, axis=0)


def in_place(source: int, rows: StoredRows, store: Store, token_bytes: int) -> InPlace | None:
    if not isinstance(rows, TokenRows) or not isinstance(rows.source, OneRun) or rows.dtype.itemsize != token_bytes:
        return None
    run = rows.source.token_run() if _is_same(rows.place.store, store) else None
    if run is None:
        return None
    file = Place(rows.place.store, rows.place.store.real_path(run.path))
    return InPlace(source, rows, file, run.offset_bytes, run.length_bytes)


def _is_same(one: Store, other: Store) -> bool:
    """Return whether a path in one of these stores is valid in the other."""
    if one.is_local or other.is_local:
        return one.is_local and other.is_local
    server = one.origin.server
    return bool(server) and server == other.origin.server


class SampleRows(StoredRows):
    """The samples of a directory of shards; their units are bytes.

    Each shard begins at a multiple of `PIECE_UNITS` in the space of all. Memory: 16 bytes per sample, and one shard if
    it is compressed or not on a local disk.

    Raises:
        ConfigError: shards of different columns, or no shard.
        FormatError: a shard is damaged.
    """

    def __init__(
        self,
        source: ShardSource,
        place: Place,
        format: str,
        options: OpenOptions,
        excluded: Excluded = NOTHING_EXCLUDED,
    ) -> None:
        super().__init__(place, format, np.dtype(np.uint8), source, excluded)
        self._shards = source.shards
        self.layout = common_layout(self._shards, place.path)
        folder = index_folder(place.store, place.path, options.split)
        self._folder = Folder(place.store, folder, isinstance(place.store, SupportsMmap))
        self._options = options
        self._decoded = codec_of(self.layout, options).decode
        self._held: tuple[int, NDArray[np.uint8]] | None = None
        local = place.is_local and not on_network(folder)
        self._viewable = local and all(shard.zip_data is None for shard in self._shards)
        sizes = [-(-shard.raw_data.size_bytes // PIECE_UNITS) * PIECE_UNITS for shard in self._shards]
        self._bases = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._borders: list[int] = source.block_starts.tolist()
        self._starts = np.empty(len(source), np.int64)
        self._lengths = np.empty(len(source), np.int64)
        for number, first in enumerate(self._borders[:-1]):
            table = self._table(number)
            self._starts[first : first + len(table) - 1] = table[:-1] + self._bases[number]
            self._lengths[first : first + len(table) - 1] = np.diff(table)
        if self.excluded.indices is not None:
            self._starts = np.delete(self._starts, self.excluded.indices)
            self._lengths = np.delete(self._lengths, self.excluded.indices)
            missing = np.searchsorted(self.excluded.indices, self._borders)
            self._borders = np.unique(np.array(self._borders) - missing).tolist()

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def part(self) -> Part:
        return Part(self._folder.store, self._folder.path)

    def writer_options(self) -> dict[str, Any]:
        """Return writer options for the columns, compression and hashes of the first shard.

        Raises `ConfigError` if a writer would store these columns differently.
        """
        layout = self.layout
        sizes = tuple(mds_field(one).size_bytes for one in layout.column_encodings) if layout.format == "mds" else None
        if layout.column_sizes != sizes or (
            layout.format != "json" and list(layout.column_names) != sorted(layout.column_names)
        ):
            hint = "Write them again with `penstock convert`"
            what = "these columns would be stored in a different order or with different sizes"
            raise ConfigError(what, path=self.place.path, found=", ".join(layout.column_names), hint=hint)
        options: dict[str, Any] = {
            "columns": dict(zip(layout.column_names, layout.column_encodings, strict=True)),
            "size_limit": layout.size_limit,
            "compression": layout.compression,
            "hashes": list(dict.fromkeys(layout.hashes)),
        }
        if layout.newline is not None:
            options["newline"] = layout.newline
        if layout.format == "xsv":
            options["separator"] = layout.separator
        return options

    def borders(self) -> list[int]:
        return self._borders

    def ranges(self, rows: slice | IntArray) -> tuple[IntArray, IntArray]:
        return self._starts[rows], self._lengths[rows]

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        number = int(np.searchsorted(self._bases, start, side="right")) - 1
        if self._held is None or self._held[0] != number:
            self._held = None  # one shard at a time
            self._held = (number, self._data(number))
        base = int(self._bases[number])
        return self._held[1][start - base : stop - base]

    def can_view(self) -> bool:
        return self._viewable

    def view(self, start: int, stop: int) -> NDArray[np.uint8]:
        return self.read(start, stop)

    def release(self) -> None:
        """Release a mapped shard; others would have to be read again."""
        if self._viewable:
            self._held = None

    def can_pick(self) -> bool:
        return all(shard.zip_data is None for shard in self._shards)

    def pick(self, rows: IntArray) -> NDArray[np.uint8]:
        starts, lengths = self.ranges(rows)
        numbers = np.searchsorted(self._bases, starts, side="right") - 1
        found = [b""] * len(rows)
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            first = starts[here] - self._bases[number]
            ranges = list(zip(first.tolist(), (first + lengths[here]).tolist(), strict=True))
            path = self._folder.place(self._shards[number].raw_data)
            for place, data in zip(here.tolist(), self._folder.store.get_ranges(path, ranges), strict=True):
                found[place] = data
        return np.frombuffer(b"".join(found), np.uint8)

    def decode(self, row: memoryview, index: int) -> Sample:
        return self._decoded(row, 0, len(row))

    def decoder(self, names: Collection[str]) -> Callable[[memoryview, int], Sample]:
        if not names or self.layout.format == "json" or not set(names) <= set(self.layout.column_names):
            return self.decode  # lines of JSON are parsed whole anyway
        codec = codec_of(self.layout, replace(self._options, columns=sorted(names)))
        return lambda row, index: codec.decode(row, 0, len(row))

    def _data(self, number: int) -> NDArray[np.uint8]:
        shard = self._shards[number]
        return read_whole(self._folder, shard, shard.raw_data, shard.zip_data)[0]

    def _table(self, number: int) -> IntArray:
        """Return int64[n + 1]: offsets of the samples of a shard in its data file."""
        shard, folder = self._shards[number], self._folder
        if shard.raw_meta is None:
            head, path, floor_bytes = self._data(number), folder.place(shard.raw_data), 4 * (shard.samples + 2)
        else:
            head = read_whole(folder, shard, shard.raw_meta, shard.zip_meta)[0]
            path, floor_bytes = folder.place(shard.raw_meta), 0
        return offset_table(head, shard.samples, floor_bytes, shard.raw_data.size_bytes, path).astype(np.int64)


class ChainedRows(StoredRows):
    """Ranges of rows of several datasets, one after another.

    Args:
        parts: rows of one dtype, each with first and stop index.
    """

    def __init__(self, parts: Sequence[tuple[StoredRows, int, int]]) -> None:
        super().__init__(parts[0][0].place, parts[0][0].format, parts[0][0].dtype)
        self._parts = [rows for rows, _, _ in parts]
        self._firsts = [first for _, first, _ in parts]
        self._borders = np.concatenate([[0], np.cumsum([stop - first for _, first, stop in parts])])
        sizes = [-(-_space(rows) // PIECE_UNITS) * PIECE_UNITS for rows in self._parts]
        self._bases = np.concatenate([[0], np.cumsum(sizes)])

    def __len__(self) -> int:
        return int(self._borders[-1])

    def borders(self) -> list[int]:
        return self._borders.tolist()

    def ranges(self, rows: slice | IntArray) -> tuple[IntArray, IntArray]:
        indices = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        starts, lengths = np.empty(len(indices), np.int64), np.empty(len(indices), np.int64)
        parts = np.searchsorted(self._borders, indices, side="right") - 1
        for part in np.unique(parts).tolist():
            here = np.flatnonzero(parts == part)
            own_starts, lengths[here] = self._parts[part].ranges(
                indices[here] - self._borders[part] + self._firsts[part]
            )
            starts[here] = own_starts + self._bases[part]
        return starts, lengths

    def read(self, start: int, stop: int) -> NDArray[Any]:
        part, base = self._part_at(start)
        return part.read(start - base, stop - base)

    def decode(self, row: memoryview, index: int) -> Mapping[str, Any]:
        part = int(np.searchsorted(self._borders, index, side="right")) - 1
        return self._parts[part].decode(row, index - int(self._borders[part]) + self._firsts[part])

    def can_view(self) -> bool:
        return all(rows.can_view() for rows in self._parts)

    def view(self, start: int, stop: int) -> NDArray[Any]:
        part, base = self._part_at(start)
        return part.view(start - base, stop - base)

    def prove(self, first: int, stop: int) -> None:
        borders = zip(self._parts, self._borders.tolist(), self._borders[1:].tolist(), self._firsts, strict=False)
        for rows, low, high, own in borders:
            if first < high and low < stop:
                rows.prove(max(first, low) - low + own, min(stop, high) - low + own)

    def release(self) -> None:
        for rows in self._parts:
            rows.release()

    def _part_at(self, start: int) -> tuple[StoredRows, int]:
        part = int(np.searchsorted(self._bases, start, side="right")) - 1
        return self._parts[part], int(self._bases[part])


def _space(rows: StoredRows) -> int:
    """Return an upper bound of the units of rows."""
    ends = [0]
    for at in range(0, len(rows), BLOCK_ROWS):
        starts, lengths = rows.ranges(slice(at, min(len(rows), at + BLOCK_ROWS)))
        ends.append(int((starts + lengths).max()))
    return max(ends)

"""Documents, lines or samples of a dataset as rows of units.

A unit is a token id of a document, a byte of a line (with its line end), or a byte of a stored sample. Rows are read in
runs of some MB, back to back, as writers take them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock import abc
from penstock._kinds import is_token_source
from penstock._resolved import excluded_of
from penstock.abc import TokenSource
from penstock.codec.joined_digest import documents_in
from penstock.codec.runs import copy_runs
from penstock.codec.tokens import dtype_for
from penstock.errors import Truncated, Unsupported
from penstock.formats import find_format, get_format, sniff
from penstock.formats._door import open_at, open_options
from penstock.formats._excluded import require_list_named
from penstock.formats._exclusions import carried_list, excluded_list, kept, places_in_whole, stored, whole_of
from penstock.formats._planes import require_all_listed
from penstock.formats._proof import AnyProof, DocumentsProof, Proof, Provable, require_as_recorded
from penstock.formats.shards.source import ShardSource
from penstock.formats.tables.arrow import ArrowSource
from penstock.formats.tables.lines import TableLines
from penstock.reshape.samples import NOTHING_TAKEN_OUT, SampleRows, TakenOut
from penstock.store._files import on_network
from penstock.store.base import Store
from penstock.store.mapped import MappedFile
from penstock.store.place import Data, Place, dataset_at
from penstock.store.remote import RemoteStore
from penstock.types import Extent, IntArray, Manifest


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


RUN_BYTES = 1 << 24
PIECE_UNITS = 1 << 22
"""Rows whose first units lie in one multiple of this lie in one file: what may be asked of `view` at once."""

_NEWLINE = b"\n"
BLOCK_ROWS = 1 << 16
_LEAST_ROW_BYTES = 64  # of rows that are mostly shorter, a run has fewer bytes
_MOST_SPREAD = 4


def is_tars(place: Place, format: str | None, layout: str | None) -> bool:
    """Return whether a dataset is a WebDataset; see `penstock.reshape.tars`."""
    return (get_format(format) if format else sniff(place.store, place.path, layout=layout)).name == "webdataset"


class Rows(Protocol):
    """Rows in a space of units."""

    place: Place
    dtype: np.dtype[Any]

    def __len__(self) -> int: ...

    def borders(self) -> list[int]:
        """Return indices of rows that no run crosses, from 0 to the number of rows."""
        ...

    def ranges(self, rows: slice | IntArray) -> tuple[IntArray, IntArray]:
        """Return first unit and number of units of the rows at these indices, each int64[k]."""
        ...

    def read(self, start: int, stop: int) -> NDArray[Any]: ...

    def can_view(self) -> bool:
        """Return whether `view` maps a local file."""
        ...

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """Return the same units as `read`, mapped."""
        ...

    def release(self) -> None:
        """Release mapped pages."""
        ...

    def prove(self, first: int, stop: int) -> None:
        """Raise `Corrupt` if rows `[first, stop)` differ from the digests of their side file."""
        ...


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


class TokenRows:
    """The documents of a token source. `taken_out`: the excluded samples."""

    __slots__ = ("_map", "_proof", "_run", "dtype", "format", "place", "source", "taken_out")

    def __init__(self, source: TokenSource, place: Place, format: str, taken_out: TakenOut) -> None:
        self.source = source
        self.taken_out = taken_out
        self.place = place
        self.format = format
        self.dtype = source.dtype
        run = source.token_run() if place.is_local and isinstance(source, OneRun) else None
        self._run = None if run is None else replace(run, path=place.store.real_path(run.path))
        self._map: MappedFile | None = None
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

    def borders(self) -> list[int]:
        return [0, len(self)]

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
        return self._run if self.can_view() else None

    def can_view(self) -> bool:
        return self._run is not None and not on_network(self._run.path)

    def view(self, start: int, stop: int) -> NDArray[Any]:
        if self._run is None:
            return self.read(start, stop)
        self._map = self._map or MappedFile(self._run.path)
        width = self.dtype.itemsize
        first_bytes, stop_bytes = self._run.offset_bytes + start * width, self._run.offset_bytes + stop * width
        return _all_of(self._map.data[first_bytes:stop_bytes], stop_bytes - first_bytes, self.place).view(
            dtype_for(width, "<")
        )

    def release(self) -> None:
        if self._map is not None:
            self._map.release()

    def can_pick(self) -> bool:
        return can_pick(stored(whole_of(self.source)))

    def pick(self, rows: IntArray) -> NDArray[Any]:
        whole, gone = stored(whole_of(self.source)), self.taken_out.indices
        return pick(self.place.store, whole, rows if gone is None else places_in_whole(rows, gone))


class LineRows:
    """The lines of a file. The last one gets a line end if it has none.

    Args:
        lines: int64[n, 2]: start and length in bytes of each line, without its line end.
        place: the file.
        format: its format.
        source: the source of the lines, if there is one.
        taken_out: excluded samples.
    """

    __slots__ = ("_lines", "_map", "_proof", "_size_bytes", "dtype", "format", "place", "source", "taken_out")

    def __init__(
        self,
        lines: IntArray,
        place: Place,
        format: str,
        source: Lines | None = None,
        taken_out: TakenOut = NOTHING_TAKEN_OUT,
    ) -> None:
        self.source = source
        self.taken_out = taken_out
        self.place = place
        self.format = format
        self.dtype = np.dtype(np.uint8)
        self._size_bytes = place.store.size(place.path)
        self._lines = lines
        self._map: MappedFile | None = None
        self._proof: AnyProof | None = None

    def __len__(self) -> int:
        return len(self._lines)

    def prove(self, first: int, stop: int) -> None:
        if self._proof is None:
            self._proof = (self.source.proof() if isinstance(self.source, Provable) else None) or Proof(())
        if first < stop:
            starts, lengths = self.ranges(slice(first, stop))
            self._proof.require(int(starts.min()), int((starts + lengths).max()))

    def borders(self) -> list[int]:
        return [0, len(self)]

    def ranges(self, rows: slice | IntArray) -> tuple[IntArray, IntArray]:
        lines = np.asarray(self._lines[rows])
        return lines[:, 0], lines[:, 1] + 1

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return uint8[stop - start]: bytes of the file; the one after its end is a line end."""
        data = self.place.store.get(self.place.path, start, min(stop, self._size_bytes) - start)
        if stop > self._size_bytes:
            data += _NEWLINE
        return _all_of(np.frombuffer(data, np.uint8), stop - start, self.place)

    def can_view(self) -> bool:
        return self.place.is_local and not on_network(self.place.path)

    def view(self, start: int, stop: int) -> NDArray[np.uint8]:
        if stop > self._size_bytes:
            return self.read(start, stop)
        self._map = self._map or MappedFile(self.place.path)
        return _all_of(self._map.data[start:stop], stop - start, self.place)

    def release(self) -> None:
        if self._map is not None:
            self._map.release()

    def can_pick(self) -> bool:
        return not isinstance(self.source, TableLines)

    def pick(self, rows: IntArray) -> NDArray[np.uint8]:
        ranges = [(start, min(stop, self._size_bytes)) for start, stop in _stops(self.ranges(rows))]
        found = self.place.store.get_ranges(self.place.path, ranges)
        ends = (one if one.endswith(_NEWLINE) else one + _NEWLINE for one in found)
        return np.frombuffer(b"".join(ends), np.uint8)


def _stops(ranges: tuple[IntArray, IntArray]) -> list[tuple[int, int]]:
    starts, lengths = ranges
    return list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))


AnyRows: TypeAlias = TokenRows | LineRows | SampleRows
"""What a dataset may be for the verbs."""


def opener_of(rows: AnyRows, options: Mapping[str, Any]) -> Callable[[], AnyRows]:
    """Return what opens these rows in another process, with the exclude list that was read then; picklable."""
    table, known = rows.source, {**options, "excludes": rows.taken_out.listed}
    place, name = (table.place, table.format) if isinstance(table, TableLines) else (rows.place, rows.format)
    return functools.partial(open_rows, place, format=name, **known)


def open_rows(
    given: Data,
    *,
    format: str | None = None,
    store: abc.Store | None = None,
    keep_excluded: bool = False,
    **options: Any,
) -> AnyRows:
    """Open the documents, lines or samples of a dataset without the excluded ones.

    Args:
        given: file, directory or URL.
        format: its format; detected by default.
        store: its store; by default that of the path.
        keep_excluded: include excluded samples; see `TakenOut.carried`.
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
    source, taken_out = stored(seen), TakenOut(excluded_of(seen), excluded_list(seen))
    if keep_excluded:
        seen, taken_out = source, TakenOut(carried=carried_list(seen))
    if is_token_source(source):
        if known.planes is not None and known.split is None:
            require_all_listed(chosen.name, place.store, place.path, source)
        return TokenRows(kept(seen), place, chosen.name, taken_out)
    if isinstance(source, Lines):
        return LineRows(_left(source.line_ranges(), taken_out), Place(*source.text), "jsonl", source, taken_out)
    if isinstance(source, ArrowSource):
        table = TableLines(source, place, chosen.name)
        return LineRows(_left(table.line_ranges(), taken_out), Place(*table.text), "jsonl", table, taken_out)
    if isinstance(source, ShardSource):
        return SampleRows(source, place, chosen.name, known, PIECE_UNITS, taken_out)
    made = f"{place.name.rpartition('.')[0] or place.name}{'.mds --to mds' if chosen.name == 'folder' else '.jsonl'}"
    raise Unsupported(
        f"this command doesn't support samples of the format {chosen.name!r}",
        path=place.path,
        expected="tokens, JSONL, tables or shards",
        hint=f"Convert them first: `penstock convert {place.path} {made}`",
    )


def _left(lines: IntArray, taken_out: TakenOut) -> IntArray:
    return lines if taken_out.indices is None else np.delete(lines, taken_out.indices, axis=0)


def runs(rows: Rows, first: int = 0, stop: int | None = None, run_bytes: int = RUN_BYTES) -> Iterator[tuple[int, int]]:
    """Return borders of runs of rows in `[first, stop)`, each of at most `run_bytes`, or one longer row."""
    most = run_bytes // rows.dtype.itemsize
    last = len(rows) if stop is None else stop
    for border in rows.borders():
        part_stop = min(last, border)
        while first < part_stop:
            most_rows = max(BLOCK_ROWS, run_bytes // _LEAST_ROW_BYTES)
            _, lengths = rows.ranges(slice(first, min(part_stop, first + most_rows)))
            step = max(1, int(np.searchsorted(np.cumsum(lengths), most, side="right")))
            yield first, first + step
            first += step


def read_run(rows: Rows, first: int, stop: int) -> tuple[NDArray[Any], IntArray]:
    """Return the rows of one run, back to back: (any[n_units], int64[n_rows] lengths); raises as `Rows.prove`."""
    rows.prove(first, stop)
    starts, lengths = rows.ranges(slice(first, stop))
    ends = starts + lengths
    if bool((starts[1:] == ends[:-1]).all()):
        return (rows.read(int(starts[0]), int(ends[-1])) if len(starts) else np.empty(0, rows.dtype)), lengths
    total = int(lengths.sum())
    out = np.empty(total, rows.dtype)
    places = np.cumsum(lengths) - lengths
    low, high = int(starts.min()), int(ends.max())
    if high - low <= _MOST_SPREAD * total:
        copy_runs(rows.read(low, high), starts - low, lengths, out, places)
    else:  # an index in another order than its file
        for start, end, place in zip(starts.tolist(), ends.tolist(), places.tolist(), strict=True):
            out[place : place + end - start] = rows.read(start, end)
    return out, lengths


def total_units(rows: Rows) -> int:
    blocks = range(0, len(rows), BLOCK_ROWS)
    return sum(int(rows.ranges(slice(at, min(len(rows), at + BLOCK_ROWS)))[1].sum()) for at in blocks)


def _all_of(data: NDArray[Any], wanted_bytes: int, place: Place) -> NDArray[Any]:
    if len(data) < wanted_bytes:
        raise Truncated(
            "the file became shorter while it was being read",
            path=place.path,
            found=f"{len(data)} bytes",
            expected=f"{wanted_bytes} bytes",
        )
    return data


@dataclass(frozen=True, slots=True)
class InPlace:
    """All documents of the source number `source`, in a file of the output's store as a writer would store them."""

    source: int
    rows: TokenRows
    file: Place
    start_bytes: int
    size_bytes: int


def in_place(source: int, rows: AnyRows, store: Store, token_bytes: int) -> InPlace | None:
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
    first, second = (store.origin for store in (one, other))
    return isinstance(first, RemoteStore) and isinstance(second, RemoteStore) and first.base == second.base


class JoinedRows:
    """Ranges of rows of several datasets, one after another.

    Args:
        parts: rows of one dtype, each with first and stop index.
    """

    __slots__ = ("_bases", "_borders", "_firsts", "_parts", "dtype", "place")

    def __init__(self, parts: Sequence[tuple[Rows, int, int]]) -> None:
        self._parts = [rows for rows, _, _ in parts]
        self._firsts = [first for _, first, _ in parts]
        self._borders = np.concatenate([[0], np.cumsum([stop - first for _, first, stop in parts])])
        sizes = [-(-_space(rows) // PIECE_UNITS) * PIECE_UNITS for rows in self._parts]
        self._bases = np.concatenate([[0], np.cumsum(sizes)])
        self.dtype, self.place = self._parts[0].dtype, self._parts[0].place

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

    def _part_at(self, start: int) -> tuple[Rows, int]:
        part = int(np.searchsorted(self._bases, start, side="right")) - 1
        return self._parts[part], int(self._bases[part])


def _space(rows: Rows) -> int:
    """Return an upper bound of the units of rows."""
    ends = [0]
    for at in range(0, len(rows), BLOCK_ROWS):
        starts, lengths = rows.ranges(slice(at, min(len(rows), at + BLOCK_ROWS)))
        ends.append(int((starts + lengths).max()))
    return max(ends)

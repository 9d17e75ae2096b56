"""Documents of tokens in a column of rows, as a token source: data tokenized elsewhere, in any format of rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock._access import capability, place_of, samples_of
from penstock._arrays import as_index, as_indices, column
from penstock._digest import digest, kept_key
from penstock._kinds import is_token_source
from penstock._tokens import LOSS_MASK, Plane, plane_fields
from penstock.abc import Format, Source
from penstock.errors import ConfigError, Corrupt, PenstockError, TooLarge, Unsupported
from penstock.formats._sources import no_such_mark, require_recorded_eos
from penstock.formats._token_marks import (
    KNOWN,
    PACKED,
    PADDING,
    ColumnMask,
    MarkedRows,
    Marking,
    Values,
    require_mask_column,
    values_of,
)
from penstock.node.blocks import preferred_mode
from penstock.node.tokens import TokenNode
from penstock.store.base import Store
from penstock.store.derived import DerivedCache
from penstock.store.fingerprint import files_key
from penstock.types import Batch, Field, IntArray, Manifest, OpenOptions, Place, Sample, Schema, TokenArray

USUAL = ("tokens", "input_ids")
"""Columns used as documents if a token source is needed and no column is named."""

_STEP = 1024
_SMALL_ROWS = 1 << 14  # read again faster than with a lock and a new file
_STARTS_VERSION = "column-starts-3"


class IdColumn(Protocol):
    """Column of rows with a list of ids in each."""

    def dtype(self) -> np.dtype[Any]:
        """Return an integer dtype for the ids as they are stored."""
        ...

    def runs(self, first: int, stop: int, /) -> Iterator[tuple[NDArray[Any], IntArray]]:
        """Yield rows `[first, stop)`: integers [n_ids], and int64[n_rows], the number of ids of each row."""
        ...

    def marked_runs(
        self, first: int, stop: int, names: Sequence[str], /
    ) -> Iterator[tuple[NDArray[Any], IntArray, dict[str, Values]]]:
        """Do the same with the values of other columns, for the rows that have them."""
        ...


@runtime_checkable
class _HasIdColumns(Protocol):
    """Source with columns of lists of integers."""

    def holds_ids(self, name: str, /) -> bool: ...

    def holds_marks(self, name: str, /) -> bool: ...

    def id_column(self, name: str, /) -> IdColumn: ...


def usual_column(rows: Source[Any]) -> str | None:
    """Return the column of a source that is used as its documents; None if there is none."""
    if isinstance(rows, _HasIdColumns):
        return next(filter(rows.holds_ids, USUAL), None)
    arrays = {field.name for field in rows.schema.fields if field.kind == "ndarray"}
    return next((name for name in USUAL if name in arrays), None)


def as_tokens(chosen: Format, store: Store, path: str, options: OpenOptions, rows: Source[Any]) -> Source[Any]:
    """Return the documents of the column named in `options`; the source itself if none is named."""
    if options.tokens_column is None:
        return rows
    if is_token_source(rows):
        what, hint = "a token dataset has no columns", "Omit --tokens-column (tokens_column=)"
        raise ConfigError(what, path=path, found=f"{chosen.name}, tokens_column={options.tokens_column!r}", hint=hint)
    require_mask_column(options.mask_column, options.tokens_column, path)

    def opened(*columns: str) -> Source[Any]:
        only = replace(options, columns=columns or None, eos_id=None, vocab_size=None, raw=False)
        return chosen.open(store, path, only)

    column = opened(options.tokens_column)
    # Marks count even if only the ids are among the requested columns.
    names = _mark_columns(
        rows if options.columns is None else opened(), options, lambda name: opened(options.tokens_column or "", name)
    )
    marked = opened(options.tokens_column, *names) if names else column
    require_recorded_eos(path, options.eos_id, _manifest_of(rows))
    if options.documents == "eos":
        eos_id = _known_eos(rows) if options.eos_id is None else options.eos_id
        if eos_id is None:
            what, hint = "the EOS id that ends documents is unknown", "Specify it: --eos-id (eos_id=)"
            raise ConfigError(what, path=path, found="documents='eos'", hint=hint)
        options = replace(options, one_document=True, eos_id=eos_id)
    # Files of a table may differ in their other columns, which aren't read.
    is_table = type(rows) is type(column) and isinstance(rows, _HasIdColumns)
    return ColumnTokens(column if is_table else rows, column, path, options, rows, marked, names)


def _mark_columns(rows: Source[Any], options: OpenOptions, opened: Callable[[str], Source[Any]]) -> tuple[str, ...]:
    """Return the columns of marks, padding and packing that are read with the ids: those that exist.

    Raises:
        ConfigError: there is no column `mask_column`.
        Unsupported: some of several files have one, and others don't.
    """
    wanted = [PADDING] if options.planes is None else [*KNOWN]
    are_rows_documents = not options.one_document and options.documents != "eos"
    wanted += PACKED if are_rows_documents and options.planes is not None else ()
    used = options.mask_column
    wanted += [] if used is None or used in wanted else [used]
    wanted = [name for name in wanted if name != options.tokens_column]
    if isinstance(rows, _HasIdColumns):
        try:
            found = [name for name in wanted if rows.holds_marks(name)]
        except Unsupported:  # the files have other columns
            found = [name for name in wanted if _is_in_all(opened, name)]
    else:
        schema = rows.schema
        listed = {field.name for field in schema.fields}
        found = [name for name in wanted if schema.open or name in listed]
    if used is not None and used not in found:
        what, hint = (
            f"no column {used!r} of lists",
            "Choose another one: --mask-column (mask_column=)",
        )
        raise ConfigError(what, hint=hint)
    return tuple(found)


def _is_in_all(opened: Callable[[str], Source[Any]], name: str) -> bool:
    """Return whether all files have a column; raises `Unsupported` if only some of them do."""
    try:
        source: Any = opened(name)
        return source.holds_marks(name)
    except ConfigError:  # none has it
        return False


class ColumnTokens(TokenNode):
    """Source with one document per row, or one run of all rows; see `penstock.abc.TokenSource`.

    Made by `penstock.open`.

    Memory: 8 bytes per row, and the requested data.

    Args:
        rows: the source.
        only: the same with only this column.
        shown: the dataset in errors.
        options: with `tokens_column, tokens_dtype, one_document, documents, eos_id, vocab_size, mask_column`.
        whole: with all columns, to name those that are dropped; by default `rows`.
        marked: with the columns `names` too; by default `only`.
        names: columns of padding, of marks for the loss, and of documents packed into one row.
    """

    kind = "open"
    had_eos_borders = True

    def __init__(
        self,
        rows: Any,
        only: Any,
        shown: str,
        options: OpenOptions,
        whole: Any = None,
        marked: Any = None,
        names: tuple[str, ...] = (),
    ) -> None:
        self.rows = rows
        self._whole = rows if whole is None else whole
        self._only = only
        self._marked = only if marked is None else marked
        self._names = names
        self._shown = shown
        self._options = options
        self._name: str = options.tokens_column or USUAL[0]
        self.eos_id: int | None = options.eos_id if options.eos_id is not None else _known_eos(rows)

    def __reduce__(self) -> tuple[object, ...]:
        opened = (self._whole, self._marked, self._names)
        return (ColumnTokens, (self.rows, self._only, self._shown, self._options, *opened))

    @property
    def schema(self) -> Schema:
        return Schema((Field("tokens", "tokens", self.dtype.name, (None,)), *plane_fields(self, None)))

    @property
    def planes(self) -> Mapping[str, Plane]:
        return {} if self._options.mask_column is None else {LOSS_MASK: ColumnMask(self)}

    @property
    def fingerprint(self) -> str:
        """Digest of the rows, and of how they are read as documents."""
        found = self._ids_fingerprint
        if self._has_padding:
            found = digest("without padding", found)
        mask = self._options.mask_column
        return found if mask is None else digest("loss mask of a column", found, mask)

    @property
    def _ids_fingerprint(self) -> str:
        """Digest of the column of ids as stored."""
        one = self._options
        if self._name == USUAL[0] and one.tokens_dtype is None and not one.one_document:
            return self.rows.fingerprint
        borders = [one.one_document, one.eos_id if one.one_document else None]
        return digest("tokens of a column", self.rows.fingerprint, self._name, one.tokens_dtype, borders)

    @property
    def kept_key(self) -> str:
        """Key of what this host derives from the data; see `penstock._digest`."""
        return digest(self.fingerprint, kept_key(self.rows))

    @property
    def manifest(self) -> Manifest | None:
        """Side file of the rows."""
        return _manifest_of(self.rows)

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: that of the rows."""
        return preferred_mode(self.rows)

    @property
    def only_here(self) -> tuple[str, ...]:
        """Columns that a token format has no place for."""
        try:
            fields = self._whole.schema.fields
        except Unsupported:
            return ("columns that only some of the files have",)
        taken = (self._name, self._options.mask_column, PADDING if PADDING in self._names else None)
        return tuple(f"column {field.name!r}" for field in fields if field.name not in taken)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens: uint8, uint16 or uint32, as the column or wide enough for its ids.

        Signed ids are scanned.
        """
        stored = self._column.dtype()
        return np.dtype(f"u{min(4, stored.itemsize)}")

    @property
    def max_token_id(self) -> int | None:
        """Largest id, found by one pass; None without ids, or if the column has a dtype of token ids."""
        stored = self._column.dtype()
        largest = -1 if stored.kind == "u" and stored.itemsize <= 4 else int(self._scanned[0][-3])
        return None if largest < 0 else largest

    @property
    def is_row_by_row(self) -> bool:
        """Whether each row is a document."""
        return not self._options.one_document

    @property
    def num_tokens(self) -> int:
        return int(self._row_starts[-1])

    @property
    def doc_starts(self) -> IntArray:
        """Document boundaries, int64[n_docs + 1]. Found by one pass; once per host if there are many rows.

        Raises:
            ConfigError: a row contains the EOS id but doesn't end with it, and `documents` isn't given.
        """
        if not self.is_row_by_row:
            return self._scanned[1]
        if self._looks_for_windows and (row := int(self._scanned[0][-1])) >= 0:
            raise ConfigError(
                f"row {row} contains the EOS id but doesn't end with it, so it may be a window across documents",
                path=_file_of(self._only, row, self._shown),
                found=f"EOS id {self.eos_id} inside the row",
                expected="rows that end with it, or don't contain it",
                hint="Give --documents rows (documents='rows') if each row is a document, --documents eos "
                "(documents='eos') if documents end at this id, across rows",
            )
        return self._row_starts

    def __len__(self) -> int:
        return len(self.rows) if self.is_row_by_row else len(self.doc_starts) - 1

    def __getitem__(self, index: int, /) -> Sample:
        place = as_index(index, len(self))
        if self.is_row_by_row:
            return self._as_sample(self._read(place, place + 1, with_mask=bool(self.planes)))
        start, stop = self.doc_starts[place : place + 2].tolist()
        planes = {name: plane.read(start, stop) for name, plane in self.planes.items()}
        return {"tokens": self.tokens(start, stop), **planes}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        samples = [self[index] for index in as_indices(indices, len(self)).tolist()]
        return {name: column([sample[name] for sample in samples]) for name in ("tokens", *self.planes)}

    def tokens(self, start: int, stop: int) -> TokenArray:
        found = self._read_tokens(start, stop).ids
        found.flags.writeable = False
        return found

    def read_mask(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return whether the tokens `[start, stop)` count by the column of marks, bool[stop - start]."""
        found = self._read_tokens(start, stop, with_mask=True).mask
        return np.ones(stop - start, np.bool_) if found is None else found

    def runs(self, first: int, stop: int) -> Iterator[tuple[TokenArray, IntArray]]:
        """Yield rows `[first, stop)` without reading those before: (uint[n_tokens], int64[n_rows] lengths).

        Raises:
            TooLarge: an id is negative, or exceeds the dtype or the vocabulary.
            Corrupt: a row isn't a list of ids.
        """
        for one in self._marked_runs(first, stop):
            yield one.ids, one.lengths

    def place_of(self, index: int, /) -> Place:
        """Return the location of document `index` as known to the rows."""
        if self.is_row_by_row:
            return place_of(self.rows, as_index(index, len(self)))
        start = int(self.doc_starts[as_index(index, len(self))])
        return place_of(self.rows, max(0, int(np.searchsorted(self._row_starts, start, side="right")) - 1))

    def children(self) -> Mapping[str, Source[Any]]:
        return self.rows.children()

    def recipe(self) -> dict[str, Any]:
        """Return the recipe of the rows, and how they are read as documents."""
        one = self._options
        given = {"tokens_column": self._name, "tokens_dtype": one.tokens_dtype, "eos_id": one.eos_id}
        given |= {
            "mask_column": one.mask_column,
            "vocab_size": one.vocab_size,
            "one_document": one.one_document or None,
        }
        given |= {"documents": None if one.one_document else one.documents}
        bare = {"planes": None} if one.planes is None else {}
        return {**self.rows.recipe(), **{name: value for name, value in given.items() if value is not None}, **bare}

    def summary(self) -> str:
        return f"{self.rows.summary()}  tokens={self._name!r}"

    # --- inside --------------------------------------------------------------------------------------------------

    @cached_property
    def _column(self) -> IdColumn:
        return self._ids_of(self._only)

    @cached_property
    def _marked_column(self) -> IdColumn:
        return self._ids_of(self._marked)

    def _ids_of(self, rows: Any) -> IdColumn:
        dtype = self._options.tokens_dtype
        if isinstance(rows, _HasIdColumns) and dtype is None:
            return rows.id_column(self._name)
        return ValueColumn(rows, self._name, self._shown, dtype)

    @property
    def _has_padding(self) -> bool:
        return PADDING in self._names and int(self._scanned[0][-2]) > 0

    @property
    def is_marked(self) -> bool:
        """Whether the EOS id separates documents, so that the last one may lack it."""
        return self._options.one_document and self._options.eos_id is not None

    @property
    def _row_starts(self) -> IntArray:
        return self._scanned[0][:-3]

    @property
    def _looks_for_windows(self) -> bool:
        """Whether rows are documents by default only, so that a row that cuts documents is an error."""
        return self.is_row_by_row and self._options.documents is None and self.eos_id is not None

    @cached_property
    def _scanned(self) -> tuple[IntArray, IntArray]:
        """Facts about rows and documents, from one pass.

        Returns:
            int64[n_rows + 4]: first token of each row, number of tokens, largest id, padding, first row that contains
            the EOS id but doesn't end with it (-1: none); and int64[n_docs + 1]: first token of each document.
        """
        files = capability(self.rows, "files")
        if files is None or len(self.rows) < _SMALL_ROWS:
            return self._scan()
        found: list[tuple[IntArray, IntArray]] = []

        def scan(which: int) -> IntArray:
            found.extend([] if found else [self._scan()])
            return found[0][which]

        key = files_key(self._ids_fingerprint, *files)
        marks = [self._options.mask_column, *self._names]
        ended_by = self.eos_id if self._looks_for_windows else None
        name = f"{_STARTS_VERSION}-{digest(key, str(self._options.vocab_size), marks, ended_by)}"
        rows = DerivedCache().array(f"{name}-rows", "int64", lambda: scan(0))
        return rows, rows if self.is_row_by_row else DerivedCache().array(f"{name}-docs", "int64", lambda: scan(1))

    def _scan(self) -> tuple[IntArray, IntArray]:
        lengths, borders = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
        cut_row, rows_before, ended_by = -1, 0, self.eos_id if self._looks_for_windows else None
        at, largest, mark = 0, -1, self._options.eos_id if self._options.one_document else None
        padding = 0
        for one in self._marked_runs(0, len(self.rows), is_scan=True):
            ids = one.ids
            lengths.append(one.lengths)
            padding += one.num_padding
            largest = max(largest, int(ids.max()) if len(ids) else -1)
            if ended_by is not None and cut_row < 0:
                cut = _first_cut_row(ids, one.lengths, ended_by)
                cut_row, rows_before = -1 if cut is None else rows_before + cut, rows_before + len(one.lengths)
            if mark is not None:
                borders.append(np.flatnonzero(ids == mark) + (at + 1))
            at += len(ids)
        if mark is not None and at and not any(map(len, borders[1:])):
            raise no_such_mark(self._shown, mark)
        rows = np.append(np.cumsum(np.concatenate(lengths)), [largest, padding, cut_row])
        documents = np.concatenate([*borders, [at]])
        documents = documents[np.append(True, np.diff(documents) > 0)]
        rows.flags.writeable = documents.flags.writeable = False
        return rows, documents

    def _marked_runs(
        self, first: int, stop: int, *, is_scan: bool = False, with_mask: bool = False
    ) -> Iterator[MarkedRows]:
        """Yield rows `[first, stop)` without padding. Unused marks are checked unless all rows were scanned."""
        limit = min(int(np.iinfo(self.dtype).max) + 1, self._options.vocab_size or 1 << 32)
        is_plain = not is_scan and not with_mask and "_scanned" in self.__dict__ and not self._has_padding
        marking = Marking(self._options.mask_column, lambda row: _file_of(self._only, row, self._shown))
        at = first
        if self._names and not is_plain:
            runs = self._marked_column.marked_runs(first, stop, self._names)
        else:
            runs = ((ids, lengths, dict[str, Values]()) for ids, lengths in self._column.runs(first, stop))
        for ids, lengths, columns in runs:
            is_marked = self._names and not is_plain
            one = marking.apply(ids, lengths, columns, at) if is_marked else MarkedRows(ids, lengths, None, 0)
            ids = one.ids
            if len(ids) and (int(ids.max()) >= limit or (ids.dtype.kind == "i" and int(ids.min()) < 0)):
                self._refuse_id(ids, one.lengths, at, limit)
            yield replace(one, ids=ids.astype(self.dtype, copy=False))
            at += len(lengths)

    def _read(self, first: int, stop: int, *, with_mask: bool = False) -> MarkedRows:
        pieces = list(self._marked_runs(first, stop, with_mask=with_mask))
        if len(pieces) == 1:
            return pieces[0]
        ids = np.concatenate([np.empty(0, self.dtype), *(one.ids for one in pieces)])
        lengths = np.concatenate([np.empty(0, np.int64), *(one.lengths for one in pieces)])
        masks = [np.ones(len(one.ids), np.bool_) if one.mask is None else one.mask for one in pieces]
        mask = np.concatenate([np.empty(0, np.bool_), *masks]) if with_mask else None
        return MarkedRows(ids, lengths, mask, sum(one.num_padding for one in pieces))

    def _read_tokens(self, start: int, stop: int, *, with_mask: bool = False) -> MarkedRows:
        """Return the tokens `[start, stop)` from the rows that contain them."""
        starts = self._row_starts
        if not 0 <= start <= stop <= int(starts[-1]):
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {starts[-1]})")
        if start == stop:
            return MarkedRows(np.empty(0, self.dtype), np.empty(0, np.int64), np.empty(0, np.bool_), 0)
        first = int(np.searchsorted(starts, start, side="right")) - 1
        last = int(np.searchsorted(starts, stop, side="left"))
        before = start - int(starts[first])
        rows = self._read(first, last, with_mask=with_mask)
        wanted = slice(before, before + stop - start)
        return replace(rows, ids=rows.ids[wanted], mask=None if rows.mask is None else rows.mask[wanted])

    def _as_sample(self, rows: MarkedRows) -> Sample:
        mask = np.ones(len(rows.ids), np.bool_) if rows.mask is None else rows.mask
        return {"tokens": rows.ids, **dict.fromkeys(self.planes, mask)}

    def _refuse_id(self, ids: NDArray[Any], lengths: IntArray, first: int, limit: int) -> None:
        at = int(np.argmax((ids < 0) | (ids >= limit)))
        row = first + int(np.searchsorted(np.cumsum(lengths), at, side="right"))
        hint = "Ids below 0 mark padding or labels. Specify the column of token ids with --tokens-column"
        raise TooLarge(
            f"row {row} holds a number that is not a token id", path=_file_of(self._only, row, self._shown),
            found=int(ids[at]), expected=f"0 to {limit - 1}",
            hint=hint if ids[at] < 0 else "Check that this is the column of token ids and the right vocabulary size",
        )  # fmt: skip


class ValueColumn:
    """Column of Python objects: arrays, lists of numbers, or bytes of a named dtype."""

    def __init__(self, rows: Any, name: str, shown: str, dtype: str | None) -> None:
        self._rows = rows
        self._name = name
        self._shown = shown
        self._of_bytes = None if dtype is None else stored_dtype(dtype)

    def dtype(self) -> np.dtype[Any]:
        """Return the declared dtype of the column, or the one named for bytes; int64 for lists in JSON."""
        known = {field.name: field for field in self._rows.schema.fields}.get(self._name)
        if self._of_bytes is not None:
            if known is not None and known.kind != "bytes":
                what, hint = "tokens_dtype only applies to columns of bytes", "Omit --tokens-dtype (tokens_dtype=)"
                raise ConfigError(what, path=self._shown, found=f"column {self._name!r} of {known.kind}", hint=hint)
            return self._of_bytes
        if known is not None and known.kind == "bytes":
            what, hint = (
                "the dtype of the ids in the bytes is unknown",
                "Specify it: --tokens-dtype int64 (tokens_dtype=)",
            )
            raise ConfigError(what, path=self._shown, found=f"column {self._name!r} of bytes", hint=hint)
        if known is None or known.kind != "ndarray":
            return np.dtype(np.int64)
        dtype = np.dtype(known.dtype) if known.dtype else self._first_dtype()
        if dtype.kind not in "iu":
            what, expected = f"the column {self._name!r} holds no token ids", "integers"
            raise Unsupported(what, path=self._shown, found=str(dtype), expected=expected)
        return dtype

    def runs(self, first: int, stop: int, /) -> Iterator[tuple[NDArray[Any], IntArray]]:
        """Yield rows as `IdColumn` does, 1,024 at a time."""
        for ids, lengths, _ in self.marked_runs(first, stop, ()):
            yield ids, lengths

    def marked_runs(
        self, first: int, stop: int, names: Sequence[str], /
    ) -> Iterator[tuple[NDArray[Any], IntArray, dict[str, Values]]]:
        """Yield rows as `IdColumn` does, 1,024 at a time."""
        expected = self.dtype()
        for start in range(first, stop, _STEP):
            samples = samples_of(self._rows, np.arange(start, min(stop, start + _STEP)))
            values = self._values(samples, start)
            lengths = np.fromiter(map(len, values), np.int64, len(values))
            if all(isinstance(one, bytes) for one in values) and self._of_bytes is not None:
                ids, lengths = self._from_bytes(values, lengths, start)
            elif all(isinstance(one, np.ndarray) for one in values):
                ids = self._from_arrays(values, start, expected)
            else:
                ids = self._from_lists(values, start)
            marks = {name: [sample.get(name) for sample in samples] for name in names}
            filled = {name: rows for name, rows in marks.items() if any(row is not None for row in rows)}
            yield ids, lengths, {name: values_of(rows, lengths) for name, rows in filled.items()}

    def _first_dtype(self) -> np.dtype[Any]:
        first = self._rows[0][self._name] if len(self._rows) else np.empty(0, np.uint8)
        return first.dtype

    def _values(self, samples: Sequence[Sample], first: int) -> list[Any]:
        found = [sample.get(self._name) for sample in samples]
        for row, value in enumerate(found, first):
            if not isinstance(value, list | np.ndarray | bytes) or (isinstance(value, bytes) and not self._of_bytes):
                said = "null, or a missing column" if value is None else type(value).__name__
                raise self._fault(
                    row, f"row {row} has no list of token ids in {self._name!r}", said, "a list of integers"
                )
        return found

    def _from_bytes(self, values: list[bytes], lengths: IntArray, first: int) -> tuple[NDArray[Any], IntArray]:
        dtype = self.dtype()
        width = dtype.itemsize
        for row in np.flatnonzero(lengths % width)[:1].tolist():
            what = f"the bytes of row {first + row} don't hold whole ids"
            raise self._fault(first + row, what, f"{lengths[row]} bytes", f"a multiple of {width}, for {dtype}")
        ids = np.frombuffer(b"".join(values), dtype.newbyteorder("<"))
        return ids.astype(dtype, copy=False), lengths // width

    def _from_arrays(self, values: list[NDArray[Any]], first: int, expected: np.dtype[Any]) -> NDArray[Any]:
        for row, one in enumerate(values, first):
            if one.ndim != 1 or one.dtype != expected:
                what = f"row {row} is not a document"
                raise self._fault(row, what, f"{one.dtype} of shape {list(one.shape)}", f"{expected}, one axis")
        return np.concatenate([*values, np.empty(0, expected)])

    def _from_lists(self, values: list[Any], first: int) -> NDArray[Any]:
        flat = list(itertools.chain.from_iterable(values))
        try:
            if not set(map(type, flat)) <= {int}:
                raise TypeError
            return np.array(flat, np.int64)
        except (TypeError, OverflowError):
            for row, one in enumerate(values, first):
                for value in one:
                    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
                        found = f"{value!r:.40}"
                        raise self._fault(
                            row, f"row {row} holds values that are not token ids", found, "integers"
                        ) from None
            raise

    def _fault(self, row: int, what: str, found: str, expected: str) -> PenstockError:
        hint = "Fix the row, or drop it with `penstock filter`"
        path = _file_of(self._rows, row, self._shown)
        return Corrupt(what, path=path, found=found, expected=expected, hint=hint)


def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the integer dtype with this name; raise `ConfigError` if there is none."""
    known = [f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)]
    if name not in known:
        raise ConfigError("not a dtype for token ids", found=repr(name), expected=" | ".join(known))
    return np.dtype(name)


def _first_cut_row(ids: TokenArray, lengths: IntArray, eos_id: int) -> int | None:
    """Return the first of some rows that contains an id but doesn't end with it."""
    ends = np.cumsum(lengths)
    rows = np.searchsorted(ends, np.flatnonzero(ids == eos_id), side="right")
    cut = rows[ids[ends[rows] - 1] != eos_id]
    return int(cut[0]) if len(cut) else None


def _known_eos(rows: Any) -> int | None:
    manifest = _manifest_of(rows)
    return None if manifest is None else manifest.eos_id


def _manifest_of(rows: Any) -> Manifest | None:
    manifest = capability(rows, "manifest")
    return manifest if isinstance(manifest, Manifest) else None


def _file_of(rows: Any, row: int, shown: str) -> str:
    extents = place_of(rows, row).extents
    return extents[0].path if extents else shown

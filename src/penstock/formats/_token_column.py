"""Documents of tokens in a column of rows, as a token source: what was tokenised elsewhere, in any format of rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock._columns import column
from penstock._digest import digest, kept_key
from penstock._index import as_index, as_indices
from penstock._kinds import is_token_source
from penstock._places import place_of
from penstock._resolved import samples_of
from penstock._tree import brief, html, tree
from penstock.abc import Format, Source, Store
from penstock.errors import ConfigError, Corrupt, PenstockError, TooLarge, Unsupported
from penstock.formats._marked import no_such_mark
from penstock.store.derived import DerivedCache
from penstock.store.fingerprint import files_key
from penstock.types import Batch, Field, IntArray, Manifest, OpenOptions, Place, Sample, Schema, TokenArray

USUAL = ("tokens", "input_ids")
"""Columns that are taken for documents where a token source is needed and none is named."""

_STEP = 1024
_SMALL_ROWS = 1 << 14  # read again sooner than a lock and a new file take
_STARTS_VERSION = "column-starts-1"


class IdColumn(Protocol):
    """One column of rows: a list of ids in each."""

    def dtype(self) -> np.dtype[Any]:
        """An integer dtype that holds them as they are stored."""
        ...

    def runs(self, first: int, stop: int, /) -> Iterator[tuple[NDArray[Any], IntArray]]:
        """Rows `[first, stop)`: integers [n_ids], and the int64[n_rows] ids of each row."""
        ...


@runtime_checkable
class _HasIdColumns(Protocol):
    """A source that knows columns of lists of integers by itself."""

    def holds_ids(self, name: str, /) -> bool: ...

    def id_column(self, name: str, /) -> IdColumn: ...


def usual_column(rows: Source[Any]) -> str | None:
    """The column of a source that is taken for its documents; None where there is none."""
    if isinstance(rows, _HasIdColumns):
        return next(filter(rows.holds_ids, USUAL), None)
    arrays = {field.name for field in rows.schema.fields if field.kind == "ndarray"}
    return next((name for name in USUAL if name in arrays), None)


def as_tokens(chosen: Format, store: Store, path: str, options: OpenOptions, rows: Source[Any]) -> Source[Any]:
    """The documents of the column that `options` name; the source as it is where they name none."""
    if options.tokens_column is None:
        return rows
    if is_token_source(rows):
        what, hint = "a dataset of tokens has no columns", "Leave --tokens-column (tokens_column=) out"
        raise ConfigError(what, path=path, found=f"{chosen.name}, tokens_column={options.tokens_column!r}", hint=hint)
    only = replace(options, columns=(options.tokens_column,), eos_id=None, vocab_size=None, raw=False)
    column = chosen.open(store, path, only)
    # Files of a table may differ in their other columns: nobody looks at these.
    is_table = type(rows) is type(column) and isinstance(rows, _HasIdColumns)
    return ColumnTokens(column if is_table else rows, column, path, options, rows)


class ColumnTokens:
    """A document a row, or one run of all rows; see `penstock.abc.TokenSource`. Made by `penstock.open`.

    Memory: 8 bytes a row, and what is asked for.

    Args:
        rows: the source.
        only: the same with this column alone.
        shown: the dataset as errors name it.
        options: with `tokens_column, tokens_dtype, one_document, eos_id, vocab_size`.
        whole: with all columns, to name those that are left behind; None: as `rows`.
    """

    def __init__(self, rows: Any, only: Any, shown: str, options: OpenOptions, whole: Any = None) -> None:
        self.rows = rows
        self._whole = rows if whole is None else whole
        self._only = only
        self._shown = shown
        self._options = options
        self._name: str = options.tokens_column or USUAL[0]
        self.eos_id: int | None = options.eos_id if options.eos_id is not None else _known_eos(rows)

    def __reduce__(self) -> tuple[object, ...]:
        return (ColumnTokens, (self.rows, self._only, self._shown, self._options, self._whole))

    @property
    def schema(self) -> Schema:
        """One field: `tokens`."""
        return Schema((Field("tokens", "tokens", self.dtype.name, (None,)),))

    @property
    def fingerprint(self) -> str:
        """Of the rows, and of how they are read as documents."""
        one = self._options
        if self._name == USUAL[0] and one.tokens_dtype is None and not one.one_document:
            return self.rows.fingerprint
        borders = [one.one_document, one.eos_id if one.one_document else None]
        return digest("tokens of a column", self.rows.fingerprint, self._name, one.tokens_dtype, borders)

    @property
    def kept_key(self) -> str:
        """By what this host keeps what it derives of these data; see `penstock._digest`."""
        return digest(self.fingerprint, kept_key(self.rows))

    @property
    def manifest(self) -> Manifest | None:
        """What the side file of the rows says."""
        return getattr(self.rows, "manifest", None)

    @property
    def preferred_mode(self) -> Any:
        """How `Shuffle` orders it by default: as the rows."""
        return getattr(self.rows, "preferred_mode", "global")

    @property
    def only_here(self) -> tuple[str, ...]:
        """Columns that a token format has no place for."""
        try:
            fields = self._whole.schema.fields
        except Unsupported:
            return ("columns that some files have and others have not",)
        return tuple(f"column {field.name!r}" for field in fields if field.name != self._name)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """uint8, uint16 or uint32: that of the column, else one that holds its ids; signed ones are looked at."""
        stored = self._column.dtype()
        return np.dtype(f"u{min(4, stored.itemsize)}")

    @property
    def max_token_id(self) -> int | None:
        """The largest id, found by one pass; None without any, and where the column's dtype is one of token ids."""
        stored = self._column.dtype()
        largest = -1 if stored.kind == "u" and stored.itemsize <= 4 else int(self._scanned[0][-1])
        return None if largest < 0 else largest

    @property
    def is_row_by_row(self) -> bool:
        """Whether each row is a document."""
        return not self._options.one_document

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return int(self._row_starts[-1])

    @property
    def doc_starts(self) -> IntArray:
        """int64[n_docs + 1]: found by one pass over the column, once a host where there are many rows."""
        return self._row_starts if self.is_row_by_row else self._scanned[1]

    def __len__(self) -> int:
        return len(self.rows) if self.is_row_by_row else len(self.doc_starts) - 1

    def __getitem__(self, index: int, /) -> Sample:
        place = as_index(index, len(self))
        if self.is_row_by_row:
            return {"tokens": self._read(place, place + 1)}
        return {"tokens": self.tokens(*self.doc_starts[place : place + 2].tolist())}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """The documents at `indices`: int64[k]; a list of arrays where their lengths differ."""
        return {"tokens": column([self[index]["tokens"] for index in as_indices(indices, len(self)).tolist()])}

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start], read-only: tokens in `[start, stop)`, out of the rows that hold them."""
        starts = self._row_starts
        if not 0 <= start <= stop <= int(starts[-1]):
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {starts[-1]})")
        found: TokenArray = np.empty(0, self.dtype)
        if start < stop:
            first = int(np.searchsorted(starts, start, side="right")) - 1
            last = int(np.searchsorted(starts, stop, side="left"))
            before = start - int(starts[first])
            found = self._read(first, last)[before : before + stop - start]
        found.flags.writeable = False
        return found

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """uint[len(starts), length]: one window a row; into `out` where given."""
        windows = np.empty((len(starts), length), self.dtype) if out is None else out
        for row, start in enumerate(starts.tolist()):
            windows[row] = self.tokens(start, start + length)
        return windows

    def runs(self, first: int, stop: int) -> Iterator[tuple[TokenArray, IntArray]]:
        """Rows `[first, stop)`, without a look at those before: (uint[n_tokens], int64[n_rows] lengths).

        Raises:
            TooLarge: an id is below 0, or beyond the dtype or the vocabulary.
            Corrupt: a row is no list of ids.
        """
        limit = min(int(np.iinfo(self.dtype).max) + 1, self._options.vocab_size or 1 << 32)
        at = first
        for ids, lengths in self._column.runs(first, stop):
            if len(ids) and (int(ids.max()) >= limit or (ids.dtype.kind == "i" and int(ids.min()) < 0)):
                self._refuse_id(ids, lengths, at, limit)
            yield ids.astype(self.dtype, copy=False), lengths
            at += len(lengths)

    def place_of(self, index: int, /) -> Place:
        """What the rows know of the place of document `index`."""
        if self.is_row_by_row:
            return place_of(self.rows, as_index(index, len(self)))
        start = int(self.doc_starts[as_index(index, len(self))])
        return place_of(self.rows, max(0, int(np.searchsorted(self._row_starts, start, side="right")) - 1))

    def children(self) -> Mapping[str, Source[Any]]:
        """Those of the rows."""
        return self.rows.children()

    def recipe(self) -> dict[str, Any]:
        """That of the rows, and how they are read as documents."""
        one = self._options
        given = {"tokens_column": self._name, "tokens_dtype": one.tokens_dtype, "eos_id": one.eos_id}
        given |= {"vocab_size": one.vocab_size, "one_document": one.one_document or None}
        return {**self.rows.recipe(), **{name: value for name, value in given.items() if value is not None}}

    def summary(self) -> str:
        """One line: the rows, and the column."""
        return f"{self.rows.summary()}  tokens={self._name!r}"

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    # --- inside --------------------------------------------------------------------------------------------------

    @cached_property
    def _column(self) -> IdColumn:
        dtype = self._options.tokens_dtype
        if isinstance(self._only, _HasIdColumns) and dtype is None:
            return self._only.id_column(self._name)
        return ValueColumn(self._only, self._name, self._shown, dtype)

    @property
    def is_marked(self) -> bool:
        """Whether the EOS id is what parts documents: then the last one may be without it."""
        return self._options.one_document and self._options.eos_id is not None

    @property
    def _row_starts(self) -> IntArray:
        return self._scanned[0][:-1]

    @cached_property
    def _scanned(self) -> tuple[IntArray, IntArray]:
        """int64[n_rows + 2]: where rows begin, tokens in all, the largest id; and where documents begin."""
        files = getattr(self.rows, "files", None)
        if files is None or len(self.rows) < _SMALL_ROWS:
            return self._scan()
        found: list[tuple[IntArray, IntArray]] = []

        def scan(which: int) -> IntArray:
            found.extend([] if found else [self._scan()])
            return found[0][which]

        key = files_key(self.fingerprint, *files)
        name = f"{_STARTS_VERSION}-{digest(key, str(self._options.vocab_size))}"
        rows = DerivedCache().array(f"{name}-rows", "int64", lambda: scan(0))
        return rows, rows if self.is_row_by_row else DerivedCache().array(f"{name}-docs", "int64", lambda: scan(1))

    def _scan(self) -> tuple[IntArray, IntArray]:
        lengths, borders = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
        at, largest, mark = 0, -1, self._options.eos_id if self._options.one_document else None
        for ids, here in self.runs(0, len(self.rows)):
            lengths.append(here)
            largest = max(largest, int(ids.max()) if len(ids) else -1)
            if mark is not None:
                borders.append(np.flatnonzero(ids == mark) + (at + 1))
            at += len(ids)
        if mark is not None and at and not any(map(len, borders[1:])):
            raise no_such_mark(self._shown, mark)
        rows = np.append(np.cumsum(np.concatenate(lengths)), largest)
        documents = np.concatenate([*borders, [at]])
        documents = documents[np.append(True, np.diff(documents) > 0)]
        rows.flags.writeable = documents.flags.writeable = False
        return rows, documents

    def _read(self, first: int, stop: int) -> TokenArray:
        pieces = [ids for ids, _ in self.runs(first, stop)]
        return pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, np.empty(0, self.dtype)])

    def _refuse_id(self, ids: NDArray[Any], lengths: IntArray, first: int, limit: int) -> None:
        at = int(np.argmax((ids < 0) | (ids >= limit)))
        row = first + int(np.searchsorted(np.cumsum(lengths), at, side="right"))
        hint = "Ids below 0 are marks of padding or labels: name the column of ids with --tokens-column"
        raise TooLarge(
            f"row {row} holds a number that is no token id", path=_file_of(self._only, row, self._shown),
            found=int(ids[at]), expected=f"0 to {limit - 1}",
            hint=hint if ids[at] < 0 else "Is this the tokenizer's column, and its vocabulary?",
        )  # fmt: skip


class ValueColumn:
    """A column whose values are Python's: arrays, lists of numbers, or bytes of a dtype that is named."""

    def __init__(self, rows: Any, name: str, shown: str, dtype: str | None) -> None:
        self._rows = rows
        self._name = name
        self._shown = shown
        self._of_bytes = None if dtype is None else stored_dtype(dtype)

    def dtype(self) -> np.dtype[Any]:
        """As the column is declared, or as told of bytes; of lists in JSON int64."""
        known = {field.name: field for field in self._rows.schema.fields}.get(self._name)
        if self._of_bytes is not None:
            if known is not None and known.kind != "bytes":
                what, hint = "tokens_dtype is for columns of bytes", "Leave --tokens-dtype (tokens_dtype=) out"
                raise ConfigError(what, path=self._shown, found=f"column {self._name!r} of {known.kind}", hint=hint)
            return self._of_bytes
        if known is not None and known.kind == "bytes":
            what, hint = "the dtype of ids in bytes is not known", "Name it: --tokens-dtype int64 (tokens_dtype=)"
            raise ConfigError(what, path=self._shown, found=f"column {self._name!r} of bytes", hint=hint)
        if known is None or known.kind != "ndarray":
            return np.dtype(np.int64)
        dtype = np.dtype(known.dtype) if known.dtype else self._first_dtype()
        if dtype.kind not in "iu":
            what, expected = f"the column {self._name!r} holds no token ids", "integers"
            raise Unsupported(what, path=self._shown, found=str(dtype), expected=expected)
        return dtype

    def runs(self, first: int, stop: int, /) -> Iterator[tuple[NDArray[Any], IntArray]]:
        """See `IdColumn`; 1,024 rows at a time."""
        expected = self.dtype()
        for start in range(first, stop, _STEP):
            values = self._values(start, min(stop, start + _STEP))
            lengths = np.fromiter(map(len, values), np.int64, len(values))
            if all(isinstance(one, bytes) for one in values) and self._of_bytes is not None:
                yield self._from_bytes(values, lengths, start)
            elif all(isinstance(one, np.ndarray) for one in values):
                yield self._from_arrays(values, start, expected), lengths
            else:
                yield self._from_lists(values, start), lengths

    def _first_dtype(self) -> np.dtype[Any]:
        first = self._rows[0][self._name] if len(self._rows) else np.empty(0, np.uint8)
        return first.dtype

    def _values(self, first: int, stop: int) -> list[Any]:
        found = [sample.get(self._name) for sample in samples_of(self._rows, np.arange(first, stop))]
        for row, value in enumerate(found, first):
            if not isinstance(value, list | np.ndarray | bytes) or (isinstance(value, bytes) and not self._of_bytes):
                said = "null, or no such column" if value is None else type(value).__name__
                raise self._fault(row, f"row {row} has no list of ids in {self._name!r}", said, "a list of integers")
        return found

    def _from_bytes(self, values: list[bytes], lengths: IntArray, first: int) -> tuple[NDArray[Any], IntArray]:
        dtype = self.dtype()
        width = dtype.itemsize
        for row in np.flatnonzero(lengths % width)[:1].tolist():
            what = f"the bytes of row {first + row} do not end with an id"
            raise self._fault(first + row, what, f"{lengths[row]} bytes", f"a multiple of {width}, for {dtype}")
        ids = np.frombuffer(b"".join(values), dtype.newbyteorder("<"))
        return ids.astype(dtype, copy=False), lengths // width

    def _from_arrays(self, values: list[NDArray[Any]], first: int, expected: np.dtype[Any]) -> NDArray[Any]:
        for row, one in enumerate(values, first):
            if one.ndim != 1 or one.dtype != expected:
                what = f"row {row} is no document"
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
                        raise self._fault(row, f"row {row} holds no token id", found, "integers") from None
            raise

    def _fault(self, row: int, what: str, found: str, expected: str) -> PenstockError:
        hint = "Mend the row, or leave it out: `penstock filter`"
        path = _file_of(self._rows, row, self._shown)
        return Corrupt(what, path=path, found=found, expected=expected, hint=hint)


def stored_dtype(name: str) -> np.dtype[Any]:
    """The integer dtype that is called so; raises `ConfigError`."""
    known = [f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)]
    if name not in known:
        raise ConfigError("no dtype of token ids", found=repr(name), expected=" | ".join(known))
    return np.dtype(name)


def _known_eos(rows: Any) -> int | None:
    manifest = getattr(rows, "manifest", None)
    return manifest.eos_id if isinstance(manifest, Manifest) else None


def _file_of(rows: Any, row: int, shown: str) -> str:
    extents = place_of(rows, row).extents
    return extents[0].path if extents else shown

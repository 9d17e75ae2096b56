"""Rows of a cache of levanter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import as_index
from penstock._tree import line
from penstock.errors import PenstockError, Truncated, Unsupported
from penstock.formats.tokens.levanter.arrays import JaggedArray
from penstock.formats.tokens.levanter.ledger import LEDGER, Ledger
from penstock.formats.tokens.rows import PartedRows
from penstock.store.base import Store
from penstock.store.fingerprint import once_a_host, sample_fingerprint
from penstock.types import Extent, Field, IntArray, OpenOptions, Place, Sample, Schema

ALONE = "value"
"""Name of the only field of a cache of arrays instead of dicts of arrays."""

_ROWS = 1 << 12
_DATA = "/data/zarr.json"


class LevanterRows(PartedRows):
    """Rows of a cache; see `penstock.abc.Source`. Made by `penstock.open`.

    Memory: that of `arrays.JaggedArray` for each field and part. A row is a dict of arrays; the names of nested fields
    are joined by "/".
    """

    title = "levanter"

    def __init__(self, store: Store, path: str, options: OpenOptions, ledger: Ledger, again: Any) -> None:
        super().__init__(store, path, options, (part.rows for part in ledger.parts), again)
        self.ledger = ledger
        self._opened: dict[tuple[int, str], JaggedArray] = {}
        self._require_columns(self.names)

    @property
    def schema(self) -> Schema:
        """Fields of a row: arrays."""
        return Schema(tuple(self._field(name) for name in self._wanted))

    def _find_fingerprint(self) -> str:
        """Return a digest of the ledger, and of samples of the files of all fields."""

        def find() -> str:
            return sample_fingerprint(self._store, "levanter", self.ledger.fingerprint.encode(), self._data_files())

        return once_a_host(self._store, [self.ledger.path], "levanter", find)

    def _read_files(self) -> tuple[Store, Iterator[str]]:
        return self._store, chain([self.ledger.path], (path for _, path in self._data_files()))

    @property
    def files(self) -> tuple[Store, list[str]]:
        """Store and files on which derived data depends."""
        return self._store, [self.ledger.path]

    def details(self) -> dict[str, Any]:
        """Return parts, fields, and the source of the rows."""
        made = {"preprocessor": self.ledger.preprocessor} if self.ledger.preprocessor else {}
        return {"parts": len(self.ledger.parts), "columns": list(self.names), **made}

    def __getitem__(self, index: int, /) -> Sample:
        part, row = self._find(as_index(index, len(self)))
        return {name: self.array(part, name).row(row) for name in self._wanted}

    def holds_ids(self, name: str, /) -> bool:
        """Return whether there is such a column, of lists of integers."""
        if name not in self._wanted:
            return False
        field = self._field(name)
        return field.shape == (None,) and (field.dtype or "").lstrip("u").startswith("int")

    def holds_marks(self, name: str, /) -> bool:
        """Return whether there is such a column, of lists of numbers or booleans."""
        if name not in self._wanted:
            return False
        field = self._field(name)
        return field.shape == (None,) and np.dtype(field.dtype).kind in "biuf"

    def id_column(self, name: str, /) -> _Ids:
        """Return the column for reading only ids."""
        if not self.holds_ids(name):
            expected = ", ".join(one for one in self._wanted if self.holds_ids(one)) or "none here"
            raise Unsupported(f"the column {name!r} holds no token ids", path=self.path, expected=expected)
        return _Ids(self, name)

    def place_of(self, index: int, /) -> Place:
        """Return the location of the values of row `index`."""
        part, row = self._find(as_index(index, len(self)))
        found: list[Extent] = []
        for name in self._wanted:
            array = self.array(part, name)
            found += array.values.extents(*array.starts[row : row + 2].tolist())
        return Place(extents=tuple(found))

    def summary(self) -> str:
        return line("levanter", {"path": self.path, "parts": len(self.ledger.parts), "rows": len(self)}, None)

    # --- inside --------------------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All fields, as the ledger lists them, else as their folders do."""
        parts = self.ledger.parts
        counted = dict.fromkeys(name or ALONE for part in parts for name in part.counts)
        if counted or not parts:
            return tuple(counted)
        folder = parts[0].folder
        listed = [path[len(folder) :] for path in self._store.list(folder)]
        caches = tuple(
            path.removesuffix(LEDGER) for path in listed if path.endswith(f"/{LEDGER}") and path[1:] != LEDGER
        )
        found = (
            path.removesuffix(_DATA)[1:] for path in listed if path.endswith(_DATA) and not path.startswith(caches)
        )
        return tuple(sorted(name or ALONE for name in found))

    @cached_property
    def _wanted(self) -> tuple[str, ...]:
        return self.names if self._options.columns is None else self._options.columns

    def array(self, part: int, name: str) -> JaggedArray:
        """Return a field of a part."""
        found = self._opened.get((part, name))
        if found is None:
            folder = "" if name == ALONE and self._is_alone else name
            one = self.ledger.parts[part]
            found = JaggedArray(self._store, one, folder, self._options.read)
            found = self._opened.setdefault((part, name), found)
            first = self._opened.get((0, name), found)
            if (found.dtype, found.rank) != (first.dtype, first.rank):
                what, expected = f"{found.dtype} of rank {found.rank}", f"{first.dtype} of rank {first.rank}"
                raise Unsupported("parts with different dtypes", path=found.folder, found=what, expected=expected)
        return found

    @cached_property
    def _is_alone(self) -> bool:
        return not self._store.exists(f"{self.ledger.parts[0].folder}/{ALONE}{_DATA}")

    def _field(self, name: str) -> Field:
        part = next((at for at, one in enumerate(self.ledger.parts) if one.rows), 0)
        try:
            array = self.array(part, name)
        except Unsupported:  # reading this field raises the error; the others can be read
            return Field(name, "ndarray")
        return Field(name, "ndarray", array.dtype.name, (None,) * array.rank)

    def _data_files(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for number, part in enumerate(self.ledger.parts):
            for name in self.names if part.rows else ():
                try:
                    found += self.array(number, name).files(f"{number}/{name}")
                except Unsupported:  # a field that is skipped; reading it raises an error
                    continue
        return found

    def runs(self, name: str, first: int, stop: int) -> Iterator[tuple[NDArray[Any], IntArray]]:
        """Yield the values of one field of rows `[first, stop)`, and the number of each row; 4,096 rows at a time."""
        at = first
        while at < stop:
            part, row = self._find(at)
            end = min(stop, int(self._starts[part + 1]), at + _ROWS)
            yield self.array(part, name).run(row, row + end - at)
            at = end


class _Ids:
    """Column of lists of ids."""

    def __init__(self, rows: LevanterRows, name: str) -> None:
        self._rows = rows
        self._name = name

    def dtype(self) -> np.dtype[Any]:
        """Dtype of the ids as they are stored."""
        field = self._rows.schema.fields
        return np.dtype(next(one.dtype for one in field if one.name == self._name))

    def runs(self, first: int, stop: int, /) -> Iterator[tuple[NDArray[Any], IntArray]]:
        """Yield rows `[first, stop)`: integers [n_ids], and the number of ids of each row, int64[n_rows]."""
        return self._rows.runs(self._name, first, stop)

    def marked_runs(
        self, first: int, stop: int, names: Sequence[str], /
    ) -> Iterator[tuple[NDArray[Any], IntArray, dict[str, tuple[NDArray[Any], IntArray]]]]:
        """Do the same with the values of other columns."""
        for (ids, lengths), *marks in zip(
            *(self._rows.runs(name, first, stop) for name in (self._name, *names)), strict=True
        ):
            yield ids, lengths, dict(zip(names, marks, strict=True))


def check_rows(rows: LevanterRows, full: bool) -> Iterator[PenstockError | str]:
    """Yield the problem of each field, or the path of a missing file; `full` reads every row."""
    for number, part in enumerate(rows.ledger.parts):
        for name in rows.names if part.rows else ():
            try:
                array = rows.array(number, name)
                missing = array.missing()
                if missing and array.has_ids:
                    raise Truncated("a chunk file is missing", path=missing[0], hint="Copy it again")
                yield from missing
                if full:
                    array.scan()
            except PenstockError as error:
                yield error

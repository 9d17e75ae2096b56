"""Columns of lists in Arrow tables as numpy arrays: the ids or marks of all rows, and the length of each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._access import place_of
from penstock._optional import require
from penstock.abc import Source
from penstock.errors import ConfigError, Corrupt, Unsupported
from penstock.types import IntArray

EXTRA = "parquet"
_EXPECTED = "list, large_list or fixed_size_list of integers"


def holds_ids(arrow_type: Any) -> bool:
    types = require("pyarrow", extra=EXTRA).types
    is_list = types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type)
    return is_list and types.is_integer(arrow_type.value_type)


def holds_marks(arrow_type: Any) -> bool:
    types = require("pyarrow", extra=EXTRA).types
    is_list = types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type)
    tests = (types.is_integer, types.is_boolean, types.is_floating)
    return is_list and any(test(arrow_type.value_type) for test in tests)


class _Tables(Source[Any], Protocol):
    @property
    def path(self) -> str: ...

    @property
    def arrow_schema(self) -> Any: ...

    def tables(self, start: int, stop: int) -> Iterator[tuple[int, Any]]: ...


class ListColumn:
    """One column of a source; see `penstock.formats._token_column.IdColumn`. Copies data only to decode it.

    Args:
        rows: a source of only this column.
        name: the column.
    """

    def __init__(self, rows: _Tables, name: str) -> None:
        self._rows = rows
        self._name = name

    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the ids in the file.

        Raises:
            Unsupported: the column doesn't hold lists of integers.
        """
        found = self._rows.arrow_schema.field(self._name).type
        if not holds_ids(found):
            types, hint = require("pyarrow", extra=EXTRA).types, "Specify the column of token ids with --tokens-column"
            if types.is_binary(found) or types.is_large_binary(found):
                hint = "Specify the dtype of the ids in the bytes: --tokens-dtype int64 (tokens_dtype=)"
                raise ConfigError("the dtype of the ids in the bytes is unknown", path=self._rows.path, hint=hint)
            what = f"the column {self._name!r} holds no token ids"
            raise Unsupported(what, path=self._rows.path, found=str(found), expected=_EXPECTED, hint=hint)
        return np.dtype(str(found.value_type))

    def runs(self, first: int, stop: int, /) -> Iterator[tuple[NDArray[Any], IntArray]]:
        """Yield rows `[first, stop)` as ids [n_ids] and int64[n_rows], the number of ids per row.

        Raises:
            Corrupt: a row, or an id, is null.
        """
        self.dtype()
        for at, table in self._rows.tables(first, stop):
            row = at
            for chunk in table.column(self._name).chunks:
                yield self._run(chunk, row)
                row += len(chunk)

    def marked_runs(
        self, first: int, stop: int, names: Sequence[str], /
    ) -> Iterator[tuple[NDArray[Any], IntArray, dict[str, tuple[NDArray[Any], IntArray]]]]:
        """Yield `runs` with the values of other columns, whose rows may be null: their lengths are −1."""
        self.dtype()
        for at, table in self._rows.tables(first, stop):
            row = at
            for batch in table.to_batches():
                marks = {name: _marks(batch.column(name)) for name in names}
                yield *self._run(batch.column(self._name), row), marks
                row += len(batch)

    def _run(self, array: Any, first: int) -> tuple[NDArray[Any], IntArray]:
        types = require("pyarrow", extra=EXTRA).types
        if array.null_count:
            row = first + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise self._fault(row, f"row {row} is null")
        if types.is_fixed_size_list(array.type):
            ids, lengths = array.flatten(), np.full(len(array), array.type.list_size, np.int64)
        else:
            offsets = array.offsets.to_numpy()
            ids = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(offsets) else array.values
            lengths = np.diff(offsets).astype(np.int64, copy=False)
        if ids.null_count:
            at = int(np.argmax(ids.is_null().to_numpy(zero_copy_only=False)))
            row = first + int(np.searchsorted(np.cumsum(lengths), at, side="right"))
            raise self._fault(row, f"row {row} contains a null id")
        return ids.to_numpy(), lengths

    def _fault(self, row: int, what: str) -> Corrupt:
        extents = place_of(self._rows, row).extents
        path = extents[0].path if extents else self._rows.path
        hint = "Remove these rows first, with pyarrow, datasets or `penstock filter`"
        return Corrupt(what, path=path, found="null", expected="a list of token ids", hint=hint)


def _marks(array: Any) -> tuple[NDArray[Any], IntArray]:
    """Return the values of lists back to back, with null as NaN, and the length of each row, −1 for null."""
    lengths = require("pyarrow.compute", extra=EXTRA).list_value_length(array).fill_null(-1)
    values = array.flatten()
    if values.null_count:
        values = values.cast("float64")
    return values.to_numpy(zero_copy_only=False), lengths.to_numpy(zero_copy_only=False).astype(np.int64)

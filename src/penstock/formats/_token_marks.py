"""Columns next to a column of ids: padding, and which tokens count for the loss.

Rows that were tokenised elsewhere often have `labels`, a mask or an `attention_mask` with one value per id. Padding at
the ends of a row, which has 0 in the `attention_mask`, is dropped. A mask is used if it is named; one that isn't named
and would change something is an error. So is a column that shows several documents in one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._tokens import DROP
from penstock.errors import ConfigError, Corrupt, PenstockError
from penstock.types import IntArray

PADDING = "attention_mask"
LABELS = ("labels", "label_ids", "target_ids", "targets")
"""Columns that hold the id of each token that counts, and −100 for all others."""
KNOWN = (
    *(PADDING, *LABELS, "loss_mask", "loss_masks", "completion_mask", "assistant_mask", "assistant_masks"),
    *("response_mask", "label_mask", "labels_mask", "target_mask", "train_mask"),
    *("loss_weight", "loss_weights", "token_weights"),
)
"""Columns that are looked at if they have a list per row; all others are masks of 0 and 1."""

_POSITIONS = ("position_ids", "positions", "input_pos", "inputs_position")
_NUMBERS = ("seq_idx", "segment_ids", "sequence_ids", "document_ids", "doc_ids", "inputs_segmentation")
_BORDERS = ("cu_seqlens", "cu_seq_lens", "cu_seqlens_q", "cu_seqlens_k", "cu_seq_lens_q", "cu_seq_lens_k")
_LENGTHS = ("seq_lengths", "seq_lens", "sequence_lengths")
PACKED = (*_POSITIONS, *_NUMBERS, *_BORDERS, *_LENGTHS)
"""Columns that show whether a row is several documents: positions that start again, a number per document, borders,
or lengths.
"""

_NO_LOSS = -100

Values: TypeAlias = tuple[NDArray[Any], IntArray]
"""Values of rows back to back, and how many each row has; −1 if it has none."""


@dataclass(frozen=True, slots=True)
class MarkedRows:
    """Rows of ids, without padding.

    Attributes:
        ids: integers [n_ids].
        lengths: int64[n_rows] ids of each row.
        mask: bool[n_ids]: which of them count; None if no column of marks is used.
        num_padding: ids that were dropped.
    """

    ids: NDArray[Any]
    lengths: IntArray
    mask: NDArray[np.bool_] | None
    num_padding: int


@dataclass(frozen=True, slots=True)
class Marking:
    """Interpretation of columns next to ids.

    Attributes:
        used: the column of marks that becomes the plane `loss_mask`; None for none.
        path: gives the file of a row, for errors.
    """

    used: str | None
    path: Callable[[int], str]

    def apply(self, ids: NDArray[Any], lengths: IntArray, columns: Mapping[str, Values], first: int) -> MarkedRows:
        """Drop the padding of rows from `first` on, and find out which ids count.

        Raises:
            Corrupt: values that contradict the name of their column, or aren't one per id.
            ConfigError: a column that isn't used would change something.
        """
        keep = np.ones(len(ids), np.bool_)
        if PADDING in columns:
            keep = self._unpadded(columns[PADDING], lengths, first)
        mask = None
        if self.used is not None and self.used not in columns:
            columns = {**columns, self.used: (ids[:0], np.full(len(lengths), -1, np.int64))}
        for name in sorted(columns.keys() & {*PACKED} - {self.used}):
            self._require_one_document(name, columns[name], lengths, keep, first)
        for name in columns.keys() - {PADDING, *PACKED} | columns.keys() & {self.used}:
            counts = self._counts(name, columns[name], ids, lengths, keep, first)
            if name == self.used:
                mask = counts[keep]
            elif not counts[keep].all():
                at = int(np.argmin(counts | ~keep))
                hint = f"Use it as the loss mask: --mask-column {name} (mask_column=). Or ignore it: {_LEAVE}"
                what = f"the column {name!r} marks tokens excluded from the loss, but isn't used"
                self._fail(at, lengths, first, what, hint=hint, kind=ConfigError)
        if keep.all():
            return MarkedRows(ids, lengths, mask, 0)
        sums = np.append(0, np.cumsum(keep))
        stops = np.cumsum(lengths)
        return MarkedRows(ids[keep], sums[stops] - sums[stops - lengths], mask, len(keep) - int(sums[-1]))

    def _unpadded(self, values: Values, lengths: IntArray, first: int) -> NDArray[np.bool_]:
        """Return which ids aren't padding."""
        mask = self._per_id(PADDING, values, lengths, first)
        packed = "Rows with several documents can't be split by their mask: write one row per document"
        self._require_bits(PADDING, mask, lengths, first, hint=f"Values above 1 number packed documents. {packed}")
        keep = mask.astype(np.bool_)
        starts = keep.copy()
        row_starts = np.cumsum(lengths) - lengths
        starts[1:] &= ~keep[:-1]
        row_starts = row_starts[lengths > 0]
        starts[row_starts] = keep[row_starts]
        begins = np.flatnonzero(starts)
        rows = np.searchsorted(np.cumsum(lengths), begins, side="right")
        again = np.flatnonzero(rows[1:] == rows[:-1])
        if len(again):
            what = f"the column {PADDING!r} has zeros between ones, and only padding at the ends of a row is dropped"
            self._fail(int(begins[again[0] + 1]) - 1, lengths, first, what, hint=packed)
        return keep

    def _require_one_document(
        self, name: str, values: Values, lengths: IntArray, keep: NDArray[np.bool_], first: int
    ) -> None:
        """Raise `ConfigError` if a column shows a border between two documents inside a row."""
        values = _without_nested(values)
        row_starts = np.cumsum(lengths) - lengths
        if name in _BORDERS or name in _LENGTHS:
            inside = np.sort(_borders_inside(values, lengths, keep, are_lengths=name in _LENGTHS))
        else:
            default = np.arange(len(keep)) if name in _POSITIONS else np.zeros(len(keep))
            places = np.flatnonzero(keep)
            of_ids = self._per_id(name, values, lengths, first, default=default)[places]
            before, after = of_ids[:-1], of_ids[1:]
            is_border = after <= before if name in _POSITIONS else after != before
            rows = np.searchsorted(row_starts, places, side="right")
            inside = places[1:][is_border & (rows[1:] == rows[:-1])]
        if len(inside):
            what = f"the column {name!r} shows that several documents are in one row"
            hint = "Write one row per document, or read rows by their EOS ids: --documents eos (documents='eos'). "
            self._fail(int(inside[0]), lengths, first, what, hint=f"{hint}Or ignore it: {_LEAVE}", kind=ConfigError)

    def _counts(
        self, name: str, values: Values, ids: NDArray[Any], lengths: IntArray, keep: NDArray[np.bool_], first: int
    ) -> NDArray[np.bool_]:
        """Return which ids count by one column."""
        if name in LABELS:
            labels = self._per_id(name, values, lengths, first, default=ids)
            counts = labels != _NO_LOSS
            wrong = counts & keep & (labels != ids)
            if wrong.any():
                at = int(np.argmax(wrong))
                what = f"the column {name!r} holds different ids than the row"
                hint = "Labels must be −100 or the id at the same position, not shifted, as in transformers"
                if name != self.used:
                    hint += f". Or ignore it: {_LEAVE}"
                self._fail(at, lengths, first, what, found=labels[at], expected=f"{ids[at]} or {_NO_LOSS}", hint=hint)
            return counts
        mask = self._per_id(name, values, lengths, first)
        hint = "Weights between 0 and 1 aren't supported"
        self._require_bits(name, np.where(keep, mask, 1), lengths, first, hint=hint)
        return mask.astype(np.bool_)

    def _per_id(
        self, name: str, values: Values, lengths: IntArray, first: int, default: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return one value per id; rows without any have the default, which is 1."""
        found, counts = values
        absent = counts < 0
        wrong = (counts != lengths) & (~absent if name != self.used else True)
        if wrong.any():
            row = int(np.argmax(wrong))
            what = f"row {first + row} has a different number of values in {name!r} than ids"
            hint = "Write one value per id"
            hint += "" if name == PADDING else f", or ignore it: {_LEAVE}"
            shown = "null" if absent[row] else int(counts[row])
            raise Corrupt(what, path=self.path(first + row), found=shown, expected=int(lengths[row]), hint=hint)
        if not absent.any():
            return found
        there = np.repeat(~absent, lengths)
        whole = np.ones(len(there), found.dtype) if default is None else default.astype(np.int64)
        whole[there] = found
        return whole

    def _require_bits(self, name: str, mask: NDArray[Any], lengths: IntArray, first: int, hint: str) -> None:
        wrong = (mask != 0) & (mask != 1)
        if wrong.any():
            at = int(np.argmax(wrong))
            what = f"the column {name!r} isn't a mask"
            self._fail(at, lengths, first, what, found=mask[at].item(), expected="0 or 1", hint=hint)

    def _fail(
        self, at: int, lengths: IntArray, first: int, what: str, *, hint: str, kind: type[PenstockError] = Corrupt,
        found: Any = None, expected: Any = None,
    ) -> NoReturn:  # fmt: skip
        """Raise an error that names the row of the id at `at`."""
        stops = np.cumsum(lengths)
        row = int(np.searchsorted(stops, at, side="right"))
        place = f"row {first + row}, id {at - int(stops[row] - lengths[row])}"
        raise kind(f"{place}: {what}", path=self.path(first + row), found=found, expected=expected, hint=hint)


def _without_nested(values: Values) -> Values:
    """Return the values of rows of numbers; rows of anything else have none, such as three positions per id."""
    found, counts = values
    if found.dtype.kind != "f" or not np.isnan(found).any():
        return values
    rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 0))
    other = np.zeros(len(counts), np.bool_)
    other[rows[np.isnan(found)]] = True
    return found[~other[rows]], np.where(other, -1, counts)


def _borders_inside(values: Values, lengths: IntArray, keep: NDArray[np.bool_], *, are_lengths: bool) -> IntArray:
    """Return the ids at borders of `values` that have ids of their row before and after them, without padding."""
    found, counts = values
    rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 0))
    borders = found.astype(np.int64)
    if are_lengths:
        sums = np.append(0, np.cumsum(borders))
        firsts = np.cumsum(np.maximum(counts, 0)) - np.maximum(counts, 0)
        borders = sums[1:] - sums[firsts[rows]]
    stops = np.cumsum(lengths)[rows]
    starts = stops - lengths[rows]
    places = starts + np.clip(borders, 0, lengths[rows])
    num_kept = np.append(0, np.cumsum(keep))
    return places[(num_kept[places] > num_kept[starts]) & (num_kept[places] < num_kept[stops])]


_LEAVE = DROP[0].lower() + DROP[1:]


def require_mask_column(mask_column: str | None, tokens_column: str, path: str) -> None:
    """Raise `ConfigError` for a column that can't be the mask of these tokens."""
    if mask_column in (PADDING, tokens_column):
        what = f"the column {mask_column!r} can't be the loss mask"
        hint = f"{PADDING} marks padding, which is dropped anyway. Specify a column of masks or labels"
        raise ConfigError(what, path=path, hint=hint)


class _MaskedTokens(Protocol):
    """Tokens with a mask that is read row by row."""

    def read_mask(self, start: int, stop: int) -> NDArray[np.bool_]: ...


@dataclass(frozen=True, slots=True)
class ColumnMask:
    """The loss mask of a column; see `penstock._tokens.Plane`."""

    tokens: _MaskedTokens

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.bool_)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.tokens.read_mask(start, stop)

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        rows = [self.read(start, start + length) for start in np.asarray(starts, np.int64).tolist()]
        return np.stack(rows) if rows else np.empty((0, length), np.bool_)


def values_of(rows: Sequence[Any], ids_per_row: IntArray) -> Values:
    """Return the values of rows as Python holds them: lists, arrays, or bytes of an integer per id."""
    lengths = np.full(len(rows), -1, np.int64)
    filled: list[NDArray[Any]] = []
    for row, value in enumerate(rows):
        if isinstance(value, bytes):
            width = len(value) // max(1, int(ids_per_row[row]))
            fits = width in (1, 2, 4, 8) and width * int(ids_per_row[row]) == len(value)
            value = np.frombuffer(value, f"<i{width}" if fits else "u1")
        if isinstance(value, list | np.ndarray):
            array = _as_array(value)
            lengths[row] = len(array)
            filled.append(array)
    return (np.concatenate(filled) if filled else np.empty(0, np.int64)), lengths


def _as_array(value: Any) -> NDArray[Any]:
    """Return numbers [n]; what isn't a number becomes NaN, which no column of marks holds."""
    array = np.asarray(value) if len(value) else np.empty(0, np.int64)
    return array if array.ndim == 1 and array.dtype.kind in "biuf" else np.full(len(value), np.nan)

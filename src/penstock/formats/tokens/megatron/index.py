"""Arrays of an index: lengths, pointers, document borders and modes, and the resulting position of every document."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.abc import SupportsMmap
from penstock.errors import Corrupt, PenstockError, Truncated
from penstock.formats._findings import Problem
from penstock.formats._sources import map_least, way_to_read
from penstock.formats.tokens.megatron.layout import (
    CODE_AT,
    HEADER_BYTES,
    KIND_OF_WIDTH,
    Header,
    Kind,
    bin_path,
    idx_path,
)
from penstock.store.base import Store
from penstock.store.mapped import Held
from penstock.store.side_file import load_manifest
from penstock.types import IntArray, ReadMode

TRAILING = "megatron.trailing"
"""Code of the finding that tokens follow the last sequence."""
MOST_PROBLEMS = 20
"""Wrong entries that are listed one by one; the others are counted."""

_STEP = 1 << 20
_RECREATE = "Try `penstock repair`, which rebuilds the index if possible; otherwise copy both files again"


class IndexArrays:
    """Slices of the arrays, mapped or by reads; opening reads nothing. Picklable only with its source."""

    __slots__ = ("_mapped", "_pread", "bin_bytes", "header", "prefix", "store")

    def __init__(self, store: Store, prefix: str, header: Header, bin_bytes: int, read: ReadMode = "auto") -> None:
        self.store = store
        what = "the index became shorter after it was opened"
        self._mapped = Held(functools.partial(map_least, store, idx_path(prefix), header.size_bytes, what))
        self._pread = way_to_read(store, idx_path(prefix), read) == "pread"
        self.prefix = prefix
        self.header = header
        self.bin_bytes = bin_bytes

    def lengths(self, start: int, stop: int) -> IntArray:
        """Return the tokens of each of these sequences, int64[stop - start], unchecked."""
        return self._read(HEADER_BYTES, "<i4", start, stop).astype(np.int64)

    def pointers(self, start: int, stop: int) -> IntArray:
        """Return the first byte in the `.bin` of each of these sequences, int64[stop - start], unchecked."""
        return self._read(self.header.pointers_at, "<i8", start, stop).astype(np.int64)

    def borders(self, start: int, stop: int) -> IntArray:
        """Return entries of the document index, int64[stop - start]: first sequence of each document, and the end."""
        return self._read(self.header.documents_at, "<i8", start, stop).astype(np.int64)

    def modes(self) -> NDArray[np.int8] | None:
        """Return the mode of each sequence, int8[n_sequences]; None if the index has none."""
        if not self.header.has_modes:
            return None
        return self._read(self.header.modes_at, "i1", 0, self.header.num_sequences).copy()

    def document(self, index: int) -> tuple[IntArray, IntArray]:
        """Return (first token in the `.bin`, tokens) of the sequences of one document, each int64[k].

        Raises:
            Corrupt: an entry contradicts the others, or is outside the `.bin`.
        """
        first, stop = self.borders(index, index + 2).tolist()
        if not 0 <= first <= stop <= self.header.num_sequences:
            raise _border(self, index, first, stop).error()
        lengths, pointers = self.lengths(first, stop), self.pointers(first, stop)
        wrong = _wrong_sequences(self, lengths, pointers)
        if len(wrong):
            raise _sequence(self, first + int(wrong[0]), lengths, pointers, int(wrong[0])).error()
        if int(lengths.sum()) * self.header.kind.itemsize > self.bin_bytes:
            raise _overlap(self).error()
        return pointers // self.header.kind.itemsize, lengths

    def _read(self, at: int, dtype: str, start: int, stop: int) -> NDArray[Any]:
        width = np.dtype(dtype).itemsize
        start_bytes, stop_bytes = at + start * width, at + stop * width
        if self._pread or not isinstance(self.store, SupportsMmap):
            data = self.store.get_ranges(idx_path(self.prefix), [(start_bytes, stop_bytes)])[0]
            return np.frombuffer(data, dtype)
        return self._mapped.get()[start_bytes:stop_bytes].view(dtype)


def sequence_starts(index: IndexArrays) -> tuple[IntArray, bool]:
    """Return the first token of each sequence and the end, and whether the sequences are in file order.

    The first token is counted in the order of the index: int64[n_sequences + 1]. The flag is true if the sequences are
    back to back in that order from the first byte of the `.bin`. Memory: 8 bytes per sequence, and 64 MiB.

    Raises:
        Corrupt: a sequence is outside the `.bin`, or together they are longer than it.
    """
    starts = np.zeros(index.header.num_sequences + 1, np.int64)
    width = index.header.kind.itemsize
    in_order, end = True, 0
    for first, lengths, pointers in _sequences(index):
        wrong = _wrong_sequences(index, lengths, pointers)
        if len(wrong):
            raise _sequence(index, first + int(wrong[0]), lengths, pointers, int(wrong[0])).error()
        part = starts[first + 1 : first + 1 + len(lengths)]
        np.cumsum(lengths, out=part)
        part += end
        in_order = in_order and bool((pointers == (part - lengths) * width).all())
        end = int(part[-1])
        if end * width > index.bin_bytes:
            raise _overlap(index).error()
    return starts, in_order


def document_starts(index: IndexArrays, starts: IntArray) -> IntArray:
    """Return the first token of each document and the end, int64[n_docs + 1]; raise `Corrupt` for a wrong index."""
    for problem in _border_problems(index):
        raise problem.error()
    return starts[index.borders(0, index.header.num_documents + 1)]


def filling_kind(index: IndexArrays) -> Kind | None:
    """Return the kind of ids of another width at which the lengths fill the `.bin` exactly; None if the stated fits.

    Pointers of sequences that were left out or moved on purpose follow neither width: that index is read as it is. If
    the side file records the stated dtype, the `.bin` was cut, or has grown. All lengths are read only if the last
    sequence ends at its place with another width.
    """
    if not any(_may_fill(index, width) for width in KIND_OF_WIDTH if width != index.header.kind.itemsize):
        return None
    total = 0
    for first in range(0, index.header.num_sequences, _STEP):
        total += int(index.lengths(first, min(index.header.num_sequences, first + _STEP)).sum())
    if total <= 0 or total * index.header.kind.itemsize == index.bin_bytes:
        return None
    found = next((kind for width, kind in KIND_OF_WIDTH.items() if total * width == index.bin_bytes), None)
    known = None if found is None else load_manifest(index.store, f"{idx_path(index.prefix)}.penstock")
    if known is not None and known.options.get("dtype") == index.header.kind.name:
        return None
    if found is None or not any(
        _is_back_to_back(index, width) for width in (found.itemsize, index.header.kind.itemsize)
    ):
        return None
    return found


def _may_fill(index: IndexArrays, width: int) -> bool:
    """Return whether the last sequence is at its place if all are back to back and fill the `.bin` with this width."""
    count = index.header.num_sequences
    num_tokens, rest = divmod(index.bin_bytes, width)
    if not count or rest:
        return False
    start = num_tokens - int(index.lengths(count - 1, count)[0])
    return int(index.pointers(count - 1, count)[0]) in (start * width, start * index.header.kind.itemsize)


def _is_back_to_back(index: IndexArrays, width: int) -> bool:
    end = 0
    for _, lengths, pointers in _sequences(index):
        ends = end + np.cumsum(lengths, dtype=np.int64)
        if (pointers != (ends - lengths) * width).any():
            return False
        end = int(ends[-1])
    return True


def width_problem(index: IndexArrays) -> Problem | None:
    """Return the problem of an index that states another token width than its lengths and the size of the `.bin`."""
    kind = filling_kind(index)
    if kind is None:
        return None
    return Problem(
        "megatron.width",
        Corrupt,
        idx_path(index.prefix),
        "the token width in the index contradicts its lengths and the size of the tokens",
        "`penstock repair` rewrites the index for the matching width",
        CODE_AT,
        f"{index.header.kind.itemsize} bytes ({index.header.kind.name})",
        f"{kind.itemsize} bytes ({kind.name}): the lengths then add up to {index.bin_bytes} bytes",
    )


def trailing_problem(index: IndexArrays, stop_bytes: int) -> Problem | None:
    """Return the problem of tokens after the last sequence, which ends at `stop_bytes`.

    Sequences that were left out or moved on purpose leave other bytes unread: that index is read as it is.
    """
    if stop_bytes >= index.bin_bytes or not _is_back_to_back(index, index.header.kind.itemsize):
        return None
    return _trailing(index, stop_bytes)


def index_problems(index: IndexArrays) -> Iterator[Problem]:
    """Yield all problems of the arrays; warnings for entries that Megatron reads and no writer makes."""
    yield from _sequence_problems(index)
    yield from _border_problems(index)


# --- problems --------------------------------------------------------------------------------------------------------


def _sequences(index: IndexArrays) -> Iterator[tuple[int, IntArray, IntArray]]:
    """Yield `(first sequence, lengths, pointers)` of a million sequences at a time."""
    count = index.header.num_sequences
    for first in range(0, count, _STEP):
        stop = min(count, first + _STEP)
        yield first, index.lengths(first, stop), index.pointers(first, stop)


def _wrong_sequences(index: IndexArrays, lengths: IntArray, pointers: IntArray) -> IntArray:
    """Return the places of sequences that are outside the `.bin`."""
    width = index.header.kind.itemsize
    outside = (lengths < 0) | (pointers < 0) | (pointers > index.bin_bytes - lengths * width)
    return np.flatnonzero(outside | (pointers % width != 0))


def _sequence_problems(index: IndexArrays) -> Iterator[Problem]:
    width = index.header.kind.itemsize
    count, total, expected, apart = 0, 0, 0, -1
    for first, lengths, pointers in _sequences(index):
        wrong = _wrong_sequences(index, lengths, pointers)
        for place in wrong[: max(0, MOST_PROBLEMS - count)].tolist():
            yield _sequence(index, first + place, lengths, pointers, place)
        count += len(wrong)
        if count:
            continue
        ends = pointers + lengths * width
        before = np.concatenate([[expected], ends[:-1]])
        if apart < 0 and (pointers != before).any():
            apart = first + int(np.argmax(pointers != before))
        expected, total = int(ends[-1]), total + int(lengths.sum())
    if count > MOST_PROBLEMS:
        words = f"{count - MOST_PROBLEMS} more sequences outside the tokens"
        yield _problem(index, "sequence", Corrupt, words, None, None, None)
    if count:
        return
    if total * width > index.bin_bytes:
        yield _overlap(index)
    elif apart >= 0:
        yield _apart(index, apart)
    elif expected < index.bin_bytes:
        yield _trailing(index, expected)


def _trailing(index: IndexArrays, stop_bytes: int) -> Problem:
    path = bin_path(index.prefix)
    fix = (
        "The index may be older than the tokens, or its lengths may omit EOS, so documents start at the wrong offsets. "
        f"Copy both files again, or rebuild the index from the tokens: `penstock repair {index.prefix} "
        f"--format megatron --eos-id ID`. To keep only the listed documents: `truncate --size={stop_bytes} {path}`"
    )
    what, found = "the index ends before the tokens do", f"{index.bin_bytes - stop_bytes} bytes after its last sequence"
    return Problem(TRAILING, Corrupt, path, what, fix, stop_bytes, found)


def _border_problems(index: IndexArrays) -> Iterator[Problem]:
    count, sequences = index.header.num_documents, index.header.num_sequences
    last = 0
    for first in range(0, count + 1, _STEP):
        borders = index.borders(first, min(count + 1, first + _STEP))
        if first == 0 and borders[0] != 0:
            found, expected = f"{borders[0]} at entry 0", "0"
            yield _problem(index, "documents", Corrupt, "the document index does not begin with 0", 0, found, expected)
            return
        before = np.concatenate([[last], borders[:-1]])
        wrong = np.flatnonzero((borders < before) | (borders > sequences))
        if len(wrong):
            place = int(wrong[0])
            yield _border(index, first + place - 1, int(before[place]), int(borders[place]))
            return
        last = int(borders[-1])
    problem = last_border_problem(index)
    if problem is not None:
        yield problem


def last_border_problem(index: IndexArrays) -> Problem | None:
    """Return a problem unless the last document ends with the last sequence: other tokens would be in no document."""
    count, sequences = index.header.num_documents, index.header.num_sequences
    last = int(index.borders(count, count + 1)[0])
    if last == sequences:
        return None
    found, expected = f"{last} at entry {count}", f"{sequences}, the number of sequences"
    what = "the document index does not end with the last sequence"
    return _problem(index, "documents", Corrupt, what, count, found, expected)


def _border(index: IndexArrays, document: int, first: int, stop: int) -> Problem:
    found, expected = f"sequences {first} to {stop}", f"a range in 0 to {index.header.num_sequences}"
    what = f"document {document} has an invalid range of sequences"
    return _problem(index, "documents", Corrupt, what, document + 1, found, expected)


def _sequence(index: IndexArrays, number: int, lengths: IntArray, pointers: IntArray, place: int) -> Problem:
    return Problem(
        "megatron.sequence",
        Truncated if _is_cut(index, int(lengths[place]), int(pointers[place])) else Corrupt,
        idx_path(index.prefix),
        f"sequence {number} is outside the tokens",
        _RECREATE,
        HEADER_BYTES + 4 * number,
        f"{lengths[place]} tokens from byte {pointers[place]}",
        f"inside {index.bin_bytes} bytes of {index.header.kind.itemsize}-byte tokens",
    )


def _is_cut(index: IndexArrays, length: int, pointer: int) -> bool:
    """Return whether a sequence would be right in a longer `.bin`."""
    return length >= 0 and pointer >= 0 and pointer % index.header.kind.itemsize == 0


def _overlap(index: IndexArrays) -> Problem:
    what = "sequences overlap: they contain more tokens than the file"
    return _problem(index, "overlap", Corrupt, what, None, None, f"at most {index.bin_bytes} bytes together")


def _apart(index: IndexArrays, number: int) -> Problem:
    return Problem(
        "megatron.apart",
        Corrupt,
        idx_path(index.prefix),
        f"sequence {number} doesn't start where the previous one ends",
        "It can be read as it is, but windows are slower; `penstock convert` writes it in order",
        index.header.pointers_at + 8 * number,
        severity="warning",
    )


def _problem(
    index: IndexArrays,
    code: str,
    kind: type[PenstockError],
    what: str,
    border: int | None,
    found: str | None,
    expected: str | None,
) -> Problem:
    offset_bytes = None if border is None else index.header.documents_at + 8 * border
    return Problem(f"megatron.{code}", kind, idx_path(index.prefix), what, _RECREATE, offset_bytes, found, expected)

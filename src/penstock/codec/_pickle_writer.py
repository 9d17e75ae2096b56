"""Writer of pickled lists of pairs; see `penstock.codec.pickles`."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codec._pickle_opcodes import (
    APPENDS,
    BININT,
    BININT1,
    BININT2,
    EMPTY_LIST,
    FRAME_BYTES,
    LONG1,
    MARK,
    MAX,
    MEMOIZE,
    PAYLOAD_BYTES,
    SKIP_BYTES,
    TUPLE2,
)
from penstock.errors import TooLarge
from penstock.types import IntArray

MARKED_PAIRS = 4096
"""Every so many pairs, a mark is recorded, so that the list can be read from there on."""

_BATCH = 1000
_SLICE = 1 << 13
_FRAME_HEAD_BYTES = 9
_HEADS = np.array([0, BININT1, BININT2, BININT, *[LONG1 | size << 8 for size in range(1, 9)]], "<u8")
_NUMBER_BYTES = SKIP_BYTES + PAYLOAD_BYTES
_SHORT_START_KIND, _SHORT_LENGTH_KIND = 9, 3  # LONG1 of six bytes fills a word; BININT leaves room for two opcodes
_SHIFTS = (8 * SKIP_BYTES).astype(np.uint64)
_TAILS = np.array([(TUPLE2 | MEMOIZE << 8) << 8 * int(size) for size in _NUMBER_BYTES[:4]], "<u8")
_KIND_STARTS = np.array([1 << 8, 1 << 16, 1 << 31, 1 << 39, 1 << 47, 1 << 55], np.int64)


class PairListEncoder:
    """Streaming encoder of a pickled list of pairs: the joined results of `encode` and `finish` are the pickle.

    Memory: about 2 MB, and the bytes returned.

    Attributes:
        marks: offset of each `MARKED_PAIRS`th pair in the pickle, from the first on; complete after `finish`.
    """

    __slots__ = ("_first", "_framed_bytes", "_num_pairs", "_open_frame", "_started", "marks")

    def __init__(self) -> None:
        self._num_pairs = 0
        self._first: IntArray | None = None
        self._started = False
        self._open_frame = b"]\x94"
        self._framed_bytes = 2  # size of everything before the open frame
        self.marks: list[int] = []

    def encode(self, pairs: IntArray) -> bytes:
        """Return the next bytes of the pickle.

        Args:
            pairs: int64[k, 2], each number in `[0, 2^63)`.

        Raises:
            TooLarge: a number is negative, or 2^63 or more.
        """
        pairs = _checked(pairs)
        if self._first is not None and len(pairs):
            pairs, self._first = np.concatenate([self._first, pairs]), None
        elif self._num_pairs == 0 and len(pairs) == 1:
            # Whether one pair is the whole list decides how it is written.
            self._first = pairs.copy()
            return b""
        out: list[bytes] = []
        for start in range(0, len(pairs), _SLICE):
            out += self._encode_slice(pairs[start : start + _SLICE])
        return b"".join(out)

    def finish(self) -> bytes:
        """Return the last bytes of the pickle."""
        if self._first is not None:
            self.marks.append(self._framed_bytes + _FRAME_HEAD_BYTES + len(self._open_frame))
            content = self._open_frame + _encode_pairs(self._first, -1)[0] + b"a."
        elif self._num_pairs == 0:
            return EMPTY_LIST
        else:
            content = self._open_frame + b"e."
        return self._start() + _framed(content)

    def _start(self) -> bytes:
        started, self._started = self._started, True
        return b"" if started else b"\x80\x04"

    def _encode_slice(self, pairs: IntArray) -> list[bytes]:
        body, borders = _encode_pairs(pairs, self._num_pairs)
        marked = borders[2 * (-self._num_pairs % MARKED_PAIRS) :: 2 * MARKED_PAIRS] + len(self._open_frame)
        self._num_pairs += len(pairs)
        content = self._open_frame + body
        borders += len(self._open_frame)
        out = [self._start()]
        start = 0
        while (place := int(np.searchsorted(borders, start + FRAME_BYTES))) < len(borders):
            stop = int(borders[place])
            marked = self._mark(marked, start, stop)
            out.append(_framed(content[start:stop]))
            self._framed_bytes += _FRAME_HEAD_BYTES + stop - start
            start = stop
        self._mark(marked, start, len(content))
        self._open_frame = content[start:]
        return out

    def _mark(self, marked: IntArray, start: int, stop: int) -> IntArray:
        """Record the marks in a frame of content `[start, stop)`; return the later ones."""
        count = int(np.searchsorted(marked, stop))
        self.marks += (marked[:count] - start + self._framed_bytes + _FRAME_HEAD_BYTES).tolist()
        return marked[count:]


def _checked(pairs: NDArray[Any]) -> IntArray:
    pairs = np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or (pairs.size and pairs.dtype.kind not in "iu"):
        raise TypeError(f"expected integers of shape [k, 2], found {pairs.dtype} of shape {pairs.shape}")
    if pairs.size:
        low, high = int(pairs.min()), int(pairs.max())
        if low < 0 or high > MAX:
            raise TooLarge(
                "a number doesn't fit in the index", found=low if low < 0 else high, expected="0 to 9223372036854775807"
            )
    return pairs.astype(np.int64, copy=False)


def _framed(content: bytes) -> bytes:
    return b"\x95" + struct.pack("<Q", len(content)) + content


def _encode_pairs(pairs: IntArray, num_before: int) -> tuple[bytes, IntArray]:
    """Return the opcodes of the pairs, and int64[2 k]: the offset of each number in them.

    `num_before` is the number of pairs already written, or -1 for a list of one pair, which has no MARK.
    """
    kinds = np.stack([_kinds(pairs[:, 0]), _kinds(pairs[:, 1])], axis=1)
    sizes = _NUMBER_BYTES[kinds]
    sizes[:, 1] += 2
    sizes = sizes.reshape(-1)
    batches = np.arange(-num_before % _BATCH if num_before >= 0 else len(pairs), len(pairs), _BATCH)
    sizes[2 * batches] += 2
    starts = np.cumsum(sizes) - sizes
    total_bytes = int(starts[-1] + sizes[-1])
    starts[2 * batches] += 2

    places, words = _short_words(pairs, kinds, starts) or _long_words(pairs, kinds, starts)
    out = np.empty(total_bytes + 8, np.uint8)
    # Written in order: each word overwrites the excess bytes of the previous one.
    np.ndarray((total_bytes + 1,), "<u8", out.data, 0, (1,))[places] = words
    marks = starts[2 * batches]
    out[marks - 2], out[marks - 1] = APPENDS, MARK
    begin = int(num_before == 0)  # nothing is appended before the first MARK
    return out[begin:total_bytes].tobytes(), starts - begin


def _kinds(numbers: NDArray[Any]) -> NDArray[Any]:
    ends = np.searchsorted(_KIND_STARTS, [numbers.min(), numbers.max()], "right")
    if ends[0] == ends[1]:  # most often: starts grow slowly
        kinds = np.full(len(numbers), ends[0] + 1)
    else:
        kinds = np.searchsorted(_KIND_STARTS, numbers, "right") + 1
    kinds[kinds > 3] += 4  # LONG1 holds five bytes or more
    return kinds


def _short_words(pairs: IntArray, kinds: IntArray, starts: IntArray) -> tuple[IntArray, NDArray[Any]] | None:
    """Return offsets and u64 words, two per pair; None if a number is too large for that."""
    if int(kinds[:, 0].max()) > _SHORT_START_KIND or int(kinds[:, 1].max()) > _SHORT_LENGTH_KIND:
        return None
    words = _HEADS[kinds]
    words |= pairs.astype("<u8") << _SHIFTS[kinds]
    words[:, 1] |= _TAILS[kinds[:, 1]]
    return starts, words.reshape(-1)


def _long_words(pairs: IntArray, kinds: IntArray, starts: IntArray) -> tuple[IntArray, NDArray[Any]]:
    """Return offsets and u64 words, five per pair, for arbitrary numbers."""
    places = np.empty((len(pairs), 5), np.int64)
    words = np.empty(places.shape, "<u8")
    places[:, 0:4:2] = starts.reshape(-1, 2)
    places[:, 1:4:2] = places[:, 0:4:2] + SKIP_BYTES[kinds]
    places[:, 4] = starts[1::2] + _NUMBER_BYTES[kinds[:, 1]]
    words[:, 0:4:2] = _HEADS[kinds]
    words[:, 1:4:2] = pairs
    words[:, 4] = TUPLE2 | MEMOIZE << 8
    return places.reshape(-1), words.reshape(-1)

"""Pickled lists of `(start, length)` pairs, written and read without `pickle`.

The files of the originals hold `pickle.dumps([(int, int), …])`. This module accepts only the opcodes of such a
list, so that no file can run code.

| bytes | opcode |
|---|---|
| `80 nn` | PROTO, 2 to 5; 4 is written |
| `95` u64 | FRAME: closed at the first number that begins 65,536 bytes or more after the frame's start |
| `5d 94` | EMPTY_LIST, MEMOIZE |
| `28` … `65` | MARK … APPENDS around each 1,000 pairs; a list of one pair ends in `61` APPEND, without a MARK |
| `4b` u8, `4d` u16, `4a` i32 | a number to 255, to 65,535, to 2^31 - 1, little-endian |
| `8a` n, n bytes | LONG1: a larger one, signed, in as few bytes as possible |
| `86 94` | TUPLE2, MEMOIZE |
| `2e` | STOP |

Also read: `71` u8 and `72` u32 (memo puts of protocols 2 and 3), tuples without a memo put, and `68` u8 and `6a` u32
(a tuple that is in the list twice). Written bytes equal those of CPython 3.8 to 3.13.

Files: `_pickle_opcodes` · `_pickle_writer` · reading is here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock.codec._pickle_opcodes import (
    APPEND,
    APPENDS,
    BINGET,
    BININT,
    BINPUT,
    EMPTY_LIST,
    FRAME,
    FRAME_BYTES,
    KIND,
    LIST,
    LONG1,
    LONG_BINGET,
    LONG_BINPUT,
    MARK,
    MAX,
    MEMOIZE,
    PAYLOAD_BYTES,
    PROTO,
    RUNS_CODE,
    SIGN_BIT,
    SKIP_BYTES,
    STOP,
    TUPLE2,
    VALUE_MASK,
)
from penstock.codec._pickle_writer import MARKED_PAIRS, PairListEncoder
from penstock.errors import Corrupt, FormatError, PenstockError, TooLarge, Truncated, UnsafeData
from penstock.types import IntArray

__all__ = [
    "EMPTY_LIST",
    "MARKED_PAIRS",
    "PairListEncoder",
    "decode_marked",
    "decode_pairs",
    "decode_piece",
    "ends_like_pickle",
    "feed_pairs",
    "first_pair",
]

_WINDOW_BYTES = FRAME_BYTES + 128
_PAD_BYTES = 64
_SHORT_RUN = 32
_SLOW_PAIRS = 64
_SHORT_BYTES = 256
_TAKEN_PAIRS = 1 << 16
_REPEAT = -1


def decode_pairs(buffer: NDArray[np.uint8], *, path: str, offset_bytes: int = 0) -> IntArray:
    """Return int64[k, 2]: the pairs of a pickled list that fills `buffer` exactly.

    Memory: 16 bytes per pair, so at most 4 times the buffer, or 24 times if the list has repeated tuples.

    Raises:
        UnsafeData: an opcode that would run code.
        Truncated: the pickle ends early.
        TooLarge: a number of 2^63 or more.
        Corrupt: anything else that isn't such a list.
    """
    reader = _Reader(np.ascontiguousarray(buffer), path, offset_bytes)
    reader.read_list()
    return reader.pairs()


def decode_marked(buffer: NDArray[np.uint8], *, path: str, offset_bytes: int = 0) -> tuple[IntArray, IntArray | None]:
    """Return `decode_pairs`, and int64[k]: the offset of each `MARKED_PAIRS`th pair, as in the encoder's marks.

    The offsets are None if the list can't be read in pieces: it has repeated tuples, or numbers its tuples.
    """
    reader = _Reader(np.ascontiguousarray(buffer), path, offset_bytes)
    reader.marks = []
    reader.read_list()
    return reader.pairs(), reader.marked()


def decode_piece(buffer: NDArray[np.uint8], *, path: str, offset_bytes: int = 0) -> IntArray:
    """Return int64[k, 2]: the pairs between two marks, or between a mark and the end of a pickled list.

    Raises:
        As `decode_pairs`: for anything that isn't part of such a list.
    """
    reader = _Reader(np.ascontiguousarray(buffer), path, offset_bytes)
    reader.read_piece()
    return reader.pairs()


def feed_pairs(
    buffer: NDArray[np.uint8], take: Callable[[IntArray], None], *, path: str, offset_bytes: int = 0
) -> bool:
    """Pass the pairs of `decode_pairs` to `take` in runs of int64[k, 2] in reused memory.

    Raises the same errors. Memory: a few MB.

    Returns:
        False if the list has repeated tuples: then not all pairs were passed, and only `decode_pairs` can read it.
    """
    reader = _Reader(np.ascontiguousarray(buffer), path, offset_bytes, take)
    try:
        reader.read_list()
    except _RepeatedTuple:
        return False
    take(reader.pairs())
    return True


def first_pair(head: bytes) -> tuple[int, int] | None:
    """Return the first pair of a list, from the first 64 bytes of its pickle; None if they don't have one."""
    # The first frame, and everything after the first pair, may be truncated here.
    reader = _Reader(np.frombuffer(head[:2] + head[11:] if head[2:3] == b"\x95" else head, np.uint8), "", 0)
    with contextlib.suppress(FormatError, UnsafeData):
        reader.read_list()
    pairs = reader.pairs()
    return (int(pairs[0, 0]), int(pairs[0, 1])) if len(pairs) else None


def ends_like_pickle(tail: bytes) -> bool:
    """Return whether the last bytes of a file could end a pickled list of pairs."""
    return tail.endswith((b"e.", b"a.", b"]\x94.", b"]."))


class _RepeatedTuple(Exception):
    pass


class _Reader:
    """Reader that decodes runs of plain pairs by numpy, and everything between them opcode by opcode."""

    __slots__ = (
        "_base_bytes", "_buffer", "_count", "_is_piece", "_list_memos", "_memos", "_pairs", "_path",
        "_place", "_repeats", "_size", "_slow_pairs", "_take", "_taken", "_view", "marks",
    )  # fmt: skip

    def __init__(
        self,
        buffer: NDArray[np.uint8],
        path: str,
        offset_bytes: int,
        take: Callable[[IntArray], None] | None = None,
    ) -> None:
        self._buffer = buffer
        self._view = buffer.data
        self._size = len(buffer)
        self._path = path
        self._base_bytes = offset_bytes
        self._take = take
        self._taken = 0
        # Each tuple ends in TUPLE2 and takes at least five bytes.
        most_tuples = min(self._size // 5, _TAKEN_PAIRS if take else _count_byte(buffer, TUPLE2))
        self._pairs = np.empty((most_tuples, 2), np.int64)
        self._count = 0
        self._repeats = 0
        self._memos = 0
        self._list_memos = 0
        self._place = 0
        # A few pairs are read faster one by one than as a run.
        self._slow_pairs = _SLOW_PAIRS if self._size <= _SHORT_BYTES else 0
        self._is_piece = False
        self.marks: list[int] | None = None

    def pairs(self) -> IntArray:
        """Return the pairs read so far, with repeated tuples expanded."""
        pairs = self._pairs[: self._count - self._taken]
        if self._repeats:
            again = np.flatnonzero(pairs[:, 1] == _REPEAT)
            pairs[again] = pairs[pairs[:, 1] != _REPEAT][pairs[again, 0]]
        return pairs

    def marked(self) -> IntArray | None:
        """Return `marks`; None if the list can't be read from a mark on."""
        return None if self.marks is None else np.array(self.marks, np.int64)

    def read_list(self) -> None:
        if self._byte() != PROTO or not 2 <= self._byte() <= 5:
            raise self._corrupt("not a pickle of protocol 2 to 5", 0)
        if (opcode := self._opcode()) != LIST:
            raise self._refusal(opcode, "a list")
        self._list_memos = int(self._memo_put())
        while True:
            opcode = self._opcode()
            if opcode == STOP:
                if self._place != self._size:
                    raise self._corrupt("bytes follow the end of the pickle", self._place)
                return
            if opcode == MARK:
                self._read_group()
            else:
                self._read_pair(opcode)
                if (opcode := self._opcode()) != APPEND:
                    raise self._refusal(opcode, "APPEND")

    def read_piece(self) -> None:
        """Read pairs and separators up to the end of the buffer; frames may end after it."""
        self._is_piece = True
        while self._place < self._size:
            if self._slow_pairs:
                self._slow_pairs -= 1
            else:
                self._read_run()
                if self._place == self._size:
                    return
            opcode = self._byte()
            if opcode == FRAME:
                self._bytes(8)
            elif opcode == STOP:
                if self._place != self._size:
                    raise self._corrupt("bytes follow the end of the pickle", self._place)
            elif opcode not in (MARK, APPEND, APPENDS):
                self._read_pair(opcode)

    def _read_group(self) -> None:
        """Read pairs up to APPENDS, or several such groups."""
        while True:
            if self._slow_pairs:
                self._slow_pairs -= 1
            else:
                self._read_run()
            opcode = self._opcode()
            if opcode == APPENDS:
                return
            self._read_pair(opcode)

    def _read_run(self) -> None:
        """Read the plain pairs of one window at once."""
        pairs, begins, length_bytes = _scan_run(self._buffer[self._place : self._place + _WINDOW_BYTES])
        if len(pairs) < _SHORT_RUN:
            # Unusual opcodes or unlucky numbers: continue one by one for a while, so that the time stays linear.
            self._slow_pairs = _SLOW_PAIRS
        self._reserve(len(pairs))
        if self.marks is not None:
            self.marks += (begins[-self._count % MARKED_PAIRS :: MARKED_PAIRS] + self._place).tolist()
        held = self._count - self._taken
        self._pairs[held : held + len(pairs)] = pairs
        self._count += len(pairs)
        self._memos += len(pairs)
        self._place += length_bytes

    def _read_pair(self, opcode: int) -> None:
        """Read one tuple after its first opcode."""
        if opcode in (BINGET, LONG_BINGET):
            return self._read_repeat(1 if opcode == BINGET else 4)
        if self.marks is not None and self._count % MARKED_PAIRS == 0:
            self.marks.append(self._place - 1)
        first = self._read_number(opcode)
        second = self._read_number(self._opcode())
        if (opcode := self._opcode()) != TUPLE2:
            raise self._refusal(opcode, "a pair of numbers")
        self._memos += self._memo_put()
        self._add(first, second)

    def _read_repeat(self, size_bytes: int) -> None:
        if self._take is not None:
            raise _RepeatedTuple
        self.marks = None
        start = self._place - 1
        tuple_number = self._unsigned(size_bytes) - self._list_memos
        known = self._count - self._repeats
        if self._memos != known or not 0 <= tuple_number < known:
            raise self._corrupt("the list repeats a tuple that isn't in it", start)
        self._repeats += 1
        self._add(tuple_number, _REPEAT)

    def _add(self, first: int, second: int) -> None:
        self._reserve(1)
        self._pairs[self._count - self._taken] = first, second
        self._count += 1

    def _reserve(self, more: int) -> None:
        if self._take is not None and self._count - self._taken + more > len(self._pairs):
            self._take(self.pairs())
            self._taken = self._count
        if self._count - self._taken + more > len(self._pairs):
            held = self._count - self._taken
            grown = np.empty((max(held + more, 2 * len(self._pairs)), 2), np.int64)
            grown[:held] = self._pairs[:held]
            self._pairs = grown

    def _read_number(self, opcode: int) -> int:
        start = self._place - 1
        if opcode == LONG1:
            size_bytes = self._byte()
            value = int.from_bytes(self._bytes(size_bytes), "little", signed=True)
        elif kind := int(KIND[opcode]):
            value = int.from_bytes(self._bytes(int(PAYLOAD_BYTES[kind])), "little", signed=opcode == BININT)
        else:
            raise self._refusal(opcode, "a number")
        if value < 0:
            raise self._corrupt("a negative number in the index", start, found=value)
        if value > MAX:
            raise TooLarge(
                "a number in the index is too large",
                path=self._path,
                offset_bytes=self._base_bytes + start,
                found=f"a number of {value.bit_length()} bits",
                expected="at most 63 bits",
            )
        return value

    def _memo_put(self) -> bool:
        """Read a memo put, if there is one."""
        if self._place >= self._size:
            return False
        opcode = self._view[self._place]
        if opcode not in (MEMOIZE, BINPUT, LONG_BINPUT):
            return False
        self._place += 1
        if opcode != MEMOIZE:
            self.marks = None
            number = self._unsigned(1 if opcode == BINPUT else 4)
            expected = self._list_memos + self._memos
            if number != expected:
                raise self._corrupt("a memo number out of order", self._place, found=number, expected=expected)
        return True

    def _opcode(self) -> int:
        """Return the next opcode that isn't a FRAME."""
        opcode = self._byte()
        while opcode == FRAME:
            start = self._place - 1
            length_bytes = self._unsigned(8)
            if length_bytes > self._size - self._place and not self._is_piece:
                raise self._truncated(start, f"a frame of {length_bytes} bytes")
            opcode = self._byte()
        return opcode

    def _byte(self) -> int:
        if self._place >= self._size:
            raise self._truncated(self._size, "more of the pickle")
        value = self._view[self._place]
        self._place += 1
        return value

    def _bytes(self, size_bytes: int) -> memoryview:
        stop = self._place + size_bytes
        if stop > self._size:
            raise self._truncated(self._place, f"{size_bytes} bytes of a number")
        data, self._place = self._view[self._place : stop], stop
        return data

    def _unsigned(self, size_bytes: int) -> int:
        return int.from_bytes(self._bytes(size_bytes), "little")

    def _truncated(self, start: int, expected: str) -> Truncated:
        found = f"{self._size - start} bytes before the end"
        offset_bytes = self._base_bytes + start
        return Truncated(
            "the pickled index ends early", path=self._path, offset_bytes=offset_bytes, found=found, expected=expected
        )

    def _corrupt(self, what: str, start: int, found: object = None, expected: object = None) -> Corrupt:
        offset_bytes = self._base_bytes + start
        return Corrupt(what, path=self._path, offset_bytes=offset_bytes, found=found, expected=expected)

    def _refusal(self, opcode: int, expected: str) -> PenstockError:
        start = self._place - 1
        name = RUNS_CODE.get(opcode)
        if name is None:
            return self._corrupt("not a pickled list of pairs", start, f"the opcode 0x{opcode:02x}", expected)
        return UnsafeData(
            "the pickled index would run code",
            path=self._path,
            offset_bytes=self._base_bytes + start,
            found=f"the opcode {name}",
            expected=expected,
            hint="Don't open this file with pickle: an index only contains numbers",
        )


def _count_byte(buffer: NDArray[np.uint8], value: int) -> int:
    step = 1 << 20
    return sum(int(np.count_nonzero(buffer[start : start + step] == value)) for start in range(0, len(buffer), step))


def _scan_run(window: NDArray[np.uint8]) -> tuple[IntArray, IntArray, int]:
    """Return the consecutive plain pairs from the window's start, their offsets, and their total size.

    Every `86 94` may end a tuple, so a tuple may start after each of them. Both numbers are read at every candidate,
    which
    gives the true end of its tuple. The result is the unbroken chain from the window's start. An `86 94` inside a
    number is
    a false end: the chain jumps over it.
    """
    data = np.zeros(len(window) + _PAD_BYTES, np.uint8)
    data[: len(window)] = window
    ends = np.flatnonzero((data[:-1] == TUPLE2) & (data[1:] == MEMOIZE))
    if len(ends) == 0:
        return np.empty((0, 2), np.int64), np.empty(0, np.int64), 0
    starts = np.concatenate([np.zeros(1, np.int64), _after_separators(data, ends[:-1] + 2)])
    words = np.ndarray((len(data) - 7,), "<u8", data.data, 0, (1,))
    first, places, valid = _numbers_at(data, words, starts)
    second, places, second_valid = _numbers_at(data, words, places)
    valid &= second_valid & (data[places] == TUPLE2) & (data[places + 1] == MEMOIZE)
    stops = _after_separators(data, places + 2)

    jumps = valid[:-1] & (stops[:-1] > starts[1:])
    if jumps.any():
        keep = np.ones(len(starts), np.bool_)
        keep[1:] = ~jumps
        keep[2:] |= jumps[:-1]  # the candidates that a false start jumps over may be true starts
        starts, stops, valid = starts[keep], stops[keep], valid[keep]
        first, second = first[keep], second[keep]
    broken = np.flatnonzero(~valid | np.append(stops[:-1] != starts[1:], True))
    count = int(broken[0]) + int(valid[broken[0]])
    pairs = np.stack([first[:count], second[:count]], 1).view(np.int64)
    return pairs, starts[:count], int(stops[count - 1]) if count else 0


def _after_separators(data: NDArray[np.uint8], places: IntArray) -> IntArray:
    """Return int64[k]: each offset, moved past an `APPENDS MARK` at that offset."""
    return places + 2 * ((data[places] == APPENDS) & (data[places + 1] == MARK))


def _numbers_at(
    data: NDArray[np.uint8], words: NDArray[np.uint64], places: IntArray
) -> tuple[NDArray[np.uint64], IntArray, NDArray[np.bool_]]:
    """Return the numbers with opcodes at `places`: their values, their ends, and whether they are numbers."""
    opcodes = data[places]
    kinds = KIND[opcodes]
    long = np.flatnonzero(opcodes == LONG1)
    if len(long):
        sizes = data[places[long] + 1]
        kinds[long] = np.where((sizes >= 1) & (sizes <= 8), sizes + 3, 0)
    payload = places + SKIP_BYTES[kinds]
    values = words[payload] & VALUE_MASK[kinds]
    return values, payload + PAYLOAD_BYTES[kinds], (kinds > 0) & ((values & SIGN_BIT[kinds]) == 0)

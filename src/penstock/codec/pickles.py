"""Pickled lists of `(start, length)` pairs, written and read without `pickle`.

The files of the originals hold `pickle.dumps([(int, int), …])`. This module knows only the opcodes that such a list
needs and refuses every other one, so that no file can run code.

| bytes | opcode |
|---|---|
| `80 nn` | PROTO, 2 to 5; 4 is written |
| `95` u64 | FRAME: closed at the first number that begins 65,536 bytes or more after the frame's start |
| `5d 94` | EMPTY_LIST, MEMOIZE |
| `28` … `65` | MARK … APPENDS around each 1,000 pairs; a list of one pair ends in `61` APPEND, without a MARK |
| `4b` u8, `4d` u16, `4a` i32 | a number to 255, to 65,535, to 2^31 - 1, little-endian |
| `8a` n, n bytes | LONG1: a larger one, signed, as few bytes as hold it |
| `86 94` | TUPLE2, MEMOIZE |
| `2e` | STOP |

Also read: `71` u8 and `72` u32 (memo puts of protocols 2 and 3), tuples without a memo put, and `68` u8 and `6a` u32
(a tuple that stands in the list twice). Written bytes equal those of CPython 3.8 to 3.13.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import Corrupt, FormatError, PenstockError, TooLarge, Truncated, UnsafeData
from penstock.types import IntArray

EMPTY_LIST = b"\x80\x04]\x94."
"""The pickle of `[]`."""

_FRAME_BYTES = 1 << 16
_BATCH = 1000
_SLICE = 1 << 13
_WINDOW_BYTES = _FRAME_BYTES + 128
_PAD_BYTES = 64
_SHORT_RUN = 32
_SLOW_PAIRS = 64
_REPEAT = -1
_MAX = (1 << 63) - 1
_PROTO, _FRAME, _LIST, _MEMOIZE, _TUPLE2, _STOP = 0x80, 0x95, 0x5D, 0x94, 0x86, 0x2E
_MARK, _APPENDS, _APPEND = 0x28, 0x65, 0x61
_BININT1, _BININT2, _BININT, _LONG1 = 0x4B, 0x4D, 0x4A, 0x8A
_BINPUT, _LONG_BINPUT, _BINGET, _LONG_BINGET = 0x71, 0x72, 0x68, 0x6A
_RUNS_CODE = {
    **{ord("c"): "GLOBAL", 0x93: "STACK_GLOBAL", ord("R"): "REDUCE", ord("b"): "BUILD", ord("i"): "INST"},
    **{ord("o"): "OBJ", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4"},
    **{ord("P"): "PERSID", ord("Q"): "BINPERSID"},
}

# A number's kind: 1 to 3 for BININT1, BININT2, BININT, and 3 + n for LONG1 of n bytes; 0 for none of these.
_KIND = np.zeros(256, np.int64)
_KIND[[_BININT1, _BININT2, _BININT]] = 1, 2, 3
_PAYLOAD_BYTES = np.array([0, 1, 2, 4, *range(1, 9)], np.int64)
_SKIP_BYTES = np.array([0, 1, 1, 1, *[2] * 8], np.int64)
_HEADS = np.array([0, _BININT1, _BININT2, _BININT, *[_LONG1 | size << 8 for size in range(1, 9)]], "<u8")
_KIND_STARTS = np.array([1 << 8, 1 << 16, 1 << 31, 1 << 39, 1 << 47, 1 << 55], np.int64)
_VALUE_MASK = np.array([(1 << 8 * int(size)) - 1 for size in _PAYLOAD_BYTES], np.uint64)
_SIGN_BIT = np.array([0, 0, 0, 1 << 31, *[1 << 8 * size - 1 for size in range(1, 9)]], np.uint64)


# --- writing -----------------------------------------------------------------------------------------------------


class PairListEncoder:
    """Streams the pickle of a list of pairs; what `encode` and `finish` give, joined, is the whole pickle.

    Memory: about 2 MB, and the bytes returned.
    """

    __slots__ = ("_first", "_num_pairs", "_open_frame", "_started")

    def __init__(self) -> None:
        self._num_pairs = 0
        self._first: IntArray | None = None
        self._started = False
        self._open_frame = b"]\x94"

    def encode(self, pairs: IntArray) -> bytes:
        """The next bytes of the pickle.

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
        """The last bytes."""
        if self._first is not None:
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
        self._num_pairs += len(pairs)
        content = self._open_frame + body
        borders += len(self._open_frame)
        out = [self._start()]
        start = 0
        while (place := int(np.searchsorted(borders, start + _FRAME_BYTES))) < len(borders):
            stop = int(borders[place])
            out.append(_framed(content[start:stop]))
            start = stop
        self._open_frame = content[start:]
        return out


def _checked(pairs: NDArray[Any]) -> IntArray:
    pairs = np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or (pairs.size and pairs.dtype.kind not in "iu"):
        raise TypeError(f"expected integers of shape [k, 2], found {pairs.dtype} of shape {pairs.shape}")
    if pairs.size:
        low, high = int(pairs.min()), int(pairs.max())
        if low < 0 or high > _MAX:
            raise TooLarge(
                "a number does not fit the index", found=low if low < 0 else high, expected="0 to 9223372036854775807"
            )
    return pairs.astype(np.int64, copy=False)


def _framed(content: bytes) -> bytes:
    return b"\x95" + struct.pack("<Q", len(content)) + content


def _encode_pairs(pairs: IntArray, num_before: int) -> tuple[bytes, IntArray]:
    """Opcodes of the pairs, and int64[2 k]: where in them each number begins.

    `num_before` is the number of pairs already written, or -1 for a list of one pair, which has no MARK.
    """
    kinds = np.searchsorted(_KIND_STARTS, pairs.reshape(-1), "right") + 1
    kinds[kinds > 3] += 4  # LONG1 holds five bytes or more
    skips, payloads = _SKIP_BYTES[kinds], _PAYLOAD_BYTES[kinds]
    sizes = skips + payloads
    sizes[1::2] += 2
    batches = np.arange(-num_before % _BATCH if num_before >= 0 else len(pairs), len(pairs), _BATCH)
    sizes[2 * batches] += 2
    starts = np.cumsum(sizes) - sizes
    total_bytes = int(starts[-1] + sizes[-1])
    starts[2 * batches] += 2

    # Five words a pair, put down in order: each covers what the one before it wrote beyond its own bytes.
    places = np.empty((len(pairs), 5), np.int64)
    words = np.empty(places.shape, "<u8")
    places[:, 0:4:2] = starts.reshape(-1, 2)
    places[:, 1:4:2] = (starts + skips).reshape(-1, 2)
    places[:, 4] = (starts + skips + payloads)[1::2]
    words[:, 0:4:2] = _HEADS[kinds].reshape(-1, 2)
    words[:, 1:4:2] = pairs
    words[:, 4] = _TUPLE2 | _MEMOIZE << 8
    out = np.empty(total_bytes + 8, np.uint8)
    np.ndarray((total_bytes + 1,), "<u8", out.data, 0, (1,))[places.reshape(-1)] = words.reshape(-1)
    marks = starts[2 * batches]
    out[marks - 2], out[marks - 1] = _APPENDS, _MARK
    begin = int(num_before == 0)  # nothing is appended before the first MARK
    return out[begin:total_bytes].tobytes(), starts - begin


# --- reading -----------------------------------------------------------------------------------------------------


def decode_pairs(buffer: NDArray[np.uint8], *, path: str, offset_bytes: int = 0, limit: int | None = None) -> IntArray:
    """int64[k, 2]: the pairs of a pickled list that fills `buffer` exactly.

    Memory: 16 bytes a pair, so at most 4 times the buffer, and 24 times where the list holds tuples twice.

    Args:
        buffer: uint8[n_bytes], such as a mapped file.
        path: file that the bytes come from, for errors.
        offset_bytes: place of the buffer in that file, for errors.
        limit: stop after this many pairs and leave the rest unread.

    Raises:
        UnsafeData: an opcode that would run code.
        Truncated: the pickle ends early.
        TooLarge: a number of 2^63 or more.
        Corrupt: anything else that no such list holds.
    """
    reader = _Reader(np.ascontiguousarray(buffer), path, offset_bytes, limit)
    reader.read_list()
    return reader.pairs()


def first_pair(head: bytes) -> tuple[int, int] | None:
    """The first pair of a list, from the first 64 bytes of its pickle; None where they hold none."""
    # The first frame, and whatever stands behind the first pair, may be cut off here.
    reader = _Reader(np.frombuffer(head[:2] + head[11:] if head[2:3] == b"\x95" else head, np.uint8), "", 0, 1)
    with contextlib.suppress(FormatError, UnsafeData):
        reader.read_list()
    pairs = reader.pairs()
    return (int(pairs[0, 0]), int(pairs[0, 1])) if len(pairs) else None


def ends_like_pickle(tail: bytes) -> bool:
    """Whether the last bytes of a file could end a pickled list of pairs."""
    return tail.endswith((b"e.", b"a.", b"]\x94.", b"]."))


class _Reader:
    """Runs of plain pairs by numpy; whatever stands between them opcode by opcode."""

    __slots__ = (
        "_base_bytes", "_buffer", "_count", "_list_memos", "_memos", "_most", "_pairs", "_path",
        "_place", "_repeats", "_size", "_slow_pairs", "_view",
    )  # fmt: skip

    def __init__(self, buffer: NDArray[np.uint8], path: str, offset_bytes: int, limit: int | None) -> None:
        self._buffer = buffer
        self._view = buffer.data
        self._size = len(buffer)
        self._path = path
        self._base_bytes = offset_bytes
        self._most = _MAX if limit is None else limit
        # Each tuple ends in a TUPLE2 and takes five bytes or more.
        most_tuples = min(self._most, _count_byte(buffer, _TUPLE2), self._size // 5)
        self._pairs = np.empty((most_tuples, 2), np.int64)
        self._count = 0
        self._repeats = 0
        self._memos = 0
        self._list_memos = 0
        self._place = 0
        self._slow_pairs = 0

    def pairs(self) -> IntArray:
        """What was read so far, with tuples that stand there again put in."""
        pairs = self._pairs[: self._count]
        if self._repeats:
            again = np.flatnonzero(pairs[:, 1] == _REPEAT)
            pairs[again] = pairs[pairs[:, 1] != _REPEAT][pairs[again, 0]]
        return pairs

    def read_list(self) -> None:
        if self._byte() != _PROTO or not 2 <= self._byte() <= 5:
            raise self._corrupt("this is no pickle of protocol 2 to 5", 0)
        if (opcode := self._opcode()) != _LIST:
            raise self._refusal(opcode, "a list")
        self._list_memos = int(self._memo_put())
        while self._count < self._most:
            opcode = self._opcode()
            if opcode == _STOP:
                if self._place != self._size:
                    raise self._corrupt("bytes follow the end of the pickle", self._place)
                return
            if opcode == _MARK:
                self._read_group()
            else:
                self._read_pair(opcode)
                if (opcode := self._opcode()) != _APPEND:
                    raise self._refusal(opcode, "APPEND")

    def _read_group(self) -> None:
        """Pairs up to APPENDS, or more groups of them."""
        while self._count < self._most:
            if self._slow_pairs:
                self._slow_pairs -= 1
            else:
                self._read_run()
            opcode = self._opcode()
            if opcode == _APPENDS:
                return
            self._read_pair(opcode)

    def _read_run(self) -> None:
        """As many plain pairs as one window holds, at once."""
        pairs, length_bytes = _scan_run(self._buffer[self._place : self._place + _WINDOW_BYTES])
        if len(pairs) < _SHORT_RUN:
            # Odd opcodes or unlucky numbers: go on one by one for a while, so that the time stays linear.
            self._slow_pairs = _SLOW_PAIRS
        pairs = pairs[: self._most - self._count]
        self._reserve(len(pairs))
        self._pairs[self._count : self._count + len(pairs)] = pairs
        self._count += len(pairs)
        self._memos += len(pairs)
        self._place += length_bytes

    def _read_pair(self, opcode: int) -> None:
        """One tuple whose first opcode is read already."""
        if opcode in (_BINGET, _LONG_BINGET):
            return self._read_repeat(1 if opcode == _BINGET else 4)
        first = self._read_number(opcode)
        second = self._read_number(self._opcode())
        if (opcode := self._opcode()) != _TUPLE2:
            raise self._refusal(opcode, "a pair of numbers")
        self._memos += self._memo_put()
        self._add(first, second)

    def _read_repeat(self, size_bytes: int) -> None:
        start = self._place - 1
        tuple_number = self._unsigned(size_bytes) - self._list_memos
        known = self._count - self._repeats
        if self._memos != known or not 0 <= tuple_number < known:
            raise self._corrupt("the list repeats a tuple that it does not hold", start)
        self._repeats += 1
        self._add(tuple_number, _REPEAT)

    def _add(self, first: int, second: int) -> None:
        self._reserve(1)
        self._pairs[self._count] = first, second
        self._count += 1

    def _reserve(self, more: int) -> None:
        if self._count + more > len(self._pairs):
            grown = np.empty((max(self._count + more, 2 * len(self._pairs)), 2), np.int64)
            grown[: self._count] = self._pairs[: self._count]
            self._pairs = grown

    def _read_number(self, opcode: int) -> int:
        start = self._place - 1
        if opcode == _LONG1:
            size_bytes = self._byte()
            value = int.from_bytes(self._bytes(size_bytes), "little", signed=True)
        elif kind := int(_KIND[opcode]):
            value = int.from_bytes(self._bytes(int(_PAYLOAD_BYTES[kind])), "little", signed=opcode == _BININT)
        else:
            raise self._refusal(opcode, "a number")
        if value < 0:
            raise self._corrupt("a negative number in the index", start, found=value)
        if value > _MAX:
            raise TooLarge(
                "a number in the index is too large",
                path=self._path,
                offset_bytes=self._base_bytes + start,
                found=f"a number of {value.bit_length()} bits",
                expected="63 bits at most",
            )
        return value

    def _memo_put(self) -> bool:
        """Read a memo put, where one stands here."""
        if self._place >= self._size:
            return False
        opcode = self._view[self._place]
        if opcode not in (_MEMOIZE, _BINPUT, _LONG_BINPUT):
            return False
        self._place += 1
        if opcode != _MEMOIZE:
            number = self._unsigned(1 if opcode == _BINPUT else 4)
            expected = self._list_memos + self._memos
            if number != expected:
                raise self._corrupt("a memo number out of turn", self._place, found=number, expected=expected)
        return True

    # --- bytes ---------------------------------------------------------------------------------------------------

    def _opcode(self) -> int:
        """The next opcode that is not a FRAME."""
        opcode = self._byte()
        while opcode == _FRAME:
            start = self._place - 1
            length_bytes = self._unsigned(8)
            if length_bytes > self._size - self._place:
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

    # --- refusals ------------------------------------------------------------------------------------------------

    def _truncated(self, start: int, expected: str) -> Truncated:
        found = f"{self._size - start} bytes to the end"
        offset_bytes = self._base_bytes + start
        return Truncated(
            "the pickled index ends early", path=self._path, offset_bytes=offset_bytes, found=found, expected=expected
        )

    def _corrupt(self, what: str, start: int, found: object = None, expected: object = None) -> Corrupt:
        offset_bytes = self._base_bytes + start
        return Corrupt(what, path=self._path, offset_bytes=offset_bytes, found=found, expected=expected)

    def _refusal(self, opcode: int, expected: str) -> PenstockError:
        start = self._place - 1
        name = _RUNS_CODE.get(opcode)
        if name is None:
            return self._corrupt("not a pickled list of pairs", start, f"the opcode 0x{opcode:02x}", expected)
        return UnsafeData(
            "the pickled index would run code",
            path=self._path,
            offset_bytes=self._base_bytes + start,
            found=f"the opcode {name}",
            expected=expected,
            hint="Do not open this file with pickle; an index holds nothing but numbers",
        )


def _count_byte(buffer: NDArray[np.uint8], value: int) -> int:
    step = 1 << 20
    return sum(int(np.count_nonzero(buffer[start : start + step] == value)) for start in range(0, len(buffer), step))


def _scan_run(window: NDArray[np.uint8]) -> tuple[IntArray, int]:
    """The pairs of plain tuples that stand back to back from the window's start, and the bytes that they take.

    Every `86 94` may end a tuple, so a tuple may start behind each; reading both numbers from every such place tells
    where its tuple truly ends. What counts is the unbroken chain from the window's start. An `86 94` inside a number
    is a false end: the chain jumps over it.
    """
    data = np.zeros(len(window) + _PAD_BYTES, np.uint8)
    data[: len(window)] = window
    ends = np.flatnonzero((data[:-1] == _TUPLE2) & (data[1:] == _MEMOIZE))
    if len(ends) == 0:
        return np.empty((0, 2), np.int64), 0
    starts = np.concatenate([np.zeros(1, np.int64), _after_separators(data, ends[:-1] + 2)])
    words = np.ndarray((len(data) - 7,), "<u8", data.data, 0, (1,))
    first, places, valid = _numbers_at(data, words, starts)
    second, places, second_valid = _numbers_at(data, words, places)
    valid &= second_valid & (data[places] == _TUPLE2) & (data[places + 1] == _MEMOIZE)
    stops = _after_separators(data, places + 2)

    jumps = valid[:-1] & (stops[:-1] > starts[1:])
    if jumps.any():
        keep = np.ones(len(starts), np.bool_)
        keep[1:] = ~jumps
        keep[2:] |= jumps[:-1]  # what a false start jumps over may well be true
        starts, stops, valid = starts[keep], stops[keep], valid[keep]
        first, second = first[keep], second[keep]
    broken = np.flatnonzero(~valid | np.append(stops[:-1] != starts[1:], True))
    count = int(broken[0]) + int(valid[broken[0]])
    return np.stack([first[:count], second[:count]], 1).view(np.int64), int(stops[count - 1]) if count else 0


def _after_separators(data: NDArray[np.uint8], places: IntArray) -> IntArray:
    """int64[k]: each place, moved behind the `APPENDS MARK` that may stand there."""
    return places + 2 * ((data[places] == _APPENDS) & (data[places + 1] == _MARK))


def _numbers_at(
    data: NDArray[np.uint8], words: NDArray[np.uint64], places: IntArray
) -> tuple[NDArray[np.uint64], IntArray, NDArray[np.bool_]]:
    """The numbers whose opcodes stand at `places`: their values, where they end, and whether they are numbers."""
    opcodes = data[places]
    kinds = _KIND[opcodes]
    long = np.flatnonzero(opcodes == _LONG1)
    if len(long):
        sizes = data[places[long] + 1]
        kinds[long] = np.where((sizes >= 1) & (sizes <= 8), sizes + 3, 0)
    payload = places + _SKIP_BYTES[kinds]
    values = words[payload] & _VALUE_MASK[kinds]
    return values, payload + _PAYLOAD_BYTES[kinds], (kinds > 0) & ((values & _SIGN_BIT[kinds]) == 0)

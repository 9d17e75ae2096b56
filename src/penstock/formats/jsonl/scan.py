r"""Find the lines in a range of bytes and validate them as JSON by Python's own rules.

Only `\n` ends a line; the last one may lack it. A line is valid if `json.loads(line)` accepts it, which includes
scalars, NaN, a byte order mark, duplicate keys and lone surrogates. msgspec checks whole blocks first. Its verdict only
counts if it can't be laxer than `json`: it checks neither the encoding inside strings nor the length of integers.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock._secrets import redact
from penstock.errors import Truncated
from penstock.formats.jsonl.long_lines import PIECE_BYTES, fault_of_pieces
from penstock.store.base import Store
from penstock.types import IntArray

BLOCK_BYTES = 1 << 20
MOST_FAULTS = 100
_SLICE_BYTES = 1 << 19
_NEWLINE = 0x0A
_DIGITS_STEP = 64
_MOST_DIGITS = 4300
_DEEP = 900
_skip = msgspec.json.Decoder(msgspec.Raw).decode


@dataclass(frozen=True, slots=True)
class LineRange:
    """Unit of work: the lines that begin in bytes `[start_bytes, stop_bytes)` of a file of `size_bytes`.

    Attributes:
        validate: check that each line is JSON; otherwise only find line ends.
        stop_at_fault: stop at the first invalid line.
    """

    store: Store
    path: str
    start_bytes: int
    stop_bytes: int
    size_bytes: int
    validate: bool = True
    stop_at_fault: bool = False

    @property
    def described(self) -> str:
        return f"{redact(self.path)}, bytes {self.start_bytes} to {self.stop_bytes}"


@dataclass(frozen=True, slots=True)
class Fault:
    """Invalid line: its number in its range, from 0, its offset and the reason."""

    line: int
    offset_bytes: int
    length_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lines:
    r"""Lines of a range.

    Attributes:
        pairs: int64[k, 2]: start and length in bytes of each valid line, without its `\n`.
        num_lines: number of valid and invalid lines.
        num_faults: number of invalid lines.
        faults: the first `MOST_FAULTS` invalid lines.
    """

    pairs: IntArray
    num_lines: int
    num_faults: int
    faults: tuple[Fault, ...]


def scan_lines(work: LineRange) -> Lines:
    """Return the lines of a range. Memory: 16 bytes per line and a few MB; longer lines are checked in pieces.

    Raises:
        Truncated: the file is shorter than `size_bytes`.
    """
    if not work.validate:
        pairs = _line_pairs(work)
        return Lines(pairs, len(pairs), 0, ())
    runs = [np.empty((0, 2), np.int64)]
    faults: list[Fault] = []
    num_lines = num_faults = 0
    for offset_bytes, block, used_bytes in line_runs(work, BLOCK_BYTES, in_pieces=True):
        if block:
            pairs, reasons = _checked_lines(block[:used_bytes])
        else:
            pairs, reasons = _checked_long_line(work, offset_bytes, used_bytes)
        pairs[:, 0] += offset_bytes
        for row, reason in reasons.items():
            if len(faults) < MOST_FAULTS:
                faults.append(Fault(num_lines + row, int(pairs[row, 0]), int(pairs[row, 1]), reason))
        num_lines += len(pairs)
        num_faults += len(reasons)
        runs.append(np.delete(pairs, list(reasons), 0) if reasons else pairs)
        if reasons and work.stop_at_fault:
            break
    return Lines(np.concatenate(runs), num_lines, num_faults, tuple(faults))


def fault_of(line: bytes) -> str | None:
    """Return why Python's JSON reader rejects a line, or None if it is valid."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return (
            f"{error.msg.removesuffix(' at')}, character {error.pos + 1} of the line"
            if line.strip()
            else "a blank line"
        )
    except UnicodeDecodeError as error:
        return f"not UTF-8, byte {error.start + 1} of the line"
    except RecursionError:
        return "nested too deeply for Python's JSON reader"
    except ValueError:
        return f"an integer of more than {_MOST_DIGITS} digits"
    return None


# --- line ends ---------------------------------------------------------------------------------------------------


def _line_pairs(work: LineRange) -> IntArray:
    """Return int64[k, 2], start and length of the lines that begin in the range, without holding a line in memory."""
    borders = [np.array([-1] if work.start_bytes == 0 else [], np.int64)]
    borders += _newlines(work, max(0, work.start_bytes - 1), work.stop_bytes)
    ends = np.concatenate(borders)
    if len(ends) and ends[-1] != work.stop_bytes - 1:
        # The last line ends after the range, or at the end of the file.
        behind = next(_newlines(work, work.stop_bytes, work.size_bytes), [work.size_bytes])
        ends = np.append(ends, behind[0])
    pairs = np.empty((max(0, len(ends) - 1), 2), np.int64)
    pairs[:, 0] = ends[:-1] + 1
    pairs[:, 1] = ends[1:] - pairs[:, 0]
    return pairs


def _newlines(work: LineRange, start_bytes: int, stop_bytes: int) -> Iterator[IntArray]:
    # Read instead of mapped: truncation is then an error instead of killing the process, at the same speed.
    finder = NewlineFinder()
    for place in range(start_bytes, stop_bytes, _SLICE_BYTES):
        piece = np.frombuffer(_read(work, place, min(_SLICE_BYTES, stop_bytes - place)), np.uint8)
        found = finder.find(piece)
        if len(found):
            yield found + place


class NewlineFinder:
    """Finds line ends. Memory: one byte per byte of the longest piece."""

    __slots__ = ("_is_newline",)

    def __init__(self) -> None:
        self._is_newline = np.zeros(_SLICE_BYTES, np.bool_)

    def find(self, piece: NDArray[np.uint8]) -> IntArray:
        """Return int64[k], the offsets of line ends in uint8[n]."""
        # The comparison fits the CPU cache. Groups of eight bytes without a line end are skipped at once.
        if len(piece) > len(self._is_newline):
            self._is_newline = np.zeros(-(-len(piece) // 8) * 8, np.bool_)
        is_newline = self._is_newline
        np.equal(piece, _NEWLINE, out=is_newline[: len(piece)])
        is_newline[len(piece) :] = False
        rows = np.flatnonzero(is_newline.view(np.uint64) != 0)
        found = np.flatnonzero(is_newline.reshape(-1, 8)[rows])
        return 8 * rows[found >> 3] + (found & 7)


# --- blocks of whole lines ---------------------------------------------------------------------------------------


def line_blocks(work: LineRange) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of runs of whole lines: all lines that begin in the range."""
    for place, block, used_bytes in line_runs(work, BLOCK_BYTES):
        yield place, block[:used_bytes]


def line_runs(work: LineRange, block_bytes: int, *, in_pieces: bool = False) -> Iterator[tuple[int, bytes, int]]:
    """Yield `(offset, bytes, size of the whole lines in them)`, which avoids a copy of the whole lines.

    With `in_pieces`, a line longer than a block is yielded as its offset, `b""` and its length including the line end.
    """
    place = _first_line(work)
    want_bytes = block_bytes
    while place < work.stop_bytes:
        block = _read(work, place, want_bytes)
        at_end = place + len(block) == work.size_bytes
        # The last line of the range begins before `stop_bytes`, so it ends at the first newline from there on.
        last = block.find(b"\n", max(0, work.stop_bytes - 1 - place)) if work.stop_bytes < work.size_bytes else -1
        used_bytes = (last if last >= 0 else block.rfind(b"\n")) + 1
        if last < 0 and at_end:
            used_bytes = len(block)
        if used_bytes == 0 and in_pieces:
            block, used_bytes = b"", _line_stop(work, place + len(block)) - place
        elif used_bytes == 0:
            want_bytes *= 2  # the block holds less than one line
            continue
        yield place, block, used_bytes
        place += used_bytes
        want_bytes = block_bytes


def _line_stop(work: LineRange, place: int) -> int:
    while place < work.size_bytes:
        piece = _read(work, place, PIECE_BYTES)
        if (found := piece.find(b"\n")) >= 0:
            return place + found + 1
        place += len(piece)
    return place


def line_pieces(work: LineRange, start_bytes: int, stop_bytes: int) -> Iterator[bytes]:
    for place in range(start_bytes, stop_bytes, PIECE_BYTES):
        yield _read(work, place, min(PIECE_BYTES, stop_bytes - place))


def _first_line(work: LineRange) -> int:
    if work.start_bytes == 0:
        return 0
    place = work.start_bytes - 1
    while place < work.stop_bytes - 1:
        block = _read(work, place, BLOCK_BYTES)
        newline = block.find(b"\n")
        if newline >= 0:
            return place + newline + 1
        place += len(block)
    return work.stop_bytes


def _read(work: LineRange, start_bytes: int, length_bytes: int) -> bytes:
    length_bytes = min(length_bytes, work.size_bytes - start_bytes)
    block = work.store.get(work.path, start_bytes, length_bytes)
    if len(block) < length_bytes:
        raise _shorter(work, start_bytes + len(block))
    return block


def _shorter(work: LineRange, size_bytes: int) -> Truncated:
    expected = f"{work.size_bytes} bytes"
    what = "the file became shorter while it was being read"
    return Truncated(what, path=work.path, offset_bytes=size_bytes, expected=expected)


def _checked_lines(block: bytes) -> tuple[IntArray, dict[int, str]]:
    lines = block.split(b"\n")
    if block.endswith(b"\n"):
        lines.pop()
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    pairs = np.stack([np.cumsum(lengths + 1) - lengths - 1, lengths], 1)
    doubtful = maybe_deep(lines, lengths) if _fast_check(block, lines) else range(len(lines))
    reasons = ((row, fault_of(lines[row])) for row in doubtful)
    return pairs, {row: reason for row, reason in reasons if reason is not None}


def _checked_long_line(work: LineRange, place: int, length_bytes: int) -> tuple[IntArray, dict[int, str]]:
    """Check one line longer than a block; its length includes its line end, if any."""
    stop_bytes = place + length_bytes
    length_bytes -= _read(work, stop_bytes - 1, 1) == b"\n"
    reason = fault_of_pieces(line_pieces(work, place, place + length_bytes))
    return np.array([[0, length_bytes]], np.int64), {} if reason is None else {0: reason}


def _fast_check(block: bytes, lines: list[bytes]) -> bool:
    """Return true if all lines are valid, except for deep nesting. False is inconclusive."""
    if not believable(block, lines):
        return False
    try:
        deque(map(_skip, lines), 0)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def believable(block: bytes, lines: list[bytes]) -> bool:
    """Return true if msgspec can't be laxer than `json` on the lines of a block, except for deep nesting.

    See `maybe_deep`.
    """
    return not _may_hold_long_integer(block) and (block.isascii() or _are_utf8(lines))


def _are_utf8(lines: list[bytes]) -> bool:
    # Per line: a single wide character would make the text of a whole block four times as wide.
    try:
        for line in lines:
            if not line.isascii():
                line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _may_hold_long_integer(block: bytes) -> bool:
    """Return true if a run of digits may exceed Python's limit, judged by every 64th byte."""
    looked_at = np.frombuffer(block, np.uint8)[::_DIGITS_STEP]
    others = np.flatnonzero((looked_at < ord("0")) | (looked_at > ord("9")))
    runs = np.diff(others, prepend=-1, append=len(looked_at)) - 1
    return int(runs.max()) >= _MOST_DIGITS // _DIGITS_STEP


def maybe_deep(lines: list[bytes], lengths: IntArray) -> list[int]:
    """Return the rows of lines that may be nested so deeply that `json` and msgspec disagree."""
    long = np.flatnonzero(lengths >= 2 * _DEEP).tolist()
    return [row for row in long if lines[row].count(b"[") + lines[row].count(b"{") >= _DEEP]


_NUMBERED_BYTES = 1 << 24


def line_numbers(source: Any, indices: IntArray) -> IntArray:
    """Return int64[k], the line numbers, from 0, of samples of a JSONL source; reads the text up to the last of them.

    Args:
        source: a source with `text` and `line_ranges`; see `penstock.reshape.rows.Lines`.
        indices: int64[k]: indices of samples.
    """
    store, path = source.text
    starts = np.asarray(source.line_ranges()[indices, 0], np.int64)
    order, found, before = np.argsort(starts), np.zeros(len(starts), np.int64), 0
    starts, size_bytes = starts[order], store.size(path)
    for first in range(0, int(starts[-1]) if len(starts) else 0, _NUMBERED_BYTES):
        ends = np.flatnonzero(
            np.frombuffer(store.get(path, first, min(_NUMBERED_BYTES, size_bytes - first)), np.uint8) == 0x0A
        )
        here = (starts > first) & (starts <= first + _NUMBERED_BYTES)
        found[order[here]] = before + np.searchsorted(ends, starts[here] - first)
        before += len(ends)
    return found

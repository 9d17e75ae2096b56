"""Lines of unindexed text, at a share of its bytes or at a byte offset, without scanning the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from penstock.errors import PenstockError, Unsupported
from penstock.formats.jsonl.decompress import reader_of
from penstock.formats.jsonl.source import decode_line
from penstock.formats.jsonl.text import compression_of
from penstock.store.base import Store
from penstock.store.place import Place
from penstock.view.facts.bounds import IN_LIST, MOST_JSON_BYTES, Bounds
from penstock.view.facts.opening import Opened
from penstock.view.facts.panel import Panels, describe_error, panel, panels

BLOCK_BYTES = 1 << 20
"""Bytes per read, until there are enough lines."""

MOST_LINES_OF_PACKED = 8
"""Lines at the beginning of a compressed file, which can't be read in the middle."""

_MOST_PIECES = 16
_MOST_FAR_FILES = 16  # each is a request


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        start_bytes: start in its file, or in the decompressed content.
        at_bytes: its offset for requests, counted over all stored files.
        sample: its content.
    """

    start_bytes: int
    length_bytes: int
    at_bytes: int
    sample: Panels


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive lines of one file."""

    path: str
    lines: tuple[Line, ...]
    is_packed: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive lines of one or several files.

    Attributes:
        runs: whole lines; lines longer than 16 MiB are cut and marked.
        start_bytes, stop_bytes: their range, counted over all stored files.
        of_bytes: total bytes of all files; `of_files`: number of files.
    """

    runs: tuple[Run, ...]
    start_bytes: int
    stop_bytes: int
    of_bytes: int
    of_files: int

    @property
    def share(self) -> float:
        """Relative position of its start in the data."""
        return self.start_bytes / self.of_bytes if self.of_bytes else 0.0


def lines_at(opened: Opened, share: float | None, byte: int, most: int, bounds: Bounds = IN_LIST) -> Stretch:
    """Return the lines that begin at an offset or after it, from as many files as necessary.

    Memory: at most 16 MiB of stored bytes.

    Args:
        opened: a JSONL dataset.
        share: position as a share of the bytes, 0 to 1; None: at `byte`.
        byte: offset counted over all files, in byte order of their paths.
        most: maximum number of lines, and of files.
        bounds: limits per line.

    Raises:
        Unsupported: the data has its own index.
        NotFound: a file doesn't exist any more.
    """
    store, files = _files(opened)
    stops = opened.text_stops
    total = int(stops[-1]) if len(stops) else 0
    at = first = min(max(0, byte if share is None else int(share * total)), max(0, total - 1))
    begin = min(int(np.searchsorted(stops, at, side="right")), len(files) - 1)
    runs: list[Run] = []
    left, left_bytes = most, MOST_JSON_BYTES
    for number in range(begin, min(len(files), begin + (most if store.is_local else _MOST_FAR_FILES))):
        before = int(stops[number - 1]) if number else 0
        size = int(stops[number]) - before
        run, stop = _run_at(Place(store, files[number]), max(at, before) - before, before, size, left, bounds)
        if not runs:
            first = run.lines[0].at_bytes if run.lines else at
        at = before + stop
        runs += [run] if run.lines or run.error else []
        left -= len(run.lines) or bool(run.error)
        left_bytes -= sum(line.length_bytes for line in run.lines)
        if left <= 0 or left_bytes <= 0 or stop < size:
            break
    return Stretch(tuple(runs), first, at, total, len(files))


def _files(opened: Opened) -> tuple[Store, Sequence[str]]:
    found = opened.text_files
    if found is None or opened.place is None:
        hint = f"`penstock info {opened.shell_name}` creates the index in one pass over the data"
        raise Unsupported("this data needs an index, which doesn't exist", path=opened.name, hint=hint)
    return found


def _run_at(file: Place, at: int, before: int, size: int, most: int, bounds: Bounds) -> tuple[Run, int]:
    """Return lines of a file from an offset on, and their end; errors are recorded in the run."""
    compression = compression_of(file.path)
    try:
        if compression is not None:
            return Run(file.shown, tuple(_packed(file, compression, before, most, bounds)), is_packed=True), size
        start = _line_start(file, at, size)
        lines, stop = _lines(file, start, size, most, bounds)
        shown = (Line(low, length, before + low, sample) for low, length, sample in lines)
        return Run(file.shown, tuple(shown)), max(stop, start)
    except (PenstockError, OSError, ImportError) as error:
        return Run(file.shown, (), compression is not None, describe_error(error)), size


def _line_start(file: Place, at: int, size: int) -> int:
    """Return the start of the first line at `at` or after it; `at` if there is none nearby."""
    if at == 0:
        return 0
    look = at - 1
    while look < size and look - at < MOST_JSON_BYTES:
        block = bytes(file.store.get(file.path, look, min(BLOCK_BYTES, size - look)))
        found = block.find(b"\n")
        if found >= 0:
            return min(size, look + found + 1)
        look += len(block) or size
    return at


def _lines(file: Place, start: int, size: int, most: int, bounds: Bounds) -> tuple[list[tuple[int, int, Panels]], int]:
    """Return start, length and content of lines from `start` on, and the end of the last one."""
    data, at = b"", start
    while at + len(data) < size and len(data) < MOST_JSON_BYTES and data.count(b"\n") < most:
        block = bytes(file.store.get(file.path, at + len(data), min(BLOCK_BYTES, size - at - len(data))))
        if not block:
            break
        data += block
    return _cut(data, at, most, bounds, is_all=at + len(data) >= size)


def _packed(file: Place, compression: str, before: int, most: int, bounds: Bounds) -> Iterator[Line]:
    """Yield the first lines of a compressed file."""
    data, is_all = b"", True
    for piece in islice(reader_of(file, compression), _MOST_PIECES):
        data += piece
        is_all = len(data) < BLOCK_BYTES and data.count(b"\n") < MOST_LINES_OF_PACKED
        if not is_all:
            break
    lines, _ = _cut(data[:MOST_JSON_BYTES], 0, min(most, MOST_LINES_OF_PACKED), bounds, is_all=is_all)
    for start, length, sample in lines:
        yield Line(start, length, before, sample)


def _cut(data: bytes, at: int, most: int, bounds: Bounds, *, is_all: bool) -> tuple[list[tuple[int, int, Panels]], int]:
    """Split bytes into at most `most` lines; an incomplete last line is dropped unless it is the first."""
    found: list[tuple[int, int, Panels]] = []
    while len(found) < most and data:
        line, end, rest = data.partition(b"\n")
        if not end and not is_all and found:
            break
        found.append((at, len(line), _sample(line, bool(end) or is_all, bounds)))
        at, data = at + len(line) + len(end), rest
    return found, at


def _sample(line: bytes, is_whole: bool, bounds: Bounds) -> Panels:
    if not is_whole:
        shown = panel("line", line[: 4 * bounds.characters], bounds=bounds)
        return Panels(None, None, (shown,), 1, error=f"a line of more than {MOST_JSON_BYTES:,} bytes: its beginning")
    try:
        value = decode_line(line)
    except (ValueError, RecursionError) as error:
        return Panels(None, None, (panel("line", line, bounds=bounds),), 1, error=describe_error(error))
    return panels(value if isinstance(value, dict) else {"value": value}, bounds=bounds)

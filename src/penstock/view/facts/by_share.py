"""Lines of text that has no index: at a share of its bytes, or at one of them; nothing is looked through."""

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
"""So much is read at once, until there are lines enough."""

MOST_LINES_OF_PACKED = 8
"""Lines at the beginning of a compressed file, whose middle can't be looked at."""

_MOST_PIECES = 16
_MOST_FAR_FILES = 16  # each is a request


@dataclass(frozen=True, slots=True)
class Line:
    """A line.

    Attributes:
        start_bytes: where it begins in its file, or in the content of one that is compressed.
        length_bytes: of it.
        at_bytes: the place by which it is asked for, counted over all files as they are stored.
        sample: what it holds.
    """

    start_bytes: int
    length_bytes: int
    at_bytes: int
    sample: Panels


@dataclass(frozen=True, slots=True)
class Run:
    """Lines of one file.

    Attributes:
        path: of it.
        lines: in a row.
        is_packed: whether it is compressed: these are its first lines.
        error: why there are none.
    """

    path: str
    lines: tuple[Line, ...]
    is_packed: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Lines in a row, of one file or of several.

    Attributes:
        runs: of whole lines; a longer one than 16 MiB is cut, and says so.
        start_bytes, stop_bytes: where they lie, counted over all files as they are stored.
        of_bytes: of all files; `of_files`: how many there are.
    """

    runs: tuple[Run, ...]
    start_bytes: int
    stop_bytes: int
    of_bytes: int
    of_files: int

    @property
    def share(self) -> float:
        """How far into the data it begins."""
        return self.start_bytes / self.of_bytes if self.of_bytes else 0.0


def lines_at(opened: Opened, share: float | None, byte: int, most: int, bounds: Bounds = IN_LIST) -> Stretch:
    """The lines from the first one on that begins at a place or behind it, of as many files as it takes.

    Memory: at most 16 MiB as they are stored.

    Args:
        opened: a JSONL dataset.
        share: of its bytes, 0 to 1; None: at `byte`.
        byte: counted over all files, in byte order of their paths.
        most: lines; and files.
        bounds: how much is shown of each.

    Raises:
        Unsupported: such data have an index of their own.
        NotFound: a file is gone.
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
    """Lines of a file from a place on, and where the last one ends; what is wrong with a file is told in its place."""
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
    """The first byte of the first line that begins at `at` or behind it; `at` where there is none near."""
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
    """Start, length and content of lines from `start` on, and where the last one ends."""
    data, at = b"", start
    while at + len(data) < size and len(data) < MOST_JSON_BYTES and data.count(b"\n") < most:
        block = bytes(file.store.get(file.path, at + len(data), min(BLOCK_BYTES, size - at - len(data))))
        if not block:
            break
        data += block
    return _cut(data, at, most, bounds, is_all=at + len(data) >= size)


def _packed(file: Place, compression: str, before: int, most: int, bounds: Bounds) -> Iterator[Line]:
    """The first lines of a compressed file."""
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
    """The lines of a run of bytes, at most so many; a last one that goes on is left out, but where it is the first."""
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

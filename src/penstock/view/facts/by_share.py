"""Lines of text that has no index: at a share of its bytes, or at one of them; nothing is looked through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.abc import Store
from penstock.errors import Unsupported
from penstock.formats.jsonl.source import decode_line
from penstock.store.place import Place
from penstock.view.facts.bounds import IN_LIST, MOST_JSON_BYTES, Bounds
from penstock.view.facts.opening import Opened
from penstock.view.facts.panel import Panels, describe_error, panel, panels

BLOCK_BYTES = 1 << 20
"""So much is read at once, until there are lines enough."""

_PACKED = (".gz", ".zst")


@dataclass(frozen=True, slots=True)
class Line:
    """A line: where it begins in its file, how long it is, and what it holds."""

    start_bytes: int
    length_bytes: int
    sample: Panels


@dataclass(frozen=True, slots=True)
class Stretch:
    """Lines in a row.

    Attributes:
        lines: whole ones; a longer one than 16 MiB is cut, and says so.
        path: of the file that they lie in.
        start_bytes, stop_bytes: where they lie, counted over all files.
        of_bytes: of all files.
    """

    lines: tuple[Line, ...]
    path: str
    start_bytes: int
    stop_bytes: int
    of_bytes: int

    @property
    def share(self) -> float:
        """How far into the data it begins."""
        return self.start_bytes / self.of_bytes if self.of_bytes else 0.0


def lines_at(opened: Opened, share: float | None, byte: int, most: int, bounds: Bounds = IN_LIST) -> Stretch:
    """The lines from the first one on that begins at a place or behind it.

    Memory: at most 16 MiB as they are stored.

    Args:
        opened: a JSONL dataset.
        share: of its bytes, 0 to 1; None: at `byte`.
        byte: counted over all files, in byte order of their paths.
        most: lines.
        bounds: how much is shown of each.

    Raises:
        Unsupported: such data have an index of their own, or are compressed.
    """
    store, files = _files(opened)
    stops = opened.text_stops
    total = int(stops[-1])
    at = min(max(0, byte if share is None else int(share * total)), max(0, total - 1))
    number = min(int(np.searchsorted(stops, at, side="right")), len(files) - 1)
    before = int(stops[number - 1]) if number else 0
    file = Place(store, files[number])
    size = file.store.size(file.path)
    if file.name.endswith(_PACKED):
        hint = f"`penstock index {opened.shell_name}` finds its lines, in one pass over the data"
        raise Unsupported(
            "compressed text can't be looked at in the middle without an index", path=file.path, hint=hint
        )
    start = _line_start(file, at - before, size)
    lines, stop = _lines(file, start, size, most, bounds)
    return Stretch(tuple(lines), file.shown, before + start, before + stop, total)


def _files(opened: Opened) -> tuple[Store, Sequence[str]]:
    found = opened.text_files
    if found is None or opened.place is None:
        hint = f"`penstock info {opened.shell_name}` makes its index, in one pass over the data"
        raise Unsupported("these data are looked at by their index, which is not there", path=opened.name, hint=hint)
    return found


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


def _lines(file: Place, start: int, size: int, most: int, bounds: Bounds) -> tuple[list[Line], int]:
    """Lines from `start` on, and where the last one ends."""
    data, at = b"", start
    while at + len(data) < size and len(data) < MOST_JSON_BYTES and data.count(b"\n") < most:
        block = bytes(file.store.get(file.path, at + len(data), min(BLOCK_BYTES, size - at - len(data))))
        if not block:
            break
        data += block
    found: list[Line] = []
    while len(found) < most and data:
        line, end, rest = data.partition(b"\n")
        if not end and at + len(data) < size and found:
            break
        found.append(Line(at, len(line), _sample(line, bool(end) or at + len(data) >= size, bounds)))
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

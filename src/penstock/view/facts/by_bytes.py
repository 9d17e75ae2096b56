"""Samples of text that has no index, by their share of the bytes: nothing is looked through to find them.

Of a JSONL file of any size, a look at `73 %` reads some MB around that byte. Samples have no numbers then: they are
named by the byte at which they begin.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from penstock._printable import recordable
from penstock._secrets import redact
from penstock.abc import Store
from penstock.codec.media_bytes import stored_media
from penstock.errors import ConfigError, Unsupported
from penstock.formats._excluding import stored
from penstock.formats.jsonl.source import decode_line
from penstock.formats.jsonl.text import Text, compression_of
from penstock.view.facts.bounds import IN_LIST, MOST_JSON_BYTES, Bounds
from penstock.view.facts.opening import Opened
from penstock.view.facts.panel import Panels, describe_error, panels, stored_panel
from penstock.view.facts.samples import PAGE

MOST_FILES = 10_000
_WINDOW = 1 << 18


@dataclass(frozen=True, slots=True)
class Line:
    """A sample: the file that it is in, the byte at which it begins in all files together, and what it holds."""

    path: str
    offset_bytes: int
    sample: Panels


@dataclass(frozen=True, slots=True)
class Lines:
    """Samples in a row.

    Attributes:
        lines: of them, as many as were asked for, or fewer at the end.
        start_bytes: where the first one begins; `stop_bytes`: where the next one does.
        size_bytes: of all files together.
    """

    lines: tuple[Line, ...]
    start_bytes: int
    stop_bytes: int
    size_bytes: int

    @property
    def share(self) -> float:
        """Where the first one begins, as a share of all bytes."""
        return self.start_bytes / self.size_bytes if self.size_bytes else 0.0


def has_bytes(opened: Opened) -> bool:
    """Whether its samples can be looked at by their share of the bytes."""
    return bool(_files(opened))


def lines_at(
    opened: Opened, start_bytes: int, count: int = PAGE, *, show_all: bool = False, bounds: Bounds = IN_LIST
) -> Lines:
    """The samples that begin at or after a byte.

    Reads at most some 16 MiB more than these samples, of which one that is longer is not read whole.

    Args:
        opened: JSONL that is not compressed.
        start_bytes: in all files together; in the middle of a line, the next one is the first.
        count: at most so many.
        show_all, bounds: as of `penstock.view.facts.page`.

    Raises:
        Unsupported: the dataset is no such text.
        ConfigError: the byte is none of the data.
    """
    files = _files(opened)
    if not files:
        raise Unsupported("only JSONL that is not compressed is looked at by its bytes", path=opened.name)
    store, paths = files
    ends = list(accumulate(map(store.size, paths)))
    size_bytes = ends[-1]
    if not 0 <= start_bytes <= size_bytes:
        raise ConfigError("no such byte", found=start_bytes, expected=f"0 to {size_bytes}")
    found: list[Line] = []
    at = start_bytes
    for path, begin, end in zip(paths, [0, *ends], ends, strict=False):
        if at >= end or len(found) >= count:
            continue
        file = _File(store, path, end - begin)
        place = file.next_line(at - begin) if at > begin else 0
        while place < file.size_bytes and len(found) < count:
            stop = file.end_of(place)
            if stop > place:  # an empty line is none
                sample = _sample(file, place, stop, show_all, bounds, opened)
                found.append(Line(redact(recordable(path)), begin + place, sample))
            place = stop + 1 if stop - place <= MOST_JSON_BYTES else file.size_bytes
        at = begin + min(place, file.size_bytes)
    first = found[0].offset_bytes if found else size_bytes
    return Lines(tuple(found), first, at, size_bytes)


class _File:
    """One file, read in windows; the last one is kept."""

    def __init__(self, store: Store, path: str, size_bytes: int) -> None:
        self.store, self.path, self.size_bytes = store, path, size_bytes
        self._begin, self._data = 0, b""

    def next_line(self, place: int) -> int:
        """Where the first line at or after a byte begins."""
        return place if self._get(place - 1, 1) == b"\n" else self.end_of(place) + 1

    def end_of(self, place: int) -> int:
        """Where the line that holds a byte ends; of a line that is too long, some place behind it that is in it."""
        at = place
        while at < self.size_bytes and at - place <= MOST_JSON_BYTES:
            data = self._get(at, _WINDOW)
            found = data.find(b"\n")
            if found >= 0:
                return at + found
            at += len(data)
            if not data:
                break
        return min(at, self.size_bytes)

    def get(self, start: int, stop: int) -> bytes:
        """The bytes of a line."""
        return self._get(start, stop - start)

    def _get(self, start: int, length: int) -> bytes:
        stop = min(self.size_bytes, start + length)
        if not (self._begin <= start and stop <= self._begin + len(self._data)):
            wide = min(self.size_bytes, max(stop, start + _WINDOW))
            self._begin, self._data = start, self.store.get(self.path, start, wide - start)
        return self._data[start - self._begin : stop - self._begin]


def _sample(file: _File, start: int, stop: int, show_all: bool, bounds: Bounds, opened: Opened) -> Panels:
    try:
        if stop - start > MOST_JSON_BYTES:
            made = stored_panel("sample", stored_media(file.store, file.path, start, stop - start), bounds=bounds)
            return Panels(None, None, (dataclasses.replace(made, note="too long to be read at once"),), 1)
        value: Any = decode_line(file.get(start, stop))
        sample = value if isinstance(value, dict) else {"value": value}
        return panels(sample, show_all=show_all, decode=opened.decode, bounds=bounds)
    except Exception as error:  # a line that is no JSON stands in its place
        text = stored_panel("stored bytes", stored_media(file.store, file.path, start, stop - start), bounds=bounds)
        return Panels(None, None, (text,), 1, error=f"this line is no JSON: {describe_error(error)}")


def _files(opened: Opened) -> tuple[Store, Sequence[str]] | None:
    """The store and the files of a text that is not compressed; None for anything else."""
    source: Any = stored(opened.source)
    if opened.place is None or not opened.format.startswith("jsonl") or not hasattr(source, "text"):
        return None
    store, path = source.text
    files: Sequence[str] = store.files if isinstance(store, Text) else (path,)
    if len(files) > MOST_FILES or any(compression_of(one) is not None for one in files):
        return None
    return (store.base if isinstance(store, Text) else store), files

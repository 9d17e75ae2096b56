"""What lies on disk: files with their sizes, and how samples are dealt to shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from penstock._secrets import redact
from penstock.errors import Denied, Unsupported
from penstock.formats import files_at
from penstock.formats._exclusions import stored
from penstock.store.place import Place
from penstock.types import IntArray
from penstock.view.facts.figures import Figure

MOST_FILES, MOST_REMOTE_FILES = 1000, 32
"""Files whose sizes are asked for; of data that are far away, each is a request."""

_INDEXED = ("mds", "csv", "tsv", "xsv", "json-shards")
"""Formats whose index says the size of each file."""

MOST_BARS = 256
ODD = 8


@dataclass(frozen=True, slots=True)
class FileSize:
    """A file: its path from the dataset's folder, or its name."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Disk:
    """The files of a dataset.

    Attributes:
        size_bytes: of all of them.
        files: the first ones, in byte order of their paths.
        of: how many there are; None where there are more than were listed.
    """

    size_bytes: Figure
    files: tuple[FileSize, ...]
    of: int | None


@dataclass(frozen=True, slots=True)
class Bar:
    """Some shards in a row: numbers of the first and the last, and the fewest and the most samples of one of them."""

    first: int
    last: int
    fewest: int
    most: int


@dataclass(frozen=True, slots=True)
class Shards:
    """How samples are dealt to shards, or other blocks of the storage.

    Attributes:
        count: how many shards.
        fewest, median, most: samples of one.
        bars: at most 256, each of one shard or of as many as it takes.
        odd: numbers and samples of shards, the last one left out, that hold less than half or more than twice the
            median; the first 8.
        num_odd: how many of these there are.
    """

    count: int
    fewest: int
    median: int
    most: int
    bars: tuple[Bar, ...]
    odd: tuple[tuple[int, int], ...]
    num_odd: int


def disk_of_listed(place: Place, files: Sequence[str], stops: IntArray) -> Disk:
    """The files of a dataset that were listed when it was opened.

    Args:
        place: where it is.
        files: their paths.
        stops: int64[n_files]: bytes up to the end of each.
    """
    shown = files[:MOST_FILES]
    sizes = np.diff(stops[: len(shown)], prepend=0).tolist()
    first = tuple(FileSize(_name_in(place, path), size) for path, size in zip(shown, sizes, strict=True))
    return Disk(Figure(int(stops[-1]) if len(stops) else 0, "file sizes"), first, len(files))


def disk_of(place: Place, format: str, source: Any, known_bytes: int | None) -> Disk:
    """The files of a dataset.

    Args:
        place: where it is.
        format: of it.
        source: it is open.
        known_bytes: what a side file says.
    """
    most = MOST_FILES if place.is_local else MOST_REMOTE_FILES
    try:
        names = list(islice(_names(place, format), most + 1))
    except (Unsupported, Denied):  # a web server lists nothing
        return Disk(_told(format, source, known_bytes, "the files can't be listed here"), (), None)
    files = tuple(_sizes(place, names[:most]))
    if len(names) <= most:
        told = Figure(sum(one.size_bytes for one in files), "file sizes")
        if len(files) < len(names):
            told = _told(format, source, known_bytes, "some files aren't accessible")
        return Disk(told, files, len(names))
    return Disk(_told(format, source, known_bytes, f"more than {most:,} files"), files, None)


def _told(format: str, source: Any, known_bytes: int | None, why_not: str) -> Figure:
    """What a side file or an index says of the bytes of all files, without a look at them."""
    if known_bytes is not None:
        return Figure(known_bytes, "side file")
    if format in _INDEXED:
        return Figure(stored(source).size_bytes, "index")
    return Figure(None, why_not)


def shards_of(source: Any) -> Shards | None:
    """How samples are dealt to the storage's blocks; None where it has none, or one."""
    starts = getattr(stored(source), "block_starts", None)
    if starts is None or len(starts) < 3:
        return None
    counts: IntArray = np.diff(np.asarray(starts, np.int64))
    median = int(np.median(counts))
    inner = counts[:-1]
    odd = np.flatnonzero((inner * 2 < median) | (inner > 2 * median))
    width = -(-len(counts) // MOST_BARS)
    borders = range(0, len(counts), width)
    bars = (Bar(at, min(at + width, len(counts)) - 1, *_ends(counts[at : at + width])) for at in borders)
    named = tuple((int(number), int(counts[number])) for number in odd[:ODD])
    return Shards(len(counts), int(counts.min()), median, int(counts.max()), tuple(bars), named, len(odd))


def _ends(counts: IntArray) -> tuple[int, int]:
    return int(counts.min()), int(counts.max())


def _names(place: Place, format: str) -> Iterator[str]:
    if place.is_folder():
        yield from place.store.list(place.path)
        return
    yield from (path for path in files_at(format, place.path) if place.store.exists(path))


def _sizes(place: Place, paths: list[str]) -> Iterator[FileSize]:
    for path in paths:
        try:
            yield FileSize(_name_in(place, path), place.store.size(path))
        except (FileNotFoundError, PermissionError):  # gone since then, or out of reach: others are told
            continue


def _name_in(place: Place, path: str) -> str:
    """What a file is called: its path from the folder, or its last part."""
    root = place.path.rstrip("/") + "/"
    return redact(path.removeprefix(root) if path.startswith(root) else path.rpartition("/")[2])

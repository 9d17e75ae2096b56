"""Files of a dataset with their sizes, and the distribution of samples to shards."""

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
from penstock.view.facts.bounds import Figure

MOST_FILES, MOST_REMOTE_FILES = 1000, 32
"""Limits on requests for file sizes; for remote data, each file is a request."""

_INDEXED = ("mds", "csv", "tsv", "xsv", "json-shards")
"""Formats with file sizes in the index."""

MOST_BARS = 256
ODD = 8


@dataclass(frozen=True, slots=True)
class FileSize:
    """A file: its path relative to the dataset's directory, or its name."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Disk:
    """Files of a dataset.

    Attributes:
        files: the first files, in byte order of their paths.
        of: number of files; None if not all were listed.
    """

    size_bytes: Figure
    files: tuple[FileSize, ...]
    of: int | None


@dataclass(frozen=True, slots=True)
class Bar:
    """Consecutive shards: numbers of the first and the last, and the fewest and the most samples in one of them."""

    first: int
    last: int
    fewest: int
    most: int


@dataclass(frozen=True, slots=True)
class Shards:
    """Distribution of samples to shards, or to other blocks of the storage.

    Attributes:
        count: number of shards.
        fewest, median, most: samples per shard.
        bars: at most 256 bars of one or several shards.
        odd: numbers and samples of the first 8 shards with less than half or more than twice the median, except the
            last shard.
        num_odd: number of all unusual shards.
    """

    count: int
    fewest: int
    median: int
    most: int
    bars: tuple[Bar, ...]
    odd: tuple[tuple[int, int], ...]
    num_odd: int


def disk_of_listed(place: Place, files: Sequence[str], stops: IntArray) -> Disk:
    """Return the files of a dataset as listed at opening."""
    shown = files[:MOST_FILES]
    sizes = np.diff(stops[: len(shown)], prepend=0).tolist()
    first = tuple(FileSize(_name_in(place, path), size) for path, size in zip(shown, sizes, strict=True))
    return Disk(Figure(int(stops[-1]) if len(stops) else 0, "file sizes"), first, len(files))


def disk_of(place: Place, format: str, source: Any, known_bytes: int | None) -> Disk:
    most = MOST_FILES if place.is_local else MOST_REMOTE_FILES
    try:
        names = list(islice(_names(place, format), most + 1))
    except (Unsupported, Denied):  # a web server has no listing
        return Disk(_told(format, source, known_bytes, "the files can't be listed here"), (), None)
    files = tuple(_sizes(place, names[:most]))
    if len(names) <= most:
        told = Figure(sum(one.size_bytes for one in files), "file sizes")
        if len(files) < len(names):
            told = _told(format, source, known_bytes, "some files aren't accessible")
        return Disk(told, files, len(names))
    return Disk(_told(format, source, known_bytes, f"more than {most:,} files"), files, None)


def _told(format: str, source: Any, known_bytes: int | None, why_not: str) -> Figure:
    """Return the size of all files from a side file or an index, without looking at them."""
    if known_bytes is not None:
        return Figure(known_bytes, "side file")
    if format in _INDEXED:
        return Figure(stored(source).size_bytes, "index")
    return Figure(None, why_not)


def shards_of(source: Any) -> Shards | None:
    """Return the distribution of samples to blocks; None if there is at most one block."""
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
        except (FileNotFoundError, PermissionError):  # removed meanwhile, or not accessible: the others are shown
            continue


def _name_in(place: Place, path: str) -> str:
    """Return the displayed name of a file: its path relative to the directory, or its last part."""
    root = place.path.rstrip("/") + "/"
    return redact(path.removeprefix(root) if path.startswith(root) else path.rpartition("/")[2])

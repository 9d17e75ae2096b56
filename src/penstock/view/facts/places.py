"""Locations of a sample with the command that prints it, and the steps of a run that read it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock._access import extents_of, place_of
from penstock._kinds import is_lane_stream, is_stream
from penstock._printable import recordable
from penstock._secrets import redact
from penstock.abc import SupportsKeys
from penstock.errors import ConfigError, NotFound
from penstock.load.explain import explain_document
from penstock.load.history import steps_until
from penstock.load.inverse import OneOf, Wanted
from penstock.load.plan import once
from penstock.store.place import same_file
from penstock.types import Extent
from penstock.view.facts.bounds import MOST_SAMPLE_BYTES
from penstock.view.facts.opening import Opened, OpenedRun

MOST_STEPS = 100
"""Limit on the listed steps that read a sample."""

MOST_EXTENTS = 32

_COMPRESSED = frozenset(("gz", "zst", "zstd", "bz2", "xz", "br", "lz4", "snappy", "sz", "tgz"))
"""Extensions of compressed files, last or before another one, as in `chunk-0-0.zstd.bin`."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a file, and the command that prints them; None if no common command can."""

    path: str
    offset_bytes: int
    length_bytes: int
    command: str | None


@dataclass(frozen=True, slots=True)
class Location:
    index: int
    key: str | None
    ranges: tuple[Range, ...]
    of: int
    command: str


@dataclass(frozen=True, slots=True)
class Read:
    step: int
    rank: int
    position: int
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Reads:
    found: tuple[Read, ...]
    steps: int
    is_all: bool
    is_drawn_from: bool = True


def location(opened: Opened, index: int) -> Location:
    """Return the location of a sample; reads only indexes.

    Raises:
        ConfigError: the sample doesn't exist.
    """
    if not 0 <= index < len(opened):
        raise ConfigError("sample index out of range", found=index, expected=f"0 to {len(opened) - 1}")
    extents = extents_of(opened.source, index) or ()
    is_large = sum(one.length_bytes for one in extents) > MOST_SAMPLE_BYTES  # its key may have to be read from there
    known = None if is_large else place_of(opened.source, index).key
    ranges = tuple(
        Range(redact(recordable(one.path)), one.offset_bytes, one.length_bytes, _printing(one))
        for one in extents[:MOST_EXTENTS]
    )  # fmt: skip
    key = None if known is None else recordable(known)
    command = f"penstock head {opened.shell_name}{opened.opening} --index {index} --pictures"
    return Location(index, key, ranges, len(extents), command)


def of_dataset(opened: Opened, index: int) -> OneOf:
    """Return the sample of one dataset, for `reads_of`: other datasets of the run may have the same key or number."""
    mine = _path_and_split(opened.source.recipe())
    key = None if opened.is_tokens else place_of(opened.source, index).key

    def index_in(source: Any) -> int | None:
        if not _are_same(mine, _path_and_split(source.recipe())):
            return None
        is_whole, keyed = len(source) == len(opened), source if isinstance(source, SupportsKeys) else None
        if key is None or keyed is None or is_whole:
            return index
        try:
            return keyed.index_of(key)
        except NotFound:
            return None  # it is excluded there

    return OneOf(f"{opened.name}, {index:,}", index_in)


def _path_and_split(recipe: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Return the location and split of a source; None for nodes above sources."""
    path = recipe.get("path") if recipe.get("kind") == "open" else None
    return (path, recipe.get("split")) if isinstance(path, str) else None


def _are_same(one: tuple[str, Any] | None, other: tuple[str, Any] | None) -> bool:
    return one is not None and other is not None and one[1] == other[1] and same_file(one[0], other[0])


def reads_of(run: OpenedRun, key: Wanted, *, steps: int | None = None) -> Reads:
    """Return the steps of a run that read a sample, or a token document.

    Args:
        run: the run.
        key: key of the sample; its number if it is a token document or has no key; or the sample of one dataset.
        steps: number of examined steps; by default until every source was read once.

    Raises:
        NotFound: no source of the run has a document of this name.
        ConfigError: the batch size is unknown.
    """
    if isinstance(key, OneOf) and not _has(run.data, key):
        return Reads((), 0, is_all=True, is_drawn_from=False)
    explained = run.shape()
    if steps is None:
        if is_lane_stream(run.data):
            raise ConfigError("a stream that packs on the fly can't be searched without a limit", hint="Give steps")
        steps = steps_until(explained.history, once(run.data))
    found = explain_document(explained, key, steps, MOST_STEPS + 1, run.world)
    rows: list[dict[str, Any]] = found["samples"]
    reads = tuple(Read(one["step"], one["rank"], one["position"], one.get("epoch")) for one in rows[:MOST_STEPS])
    return Reads(reads, steps, len(rows) <= MOST_STEPS)


def _has(node: Any, sample: OneOf) -> bool:
    """Return whether a stream or source draws from the dataset of a sample."""
    if not is_stream(node) and not is_lane_stream(node) and sample.index_in(node) is not None:
        return True
    return any(_has(child, sample) for child in node.children().values())


def _printing(extent: Extent) -> str | None:
    start, stop = extent.offset_bytes, extent.offset_bytes + extent.length_bytes
    name = redact(recordable(extent.path))
    if not _COMPRESSED.isdisjoint(name.lower().rpartition("/")[2].split(".")[1:]):
        return None  # the bytes would have to be decompressed
    if "://" in name:
        return f"curl -r {start}-{stop - 1} {shlex.quote(name)}" if name.startswith("http") else None
    return f"tail -c +{start + 1} {shlex.quote(name)} | head -c {extent.length_bytes}"

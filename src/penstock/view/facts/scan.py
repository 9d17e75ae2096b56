"""Looks for samples, and says how far it looked: a scan goes on from there when that is asked for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock._printable import recordable
from penstock.abc import SupportsKeys
from penstock.errors import ConfigError, NotFound
from penstock.formats._exclusions import stored
from penstock.look.find import Wanted, hits_in
from penstock.look.samples import Dataset
from penstock.view.facts.bounds import MOST_NAME_CHARACTERS, most_sample_bytes
from penstock.view.facts.dataset import numbered
from penstock.view.facts.opening import Opened
from penstock.view.facts.samples import index_of, stored_bytes
from penstock.view.facts.snippets import Snippet, snippet_at

By = Literal["key", "index", "text", "where"]

MOST_HITS = 200
"""Of one look."""

MOST_SNIPPETS, REMOTE_SNIPPETS = 50, 8
"""Hits of one look that are read again to show some of their text; far away each of them is a request."""

_FIRST_STRETCH, _MOST_STRETCH = 64, 4096


@dataclass(frozen=True, slots=True)
class Wish:
    """What is looked for: a key, an index, a text that a sample holds, or an expression on its fields."""

    by: By
    what: str


@dataclass(frozen=True, slots=True)
class FoundAt:
    """A sample that was found.

    Attributes:
        index: of it.
        key: where it has one.
        snippet: what is to be seen of it, where it was read for that.
        unread_bytes: as it is stored; None but for one that is too large to be read at once, and was not looked at.
    """

    index: int
    key: str | None
    snippet: Snippet | None = None
    unread_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """A look.

    Attributes:
        hits: what it found, and what it could not look at, in the order of their indices.
        start, stop: the samples that were looked at; both 0 where an index answered.
        of: samples of the dataset.
        is_over: whether there is nothing left to look at.
    """

    hits: tuple[FoundAt, ...]
    start: int
    stop: int
    of: int
    is_over: bool


def scan(opened: Opened, wish: Wish, start: int, seconds: float, *, follow_links: bool = False) -> Scan:
    """Samples that fit, from one on, as many as are looked at in some seconds.

    Memory: a run of samples of some 16 MiB. On this machine, of one that is larger than `most_sample_bytes` it is said
    that it was not looked at.

    Args:
        opened: where.
        wish: what.
        start: the first sample that is looked at.
        seconds: after which it ends; one stretch of samples is looked at in any case.
        follow_links: as of `penstock.open`.

    Raises:
        ConfigError: an expression that can't be, or what such data don't have.
        FormatError: a sample is damaged.
    """
    count = numbered(opened)
    if wish.by == "index" or (wish.by == "key" and isinstance(opened.source, SupportsKeys)):
        return _by_index(opened, wish, count)
    if opened.place is None:
        raise ConfigError("an open source can't be scanned", path=opened.name)
    dataset = Dataset(opened.source, opened.readers, opened.place)
    given = {"key": None, "text": None, "where": None} | {wish.by: wish.what}
    wanted = Wanted(**given, key_field=None, tokenizer=opened.tokenizer if opened.is_tokens else None)
    wanted.require_possible(dataset)
    if not start:
        wanted.require_fields(dataset)
    found = _scanned(opened, dataset, wanted, start, count, time.monotonic() + seconds)
    return dataclasses.replace(found, hits=tuple(_shown(opened, wish, found.hits)))


def _by_index(opened: Opened, wish: Wish, count: int) -> Scan:
    source: Any = opened.source
    try:
        index = index_of(opened, wish.what) if wish.by == "index" else source.index_of(wish.what)
    except NotFound:
        return Scan((), 0, 0, count, True)
    key = source.key_of(index) if isinstance(source, SupportsKeys) else None
    hit = FoundAt(index, None if key is None else recordable(key[:MOST_NAME_CHARACTERS]))
    return Scan(tuple(_shown(opened, wish, [hit])), 0, 0, count, True)


def _shown(opened: Opened, wish: Wish, hits: Sequence[FoundAt]) -> Iterator[FoundAt]:
    """The hits, the first ones with some of their text."""
    is_local = opened.place is None or opened.place.is_local
    for number, one in enumerate(hits):
        shown = one.unread_bytes is None and number < (MOST_SNIPPETS if is_local else REMOTE_SNIPPETS)
        yield dataclasses.replace(one, snippet=snippet_at(opened, one.index, _sought(wish))) if shown else one


def _sought(wish: Wish) -> str | None:
    return wish.what if wish.by == "text" else None


def _scanned(opened: Opened, dataset: Dataset, wanted: Wanted, start: int, count: int, until: float) -> Scan:
    hits: list[FoundAt] = []
    begin = at = min(start, count)
    size = _FIRST_STRETCH
    while at < count and len(hits) < MOST_HITS and (at == begin or time.monotonic() <= until):
        stop = min(count, at + size)
        for large in [*_large(opened, at, stop), None]:
            end = stop if large is None else large.index
            found = hits_in(dataset, wanted, at, end, MOST_HITS - len(hits)) if at < end else []
            hits += (
                FoundAt(index, None if key is None else recordable(key[:MOST_NAME_CHARACTERS])) for index, key in found
            )
            if len(hits) >= MOST_HITS:
                at = hits[-1].index + 1
                break
            if large is not None:
                hits.append(large)
                end += 1
            at = end
            if len(hits) >= MOST_HITS:
                break
        size = min(_MOST_STRETCH, 2 * size)
    return Scan(tuple(hits), begin, at, count, at >= count)


def _large(opened: Opened, start: int, stop: int) -> list[FoundAt]:
    """Samples of `[start, stop)` that are not read at once; none far away, where each may be a request."""
    most = most_sample_bytes([opened.format])
    lines = getattr(stored(opened.source), "line_ranges", None)
    if lines is not None:
        lengths = lines()[start:stop, 1]
        return [FoundAt(start + at, None, None, int(lengths[at])) for at in np.flatnonzero(lengths > most).tolist()]
    if opened.place is None or not opened.place.is_local:
        return []
    sizes = ((index, stored_bytes(opened, index)) for index in range(start, stop))
    return [FoundAt(index, None, None, size) for index, size in sizes if size > most]

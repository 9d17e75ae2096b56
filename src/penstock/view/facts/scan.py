"""Incremental search for samples, with text excerpts of the hits: a scan can be continued from its end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
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
from penstock.view.facts.samples import index_of, raw_sample, stored_bytes

By = Literal["key", "index", "text", "where"]

MOST_HITS = 200
"""Limit on the hits of one scan."""

MOST_SNIPPETS, REMOTE_SNIPPETS = 50, 8
"""Limits on the hits that are read again to show their text; on a remote store each is a request."""

_FIRST_STRETCH, _MOST_STRETCH = 64, 4096


@dataclass(frozen=True, slots=True)
class Wish:
    """Search term: a key, an index, a text in a sample, or an expression on its fields."""

    by: By
    what: str


@dataclass(frozen=True, slots=True)
class FoundAt:
    """Found sample.

    Attributes:
        key: key of the sample, if it has one.
        snippet: its text, if it was read.
        unread_bytes: stored size of a sample that was skipped because of its size; else None.
    """

    index: int
    key: str | None
    snippet: Snippet | None = None
    unread_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of one scan.

    Attributes:
        hits: found and skipped samples, in the order of their indices.
        start, stop: range of examined samples; both 0 if an index was used.
        of: number of samples of the dataset.
        is_over: whether everything was examined.
    """

    hits: tuple[FoundAt, ...]
    start: int
    stop: int
    of: int
    is_over: bool


def scan(opened: Opened, wish: Wish, start: int, seconds: float, *, follow_links: bool = False) -> Scan:
    """Return matching samples from `start` on, as many as are examined in some seconds.

    Memory: a run of samples of about 16 MiB. Local samples larger than `most_sample_bytes` are reported as skipped.

    Raises:
        ConfigError: the expression is invalid, or the data doesn't have the index or field.
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
    """Yield the hits, the first ones with some of their text."""
    is_local = opened.place is None or opened.place.is_local
    for number, one in enumerate(hits):
        shown = one.unread_bytes is None and number < (MOST_SNIPPETS if is_local else REMOTE_SNIPPETS)
        sought = wish.what if wish.by == "text" else None
        yield dataclasses.replace(one, snippet=snippet_at(opened, one.index, sought)) if shown else one


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
    """Return the samples of `[start, stop)` that are too large; none on a remote store, to save requests."""
    most = most_sample_bytes([opened.format])
    lines = getattr(stored(opened.source), "line_ranges", None)
    if lines is not None:
        lengths = lines()[start:stop, 1]
        return [FoundAt(start + at, None, None, int(lengths[at])) for at in np.flatnonzero(lengths > most).tolist()]
    if opened.place is None or not opened.place.is_local:
        return []
    sizes = ((index, stored_bytes(opened, index)) for index in range(start, stop))
    return [FoundAt(index, None, None, size) for index, size in sizes if size > most]


_AROUND, _BEGINNING = 60, 140
_MOST_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class Snippet:
    """Piece of one text of a sample.

    Attributes:
        before, match, after: the text; without a search term, `match` is empty, and `before` is the beginning.
        is_cut: whether there is text before it; `goes_on`: after it.
    """

    name: str
    before: str
    match: str
    after: str
    is_cut: bool
    goes_on: bool


def snippet_at(opened: Opened, index: int, sought: str | None) -> Snippet | None:
    """Return some text of a sample; None if it has none, is too large, or can't be read."""
    try:
        sample = raw_sample(opened, index)
        if opened.is_tokens and opened.decode is not None:
            sample = {"text": opened.decode(sample["tokens"])}
        return snippet(sample, sought)
    except Exception:  # errors of a sample are reported where it is shown
        return None


def snippet(sample: Mapping[str, Any], sought: str | None) -> Snippet | None:
    """Return the first text of a sample with the search term, or its first text; None without text."""
    left = [_MOST_VALUES]
    for name, text in _texts("", sample, left):
        at = 0 if sought is None else text.find(sought)
        if at < 0 or not text:
            continue
        if sought is None:
            shown, rest = text[:_BEGINNING], len(text) > _BEGINNING
            return Snippet(_name(name), _line(shown), "", "", False, rest)
        stop = at + len(sought)
        first, last = max(0, at - _AROUND), min(len(text), stop + _AROUND)
        match = _line(sought[: 2 * _BEGINNING])
        return Snippet(_name(name), _line(text[first:at]), match, _line(text[stop:last]), first > 0, last < len(text))
    return None


def _texts(name: str, value: Any, left: list[int]) -> Iterator[tuple[str, str]]:
    """Yield the texts in a value, with their names; keys of objects aren't content."""
    left[0] -= 1
    if left[0] < 0:
        return
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if name or not str(key).startswith("__"):
                yield from _texts(f"{name}.{key}" if name else str(key), one, left)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(name, one, left)


def _name(name: str) -> str:
    return recordable(name[:MOST_NAME_CHARACTERS])


def _line(text: str) -> str:
    """Return text in one line, of any length."""
    return recordable(" ".join(text.split()) if text.isspace() else text.replace("\n", " ").replace("\t", " "))

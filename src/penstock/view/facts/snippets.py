"""Text excerpts of found samples, with the match and its context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock._printable import recordable
from penstock.view.facts.bounds import MOST_NAME_CHARACTERS
from penstock.view.facts.documents import raw_sample
from penstock.view.facts.opening import Opened

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

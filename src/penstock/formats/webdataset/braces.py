"""Lists of names in `split.yaml`: `{000..127}` and `{a,b}` expanded, and runs of numbered names collapsed.

| text | names |
|---|---|
| `{1..3}`, `{3..1}`, `{1..10..3}` | numbers up and down, with a step; `{001..127}` pads with zeros |
| `{a..c}` | letters |
| `{a,b}`, nested too | each of them |
| `{a}`, `{}` | as they stand |
| `\\{` | a brace that is part of a name |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from penstock.errors import FormatError, TooLarge

MOST_NAMES = 10_000_000
_MOST_DEPTH = 50
_NUMBERS = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.(-?[0-9]+))?\Z")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?[0-9]+))?\Z")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ESCAPED = re.compile(r"\\(.)")
_SPECIAL = re.compile(r"([{}\\])")
_DIGITS = re.compile(r"([0-9]+)")


def expand(text: str, path: str, *, keep_escapes: bool = False) -> list[str]:
    """All names that `text` stands for, in order.

    Args:
        text: a name with braces.
        path: of the file that it stands in, for messages.
        keep_escapes: backslashes belong to what is expanded, such as a regular expression.

    Raises:
        FormatError: a brace without its other one.
        TooLarge: more than ten million names.
    """
    if "{" not in text and "}" not in text and (keep_escapes or "\\" not in text):
        return [text]
    if keep_escapes:
        return _expand(text, path, 0)
    return [_ESCAPED.sub(r"\1", name) for name in _expand(text, path, 0)]


def collapse(names: Sequence[str]) -> list[str]:
    """The same names in the same order, runs of numbered ones as one text; `expand` undoes it."""
    found: list[str] = []
    pieces = [_DIGITS.split(name) for name in names]
    first = 0
    while first < len(names):
        last, slot = _run(pieces, first)
        words = [_SPECIAL.sub(r"\\\1", piece) for piece in pieces[first]]
        if last > first:
            words[slot] = f"{{{pieces[first][slot]}..{pieces[last][slot]}}}"
        found.append("".join(words))
        first = last + 1
    return found


def _run(pieces: Sequence[list[str]], first: int) -> tuple[int, int]:
    """The last of the names that follow `first` in one run, and which piece counts up."""
    slot = -1
    last = first
    while last + 1 < len(pieces) and len(pieces[last + 1]) == len(pieces[last]):
        before, after = pieces[last], pieces[last + 1]
        other = [place for place in range(len(before)) if before[place] != after[place]]
        if len(other) != 1 or not other[0] % 2 or slot not in (-1, other[0]):
            break
        was, now = before[other[0]], after[other[0]]
        if len(was) != len(now) or len(now) > 18 or int(now) != int(was) + 1:
            break
        slot = other[0]
        last += 1
    return last, slot


def _expand(text: str, path: str, depth: int) -> list[str]:
    """Names, their escapes still in them."""
    if depth > _MOST_DEPTH:
        raise FormatError("braces are nested too deep", path=path, found=text[:100])
    parts: list[list[str]] = []
    place = 0
    for start, stop in _outer_braces(text, path):
        parts.append([text[place:start]])
        inner = text[start + 1 : stop]
        choices = _choices(inner, path, depth)
        parts.append(["{" + one + "}" for one in _expand(inner, path, depth + 1)] if choices is None else choices)
        place = stop + 1
    parts.append([text[place:]])
    count = 1
    for part in parts:
        count *= len(part)
        if count > MOST_NAMES:
            raise _too_many(text, path)
    return list(map("".join, product(*parts)))


def _choices(inner: str, path: str, depth: int) -> list[str] | None:
    """What a pair of braces stands for; None where they are no more than braces."""
    if found := _NUMBERS.match(inner):
        start, stop, step = found.groups()
        padded = any(end.startswith(("0", "-0")) and end not in ("0", "-0") for end in (start, stop))
        width = max(len(start), len(stop)) if padded else 0
        return [f"{number:0{width}d}" for number in _range(int(start), int(stop), step, inner, path)]
    if found := _LETTERS.match(inner):
        start, stop, step = found.groups()
        places = _range(_ALPHABET.index(start), _ALPHABET.index(stop), step, inner, path)
        return [_ALPHABET[place] for place in places]
    pieces = list(_at_commas(inner))
    if len(pieces) == 1:
        return None
    names = [name for piece in pieces for name in _expand(piece, path, depth + 1)]
    if len(names) > MOST_NAMES:
        raise _too_many(inner, path)
    return names


def _range(start: int, stop: int, step: str | None, inner: str, path: str) -> Iterable[int]:
    width = abs(int(step or 1)) or 1
    numbers = range(start, stop + 1, width) if start < stop else range(start, stop - 1, -width)
    if abs(stop - start) // width >= MOST_NAMES:
        raise _too_many(inner, path)
    return numbers


def _outer_braces(text: str, path: str) -> Iterator[tuple[int, int]]:
    """Places of the outermost braces, in pairs."""
    depth, start = 0, 0
    for place, letter in _unescaped(text):
        if letter == "{":
            if depth == 0:
                start = place
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                yield start, place
        if depth < 0:
            break
    if depth:
        raise FormatError(
            "a brace without its other one", path=path, found=text[:100], hint="Write \\{ for a brace in a name"
        )


def _at_commas(inner: str) -> Iterator[str]:
    depth, start = 0, 0
    for place, letter in _unescaped(inner):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield inner[start:place]
            start = place + 1
    yield inner[start:]


def _unescaped(text: str) -> Iterator[tuple[int, str]]:
    """Braces and commas without a backslash before them."""
    place = 0
    while place < len(text):
        if text[place] == "\\":
            place += 2
            continue
        if text[place] in "{},":
            yield place, text[place]
        place += 1


def _too_many(text: str, path: str) -> TooLarge:
    expected = f"at most {MOST_NAMES:,}"
    return TooLarge("braces that stand for too many names", path=path, found=text[:100], expected=expected)

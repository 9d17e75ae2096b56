r"""Lists of names in `split.yaml`: expand `{000..127}` and `{a,b}`, and collapse runs of numbered names.

| text | names |
|---|---|
| `{1..3}`, `{3..1}`, `{1..10..3}` | numbers up and down, with a step; `{001..127}` pads with zeros |
| `{a..c}` | letters |
| `{a,b}`, also nested | each alternative |
| `{a}`, `{}` | unchanged |
| `\{` | a brace that is part of a name |
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import product

from penstock._limits import MOST_BRACES_DEEP, MOST_NAMES, MOST_NAMES_BYTES
from penstock.errors import FormatError, TooLarge

_NUMBERS = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.(-?[0-9]+))?\Z")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?[0-9]+))?\Z")
_MARKS = re.compile(r"\\.|[{},]", re.DOTALL)
_MOST_DIGITS = 18
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ESCAPED = re.compile(r"\\(.)")
_SPECIAL = re.compile(r"([{}\\])")
_DIGITS = re.compile(r"([0-9]+)")


class Budget:
    """Remaining limits for the expansion of the texts of one list.

    Attributes:
        names: number of names left.
        characters: number of characters left, for all names together.
    """

    __slots__ = ("characters", "names")

    def __init__(self) -> None:
        self.names = MOST_NAMES
        self.characters = MOST_NAMES_BYTES


def expand(text: str, path: str, *, keep_escapes: bool = False, budget: Budget | None = None) -> list[str]:
    """Return all names that `text` expands to, in order.

    Args:
        text: a name with braces.
        path: the file that contains it, for messages.
        keep_escapes: keep backslashes, for texts such as regular expressions.
        budget: limits shared by the texts of one list, reduced by the names.

    Raises:
        FormatError: a brace is unbalanced.
        TooLarge: there are more names, or longer ones, than the budget allows.
    """
    budget = Budget() if budget is None else budget
    if "{" not in text and "}" not in text and (keep_escapes or "\\" not in text):
        names = [text]
    else:
        _check_depth(text, path)
        names = _expand(text, path, budget)
        if "\\" in text and not keep_escapes:
            names = [_ESCAPED.sub(r"\1", name) for name in names]
    budget.names -= len(names)
    budget.characters -= sum(map(len, names))
    if budget.names < 0 or budget.characters < 0:
        raise _too_many(text, path)
    return names


def collapse(names: Sequence[str]) -> list[str]:
    """Return the same names in the same order, with runs of numbered names as one text; the inverse of `expand`."""
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
    """Return the last name of the run that begins at `first`, and the piece that counts up."""
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


def _check_depth(text: str, path: str) -> None:
    depth = 0
    for _, mark in _unescaped(text):
        depth += {"{": 1, "}": -1}.get(mark, 0)
        if depth > MOST_BRACES_DEEP:
            expected = f"at most {MOST_BRACES_DEEP} levels"
            raise TooLarge("braces are nested too deeply", path=path, found=text[:100], expected=expected)


def _expand(text: str, path: str, budget: Budget) -> list[str]:
    parts: list[list[str]] = []
    place = 0
    for start, stop in _outer_braces(text, path):
        parts.append([text[place:start]])
        inner = text[start + 1 : stop]
        choices = _choices(inner, path, budget)
        parts.append(["{" + one + "}" for one in _expand(inner, path, budget)] if choices is None else choices)
        place = stop + 1
    parts.append([text[place:]])
    count = math.prod(map(len, parts))
    if count > budget.names or sum(sum(map(len, part)) * (count // len(part)) for part in parts) > budget.characters:
        raise _too_many(text, path)
    return list(map("".join, product(*parts)))


def _choices(inner: str, path: str, budget: Budget) -> list[str] | None:
    """Return the alternatives of a pair of braces, or None if the braces are literal."""
    if found := _NUMBERS.match(inner):
        start, stop, step = found.groups()
        longest = max(map(len, (start, stop)))
        if len(start.lstrip("-0")) > _MOST_DIGITS or len(stop.lstrip("-0")) > _MOST_DIGITS:
            raise _too_many(inner, path)
        padded = any(end.startswith(("0", "-0")) and end not in ("0", "-0") for end in (start, stop))
        numbers = _range(_integer(start), _integer(stop), step, inner, path)
        if len(numbers) > budget.names or len(numbers) * longest > budget.characters:
            raise _too_many(inner, path)
        width = longest if padded else 0
        return [f"{number:0{width}d}" for number in numbers]
    if found := _LETTERS.match(inner):
        start, stop, step = found.groups()
        places = _range(_ALPHABET.index(start), _ALPHABET.index(stop), step, inner, path)
        return [_ALPHABET[place] for place in places]
    pieces = list(_at_commas(inner))
    if len(pieces) == 1:
        return None
    names: list[str] = []
    characters = 0
    for piece in pieces:
        more = _expand(piece, path, budget)
        characters += sum(map(len, more))
        if len(names) + len(more) > budget.names or characters > budget.characters:
            raise _too_many(inner, path)
        names += more
    return names


def _integer(text: str) -> int:
    """Return the value of a text with any number of leading zeros, which count toward the digit limit of `int`."""
    return int(text.lstrip("-").lstrip("0") or "0") * (-1 if text.startswith("-") else 1)


def _range(start: int, stop: int, step: str | None, inner: str, path: str) -> range:
    if step is not None and len(step.lstrip("-0")) > _MOST_DIGITS:
        step = "9" * _MOST_DIGITS  # longer than any list: only its first number
    width = abs(_integer(step or "1")) or 1
    return range(start, stop + 1, width) if start < stop else range(start, stop - 1, -width)


def _outer_braces(text: str, path: str) -> Iterator[tuple[int, int]]:
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
        raise FormatError("unbalanced brace", path=path, found=text[:100], hint="Write \\{ for a literal brace")


def _at_commas(inner: str) -> Iterator[str]:
    depth, start = 0, 0
    for place, letter in _unescaped(inner):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield inner[start:place]
            start = place + 1
    yield inner[start:]


def _unescaped(text: str) -> Iterator[tuple[int, str]]:
    for found in _MARKS.finditer(text):
        if found[0] in "{},":
            yield found.start(), found[0]


def _too_many(text: str, path: str) -> TooLarge:
    expected = f"at most {MOST_NAMES:,} names with {MOST_NAMES_BYTES:,} characters in total"
    return TooLarge("braces expand to too many names", path=path, found=text[:100], expected=expected)

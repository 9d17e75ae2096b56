"""Pages as data: sections of a few kinds of blocks.

`draw.html` renders them to HTML, `draw.lines` to lines of a terminal, and `to_json` to JSON. A block holds values, and
each value is formatted by its kind, so that all pages write the same number alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from penstock._printable import recordable
from penstock.view.draw.markup import Markup
from penstock.view.draw.words import count, human_bytes, share, short

Kind: TypeAlias = Literal["text", "name", "quiet", "count", "short", "bytes", "share", "factor", "meter"]
"""Kind of a value: text, or a number with its unit; `"meter"`: a bar of the largest value of its column."""

NUMBERS = ("count", "short", "bytes", "share", "factor")


@dataclass(frozen=True, slots=True)
class Link:
    """A value that leads to another page, if there are pages."""

    value: Any
    href: str | None


@dataclass(frozen=True, slots=True)
class Amount:
    """A large number at the top of a page.

    Attributes:
        how: explanation of the number.
        source: origin of the number, such as an index.
    """

    label: str
    value: Any
    kind: Kind = "count"
    how: str = ""
    source: str = ""
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """Large numbers side by side."""

    amounts: Sequence[Amount]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Keys and their values."""

    rows: Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    kind: Kind = "text"
    whole: float | None = None
    """Value of a full meter."""

    is_drawn: bool = True
    """Whether a plot shows it."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values.

    Attributes:
        more: number of rows that aren't shown; None: some.
        fold: whether all but the first rows open on a click.
        depths: indentation of each row, for trees.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    more: int | None = 0
    fold: bool = False
    depths: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """A diagram and the table of its figures.

    Attributes:
        kind: bars over ranges of the first two columns; the fewest and most of several shards; lines or areas over the
            first column.
        marks: places on the axis with their names.
        odd: shards with an unusual number of samples.
        csv: address of the figures as CSV.
    """

    kind: Literal["bars", "shards", "lines", "areas"]
    title: str
    unit: str
    table: Table
    marks: Sequence[tuple[int, str]] = ()
    odd: Sequence[int] = ()
    csv: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Notes:
    """Remarks about the data, or the absence of problems."""

    lines: Sequence[str]
    level: Literal["good", "warning", "unknown"] = "warning"
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """A command, or a digest among other values."""

    text: str


@dataclass(frozen=True, slots=True)
class Fault:
    """An error: the problem, its location, the found and expected values, and a hint."""

    what: str
    path: str | None = None
    place: str | None = None
    found: str | None = None
    expected: str | None = None
    hint: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Issue:
    """Findings of one kind: what to do, and their places."""

    severity: str
    code: str
    number: int
    fix: str | None
    places: Table


@dataclass(frozen=True, slots=True)
class Ready:
    """Rendered samples."""

    html: Markup


Block: TypeAlias = Figures | Pairs | Table | Plot | Notes | Text | Code | Fault | Issue | Ready


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page.

    Attributes:
        title: heading; None for the top of a page, which has no box.
        about: remark next to the heading.
        is_aside: whether wide screens show it next to the others.
    """

    title: str | None
    blocks: Sequence[Block | None]
    about: str = ""
    is_aside: bool = False


def words_of(value: Any, kind: Kind) -> str:
    """Return a value as text."""
    if isinstance(value, Link):
        return words_of(value.value, kind)
    if isinstance(value, Code):
        return value.text
    if value is None:
        return "–" if kind in NUMBERS else ""
    if isinstance(value, str):
        return value
    if kind == "meter":
        return ""
    if kind == "factor":
        return f"{value:,.2f}"
    return {"short": short, "bytes": human_bytes, "share": share}.get(kind, count)(value)


def to_json(value: Any) -> Any:
    """Return sections as JSON values: each block is an object with its `kind`."""
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value if one is not None or isinstance(value, tuple)]
    if isinstance(value, Link):
        return to_json(value.value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value if value is None or isinstance(value, bool | int | float) else recordable(str(value))
    kind = {} if isinstance(value, Section) else {"block": type(value).__name__.lower()}
    return kind | {one.name: to_json(getattr(value, one.name)) for one in dataclasses.fields(value)}

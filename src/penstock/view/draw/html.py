"""Sections as HTML, for pages, reports and notebooks; everything from data is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock._printable import printable
from penstock.view.draw import pictures
from penstock.view.draw.blocks import (
    NUMBERS,
    Amount,
    Block,
    Code,
    Column,
    Fault,
    Figures,
    Issue,
    Kind,
    Link,
    Notes,
    Pairs,
    Plot,
    Ready,
    Section,
    Table,
    Text,
    words_of,
)
from penstock.view.draw.markup import Child, Markup, quoted, several, tag
from penstock.view.draw.words import count, share

_OPEN_ROWS = 12
_WIDE = 5
"""With this many columns, a table becomes a list on narrow screens."""


def words(text: str) -> Markup:
    """Return a message in one line; text between backticks is a command."""
    pieces = [Markup(quoted(one)) for one in printable(text).split("`")]
    if not len(pieces) % 2:  # with an unpaired backtick, none is a command
        return Markup("`".join(pieces))
    return several([tag("code", one) if at % 2 else one for at, one in enumerate(pieces)])


def command(text: str) -> Markup:
    """Return a command, which breaks between its words."""
    pieces = printable(text).split(" ")
    return tag("code", [(tag("span", one), " " if at + 1 < len(pieces) else "") for at, one in enumerate(pieces)],
               class_="command")  # fmt: skip


def to_html(sections: Iterable[Section], *, has_scripts: bool = False) -> Markup:
    """Return sections as HTML.

    Args:
        sections: sections without content are omitted.
        has_scripts: whether scripts of the page draw plots; otherwise they are drawn here.
    """
    made = [(one, _section(one, has_scripts)) for one in sections if any(block is not None for block in one.blocks)]
    top = [html for one, html in made if one.title is None]
    wide = [html for one, html in made if one.title is not None and not one.is_aside]
    aside = [html for one, html in made if one.is_aside]
    if not aside:
        return several(top, wide)
    return several(top, tag("div", tag("div", wide, class_="wide"), tag("div", aside, class_="narrow"),
                            class_="columns"))  # fmt: skip


def _section(one: Section, has_scripts: bool) -> Child:
    content = [block_html(block, has_scripts=has_scripts) for block in one.blocks if block is not None]
    if one.title is None:
        return content
    about = (" ", tag("small", one.about)) if one.about else None
    return tag("section", tag("h2", one.title, about), content, class_="card")


def block_html(block: Block, *, has_scripts: bool = False) -> Markup:
    """Return one block as HTML."""
    match block:
        case Figures():
            return tag("dl", map(_amount, block.amounts), class_="figures")
        case Pairs():
            rows = [tag("tr", tag("th", name), tag("td", _value(value, "text"))) for name, value in block.rows]
            return tag("table", tag("tbody", rows), class_="data facts")
        case Table():
            return _table(block)
        case Plot():
            return _plot(block, has_scripts)
        case Notes():
            return _notes(block)
        case Text():
            return tag("p", words(block.text), class_="how")
        case Code():
            return tag("p", command(block.text))
        case Fault():
            return _fault(block)
        case Issue():
            return _issue(block)
        case Ready():
            return block.html


def _amount(one: Amount) -> Markup:
    estimate = tag("i", "≈ ", title="estimate") if one.is_estimate else None
    how = tag("p", one.how, class_="how") if one.how else None
    value = tag("dd", estimate, tag("span", words_of(one.value, one.kind), title=one.source or None))
    return tag("div", tag("dt", one.label), value, how, class_="figure")


def _value(value: Any, kind: Kind, whole: float = 1) -> Child:
    if isinstance(value, Link):
        inner = _value(value.value, kind, whole)
        return inner if value.href is None else tag("a", inner, href=value.href)
    if isinstance(value, Code):
        return tag("code", printable(value.text), class_="wrap")
    if kind == "meter":
        label = f"{share((value or 0) / whole)}"
        return None if value is None else tag("meter", label, min=0, max=whole, value=value)
    text = words_of(value, kind)
    if "\n" in text:
        return tag("pre", text, class_="text")
    return tag("bdi", printable(text)) if text and isinstance(value, str) else text


def _table(one: Table) -> Markup:
    head = tag("thead", tag("tr", [tag("th", column.title, class_=_class(column)) for column in one.columns]))
    wholes = [_whole(column, [row[at] for row in one.rows]) for at, column in enumerate(one.columns)]
    depths = one.depths or [0] * len(one.rows)
    rows = [
        tag("tr", [tag("td", _value(value, column.kind, whole), class_=_class(column), data_label=column.title or None)
                   for value, column, whole in zip(row, one.columns, wholes, strict=True)],
            class_=f"deep{min(depth, 6)}" if depth else None)
        for row, depth in zip(one.rows, depths, strict=True)
    ]  # fmt: skip
    has_head = any(column.title for column in one.columns)

    def part(some: Sequence[Markup]) -> Markup:
        kind = f"data{' tree' if one.depths else ''}{' wide' if len(one.columns) >= _WIDE else ''}"
        return tag("div", tag("table", head if has_head else None, tag("tbody", some), class_=kind), class_="scroll")

    folded = rows[_OPEN_ROWS:] if one.fold else []
    rest = tag("details", tag("summary", f"{count(len(folded))} more"), part(folded)) if folded else None
    left = None if one.more == 0 else tag("p", "and more" if one.more is None else f"{count(one.more)} more")
    return several(
        part(rows[: len(rows) - len(folded)]), rest, None if left is None else tag("div", left, class_="cut")
    )


def _class(column: Column) -> str | None:
    kind = column.kind
    return "num" if kind in NUMBERS else {"meter": "barcell", "name": "name", "quiet": "n"}.get(kind)


def _whole(column: Column, values: Iterable[Any]) -> float:
    if column.kind != "meter":
        return 1
    return column.whole or max((one for one in values if one is not None), default=1) or 1


def _plot(one: Plot, has_scripts: bool) -> Markup:
    columns = one.table.columns
    head = tag("tr", [tag("th", column.title, class_="num") for column in columns])
    rows = [
        tag("tr", [tag("td", words_of(value, column.kind), class_="num",
                       data_v=value if has_scripts and column.is_drawn else None)
                   for value, column in zip(row, columns, strict=True)])
        for row in one.table.rows
    ]  # fmt: skip
    table = tag("table", tag("thead", head), tag("tbody", rows), class_="data")
    # Scripts close the table of a plot that they have drawn.
    details = tag("details", tag("summary", "Table"), tag("div", table, class_="scroll"), open=has_scripts)
    names = [column.title for column in columns[1:]]
    keys = [tag("li", tag("i"), tag("bdi", printable(name)), class_=f"line{at + 1}") for at, name in enumerate(names)]
    legend = tag("ul", keys, class_="keys") if one.kind in ("lines", "areas") else None
    marks = [
        (tag("span", f"from step {count(step)}: ", tag("bdi", printable(name)), class_="chip",
             title="steps are counted from 0", data_mark=step), " ")
        for step, name in one.marks
    ]  # fmt: skip
    csv = None if one.csv is None else tag("a", "CSV", href=one.csv)
    tools = (marks, tag("span", one.note, class_="n") if one.note else None, " ", csv)
    label = f"{one.title}; the table below has the same figures"
    if not has_scripts:
        drawn = pictures.plot(one.kind, [column.title for column in columns], one.table.rows, label=label,
                              percent=columns[-1].kind == "share", marks=one.marks, odd=one.odd)  # fmt: skip
        return tag("figure", legend, drawn, tag("p", tools, class_="tools"), details, class_="plot")
    canvas = tag("div", class_="canvas short" if one.kind == "shards" else "canvas", role="img", aria_label=label)
    kind = "lines" if one.kind == "areas" else one.kind
    return tag("figure", legend, canvas, details, tag("p", tools, class_="tools"), class_="plot", data_plot=kind,
               data_x=columns[0].title, data_y=one.unit)  # fmt: skip


def _notes(one: Notes) -> Markup:
    lines = [tag("li", words(text)) for text in one.lines]
    if one.level == "good":
        return tag("ul", lines, class_="sound", role="status")
    title = tag("p", tag("strong", "Unknown")) if one.level == "unknown" else None
    link = None if one.link is None else tag("p", tag("a", one.link.value, class_="button", href=one.link.href),
                                             class_="next")  # fmt: skip
    return tag("div", title, tag("ul", lines), link, class_="note", role="note")


def _fault(one: Fault) -> Markup:
    facts = [("path", one.path), ("place", one.place), ("found", one.found), ("expected", one.expected)]
    rows = [(tag("dt", name), tag("dd", tag("bdi", printable(text)))) for name, text in facts if text]
    what = (tag("strong", one.title), " ", one.what) if one.title else tag("strong", one.what)
    hint = tag("p", words(one.hint), class_="hint") if one.hint else None
    return tag("div", tag("p", what), tag("dl", rows) if rows else None, hint, class_="fault", role="alert")


def _issue(one: Issue) -> Markup:
    sign = tag("span", "▲" if one.severity == "error" else "△", class_="sign", aria_hidden="true")
    times = (" ", tag("small", f"{count(one.number)} times")) if one.number > 1 else None
    return tag(
        "section",
        tag("h3", sign, f" {one.severity}: ", tag("code", printable(one.code)), times),
        tag("p", words(one.fix), class_="hint") if one.fix else None,
        _table(one.places),
        class_=f"finding {one.severity}",
    )

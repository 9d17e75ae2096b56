"""Sections as lines of a terminal, without colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock._printable import printable
from penstock.view.draw.blocks import (
    Block,
    Code,
    Fault,
    Figures,
    Issue,
    Kind,
    Notes,
    Pairs,
    Plot,
    Ready,
    Section,
    Table,
    Text,
    words_of,
)
from penstock.view.draw.words import count

_BAR = 40


def to_lines(sections: Iterable[Section], indent: str = "  ") -> Iterator[str]:
    """Yield sections as lines of a terminal, without colours."""
    for number, one in enumerate(sections):
        if number:
            yield ""
        if one.title is not None:
            yield printable(one.title)
        for at, block in enumerate(block for block in one.blocks if block is not None):
            if at and isinstance(block, Plot):
                yield ""
            yield from (f"{indent}{text}".rstrip() for text in _block_lines(block))


def _block_lines(block: Block) -> Iterator[str]:
    match block:
        case Figures():
            yield from _aligned([(one.label, words_of(one.value, one.kind), one.how) for one in block.amounts])
        case Pairs():
            yield from _aligned([(name, words_of(value, "text")) for name, value in block.rows])
        case Table():
            kinds: list[Kind] = [column.kind for column in block.columns]
            rows = [list(map(words_of, row, kinds)) for row in block.rows]
            yield from table_lines(rows, [column.title for column in block.columns])
            if block.more:
                yield f"and {count(block.more)} more"
        case Plot():
            yield from _plot_lines(block)
        case Notes():
            yield from map(printable, block.lines)
        case Text() | Code():
            yield printable(block.text)
        case Fault():
            yield printable(": ".join(one for one in (block.path, block.what, block.hint) if one))
        case Issue():
            yield printable(f"{block.severity}: {block.code}, {count(block.number)}. {block.fix or ''}")
            yield from _block_lines(block.places)
        case Ready():
            return


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    width = max((len(row[0]) for row in rows), default=0)
    for name, *rest in rows:
        yield "  ".join((name.ljust(width), *(printable(text) for text in rest)))


def _plot_lines(one: Plot) -> Iterator[str]:
    """Yield bars of `#`; the figures of other plots."""
    if one.kind != "bars":
        yield from _block_lines(one.table)
        return
    most = max((row[2] for row in one.table.rows), default=0) or 1
    rows = [
        (f"{low:,}" if low == high else f"{low:,} to {high:,}", f"{number:,}", "#" * -(-number * _BAR // most))
        for low, high, number, *_ in one.table.rows
    ]
    yield from table_lines(rows)


def table_lines(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> list[str]:
    """Return rows as aligned columns: numbers to the right, everything else to the left."""
    lines = [*([head] if any(head) else []), *(tuple(map(printable, row)) for row in rows)]
    if not lines:
        return []
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    bodies = list(zip(*lines[bool(any(head)) :], strict=True))
    of_numbers = [all(map(_is_amount, body)) for body in bodies]

    def cell(text: str, column: int) -> str:
        return text.rjust(widths[column]) if column < len(bodies) and of_numbers[column] else text.ljust(widths[column])

    return ["  ".join(map(cell, line, range(len(line)))).rstrip() for line in lines]


def _is_amount(text: str) -> bool:
    return text in ("", "-") or (text[:1].isdigit() and "/" not in text)

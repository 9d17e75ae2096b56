"""Small plots as SVG: only shapes, which fill the available width; labels are HTML around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.view.draw.markup import Child, Markup, tag
from penstock.view.draw.words import count, share, short

SERIES = 8
"""Number of series that are drawn."""

_HEIGHT = 100


def plot(
    kind: str, names: Sequence[str], rows: Sequence[Sequence[Any]], *, label: str, percent: bool = False,
    marks: Sequence[tuple[int, str]] = (), odd: Sequence[int] = (),
) -> Markup:  # fmt: skip
    """Draw the rows of a table.

    Args:
        kind: `"bars"`, `"shards"`, `"lines"` or `"areas"`, as of `Plot`.
        names: names of the columns.
        rows: figures of the plot.
        label: description of the plot.
        percent: whether the values are shares.
        marks: places on the axis of lines that get a dashed line.
        odd: shards with an unusual number of samples.
    """
    if kind in ("bars", "shards"):
        return _bars(kind, rows, label, odd)
    return _lines(names, rows, label, marks, percent=percent, stacked=kind == "areas")


def _bars(kind: str, rows: Sequence[Sequence[Any]], label: str, odd: Sequence[int]) -> Markup:
    most = max((row[2] if kind == "bars" else row[3] for row in rows), default=0) or 1
    bars: list[Child] = []
    for at, (start, stop, low, *rest) in enumerate(rows):
        high: int = rest[0] if kind == "shards" else low
        number = count(high) if low == high else f"{count(low)} to {count(high)}"
        label_of_bar = f"{_range(start, stop)}: {number} samples"
        is_odd = any(start <= one <= stop for one in odd)
        bars.append(_bar(at, _HEIGHT * high / most, label_of_bar, "odd" if is_odd else "bar"))
        if low < high:
            y = _place(_HEIGHT * (1 - low / most))
            bars.append(tag("line", class_="least", x1=at, x2=at + 1, y1=y, y2=y))
    if kind == "bars":
        every = -(-len(rows) // 6)
        ticks = [short(row[0]) if at % every == 0 else "" for at, row in enumerate(rows)]
    else:
        ticks = ["0", count(rows[-1][1] if rows else 0)]
    class_ = "ticks even" if kind == "bars" else "ticks"
    shown = _svg(len(rows), bars, "drawn" if kind == "bars" else "drawn low", label)
    return _framed(shown, (short(most), "", "0"), tag("div", [tag("span", one) for one in ticks], class_=class_))


def _lines(
    names: Sequence[str], rows: Sequence[Sequence[Any]], label: str, marks: Sequence[tuple[int, str]], *,
    percent: bool, stacked: bool,
) -> Markup:  # fmt: skip
    last = max(1, rows[-1][0])
    places = [1000 * row[0] / last for row in rows]
    series = [[row[at] for row in rows] for at in range(1, min(len(names), SERIES + 1))]
    top = 1.0 if percent else max(1.0, *(max(one) for one in series)) * 1.05
    floor = [0.0] * len(places)
    shapes: list[Child] = []
    for number, values in enumerate(series):
        name = names[number + 1]
        end = tag("title", f"{name}: {share(values[-1]) if percent else short(values[-1])} at the end")
        if stacked:
            high = [min(1.0, low + part) for low, part in zip(floor, values, strict=True)]
            shapes.append(tag("polygon", end, points=_ring(places, floor, high), class_=f"s{number + 1}"))
            floor = high
        else:
            points = _points(places, [value / top for value in values])
            shapes.append(tag("polyline", end, points=points, class_=f"l{number + 1}"))
    for step, _ in marks:
        x = _place(1000 * step / last)
        shapes.append(tag("line", class_="mark", x1=x, x2=x, y1=0, y2=_HEIGHT))
    scale = ("100%", "50%", "0") if percent else (short(top), short(top / 2), "0")
    ticks = tag("div", [tag("span", count(one)) for one in (0, last // 2, last)], class_="ticks")
    return _framed(_svg(1000, shapes, "drawn", label), scale, ticks)


def _bar(place: int, height: float, label: str, kind: str) -> Markup:
    height = max(height, 0.7) if height else 0.0
    return tag("rect", tag("title", label), class_=kind, x=_place(place + 0.06), y=_place(_HEIGHT - height),
               width="0.88", height=_place(height))  # fmt: skip


def _svg(width: int, shapes: Sequence[Child], kind: str, label: str) -> Markup:
    return tag("svg", shapes, viewBox=f"0 0 {max(1, width)} {_HEIGHT}", preserveAspectRatio="none", class_=kind,
               role="img", aria_label=label)  # fmt: skip


def _framed(picture: Markup, scale: Sequence[str], ticks: Markup) -> Markup:
    return tag(
        "div", tag("div", [tag("span", mark) for mark in scale], class_="scale"), picture, ticks, class_="framed"
    )


def _ring(places: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    return f"{_points(places, high)} {_points(places[::-1], low[::-1])}"


def _points(places: Sequence[float], values: Sequence[float]) -> str:
    return " ".join(f"{_place(x)},{_place(_HEIGHT * (1 - y))}" for x, y in zip(places, values, strict=True))


def _range(start: int, stop: int) -> str:
    return count(start) if start == stop else f"{count(start)} to {count(stop)}"


def _place(value: float) -> str:
    """Format a coordinate identically on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".")

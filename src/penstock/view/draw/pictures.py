"""Small plots as SVG: only shapes, which fill the available width; labels are HTML around them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.view.draw.markup import Child, Markup, tag
from penstock.view.draw.words import count, share, short
from penstock.view.facts.disk import Shards
from penstock.view.facts.lengths import Lengths
from penstock.view.facts.run import Curves

SERIES = 8
"""Number of colours of a plot; further series are drawn together."""

_HEIGHT = 100


def histogram(lengths: Lengths) -> Markup:
    """Draw lengths of samples on a logarithmic axis; each bar shows its number."""
    bins = lengths.bins
    most = max(one.count for one in bins)
    bars = [
        _bar(place, _HEIGHT * one.count / most, f"{_range(one.start, one.stop)} {lengths.unit}: {count(one.count)}")
        for place, one in enumerate(bins)
    ]
    every = -(-len(bins) // 6)
    labels = [tag("span", short(one.start) if place % every == 0 else "") for place, one in enumerate(bins)]
    shown = _svg(len(bins), bars, "plot", f"Histogram of lengths in {lengths.unit}")
    return tag("figure", _framed(shown, (short(most), "", "0")), tag("div", labels, class_="ticks even"),
               tag("figcaption", f"length in {lengths.unit}, each bar twice as wide as the previous one"))  # fmt: skip


def shard_bars(shards: Shards) -> Markup:
    """Draw the samples of each shard; with many shards, the fewest and the most of several neighbours."""
    bars: list[Child] = []
    for place, one in enumerate(shards.bars):
        top, low = _HEIGHT * one.most / max(1, shards.most), _HEIGHT * one.fewest / max(1, shards.most)
        which = (
            f"shard {count(one.first)}" if one.first == one.last else f"shards {count(one.first)} to {count(one.last)}"
        )
        number = count(one.most) if one.fewest == one.most else f"{count(one.fewest)} to {count(one.most)}"
        is_odd = any(one.first <= odd <= one.last for odd, _ in shards.odd)
        bars.append(_bar(place, top, f"{which}: {number} samples", "odd" if is_odd else "bar"))
        if one.fewest < one.most:
            bars.append(tag("line", class_="least", x1=place, x2=place + 1, y1=_place(low), y2=_place(low)))
    ends = (tag("span", "0"), tag("span", count(shards.count - 1)))
    shown = _svg(len(shards.bars), bars, "plot low", "Samples per shard")
    return tag("figure", _framed(shown, (short(shards.most), "", "0")), tag("div", ends, class_="ticks"),
               tag("figcaption", "samples per shard"))  # fmt: skip


def share_areas(curves: Curves) -> Markup:
    """Draw each source's share of the samples over the steps as stacked areas; stages are dashed lines."""
    last = max(1, curves.steps[-1])
    shown = curves.curves[:SERIES]
    places = [1000 * step / last for step in curves.steps]
    floor = [0.0] * len(places)
    areas: list[Child] = []
    for number, one in enumerate(shown):
        top = [min(1.0, low + part) for low, part in zip(floor, one.share, strict=True)]
        areas.append(tag("polygon", tag("title", f"{one.path}: {share(one.share[-1])} at the end"),
                         points=_ring(places, floor, top), class_=f"s{number + 1}"))  # fmt: skip
        floor = top
    marks = [
        tag("line", class_="mark", x1=_place(x), x2=_place(x), y1=0, y2=_HEIGHT)
        for x in (1000 * step / last for step, _ in curves.marks)
    ]
    ends = (tag("span", "0"), tag("span", count(last // 2)), tag("span", count(last)))
    picture = _svg(1000, [*areas, *marks], "plot", "Shares of the sources over the steps")
    return tag("figure", _framed(picture, ("100 %", "50 %", "0")), tag("div", ends, class_="ticks"),
               tag("figcaption", f"share of the samples over steps of {count(curves.global_batch)}"))  # fmt: skip


def epoch_lines(curves: Curves) -> Markup:
    """Draw how often each source was read over the steps; dashed lines are whole epochs."""
    last = max(1, curves.steps[-1])
    shown = curves.curves[:SERIES]
    top = max([1.0, *(one.epochs[-1] for one in shown)]) * 1.05
    places = [1000 * step / last for step in curves.steps]
    lines: list[Child] = [
        tag(
            "line",
            class_="grid",
            x1=0,
            x2=1000,
            y1=_place(_HEIGHT * (1 - at / top)),
            y2=_place(_HEIGHT * (1 - at / top)),
        )
        for at in range(1, int(top) + 1)
        if at % max(1, int(top) // 5) == 0
    ]
    for number, one in enumerate(shown):
        points = " ".join(
            f"{_place(x)},{_place(_HEIGHT * (1 - y / top))}" for x, y in zip(places, one.epochs, strict=True)
        )
        lines.append(tag("polyline", tag("title", f"{one.path}: {one.epochs[-1]:,.2f} epochs"), points=points,
                         class_=f"l{number + 1}"))  # fmt: skip
    ends = (tag("span", "0"), tag("span", count(last // 2)), tag("span", count(last)))
    picture = _svg(1000, lines, "plot", "Epochs of the sources over the steps")
    return tag("figure", _framed(picture, (f"{top:.3g}", f"{top / 2:.2g}", "0")), tag("div", ends, class_="ticks"),
               tag("figcaption", "passes over each source"))  # fmt: skip


def legend(curves: Curves) -> Markup:
    """Return the names of the sources with their colours, their shares, and how far they are read."""
    whole = sum(one.samples[-1] for one in curves.curves) or 1
    rows = [
        tag(
            "li",
            tag("i", class_=f"s{number + 1}"),
            tag("b", one.path),
            tag("span", f"{share(one.samples[-1] / whole)} of the run, {one.epochs[-1]:,.2f} epochs"),
        )
        for number, one in enumerate(curves.curves[:SERIES])
    ]
    more = curves.of - len(rows)
    rest = [tag("li", tag("span", f"and {count(more)} more, in the table"))] if more > 0 else []
    return tag("ul", rows, rest, class_="legend")


def meter(part: float, whole: float = 1.0, label: str = "") -> Markup:
    width = 100 * part / whole if whole else 0.0
    shape = tag("rect", class_="bar", x=0, y=0, width=_place(max(0.4, width) if part else 0), height=10)
    return tag("svg", tag("title", label) if label else None, shape, viewBox="0 0 100 10", preserveAspectRatio="none",
               class_="meter", role="img", aria_label=label or share(part / whole if whole else 0))  # fmt: skip


def _bar(place: int, height: float, label: str, kind: str = "bar") -> Markup:
    shown = max(height, 0.7) if height else 0.0
    x, y, height = _place(place + 0.06), _place(_HEIGHT - shown), shown
    return tag("rect", tag("title", label), class_=kind, x=x, y=y, width="0.88", height=_place(height))


def _svg(width: int, shapes: Sequence[Child], kind: str, label: str) -> Markup:
    return tag("svg", shapes, viewBox=f"0 0 {width} {_HEIGHT}", preserveAspectRatio="none", class_=kind, role="img",
               aria_label=label)  # fmt: skip


def _framed(picture: Markup, marks: Sequence[str]) -> Markup:
    return tag("div", tag("div", [tag("span", mark) for mark in marks], class_="scale"), picture, class_="framed")


def _ring(places: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    up = [f"{_place(x)},{_place(_HEIGHT * (1 - y))}" for x, y in zip(places, high, strict=True)]
    down = [f"{_place(x)},{_place(_HEIGHT * (1 - y))}" for x, y in zip(places, low, strict=True)]
    return " ".join([*up, *reversed(down)])


def _range(start: int, stop: int) -> str:
    return count(start) if start == stop else f"{count(start)} to {count(stop)}"


def _place(value: float) -> str:
    """Format a coordinate identically on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".")

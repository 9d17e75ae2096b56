"""Numbers and names in readable form: the same in the viewer, reports, notebooks and terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.view.facts.bounds import Figure

_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def count(value: float | None) -> str:
    """Return `1,234,567`; `–` if unknown."""
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def short(value: float | None) -> str:
    """Return `1.23 M`: at most four digits."""
    if value is None:
        return "–"
    for unit, letter in _LARGE:
        if abs(value) >= unit:
            return f"{value / unit:.3g} {letter}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def human_bytes(value: float | None) -> str:
    """Return `1.5 GB`, in powers of ten."""
    if value is None:
        return "–"
    size = float(value)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} PB"


def share(value: float | None) -> str:
    """Return `12.5%`; small shares keep more digits."""
    if value is None:
        return "–"
    return f"{value:.1%}" if value >= 0.01 or value == 0 else "< 0.001%" if value < 0.00001 else f"{value:.3%}"


def seconds(value: float | None) -> str:
    """Return `1:02:03` or `2.50 s`."""
    if value is None:
        return "–"
    if value < 60:
        return f"{value:.2f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def found(figure: Figure) -> str:
    """Return how a figure was determined: `index`, `estimated from 4,096 of 1.2 G`."""
    if figure.estimated_from is not None:
        return f"estimated from {count(figure.estimated_from)} of {short(figure.of)}"
    return figure.how


def counted(number: int, noun: str) -> str:
    """Return `1 sample`, `2 samples`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

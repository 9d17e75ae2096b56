"""Templates with escaping, and number formats."""

from __future__ import annotations

import functools
import html
import shlex
from collections.abc import Mapping
from importlib import resources
from typing import Any
from urllib.parse import quote

from penstock import __version__
from penstock._optional import require
from penstock._printable import printable, printable_lines
from penstock.store.patterns import is_pattern

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


@functools.cache
def _templates() -> Any:
    jinja2 = require("jinja2", extra="view")

    def read(name: str) -> str | None:
        found = resources.files("penstock.view.pages") / "templates" / name
        return found.read_text(encoding="utf-8") if found.is_file() else None

    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_escape_controls,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "bytes": human_bytes,
        "count": count,
        "short": short,
        "share": share,
        "plain": plain,
        "lines": lines,
        "words": words,
        "part": part,
        "seconds": seconds,
        "shell": shlex.quote,
        "is_pattern": is_pattern,
    }
    made.globals["version"] = __version__
    return made


def _escape_controls(value: Any) -> Any:
    """Escape control characters and lone surrogates of every text on a page, in titles and attributes too."""
    return printable_lines(value) if type(value) is str else value  # markup has its own class


def render(template: str, facts: Mapping[str, Any]) -> str:
    return _templates().get_template(template).render(**facts)


def human_bytes(value: float | None) -> str:
    """Return `1.5 GB`, in powers of ten."""
    if value is None:
        return "–"
    size = float(value)
    for unit in _UNITS:
        if abs(size) < 1000 or unit == _UNITS[-1]:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}" if size < 100 else f"{size:.0f} {unit}"
        size /= 1000
    raise ValueError("unreachable")


def count(value: float | None) -> str:
    """Return `12,345`."""
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def short(value: float | None) -> str:
    """Return `1.24 G` for large numbers; small ones unchanged."""
    if value is None:
        return "–"
    for least, unit in _LARGE:
        if abs(value) >= least:
            return f"{value / least:.3g} {unit}"
    return count(value)


def share(value: float | None) -> str:
    """Return `12.3 %`."""
    if value is None:
        return "–"
    if 0 < value < 0.00001:
        return "< 0.001 %"
    return f"{100 * value:.3g} %" if 0 < value < 0.1 else f"{100 * value:.1f} %"


def seconds(value: float | None) -> str:
    """Return `1:02:03.4`, for a video."""
    if value is None:
        return "–"
    minutes, rest = divmod(value, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{rest:04.1f}" if hours else f"{minutes}:{rest:04.1f}"


def plain(text: object) -> str:
    """Return a name or a key in one line: control and direction characters are escaped."""
    return printable(str(text))


def lines(text: object) -> str:
    """Return text of several lines, escaped like `plain`: browsers hide a NUL, and obey a U+202E."""
    return printable_lines(str(text))


def words(text: object) -> str:
    """Return a message in one line, escaped like `plain`; text between backticks is a command."""
    pieces = [html.escape(one) for one in plain(text).split("`")]
    commands = len(pieces) // 2 if len(pieces) % 2 else 0  # with an unpaired backtick, none is a command
    made = [f"<code>{one}</code>" if commands and at % 2 else one for at, one in enumerate(pieces)]
    return require("markupsafe", extra="view").Markup(("" if commands else "`").join(made))


def part(name: str) -> str:
    """Return the name of a part, for a path."""
    return quote(name, safe="")

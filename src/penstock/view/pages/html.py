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
from penstock.view.draw.words import count, human_bytes, seconds, share, short


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

"""Templates with escaping, and number formats."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, cast

from penstock import __version__
from penstock._optional import require
from penstock._printable import printable, printable_lines
from penstock.store.patterns import is_pattern
from penstock.view.draw import samples, sections
from penstock.view.draw.blocks import Block, Fault, Section
from penstock.view.draw.html import block_html, command, to_html, words
from penstock.view.draw.markup import Markup
from penstock.view.draw.words import count, counted, human_bytes, share, short


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
        "counted": counted,
        "failure": failure,
        "html": html,
        "lines": lines,
        "plain": plain,
        "share": share,
        "short": short,
        "words": words,
        "shell": shlex.quote,
        "is_pattern": is_pattern,
    }
    made.globals |= {
        "about_tokens": samples.about_tokens,
        "cell_of": samples.cell_of,
        "command": command,
        "comparison": sections.comparison,
        "content": samples.content,
        "differences": sections.differences,
        "health": sections.health,
        "links": samples.Links,
        "origin_of": samples.origin_of,
        "panels": samples.panels,
        "side_by_side": sections.side_by_side,
        "summary_of": samples.summary_of,
        "token_key": samples.token_key,
        "tokens_of": samples.tokens_of,
        "version": __version__,
    }
    return made


def _escape_controls(value: Any) -> Any:
    """Escape control characters and lone surrogates of every text on a page, in titles and attributes too."""
    return printable_lines(value) if type(value) is str else value  # markup has its own class


def render(template: str, facts: Mapping[str, Any]) -> str:
    return _templates().get_template(template).render(**facts)


def html(value: Block | Section | Sequence[Section]) -> Markup:
    """Return a block, or sections."""
    if isinstance(value, list | Section):
        return to_html(value if isinstance(value, list) else [value], has_scripts=True)
    return block_html(cast("Block", value), has_scripts=True)


def failure(message: str, title: str) -> Markup:
    return block_html(Fault(plain(message), title=title))


def plain(text: object) -> str:
    """Return a name or a key in one line: control and direction characters are escaped."""
    return printable(str(text))


def lines(text: object) -> str:
    """Return text of several lines, escaped like `plain`: browsers hide a NUL, and obey a U+202E."""
    return printable_lines(str(text))

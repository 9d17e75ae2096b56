"""Rewrites docstrings so that griffe parses them; it runs without Penstock."""

from __future__ import annotations

import re

SECTION = re.compile(r"^(?:Args|Attributes|Raises):\n(?:(?: {4}.*)?\n?)*", re.M)
COMBINED = re.compile(r"^ {4}(\w+(?:, \w+)+)(:.*(?:\n {8}.*)*)", re.M)


def with_separate_names(docstring: str) -> str:
    """Return a docstring in which each name of an entry such as `a, b: …` has an entry of its own."""

    def separate(entry: re.Match[str]) -> str:
        return "\n".join(f"    {name}{entry[2]}" for name in entry[1].split(", "))

    def of_section(section: re.Match[str]) -> str:
        return COMBINED.sub(separate, section[0])

    return SECTION.sub(of_section, docstring)

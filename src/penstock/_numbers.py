"""Whole numbers in untrusted text: of any length, in any script."""

from __future__ import annotations

_MOST_DIGITS = 19


def count_in(text: str, below: int = 1 << 63) -> int | None:
    """Return the number of ASCII digits; None for other text, and for numbers of `below` or more.

    `int` takes digits of every script, signs, blanks and `_`, and raises for 4,301 digits.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    number = int(digits or "0") if len(digits) <= _MOST_DIGITS else below
    return number if number < below else None

"""What data say is shown, never obeyed: characters that steer a terminal or turn the direction of text are escaped.

Errors and what commands print go through `printable`: a name or a value can't clear the screen, forge a line or look
like another one, and a lone surrogate can be printed.
"""

from __future__ import annotations

import re

WHOLE_CHARACTERS, PART_CHARACTERS = 8000, 1000
"""Most of a message, and of what one part of it says: a path stands whole, a value in its midst does not."""

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_IN_LINES = re.compile(_STEERING.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str) -> str:
    r"""One line: the same text with `\x1b`, `\n`, `\u202e` for characters that would steer a terminal."""
    return _STEERING.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """The same for text of several lines, whose line ends and tabs stay."""
    return _IN_LINES.sub(_escaped, text)


def printable_json(document: str) -> str:
    r"""The same for a JSON document, which stays one and means the same: `\u001b`."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def shortened(text: str, most_characters: int = WHOLE_CHARACTERS) -> str:
    """Text of the data's or the user's own, in the middle of which a megabyte may stand, as far as it helps."""
    left_out = len(text) - most_characters
    half = most_characters // 2
    return text if left_out <= 0 else f"{text[:half]} … ({left_out:,} characters) … {text[-half:]}"


def shortened_part(text: str) -> str:
    """The same of one part of a message."""
    return shortened(text, PART_CHARACTERS)


def recordable(text: str) -> str:
    r"""The same as UTF-8 can hold it: a byte of a file name that is none stands as `\udce9`."""
    return text.encode(errors="backslashreplace").decode()


def _escaped(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1] if not found[0].isprintable() else f"\\u{ord(found[0]):04x}"

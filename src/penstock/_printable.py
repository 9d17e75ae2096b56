"""Escaping of untrusted text: characters that control a terminal or the direction of text.

Errors and output of commands pass through `printable`: a name or a value can't clear the screen, forge a line or look
like another one, and a lone surrogate can be printed.
"""

from __future__ import annotations

import os
import re

_MOST_PATHS = 1024
_as_written: dict[str, str] = {}


def remember_path(absolute: str, path: str) -> None:
    """Let messages show `path` for `absolute`; the oldest of many paths is forgotten."""
    if len(_as_written) >= _MOST_PATHS:
        _as_written.pop(next(iter(_as_written)), None)
    _as_written[absolute.rstrip("/")] = path.rstrip("/")


def path_as_given(path: str) -> str:
    """Return an absolute path relative to what the user wrote, if that still leads to it.

    After a change of the working directory a relative path would name another file: then the path stays absolute.
    """
    above = path if path.startswith("/") else ""
    while above and above not in _as_written:
        above = above.rpartition("/")[0]
    if not above:
        return path
    written = _as_written[above]
    try:
        leads_there = os.path.abspath(os.path.expanduser(written)) == os.path.abspath(above)
    except OSError:  # the working directory was removed
        leads_there = False
    return written + path[len(above) :] if leads_there else path


WHOLE_CHARACTERS, PART_CHARACTERS = 8000, 1000
"""Maximum length of a message, and of one value in it: a path is shown whole, a value inside a message isn't."""

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_IN_LINES = re.compile(_STEERING.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str) -> str:
    r"""Return text as one line, with `\x1b`, `\n`, `\u202e` for characters that control a terminal."""
    return _STEERING.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Return text of several lines, escaped except for line ends and tabs."""
    return _IN_LINES.sub(_escaped, text)


def printable_json(document: str) -> str:
    r"""Return an equivalent JSON document, with escapes such as `\u001b`."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def shortened(text: str, most_characters: int = WHOLE_CHARACTERS) -> str:
    """Return untrusted text without its middle if it is long."""
    left_out = len(text) - most_characters
    half = most_characters // 2
    return text if left_out <= 0 else f"{text[:half]} … ({left_out:,} characters) … {text[-half:]}"


def shortened_part(text: str) -> str:
    """Return one value of a message, shortened."""
    return shortened(text, PART_CHARACTERS)


def recordable(text: str) -> str:
    r"""Return text that UTF-8 can encode: invalid bytes of a file name become `\udce9`."""
    return text.encode(errors="backslashreplace").decode()


def _escaped(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1] if not found[0].isprintable() else f"\\u{ord(found[0]):04x}"

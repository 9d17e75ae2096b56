"""Local paths as the user wrote them, for error messages; all other code works with the absolute path."""

from __future__ import annotations

import os

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

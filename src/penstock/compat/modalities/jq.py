"""The first result of a jq program on a line of JSON: simple paths by ourselves, the rest by the `jq` package."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from penstock._optional import require
from penstock.errors import ConfigError
from penstock.formats.jsonl.source import decode_line

_PATH = re.compile(r"\s*((?:\.[A-Za-z_][A-Za-z0-9_]*)+)\s*")


def first_result(pattern: str) -> Callable[[bytes], Any]:
    """A function from a line to what `pattern` gives for it first; None for null, and for a key that is not there.

    The function raises ValueError where the line is no JSON, the program fails on it, or gives nothing.

    Args:
        pattern: a jq program, such as `.text` or `.meta.title + ": " + .text`.

    Raises:
        MissingExtra: it is no simple path, and the `jq` package is not installed.
        ValueError: the program has an error, or the line is no JSON.
    """
    path = _PATH.fullmatch(pattern)
    if path:
        keys = path[1].split(".")[1:]
        return lambda line: _follow(decode_line(line), keys)
    program: Any = require("jq", extra="jq").compile(pattern)

    def first(line: bytes) -> Any:
        try:
            return program.input_text(line.decode()).first()
        except StopIteration:
            raise ConfigError(f"the jq program {pattern!r} gives nothing") from None

    return first


def _follow(value: Any, keys: list[str]) -> Any:
    for key in keys:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConfigError(f"no field {key!r} in a value that is no object", found=type(value).__name__)
        value = value.get(key)
    return value

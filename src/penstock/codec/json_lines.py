"""A sample as a line of JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from penstock.types import Sample


def encode_line(sample: Sample) -> bytes:
    """One line, without its end. Not by msgspec, which would turn NaN into null and bytes into text without a word."""
    try:
        return _text.encode(sample).encode()
    except UnicodeEncodeError:
        return _escaped.encode(sample).encode()  # a lone surrogate, which only an escape can hold


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")


_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)
_escaped = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=_plain)

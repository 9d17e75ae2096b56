"""JSON lines."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from penstock.types import Sample


def encode_line(sample: Sample) -> bytes:
    """Return one line without its end. msgspec would silently turn NaN into null and bytes into text."""
    try:
        return _text.encode(sample).encode()
    except UnicodeEncodeError:
        return _escaped.encode(sample).encode()  # a lone surrogate, which is only valid as an escape


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")


_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)
_escaped = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=_plain)

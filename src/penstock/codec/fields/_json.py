"""JSON encoding."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from penstock.codec.fields._codec import bad_value, damaged, text_of
from penstock.types import Buffer


def encode_json(value: Any) -> bytes:
    """Encode with keys in their own order and ASCII escapes; arrays become lists."""
    try:
        return json.dumps(value.tolist() if isinstance(value, np.ndarray) else value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise bad_value("json", value, "a JSON value", str(error)) from error


def decode_json(data: Buffer) -> Any:
    text = text_of("json", data)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged("json", error, "JSON", len(text[: getattr(error, "pos", 0)].encode())) from error

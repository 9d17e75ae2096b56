"""Samples with a column of each encoding of MDS, but for the one that runs code."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import numpy as np
from PIL import Image

COLUMNS = {
    "s": "str",
    "i": "int",
    "b": "bytes",
    "u": "uint16",
    "f": "float16",
    "si": "str_int",
    "sf": "str_float",
    "sd": "str_decimal",
    "j": "json",
    "a": "ndarray",
    "ad": "ndarray:int16",
    "as": "ndarray:float32:2,3",
    "p": "pil",
    "png": "png",
    "jpeg": "jpeg",
    "ja": "jpeg_array",
    "lp": "list[pil]",
    "lj": "list[png]",
}


def sample(number: int, names: list[str]) -> dict[str, Any]:
    """Sample `number`, its fields of these names."""
    image = Image.new("RGB", (number % 5 + 1, 3), (number, 0, 0))
    file = io.BytesIO()
    image.save(file, "JPEG")
    values: dict[str, Any] = {
        "s": f"é {number}",
        "i": -number,
        "b": bytes(number),
        "u": number,
        "f": number / 2,
        "si": 10**number,
        "sf": 1.5,
        "sd": Decimal(number) / 7,
        "j": {"a": [number, None]},
        "a": np.arange(number + 1, dtype=np.uint8).reshape(1, -1),
        "ad": np.ones(number % 3 + 1, np.int16),
        "as": np.ones((2, 3), np.float32),
        "p": image,
        "png": image,
        "jpeg": image,
        "ja": [file.getvalue()],
        "lp": [image] * (number % 3),
        "lj": [image],
    }
    return {name: values[name] for name in names}

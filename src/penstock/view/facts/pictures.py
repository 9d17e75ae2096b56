"""Small pictures of decoded and stored parts."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from penstock.view.facts.bounds import MOST_PIXELS
from penstock.view.facts.media import thumbnail


def small_picture(value: Any, most_side: int) -> bytes | None:
    """Return a small JPEG of a stored or decoded picture; None if it isn't one, or has too many pixels."""
    if isinstance(value, Mapping):
        value = value.get("bytes")
    if isinstance(value, bytes | bytearray | memoryview):
        return thumbnail(bytes(value), most_side)
    if not (hasattr(value, "mode") and hasattr(value, "thumbnail")) or value.width * value.height > MOST_PIXELS:
        return None
    image = value.copy()
    image.thumbnail((most_side, most_side))
    out = io.BytesIO()
    image.convert("RGB").save(out, "JPEG", quality=85)
    return out.getvalue()

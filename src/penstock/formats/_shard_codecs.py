"""Which format decodes the shards of a layout: an index may hold shards of several."""

from __future__ import annotations

from typing import Any

from penstock.formats import get_format
from penstock.formats._index_json import Layout
from penstock.formats._shard_source import CodecMaker

_REGISTERED = {"json": "json-shards"}


def codec_of(layout: Layout) -> CodecMaker:
    """What makes the codec of a layout's samples; its format is imported when it is first met."""
    chosen: Any = get_format(_REGISTERED.get(layout.format, layout.format))
    return chosen.codec

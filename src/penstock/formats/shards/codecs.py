"""Which format decodes the shards of a layout: an index may hold shards of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.formats import get_format
from penstock.formats.shards.index_json import FORMATS
from penstock.formats.shards.source import CodecMaker

_REGISTERED = {"json": "json-shards"}


def registered_name(stored: str) -> str:
    return _REGISTERED.get(stored, stored)


class _Codecs(Mapping[str, CodecMaker]):
    """Codec makers by the name that stands in an index; a format is imported when a shard of it is met."""

    def __getitem__(self, stored: str) -> CodecMaker:
        chosen: Any = get_format(registered_name(stored))
        return chosen.codec

    def __iter__(self) -> Iterator[str]:
        return iter(FORMATS)

    def __len__(self) -> int:
        return len(FORMATS)


CODECS: Mapping[str, CodecMaker] = _Codecs()

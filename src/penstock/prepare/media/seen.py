"""What an earlier run of `prepare_media` looked at: `index.sqlite.penstock`, beside the index.

One MessagePack map. It counts only while the index beside it is the one that was written with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, get_args

import msgspec

from penstock.abc import Store
from penstock.codec.av_header import MediaDepth
from penstock.errors import NotFound
from penstock.formats.samples.media_index import MediaFilter

Stamp: TypeAlias = tuple[int, int]
"""Size in bytes, and time of the last change in nanoseconds, or a digest of a store's version; -1 without either."""

DEPTHS: tuple[MediaDepth, ...] = get_args(MediaDepth)
"""From the least to the most that is read."""

_VERSION = 2  # the rows of version 1 may have counts that no header stated
_MOST_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Seen:
    """Files, or shards, by name, and how they were looked at."""

    stamps: Mapping[str, Stamp]
    filters: tuple[MediaFilter, ...]
    depth: MediaDepth


class _Stored(msgspec.Struct):
    version: int
    binding: str
    filters: tuple[MediaFilter, ...]
    depth: MediaDepth
    stamps: dict[str, Stamp]


def seen_path(index: str) -> str:
    """Path of the side file of an index."""
    return f"{index}.penstock"


def open_seen(store: Store, index: str, binding: str) -> Seen:
    """What is known; nothing where there is no side file, or it belongs to another index.

    Args:
        store: where the index is.
        index: its path.
        binding: digest of the index.
    """
    path = seen_path(index)
    try:
        found = msgspec.msgpack.decode(store.get(path), type=_Stored) if store.size(path) < _MOST_BYTES else None
    except (NotFound, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if found is None or found.version != _VERSION or found.binding != binding:
        return Seen({}, (), "headers")
    stamps = {name: stamp for name, stamp in found.stamps.items() if stamp[1] >= 0}
    return Seen(stamps, found.filters, found.depth)


def write_seen(seen: Seen, binding: str) -> bytes:
    """The bytes of the side file of an index with this digest."""
    filters = tuple(dict.fromkeys(seen.filters))
    return msgspec.msgpack.encode(_Stored(_VERSION, binding, filters, seen.depth, dict(seen.stamps)))

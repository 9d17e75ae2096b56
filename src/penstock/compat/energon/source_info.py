"""Energon's module `source_info`: its names, most of them made elsewhere."""

from __future__ import annotations

import functools
from typing import Any

from penstock.compat.energon.epathlib import EPath
from penstock.compat.energon.samples import SourceInfo as SourceInfo
from penstock.compat.energon.samples import sources_of
from penstock.cook.stores import add_source

get_source_info = sources_of

_LINES = ".jsonl"


def as_there(info: SourceInfo) -> SourceInfo:
    """Describe an origin as the original does: absolute `EPath`s, strings for JSONL; lines have numbers."""
    given, index, shard = str(info.dataset_path), info.index, info.shard_name
    path = _path(given)
    if not given.endswith(_LINES):
        shard = str(path) if shard == given else shard
    elif isinstance(index, str):
        index = int(index.removesuffix(".json"))
    return SourceInfo(path, index, shard, info.file_names)


@functools.lru_cache(1024)
def _path(path: str) -> str | EPath:
    return str(EPath(path)) if path.endswith(_LINES) else EPath(path)


def add_source_info(sample: Any, *source_infos: SourceInfo) -> Any:
    """Add to the `__sources__` of a sample, a dict or an object, and return it."""
    for info in source_infos:
        add_source(sample, info)
    return sample

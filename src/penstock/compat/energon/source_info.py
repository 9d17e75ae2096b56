"""Energon's module `source_info`: its names, most of them made elsewhere."""

from __future__ import annotations

from typing import Any

from penstock.compat.energon.samples import SourceInfo as SourceInfo
from penstock.compat.energon.samples import sources_of
from penstock.cook.stores import add_source

get_source_info = sources_of


def add_source_info(sample: Any, *source_infos: SourceInfo) -> Any:
    """Add to the `__sources__` of a sample, a dict or an object, which is returned."""
    for info in source_infos:
        add_source(sample, info)
    return sample

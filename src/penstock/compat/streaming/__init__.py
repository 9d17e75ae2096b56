"""MosaicML Streaming's names over Penstock: the same arguments, samples and order, without its shared state.

Each name is imported at first use. torch is needed for `StreamingDataLoader` alone; where it is installed, the datasets
are torch's, so that any `DataLoader` takes them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.compat.streaming.dataloader import StreamingDataLoader as StreamingDataLoader
    from penstock.compat.streaming.dataset import StreamingDataset as StreamingDataset
    from penstock.compat.streaming.local import LocalDataset as LocalDataset
    from penstock.compat.streaming.streams import Stream as Stream
    from penstock.compat.streaming.util import clean_stale_shared_memory as clean_stale_shared_memory
    from penstock.compat.streaming.util import merge_index as merge_index
    from penstock.compat.streaming.writers import CSVWriter as CSVWriter
    from penstock.compat.streaming.writers import JSONWriter as JSONWriter
    from penstock.compat.streaming.writers import MDSWriter as MDSWriter
    from penstock.compat.streaming.writers import TSVWriter as TSVWriter
    from penstock.compat.streaming.writers import XSVWriter as XSVWriter

_WHERE = {
    "CSVWriter": "writers",
    "JSONWriter": "writers",
    "LocalDataset": "local",
    "MDSWriter": "writers",
    "Stream": "streams",
    "StreamingDataLoader": "dataloader",
    "StreamingDataset": "dataset",
    "TSVWriter": "writers",
    "XSVWriter": "writers",
    "clean_stale_shared_memory": "util",
    "merge_index": "util",
}

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "XSVWriter",
    "clean_stale_shared_memory",
    "merge_index",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__

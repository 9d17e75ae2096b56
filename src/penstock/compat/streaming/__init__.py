"""MosaicML Streaming's API on top of Penstock: the same arguments, samples and order.

It has no shared state. Each name is imported at first use. torch is required only for `StreamingDataLoader`; if it is
installed, the datasets are torch datasets, so that any `DataLoader` accepts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.codec.fields import register_encoding as register_encoding
    from penstock.compat.streaming import base as base  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
    from penstock.compat.streaming import multimodal as multimodal
    from penstock.compat.streaming import text as text
    from penstock.compat.streaming import vision as vision
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

__getattr__, __dir__ = facade(__name__, modules=True)

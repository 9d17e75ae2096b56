"""The original's `streaming.base`, under the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.compat.streaming.dataloader import StreamingDataLoader as StreamingDataLoader
    from penstock.compat.streaming.dataset import StreamingDataset as StreamingDataset
    from penstock.compat.streaming.local import LocalDataset as LocalDataset
    from penstock.compat.streaming.streams import Stream as Stream
    from penstock.compat.streaming.writers import CSVWriter as CSVWriter
    from penstock.compat.streaming.writers import JSONWriter as JSONWriter
    from penstock.compat.streaming.writers import MDSWriter as MDSWriter
    from penstock.compat.streaming.writers import TSVWriter as TSVWriter
    from penstock.compat.streaming.writers import XSVWriter as XSVWriter

__getattr__, __dir__ = facade(__name__, modules=True)

"""The seams of Penstock: every Protocol that a plug-in may implement, with its laws.

What a plug-in implements, in this order to read: `sources` (`Source`, `TokenSource`, `Packing`), `streams` (`Stream`,
`Order`), `stores` (`Store`, `Staged`), `formats` (`Format`, `Writer`, `Executor`).

What it may add to be faster or safer, each with what it gains: `powers`.

Take the names from here. Each law is tested by a suite in `penstock.testing`.
"""

from __future__ import annotations

from penstock.abc.formats import Executor, Format, Writer
from penstock.abc.powers import (
    SupportsBlocks,
    SupportsDocumentFlags,
    SupportsFiles,
    SupportsKeys,
    SupportsMmap,
    SupportsPlaces,
    SupportsPrefetch,
    SupportsRuns,
    SupportsSubstitutes,
)
from penstock.abc.sources import Packing, Source, TokenSource
from penstock.abc.stores import Staged, Store
from penstock.abc.streams import Order, Stream

__all__ = [
    "Executor",
    "Format",
    "Order",
    "Packing",
    "Source",
    "Staged",
    "Store",
    "Stream",
    "SupportsBlocks",
    "SupportsDocumentFlags",
    "SupportsFiles",
    "SupportsKeys",
    "SupportsMmap",
    "SupportsPlaces",
    "SupportsPrefetch",
    "SupportsRuns",
    "SupportsSubstitutes",
    "TokenSource",
    "Writer",
]

"""Extension points: every protocol that a plug-in may implement, with its contract.

Required, in reading order: `sources` (`Source`, `TokenSource`, `Packing`), `streams` (`Stream`, `Order`), `stores`
(`Store`, `Staged`), `formats` (`Format`, `Writer`, `Executor`).

Optional capabilities that make a plug-in faster or safer, each with its gain: `powers`.

Import the names from this module. A suite in `penstock.testing` tests each contract.
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

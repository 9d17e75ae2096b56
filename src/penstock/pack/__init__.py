"""Packers, which turn documents into token windows with labels."""

from penstock.pack.best_fit import BestFit, PackedWindows
from penstock.pack.by_length import PackByLength
from penstock.pack.chunk import Chunk, Windows
from penstock.pack.fill_in_the_middle import FillInTheMiddle
from penstock.pack.megatron_blocks import MegatronBlocks, MegatronWindows
from penstock.pack.whole import Whole, WholeDocuments

__all__ = [
    "BestFit",
    "Chunk",
    "FillInTheMiddle",
    "MegatronBlocks",
    "MegatronWindows",
    "PackByLength",
    "PackedWindows",
    "Whole",
    "WholeDocuments",
    "Windows",
]

"""Documents → windows of tokens, with labels."""

from penstock.pack.best_fit import BestFit, PackedWindows
from penstock.pack.chunk import Chunk, Windows
from penstock.pack.whole import Whole, WholeDocuments

__all__ = ["BestFit", "Chunk", "PackedWindows", "Whole", "WholeDocuments", "Windows"]

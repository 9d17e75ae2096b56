"""Documents → windows of tokens, with labels."""

from penstock.pack.chunk import Chunk, Windows
from penstock.pack.whole import Whole, WholeDocuments

__all__ = ["Chunk", "Whole", "WholeDocuments", "Windows"]

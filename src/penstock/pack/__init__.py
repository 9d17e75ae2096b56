"""Documents → windows of tokens, with labels."""

from penstock.pack.chunk import Chunk, Windows

__all__ = ["Chunk", "Windows"]

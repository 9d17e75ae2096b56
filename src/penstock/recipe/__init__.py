"""Files that describe a stream, and back: Energon's metadatasets, and recipes of our own."""

from penstock.recipe.metadataset import open_metadataset, traverse_metadataset

__all__ = ["open_metadataset", "traverse_metadataset"]

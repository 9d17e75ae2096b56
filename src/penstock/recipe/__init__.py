"""Files that describe streams: Penstock's recipes, and Energon's metadatasets."""

from penstock.recipe.metadataset import open_metadataset, traverse_metadataset
from penstock.recipe.recipe import Recipe, open_recipe, read_recipe

__all__ = ["Recipe", "open_metadataset", "open_recipe", "read_recipe", "traverse_metadataset"]

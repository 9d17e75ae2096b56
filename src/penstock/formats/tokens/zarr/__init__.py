"""One-dimensional zarr arrays of numbers, versions 2 and 3, read by their chunk files without zarr.

`meta` metadata · `decode` the bytes of a chunk · `files`, `cache`, `span`, `chunks` reading of an array · `foreign`
what only zarr-python can read · `problems`.
"""

"""One-dimensional zarr arrays of numbers, versions 2 and 3, read by their chunk files without zarr.

`meta` metadata and problems · `decode` the bytes of a chunk · `files`, `span`, `chunks` reading of an array · `foreign`
arrays that only zarr-python can read.
"""

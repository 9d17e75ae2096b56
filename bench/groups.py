"""flat-tokens groups for the benchmarks in common layouts, written by zarr-python and not by Penstock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import data
import numpy as np
from numpy.typing import NDArray

TOKENS, LARGE_TOKENS = 25_000_000, 100_000_000
_VOCAB_SIZE = 50_257

LAYOUTS = ("raw 64Ki", "raw 1Mi", "sharded raw", "seqax")
"""Zarr version 2, raw chunks of 2^16 and 2^20; version 3, raw 2^16 in shards of 2^22; the default of seqax."""


def encoded_tokens(n_tokens: int) -> NDArray[np.uint32]:
    """Return uint32[n]: heavy-tailed ids with start bits, in sequences of 665 tokens on average."""
    rng = np.random.default_rng(11)
    ids = (rng.zipf(1.2, n_tokens) % _VOCAB_SIZE).astype(np.uint32) * 2
    ids[seq_starts(n_tokens)[:-1]] += 1
    return ids


def seq_starts(n_tokens: int) -> NDArray[np.int64]:
    """Return int64[n + 1]: the starts of those sequences."""
    rng = np.random.default_rng(12)
    ends = np.cumsum(rng.integers(1, 1330, n_tokens // 500))
    return np.concatenate([[0], ends[ends < n_tokens], [n_tokens]])


def plain(n_tokens: int) -> Path:
    """Return a flat file of the encoded tokens, for the memory map."""
    return data.made(f"flat-{n_tokens // 10**6}m.bin", lambda path: encoded_tokens(n_tokens).tofile(path))


def group(layout: str, n_tokens: int) -> Path:
    """Return the group in one of `LAYOUTS`."""

    def make(path: Path) -> None:
        import numcodecs
        import zarr

        blosc, delta = numcodecs.Blosc("lz4", 5, 2), numcodecs.Delta("<i8")
        tokens: dict[str, Any] = {"chunks": (1 << 20,), "compressors": None}
        starts: dict[str, Any] = {"chunks": (1 << 16,), "compressors": None}
        if layout == "raw 64Ki":
            tokens["chunks"] = (1 << 16,)
        elif layout == "sharded raw":
            tokens |= {"chunks": (1 << 16,), "shards": (1 << 22,)}
        elif layout == "seqax":
            tokens = {"chunks": (1 << 22,), "compressors": blosc}
            starts = {"chunks": (1 << 20,), "compressors": blosc, "filters": [delta]}
        root = zarr.create_group(str(path), zarr_format=3 if layout == "sharded raw" else 2)
        root.attrs["max_token_id"] = _VOCAB_SIZE - 1
        root.create_array("encoded_tokens", shape=(n_tokens,), dtype="<u4", **tokens)[:] = encoded_tokens(n_tokens)
        borders = seq_starts(n_tokens).astype(np.uint64)
        root.create_array("seq_starts", shape=borders.shape, dtype="<u8", **starts)[:] = borders

    return data.made(f"flat-{n_tokens // 10**6}m-{layout.replace(' ', '-')}.zarr", make)

"""Conversion of items to the bytes of a chunk file, and the compressions of a writer. No files are used here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock._optional import require
from penstock.errors import ConfigError
from penstock.formats.tokens.zarr.decode import crc32c
from penstock.formats.tokens.zarr.meta import ArrayMeta, Chain, Codec, Json, Shard

CHUNK_TOKENS = 1 << 20
CHUNK_STARTS = 1 << 16
SEQAX_CHUNK_TOKENS, SEQAX_CHUNK_STARTS = 1 << 22, 1 << 20

_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_BLOSC: dict[str, Json] = {
    # Blocks of 64 KiB: a random window decodes a quarter as much as with the default of seqax.
    "blosc": {"cname": "lz4", "clevel": 5, "shuffle": 2, "blocksize": 16384},
    "blosc-zstd": {"cname": "zstd", "clevel": 1, "shuffle": 2, "blocksize": 16384},
    "seqax": {"cname": "lz4", "clevel": 5, "shuffle": 2, "blocksize": 0},
}
COMPRESSIONS = (*_BLOSC, "zstd")
"""Values of `compressor=` besides None."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Storage options of the arrays of a writer.

    Attributes:
        zarr_format: 2 or 3.
        compressor: one of `COMPRESSIONS`; `"seqax"` stores exactly as seqax's own writer does. None stores ids
            unchanged, which is read fastest.
        chunk_tokens: tokens per chunk file; with shards, per inner chunk.
        chunk_starts: entries per chunk file of `seq_starts`.
        shard_tokens: tokens per file with several chunks; a multiple of `chunk_tokens`, version 3 only.
    """

    zarr_format: int
    compressor: str | None
    chunk_tokens: int
    chunk_starts: int
    shard_tokens: int | None

    def tokens_meta(self, num_items: int) -> ArrayMeta:
        """Return the metadata of `encoded_tokens`."""
        fill = None if self.compressor == "seqax" else 0
        dtype, chain = np.dtype(np.uint32), self._chain("<u4")
        if self.shard_tokens is None:
            return self._meta(num_items, self.chunk_tokens, dtype, fill, chain, None)
        return self._meta(num_items, self.shard_tokens, dtype, fill, chain, Shard(self.chunk_tokens))

    def starts_meta(self, num_items: int) -> ArrayMeta:
        """Return the metadata of `seq_starts`."""
        chain = self._chain("<u8")
        if self.compressor == "seqax":
            chain = Chain(np.dtype("<i8"), np.dtype(np.int64), chain.codecs)
        return self._meta(num_items, self.chunk_starts, np.dtype(np.uint64), 0, chain, None)

    def _meta(
        self, num_items: int, chunk_items: int, dtype: Any, fill: int | None, chain: Chain, shard: Shard | None
    ) -> ArrayMeta:
        key_start = "c/" if self.zarr_format == 3 else ""
        return ArrayMeta(self.zarr_format, num_items, chunk_items, dtype, fill, chain, shard, key_start)

    def _chain(self, stored: str) -> Chain:
        dtype = np.dtype(stored)
        if self.compressor is None:
            return Chain(dtype)
        return Chain(dtype, None, (_codec(self.compressor, self.zarr_format, dtype.itemsize),))


def make_layout(
    path: str,
    zarr_format: int,
    *,
    compressor: str | None = None,
    chunk_tokens: int | None = None,
    chunk_starts: int | None = None,
    shard_tokens: int | None = None,
) -> Layout:
    """Return the layout for a writer's options; raise `ConfigError` for invalid ones."""
    if zarr_format not in (2, 3):
        raise ConfigError("unknown zarr version", path=path, found=zarr_format, expected="2 or 3")
    if compressor is not None and compressor not in COMPRESSIONS:
        known = ", ".join(COMPRESSIONS)
        raise ConfigError("unknown compressor", path=path, found=repr(compressor), expected=f"None, {known}")
    seqax = compressor == "seqax"
    if seqax and zarr_format == 3:
        raise ConfigError("seqax's own layout is zarr version 2", path=path, found="zarr_format 3")
    tokens = (SEQAX_CHUNK_TOKENS if seqax else CHUNK_TOKENS) if chunk_tokens is None else chunk_tokens
    starts = (SEQAX_CHUNK_STARTS if seqax else CHUNK_STARTS) if chunk_starts is None else chunk_starts
    for name, items, width in (("chunk_tokens", tokens, 4), ("chunk_starts", starts, 8)):
        if not 1 <= items <= (1 << 30) // width:
            raise ConfigError(f"invalid {name}", path=path, found=items, expected=f"1 to {(1 << 30) // width}")
    if shard_tokens is not None and (zarr_format != 3 or shard_tokens % tokens or not 1 <= shard_tokens <= 1 << 28):
        expected = f"zarr_format 3, and a multiple of chunk_tokens ({tokens}) up to {1 << 28}"
        raise ConfigError("invalid shard_tokens", path=path, found=f"shard_tokens {shard_tokens}", expected=expected)
    return Layout(zarr_format, compressor, tokens, starts, shard_tokens)


def encode_file(meta: ArrayMeta, items: NDArray[Any]) -> list[memoryview]:
    """Return the bytes of a chunk file, in pieces.

    Args:
        meta: metadata of the array; its length is ignored.
        items: at least one and at most `meta.chunk_items`, in little-endian order; the rest is filled with zeros.
    """
    if meta.shard is None:
        return [encode_chunk(meta.chain, _padded(items, meta.chunk_items))]
    cell_items = meta.cell_items
    cells = [
        encode_chunk(meta.chain, _padded(items[start : start + cell_items], cell_items))
        for start in range(0, len(items), cell_items)
    ]
    index = np.full((meta.cells_per_file, 2), np.uint64((1 << 64) - 1), "<u8")
    lengths = np.array([len(cell) for cell in cells], np.uint64)
    index[: len(cells), 0] = np.cumsum(lengths) - lengths
    index[: len(cells), 1] = lengths
    table = index.tobytes()
    return [*cells, memoryview(table + crc32c(table).to_bytes(4, "little"))]


def encode_chunk(chain: Chain, items: NDArray[Any]) -> memoryview:
    """Return the stored bytes of a whole chunk."""
    if chain.delta is not None:
        signed = items.view(chain.delta)
        items = np.diff(signed, prepend=signed.dtype.type(0)).astype(chain.stored, copy=False)
    if not chain.codecs:
        return byte_view(items)
    return byte_view(_compress(chain.codecs[0], items))


def _compress(codec: Codec, items: NDArray[Any]) -> bytes:
    options: Mapping[str, Any] = codec.options
    if codec.name == "zstd":
        return require("numcodecs.zstd", extra="zarr").compress(items, options["level"])
    shuffle = options["shuffle"]
    number = shuffle if isinstance(shuffle, int) else _SHUFFLES.index(shuffle)
    blosc = require("numcodecs.blosc", extra="zarr")
    return blosc.compress(items, options["cname"].encode(), options["clevel"], number, options["blocksize"])


def _codec(name: str, zarr_format: int, item_bytes: int) -> Codec:
    if name == "zstd":
        return Codec("zstd", {"id": "zstd", "level": 1} if zarr_format == 2 else {"level": 1, "checksum": False})
    options = _BLOSC[name]
    if zarr_format == 2:
        return Codec("blosc", {"id": "blosc", **options})
    return Codec("blosc", {"typesize": item_bytes, **options, "shuffle": _SHUFFLES[options["shuffle"]]})


def _padded(items: NDArray[Any], count: int) -> NDArray[Any]:
    if len(items) == count:
        return items
    whole = np.zeros(count, items.dtype)
    whole[: len(items)] = items
    return whole

"""Digests of content: of files by name of algorithm, of blocks, and of documents independent of format."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock.errors import ConfigError
from penstock.types import Buffer

_XXHASH = {
    "xxh128": xxhash.xxh3_128_hexdigest,
    "xxh32": xxhash.xxh32_hexdigest,
    "xxh3_128": xxhash.xxh3_128_hexdigest,
    "xxh3_64": xxhash.xxh3_64_hexdigest,
    "xxh64": xxhash.xxh64_hexdigest,
}
_HASHLIB = (
    *("blake2b", "blake2s", "md5", "sha1", "sha224", "sha256", "sha384"),
    *("sha3_224", "sha3_256", "sha3_384", "sha3_512", "sha512"),
)

ALGORITHMS = (*_HASHLIB, *_XXHASH)
"""The 17 algorithms of mosaicml-streaming 0.13.0, in byte order of their names."""

BLOCK_BYTES = 1 << 26
BLOCK_TOKENS = 1 << 24
_STEP_TOKENS = 1 << 15  # 128 KiB as uint32: stays in the processor's cache


def hex_digest(algorithm: str, data: Buffer) -> str:
    """Return the lower-case hex digest of all of `data`.

    Raises:
        ConfigError: the algorithm isn't one of `ALGORITHMS`.
    """
    view = byte_view(data)
    if algorithm in _XXHASH:
        return _XXHASH[algorithm](view)
    if algorithm in _HASHLIB:
        return hashlib.new(algorithm, view, usedforsecurity=False).hexdigest()
    raise ConfigError("unknown hash algorithm", found=repr(algorithm), expected=", ".join(ALGORITHMS))


def hasher(algorithm: str) -> Any:
    """Return an incremental hash with `update(data)` and `hexdigest()`; raise `ConfigError` if unknown."""
    if algorithm in _XXHASH:
        return getattr(xxhash, _XXHASH[algorithm].__name__.removesuffix("_hexdigest"))()
    if algorithm in _HASHLIB:
        return hashlib.new(algorithm, usedforsecurity=False)
    raise ConfigError("unknown hash algorithm", found=repr(algorithm), expected=", ".join(ALGORITHMS))


def hash_blocks(data: NDArray[np.uint8], block_bytes: int = BLOCK_BYTES) -> tuple[str, ...]:
    """Return the xxh3-128 of each 64 MiB block of uint8[n_bytes], as hex; none for no bytes."""
    view = byte_view(data)
    return tuple(
        xxhash.xxh3_128_hexdigest(view[start : start + block_bytes]) for start in range(0, len(view), block_bytes)
    )


class BlockHasher:
    """Incremental version of `hash_blocks`."""

    __slots__ = ("_block_bytes", "_digests", "_filled_bytes", "_hasher")

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._digests: list[str] = []
        self._filled_bytes = 0
        self._hasher = xxhash.xxh3_128()

    def update(self, data: Buffer) -> None:
        view = byte_view(data)
        while view:
            step_bytes = min(len(view), self._block_bytes - self._filled_bytes)
            self._hasher.update(view[:step_bytes])
            self._filled_bytes += step_bytes
            view = view[step_bytes:]
            if self._filled_bytes == self._block_bytes:
                self._close_block()

    def finish(self) -> tuple[str, ...]:
        """Return the digest of each block; the last one may be short."""
        if self._filled_bytes:
            self._close_block()
        return tuple(self._digests)

    def _close_block(self) -> None:
        self._digests.append(self._hasher.hexdigest())
        self._hasher = xxhash.xxh3_128()
        self._filled_bytes = 0


def token_block_digest(tokens: NDArray[Any]) -> bytes:
    """Return 16 bytes over at most 2^24 ids, as little-endian uint32 for any width."""
    return xxhash.xxh3_128_digest(byte_view(np.ascontiguousarray(tokens, "<u4")))


class DocumentDigest:
    """xxh3-128 over the digests of blocks of 2^24 uint32 ids and the document lengths (uint64, in tokens).

    It depends only on the documents: not on the format, the token width or the pieces.
    """

    __slots__ = ("_block", "_block_tokens", "_blocks", "_lengths")

    def __init__(self) -> None:
        self._blocks = xxhash.xxh3_128()
        self._lengths = xxhash.xxh3_128()
        self._block = xxhash.xxh3_128()
        self._block_tokens = 0

    def update(self, tokens: NDArray[Any], doc_lengths: NDArray[Any]) -> None:
        """Add uint[n] ids and the int64[k] lengths of the documents that end among them, in order."""
        self.update_lengths(doc_lengths)
        start = 0
        while start < len(tokens):
            step = min(len(tokens) - start, _STEP_TOKENS, BLOCK_TOKENS - self._block_tokens)
            self._block.update(byte_view(np.ascontiguousarray(tokens[start : start + step], "<u4")))
            self._block_tokens += step
            start += step
            if self._block_tokens == BLOCK_TOKENS:
                self._close_block()

    def update_lengths(self, doc_lengths: NDArray[Any]) -> None:
        """Add only document lengths; used with `update_block` if blocks are hashed by several processes."""
        self._lengths.update(byte_view(np.ascontiguousarray(doc_lengths, "<u8")))

    def update_block(self, digest: bytes) -> None:
        """Add the `token_block_digest` of the next whole block (or of the last, short one)."""
        self._blocks.update(digest)

    def hexdigest(self) -> str:
        """Return 32 hex digits; ends the digest."""
        if self._block_tokens:
            self._close_block()
        return xxhash.xxh3_128_hexdigest(self._blocks.digest() + self._lengths.digest())

    def _close_block(self) -> None:
        self.update_block(self._block.digest())
        self._block = xxhash.xxh3_128()
        self._block_tokens = 0

"""Digests of parameters: short and stable; seeds are hashed, never added."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_RUN = 1 << 16
_HASHED_BYTES = 1 << 26


def digest(*parts: Any) -> str:
    """Return 32 hex digits over plain JSON values; equal for equal values on every machine and version."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def derive_key(seed: int, *context: int | str) -> int:
    """Return a 64-bit key from a seed and its context (epoch, child, block, …).

    Contexts are hashed, not added: seed 1 in epoch 0 and seed 0 in epoch 1 share nothing.
    """
    return int(digest("key", int(seed), *context)[:16], 16)


def array_digest(values: Any) -> str:
    """Return 16 hex digits of integers, independent of their dtype, which represent an array in recipes."""
    import numpy as np  # imported here because `penstock --help` doesn't need numpy
    import xxhash

    found = xxhash.xxh3_64()
    array = np.asarray(values).reshape(-1)
    for start in range(0, len(array), _RUN):  # a copy of the whole array may not fit into memory
        found.update(array[start : start + _RUN].astype(np.int64).tobytes())
    return found.hexdigest()


def kept_key(source: Any) -> str:
    """Return the key for data derived from a source on this host; fingerprints are samples, which may collide.

    Sources that read files have their own `kept_key`, which is unique; nodes above sources use those of the sources.
    """
    own: str | None = getattr(source, "kept_key", None)
    if own is not None:
        return own
    children = getattr(source, "children", None)
    below = [] if children is None else [kept_key(one) for one in children().values()]
    return digest(source.fingerprint, below) if below else source.fingerprint


def borders_key(source: Any) -> str:
    """Return the key for plans over the documents of a token source: their borders, or `kept_key` above 64 MiB."""
    if source.doc_starts.nbytes > _HASHED_BYTES:
        return kept_key(source)
    return f"{source.fingerprint}-{array_digest(source.doc_starts)}"

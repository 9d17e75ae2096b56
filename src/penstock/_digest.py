"""Digests of parameters: short, stable, and never sums of seeds."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_RUN = 1 << 16
_HASHED_BYTES = 1 << 26


def digest(*parts: Any) -> str:
    """32 hex digits over plain JSON values; equal for equal values on every machine and version."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def derive_key(seed: int, *context: int | str) -> int:
    """A 64-bit key from a seed and its context (epoch, child, block, …).

    Contexts are hashed, not added: seed 1 in epoch 0 and seed 0 in epoch 1 share nothing.
    """
    return int(digest("key", int(seed), *context)[:16], 16)


def array_digest(values: Any) -> str:
    """16 hex digits of whole numbers, however they are stored: what stands for an array of them in a recipe."""
    import numpy as np  # here, since `penstock --help` does without numpy
    import xxhash

    found = xxhash.xxh3_64()
    array = np.asarray(values).reshape(-1)
    for start in range(0, len(array), _RUN):  # a copy of all of them may be more than memory holds
        found.update(array[start : start + _RUN].astype(np.int64).tobytes())
    return found.hexdigest()


def borders_key(fingerprint: str, doc_starts: Any) -> str:
    """By what a plan over documents is known: a fingerprint is a sample, which two datasets may share that differ in
    the middle of their indexes. Of int64[n_docs + 1] above 64 MiB the fingerprint alone counts.
    """
    return fingerprint if doc_starts.nbytes > _HASHED_BYTES else f"{fingerprint}-{array_digest(doc_starts)}"

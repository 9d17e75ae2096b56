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


def kept_key(source: Any) -> str:
    """By what is known on this host what was derived of a source: a fingerprint is a sample, which others may share.

    What reads files has a `kept_key` of its own, which tells them from all others; what draws from sources has theirs.
    """
    own: str | None = getattr(source, "kept_key", None)
    if own is not None:
        return own
    children = getattr(source, "children", None)
    below = [] if children is None else [kept_key(one) for one in children().values()]
    return digest(source.fingerprint, below) if below else source.fingerprint


def borders_key(source: Any) -> str:
    """By what a plan over the documents of a token source is known: where they begin; above 64 MiB `kept_key`."""
    if source.doc_starts.nbytes > _HASHED_BYTES:
        return kept_key(source)
    return f"{source.fingerprint}-{array_digest(source.doc_starts)}"

"""Document digests of version 2, which can be joined: that of a + b follows from those of a and b.

Version 1 (`penstock.codec.hashes.DocumentDigest`) is a hash over blocks of all tokens, and needs them in one run.
Version 2 combines the digests of files, parts or whole datasets, computed in any order.

| step | value |
|---|---|
| a document | h: xxh3-128 of its ids as little-endian uint32, modulo p = 2^127 - 1 |
| documents h_0 … h_(n-1) | H = h_0·r^(n-1) + h_1·r^(n-2) + … + h_(n-1), modulo p, for one fixed r |
| a + b | H_a·r^(n_b) + H_b, and n_a + n_b |

Written as `2:<32 hex digits of H>:<n>`. Like version 1, it depends only on the documents and their order: not on the
format,
the token width, or the division into parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock.errors import ConfigError
from penstock.types import IntArray

_MODULUS = (1 << 127) - 1
_BASE = xxhash.xxh3_128_intdigest(b"penstock document digest 2") % _MODULUS
_TEXT = re.compile(r"2:([0-7][0-9a-f]{31}):(0|[1-9][0-9]{0,18})", re.ASCII)
_STEP_TOKENS = 1 << 15  # 128 KiB as uint32: stays in the processor's cache


class JoinedDigest:
    """Incremental digest of documents in order, added as runs or as digests of runs."""

    __slots__ = ("_documents", "_value")

    def __init__(self) -> None:
        self._value = 0
        self._documents = 0

    def update(self, tokens: NDArray[Any], doc_lengths: IntArray) -> None:
        """Add whole documents: unsigned ids [n_tokens] and their int64[n_docs] lengths.

        Raises:
            ConfigError: the lengths don't add up to the tokens.
        """
        stops = np.cumsum(doc_lengths, dtype=np.int64)
        if int(np.min(doc_lengths, initial=0)) < 0 or (int(stops[-1]) if len(stops) else 0) != len(tokens):
            found = f"{len(tokens)} tokens in documents of {int(stops[-1]) if len(stops) else 0}"
            raise ConfigError("the document lengths don't add up to the number of tokens", found=found)
        first = 0
        while first < len(stops):
            start = int(stops[first - 1]) if first else 0
            stop = max(first + 1, int(np.searchsorted(stops, start + _STEP_TOKENS, side="right")))
            self._add(tokens[start : int(stops[stop - 1])], (stops[first:stop] - start).tolist())
            first = stop

    def update_document(self, pieces: Iterable[NDArray[Any]]) -> None:
        """Add one document in pieces: unsigned ids [n]."""
        self._value = (self._value * _BASE + _of_one(pieces)) % _MODULUS
        self._documents += 1

    def update_digest(self, digest: str) -> None:
        """Add documents by their digest; raise `ConfigError` if it isn't a digest of version 2."""
        found = _TEXT.fullmatch(digest)
        if found is None:
            hint = "Version 1 digests can't be joined. Compute the digest of the documents again"
            raise ConfigError("not a version 2 document digest", found=repr(digest[:80]), hint=hint)
        documents = int(found[2])
        self._value = (self._value * pow(_BASE, documents, _MODULUS) + int(found[1], 16)) % _MODULUS
        self._documents += documents

    @property
    def num_docs(self) -> int:
        """Number of documents added so far."""
        return self._documents

    def text(self) -> str:
        """Return `2:<32 hex digits>:<documents>`."""
        return f"2:{self._value:032x}:{self._documents}"

    def _add(self, tokens: NDArray[Any], stops: list[int]) -> None:
        value, base, modulus, start = self._value, _BASE, _MODULUS, 0
        if len(stops) == 1:
            value = (value * base + _of_one([tokens])) % modulus
        else:
            ids, intdigest = byte_view(np.ascontiguousarray(tokens, "<u4")), xxhash.xxh3_128_intdigest
            for stop in stops:
                value = (value * base + intdigest(ids[4 * start : 4 * stop])) % modulus
                start = stop
        self._value = value
        self._documents += len(stops)


def _of_one(pieces: Iterable[NDArray[Any]]) -> int:
    """Return the digest of one document, which may be long, in bounded memory."""
    hasher = xxhash.xxh3_128()
    for tokens in pieces:
        for start in range(0, len(tokens), _STEP_TOKENS):
            hasher.update(byte_view(np.ascontiguousarray(tokens[start : start + _STEP_TOKENS], "<u4")))
    return hasher.intdigest()


def documents_digest_v2(tokens: NDArray[Any], lengths: IntArray) -> str:
    """Return the digest of whole documents: unsigned ids [n_tokens] of at most 32 bits, int64[n_docs] lengths.

    Raises:
        ConfigError: the lengths don't add up to the tokens.
    """
    digest = JoinedDigest()
    digest.update(tokens, lengths)
    return digest.text()


def join_digests(digests: Iterable[str]) -> str:
    """Return the digest of all documents from the digests of consecutive runs; of none: that of no document.

    Raises:
        ConfigError: one of them isn't of version 2.
    """
    joined = JoinedDigest()
    for one in digests:
        joined.update_digest(one)
    return joined.text()


def is_joinable(digest: str) -> bool:
    return _TEXT.fullmatch(digest) is not None


def documents_in(digest: str) -> int:
    """Return the number of documents of a digest of version 2; 0 for other digests."""
    found = _TEXT.fullmatch(digest)
    return 0 if found is None else int(found[2])

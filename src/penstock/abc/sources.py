"""Datasets: sources of samples, and how documents become windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from penstock.types import Batch, IntArray, Sample, Schema, TokenArray

T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """A finite, ordered, indexed dataset.

    Laws: `self[i]` is a pure function of `i`; `-len <= i < len`, else IndexError; row j of
    `get_batch(indices)` equals `self[indices[j]]`; thread-safe; picklable; usable after fork.
    """

    @property
    def schema(self) -> Schema:
        """Fields of the samples."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of the content, equal for copies. Computed at first use, in at most 64 reads."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k], not negative) as columns, in that order."""
        ...

    def children(self) -> Mapping[str, Source[Any]]:
        """Return the sources that this one is made of, by name; empty for data on disk."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description; for datasets `{"kind": "open", "format", "path", …}`."""
        ...


class TokenSource(Source[Sample], Protocol):
    """A source of documents that is also one long run of tokens.

    `self[i]` is `{"tokens": array}`, the i-th document as stored (its EOS token included, if any).
    """

    @property
    def dtype(self) -> np.dtype[Any]:
        """Native unsigned dtype of the token ids: uint8, uint16 or uint32."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        ...

    @property
    def doc_starts(self) -> IntArray:
        """First token of each document, and `num_tokens`: int64[n_docs + 1].

        May be computed at first use; windows and their labels never need it.
        """
        ...

    @property
    def eos_id(self) -> int | None:
        """Id that ends every document; None if there is none or it is unknown."""
        ...

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the tokens `[start, stop)`, uint[stop - start]; a read-only view if the format allows."""
        ...

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], as one vectorized copy, into `out` if given."""
        ...


class Packing(Protocol):
    """Packs documents into windows."""

    def __call__(self, source: TokenSource, /) -> Source[Sample]:
        """A source of windows over `source`."""
        ...

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
        """What the samples hold."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of the content; a copy elsewhere has the same one. Computed at first use, in at most 64 reads."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Columns of the samples at `indices`: int64[k] (negative ones refused), in that order."""
        ...

    def children(self) -> Mapping[str, Source[Any]]:
        """Sources that this one is made of, by name; empty for data on disk."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Plain JSON by which this source is made again: of a dataset `{"kind": "open", "format", "path", …}`."""
        ...


class TokenSource(Source[Sample], Protocol):
    """A source of documents that is also one long run of tokens.

    `self[i]` is `{"tokens": array}`, the i-th document as stored (its EOS token included, if any).
    """

    @property
    def dtype(self) -> np.dtype[Any]:
        """Native unsigned dtype of the ids: uint8, uint16 or uint32."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        ...

    @property
    def doc_starts(self) -> IntArray:
        """int64[n_docs + 1]: token position of each document's first token, and `num_tokens` at the end.

        May be computed at first use; windows and their labels never need it.
        """
        ...

    @property
    def eos_id(self) -> int | None:
        """Id that ends every document in the data; None where there is none or it is not known."""
        ...

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start]: tokens in `[start, stop)`; zero-copy and read-only where the format allows."""
        ...

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """uint[len(starts), length]: one window a row, as one vectorised copy; into `out` where given."""
        ...


class Packing(Protocol):
    """Packs documents into windows."""

    def __call__(self, source: TokenSource, /) -> Source[Sample]:
        """A source of windows over `source`."""
        ...

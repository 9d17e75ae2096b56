"""Datasets: sources of samples, and packers from documents to windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from penstock.types import Batch, IntArray, Sample, Schema, TokenArray

T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """Finite, ordered, indexed dataset.

    Contract: `self[i]` is a pure function of `i` with `-len <= i < len`, else it raises IndexError. Row j of
    `get_batch(indices)` equals `self[indices[j]]`. A source is thread-safe, picklable and usable after fork.

    Examples:
        >>> import penstock as ps
        >>> from penstock.formats.kit import as_index, as_indices, stack
        >>> from penstock.types import Field, Schema
        >>> class Squares:
        ...     schema = Schema((Field("square", "int", "int64", ()),))
        ...     fingerprint = "squares-1"
        ...     def __len__(self):
        ...         return 100
        ...     def __getitem__(self, index):
        ...         return {"square": as_index(index, len(self)) ** 2}
        ...     def get_batch(self, indices):
        ...         return stack([self[index] for index in as_indices(indices, len(self)).tolist()])
        ...     def children(self):
        ...         return {}
        ...     def recipe(self):
        ...         return {"kind": "squares"}
        >>> with ps.Loader(ps.Sequential(Squares()), global_batch=4) as loader:
        ...     next(iter(loader))
        {'square': array([0, 1, 4, 9])}
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
    """Source of documents that is also one long run of tokens.

    `self[i]` is `{"tokens": array}`, the i-th document as stored, including its EOS token if it has one.

    Examples:
        >>> import numpy as np
        >>> import penstock as ps
        >>> source = ps.open("corpus.pbin")
        >>> source.dtype, source.num_tokens, source.eos_id
        (dtype('uint16'), 45, 0)
        >>> source.doc_starts
        array([ 0,  5, 11, 18, 26, 35, 45])
        >>> source.gather(np.array([0, 5]), 4)
        array([[101, 102, 103, 104],
               [201, 202, 203, 204]], dtype=uint16)
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
        """Position of each document's first token, and `num_tokens`: int64[n_docs + 1].

        May be computed at first use. Windows and their labels never need it.
        """
        ...

    @property
    def eos_id(self) -> int | None:
        """Id that ends every document; None if documents have no such id or it is unknown."""
        ...

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the tokens `[start, stop)`, uint[stop - start]; a read-only view if the format allows."""
        ...

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], as one vectorized copy, into `out` if given."""
        ...


class Packing(Protocol):
    """Packer: a function from a token source to a source of windows.

    Examples:
        >>> import penstock as ps
        >>> from penstock.abc import Packing
        >>> def describe(packer: Packing) -> str:
        ...     windows = packer(ps.open("corpus.pbin"))
        ...     return f"{len(windows)} windows"
        >>> describe(ps.Chunk(8)), describe(ps.Whole(8))
        ('5 windows', '6 windows')
    """

    def __call__(self, source: TokenSource, /) -> Source[Sample]:
        """Return a source of windows over `source`."""
        ...

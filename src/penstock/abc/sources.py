"""Datasets: sources of samples, and what some of them can do besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.types import Batch, Extent, IntArray, Location, MediaMetadata, Place, Sample, Schema, TokenArray

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
        """Plain JSON that describes how this source was made."""
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


@runtime_checkable
class SupportsExtents(Protocol):
    """Knows where each sample's bytes are."""

    def extent(self, index: int, /) -> Extent:
        """Place of sample `index`."""
        ...


@runtime_checkable
class SupportsTokenExtents(Protocol):
    """Knows where a range of tokens is."""

    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        """File ranges that hold tokens `[start, stop)`."""
        ...


@runtime_checkable
class SupportsTokenRun(Protocol):
    """A token source whose tokens may lie in one file as a writer of the same width would put them there."""

    def token_run(self) -> Extent | None:
        """File range of all tokens, back to back and little-endian in the width of `dtype`; None where it is not so."""
        ...


@runtime_checkable
class SupportsLines(Protocol):
    """A source of lines in one file, for work on their bytes."""

    def line_ranges(self) -> IntArray:
        """int64[n, 2]: start and length in bytes of each line, without its line end."""
        ...


@runtime_checkable
class SupportsKeys(Protocol):
    """Samples have keys."""

    def index_of(self, key: str, /) -> int:
        """Index of the sample with this key; raises `NotFound`."""
        ...

    def key_of(self, index: int, /) -> str:
        """Key of sample `index`."""
        ...


@runtime_checkable
class SupportsKeyRuns(Protocol):
    """Tells many keys in one call."""

    def key_run(self, start: int, stop: int, /) -> list[str]:
        """Keys of the samples `[start, stop)`."""
        ...


@runtime_checkable
class SupportsPlaces(Protocol):
    """Tells where a sample comes from in one call: windows, and sources that are made of others."""

    def place_of(self, index: int, /) -> Place:
        """Key, documents and file ranges of sample `index`, as far as they are known; reads indexes only."""
        ...


class SupportsBlocks(Protocol):
    """Knows which samples are cheap to read together."""

    @property
    def block_starts(self) -> IntArray:
        """int64[n_blocks + 1]: first sample of each storage block (shard, tar, chunk), and `len` at the end."""
        ...


@runtime_checkable
class SupportsDocumentFlags(Protocol):
    """A token source that knows document starts inside a window without its EOS id (start bits, an index)."""

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """bool[len(starts), length]: whether each token of each window is the first of a document."""
        ...


@runtime_checkable
class SupportsFlaggedGather(Protocol):
    """A token source whose tokens carry their start flags: windows and flags come for one read."""

    def gather_flagged(
        self, starts: IntArray, length: int, out: TokenArray | None = None
    ) -> tuple[TokenArray, NDArray[np.bool_]]:
        """What `gather(starts, length, out)` and `gather_starts(starts, length)` give."""
        ...


@runtime_checkable
class SupportsFiles(Protocol):
    """A source whose samples are made of named files: a WebDataset, a folder, a JSONL in Energon's flavour."""

    def get(self, name: str, /) -> bytes:
        """The stored bytes of one file, by its full name; raises `NotFound`."""
        ...

    def get_media_metadata(self, name: str, /) -> MediaMetadata:
        """What the media index knows of one file; raises `NotFound`."""
        ...


@runtime_checkable
class SupportsDetails(Protocol):
    """A source that has more to tell of how it is stored than counts and a schema."""

    def details(self) -> dict[str, Any]:
        """What `info` shows: name → number, text, list of texts, or dict of texts."""
        ...


@runtime_checkable
class SupportsSamples(Protocol):
    """A source that reads many single samples in one call, for functions that take samples as they are."""

    def get_samples(self, indices: IntArray, /) -> list[Any]:
        """The samples at `indices`: int64[k], in that order; each equals `self[index]`."""
        ...


@runtime_checkable
class SupportsPasses(Protocol):
    """A source whose later passes hold other samples than its first: fractions of what it draws from.

    Place v is sample `v mod len(self)` of pass `v // len(self)`. Law: for `v < len(self)` each method gives what
    its counterpart of `Source` gives.
    """

    def pass_samples(self, places: IntArray, /) -> list[Any]:
        """The samples at `places`: int64[k], in that order."""
        ...

    def pass_batch(self, places: IntArray, /) -> Batch:
        """Columns of the samples at `places`: int64[k], in that order."""
        ...

    def pass_location(self, place: int, /) -> Location:
        """Where the sample at `place` comes from; its `position` is `place`."""
        ...


@runtime_checkable
class SupportsExcluded(Protocol):
    """A source that leaves out samples of its split, whose places subsets count all the same."""

    @property
    def split_size(self) -> int:
        """Samples of the split, those left out included."""
        ...

    def kept_before(self, place: int, /) -> int:
        """How many samples before `place` of the split are in the source; `place` is in `[0, split_size]`."""
        ...


class Packing(Protocol):
    """Documents → windows."""

    def __call__(self, source: TokenSource, /) -> Source[Sample]:
        """A source of windows over `source`."""
        ...


def is_token_source(source: object) -> TypeGuard[TokenSource]:
    """Whether `source` is a TokenSource, without evaluating its properties."""
    return callable(getattr(type(source), "gather", None))

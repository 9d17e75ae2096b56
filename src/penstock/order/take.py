"""A contiguous part of a source."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from penstock._borders import borders_of, document_flags, had_eos_borders
from penstock._digest import digest
from penstock._hidden import NO_RUNS, Hidden, stored_tokens
from penstock._index import as_index, as_indices
from penstock._kinds import is_token_source
from penstock._places import by_name, extents_of_tokens, keys_of, place_of, token_extents
from penstock._planes import Plane, planes_of
from penstock._resolved import excluded_of, prefetch_of, samples_of
from penstock._tree import brief, html, line, tree
from penstock.abc import Source, SupportsKeys, TokenSource
from penstock.errors import ConfigError, NotFound
from penstock.order.borders import Blocks, EvenBlocks, StoredBlocks, blocks_of
from penstock.order.permutation import size_of
from penstock.types import Batch, Extent, IntArray, Place, Sample, Schema, TokenArray

T = TypeVar("T")


@overload  # every token source is also a Source[Sample]: the first match is meant
def Take(source: TokenSource, start: int, stop: int) -> TakenTokens: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def Take(source: Source[T], start: int, stop: int) -> TakenSource[T]: ...
def Take(source: Any, start: int, stop: int) -> Any:
    """Return the samples `[start, stop)` of a source.

    Args:
        source: any source. The result of a token source is a token source of these documents.
        start: first sample.
        stop: end of the range, not included.

    Returns:
        A source of `stop - start` samples.

    Raises:
        ConfigError: the range isn't inside `[0, len(source)]`, or `source` is a stream.

    Examples:
        >>> import penstock as ps
        >>> part = ps.Take(ps.open("corpus.pbin"), 2, 5)
        >>> len(part)
        3
        >>> part[0]["tokens"]
        array([301, 302, 303, 304, 305, 306,   0], dtype=uint16)
    """
    rows = TakenSource[Any](source, operator.index(start), operator.index(stop))
    return TakenTokens(source, rows) if is_token_source(source) else rows


class TakenSource(Generic[T]):
    """The contiguous part of a source of samples that `Take` returns.

    Attributes:
        chosen: how the range was named, where it was not by its places; see `penstock.mix.subset`.
    """

    chosen: Any = None

    def __init__(self, source: Source[T], start: int, stop: int) -> None:
        size = size_of(source)
        if not 0 <= start <= stop <= size:
            raise ConfigError(
                "the range is not inside the source", found=f"[{start}, {stop})", expected=f"inside [0, {size})"
            )
        self.source = source
        self.start = start
        self.stop = stop
        self._fingerprint: str | None = None
        # Optional powers: None stands for "not supported", and makes isinstance() of their Protocols say so.
        keys = isinstance(source, SupportsKeys)
        self.index_of = self._index_of if keys else None
        self.key_of = self._key_of if keys else None
        self.key_run = self._key_run if keys else None
        self.get, self.get_media_metadata = by_name(source)[2:]
        self.get_with_shard = getattr(source, "get_with_shard", None)
        self.prefetch = self._prefetch if prefetch_of(source) is not None else None
        self.expect_parts = self._expect_parts if getattr(source, "expect_parts", None) is not None else None
        self.block_files = self._block_files if getattr(source, "block_files", None) is not None else None

    @property
    def excluded_indices(self) -> IntArray | None:
        """Excluded samples in the range, int64[k] ascending; None without an exclude list."""
        found = excluded_of(self.source)
        return None if found is None else found[(found >= self.start) & (found < self.stop)] - self.start

    @property
    def costs(self) -> IntArray | None:
        """Work per sample, int64[n]; None if unknown."""
        found: IntArray | None = getattr(self.source, "costs", None)
        return None if found is None else found[self.start : self.stop]

    @property
    def path(self) -> Any:
        """Path of the dataset; None if the source has none."""
        return getattr(self.source, "path", None)

    @property
    def schema(self) -> Schema:
        """That of the source."""
        return self.source.schema

    @property
    def fingerprint(self) -> str:
        """Digest of the source's fingerprint and the range."""
        if self._fingerprint is None:
            self._fingerprint = digest("take", self.start, self.stop, self.source.fingerprint)
        return self._fingerprint

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: that of the source."""
        return getattr(self.source, "preferred_mode", "global")

    @property
    def block_starts(self) -> IntArray:
        """Starts of the source's storage blocks within the range, int64[n_blocks + 1]."""
        return self.storage_blocks().starts()

    def storage_blocks(self) -> Blocks:
        """Return the storage blocks; see `penstock.order.borders`."""
        blocks = blocks_of(self.source)
        if isinstance(blocks, EvenBlocks):
            return blocks.cut(self.start, self.stop)
        starts = blocks.starts()
        inside = starts[(starts > self.start) & (starts < self.stop)]
        ends = [self.start, self.stop] if self.start < self.stop else [self.start]
        return StoredBlocks(np.unique(np.concatenate([inside, ends])) - self.start)

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int, /) -> T:
        return self.source[self.start + as_index(index, len(self))]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns, in that order."""
        return self.source.get_batch(as_indices(indices, len(self)) + self.start)

    def get_samples(self, indices: IntArray, /) -> list[T]:
        """Return the samples at `indices` (int64[k]), in that order."""
        return samples_of(self.source, as_indices(indices, len(self)) + self.start)

    def place_of(self, index: int, /) -> Place:
        """Return the source's place of the sample."""
        return place_of(self.source, self.start + as_index(index, len(self)))

    def children(self) -> Mapping[str, Source[T]]:
        """Return the source, under the name `source`."""
        return {"source": self.source}

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which the part can be rebuilt."""
        return {"kind": "take", "start": self.start, "stop": self.stop, "source": self.source.recipe()}

    def summary(self) -> str:
        """Return one line: the range."""
        return line("Take", {"start": self.start, "stop": self.stop}, self._fingerprint)

    def _key_of(self, index: int, /) -> str:
        """Return the key of sample `index`."""
        return cast(SupportsKeys, self.source).key_of(self.start + as_index(index, len(self)))

    def _index_of(self, key: str, /) -> int:
        """Index of the sample with this key; raises `NotFound`, also where only the rest of the source has it."""
        index = cast(SupportsKeys, self.source).index_of(key)
        if not self.start <= index < self.stop:
            raise NotFound(
                f"no sample of this part has the key {key!r}",
                found=f"it is sample {index} of the source",
                expected=f"inside [{self.start}, {self.stop})",
            )
        return index - self.start

    def _key_run(self, start: int, stop: int, /) -> list[str]:
        """Keys of the samples `[start, stop)`."""
        return keys_of(cast(SupportsKeys, self.source), self.start + start, self.start + stop)

    def _prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:
        if (prefetch := prefetch_of(self.source)) is not None:
            prefetch(batches + self.start, whole=whole)

    def _expect_parts(self, first: IntArray, stop: IntArray, /) -> None:
        source: Any = self.source
        source.expect_parts(first + self.start, stop + self.start)

    def _block_files(self, block: int, /) -> list[tuple[str, int, dict[str, str]]]:
        source: Any = self.source
        return source.block_files(int(self._source_blocks[block]))

    @cached_property
    def _source_blocks(self) -> IntArray:
        """int64[n_blocks]: number of the source's block that each block is a part of."""
        return blocks_of(self.source).block_of(self.block_starts[:-1] + self.start)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


class TakenTokens:
    """The documents `[start, stop)` of a token source, with the run of their tokens, that `Take` returns.

    Attributes:
        chosen: as in `TakenSource`.
    """

    chosen: Any = None

    def __init__(self, source: TokenSource, rows: TakenSource[Sample]) -> None:
        self.source = source
        self.start, self.stop = rows.start, rows.stop
        self._rows = rows
        self._range: tuple[int, int] | None = None
        self.index_of, self.key_of, self.key_run = rows.index_of, rows.key_of, rows.key_run
        self.prefetch, self.expect_parts, self.block_files = rows.prefetch, rows.expect_parts, rows.block_files
        # Optional powers: None stands for "not supported", and makes isinstance() of their Protocols say so.
        self.token_extent = None if extents_of_tokens(source) is None else self._token_extent
        self.stored_tokens = self._stored_tokens if getattr(source, "stored_tokens", None) else None

    @property
    def excluded_indices(self) -> IntArray | None:
        """Excluded samples in the range, int64[k] ascending; None without an exclude list."""
        return self._rows.excluded_indices

    @property
    def schema(self) -> Schema:
        """That of the source."""
        return self.source.schema

    @property
    def fingerprint(self) -> str:
        """Digest of the source's fingerprint and the range."""
        return self._rows.fingerprint

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: that of the source."""
        return self._rows.preferred_mode

    @property
    def block_starts(self) -> IntArray:
        """Starts of the source's storage blocks within the range, int64[n_blocks + 1]."""
        return self._rows.block_starts

    def storage_blocks(self) -> Blocks:
        """Return the storage blocks; see `penstock.order.borders`."""
        return self._rows.storage_blocks()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the token ids."""
        return self.source.dtype

    @property
    def num_tokens(self) -> int:
        """Total number of tokens; needs the source's document starts."""
        start, stop = self._tokens_taken()
        return stop - start

    @property
    def doc_starts(self) -> IntArray:
        """First token of each document, and `num_tokens`: int64[n_docs + 1]."""
        taken = self.source.doc_starts[self._rows.start : self._rows.stop + 1]
        starts = taken - taken[0]
        starts.flags.writeable = False
        return starts

    @property
    def eos_id(self) -> int | None:
        """That of the source."""
        return self.source.eos_id

    @property
    def had_eos_borders(self) -> bool:
        """Whether document boundaries used to come from the EOS id; see `penstock._borders.had_eos_borders`."""
        return had_eos_borders(self.source)

    @property
    def tokenizer_digest(self) -> str | None:
        """That of the source."""
        return getattr(self.source, "tokenizer_digest", None)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Sample:
        return self._rows[index]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]) as columns, in that order."""
        return self._rows.get_batch(indices)

    @property
    def planes(self) -> dict[str, Plane]:
        """The source's planes for these tokens."""
        return {name: _TakenPlane(one, self) for name, one in planes_of(self.source).items()}

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the tokens `[start, stop)`, uint[stop - start]."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.num_tokens})")
        begin, _ = self._tokens_taken()
        return self.source.tokens(begin + start, begin + stop)

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], written into `out` if given."""
        return self.source.gather(self._shifted(starts, length), length, out)

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of the windows starts a document."""
        return document_flags(self.source, self._shifted(starts, length), length)

    def place_of(self, index: int, /) -> Place:
        """Return the source's place of the document."""
        return self._rows.place_of(index)

    def children(self) -> Mapping[str, Source[Any]]:
        """Return the source, under the name `source`."""
        return self._rows.children()

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which the part can be rebuilt."""
        return self._rows.recipe()

    def summary(self) -> str:
        """Return one line: the range."""
        return self._rows.summary()

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    @property
    def first_token(self) -> int:
        """Number of the first token in the source."""
        return self._tokens_taken()[0]

    @cached_property
    def _as_stored(self) -> tuple[TakenTokens, Hidden]:
        source, hidden = stored_tokens(self.source)
        begin, end = self._tokens_taken()
        taken = (NO_RUNS if hidden is None else hidden).shifted(-begin, begin, end)
        return TakenTokens(source, TakenSource(source, self._rows.start, self._rows.stop)), taken

    def _stored_tokens(self) -> tuple[TakenTokens, Hidden]:
        """The tokens as they are stored, for borders alone, and which of them are hidden."""
        return self._as_stored

    def _token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        """File ranges that hold tokens `[start, stop)`."""
        begin, _ = self._tokens_taken()
        return token_extents(self.source, begin + start, begin + stop) or ()

    def _shifted(self, starts: IntArray, length: int) -> IntArray:
        begin, _ = self._tokens_taken()
        return as_indices(starts, self.num_tokens - length + 1) + begin

    def _tokens_taken(self) -> tuple[int, int]:
        if self._range is None:
            ends = (self._rows.start, self._rows.stop)
            begin, end = (int(borders_of(self.source, one, one)[0]) for one in ends)
            self._range = begin, end
        return self._range


@dataclass(frozen=True, slots=True)
class _TakenPlane:
    """A plane of the tokens that are taken."""

    plane: Plane
    source: TakenTokens

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.plane.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        begin = self.source.first_token
        return self.plane.read(begin + start, begin + stop)

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        return self.plane.gather(starts + self.source.first_token, length)

"""Contiguous part of a source."""

from __future__ import annotations

import operator
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np

from penstock._access import capability, excluded_of, keys_of, token_extents
from penstock._arrays import as_index
from penstock._kinds import is_token_source
from penstock._tokens import NO_RUNS, Hidden, borders_of, stored_tokens
from penstock.abc import Source, TokenSource
from penstock.errors import ConfigError, NotFound
from penstock.node.blocks import Blocks, EvenBlocks, StoredBlocks, blocks_of
from penstock.node.over import Finder, View
from penstock.node.tokens import OverlaidTokens, Part
from penstock.order.permutation import size_of
from penstock.types import Extent, IntArray, Sample

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
    kind = TakenTokens if is_token_source(source) else TakenSource[Any]
    return kind(source, operator.index(start), operator.index(stop))


class TakenSource(View[T]):
    """The contiguous part of a source of samples that `Take` returns.

    Attributes:
        chosen: how the range was named, if not by its places; see `penstock.mix.subset`.
    """

    kind, title = "take", "Take"
    chosen: Any = None

    def __init__(self, source: Source[T], start: int, stop: int) -> None:
        size = size_of(source)
        if not 0 <= start <= stop <= size:
            raise ConfigError(
                "the range is not inside the source", found=f"[{start}, {stop})", expected=f"inside [0, {size})"
            )
        super().__init__(source)
        self.start = start
        self.stop = stop
        self.kept_before = None  # it counts samples of a whole split
        self.key_run = self._key_run if self.key_of is not None else None

    def own(self) -> dict[str, Any]:
        return {"start": self.start, "stop": self.stop}

    def source_index(self, index: Any) -> Any:
        return index + self.start

    def find(self, finder: Finder) -> IntArray:
        below = finder.indices(self.source)
        return below[(below >= self.start) & (below < self.stop)] - self.start

    @property
    def excluded_indices(self) -> IntArray | None:
        """Excluded samples in the range, int64[k] ascending; None without an exclude list."""
        found = excluded_of(self.source)
        return None if found is None else found[(found >= self.start) & (found < self.stop)] - self.start

    @property
    def costs(self) -> IntArray | None:
        found: IntArray | None = capability(self.source, "costs")
        return None if found is None else found[self.start : self.stop]

    def storage_blocks(self) -> Blocks:
        blocks = blocks_of(self.source)
        if isinstance(blocks, EvenBlocks):
            return blocks.cut(self.start, self.stop)
        starts = blocks.starts()
        inside = starts[(starts > self.start) & (starts < self.stop)]
        ends = [self.start, self.stop] if self.start < self.stop else [self.start]
        return StoredBlocks(np.unique(np.concatenate([inside, ends])) - self.start)

    def __len__(self) -> int:
        return self.stop - self.start

    def _key_of(self, index: int, /) -> str:
        """Return the key of sample `index`."""
        source: Any = self.source
        return source.key_of(self.start + as_index(index, len(self)))

    def _index_of(self, key: str, /) -> int:
        """Return the index of the sample with this key; raise `NotFound` if the part doesn't contain it."""
        source: Any = self.source
        index = source.index_of(key)
        if not self.start <= index < self.stop:
            raise NotFound(
                f"no sample of this part has the key {key!r}",
                found=f"it is sample {index} of the source",
                expected=f"inside [{self.start}, {self.stop})",
            )
        return index - self.start

    def _key_run(self, start: int, stop: int, /) -> list[str]:
        """Return the keys of the samples `[start, stop)`."""
        source: Any = self.source
        return keys_of(source, self.start + start, self.start + stop)

    def _prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:
        source: Any = self.source
        source.prefetch(batches + self.start, whole=whole)

    def _expect_parts(self, first: IntArray, stop: IntArray, /) -> None:
        source: Any = self.source
        source.expect_parts(first + self.start, stop + self.start)

    def _block_files(self, block: int, /) -> list[tuple[str, int, dict[str, str]]]:
        source: Any = self.source
        return source.block_files(int(self._source_blocks[block]))

    @cached_property
    def _source_blocks(self) -> IntArray:
        """int64[n_blocks]: the source's block that contains each block."""
        return blocks_of(self.source).block_of(self.block_starts[:-1] + self.start)


class TakenTokens(TakenSource[Sample], OverlaidTokens):
    """The documents `[start, stop)` of a token source, with the run of their tokens, that `Take` returns."""

    source: TokenSource

    def __init__(self, source: TokenSource, start: int, stop: int) -> None:
        super().__init__(source, start, stop)
        self.token_extent = None if capability(source, "token_extent") is None else self._token_extent
        self.stored_tokens = None if capability(source, "stored_tokens") is None else self._stored_tokens

    @property
    def num_tokens(self) -> int:
        """Total number of tokens; needs the source's document starts."""
        return self.overlay.num_tokens

    @property
    def doc_starts(self) -> IntArray:
        taken = self.source.doc_starts[self.start : self.stop + 1]
        starts = taken - taken[0]
        starts.flags.writeable = False
        return starts

    @cached_property
    def overlay(self) -> Part:
        """The range of the tokens in the source."""
        begin, end = (int(borders_of(self.source, one, one)[0]) for one in (self.start, self.stop))
        return Part(begin, end - begin)

    @cached_property
    def _as_stored(self) -> tuple[TakenTokens, Hidden]:
        source, hidden = stored_tokens(self.source)
        begin, size = self.overlay.first, self.overlay.num_tokens
        taken = (NO_RUNS if hidden is None else hidden).shifted(-begin, begin, begin + size)
        return TakenTokens(source, self.start, self.stop), taken

    def _stored_tokens(self) -> tuple[TakenTokens, Hidden]:
        """Return the stored tokens, only for borders, and which of them are hidden."""
        return self._as_stored

    def _token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        """Return the file ranges of the tokens `[start, stop)`."""
        first = self.overlay.first
        return token_extents(self.source, first + start, first + stop) or ()

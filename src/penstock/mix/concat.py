"""Concatenation of sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from penstock._access import (
    capability,
    excluded_of,
    keys_of,
    place_of,
    prefetch_of,
    prefetch_parts,
    samples_of,
)
from penstock._arrays import as_index, as_indices, groups, scatter
from penstock._digest import digest, kept_key
from penstock._kinds import is_finite, is_token_source
from penstock._tokens import (
    NO_RUNS,
    Hidden,
    Plane,
    document_flags,
    had_eos_borders,
    join_hidden,
    pieces,
    planes_of,
    running,
    stored_tokens,
)
from penstock.abc import Source, SupportsFiles, SupportsKeys, TokenSource
from penstock.errors import ConfigError, NotFound
from penstock.mix._branches import Widths, common, widened
from penstock.node.blocks import Blocks, blocks_of, joined, preferred_mode
from penstock.node.over import Finder, SourceNode
from penstock.node.tokens import JoinedSources
from penstock.store.derived import DerivedCache, Put
from penstock.types import Batch, IntArray, MediaMetadata, Place, Sample, Schema, TokenArray

_STARTS_VERSION = "concat-starts-1"
_DERIVED_DOCS = 1 << 22
_RUN_DOCS = 1 << 20
_KEPT_DOCS = 1 << 16  # below this, planning is faster than a lock and a new file

T = TypeVar("T")
V = TypeVar("V", bound=np.generic)


@overload  # every token source is also a Source[Sample]: the first match is meant
def Concat(  # pyright: ignore[reportOverlappingOverload]
    sources: Sequence[TokenSource], *, mixed_tokenizers: bool = False
) -> ConcatTokens: ...
@overload
def Concat(sources: Sequence[Source[Sample]], *, mixed_tokenizers: bool = False) -> ConcatSource: ...
def Concat(sources: Sequence[Any], *, mixed_tokenizers: bool = False) -> ConcatSource | ConcatTokens:
    """Concatenate sources: all samples of the first one, then of the second one, and so on.

    The result of token sources is a token source. Other sources may have different formats: the schema contains what
    their samples have in common, with token ids in the widest dtype. A field that only some samples of a batch have
    becomes a list, with None for the others.

    Args:
        sources: at least one source. Token sources must all have the same token width.
        mixed_tokenizers: accept token sources whose tokenizers are known to differ.

    Returns:
        A source of `sum(len(source) for source in sources)` samples.

    Raises:
        ConfigError: `sources` is empty, one is a stream, or token widths or tokenizers differ.

    Examples:
        >>> import penstock as ps
        >>> both = ps.Concat([ps.open("corpus.pbin"), ps.open("code.pbin")])
        >>> len(both), both.num_tokens
        (10, 71)
        >>> both[6]["tokens"]
        array([1101, 1102, 1103, 1104,    0], dtype=uint16)
    """
    if not sources:
        raise ConfigError("nothing to concatenate", found="no source", expected="at least one")
    for source in sources:
        if not is_finite(source):
            what, hint = "only finite sources can be concatenated", "Mix streams with Blend or Stages"
            raise ConfigError(what, found=f"a {type(source).__name__}", hint=hint)
    if not mixed_tokenizers:
        _check_equal("tokenizers", [capability(source, "tokenizer_digest") for source in sources])
    if not all(is_token_source(source) for source in sources):
        return ConcatSource(tuple(sources), mixed_tokenizers=mixed_tokenizers)
    _check_equal("token widths", [str(source.dtype) for source in sources])
    _check_equal("planes", [_planes_said(source) for source in sources])
    return ConcatTokens(tuple(sources))


class ConcatSource(SourceNode):
    """Concatenation of sources of samples, as returned by `Concat`.

    Args:
        sources: one or more sources.
        mixed_tokenizers: accept sources whose tokenizers are known to differ.
        as_stored: keep the sources' different token dtypes.

    Examples:
        >>> import penstock as ps
        >>> both = ps.Concat([ps.open("docs.jsonl"), ps.open("chat-mds")])
        >>> type(both).__name__, len(both)
        ('ConcatSource', 18)
        >>> both[6]
        {'id': 0, 'text': 'conversation 0'}
    """

    kind, title = "concat", "Concat"

    def __init__(
        self, sources: tuple[Source[Sample], ...], *, mixed_tokenizers: bool = False, as_stored: bool = False
    ) -> None:
        self.sources = sources
        self._starts = running([len(source) for source in sources])
        self._mixed_tokenizers = mixed_tokenizers
        self._keeps_dtypes = as_stored
        self._known: tuple[Schema, Widths] | None = None
        keys = all(isinstance(source, SupportsKeys) for source in sources)
        self.index_of = self._index_of if keys else None
        self.key_of = self._key_of if keys else None
        self.key_run = self._key_run if keys else None
        files = all(isinstance(source, SupportsFiles) for source in sources)
        self.get = self._get if files else None
        self.get_media_metadata = self._get_media_metadata if files else None
        self.prefetch = self._prefetch if any(map(prefetch_of, sources)) else None
        parts = any(capability(source, "expect_parts") for source in sources)
        self.expect_parts = self._expect_parts if parts else None
        blocks = all(capability(source, "block_files") for source in sources)
        self.block_files = self._block_files if blocks else None

    @property
    def excluded_indices(self) -> IntArray | None:
        """Excluded samples, int64[k] ascending; None if no source has an exclude list."""
        begins = self._starts.tolist()
        found = [(excluded_of(one), begin) for one, begin in zip(self.sources, begins, strict=False)]
        parts = [own + begin for own, begin in found if own is not None]
        return np.concatenate(parts) if parts else None

    @property
    def costs(self) -> IntArray | None:
        """Work per sample, int64[n]; None unless it is known for all sources."""
        parts: list[Any] = [capability(source, "costs") for source in self.sources]
        return None if any(part is None for part in parts) else np.concatenate(parts)

    @property
    def schema(self) -> Schema:
        """Fields that all sources' samples have in common; token ids in the widest dtype."""
        return self._common()[0]

    def identity(self) -> tuple[Any, ...]:
        return ("concat", [source.fingerprint for source in self.sources])

    @property
    def is_mixed(self) -> bool:
        """Whether the sources' tokenizers may differ."""
        return self._mixed_tokenizers

    @property
    def preferred_mode(self) -> str:
        """Default mode of `Shuffle`: `"blocks"` if one of the sources prefers it."""
        return preferred_mode(*self.sources)

    @property
    def block_starts(self) -> IntArray:
        """Starts of the storage blocks of all sources, int64[n_blocks + 1]."""
        return self.storage_blocks().starts()

    def storage_blocks(self) -> Blocks:
        """Return the storage blocks; see `penstock.node.blocks`."""
        return joined(map(blocks_of, self.sources))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int, /) -> Sample:
        child, within = self._child(index)
        return self._widened(self.sources[child][within])

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns, in that order, with one call per source involved."""
        indices = as_indices(indices, len(self))
        parts: list[tuple[NDArray[np.intp], Batch]] = []
        for child, at, within in self._by_child(indices):
            parts.append((at, self._widened(self.sources[child].get_batch(within))))
        return parts[0][1] if len(parts) == 1 else scatter(parts, len(indices))

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """Return the samples at `indices` (int64[k]), in that order, with one call per source involved."""
        samples: list[Any] = [None] * len(indices)
        for child, at, within in self._by_child(indices):
            read = samples_of(self.sources[child], within)
            for place, sample in zip(at.tolist(), read, strict=True):
                samples[place] = self._widened(sample)
        return samples

    def place_of(self, index: int, /) -> Place:
        """Return the place from the sample's own source; document numbers are that source's."""
        child, within = self._child(index)
        return place_of(self.sources[child], within)

    def children(self) -> Mapping[str, Source[Sample]]:
        """Return the sources, named `"0"`, `"1"`, and so on."""
        return {str(child): source for child, source in enumerate(self.sources)}

    def recipe(self) -> dict[str, Any]:
        mixed = {"mixed_tokenizers": True} if self.is_mixed else {}
        return {"kind": "concat", "sources": [source.recipe() for source in self.sources], **mixed}

    def shown(self) -> dict[str, Any]:
        return {"sources": len(self.sources), "samples": len(self)}

    def find(self, finder: Finder) -> IntArray:
        parts = zip(self.sources, self._starts.tolist(), strict=False)
        return np.concatenate([finder.indices(source) + begin for source, begin in parts])

    def _prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:
        owner = np.searchsorted(self._starts, batches, side="right") - 1
        prefetch_parts(lambda child: prefetch_of(self.sources[child]), owner, batches - self._starts[owner], whole)

    def _expect_parts(self, first: IntArray, stop: IntArray, /) -> None:
        owner = np.searchsorted(self._starts, first, side="right") - 1
        for rows in groups(owner):
            source: Any = self.sources[int(owner[rows][0])]
            if (expect := capability(source, "expect_parts")) is not None:
                begin = self._starts[owner[rows][0]]
                expect(first[rows] - begin, stop[rows] - begin)

    def _block_files(self, block: int, /) -> list[tuple[str, int, dict[str, str]]]:
        child = int(np.searchsorted(self._block_counts, block, side="right")) - 1
        source: Any = self.sources[child]
        return source.block_files(block - int(self._block_counts[child]))

    @cached_property
    def _block_counts(self) -> IntArray:
        """int64[n_sources + 1]: storage blocks of the sources before each one."""
        return running([blocks_of(source).count for source in self.sources])

    def _get(self, name: str, /) -> bytes:
        """Return the stored bytes of one file, from the first source that has it; raise `NotFound`."""
        return self._first_with(name, lambda source: source.get(name))

    def _get_media_metadata(self, name: str, /) -> MediaMetadata:
        """Return the indexed metadata of one media file, or raise `NotFound`."""
        return self._first_with(name, lambda source: source.get_media_metadata(name))

    def _first_with(self, name: str, find: Callable[[Any], T]) -> T:
        for source in self.sources:
            try:
                return find(source)
            except NotFound:
                continue
        raise NotFound(f"no file named {name!r}", found=f"{len(self.sources)} sources without it")

    def _common(self) -> tuple[Schema, Widths]:
        # Delayed: a schema may have to be read.
        if self._known is None:
            schema, widths = common([source.schema for source in self.sources])
            if widths.ids and self._keeps_dtypes:
                fields = [replace(field, dtype=None) if field.name in widths.ids else field for field in schema.fields]
                schema, widths = replace(schema, fields=tuple(fields)), replace(widths, ids={})
            self._known = schema, widths
        return self._known

    def _widened(self, values: Sample) -> Sample:
        widths = self._common()[1]
        return widened(values, widths) if widths else values

    def _key_of(self, index: int, /) -> str:
        """Return the key of sample `index`."""
        child, within = self._child(index)
        return cast(SupportsKeys, self.sources[child]).key_of(within)

    def _index_of(self, key: str, /) -> int:
        """Return the index of the sample with this key, in the first source that has it; raise `NotFound`."""
        for source, begin in zip(self.sources, self._starts.tolist(), strict=False):
            try:
                return begin + cast(SupportsKeys, source).index_of(key)
            except NotFound:
                continue
        raise NotFound(f"no sample has the key {key!r}", found=f"{len(self.sources)} sources without it")

    def _key_run(self, start: int, stop: int, /) -> list[str]:
        """Return the keys of the samples `[start, stop)`."""
        runs = pieces(self._starts, start, stop)
        return list(chain(*(keys_of(cast(SupportsKeys, self.sources[child]), *run) for child, *run in runs)))

    def _by_child(self, indices: IntArray) -> Iterator[tuple[int, NDArray[np.intp], IntArray]]:
        """Yield, for each source with some of `indices`: its number, their places, and their indices in it."""
        owner = np.searchsorted(self._starts, indices, side="right") - 1
        places = np.arange(len(indices))
        for rows in groups(owner):
            child = int(owner[rows][0])
            yield child, places[rows], indices[rows] - self._starts[child]

    def _child(self, index: int) -> tuple[int, int]:
        place = as_index(index, len(self))
        child = int(np.searchsorted(self._starts, place, side="right")) - 1
        return child, place - int(self._starts[child])


class ConcatTokens(ConcatSource):
    """Concatenation of token sources, as returned by `Concat`: all documents, as one run of tokens.

    Memory: 8 bytes per document once `doc_starts` is read. From 4 million documents on it is mapped from disk, once per
    host.

    Examples:
        >>> import penstock as ps
        >>> both = ps.Concat([ps.open("corpus.pbin"), ps.open("code.pbin")])
        >>> type(both).__name__, both.num_tokens
        ('ConcatTokens', 71)
        >>> both.tokens(43, 47)
        array([ 609,    0, 1101, 1102], dtype=uint16)
    """

    sources: tuple[TokenSource, ...]

    def __init__(self, sources: tuple[TokenSource, ...]) -> None:
        super().__init__(sources)
        self.ids = JoinedSources(running([source.num_tokens for source in sources]), sources)
        self._doc_starts: IntArray | None = None
        extents = all(capability(source, "token_extent") is not None for source in sources)
        self.token_extent = self.ids.extents if extents else None
        masked = any(capability(source, "stored_tokens") is not None for source in sources)
        self.stored_tokens = self._stored_tokens if masked else None

    @property
    def is_mixed(self) -> bool:
        """Whether the sources' tokenizers are known to differ, or one is unknown."""
        return self.tokenizer_digest is None

    def shown(self) -> dict[str, Any]:
        return {"sources": len(self.sources), "documents": len(self), "tokens": self.num_tokens}

    @property
    def derived(self) -> DerivedCache | None:
        """Cache for data computed from these documents; None for few documents."""
        return DerivedCache() if len(self) >= _KEPT_DOCS else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the token ids."""
        return self.sources[0].dtype

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return self.ids.num_tokens

    @property
    def doc_starts(self) -> IntArray:
        """First token of each document, and `num_tokens`: int64[n_docs + 1]."""
        if self._doc_starts is None:
            counts = [len(source) for source in self.sources]
            if sum(counts) < _DERIVED_DOCS:
                self._doc_starts = _read_only(np.concatenate(list(self._own_starts())))
            else:
                key = f"{_STARTS_VERSION}-{digest(kept_key(self), counts)}"
                self._doc_starts = DerivedCache().fed(key, "int64", self._feed_starts)
        return self._doc_starts

    @cached_property
    def eos_id(self) -> int | None:
        """EOS id of the sources; None if they differ or one is unknown."""
        ids = {source.eos_id for source in self.sources}
        return ids.pop() if len(ids) == 1 else None

    @property
    def had_eos_borders(self) -> bool:
        """Whether document boundaries used to come from the EOS id; see `penstock._tokens.had_eos_borders`."""
        return any(map(had_eos_borders, self.sources))

    @cached_property
    def tokenizer_digest(self) -> str | None:
        """Tokenizer digest of the sources; None if they differ or one is unknown."""
        digests = {capability(source, "tokenizer_digest") for source in self.sources}
        return digests.pop() if len(digests) == 1 else None

    @property
    def planes(self) -> dict[str, Plane]:
        """Planes that all sources have, each concatenated."""
        return {name: _JoinedPlane(name, self) for name in planes_of(self.sources[0])}

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the tokens `[start, stop)`, uint[stop - start]; a copy only if they span sources."""
        return self.ids.tokens(start, stop)

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], written into `out` if given; one call per source."""
        return self.ids.gather(starts, length, out)

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of the windows starts a document."""
        flags = np.empty((len(starts), length), np.bool_)
        return self.ids.fill(lambda source: partial(document_flags, source), starts, flags)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_doc_starts": None}

    def _feed_starts(self, put: Put) -> None:
        for run in self._own_starts():
            put(run)

    def _own_starts(self) -> Iterator[IntArray]:
        """Yield `doc_starts` in runs."""
        for source, begin in zip(self.sources, self.ids.begins.tolist(), strict=False):
            for first in range(0, len(source), _RUN_DOCS):
                yield source.doc_starts[first : min(len(source), first + _RUN_DOCS)] + begin
        yield self.ids.begins[-1:]

    @cached_property
    def _as_stored(self) -> tuple[ConcatTokens, Hidden]:
        pairs = [stored_tokens(source) for source in self.sources]
        begins = self.ids.begins.tolist()
        hidden = [
            (NO_RUNS if one is None else one).shifted(begin) for (_, one), begin in zip(pairs, begins, strict=False)
        ]
        return ConcatTokens(tuple(source for source, _ in pairs)), join_hidden(hidden)

    def _stored_tokens(self) -> tuple[ConcatTokens, Hidden]:
        """Return the stored tokens, only for borders, and which of them are hidden."""
        return self._as_stored


@dataclass(frozen=True, slots=True)
class _JoinedPlane:
    name: str
    source: ConcatTokens

    @property
    def dtype(self) -> np.dtype[Any]:
        return planes_of(self.source.sources[0])[self.name].dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.gather(np.array([start]), stop - start)[0]

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        values = np.empty((len(starts), length), self.dtype)
        return self.source.ids.fill(lambda source: planes_of(source)[self.name].gather, starts, values)


def _planes_said(source: Any) -> str | None:
    """Return the names and dtypes of a source's planes, in the order of names."""
    return ", ".join(f"{name}: {one.dtype}" for name, one in sorted(planes_of(source).items())) or "none"


def _read_only(array: NDArray[V]) -> NDArray[V]:
    array.flags.writeable = False
    return array


def _check_equal(what: str, values: Sequence[Any]) -> None:
    """Raise an error for values that are known and differ."""
    known = next((value for value in values if value is not None), None)
    for child, value in enumerate(values):
        if value is not None and value != known:
            raise ConfigError(
                f"sources with different {what} can't be concatenated",
                found=f"{value} in source {child}",
                expected=str(known),
                hint="Pass mixed_tokenizers=True if this is intended" if what == "tokenizers" else None,
            )

"""Sources of datasets from which samples are taken out: the same numbers, positions and fingerprints, without them.

What a source can do beside the laws of `Source` is passed on by name, and only what gives no content away: a power
that is added to a format is missing here until it is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._borders import had_eos_borders
from penstock._hidden import Hidden
from penstock._index import as_index, as_indices
from penstock._kinds import is_token_source
from penstock._planes import Plane, planes_of
from penstock._resolved import samples_of
from penstock._secrets import redact
from penstock._tree import brief, html, tree
from penstock.abc import Source, TokenSource
from penstock.errors import ConfigError, Excluded
from penstock.store.exclude_list import NO_LIST, Entry, ExcludeList
from penstock.types import Batch, IntArray, OpenOptions, Sample, Schema, TokenArray

_POWERS = (
    *("place_of", "key_of", "key_run", "index_of", "prefetch", "expect_parts", "kept_before", "block_files"),
    *("storage_blocks", "details", "token_extent", "gather_starts"),
)
"""Methods that give no content; None where the source has none, which makes isinstance() of their Protocols say so."""

_FACTS = frozenset((
    *("manifest", "block_starts", "preferred_mode", "path", "split", "split_size", "sample_type", "subflavors"),
    *("derived", "tokenizer_digest", "max_token_id", "size_bytes", "only_here", "layout", "options", "arrow_schema"),
    "kept_key",
    *("header", "modes", "sequence_lengths", "document_indices", "chosen"),
))  # fmt: skip
"""Properties that give no content."""


@dataclass(frozen=True, slots=True)
class Exclusions:
    """What is taken out of one source.

    Attributes:
        indices: int64[k], rising: the samples.
        entries: of each, whose index may be that in another split.
        listed: the list that says so.
        mask_id: the id that stands in the place of theirs; None: that which ends documents, else 0.
        named: the list, where it was named and not found beside the data: a recipe names it too.
    """

    indices: IntArray
    entries: tuple[Entry, ...]
    listed: ExcludeList
    mask_id: int | None = None
    named: str | Literal[False] | None = None

    def opened_with(self) -> dict[str, Any]:
        """What a recipe says of it: what opens the data again opens them by the same list."""
        given = {"excludes": self.named, "mask_tokens": self.mask_id}
        return {name: value for name, value in given.items() if value is not None}

    def has(self, index: int) -> bool:
        """Whether a sample is taken out."""
        at = int(np.searchsorted(self.indices, index))
        return at < len(self.indices) and int(self.indices[at]) == index

    def require_none(self, indices: IntArray, path: str | None) -> None:
        """Raise `Excluded`, which names the first one, where one of these samples is taken out."""
        found = np.flatnonzero(np.isin(indices, self.indices))
        if found.size:
            self.refuse(int(indices[found[0]]), path)

    def refuse(self, index: int, path: str | None) -> NoReturn:
        """Raise the error for a sample."""
        reason = self.entries[int(np.searchsorted(self.indices, index))].reason
        what = f"sample {index} is excluded ({reason})"
        hint = (
            "Streams and loaders replace it with another sample; `penstock exclude --show` lists the excluded samples"
        )
        raise Excluded(what, path=path, found=self.listed.path, hint=hint)


def exclusions(entries: Mapping[int, Entry], listed: ExcludeList, options: OpenOptions) -> Exclusions:
    """From index → entry, and what the data are opened with."""
    order = sorted(entries)
    named = None if options.excludes is None or listed.path is None else redact(listed.path)
    found = np.array(order, np.int64)
    return Exclusions(found, tuple(entries[one] for one in order), listed, options.mask_tokens, named)


def nothing_excluded() -> Exclusions:
    """Return the exclusions of data opened with `excludes=False`, so that its recipe says so."""
    return Exclusions(np.empty(0, np.int64), (), NO_LIST, named=False)


def excluding(source: Source[Any], found: Exclusions) -> ExcludingSource | ExcludingTokens:
    """The source without what is taken out."""
    rows = ExcludingSource(source, found)
    return ExcludingTokens(source, rows) if is_token_source(source) else rows


def stored(source: Any) -> Any:
    """The source as it is stored, for facts about the whole; the same where nothing is taken out of it."""
    return source.stored_source if isinstance(source, ExcludingSource | ExcludingTokens) else source


class ExcludingSource:
    """A source in which some samples are errors.

    Attributes:
        stored_source: with all of its samples.
        exclusions: what is taken out.
    """

    def __init__(self, source: Source[Any], found: Exclusions) -> None:
        self.stored_source = source
        self.exclusions = found
        for name in _POWERS:
            setattr(self, name, getattr(source, name, None))
        has_files = callable(getattr(source, "get", None))
        self.get = self._get if has_files else None
        self.get_media_metadata = self._media_metadata if has_files else None
        self.get_samples = self._get_samples if hasattr(source, "get_samples") else None

    @property
    def excluded_indices(self) -> IntArray:
        """Excluded samples, int64[k] ascending."""
        return self.exclusions.indices

    def __reduce__(self) -> tuple[object, ...]:
        return (ExcludingSource, (self.stored_source, self.exclusions))

    def __getattr__(self, name: str) -> Any:
        return _fact(self, name)

    @property
    def schema(self) -> Schema:
        """That of all samples."""
        return self.stored_source.schema

    @property
    def fingerprint(self) -> str:
        """Of the data as they are stored: a list changes nothing of a run's positions."""
        return self.stored_source.fingerprint

    def __len__(self) -> int:
        return len(self.stored_source)

    def __getitem__(self, index: int, /) -> Any:
        place = as_index(index, len(self))
        if self.exclusions.has(place):
            self.exclusions.refuse(place, _path_of(self.stored_source))
        return self.stored_source[place]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Columns of the samples at `indices`: int64[k]; raises `Excluded`."""
        return self.stored_source.get_batch(self._allowed(indices))

    def children(self) -> Mapping[str, Source[Any]]:
        """As the source's."""
        return self.stored_source.children()

    def recipe(self) -> dict[str, Any]:
        """As the source's, with the list where that was named; what it says is no part of it."""
        return {**self.stored_source.recipe(), **self.exclusions.opened_with()}

    def summary(self) -> str:
        """Return one line: the source and the number of excluded samples."""
        return _summary(self.stored_source, self.exclusions)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    @cached_property
    def _keys(self) -> frozenset[str]:
        source: Any = self.stored_source
        return frozenset(source.key_of(index) for index in self.exclusions.indices.tolist())

    def _allowed(self, indices: Sequence[int] | IntArray) -> IntArray:
        places = as_indices(indices, len(self))
        self.exclusions.require_none(places, _path_of(self.stored_source))
        return places

    def _get_samples(self, indices: IntArray, /) -> list[Any]:
        """The samples at `indices`: int64[k], in that order; raises `Excluded`."""
        return samples_of(self.stored_source, self._allowed(indices))

    def _get(self, name: str, /) -> bytes:
        """The stored bytes of one file; raises `Excluded` for one of a sample that is taken out."""
        source: Any = self.stored_source
        self._require_file(name)
        return source.get(name)

    def _media_metadata(self, name: str, /) -> Any:
        """What the media index knows of one file; raises `Excluded`."""
        source: Any = self.stored_source
        self._require_file(name)
        return source.get_media_metadata(name)

    def _require_file(self, name: str) -> None:
        # A file is its sample's where it is called like it, or by its key, a dot, and the part.
        dots = (place for place, letter in enumerate(name) if letter == ".")
        if name in self._keys or any(name[:dot] in self._keys for dot in dots):
            what = f"the file {name!r} belongs to an excluded sample"
            raise Excluded(what, path=_path_of(self.stored_source), found=self.exclusions.listed.path)


class ExcludingTokens:
    """A token source in which some documents are errors, and all of their tokens one id.

    Attributes:
        stored_source: with all of its documents.
        exclusions: what is taken out.
    """

    def __init__(self, source: TokenSource, rows: ExcludingSource) -> None:
        self.stored_source = source
        self.exclusions = rows.exclusions
        self._rows = rows
        for name in _POWERS:
            setattr(self, name, getattr(source, name, None))
        self.gather_flagged = self._gather_flagged if hasattr(source, "gather_flagged") else None
        mask_id, largest = self.exclusions.mask_id, int(np.iinfo(source.dtype).max)
        if mask_id is not None and not 0 <= mask_id <= largest:
            raise ConfigError(
                "mask_tokens is not a token id of this dataset", found=mask_id, expected=f"0 to {largest}"
            )

    @property
    def excluded_indices(self) -> IntArray:
        """Excluded samples, int64[k] ascending."""
        return self.exclusions.indices

    def __reduce__(self) -> tuple[object, ...]:
        return (_tokens_again, (self.stored_source, self.exclusions))

    def __getattr__(self, name: str) -> Any:
        return _fact(self, name)

    @property
    def schema(self) -> Schema:
        """That of all documents."""
        return self.stored_source.schema

    @property
    def fingerprint(self) -> str:
        """Of the data as they are stored."""
        return self.stored_source.fingerprint

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the token ids."""
        return self.stored_source.dtype

    @property
    def num_tokens(self) -> int:
        """Tokens in all, excluded ones too: nothing moves."""
        return self.stored_source.num_tokens

    @property
    def doc_starts(self) -> IntArray:
        """int64[n_docs + 1]: as of all documents."""
        return self.stored_source.doc_starts

    @property
    def had_eos_borders(self) -> bool:
        """Whether document boundaries used to come from the EOS id; see `penstock._borders.had_eos_borders`."""
        return had_eos_borders(self.stored_source)

    @property
    def eos_id(self) -> int | None:
        """That of the source."""
        return self.stored_source.eos_id

    @cached_property
    def hidden(self) -> Hidden:
        """The tokens of excluded documents, and what stands in their places."""
        starts = self.stored_source.doc_starts
        indices = self.exclusions.indices
        first, stop = np.asarray(starts[indices], np.int64), np.asarray(starts[indices + 1], np.int64)
        some = first < stop
        mask_id = self.exclusions.mask_id
        if mask_id is None:
            mask_id = self.stored_source.eos_id or 0
        return Hidden(first[some], stop[some], np.full(int(some.sum()), mask_id, np.int64))

    @property
    def planes(self) -> dict[str, Plane]:
        """The planes of the tokens; 0 where these are of excluded documents."""
        return {name: _HiddenPlane(one, self.hidden) for name, one in planes_of(self.stored_source).items()}

    def stored_tokens(self) -> tuple[TokenSource, Hidden]:
        """The tokens as they are stored, for borders alone, and which of them are hidden."""
        return self.stored_source, self.hidden

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Sample:
        return self._rows[index]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """The documents at `indices`: int64[k]; raises `Excluded`."""
        return self._rows.get_batch(indices)

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start]: tokens, those of excluded documents masked; a copy only where there are some."""
        return self.hidden.covered(self.stored_source.tokens(start, stop), start)

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """uint[len(starts), length]: one window a row, tokens of excluded documents masked."""
        return self.hidden.cover_windows(self.stored_source.gather(starts, length, out), starts)

    def children(self) -> Mapping[str, Source[Any]]:
        """As the source's."""
        return self.stored_source.children()

    def recipe(self) -> dict[str, Any]:
        """As the source's, with the list where that was named; what it says is no part of it."""
        return {**self.stored_source.recipe(), **self.exclusions.opened_with()}

    def summary(self) -> str:
        """Return one line: the source and the number of excluded samples."""
        return _summary(self.stored_source, self.exclusions)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    def _gather_flagged(
        self, starts: IntArray, length: int, out: TokenArray | None = None
    ) -> tuple[TokenArray, NDArray[np.bool_]]:
        """What `gather` and `gather_starts` give."""
        source: Any = self.stored_source
        blocks, flags = source.gather_flagged(starts, length, out)
        return self.hidden.cover_windows(blocks, starts), flags


@dataclass(frozen=True, slots=True)
class _HiddenPlane:
    """A plane that is 0 where tokens are hidden."""

    plane: Plane
    hidden: Hidden

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.plane.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self._seen(self.plane.read(start, stop)[None], np.array([start]))[0]

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        return self._seen(self.plane.gather(starts, length), starts)

    def _seen(self, values: NDArray[Any], starts: IntArray) -> NDArray[Any]:
        mask = self.hidden.mask(starts, values.shape[1])
        return values if mask is None else np.where(mask, np.zeros(1, values.dtype), values)


def _tokens_again(source: TokenSource, found: Exclusions) -> ExcludingTokens:
    return ExcludingTokens(source, ExcludingSource(source, found))


def _fact(self: ExcludingSource | ExcludingTokens, name: str) -> Any:
    if name in _FACTS:
        return getattr(self.stored_source, name)
    raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _path_of(source: Any) -> str | None:
    return source.recipe().get("path")


def _summary(source: Any, found: Exclusions) -> str:
    return f"{source.summary()}  excluded={len(found.indices):,}"

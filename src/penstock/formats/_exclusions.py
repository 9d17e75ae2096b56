"""Datasets with an exclude list, as they are read and as they are rewritten.

Reading one keeps numbers, positions and fingerprints, and excluded samples raise errors. Commands that rewrite it leave
excluded samples out and renumber the others.

Optional methods of a source are passed on by name, and only those that give no content away: a capability that is
added to a format is missing here until it is listed. Memory: 8 bytes per excluded sample, and 8 per token document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._access import capability
from penstock._digest import digest, kept_key
from penstock._kinds import is_token_source
from penstock._secrets import redact
from penstock._tokens import Hidden, Plane, document_flags, planes_of
from penstock.abc import Source, TokenSource
from penstock.errors import ConfigError, Excluded
from penstock.node.over import Reindexed
from penstock.node.tokens import OverlaidTokens, PlaneOver, Runs
from penstock.store.exclude_list import NO_LIST, Entry, ExcludeList
from penstock.types import IntArray, Manifest, OpenOptions, TokenArray

_SAFE_METHODS = (
    *("place_of", "key_of", "key_run", "index_of", "prefetch", "expect_parts", "kept_before", "block_files"),
    *("storage_blocks", "details", "token_extent"),
)
"""Methods that give no content; None if the source has none, so that it isn't an instance of their Protocols."""

_SAFE_FACTS = frozenset((
    *("manifest", "block_starts", "preferred_mode", "path", "split", "split_size", "sample_type", "subflavors"),
    *("derived", "max_token_id", "size_bytes", "only_here", "layout", "options", "arrow_schema"),
    "kept_key",
    *("header", "modes", "sequence_lengths", "document_indices", "chosen"),
))  # fmt: skip
"""Properties that give no content."""


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Excluded samples of one source.

    Attributes:
        indices: int64[k] ascending.
        entries: the entry of each; its index may be that in another split.
        listed: the exclude list.
        mask_id: id that replaces excluded tokens; by default the EOS id, else 0.
        named: the list if it was passed instead of found next to the data; recipes name it too.
    """

    indices: IntArray
    entries: tuple[Entry, ...]
    listed: ExcludeList
    mask_id: int | None = None
    named: str | Literal[False] | None = None

    def opened_with(self) -> dict[str, Any]:
        """Return the options that a recipe needs to open the data with the same list."""
        given = {"excludes": self.named, "mask_tokens": self.mask_id}
        return {name: value for name, value in given.items() if value is not None}

    def require_none(self, indices: Any, path: Callable[[], str | None]) -> None:
        """Raise `Excluded` if an index, or one of int64[k], is that of an excluded sample."""
        found = self.indices.searchsorted(indices, "right") > self.indices.searchsorted(indices)
        if found.any():
            self.refuse(int(np.asarray(indices)[found].flat[0]), path())

    def refuse(self, index: int, path: str | None) -> NoReturn:
        reason = self.entries[int(np.searchsorted(self.indices, index))].reason
        what = f"sample {index} is excluded ({reason})"
        hint = (
            "Streams and loaders replace it with another sample; `penstock exclude --show` lists the excluded samples"
        )
        raise Excluded(what, path=path, found=self.listed.path, hint=hint)


def exclusions(entries: Mapping[int, Entry], listed: ExcludeList, options: OpenOptions) -> Exclusions:
    order = sorted(entries)
    named = None if options.excludes is None or listed.path is None else redact(listed.path)
    found = np.array(order, np.int64)
    return Exclusions(found, tuple(entries[one] for one in order), listed, options.mask_tokens, named)


def nothing_excluded() -> Exclusions:
    """Return the exclusions of data opened with `excludes=False`, for its recipe."""
    return Exclusions(np.empty(0, np.int64), (), NO_LIST, named=False)


def excluding(source: Source[Any], found: Exclusions) -> ExcludingSource:
    """Return the source with its excluded samples as errors."""
    return ExcludingTokens(source, found) if is_token_source(source) else ExcludingSource(source, found)


def stored(source: Any) -> Any:
    """Return the source with all samples, for facts about the whole; itself without an exclude list."""
    return source.source if isinstance(source, ExcludingSource) else source


def kept(source: Any) -> Any:
    """Return a source without its excluded samples; itself without an exclude list."""
    if not excluded_count(source):
        return stored(source)
    if isinstance(source, ExcludingTokens):
        return KeptTokens(source)
    return KeptSource(source) if isinstance(source, ExcludingSource) else source


def whole_of(source: Any) -> Any:
    """Return the source from which `kept` was made."""
    return source.source if isinstance(source, KeptSource) else source


def excluded_count(source: Any) -> int:
    """Return the number of excluded samples of a source, or of the source from which `kept` was made."""
    found = whole_of(source)
    return len(found.exclusions.indices) if isinstance(found, ExcludingSource) else 0


def excluded_list(source: Any) -> ExcludeList:
    """Return the exclude list of a source, for another process."""
    found = whole_of(source)
    return found.exclusions.listed if isinstance(found, ExcludingSource) else NO_LIST


def carried_list(source: Any) -> ExcludeList:
    """Return the entries of excluded samples by their indices in this source, to be copied with them."""
    if not isinstance(source, ExcludingSource):
        return NO_LIST
    found = source.exclusions
    pairs = zip(found.indices.tolist(), found.entries, strict=True)
    return ExcludeList(tuple(replace(one, index=index) for index, one in pairs), found.listed.path)


def left_out(source: Any) -> dict[str, Any]:
    """Return the record of omitted excluded samples in a side file: `{"excluded": [digest of the list]}`."""
    return {"excluded": [excluded_list(source).digest]} if excluded_count(source) else {}


def places_in_whole(places: Any, left_out: IntArray) -> Any:
    """Map the indices of kept samples to the whole dataset, int64[k]; `left_out` (ascending) are missing from them."""
    return places + np.searchsorted(left_out - np.arange(len(left_out)), places, side="right")


# --- excluded samples are errors -----------------------------------------------------------------------------------


class ExcludingSource(Reindexed[Any]):
    """Source in which some samples are errors.

    Attributes:
        exclusions: the excluded samples.
    """

    kind = "open"
    source: Any

    def __init__(self, source: Source[Any], found: Exclusions) -> None:
        super().__init__(source)
        self.exclusions = found
        for name in _SAFE_METHODS:
            setattr(self, name, capability(source, name))
        has_files = callable(capability(source, "get"))
        self.get = self._get if has_files else None
        self.get_media_metadata = self._get_media_metadata if has_files else None

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.source, self.exclusions))

    def __getattr__(self, name: str) -> Any:
        if name in _SAFE_FACTS:
            return getattr(self.source, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def stored_source(self) -> Any:
        """The source with all of its samples."""
        return self.source

    @property
    def excluded_indices(self) -> IntArray:
        """Excluded samples, int64[k] ascending."""
        return self.exclusions.indices

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the stored data: an exclude list moves no positions."""
        return self.source.fingerprint

    def __len__(self) -> int:
        return len(self.source)

    def source_index(self, index: Any) -> Any:
        self.exclusions.require_none(index, self._path)
        return index

    def children(self) -> Mapping[str, Source[Any]]:
        return self.source.children()

    def recipe(self) -> dict[str, Any]:
        """Return the recipe of the data, with the list if it was named, but without its entries."""
        return {**self.source.recipe(), **self.exclusions.opened_with()}

    def summary(self) -> str:
        return f"{self.source.summary()}  excluded={len(self.exclusions.indices):,}"

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(self.source.key_of(index) for index in self.exclusions.indices.tolist())

    def _path(self) -> str | None:
        return self.source.recipe().get("path")

    def _get(self, name: str, /) -> bytes:
        """Return the stored bytes of a file; raises `Excluded` if its sample is excluded."""
        self._require_file(name)
        return self.source.get(name)

    def _get_media_metadata(self, name: str, /) -> Any:
        self._require_file(name)
        return self.source.get_media_metadata(name)

    def _require_file(self, name: str) -> None:
        # A file belongs to the sample of its name, or of its key: the name up to a dot before the part.
        dots = (place for place, letter in enumerate(name) if letter == ".")
        if name in self._keys or any(name[:dot] in self._keys for dot in dots):
            what = f"the file {name!r} belongs to an excluded sample"
            raise Excluded(what, path=self._path(), found=self.exclusions.listed.path)


class ExcludingTokens(ExcludingSource, OverlaidTokens):
    """Token source in which some documents are errors, and all of their tokens one id; positions don't change."""

    def __init__(self, source: TokenSource, found: Exclusions) -> None:
        super().__init__(source, found)
        self.gather_flagged = None if capability(source, "gather_flagged") is None else self._gather_flagged
        mask_id, largest = found.mask_id, int(np.iinfo(source.dtype).max)
        if mask_id is not None and not 0 <= mask_id <= largest:
            raise ConfigError(
                "mask_tokens is not a token id of this dataset", found=mask_id, expected=f"0 to {largest}"
            )

    @cached_property
    def overlay(self) -> Hidden:
        """Tokens of excluded documents, and the id that replaces them."""
        starts = self.source.doc_starts
        indices = self.exclusions.indices
        first, stop = np.asarray(starts[indices], np.int64), np.asarray(starts[indices + 1], np.int64)
        some = first < stop
        mask_id = self.exclusions.mask_id
        if mask_id is None:
            mask_id = self.source.eos_id or 0
        return Hidden(first[some], stop[some], np.full(int(some.sum()), mask_id, np.int64))

    @property
    def planes(self) -> dict[str, Plane]:
        """Planes of the tokens; 0 for tokens of excluded documents."""
        return {name: PlaneOver(one, self._zeros) for name, one in planes_of(self.source).items()}

    @cached_property
    def _zeros(self) -> Hidden:
        return replace(self.overlay, ids=np.zeros_like(self.overlay.ids))

    def stored_tokens(self) -> tuple[TokenSource, Hidden]:
        """Return the stored tokens, for borders only, and which of them are hidden."""
        return self.source, self.overlay

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        return document_flags(self.source, starts, length)

    def _gather_flagged(
        self, starts: IntArray, length: int, out: TokenArray | None = None
    ) -> tuple[TokenArray, NDArray[np.bool_]]:
        blocks, flags = self.source.gather_flagged(starts, length, out)
        return self.overlay.cover_windows(blocks, starts), flags


# --- excluded samples are left out ---------------------------------------------------------------------------------


class KeptSource(Reindexed[Any]):
    kind = "open"
    source: Any

    def __init__(self, source: ExcludingSource) -> None:
        super().__init__(source)
        self._left_out = source.exclusions.indices

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.source,))

    def identity(self) -> tuple[Any, ...]:
        return ("kept", self.source.fingerprint, self._left_out.tolist())

    @property
    def kept_key(self) -> str:
        """Key of what this host derives from the data; see `penstock._digest`."""
        return digest(self.fingerprint, kept_key(self.source))

    @property
    def manifest(self) -> Manifest | None:
        """Record of how the data was made, from the side file."""
        found = capability(self.source, "manifest")
        if not isinstance(found, Manifest):
            return None
        return replace(
            found, digest=None, num_tokens=None, binding=None, block_digests={}, fingerprints={}, parts={}, starts=None
        )

    def __len__(self) -> int:
        return len(self.source) - len(self._left_out)

    def source_index(self, index: Any) -> Any:
        return places_in_whole(index, self._left_out)

    def children(self) -> Mapping[str, Source[Any]]:
        return self.source.children()

    def recipe(self) -> dict[str, Any]:
        return self.source.recipe()

    def summary(self) -> str:
        return self.source.summary()


class KeptTokens(KeptSource, OverlaidTokens):
    """Documents of a token source that aren't excluded, and the run of their tokens."""

    get_samples: Any = None
    place_of: Any = None

    @property
    def max_token_id(self) -> int | None:
        """Largest id of all documents, if known."""
        return capability(self.source, "max_token_id")

    @property
    def only_here(self) -> tuple[str, ...]:
        """Facts that copies of the data don't keep."""
        return capability(self.source, "only_here") or ()

    @property
    def num_tokens(self) -> int:
        return int(self.doc_starts[-1])

    @property
    def doc_starts(self) -> IntArray:
        return self._doc_starts

    @cached_property
    def _doc_starts(self) -> IntArray:
        lengths = np.delete(np.diff(np.asarray(self.source.doc_starts, np.int64)), self._left_out)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        starts.flags.writeable = False
        return starts

    @cached_property
    def overlay(self) -> Runs:
        """Runs of documents between excluded ones."""
        hidden: Hidden = self.source.overlay
        lengths = hidden.stops - hidden.starts
        gaps = hidden.starts - (np.cumsum(lengths) - lengths)  # in the remaining tokens
        return Runs(np.concatenate([[0], gaps, [self.num_tokens]]), np.concatenate([[0], hidden.stops]))

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        windows = self.overlay.gather(self.source.gather, starts, length)
        if out is None:
            return windows
        out[:] = windows
        return out

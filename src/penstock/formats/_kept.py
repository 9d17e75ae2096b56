"""What is left of a dataset without its excluded samples, numbered anew: what verbs write, and `purge` leaves.

Memory: 8 bytes an excluded sample, and of tokens 8 bytes a document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._digest import digest, kept_key
from penstock._hidden import Hidden
from penstock._index import as_index, as_indices
from penstock._places import place_of
from penstock._planes import Plane, planes_of
from penstock._resolved import samples_of
from penstock._tree import brief, html, tree
from penstock.abc import Source
from penstock.formats._excluding import ExcludingSource, ExcludingTokens, stored
from penstock.store.exclude_list import NO_LIST, ExcludeList
from penstock.types import Batch, IntArray, Manifest, Place, Sample, Schema, TokenArray


def kept(source: Any) -> Any:
    """A source without its excluded samples; itself where it has no list."""
    if not excluded_count(source):
        return stored(source)
    if isinstance(source, ExcludingTokens):
        return KeptTokens(source)
    return KeptSource(source) if isinstance(source, ExcludingSource) else source


def excluded_count(source: Any) -> int:
    """How many samples are excluded, of a source or of what is kept of it."""
    found = getattr(source, "whole", source)
    return len(found.exclusions.indices) if isinstance(found, ExcludingSource | ExcludingTokens) else 0


def excluded_list(source: Any) -> ExcludeList:
    """The list by which they are, which may be none: another process then goes by the same one."""
    found = getattr(source, "whole", source)
    return found.exclusions.listed if isinstance(found, ExcludingSource | ExcludingTokens) else NO_LIST


def carried_list(source: Any) -> ExcludeList:
    """The entries of excluded samples by the indices that they have in this source, to be copied with them."""
    if not isinstance(source, ExcludingTokens | ExcludingSource):
        return NO_LIST
    found = source.exclusions
    pairs = zip(found.indices.tolist(), found.entries, strict=True)
    return ExcludeList(tuple(replace(one, index=index) for index, one in pairs), found.listed.path)


def whole_of(source: Any) -> Any:
    """The source with all of its samples, of what is kept of one."""
    return getattr(source, "whole", source)


def left_out(source: Any) -> dict[str, Any]:
    """What a side file says of a source of which something is left out: `{"excluded": [digest of the list]}`."""
    return {"excluded": [excluded_list(source).digest]} if excluded_count(source) else {}


def places_in_whole(places: IntArray, left_out: IntArray) -> IntArray:
    """int64[k]: the indices that kept samples have in the whole dataset, of which `left_out` (rising) are missing."""
    return places + np.searchsorted(left_out - np.arange(len(left_out)), places, side="right")


class KeptSource:
    """The samples of a source that are not excluded.

    Attributes:
        whole: the source.
    """

    def __init__(self, whole: ExcludingSource) -> None:
        self.whole = whole
        self._left_out = whole.exclusions.indices

    def __reduce__(self) -> tuple[object, ...]:
        return (KeptSource, (self.whole,))

    @property
    def schema(self) -> Schema:
        """That of all samples."""
        return self.whole.schema

    @property
    def fingerprint(self) -> str:
        """Digest of the source's fingerprint, and of what is left out."""
        return digest("kept", self.whole.fingerprint, self._left_out.tolist())

    @property
    def kept_key(self) -> str:
        """By what this host keeps what it derives of these data; see `penstock._digest`."""
        return digest(self.fingerprint, kept_key(self.whole))

    @property
    def manifest(self) -> Manifest | None:
        """What the side file says of the making of the data."""
        return _of_making(self.whole)

    def __len__(self) -> int:
        return len(self.whole) - len(self._left_out)

    def __getitem__(self, index: int, /) -> Any:
        return self.whole[int(self._whole_places(np.array([as_index(index, len(self))]))[0])]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns, in that order."""
        return self.whole.get_batch(self._whole_places(as_indices(indices, len(self))))

    def get_samples(self, indices: IntArray, /) -> list[Any]:
        """Return the samples at `indices` (int64[k]), in that order."""
        return samples_of(self.whole, self._whole_places(as_indices(indices, len(self))))

    def place_of(self, index: int, /) -> Place:
        """Return the source's place of the sample."""
        return place_of(self.whole, int(self._whole_places(np.array([as_index(index, len(self))]))[0]))

    def children(self) -> Mapping[str, Source[Any]]:
        """As the source's."""
        return self.whole.children()

    def recipe(self) -> dict[str, Any]:
        """As the source's."""
        return self.whole.recipe()

    def summary(self) -> str:
        """Return one line: that of the source."""
        return self.whole.summary()

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    def _whole_places(self, places: IntArray) -> IntArray:
        return places_in_whole(places, self._left_out)


class KeptTokens:
    """The documents of a token source that are not excluded, and the run of their tokens.

    Attributes:
        whole: the source.
    """

    def __init__(self, whole: ExcludingTokens) -> None:
        self.whole = whole
        self._left_out = whole.exclusions.indices

    def __reduce__(self) -> tuple[object, ...]:
        return (KeptTokens, (self.whole,))

    @property
    def schema(self) -> Schema:
        """That of all documents."""
        return self.whole.schema

    @property
    def fingerprint(self) -> str:
        """Digest of the source's fingerprint, and of what is left out."""
        return digest("kept", self.whole.fingerprint, self._left_out.tolist())

    @property
    def kept_key(self) -> str:
        """By what this host keeps what it derives of these data; see `penstock._digest`."""
        return digest(self.fingerprint, kept_key(self.whole))

    @property
    def manifest(self) -> Manifest | None:
        """What the side file says of the making of the data."""
        return _of_making(self.whole)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the token ids."""
        return self.whole.dtype

    @property
    def eos_id(self) -> int | None:
        """That of the source."""
        return self.whole.eos_id

    @property
    def max_token_id(self) -> int | None:
        """Of all documents, where it is known."""
        return getattr(self.whole, "max_token_id", None)

    @property
    def only_here(self) -> tuple[str, ...]:
        """That of the source."""
        return getattr(self.whole, "only_here", ())

    @property
    def num_tokens(self) -> int:
        """Tokens of the documents that are kept."""
        return int(self.doc_starts[-1])

    @cached_property
    def doc_starts(self) -> IntArray:
        """First token of each document, and `num_tokens`: int64[n_docs + 1]."""
        lengths = np.delete(np.diff(np.asarray(self.whole.doc_starts, np.int64)), self._left_out)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        starts.flags.writeable = False
        return starts

    def __len__(self) -> int:
        return len(self.doc_starts) - 1

    def __getitem__(self, index: int, /) -> Sample:
        start, stop = self.doc_starts[as_index(index, len(self)) :][:2].tolist()
        return {
            "tokens": self.tokens(start, stop),
            **{name: one.read(start, stop) for name, one in self.planes.items()},
        }

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]); a list of arrays if their lengths differ."""
        return self.whole.get_batch(places_in_whole(as_indices(indices, len(self)), self._left_out))

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start]: tokens in `[start, stop)` of what is kept."""
        return self.joined(self.whole.tokens, start, stop)

    def joined(self, read: Callable[[int, int], NDArray[Any]], start: int, stop: int) -> NDArray[Any]:
        """[stop - start]: what `read` gives for the tokens `[start, stop)` of what is kept, by places in the whole."""
        gaps, added = self._gaps
        inside = gaps[(gaps > start) & (gaps < stop)].tolist()
        runs: list[NDArray[Any]] = []
        for first, end in zip([start, *inside], [*inside, stop], strict=True):
            by = int(added[np.searchsorted(gaps, first, side="right")])
            runs.append(read(first + by, end + by))
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    @property
    def planes(self) -> dict[str, Plane]:
        """The planes of what is kept."""
        return {name: _KeptPlane(one, self) for name, one in planes_of(self.whole).items()}

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], written into `out` if given."""
        out = np.empty((len(starts), length), self.dtype) if out is None else out
        for row, start in enumerate(starts.tolist()):
            out[row] = self.tokens(start, start + length)
        return out

    def children(self) -> Mapping[str, Source[Any]]:
        """As the source's."""
        return self.whole.children()

    def recipe(self) -> dict[str, Any]:
        """As the source's."""
        return self.whole.recipe()

    def summary(self) -> str:
        """Return one line: that of the source."""
        return self.whole.summary()

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    @cached_property
    def _gaps(self) -> tuple[IntArray, IntArray]:
        """Where documents are missing, rising, each place once; and what is to be added to places after so many."""
        hidden: Hidden = self.whole.hidden
        lengths = hidden.stops - hidden.starts
        at = hidden.starts - (np.cumsum(lengths) - lengths)
        gaps, which = np.unique(at, return_inverse=True)
        missing = np.zeros(len(gaps), np.int64)
        np.add.at(missing, which, lengths)
        return gaps, np.concatenate([[0], np.cumsum(missing)])


@dataclass(frozen=True, slots=True)
class _KeptPlane:
    """A plane of the tokens that are kept."""

    plane: Plane
    source: KeptTokens

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.plane.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.source.joined(self.plane.read, start, stop)

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        values = np.empty((len(starts), length), self.dtype)
        for row, start in enumerate(starts.tolist()):
            values[row] = self.read(start, start + length)
        return values


def _of_making(whole: Any) -> Manifest | None:
    found = getattr(whole, "manifest", None)
    if not isinstance(found, Manifest):
        return None
    return replace(
        found, digest=None, num_tokens=None, binding=None, block_digests={}, fingerprints={}, parts={}, starts=None
    )

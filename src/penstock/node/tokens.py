"""Bases of token sources: a class gives its tokens, from which documents, windows, planes and flags follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._access import capability, token_extents
from penstock._arrays import as_indices
from penstock._tokens import (
    Plane,
    checked_starts,
    document_flags,
    fill_windows,
    flags_of_starts,
    had_eos_borders,
    pieces,
    planes_of,
)
from penstock.abc import TokenSource
from penstock.node.over import SourceNode, SourceOver
from penstock.types import Extent, IntArray, Sample, Schema, TokenArray

T = TypeVar("T", bound=np.generic)

Read = Callable[[int, int], NDArray[Any]]
"""Function that returns the values of the tokens `[start, stop)`."""

Gather = Callable[[IntArray, int], NDArray[Any]]
"""Function that returns one window per row: [len(starts), length]."""


class Overlay(Protocol):
    """Change of a run of tokens, applied in the same way to ids, planes and flags."""

    def read(self, read: Read, start: int, stop: int, /) -> NDArray[Any]:
        """Return the changed values `[start, stop)`; `read` reads the original ones."""
        ...

    def gather(self, gather: Gather, starts: IntArray, length: int, /) -> NDArray[Any]:
        """Return changed windows; `gather` reads original ones."""
        ...


class Unchanged:
    """All tokens, as they are."""

    def read(self, read: Read, start: int, stop: int, /) -> NDArray[Any]:
        return read(start, stop)

    def gather(self, gather: Gather, starts: IntArray, length: int, /) -> NDArray[Any]:
        return gather(starts, length)


UNCHANGED = Unchanged()


@dataclass(frozen=True, slots=True)
class Part:
    """A contiguous part of the tokens: `num_tokens` from `first` on."""

    first: int
    num_tokens: int

    def read(self, read: Read, start: int, stop: int, /) -> NDArray[Any]:
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.num_tokens})")
        return read(self.first + start, self.first + stop)

    def gather(self, gather: Gather, starts: IntArray, length: int, /) -> NDArray[Any]:
        return gather(as_indices(starts, self.num_tokens - length + 1) + self.first, length)


@dataclass(frozen=True, slots=True)
class Runs:
    """Several runs of the tokens, one after another.

    Attributes:
        begins: first token of each run here, and the number of tokens: int64[n + 1].
        places: first token of each run in the original: int64[n].
    """

    begins: IntArray
    places: IntArray

    def read(self, read: Read, start: int, stop: int, /) -> NDArray[Any]:
        if not 0 <= start <= stop <= self.begins[-1]:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.begins[-1]})")
        found = [
            read(int(self.places[run]) + low, int(self.places[run]) + high)
            for run, low, high in pieces(self.begins, start, stop)
        ]
        return found[0] if len(found) == 1 else np.concatenate([read(0, 0), *found])

    def gather(self, gather: Gather, starts: IntArray, length: int, /) -> NDArray[Any]:
        def read(low: int, high: int) -> NDArray[Any]:
            return gather(np.array([low]), high - low)[0]

        starts = checked_starts(starts, length, int(self.begins[-1]))
        run = np.minimum(np.searchsorted(self.begins, starts, side="right"), len(self.places)) - 1
        is_inside = starts + length <= self.begins[run + 1]
        found = gather((starts + self.places[run] - self.begins[run])[is_inside], length)
        if is_inside.all():
            return found
        windows = np.empty((len(starts), length), found.dtype)
        windows[is_inside] = found
        for row in np.flatnonzero(~is_inside).tolist():
            windows[row] = self.read(read, int(starts[row]), int(starts[row]) + length)
        return windows


@dataclass(frozen=True, slots=True)
class PlaneOver:
    """Plane with an overlay."""

    plane: Plane
    overlay: Overlay

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.plane.dtype

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.overlay.read(self.plane.read, start, stop)

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        return self.overlay.gather(self.plane.gather, starts, length)


class JoinedIds:
    """Ids of several pieces, one after another.

    Args:
        begins: first token of each piece, and the number of tokens: int64[n + 1].
    """

    def __init__(self, begins: IntArray) -> None:
        self.begins = begins
        self.num_tokens = int(begins[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the ids: uint8, uint16 or uint32."""
        raise TypeError(type(self).__name__)

    def piece(self, number: int) -> tuple[Any, int]:
        """Return the ids that contain a piece, and the start of the piece in them."""
        raise TypeError(type(self).__name__)

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return uint[stop - start], read-only; a copy only if they span pieces."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.num_tokens})")
        found = [ids.tokens(low, high) for ids, low, high in self.runs(start, stop)]
        joined = found[0] if len(found) == 1 else np.concatenate([np.empty(0, self.dtype), *found])
        joined.flags.writeable = False
        return joined

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], by one call per piece."""
        starts = checked_starts(starts, length, self.num_tokens)
        if out is not None and out.shape != (len(starts), length):
            raise ValueError(f"out has shape {out.shape}, expected {(len(starts), length)}")
        if len(starts):
            first = int(np.searchsorted(self.begins, int(starts.min()), side="right")) - 1
            if first < len(self.begins) - 1 and int(starts.max()) + length <= self.begins[first + 1]:
                ids, place = self.piece(first)
                return ids.gather(starts + (place - self.begins[first]), length, out)
        rows = np.empty((len(starts), length), self.dtype) if out is None else out
        return self._fill(lambda ids: ids.gather, starts, rows)

    def fill(self, gather_of: Callable[[Any], Gather], starts: IntArray, out: NDArray[T]) -> NDArray[T]:
        """Fill windows, [k, length], by one call per piece of the function that `gather_of` returns for its ids."""
        return self._fill(gather_of, checked_starts(starts, out.shape[1], self.num_tokens), out)

    def _fill(self, gather_of: Callable[[Any], Gather], starts: IntArray, out: NDArray[T]) -> NDArray[T]:
        def read(number: int, starts: IntArray, length: int) -> tuple[NDArray[Any]]:
            ids, place = self.piece(number)
            return (gather_of(ids)(starts + place, length),)

        fill_windows(self.begins, read, starts, (out,))
        return out

    def extent(self, start: int, stop: int) -> Extent:
        """Return the first file range of tokens `[start, stop)`."""
        return self.extents(start, stop)[0]

    def extents(self, start: int, stop: int) -> tuple[Extent, ...]:
        """Return the file ranges of tokens `[start, stop)`."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.num_tokens})")
        return tuple(one for ids, low, high in self.runs(start, stop) for one in ids.extents(low, high))

    def runs(self, start: int, stop: int) -> Iterator[tuple[Any, int, int]]:
        """Yield the ids of each piece with a part of `[start, stop)`, and the part's range in them."""
        for number, low, high in pieces(self.begins, start, stop):
            ids, place = self.piece(number)
            yield ids, place + low, place + high


class JoinedSources(JoinedIds):
    """Tokens of several sources, one after another."""

    def __init__(self, begins: IntArray, sources: Sequence[TokenSource]) -> None:
        super().__init__(begins)
        self._sources = sources

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._sources[0].dtype

    def piece(self, number: int) -> tuple[TokenSource, int]:
        return self._sources[number], 0

    def extents(self, start: int, stop: int) -> tuple[Extent, ...]:
        return tuple(one for source, *run in self.runs(start, stop) for one in token_extents(source, *run) or ())


class TokenNode(SourceNode):
    """Token source: by default, windows are read one by one, and flags are found in `doc_starts`.

    Attributes:
        dtype: uint8, uint16 or uint32.
        doc_starts: first token of each document, and `num_tokens`: int64[n_docs + 1].
    """

    dtype: Any
    doc_starts: Any

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return int(self.doc_starts[-1])

    @property
    def planes(self) -> Mapping[str, Plane]:
        """Planes by name."""
        return {}

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the tokens `[start, stop)`, uint[stop - start]."""
        raise TypeError(type(self).__name__)

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], written into `out` if given."""
        starts = checked_starts(starts, length, self.num_tokens)
        windows: TokenArray = np.empty((len(starts), length), self.dtype) if out is None else out
        for row, start in enumerate(starts.tolist()):
            windows[row] = self.tokens(start, start + length)
        return windows

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of the windows starts a document."""
        return flags_of_starts(self.doc_starts, starts, length)


class TokensOver(TokenNode, SourceOver[Sample]):
    """Token source built on another one, with as many documents."""

    source: Any

    @property
    def schema(self) -> Schema:
        """Fields of the samples."""
        return self.source.schema

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    @property
    def eos_id(self) -> int | None:
        """Id that ends every document; None if there is none or it is unknown."""
        return self.source.eos_id

    @property
    def tokenizer_digest(self) -> str | None:
        """Digest of the tokenizer; None if unknown."""
        return capability(self.source, "tokenizer_digest")

    def __len__(self) -> int:
        return len(self.source)


class OverlaidTokens(TokensOver):
    """Token source built on another one: its tokens, planes and flags, with an overlay."""

    overlay: Any = UNCHANGED

    @property
    def doc_starts(self) -> IntArray:
        return self.source.doc_starts

    @property
    def num_tokens(self) -> int:
        return self.source.num_tokens

    @property
    def had_eos_borders(self) -> bool:
        """Whether document boundaries used to come from the EOS id; see `penstock._tokens.had_eos_borders`."""
        return had_eos_borders(self.source)

    @property
    def planes(self) -> Mapping[str, Plane]:
        return {name: PlaneOver(one, self.overlay) for name, one in planes_of(self.source).items()}

    def tokens(self, start: int, stop: int) -> TokenArray:
        return self.overlay.read(self.source.tokens, start, stop)

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        return self.overlay.gather(partial(self.source.gather, out=out), starts, length)

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        return self.overlay.gather(partial(document_flags, self.source), starts, length)

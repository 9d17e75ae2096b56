"""Kinds of data, and protocols between Penstock's own layers, which no plug-in implements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

from numpy.typing import NDArray

from penstock.abc import Source, Stream, TokenSource
from penstock.errors import ConfigError
from penstock.types import Buffer, IntArray, Schema

T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class LaneStream(Protocol[T_co]):
    """Endless stage with 0 to n outputs per input: packing on the fly, generators, filters.

    Addressed by lane, window and offset, never by position: a window is a run of inputs of one lane, and a lane's
    outputs are those of its windows one after another. The global order takes one output of each lane in turn.

    Contract: `outputs(lane, window)` is a pure function; lanes never depend on each other.
    """

    @property
    def lanes(self) -> int:
        """Number of lanes; a world size must divide it."""
        ...

    @property
    def schema(self) -> Schema:
        """Fields of the samples."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of everything that determines the lanes."""
        ...

    def outputs(self, lane: int, window: int, /) -> Iterator[T_co]:
        """Yield the samples of one window of a lane, in order; there may be none."""
        ...

    def children(self) -> Mapping[str, Source[Any] | Stream[Any]]:
        """Return the sources or streams that it draws from, by name."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which this can be rebuilt."""
        ...


class CountedLanes(LaneStream[T_co], Protocol):
    """Lane stream with outputs that depend on how many outputs the lane had before."""

    def outputs_after(self, lane: int, window: int, before: int, /) -> Iterator[T_co]:
        """Yield the same as `outputs`; the windows before had `before` samples."""
        ...


def counts(stream: LaneStream[T_co]) -> TypeGuard[CountedLanes[T_co]]:
    return hasattr(type(stream), "outputs_after")


@runtime_checkable
class Seedable(Protocol):
    """Stream that may be made without a seed."""

    def seeded(self, seed: int, /) -> Stream[Any]:
        """Return the stream with `seed`, also in its children, if it was made without one; else itself."""
        ...


@runtime_checkable
class HasHorizon(Protocol):
    """Stream with known dependencies of its first positions: a run may resume if only later parts differ."""

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`, for `stop >= 1`.

        Returns:
            The stream's own parameters that matter before `stop`, as plain JSON without its children's recipes; empty
            if the stream passes on one child unchanged so far. And name → an upper bound of the child's positions read
            so far.
        """
        ...


@runtime_checkable
class TokenParts(Protocol):
    """Writer that takes finished runs of tokens from files, without passing them through Python."""

    @property
    def part_bytes(self) -> int:
        """Width of these tokens: 1, 2 or 4."""
        ...

    def write_part(self, path: str, start_bytes: int, doc_lengths: IntArray, max_token_id: int | None) -> None:
        """Append documents with consecutive tokens in a file, little-endian in the writer's width.

        Args:
            path: local file.
            start_bytes: start of its tokens.
            doc_lengths: int64[n_docs], in tokens.
            max_token_id: the largest id, -1 without tokens, or None: the writer computes it.
        """
        ...


@runtime_checkable
class CutsBlocks(Protocol):
    """Order of storage blocks that are cut by lanes."""

    def parts_read(self, positions: IntArray, world: int, /) -> tuple[IntArray, IntArray]:
        """Return the ranges that a rank reads of the blocks around positions: starts and ends, int64[m] each."""
        ...


@runtime_checkable
class ExpectsDigest(Protocol):
    """Writer of tokens that needn't compute document digests which are already known."""

    def expect_digest(self, digest: Callable[[], str]) -> None:
        """Set the document digest, version 2, before the first document; requested after all were written."""
        ...


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Rows in files of the output's own store, with everything that a writer would compute by reading them.

    Attributes:
        ranges: `(path, first byte, bytes)` in their order, as the writer would store them.
        lengths: yields runs of int64[k], the units of each row; may be called again.
        size_bytes: size of all rows.
        digest: the document digest; `""` if rows are lines.
        max_token_id: the largest id; -1 without ids.
        blocks: digests of the whole blocks of the file from its start, including the writer's own head.
        rest: yields the rows' bytes after these blocks, in pieces; the head if there are none.
    """

    ranges: Sequence[tuple[str, int, int]]
    lengths: Callable[[], Iterable[IntArray]]
    size_bytes: int
    digest: str
    max_token_id: int
    blocks: Sequence[str]
    rest: Callable[[], Iterable[Buffer]]


@runtime_checkable
class JoinsRows(Protocol):
    """Writer of one file that may be made of ranges of others, without reading their bytes."""

    def write_joined(self, rows: JoinedRows, /) -> None:
        """Add all rows of the dataset; nothing else may be written before or after.

        Raises:
            Unsupported: it stores rows in another form.
        """
        ...


@dataclass(frozen=True, slots=True)
class RuleChange:
    """Rule that changed after version 0.2.0, so that the same parameters may give other samples.

    Attributes:
        name: its name in `accept=`.
        text: the change, as a clause.
        old: the former rule, in a few words.
        new: the present one.
        keep: how to keep the former rule.
        changes_samples: whether the two rules give different samples of this data; reads a bounded part of it.
    """

    name: str
    text: str
    old: str
    new: str
    keep: str
    changes_samples: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class FormerRule:
    """Parameters in states of version 0.2.0.

    Attributes:
        parameters: the node's own parameters that had another value then.
        absent: those that it didn't have.
        change: the rule of these parameters; None if it didn't change.
    """

    parameters: Mapping[str, Any]
    absent: tuple[str, ...]
    change: RuleChange | None


@runtime_checkable
class HasFormerRule(Protocol):
    """Source whose states of version 0.2.0 may mean another rule."""

    def former_rule(self) -> FormerRule | None:
        """Return the rule of version 0.2.0; None if nothing is different."""
        ...


class Derived(Protocol):
    """Cache of data computed once per host and mapped: decoded document starts, plans, permutations."""

    def array(self, key: str, dtype: str, build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return the 1-d array stored under `key`, computed under a lock if missing; read-only and mapped.

        `key` is a digest of everything that determines the array: fingerprint, parameters, version.
        """
        ...


def is_token_source(source: object) -> TypeGuard[TokenSource]:
    """Return whether `source` is a TokenSource, without evaluating its properties."""
    return callable(getattr(type(source), "gather", None))


def require_tokens(source: object, what: str) -> None:
    """Raise `ConfigError` unless `source` is a TokenSource, which `what` requires."""
    if not is_token_source(source):
        hint = "`penstock pack` converts text to tokens; tokens_column= opens a column of token ids as documents"
        raise ConfigError(f"{what} needs token documents", found=f"a {type(source).__name__}", hint=hint)


def is_finite(made: object) -> bool:
    """Return whether it has a length, like a Source. Endless objects needn't be a Stream: see `LaneStream`."""
    return hasattr(type(made), "__len__")


def is_stream(source: object) -> TypeGuard[Stream[Any]]:
    """Return whether `source` is an endless Stream rather than a finite Source."""
    return callable(getattr(type(source), "locate", None)) and not is_finite(source)


def is_lane_stream(source: object) -> TypeGuard[LaneStream[Any]]:
    """Return whether `source` is a LaneStream, without evaluating its properties."""
    return callable(getattr(type(source), "outputs", None))

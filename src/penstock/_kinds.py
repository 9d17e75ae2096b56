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
    """An endless run that a stage makes with 0 to n outputs for its inputs: packing on the fly, generators, filters.

    Addressed by lane, window and offset, never by position: a window is a run of inputs of one lane, and a lane's
    outputs are those of its windows one after another. The global order takes one output of each lane in turn.

    Laws: `outputs(lane, window)` is a pure function; lanes never depend on each other.
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
        """Hex digest of everything that decides what each lane holds."""
        ...

    def outputs(self, lane: int, window: int, /) -> Iterator[T_co]:
        """The samples that one window of a lane gives, in order; there may be none."""
        ...

    def children(self) -> Mapping[str, Source[Any] | Stream[Any]]:
        """What it draws from, by name."""
        ...

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which this can be rebuilt."""
        ...


class CountedLanes(LaneStream[T_co], Protocol):
    """A lane stream whose outputs know how many the lane gave before them."""

    def outputs_after(self, lane: int, window: int, before: int, /) -> Iterator[T_co]:
        """As `outputs`; the windows before gave `before` samples."""
        ...


def counts(stream: LaneStream[T_co]) -> TypeGuard[CountedLanes[T_co]]:
    """Whether a lane stream has `outputs_after`."""
    return hasattr(type(stream), "outputs_after")


@runtime_checkable
class Seedable(Protocol):
    """A stream in which a seed may be left open."""

    def seeded(self, seed: int, /) -> Stream[Any]:
        """The stream with `seed` where none was given, in what it draws from too; itself where nothing was open."""
        ...


@runtime_checkable
class HasHorizon(Protocol):
    """A stream that knows what its first positions depend on: a run may resume where only a later part differs."""

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """What decides the positions `[0, stop)`, for `stop >= 1`.

        Returns:
            The stream's own parameters as plain JSON, without its children's recipes, cut down to what matters
            before `stop`; empty where the stream so far hands on one child as it is. And the children read
            there: name → a number that all of the child's positions read so far are below.
        """
        ...


@runtime_checkable
class TokenParts(Protocol):
    """A writer that takes finished runs of tokens from files, without passing them through Python."""

    @property
    def part_bytes(self) -> int:
        """Width of these tokens: 1, 2 or 4."""
        ...

    def write_part(self, path: str, start_bytes: int, doc_lengths: IntArray, max_token_id: int | None) -> None:
        """Append documents whose tokens lie back to back in a file, little-endian in the writer's width.

        Args:
            path: local file.
            start_bytes: where its tokens begin.
            doc_lengths: int64[n_docs], in tokens.
            max_token_id: the largest id in there, -1 when there is no token, or None: the writer looks.
        """
        ...


@runtime_checkable
class CutsBlocks(Protocol):
    """An order of storage blocks that lanes cut."""

    def parts_read(self, positions: IntArray, world: int, /) -> tuple[IntArray, IntArray]:
        """For the blocks around positions of a rank: where what it reads of each begins and ends; int64[m] each."""
        ...


@runtime_checkable
class ExpectsDigest(Protocol):
    """A writer of tokens that need not digest documents whose digest somebody else knows."""

    def expect_digest(self, digest: Callable[[], str]) -> None:
        """Before the first document: the document digest of all, of version 2; asked for when all were written."""
        ...


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Rows that lie in files of the output's own store, and all that a writer would find out by reading them.

    Attributes:
        ranges: `(path, first byte, bytes)` in their order, as the writer would store them.
        lengths: gives runs of int64[k], the units of each row; may be asked again.
        size_bytes: of all rows.
        digest: the document digest; `""` where rows are lines.
        max_token_id: the largest id; -1 where there is none.
        blocks: digests of the whole blocks of the file from its start, with the writer's own head, that rows fill.
        rest: gives the rows' bytes behind these blocks, in pieces; the head where there is none.
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
    """A writer of one file that may be made of ranges of others, without a look at their bytes."""

    def write_joined(self, rows: JoinedRows, /) -> None:
        """Take all rows of the dataset; nothing else may be written before or after.

        Raises:
            Unsupported: it stores rows otherwise than they lie there.
        """
        ...


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A rule that changed after version 0.2.0, so that the same parameters may give other samples.

    Attributes:
        name: what `accept=` calls it.
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
    """How version 0.2.0 wrote the same parameters into states.

    Attributes:
        parameters: the node's own parameters that had another value then.
        absent: those that it didn't have.
        change: the rule that they stand for; None if it is the same rule.
    """

    parameters: Mapping[str, Any]
    absent: tuple[str, ...]
    change: RuleChange | None


@runtime_checkable
class HasFormerRule(Protocol):
    """A source whose states of version 0.2.0 may stand for another rule."""

    def former_rule(self) -> FormerRule | None:
        """The rule of version 0.2.0; None if nothing is different."""
        ...


class Derived(Protocol):
    """Things computed once a host and mapped: decoded document starts, plans, permutations."""

    def array(self, key: str, dtype: str, build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The 1-d array stored under `key`, built under a lock where it is missing; read-only and mapped.

        `key` is a digest of all that the array depends on: fingerprint, parameters, version.
        """
        ...


def is_token_source(source: object) -> TypeGuard[TokenSource]:
    """Whether `source` is a TokenSource, without evaluating its properties."""
    return callable(getattr(type(source), "gather", None))


def require_tokens(source: object, what: str) -> None:
    """That `source` is a TokenSource, which `what` is made of; raises `ConfigError`."""
    if not is_token_source(source):
        hint = "`penstock pack` converts text to tokens; tokens_column= opens a column of token ids as documents"
        raise ConfigError(f"{what} needs token documents", found=f"a {type(source).__name__}", hint=hint)


def is_finite(made: object) -> bool:
    """Whether it has a length: a Source, and nothing endless. Not all that is endless is a Stream: see `LaneStream`."""
    return hasattr(type(made), "__len__")


def is_stream(source: object) -> TypeGuard[Stream[Any]]:
    """Whether `source` is an endless Stream rather than a finite Source."""
    return callable(getattr(type(source), "locate", None)) and not is_finite(source)


def is_lane_stream(source: object) -> TypeGuard[LaneStream[Any]]:
    """Whether `source` is a LaneStream, without evaluating its properties."""
    return callable(getattr(type(source), "outputs", None))

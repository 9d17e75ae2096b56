"""Streams one after another: other weights, window lengths or data from a position on."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import as_position
from penstock._digest import derive_key
from penstock._kinds import is_stream
from penstock.abc import Stream
from penstock.errors import ConfigError
from penstock.mix._branches import BranchingStream, seeded
from penstock.order.permutation import MAX_SIZE
from penstock.types import IntArray

VERSION = "stages-1"


class Stages(BranchingStream):
    """Stream of several streams one after another, such as the phases of a curriculum.

    Stage j contains the first `n_j` positions of its stream; the last stage has no end. Each stage reads its stream
    from position 0. Adding a stage after the positions already consumed doesn't change them, so a saved state still
    loads.

    Args:
        stages: `(n, stream)` pairs. n is a number of positions (samples of all ranks) and a multiple of the lanes. It
            is None for the last stage, and only there.

    Raises:
        ConfigError: `stages` is empty, n is invalid, a source is passed instead of a stream, or lanes differ.

    Attributes:
        borders: first position of each stage except the first.

    Examples:
        >>> import penstock as ps
        >>> text, code = ps.Shuffle(ps.open("corpus.pbin"), 0), ps.Shuffle(ps.open("code.pbin"), 0)
        >>> stages = ps.Stages([(1000, text), (None, code)])
        >>> stages.locate(999).path[0], stages.locate(1000).path[0]
        ('0', '1')
    """

    kind = "stages"

    def __init__(self, stages: Sequence[tuple[int | None, Stream[Any]]]) -> None:
        pairs = list(stages)
        _check(pairs)
        lanes = pairs[0][1].lanes
        streams = {str(number): stream for number, (_, stream) in enumerate(pairs)}
        super().__init__("a sequence of stages", lanes, streams, self._split)
        self._lengths = [_length(number, n, lanes) for number, (n, _) in enumerate(pairs[:-1])]
        self.borders = tuple(accumulate(self._lengths))
        if self.borders and self.borders[-1] > MAX_SIZE:
            raise ConfigError("the stages are too long", found=self.borders[-1], expected=f"at most {MAX_SIZE}")
        self._starts: IntArray = np.array([0, *self.borders], dtype=np.int64)

    def identity(self) -> tuple[Any, ...]:
        return ("stages", VERSION, self._lengths, [stream.fingerprint for stream in self._streams.values()])

    def position_of(self, name: str, inner: int, /) -> int | None:
        """Return the position of stage `name`'s position `inner`; None if the stage ends before it."""
        stage = self._names.index(name)
        inside = stage == len(self._lengths) or as_position(inner) < self._lengths[stage]
        return int(self._starts[stage]) + inner if inside else None

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """Return what determines the positions `[0, stop)`: the stages that start before `stop`."""
        last, inner = self.split_one(stop - 1)
        before = self._lengths[:last]
        own = {"kind": "stages", "version": VERSION, "lengths": before} if before else {}
        return own, {**{str(stage): length for stage, length in enumerate(before)}, str(last): inner + 1}

    def seeded(self, seed: int, /) -> Stages:
        """Return this with a seed derived from `seed` and the stage for streams made without one."""
        streams = [seeded(stream, derive_key(seed, "stage", int(name)) >> 12) for name, stream in self._streams.items()]
        return Stages(list(zip([*self._lengths, None], streams, strict=True)))

    def recipe(self) -> dict[str, Any]:
        """Return a plain-JSON description from which the stream can be rebuilt."""
        lengths = [*self._lengths, None]
        stages = [
            {"length": length, "stream": stream.recipe()}
            for length, stream in zip(lengths, self._streams.values(), strict=True)
        ]
        return {"kind": "stages", "version": VERSION, "stages": stages}

    def shown(self) -> dict[str, Any]:
        return {"stages": len(self._streams), "lanes": self._lanes}

    def child_notes(self) -> Mapping[str, str]:
        """Return name → the stage's positions."""
        stops = [f"{border:,}" for border in self.borders]
        return {
            str(stage): f"[{start}, {stop})"
            for stage, (start, stop) in enumerate(zip(["0", *stops], [*stops, "…"], strict=True))
        }

    def _split(self, positions: IntArray) -> tuple[NDArray[Any], IntArray]:
        stage = np.searchsorted(self._starts, positions, side="right") - 1
        return stage, positions - self._starts[stage]

    def split_one(self, position: int) -> tuple[int, int]:
        stage = int(np.searchsorted(self._starts, position, side="right")) - 1
        return stage, position - int(self._starts[stage])


def _check(pairs: Sequence[tuple[Any, Any]]) -> None:
    if not pairs:
        raise ConfigError("no stage", expected="one or more")
    for number, (_, stream) in enumerate(pairs):
        if not is_stream(stream):
            raise ConfigError(
                f"stage {number} is not a stream",
                found=f"a {type(stream).__name__}",
                hint="Create one with Shuffle(source, seed) or Sequential(source)",
            )
    if pairs[-1][0] is not None:
        raise ConfigError(
            "the last stage must be endless",
            found=f"{pairs[-1][0]} positions",
            expected="None as its length",
            hint="A stream is endless. Limit the steps of the Loader instead",
        )


def _length(number: int, n: int | None, lanes: int) -> int:
    if n is None:
        raise ConfigError(f"stage {number} is endless, but others follow", expected="a number of positions")
    n = operator.index(n)
    if n < 1:
        raise ConfigError(f"stage {number} has no positions", found=n, expected="at least 1")
    if n % lanes:
        raise ConfigError(
            f"the length of stage {number} is not a multiple of the {lanes} lanes",
            found=n,
            expected=" or ".join(str(m) for m in (n // lanes * lanes, (n // lanes + 1) * lanes) if m > 0),
        )
    return n

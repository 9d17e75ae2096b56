"""Explains what the steps of a lane stream read, by walking its lanes again from the beginning or from a state.

Output q of the global order is number `q // lanes` of lane `q mod lanes`. How many outputs a window gives is known only
once it was made, so an explanation reads every window up to the one that it is about: it is exact, and costs as much as
reading them did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from penstock._kinds import LaneStream
from penstock.abc import Stream
from penstock.errors import ConfigError
from penstock.load.inverse import Wanted, positions_of
from penstock.load.lanes import Places, require_outputs


@runtime_checkable
class _SupportsOrigins(Protocol):
    """A lane stream that knows which inputs its outputs were made of; see `penstock.cook.packstream.PackStream`."""

    @property
    def stream(self) -> Stream[Any]: ...
    @property
    def window(self) -> int: ...
    def origins(self, lane: int, window: int, /) -> list[tuple[int, ...]]: ...


class Output(NamedTuple):
    """One output: its place in the global order, and the input positions that it was made of."""

    position: int
    lane: int
    window: int
    offset: int
    inputs: tuple[int, ...]


def outputs_at(data: LaneStream[Any], positions: Iterable[int], places: Places, consumed: int) -> list[Output]:
    """The outputs at rising global positions, in that order.

    Args:
        data: the lane stream.
        positions: in the global order.
        places: of lanes after `consumed` outputs; lanes that are not in it are walked from the beginning.
        consumed: see `places`.

    Raises:
        ConfigError: the stream does not tell what its outputs are made of.
    """
    wanted: dict[int, list[int]] = {}
    for position in positions:
        wanted.setdefault(position % data.lanes, []).append(position)
    found: list[Output] = []
    for lane, own in wanted.items():
        known = places.get(lane) if min(own) >= consumed else None
        chosen = set(own)
        found += (one for one in _walk(data, lane, max(own) + 1, known, consumed) if one.position in chosen)
    return sorted(found)


def outputs_of(data: LaneStream[Any], key: Wanted, stop: int) -> list[Output]:
    """The outputs below the global position `stop` that were made of a sample with this key, in order.

    Memory: what is found, and the positions at which the key comes.

    Raises:
        ConfigError: the stream does not tell what its outputs are made of.
    """
    packed = _with_origins(data)
    found: list[Output] = []
    hits, searched = set[int](), 0
    for lane in range(data.lanes):
        for one in _walk(data, lane, stop, None, 0):
            reached = (one.window + 1) * packed.window * data.lanes
            if reached > searched:
                searched = max(reached, 2 * searched)  # twice as far each time: the search starts again
                hits = set(positions_of(packed.stream, key, searched))
            if not hits.isdisjoint(one.inputs):
                found.append(one)
    return sorted(found)


def _walk(
    data: LaneStream[Any], lane: int, stop: int, known: tuple[int, int] | None, consumed: int
) -> Iterator[Output]:
    """The outputs of a lane below the global position `stop`, from the window of `known` on, or from the first."""
    packed, lanes = _with_origins(data), data.lanes
    window, number, empty = 0, 0, 0
    if known is not None:
        window = known[0]
        number = max(0, -(-(consumed - lane) // lanes)) - known[1]  # outputs of the lane before that window
    while number * lanes + lane < stop:
        origins = packed.origins(lane, window)
        for offset, inputs in enumerate(origins):
            if (number + offset) * lanes + lane < stop:
                yield Output((number + offset) * lanes + lane, lane, window, offset, inputs)
        empty = 0 if origins else empty + 1
        require_outputs(lane, window, empty)
        number, window = number + len(origins), window + 1


def _with_origins(data: LaneStream[Any]) -> _SupportsOrigins:
    if not isinstance(data, _SupportsOrigins):
        raise ConfigError(
            "this stream can't tell which samples its outputs come from",
            found=type(data).__name__,
            hint="Explain its `stream`, which has positions",
        )
    return data

"""Explanation of a run from its stream and history: the samples of a step, and the steps that read a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from penstock._access import place_of
from penstock._kinds import LaneStream, is_lane_stream, is_stream
from penstock.abc import Stream
from penstock.errors import ConfigError, NotFound, ResumeMismatch
from penstock.formats._sample_keys import key_at
from penstock.load import excluded, lanes
from penstock.load import history as runs
from penstock.load import state as states
from penstock.load.describe import describe
from penstock.load.inverse import Key, OneOf, Origins, Wanted, has_document, positions_of
from penstock.load.lanes import Places, require_outputs
from penstock.mix import Epochs
from penstock.mix.auxiliary import MappedSource
from penstock.node.walk import descend
from penstock.types import Location


@dataclass(frozen=True, slots=True)
class Run:
    """Run to be explained.

    Attributes:
        data: its stream, or a source that is read once.
        history: its shapes.
        exact_from: positions before this one were read from a different stream, before an accepted change.
        consumed: samples consumed according to its state; None without a state.
        places: places of a lane stream's lanes after `consumed`.
        excluded: the exclude lists over time, as recorded in the state.
    """

    data: Any
    history: runs.History
    exact_from: int = 0
    consumed: int | None = None
    places: Places = field(default_factory=dict[int, tuple[int, int]])
    excluded: excluded.Rows = ()


def run_of(data: Any, global_batch: int | None, world: int | None, state: Mapping[str, Any] | None) -> Run:
    """Return the run of a stream, by its state or in one shape from the beginning.

    Raises:
        ConfigError: there is neither a state nor a global batch.
        ResumeMismatch: the state is of another stream.
    """
    if state is None:
        if global_batch is None:
            hint = "Pass the global batch: --global-batch (global_batch=), or a state: --state (state=)"
            raise ConfigError("the number of samples per step is unknown", hint=hint)
        return Run(data, (runs.Stretch(0, 0, global_batch, world or 1),))
    saved = states.decode(state)
    description = describe(data, saved.consumed)
    # Rules that changed after version 0.2.0 affect the contents of samples, not which samples are read.
    found = states.differences(saved, data, description)
    if found := [one for one in found if one.change is None]:
        raise states.mismatch(found, description, "Use the recipe and seed of the run")
    exact_from = max((consumed for consumed, *_ in saved.accepted), default=0)
    places = lanes.decode(state.get("lanes", [])) if is_lane_stream(data) else {}
    lists = excluded.decode(state.get("excluded", []))
    return Run(data, saved.history, exact_from, saved.consumed, places, lists)


def explain_step(run: Run, step: int, rank: int | None = None, world: int | None = None) -> dict[str, Any]:
    """Return the samples of one step in position order, of all ranks or one.

    Raises:
        ConfigError: the step or rank doesn't exist.
        ResumeMismatch: the step was read from a different stream, before an accepted change.
    """
    if step < 0:
        raise ConfigError("step is out of range", found=step, expected="0 or more")
    stretch = runs.stretch_of(run.history, step)
    start = stretch.consumed_at(step)
    world = stretch.world if world is None else world
    if rank is not None and not 0 <= rank < world:
        raise ConfigError(f"rank is out of range for world size {world}", found=rank, expected=f"0 to {world - 1}")
    _refuse_inexact(run, start)
    stop = _end(run.data, start + stretch.global_batch)
    if start >= stop:
        raise ConfigError(
            f"the pass of {stop:,} samples ends before this step",
            found=f"step {step}, which starts at position {start:,}",
        )
    positions = [one for one in range(start, stop) if rank is None or one % world == rank]
    if is_lane_stream(run.data):
        outputs = outputs_at(run.data, positions, run.places, run.consumed or 0)
        samples = [_output_row(run.data, one) for one in outputs]
    else:
        origins = Origins(run.data)
        samples = [_row_then(run, position, origins) for position in positions]
    return {
        "step": step,
        "global_batch": stretch.global_batch,
        "world": world,
        "rank": rank,
        "samples": samples,
    }


def steps_to_search(run: Run, step: int | None) -> int:
    """Return how many steps to search for a document: up to `step` if given, else up to the state or the first epoch.

    Raises:
        ConfigError: unknown, because the stream packs on the fly and there is no state.
    """
    from penstock.load.plan import once  # that module imports this one indirectly

    if step is not None:
        return step + 1
    if is_lane_stream(run.data) and run.consumed is None:
        hint = "Give the last step to search, --step (step=), or a state: --state (state=)"
        raise ConfigError("unknown how many steps to search in a stream that packs on the fly", hint=hint)
    consumed = once(run.data) if run.consumed is None else run.consumed
    last = run.history[-1]
    if consumed < last.consumed:
        return runs.stretch_of(run.history, 0).first_step
    return last.first_step + -(-(consumed - last.consumed) // last.global_batch)


def explain_document(run: Run, key: Wanted, stop_step: int, limit: int, world: int | None = None) -> dict[str, Any]:
    """Return the positions of a document in the steps before `stop_step`, each with its step and rank.

    Args:
        run: see `run_of`.
        key: key of the sample, or number of a document in token windows; `NAME[INDEX]`, its input row, if the tokens
            were packed with `keep_map`; or the sample of one dataset.
        stop_step: end of the searched steps.
        limit: maximum number of rows.
        world: number of ranks; by default that of the run at each step.

    Raises:
        NotFound: no source of the stream has this document.
    """
    key = Key.of(key)
    stop = _end(run.data, runs.stretch_of(run.history, stop_step).consumed_at(stop_step))
    first = max(run.exact_from, run.history[0].consumed)
    if is_lane_stream(run.data):
        outputs = [one for one in outputs_of(run.data, key, stop) if one.position >= first][:limit]
        rows = [_with_step(run, _output_row(run.data, one), world) for one in outputs]
        _require_known(run, key, rows)
        return {"document": _name(key), "steps": stop_step, "from_position": first, "samples": rows}
    found = (position for position in positions_of(run.data, key, stop) if position >= first)
    positions = list(islice(found, limit))
    origins = Origins(run.data)
    rows = [_with_step(run, _row(run.data, position, origins), world) for position in positions]
    _require_known(run, key, rows)
    return {"document": _name(key), "steps": stop_step, "from_position": first, "samples": rows}


def _name(key: Wanted) -> str:
    return key.name if isinstance(key, OneOf) else str(key)


def _require_known(run: Run, key: Wanted, rows: Sized) -> None:
    """Raise `NotFound` for an unknown document, so that a misspelt name doesn't look like an unread document."""
    if isinstance(key, str) and not rows and not has_document(run.data, key):
        hint = "Use the number of a document of tokens, or the index of a sample without a key (see `penstock find`)"
        raise NotFound(f"no source in this run contains document {key!r}", hint=hint)


def row_of(at: Location) -> dict[str, Any]:
    row: dict[str, Any] = {
        "position": at.position,
        "path": list(at.path),
        "epoch": at.epoch,
        "index": at.index,
        "key": at.key,
    }
    if at.instead_of is not None:
        row["instead_of"] = at.instead_of
    if at.documents is not None:
        row["documents"] = [list(one) for one in at.documents]
    if at.extents is not None:
        row["extents"] = [[one.path, one.offset_bytes, one.length_bytes] for one in at.extents]
    return row


def _row(data: Any, position: int, origins: Origins) -> dict[str, Any]:
    at = _located(data, position)
    row = _with_key(data, row_of(at))
    made_of = origins.of(at.path, [number for number, _, _ in at.documents]) if at.documents else None
    return row if made_of is None else {**row, "origins": made_of}


def _with_key(data: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Add the key that is stored in a field of the sample, if its source has no index of keys."""
    if row["key"] is None and "documents" not in row:
        source = descend(data, row["path"], _is_source)
        row["key"] = None if source is None or isinstance(source, Epochs) else key_at(source, row["index"])
    return row


def _is_source(node: Any) -> bool:
    return not is_stream(node) and not isinstance(node, MappedSource)


def _located(data: Any, position: int) -> Location:
    if is_stream(data):
        return data.locate(position)
    if hasattr(type(data), "pass_location"):
        return data.pass_location(position)
    place = place_of(data, position)
    return Location(position, (), 0, position, place.key, place.documents, place.extents)


def _row_then(run: Run, position: int, origins: Origins) -> dict[str, Any]:
    """Return a position as it was read: before an exclusion, it held the sample itself."""
    row = _row(run.data, position, origins)
    index = row.get("instead_of")
    if index is None or not excluded.was_read_then(run, position, index):
        return row
    del row["instead_of"]
    return {**row, "index": index, "key": None, "excluded_since": True}


def _output_row(data: Any, output: Output) -> dict[str, Any]:
    inputs = [_with_key(data.stream, row_of(data.stream.locate(position))) for position in output.inputs]
    return {
        "position": output.position,
        "lane": output.lane,
        "window": output.window,
        "offset": output.offset,
        "inputs": inputs,
    }


def _with_step(run: Run, row: dict[str, Any], world: int | None) -> dict[str, Any]:
    position = row["position"]
    stretch = next(one for one in reversed(run.history) if one.consumed <= position)
    step = stretch.first_step + (position - stretch.consumed) // stretch.global_batch
    return {"step": step, "rank": position % (stretch.world if world is None else world), **row}


def _end(data: Any, stop: int) -> int:
    return stop if is_stream(data) or is_lane_stream(data) else min(stop, len(data))


def _refuse_inexact(run: Run, start: int) -> None:
    if start < run.exact_from:
        raise ResumeMismatch(
            "this step was read from a different stream: a change was accepted later",
            found=f"position {start}",
            expected=f"{run.exact_from} or more",
            hint="Use the recipe and a state from before the change",
        )


@runtime_checkable
class _SupportsOrigins(Protocol):
    """Lane stream that records the inputs of its outputs; see `penstock.cook.packstream.PackStream`."""

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
    """Return the outputs at ascending global positions, in that order.

    Raises:
        ConfigError: the stream doesn't record the inputs of its outputs.
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
    """Return the outputs below the global position `stop` that were made of a sample with this key, in order.

    Memory: the results, and the positions of the key.

    Raises:
        ConfigError: the stream doesn't record the inputs of its outputs.
    """
    packed = _with_origins(data)
    found: list[Output] = []
    hits, searched = set[int](), 0
    for lane in range(data.lanes):
        for one in _walk(data, lane, stop, None, 0):
            reached = (one.window + 1) * packed.window * data.lanes
            if reached > searched:
                searched = max(reached, 2 * searched)  # doubled each time, because the search starts over
                hits = set(positions_of(packed.stream, key, searched))
            if not hits.isdisjoint(one.inputs):
                found.append(one)
    return sorted(found)


def _walk(
    data: LaneStream[Any], lane: int, stop: int, known: tuple[int, int] | None, consumed: int
) -> Iterator[Output]:
    """Yield a lane's outputs below the global position `stop`, from the window of `known` on, or from the first."""
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

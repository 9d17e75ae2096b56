"""Batches of a `LaneStream`: one worker reads each lane. The position in a lane is (window, offset)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from penstock._arrays import in_memory, stack
from penstock._kinds import LaneStream, counts
from penstock._threads import Collecting
from penstock.errors import ConfigError, NotFound, PenstockError, ResumeMismatch
from penstock.load import state as saved_states
from penstock.load.collate import Collate
from penstock.load.workers import Handed, Wait, WorkersFactory

Places: TypeAlias = Mapping[int, tuple[int, int]]
"""Lane → (window, offset): the window of the next output, and how many of its outputs were delivered."""

_START = (0, 0)

# A filter that rejects everything must not look like a slow one.
_MOST_EMPTY_WINDOWS = 10_000

_RETRY_WAITS_S = (0.05, 0.25, 1.0)


@dataclass(frozen=True, slots=True)
class LaneTask:
    """A rank's reading of a lane stream from one point of a run on.

    Output number q of the global order belongs to lane `q mod lanes`; the rank's are `first_position + stride · k`.

    Attributes:
        data: the lane stream.
        first_position: global number of the rank's first output.
        stride: world size; it divides the lanes.
        places: places of the rank's lanes at the first batch.
        collate: converts columns to the delivered batch; runs in the calling thread.
        num_batches: None: endless.
    """

    data: LaneStream[Any]
    first_position: int
    stride: int
    batch_size: int
    micro_batches: int
    places: Places
    collate: Collate
    num_batches: None = None

    def at(self, places: Places) -> LaneTask:
        """Return the task, starting from other places."""
        return replace(self, places=places)


@dataclass(frozen=True, slots=True)
class Part:
    """One worker's part of a batch: samples, their rows, the lanes' places after it, and stage → seconds."""

    rows: list[int]
    samples: list[Any]
    places: dict[int, tuple[int, int]]
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class LaneShares:
    """`Producer` in which worker w of W reads every W-th lane of the rank, and yields one `Part` per batch."""

    task: LaneTask
    first: int
    workers: int

    def __call__(self, worker: int, wait: Wait, /) -> Generator[Part]:
        task, lanes = self.task, self.task.data.lanes
        own = sorted(task.places)[worker :: self.workers]
        consumed = task.first_position + task.stride * self.first * task.batch_size
        # The first output of lane l of n is number l of the global order, the next one n later.
        delivered = {lane: -(-max(0, consumed - lane) // lanes) for lane in own}
        walks = {lane: walk(task.data, lane, *task.places[lane], wait, delivered[lane]) for lane in own}
        number = self.first
        while True:
            part = Part([], [], {}, {})
            began = time.perf_counter()
            with Collecting(part.seconds):
                for row in range(task.batch_size):
                    lane = (task.first_position + task.stride * (number * task.batch_size + row)) % lanes
                    if lane in walks:
                        sample, place = next(walks[lane])
                        part.rows.append(row)
                        part.samples.append(sample)
                        part.places[lane] = place
            part.seconds["read"] = time.perf_counter() - began - sum(part.seconds.values())
            yield part
            number += 1

    def place(self, worker: int, made: int, /) -> str:
        own = sorted(self.task.places)[worker :: self.workers]
        return f"batch {self.first + made}, lanes {_listed(own)}"


class LaneBatches:
    """Pipeline of batches in order, each with the lanes' places after it.

    Memory: the prefetched parts of batches, and the stream's state for a window of each of the rank's lanes.
    """

    def __init__(self, task: LaneTask, first: int, workers: int, start: WorkersFactory) -> None:
        self._task = task
        count = min(workers, len(task.places))
        self._workers = start(LaneShares(task, first, count), count)
        self._turns = range(count)

    def __next__(self) -> Handed:
        parts: list[Part] = [self._workers.take(worker) for worker in self._turns]
        samples: list[Any] = [None] * self._task.batch_size
        places: dict[int, tuple[int, int]] = {}
        seconds: Counter[str] = Counter()
        for part in parts:
            places.update(part.places)
            seconds.update(part.seconds)
            for row, sample in zip(part.rows, part.samples, strict=True):
                samples[row] = sample
        with in_memory("a batch", f"{len(samples)} samples from lanes"):
            return self._task.collate(stack(samples)), dict(seconds), places

    def ready(self) -> int:
        return self._workers.ready()

    def close(self) -> None:
        self._workers.close()


def walk(
    data: LaneStream[Any], lane: int, window: int, offset: int, wait: Wait, delivered: int
) -> Iterator[tuple[Any, tuple[int, int]]]:
    """Yield the outputs of a lane from (window, offset) on without end, each with the place after it.

    Raises:
        ResumeMismatch: the window gives fewer outputs than were delivered before.
        PenstockError: too many windows in a row are empty.
    """
    empty = 0
    while True:
        before, count = delivered - offset, offset
        for count, sample in _outputs(data, lane, window, before, offset, wait):
            yield sample, (window, count)
        empty = empty + 1 if count == 0 else 0
        require_outputs(lane, window, empty)
        window, offset, delivered = window + 1, 0, before + count


def require_outputs(lane: int, window: int, empty: int) -> None:
    """Raise `PenstockError` if too many windows in a row, up to `window`, gave no output."""
    if empty >= _MOST_EMPTY_WINDOWS:
        raise PenstockError(
            f"lane {lane} has stopped producing samples",
            found=f"{empty} windows in a row without an output, up to window {window}",
            hint="Check the function that filters or packs",
        )


def _outputs(
    data: LaneStream[Any], lane: int, window: int, before: int, offset: int, wait: Wait
) -> Iterator[tuple[int, Any]]:
    """Yield the outputs of one window after the first `offset`, numbered from 1; I/O errors are retried."""
    waits = iter(_RETRY_WAITS_S)
    while True:
        number = 0
        made = data.outputs_after(lane, window, before) if counts(data) else data.outputs(lane, window)
        try:
            for number, sample in enumerate(made, 1):
                if number > offset:
                    yield number, sample
                    offset = number
        except OSError as error:
            seconds = next(waits, None)
            if isinstance(error, NotFound) or seconds is None or wait(seconds):
                raise
            continue
        if number < offset:
            raise ResumeMismatch(
                f"window {window} of lane {lane} produces fewer samples than before",
                found=number,
                expected=f"at least {offset}",
                hint="The functions of a lane stream must be deterministic",
            )
        return


def own_lanes(lanes: int, rank: int, world: int) -> range:
    """Return the lanes of a rank.

    Raises:
        ConfigError: the world size doesn't divide the lanes; the valid ones are listed.
    """
    if lanes % world:
        allowed = [size for size in range(1, lanes + 1) if lanes % size == 0]
        raise ConfigError(
            f"a stream of {lanes} lanes can't be divided among {world} ranks: each lane is read by one rank",
            found=f"world {world}",
            expected="a world of " + ", ".join(map(str, allowed)),
            hint="Create the stream with more lanes, such as a multiple of every world size that you expect",
        )
    return range(rank, lanes, world)


def encode(places: Places) -> list[list[int]]:
    """Return places as stored in a state: `[lane, window, offset]` each."""
    return [[lane, *places[lane]] for lane in sorted(places)]


def decode(value: Any) -> dict[int, tuple[int, int]]:
    """Return the places in a state; raise `ResumeMismatch` if they are malformed."""
    rows: list[Any] = value if isinstance(value, list) else [None]
    for row in rows:
        if not (isinstance(row, (list, tuple)) and len(row) == 3 and all(_is_count(number) for number in row)):
            raise ResumeMismatch("not a state of lanes", found=repr(row)[:80], expected="[lane, window, offset]")
    return {row[0]: (row[1], row[2]) for row in rows}


def places_of(saved: Places, own: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the places of a rank's own lanes.

    Raises:
        ResumeMismatch: the state lacks some of them.
    """
    own = list(own)
    missing = [lane for lane in own if lane not in saved]
    if missing:
        raise ResumeMismatch(
            "the state lacks lanes of this rank",
            found="lanes " + _listed(sorted(saved)),
            expected="lanes " + _listed(own),
            hint="The state of each rank only has its own lanes: merge them with merge_states([...])",
        )
    return {lane: saved[lane] for lane in own}


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states of all ranks into one that any world size dividing the lanes can load.

    Args:
        states: `Loader.state_dict()` of each rank, after the same step. The states of streams that aren't lane streams
            are the same on every rank; any one of them is the result.

    Returns:
        A state as plain JSON, for `Loader.load_state_dict`.

    Raises:
        ResumeMismatch: there are no states, they are of different streams or steps, they disagree about a lane, or the
            state of a rank is missing.

    Examples:
        >>> import penstock as ps
        >>> def first(samples):
        ...     return samples[0]
        >>> stream = ps.Shuffle(ps.open("corpus.pbin"), seed=0, lanes=4)
        >>> packed = ps.PackStream(stream, window=1, merge=first, name="first-1")
        >>> states = []
        >>> for rank in range(2):
        ...     with ps.Loader(packed, global_batch=4, rank=rank, world=2) as loader:
        ...         batch = next(iter(loader))
        ...         states.append(loader.state_dict())
        >>> with ps.Loader(packed, global_batch=4, rank=0, world=1) as loader:
        ...     loader.load_state_dict(ps.merge_states(states))
        ...     loader.step
        []
        1
    """
    first: dict[str, Any] | None = None
    places: dict[int, tuple[int, int]] = {}
    for number, state in enumerate(states):
        rest = {key: value for key, value in state.items() if key != "lanes"}
        if first is None:
            first = rest
        different = [key for key in {**first, **rest} if first.get(key) != rest.get(key)]
        if different:
            raise ResumeMismatch(
                f"state {number} comes from a different run or step than state 0",
                found=", ".join(f"{key} {rest.get(key)!r}"[:120] for key in different),
                expected=", ".join(f"{key} {first.get(key)!r}"[:120] for key in different),
            )
        for lane, place in decode(state.get("lanes", [])).items():
            if places.setdefault(lane, place) != place:
                raise ResumeMismatch(f"two states disagree on lane {lane}", found=place, expected=places[lane])
    if first is None:
        raise ConfigError("no states to merge")
    world = saved_states.decode(first).history[-1].world
    lacking = sorted(set(range(world)) - {lane % world for lane in places}) if places else []
    if lacking:
        raise ResumeMismatch("the states of some ranks are missing", found=f"none from rank {_listed(lacking)}")
    return {**first, "lanes": encode(places)} if places else first


def _listed(lanes: list[int]) -> str:
    return ", ".join(map(str, lanes[:16])) + (", …" if len(lanes) > 16 else "") if lanes else "none"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def starts(lanes: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the places at the beginning of a run."""
    return dict.fromkeys(lanes, _START)

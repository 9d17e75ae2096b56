"""Reads a rank's batches one after another: resolves many positions ahead, then reads once for each batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._columns import in_memory
from penstock._resolved import MARK, excluded_below, expect_lanes, prefetch_of, resolves
from penstock._secrets import logger
from penstock._stages import Collecting
from penstock.abc import SupportsSubstitutes
from penstock.errors import ConfigError, Excluded, FormatError, NotFound
from penstock.load.collate import Collate
from penstock.order import Sequential
from penstock.types import Batch, IntArray

OnError = Literal["raise", "substitute"]

# Orders are computed for this many positions at once: few at first, so that the first batch comes at once.
_FIRST_AHEAD = 1 << 10
_MOST_AHEAD = 1 << 16

# Waits before input and output errors are tried again.
_RETRY_WAITS_S = (0.05, 0.25, 1.0)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Everything that decides a rank's batches from one place of a run on. Picklable where `data` and `collate` are.

    The rank's samples have the positions `first_position + stride · k`; batch number u holds those with
    `batch_size · u <= k < batch_size · (u + 1)`, whatever micro-batches and workers there are.

    Attributes:
        data: a stream, or a source for one pass.
        first_position: global position of the rank's first sample.
        stride: world size.
        batch_size: samples of a batch of this rank.
        num_batches: where the pass ends; None for an endless stream.
        num_samples: length of the source in a pass, where positions from there on are repeats; None for a stream.
        collate: makes what is delivered from a batch of columns.
        on_error: what happens to a sample that can't be read.
        substitute_limit: see `Substitutions`.
    """

    data: Any
    first_position: int
    stride: int
    batch_size: int
    num_batches: int | None
    num_samples: int | None
    collate: Collate
    on_error: OnError
    substitute_limit: float


def read_batches(
    task: ReadTask,
    first: int,
    step: int,
    wait: Callable[[float], object] = time.sleep,
    seconds: dict[str, float] | None = None,
) -> Generator[Any]:
    """Batches number `first, first + step, …` of the task; memory: 1 MiB of orders and one batch.

    Each batch is a new array. The allocator hands the memory of dropped ones back without page faults, so this costs
    no more than copying into kept buffers, and nothing that the caller may still hold is written to again.

    Args:
        task: what to read.
        first: number of the first batch.
        step: number of workers that share the task.
        wait: sleeps for so many seconds; where it returns true, nothing is tried again.
        seconds: stage → seconds spent in it, added up here: `order`, `read`, `collate`, and functions by their names.
    """
    seconds = {} if seconds is None else seconds
    batch_of = _reader(task, wait, seconds)
    prefetch = prefetch_of(task.data)
    resolve = task.data.resolve if resolves(task.data) else None
    whole_lanes = getattr(task.data, "lanes", 1) % task.stride == 0
    within = np.arange(task.batch_size, dtype=np.int64)
    ahead = _FIRST_AHEAD
    number = first
    while task.num_batches is None or number < task.num_batches:
        count = max(1, ahead // task.batch_size)
        if task.num_batches is not None:
            count = min(count, -(-(task.num_batches - number) // step))
        numbers = number + step * np.arange(count, dtype=np.int64)
        positions = task.first_position + task.stride * (numbers[:, None] * task.batch_size + within)
        began = time.perf_counter()
        resolved = positions if resolve is None else resolve(positions.reshape(-1)).reshape(positions.shape)
        if prefetch is not None:
            places = resolved if task.num_samples is None else resolved % task.num_samples
            if whole_lanes:
                expect_lanes(task.data, positions.reshape(-1), task.stride)
            prefetch(places, whole=whole_lanes)
        seconds["order"] = seconds.get("order", 0.0) + time.perf_counter() - began
        for row in range(count):
            yield batch_of(positions[row], resolved[row], (number - first) // step * task.batch_size)
            number += step
        ahead = min(ahead * 2, _MOST_AHEAD)


class _Positions:
    """Says which they are, where that is asked for."""

    def __init__(self, positions: IntArray) -> None:
        self._positions = positions

    def __str__(self) -> str:
        return f"positions {self._positions[0]} to {self._positions[-1]}, {len(self._positions)} samples"


def _reader(
    task: ReadTask, wait: Callable[[float], object], seconds: dict[str, float]
) -> Callable[[IntArray, IntArray, int], Any]:
    """Returns a function of a batch's positions, what they resolve to, and the number of samples read before."""
    columns_of = _columns_reader(task, wait)

    def timed(positions: IntArray, resolved: IntArray, num_read: int) -> Any:
        functions: dict[str, float] = {}
        began = time.perf_counter()
        with in_memory("a batch", _Positions(positions)):
            with Collecting(functions):
                columns = columns_of(positions, resolved, num_read)
            read = time.perf_counter()
            batch = task.collate(columns)
        reading = read - began - sum(functions.values())
        for name, spent in (("read", reading), ("collate", time.perf_counter() - read), *functions.items()):
            seconds[name] = seconds.get(name, 0.0) + spent
        return batch

    return timed


def _columns_reader(task: ReadTask, wait: Callable[[float], object]) -> Callable[[IntArray, IntArray, int], Batch]:
    if task.num_samples is not None:
        return _pass_reader(task, task.num_samples, wait)
    read = _retrying(task.data.get_batch, wait)
    read_resolved = _retrying(task.data.get_resolved, wait) if resolves(task.data) else read
    has_excluded = excluded_below(task.data)
    if task.on_error == "raise" and not has_excluded:
        return lambda _positions, resolved, _num_read: read_resolved(resolved)
    substitutions = Substitutions(task.data, task.substitute_limit)
    mended_errors = (Excluded,) if task.on_error == "raise" else (Excluded, FormatError)

    def mended(positions: IntArray, resolved: IntArray, num_read: int) -> Batch:
        try:
            batch, replaced = read_resolved(resolved), np.zeros(positions.shape, np.bool_)
        except mended_errors:
            batch, replaced = substitutions.mend(positions, read, num_read)
        if has_excluded:
            batch = dict(batch)
            replaced = replaced | _marks(batch.pop(MARK, None), task.data, positions)
        return _with(batch, MARK, replaced)

    return mended


def _pass_reader(
    task: ReadTask, num_samples: int, wait: Callable[[float], object]
) -> Callable[[IntArray, IntArray, int], Batch]:
    """The same for one pass over a source; another sample of it stands in for one that is excluded."""
    if not excluded_below(task.data):
        read = _retrying(task.data.get_batch, wait)
        return lambda positions, _, __: _with(read(positions % num_samples), "valid", positions < num_samples)
    stream: Any = Sequential(task.data)
    read_one_pass = _retrying(stream.get_batch, wait)
    substitutions = Substitutions(stream, task.substitute_limit)

    def of_source(positions: IntArray, _resolved: IntArray, num_read: int) -> Batch:
        places = positions % num_samples
        try:
            batch, replaced = read_one_pass(places), np.zeros(places.shape, np.bool_)
        except Excluded:
            batch, replaced = substitutions.mend(places, read_one_pass, num_read)
        batch = {**batch, MARK: replaced | _marks(batch.get(MARK), stream, places)}
        return _with(batch, "valid", positions < num_samples)

    return of_source


def _marks(known: Any, stream: Any, positions: IntArray) -> NDArray[np.bool_]:
    """bool[k]: which samples stand in for excluded ones; what samples were made of may not say it."""
    if isinstance(known, np.ndarray):
        return known.astype(np.bool_)
    return np.array([stream.locate(position).instead_of is not None for position in positions.tolist()], np.bool_)


def _with(batch: Batch, name: str, column: Any) -> Batch:
    if name in batch:
        raise ConfigError(
            f"the samples have a field {name!r}, a name that the loader reserves",
            hint="Rename that field with Map",
        )
    return {**batch, name: column}


def _retrying(read: Callable[[IntArray], Batch], wait: Callable[[float], object]) -> Callable[[IntArray], Batch]:
    """`read`, tried again after input and output errors: a time-out never changes data."""

    def attempt(places: IntArray) -> Batch:
        try:
            return read(places)
        except OSError as error:
            return _again(read, places, error, wait)

    return attempt


def _again(
    read: Callable[[IntArray], Batch], places: IntArray, error: OSError, wait: Callable[[float], object]
) -> Batch:
    for wait_s in _RETRY_WAITS_S:
        # A file that is not there will not come back.
        if isinstance(error, NotFound) or wait(wait_s):
            break
        try:
            return read(places)
        except OSError as latest:
            error = latest
    raise error


_log = logger()

_ATTEMPTS = 64
_PROBES, _RUN = 256, 16
_FEWEST = 1000


class Substitutions:
    """Replaces unreadable samples of a stream and counts them by child. One a worker: not thread-safe.

    Which sample stands in depends on the stream and the position alone, never on ranks, workers or earlier failures.

    Args:
        stream: names stand-ins; its `locate` names children.
        share: the largest share of a child's positions that may be replaced. It is compared with what this worker
            has read of the child, and against 1,000 positions while that is less.
    """

    def __init__(self, stream: Any, share: float) -> None:
        self._stream = stream
        self._share = share
        self._replaced: Counter[tuple[str, ...]] = Counter()

    def mend(
        self, positions: IntArray, read: Callable[[IntArray], Batch], num_read: int
    ) -> tuple[Batch, NDArray[np.bool_]]:
        """A batch for `positions` (int64[k]) in which something can't be read, and bool[k]: what was replaced.

        Args:
            positions: of the batch.
            read: reads a batch; raises a `FormatError` where one of its samples can't be read, `Excluded` where one is
                excluded, which counts for no limit.
            num_read: positions that this worker has read before.

        Raises:
            FormatError: more of a child than its share, or 64 stand-ins in a row, can't be read.
        """
        mended = positions.copy()
        for place, position in enumerate(positions.tolist()):
            error = _failure(read, position)
            if error is not None:
                if isinstance(error, FormatError):
                    self._count(position, num_read + place + 1, error)
                mended[place] = self._stand_in(position, read, error)
        return read(mended), mended != positions

    def _stand_in(self, position: int, read: Callable[[IntArray], Batch], error: FormatError | Excluded) -> int:
        stream: SupportsSubstitutes = self._stream
        for attempt in range(_ATTEMPTS):
            try:
                other = stream.substitute(position, attempt)
            except ConfigError:
                raise error from None
            if _failure(read, other) is None:
                if isinstance(error, FormatError):
                    _log.warning("position %d can't be read (%s); using position %d instead", position, error, other)
                return other
        raise error

    def _count(self, position: int, num_read: int, error: FormatError) -> None:
        child = self._stream.locate(position).path
        self._replaced[child] += 1
        read_of_child = num_read * self._share_of(child, position)
        if self._replaced[child] > self._share * max(read_of_child, _FEWEST):
            raise FormatError(
                f"too many samples of {'/'.join(child) or 'the stream'} can't be read",
                found=f"{self._replaced[child]} of about {read_of_child:.0f} positions",
                expected=f"at most a fraction of {self._share:g} (substitute_limit)",
                hint=f"The last error: {error}",
            ) from error

    def _share_of(self, child: tuple[str, ...], position: int) -> float:
        """About which share of the positions before `position` the child has."""
        # Runs of places in one lane: neighbours in a blend are found together, far places each for themselves.
        lanes = self._stream.lanes
        apart = max(lanes * _RUN, position // (_PROBES // _RUN))
        ends = range(position, max(-1, position - apart * (_PROBES // _RUN)), -apart)
        probes = [end - lanes * back for end in ends for back in range(_RUN) if end >= lanes * back]
        return sum(self._stream.locate(probe).path == child for probe in probes) / len(probes)


def _failure(read: Callable[[IntArray], Batch], position: int) -> FormatError | Excluded | None:
    try:
        read(np.array([position], np.int64))
    except (FormatError, Excluded) as error:
        return error
    return None

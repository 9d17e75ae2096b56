"""Sequential reading of a rank's batches: resolves many positions ahead, then reads once per batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._access import MARK, excluded_below, expect_lanes, prefetch_of, resolves
from penstock._arrays import in_memory
from penstock._secrets import logger
from penstock._threads import Collecting
from penstock.abc import SupportsSubstitutes
from penstock.errors import ConfigError, Excluded, FormatError, NotFound
from penstock.load.collate import Collate
from penstock.order import Sequential
from penstock.types import Batch, IntArray

OnError = Literal["raise", "substitute"]

# Orders are computed for this many positions at a time: few at first, so that the first batch arrives early.
_FIRST_AHEAD = 1 << 10
_MOST_AHEAD = 1 << 16

# Seconds to wait before I/O errors are retried.
_RETRY_WAITS_S = (0.05, 0.25, 1.0)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A rank's reading from one point of a run on. Picklable if `data` and `collate` are.

    The rank's samples have the positions `first_position + stride · k`; batch number u holds those with
    `batch_size · u <= k < batch_size · (u + 1)`, for any micro-batch size and number of workers.

    Attributes:
        data: a stream, or a source for one pass.
        first_position: global position of the rank's first sample.
        stride: world size.
        num_batches: length of the pass in batches; None for an endless stream.
        num_samples: length of the source in a pass; later positions are repeats. None for a stream.
        collate: converts columns to the delivered batch.
        on_error: treatment of unreadable samples.
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
    """Yield the batches number `first, first + step, …` of the task; memory: 1 MiB of orders and one batch.

    Each batch is a new array. The allocator reuses the memory of dropped batches without page faults, so this costs no
    more than copying into fixed buffers, and batches that the caller still holds are never overwritten.

    Args:
        task: the task.
        first: number of the first batch.
        step: number of workers that share the task.
        wait: sleeps for some seconds; a true result stops the retries.
        seconds: stage → seconds, which are added up here: `order`, `read`, `collate`, and functions by name.
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
    """Array of positions, computed on demand."""

    def __init__(self, positions: IntArray) -> None:
        self._positions = positions

    def __str__(self) -> str:
        return f"positions {self._positions[0]} to {self._positions[-1]}, {len(self._positions)} samples"


def _reader(
    task: ReadTask, wait: Callable[[float], object], seconds: dict[str, float]
) -> Callable[[IntArray, IntArray, int], Any]:
    """Return a function of a batch's positions, their resolved indices, and the number of samples read before."""
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
    """Return the reader of one pass over a source; excluded samples are replaced by other samples of the source."""
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
    """Return bool[k]: which samples are substitutes for excluded ones."""
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
    """Return `read` with retries after I/O errors: a time-out never changes the data."""

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
        # A missing file won't come back.
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
    """Replacement of unreadable samples of a stream, with counts per child. One per worker: not thread-safe.

    The substitute depends only on the stream and the position, never on ranks, workers or earlier failures.

    Args:
        stream: chooses substitutes; its `locate` names children.
        share: the largest share of a child's positions that may be replaced. It is compared with this worker's reads
            of the child, counted as at least 1,000 positions.
    """

    def __init__(self, stream: Any, share: float) -> None:
        self._stream = stream
        self._share = share
        self._replaced: Counter[tuple[str, ...]] = Counter()

    def mend(
        self, positions: IntArray, read: Callable[[IntArray], Batch], num_read: int
    ) -> tuple[Batch, NDArray[np.bool_]]:
        """Read `positions` (int64[k]) with substitutes; return the batch and bool[k], which samples were replaced.

        Args:
            positions: positions of the batch.
            read: reads a batch; raises a `FormatError` for an unreadable sample, `Excluded` for an excluded one, which
                doesn't count against the limit.
            num_read: number of positions that this worker has read before.

        Raises:
            FormatError: more of a child than its share, or 64 substitutes in a row, can't be read.
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
        """Return roughly the child's share of the positions before `position`."""
        # Runs of positions in one lane: neighbours in a blend are found together, distant positions one by one.
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

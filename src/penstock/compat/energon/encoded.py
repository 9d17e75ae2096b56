"""Outputs of raw samples: by position as a stream, and by lane as the innermost dataset of wrappers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from penstock._arrays import as_positions
from penstock.abc import Stream
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps, T_sample
from penstock.compat.energon.work import Work
from penstock.compat.energon.worker import Index, WorkerConfig, batch_index, current_batch
from penstock.cook import CookedStream
from penstock.errors import ConfigError, FormatError
from penstock.node.over import OPEN, StreamOver
from penstock.types import Batch, IntArray, Schema

OK = "ok"
SAMPLE = "sample"
TURN = "turn"
"""Column: the number of a sample, group or pack among those of its rank."""

# A function that skips almost everything must not look like a slow one.
_STAND_INS = 1000

_UNREADABLE = object()


class Encoded(StreamOver[Any]):
    """Task encoder's outputs for each position. A sample that can't be read has no output, and is counted."""

    kind = "cook"

    def __init__(self, stream: Stream[Any], work: Work) -> None:
        super().__init__(stream)
        self.work = work
        self._cooked = CookedStream(stream, work)
        self._raw = CookedStream(stream, Uncooked())
        self.prefetch = self._cooked.prefetch

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.stream, self.work))

    def over(self, stream: Any) -> Self:
        return type(self)(stream, self.work)

    def own(self) -> dict[str, Any]:
        return self._cooked.own()

    def shown(self) -> dict[str, Any]:
        return {"by": self.work.identity[0]}

    @property
    def schema(self) -> Schema:
        """Open schema: the fields that the task encoder returns are unknown."""
        return OPEN

    def __getitem__(self, position: int, /) -> tuple[Any, ...]:
        try:
            return self._cooked[position]
        except FormatError as error:
            self._unreadable(position, error)
            return ()

    def each(self, positions: IntArray, batch: Index, index: Callable[[int], Index]) -> Iterator[Any]:
        """Yield the outputs of the samples at int64[k]; generator functions resume when their next output is needed.

        Args:
            positions: positions of the samples, which are read together.
            batch: see `At`.
            index: row → see `At`.
        """
        for row, (position, sample) in enumerate(zip(positions.tolist(), self._read(positions), strict=True)):
            if sample is not _UNREADABLE:
                yield from self.work.each(sample, position, batch, index(row))

    def _read(self, positions: IntArray) -> list[Any]:
        try:
            return self._raw.get_resolved_samples(self._raw.resolve(positions))
        except FormatError:
            return [self._read_one(position) for position in positions.tolist()]

    def _read_one(self, position: int) -> Any:
        try:
            return self._raw[position]
        except FormatError as error:
            self._unreadable(position, error)
            return _UNREADABLE

    def _unreadable(self, position: int, error: FormatError) -> None:
        self.work.failures.failed("read", error, {"__restore_key__": ("cook", position)}, self.work.tolerance)

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        return {SAMPLE: self.get_resolved_samples(as_positions(positions))}

    def resolve(self, positions: IntArray, /) -> IntArray:
        return self._cooked.resolve(positions)

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        return {SAMPLE: self.get_resolved_samples(resolved)}

    def get_resolved_samples(self, resolved: IntArray, /) -> list[tuple[Any, ...]]:
        try:
            return self._cooked.get_resolved_samples(resolved)
        except FormatError:
            # One of them can't be read: which one shows when they are read one by one.
            return [self[position] for position in resolved.tolist()]


class Filled(Encoded):
    """Like `Encoded`, but with one sample at every position: another sample of the same child replaces a missing one.

    Columns are `sample`, each in a tuple, so that array samples aren't mistaken for columns; `turn`: int64[k]; and, if
    there are replacements, `ok`: bool[k], False for these.
    """

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        return self.get_resolved(as_positions(positions))

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        boxes = self.get_resolved_samples(resolved)
        made: Batch = {SAMPLE: boxes, TURN: resolved // self.work.config.world_size}
        replaced = [row for row, box in enumerate(boxes) if len(box) != 1]
        if not replaced:
            return made
        ok = np.ones(len(boxes), np.bool_)
        ok[replaced] = False
        for row in replaced:
            with batch_index(*self.work.place(int(resolved[row]))):
                boxes[row] = self._instead(int(resolved[row]), boxes[row])
        return {**made, OK: ok}

    def _instead(self, position: int, box: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(box) > 1:
            raise ConfigError(
                "encode_sample returned several samples for one",
                found=len(box),
                hint="Make it a generator function, or pass lanes= to get_train_dataset",
            )
        return self.stand_in(position)

    def stand_in(self, position: int) -> tuple[Any, ...]:
        """Return the output for another sample of the same child, for a sample without output."""
        for attempt in range(_STAND_INS):
            found = self[self.substitute(position, attempt)]
            if found:
                return found
        raise ConfigError(
            f"{_STAND_INS} samples in a row were skipped or failed",
            hint="Check the function that skips. If it is intended, pass lanes= to get_train_dataset",
        )


class Uncooked:
    """Leave raw samples unchanged; see `penstock.cook.cooking.Cooks`."""

    @property
    def identity(self) -> list[Any]:
        return []

    def __call__(self, sample: Any, position: int, /) -> Any:
        del position
        return sample

    def cook_all(self, samples: Iterable[Any], positions: Iterable[int], /) -> list[Any]:
        del positions
        return list(samples)


class Samples(SavableDataset[T_sample]):
    """Cooked and usually encoded samples; skipped and failed samples are missing.

    Lane l of n has the positions l, l + n, … of each pass.

    Args:
        encoded: outputs of the sample at each position.
        size: number of samples of a pass; None for an endless stream.
        epoch: number of samples of an epoch of the data, for `len`.
        worker_config: rank, world size and workers.
    """

    def __init__(self, encoded: Encoded, size: int | None, epoch: int, worker_config: WorkerConfig) -> None:
        super().__init__(worker_config)
        self._encoded = encoded
        self._size = size
        self._epoch = epoch

    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield the steps of a lane from a place.

        A place contains the pass, the position in it, the number of outputs delivered for that position, the distance
        to the next position, and the lane's number and count, which determine where the next pass begins.
        """
        number, index, done, stride, first, count = _start(lane) if place is None else place
        several = self._encoded.work.is_generator
        while self._size is None or index < self._size:
            position = np.array([index + (self._size or 0) * number], np.int64)
            at = self._index(lane, number, index, first, count)
            outputs = self._encoded.each(position, current_batch, lambda _, at=at: at)
            for delivered, sample in enumerate(outputs, 1):
                if delivered > done:
                    at = (index, delivered) if several else (index + stride, 0)
                    yield sample, (number, *at, stride, first, count)
            index, done = index + stride, 0
        return number + 1, first, 0, count, first, count

    def _index(self, lane: Lane, number: int, index: int, first: int, count: int) -> int:
        """Count the samples of a worker as the original does: those of the lane before this one."""
        a_pass = 0 if self._size is None else -(-(self._size - first) // count)
        return (number * a_pass + (index - first) // count) * lane.turns + lane.turn

    def split(self, place: Place, part: int, parts: int) -> Place:
        if place is None:
            return None
        number, index, done, stride, first, count = place
        own = (index + stride * part, 0 if part else done, stride * parts)
        return (number, *own, first + count * part, count * parts)

    def identity(self) -> list[Any]:
        return ["samples", self._encoded.fingerprint, self._size]

    def len_worker(self, worker_idx: int | None = None) -> int:
        config = self.worker_config
        workers = config.world_size * max(1, config.num_workers)
        share, more = divmod(self._epoch if self._size is None else self._size, workers)
        return share + (config.rank + config.world_size * (worker_idx or 0) < more)

    def config(self) -> dict[str, Any]:
        return {"type": "Samples", "data": self._encoded.recipe()}

    def __str__(self) -> str:
        return self._encoded.summary()


def _start(lane: Lane) -> Place:
    return 0, lane.number, 0, lane.count, lane.number, lane.count

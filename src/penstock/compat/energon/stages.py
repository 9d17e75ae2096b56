"""Lanes of outputs for samples with any number of outputs, made window by window on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from penstock.compat.energon.encoded import SAMPLE, TURN, Encoded
from penstock.compat.energon.walks import Lane
from penstock.compat.energon.work import Work, key_of, set_restore_key
from penstock.compat.energon.worker import Index
from penstock.compat.energon.wrapper_base import Calls
from penstock.compat.energon.wrapper_batches import Buckets, Packer, select_all
from penstock.cook import PackStream
from penstock.errors import ConfigError
from penstock.types import Sample


@dataclass(frozen=True, slots=True)
class Group:
    samples: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill level of the buffer while packs are taken from it.

    Attributes:
        upto: number of samples of the next window encoded so far.
        given: number of outputs of the lane delivered so far.
    """

    upto: int
    given: int


@dataclass(frozen=True, slots=True)
class _LaneOfWindow(Lane):
    window: Any = None


class _Hook(Calls):
    """Calls of a task encoder's hook: the first raw sample seeds them, and the outputs of the lane are counted.

    Args:
        function: the hook.
        work: the functions that make the outputs of a sample.
        counts_outputs: number the calls by the lane's outputs so far.
    """

    def __init__(self, function: Callable[[Any], Any], work: Work, *, counts_outputs: bool = False) -> None:
        super().__init__(function, work.config, work.tolerance)
        self._work = work
        self._counts_outputs = counts_outputs

    def _numbers(self, argument: Any, lane: Lane, number: int) -> tuple[int, Index, Index]:
        window: Window = cast(_LaneOfWindow, lane).window
        _, _, index = super()._numbers(argument, lane, window.given if self._counts_outputs else number)
        return number_of(_first(argument)), window.batch, index

    def _called(self, argument: Any) -> Iterator[Any]:
        return self._work.apply_each(self._function, argument, key_of(_first(argument)))


class Window:
    """Outputs of a window of a lane.

    Args:
        lanes: the lanes.
        lane: lane of the window.
        number: number of the window in its lane.
        before: number of outputs of the lane before the window.
        fills: fill levels while the packs of the previous window were taken; their `given` counts from its end.

    Attributes:
        work: the functions that make the outputs of a sample.
        given: number of outputs of the lane so far, counted by the consumer.
        fills: fill levels while the packs of this window are taken.
    """

    def __init__(self, lanes: Lanes, lane: int, number: int, before: int, fills: Callable[[], list[Fill]]) -> None:
        self.work = lanes.encoded.work
        world = self.work.config.world_size
        self._lanes = lanes
        self._lane = _LaneOfWindow(lane, lanes.lanes, self.work.seed, lane // world, lanes.lanes // world, self)
        self._number = number
        self._before = before
        self._filled = fills
        self.given = before
        self.fills: list[Fill] = []

    def __iter__(self) -> Iterator[Any]:
        samples = self._packed() if self._lanes.packs else self._encoded(self.batch)
        return samples if self._lanes.groups is False else self._grouped(samples)

    def batch(self) -> int:
        """Return the rank's batch with the next output."""
        return self._lanes.batch(self._lane.number, self.given)

    def fills_from_end(self) -> list[Fill]:
        """Return the fill levels, counted from the end of the window."""
        return [Fill(one.upto, one.given - self.given) for one in self.fills]

    def _index(self, count: int) -> int:
        """Return the call number in the original's worker after `count` calls of this lane."""
        return count * self._lane.turns + self._lane.turn

    def _encoded(self, batch: Callable[[], int]) -> Iterator[Any]:
        size, encoded = self._lanes.window, self._lanes.encoded
        first = self._number * size
        positions = np.arange(first, first + size, dtype=np.int64) * self._lane.count + self._lane.number
        plain = not self._lanes.packs and self._lanes.groups is False
        if plain and self.work.cooks_several and not self.work.encodes_several:
            return encoded.each(positions, batch, lambda row: lambda: self._index(self.given))
        return encoded.each(positions, batch, lambda row: self._index(first + row))

    def _packed(self) -> Iterator[Any]:
        samples: list[Any] = []
        for one in self._encoded(lambda: self._lanes.batch(self._lane.number, self._given_at(len(samples)))):
            samples.append(one)
        packs = self._lanes.packer.packs(samples, self._lane, self._number) if samples else []
        return self._lanes.packer.outputs(packs, self._lane, self._number, 0, self._refilled)

    def _refilled(self, upto: int) -> None:
        self.fills.append(Fill(upto, self.given))

    def _given_at(self, row: int) -> int:
        """Return the outputs of the lane before the buffer was filled with sample `row` of this window."""
        if not self._number:
            return self._before
        return self._before + next((one.given for one in self._filled() if one.upto > row), 0)

    def _grouped(self, samples: Iterator[Any]) -> Iterator[Group]:
        """Yield full groups as they fill, then the rest of the window."""
        buckets, fixed = Buckets(), self._lanes.groups
        for row, one in enumerate(samples, self._number * self._lanes.window):
            for found in self._lanes.criterion(one, self._lane, row):
                if found is None:
                    continue
                key, size = found
                size = size if fixed is True else fixed
                if not isinstance(size, int) or size < 1:
                    hint = "Return (key, size), or pass batch_size="
                    raise ConfigError("batch_group_criterion returns no batch size", found=repr(size), hint=hint)
                group = buckets.put(key, size, one)
                if group is not None:
                    yield Group(tuple(group))
        for group in buckets.drain():
            yield Group(tuple(group))


def _first(argument: Any) -> Any:
    return argument[0] if isinstance(argument, list) else argument


def number_of(sample: Any) -> int:
    """Return the position of the first raw sample; 0 without a key."""
    key = key_of(sample)
    while key and isinstance(key[-1], tuple):
        key = key[-1]
    return key[-1] if key and isinstance(key[-1], int) else 0


class Lanes(PackStream):
    """Packs, groups and generated samples as a lane stream.

    Functions are called in the same order, and for the same outputs, as in the original: a generator resumes when its
    next output is needed, and while the packs of a window are delivered one by one, the buffer is refilled with samples
    of the next window. So `current_batch_index` is the same as in the original.

    Restore keys are `("lane", lane, window, offset, outputs of the lane before the window)`.

    Args:
        encoded: samples to pack, group, or deliver unchanged.
        window: number of samples of a lane that are read together.
        packs: whether samples are packed.
        groups: whether outputs are `Group`s by `batch_group_criterion`, or the size of the groups if it is given.
    """

    title = "PackStream"
    origins: Any = None

    def __init__(self, encoded: Encoded, window: int, packs: bool, groups: bool | int) -> None:
        name = f"{encoded.work.identity[0]} packs={packs} groups={groups}"
        super().__init__(encoded, window, name=name)
        self.encoded = encoded
        self.packs = packs
        self.groups = groups
        work, encoder = encoded.work, encoded.work.encoder
        self.criterion = _Hook(encoder.batch_group_criterion, work)
        self.packer = Packer(
            window,
            _Hook(select_all(encoder.select_samples_to_pack), work),
            _Hook(encoder.pack_selected_samples, work, counts_outputs=True),
            _Hook(encoder.postencode_sample, work) if encoder.is_overridden("postencode_sample") else None,
        )
        self._batch_size = 1 if groups else encoded.work.batch_size or 1
        # By lane: the window that was read last, and how the buffer was filled while its packs were taken.
        self._filled: dict[int, tuple[int, list[Fill]]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (Lanes, (self.encoded, self.window, self.packs, self.groups))

    def outputs(self, lane: int, window: int, /) -> Iterator[Sample]:
        """Yield a window's outputs as if earlier windows had given as many outputs as they have samples."""
        return self.outputs_after(lane, window, window * self.window)

    def outputs_after(self, lane: int, window: int, before: int, /) -> Iterator[Sample]:
        """Yield the output samples of one window of a lane.

        Args:
            lane: number of the lane, less than `lanes`.
            window: number of the window.
            before: number of earlier outputs of the lane, to count batches.
        """
        outputs = Window(self, lane, window, before, lambda: self._fills(lane, window - 1, before))
        for offset, one in enumerate(outputs):
            key = ("lane", lane, window, offset, before)
            if isinstance(one, Group):
                for number, member in enumerate(one.samples):
                    set_restore_key(member, ("output", number, key))
            else:
                set_restore_key(one, key)
            yield {SAMPLE: (one,), TURN: self.turn(lane, before + offset)}
            outputs.given += 1
        self._filled[lane] = window, outputs.fills_from_end()

    def turn(self, lane: int, given: int) -> int:
        """Return the number, among those of its rank, of the next output of a lane after `given`."""
        return (given * self.lanes + lane) // self.encoded.work.config.world_size

    def batch(self, lane: int, given: int) -> int:
        """Return the rank's batch with the next output of a lane after `given`."""
        return self.turn(lane, given) // self._batch_size

    def _fills(self, lane: int, window: int, before: int) -> list[Fill]:
        """Return the fill levels while the packs of a window were taken, computed by reading it if necessary.

        Reading is necessary after a resume. Encoded samples may depend on their batch only if they are still packed in
        the same way.
        """
        known = self._filled.get(lane)
        if known is None or known[0] != window:
            outputs = Window(self, lane, window, before, list)
            for _ in outputs:
                outputs.given += 1
            known = self._filled[lane] = window, outputs.fills_from_end()
        return known[1]

"""Lanes of outputs for samples with any number of outputs, made window by window on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._tree import brief, html, tree
from penstock.abc import Stream
from penstock.compat.energon.encoded import SAMPLE, TURN, Encoded
from penstock.compat.energon.failures import lost
from penstock.compat.energon.work import key_of, set_restore_key
from penstock.compat.energon.worker import working_on
from penstock.cook import PackStream
from penstock.errors import ConfigError
from penstock.types import Sample, Schema


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
class How:
    """Processing of windows.

    Attributes:
        encoded: the samples.
        window: number of samples of a lane that are read together.
        packs: whether samples are packed.
        groups: whether outputs are `Group`s by `batch_group_criterion`, or the size of the groups if it is given.
    """

    encoded: Encoded
    window: int
    packs: bool
    groups: bool | int


class Pulled:
    """Outputs of a window.

    Args:
        how: see `How`.
        lane: lane of the window.
        number: number of the window in its lane.
        before: number of outputs of the lane before the window.
        batch: number of earlier outputs of the lane → the rank's batch with the next output.
        fills: fill levels while the packs of the previous window were taken; their `given` counts from its end.

    Attributes:
        given: number of outputs of the lane so far, counted by the consumer.
        fills: fill levels while the packs of this window are taken.
    """

    def __init__(
        self,
        how: How,
        lane: int,
        number: int,
        before: int,
        batch: Callable[[int], int],
        fills: Callable[[], list[Fill]],
    ) -> None:
        self._how = how
        self._work = how.encoded.work
        self._lane = lane
        self._number = number
        self._before = before
        self._batch = batch
        self._filled = fills
        self.given = before
        self.fills: list[Fill] = []

    def all(self) -> Iterator[Any]:
        samples = self._packed() if self._how.packs else self._encoded(self._now)
        return samples if self._how.groups is False else self._grouped(samples)

    def _now(self) -> int:
        return self._batch(self.given)

    def _index(self, count: int) -> int:
        """Return the call number in the original's worker after `count` calls of this lane."""
        lanes, world = self._how.encoded.lanes, self._work.config.world_size
        return count * (lanes // world) + self._lane // world

    def _encoded(self, batch: Callable[[], int]) -> Iterator[Any]:
        size, encoded = self._how.window, self._how.encoded
        first = self._number * size
        positions = np.arange(first, first + size, dtype=np.int64) * encoded.lanes + self._lane
        plain = not self._how.packs and self._how.groups is False
        if plain and self._work.cooks_several and not self._work.encodes_several:
            return encoded.each(positions, batch, lambda row: lambda: self._index(self.given))
        return encoded.each(positions, batch, lambda row: self._index(first + row))

    def _packed(self) -> Iterator[Any]:
        encoder, size = self._work.encoder, self._how.window
        samples: list[Any] = []
        for one in self._encoded(lambda: self._batch(self._given_at(len(samples)))):
            samples.append(one)
        packs: list[list[Any]] = []
        if samples:
            with working_on(self._work.config, number_of(samples[0]), self._now, self._index(self._number)):
                packs = self._called(encoder.select_samples_to_pack, samples, samples[0]) or []
        packs = [pack for pack in packs if pack]
        left, done = sum(map(len, packs)), 0
        for pack in packs:
            yield from self._pack(pack, done)
            done += len(pack)
            self.fills.append(Fill(size - left + done, self.given))
        if not packs:
            self.fills.append(Fill(size, self.given))

    def _given_at(self, row: int) -> int:
        """Return the outputs of the lane before the buffer was filled with sample `row` of this window."""
        if not self._number:
            return self._before
        return self._before + next((one.given for one in self._filled() if one.upto > row), 0)

    def _pack(self, pack: list[Any], done: int) -> Iterator[Any]:
        encoder, ready = self._work.encoder, list[Any]()
        if encoder.is_overridden("postencode_sample"):
            for row, one in enumerate(pack, self._number * self._how.window + done):
                with working_on(self._work.config, number_of(one), self._now, self._index(row)):
                    ready += self._work.apply(encoder.postencode_sample, one, key_of(one))
        else:
            ready = pack
        if not ready:
            return
        index, number = self._index(self.given), number_of(ready[0])
        outputs = self._work.apply_each(encoder.pack_selected_samples, ready, key_of(ready[0]))
        while True:
            with working_on(self._work.config, number, self._now, index):
                try:
                    one = next(outputs)
                except StopIteration:
                    return
            yield one

    def _grouped(self, samples: Iterator[Any]) -> Iterator[Group]:
        """Yield full groups as they fill, then the rest of the window."""
        filling: dict[Any, list[Any]] = {}
        encoder, groups = self._work.encoder, self._how.groups
        for row, one in enumerate(samples, self._number * self._how.window):
            with working_on(self._work.config, number_of(one), self._now, self._index(row)):
                found = self._called(encoder.batch_group_criterion, one, one)
            if found is None:
                continue
            key, size = found
            size = groups if groups is not True else size
            if not isinstance(size, int) or size < 1:
                hint = "Return (key, size), or pass batch_size="
                raise ConfigError("batch_group_criterion returns no batch size", found=repr(size), hint=hint)
            group = filling.setdefault(key, [])
            group.append(one)
            if len(group) == size:
                yield Group(tuple(filling.pop(key)))
        for group in filling.values():
            yield Group(tuple(group))

    def _called(self, function: Callable[[Any], Any], argument: Any, sample: Any) -> Any:
        """Return a hook's result; None if it skips or fails."""
        try:
            return function(argument)
        except Exception as error:
            lost(self._work.failures, function.__name__, error, sample, self._work.tolerance)
            return None


def number_of(sample: Any) -> int:
    """Return the position of the first raw sample; 0 without a key."""
    key = key_of(sample)
    while key and isinstance(key[-1], tuple):
        key = key[-1]
    return key[-1] if key and isinstance(key[-1], int) else 0


class Lanes:
    """Packs, groups and generated samples as a `LaneStream`.

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

    def __init__(self, encoded: Encoded, window: int, packs: bool, groups: bool | int) -> None:
        self._how = How(encoded, window, packs, groups)
        self._work = encoded.work
        self._batch_size = 1 if groups else encoded.work.batch_size or 1
        name = f"{encoded.work.identity[0]} packs={packs} groups={groups}"
        self._described = PackStream(encoded, window, select=_whole, merge=tuple, name=name)
        # By lane: the window that was read last, and how the buffer was filled while its packs were taken.
        self._filled: dict[int, tuple[int, list[Fill]]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        how = self._how
        return (Lanes, (how.encoded, how.window, how.packs, how.groups))

    @property
    def lanes(self) -> int:
        return self._described.lanes

    @property
    def schema(self) -> Schema:
        return Schema((), open=True)

    @property
    def fingerprint(self) -> str:
        return self._described.fingerprint

    def outputs(self, lane: int, window: int, /) -> Iterator[Sample]:
        """Yield a window's outputs as if earlier windows had given as many outputs as they have samples."""
        return self.outputs_after(lane, window, window * self._how.window)

    def outputs_after(self, lane: int, window: int, before: int, /) -> Iterator[Sample]:
        """Yield the output samples of one window of a lane.

        Args:
            lane: number of the lane, less than `lanes`.
            window: number of the window.
            before: number of earlier outputs of the lane, to count batches.
        """
        pulled = self._pulled(lane, window, before, lambda: self._fills(lane, window - 1, before))
        for offset, one in enumerate(pulled.all()):
            key = ("lane", lane, window, offset, before)
            if isinstance(one, Group):
                for number, member in enumerate(one.samples):
                    set_restore_key(member, ("output", number, key))
            else:
                set_restore_key(one, key)
            yield {SAMPLE: (one,), TURN: self.turn(lane, before + offset)}
            pulled.given += 1
        self._filled[lane] = window, _from_end(pulled)

    def turn(self, lane: int, given: int) -> int:
        """Return the number, among those of its rank, of the next output of a lane after `given`."""
        return (given * self.lanes + lane) // self._work.config.world_size

    def batch(self, lane: int, given: int) -> int:
        return self.turn(lane, given) // self._batch_size

    def _fills(self, lane: int, window: int, before: int) -> list[Fill]:
        """Return the fill levels while the packs of a window were taken, computed by reading it if necessary.

        Reading is necessary after a resume. Encoded samples may depend on their batch only if they are still packed in
        the same way.
        """
        known = self._filled.get(lane)
        if known is None or known[0] != window:
            pulled = self._pulled(lane, window, before, list)
            for _ in pulled.all():
                pulled.given += 1
            known = self._filled[lane] = window, _from_end(pulled)
        return known[1]

    def _pulled(self, lane: int, window: int, before: int, fills: Callable[[], list[Fill]]) -> Pulled:
        return Pulled(self._how, lane, window, before, lambda given: self.batch(lane, given), fills)

    def children(self) -> Mapping[str, Stream[Any]]:
        return self._described.children()

    def recipe(self) -> dict[str, Any]:
        return self._described.recipe()

    def summary(self) -> str:
        return self._described.summary()

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


def _whole(samples: list[Any]) -> list[list[int]]:
    return [list(range(len(samples)))]


def _from_end(pulled: Pulled) -> list[Fill]:
    """Return the fills of a window, counted from its end."""
    return [Fill(one.upto, one.given - pulled.given) for one in pulled.fills]

"""Encodes raw samples: as a stream of positions, or as lanes where a sample becomes any number of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._index import as_positions
from penstock._tree import brief, html, line, tree
from penstock.abc import Stream
from penstock.compat.energon.work import Work, set_restore_key
from penstock.compat.energon.worker import working_on
from penstock.cook import CookedStream, PackStream
from penstock.errors import ConfigError, FormatError
from penstock.types import Batch, IntArray, Location, Sample, Schema

OK = "ok"
SAMPLE = "sample"

# A function that skips almost everything must not look like a slow one.
_STAND_INS = 1000


class Encoded:
    """The task encoder's output for each position; a sample that can't be read gives none, and is counted."""

    def __init__(self, stream: Stream[Any], work: Work) -> None:
        self.stream = stream
        self.work = work
        self._cooked = CookedStream(stream, work)
        self.prefetch = self._cooked.prefetch

    def __reduce__(self) -> tuple[object, ...]:
        return (Encoded, (self.stream, self.work))

    @property
    def lanes(self) -> int:
        """As the stream's."""
        return self.stream.lanes

    @property
    def schema(self) -> Schema:
        """Open: it is up to the task encoder."""
        return Schema((), open=True)

    @property
    def fingerprint(self) -> str:
        """Digest of the stream's fingerprint and the task encoder's names."""
        return self._cooked.fingerprint

    def __getitem__(self, position: int, /) -> tuple[Any, ...]:
        try:
            return self._cooked[position]
        except FormatError as error:
            self.work.failures.failed("read", error, {"__restore_key__": ("cook", position)}, self.work.tolerance)
            return ()

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """One column `sample`: for each of int64[k] positions a tuple of what it became."""
        return {SAMPLE: self.get_resolved_samples(as_positions(positions))}

    def resolve(self, positions: IntArray, /) -> IntArray:
        """int64[k]: the positions; their order is held."""
        return self._cooked.resolve(positions)

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        """As `get_batch`, of resolved positions."""
        return {SAMPLE: self.get_resolved_samples(resolved)}

    def get_resolved_samples(self, resolved: IntArray, /) -> list[tuple[Any, ...]]:
        """For each resolved position a tuple of what its sample became."""
        try:
            return self._cooked.get_resolved_samples(resolved)
        except FormatError:
            # One of them can't be read: which one shows when they are read one by one.
            return [self[position] for position in resolved.tolist()]

    def locate(self, position: int, /) -> Location:
        """As the stream says."""
        return self.stream.locate(position)

    def substitute(self, position: int, attempt: int, /) -> int:
        """As the stream says."""
        return self._cooked.substitute(position, attempt)

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        """What decides the positions `[0, stop)`."""
        return self._cooked.horizon(stop)

    def children(self) -> Mapping[str, Stream[Any]]:
        """The stream, under the name `stream`."""
        return {"stream": self.stream}

    def recipe(self) -> dict[str, Any]:
        """Plain JSON: names of the task encoder's functions, and the stream."""
        return self._cooked.recipe()

    def summary(self) -> str:
        """One line: the task encoder."""
        return line("Encoded", {"by": self.work.identity[0]})

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


class Filled(Encoded):
    """As `Encoded`, with one sample at every position: for one that was skipped or failed, another of its child.

    Columns are `sample`, each in a tuple, so that arrays among them are not taken for columns; and `ok`: bool[k], False
    where another stands in, if any does.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return (Filled, (self.stream, self.work))

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        """Columns of the samples at `positions`: int64[k], in that order."""
        return self.get_resolved(as_positions(positions))

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        """Columns of the samples at resolved positions."""
        boxes = self.get_resolved_samples(resolved)
        replaced = [row for row, box in enumerate(boxes) if len(box) != 1]
        if not replaced:
            return {SAMPLE: boxes}
        ok = np.ones(len(boxes), np.bool_)
        ok[replaced] = False
        for row in replaced:
            boxes[row] = self._instead(int(resolved[row]), boxes[row])
        return {SAMPLE: boxes, OK: ok}

    def _instead(self, position: int, box: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(box) > 1:
            raise ConfigError(
                "encode_sample gave several samples for one",
                found=len(box),
                hint="Make it a generator function itself, or pass lanes= to get_train_dataset",
            )
        return self.stand_in(position)

    def stand_in(self, position: int) -> tuple[Any, ...]:
        """What another sample of the same child became, for one that became nothing."""
        for attempt in range(_STAND_INS):
            found = self[self.substitute(position, attempt)]
            if found:
                return found
        raise ConfigError(
            f"{_STAND_INS} samples in a row were skipped or failed",
            hint="Look at the function that skips; where it means to, pass lanes= to get_train_dataset",
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Samples that make one batch."""

    samples: tuple[Any, ...]


class Packer:
    """What is made of a window of encoded samples: packs by the task encoder's hooks, or the samples themselves.

    Args:
        work: of the task encoder.
        packs: whether samples are packed.
        groups: whether they come as `Group`s by `batch_group_criterion`; or the size of those, where one is given.
    """

    def __init__(self, work: Work, packs: bool, groups: bool | int) -> None:
        self._work = work
        self._packs = packs
        self._groups = groups

    def __call__(self, boxes: list[tuple[Any, ...]]) -> Iterator[Sample]:
        """The samples of a window, each in a column of its own."""
        samples = self.samples(boxes)
        for one in samples if self._groups is False else self._grouped(samples):
            yield {SAMPLE: (one,)}

    def _grouped(self, samples: Iterator[Any]) -> Iterator[Group]:
        """Full groups as they fill, then what is left of the window."""
        filling: dict[Any, list[Any]] = {}
        for one in samples:
            key, size = self._work.encoder.batch_group_criterion(one)
            size = self._groups if self._groups is not True else size
            if not isinstance(size, int) or size < 1:
                hint = "Return (key, size), or pass batch_size="
                raise ConfigError("batch_group_criterion gives no batch size", found=repr(size), hint=hint)
            group = filling.setdefault(key, [])
            group.append(one)
            if len(group) == size:
                yield Group(tuple(filling.pop(key)))
        for group in filling.values():
            yield Group(tuple(group))

    def samples(self, boxes: list[tuple[Any, ...]]) -> Iterator[Any]:
        """The samples of a window."""
        samples = [one for box in boxes for one in box]
        if not samples:
            return
        encoder = self._work.encoder
        groups = encoder.select_samples_to_pack(samples) if self._packs else [[one] for one in samples]
        for group in groups:
            ready = [made for one in group for made in self._after(one)]
            if not ready:
                continue
            if not self._packs:
                yield from ready
                continue
            with working_on(self._work.config, sample=_number(ready[0])):
                packed = self._work.apply(encoder.pack_selected_samples, ready, _key(ready[0]))
            yield from packed

    def _after(self, sample: Any) -> tuple[Any, ...]:
        encoder = self._work.encoder
        if not self._packs or not encoder.is_overridden("postencode_sample"):
            return (sample,)
        with working_on(self._work.config, sample=_number(sample)):
            return self._work.apply(encoder.postencode_sample, sample, _key(sample))


class Lanes:
    """Packs and generated samples as a `LaneStream`; their restore keys are `("lane", lane, window, offset)`."""

    def __init__(self, encoded: Encoded, window: int, packs: bool, groups: bool | int) -> None:
        self.packer = Packer(encoded.work, packs, groups)
        self._given = (encoded, window, packs, groups)
        name = f"{encoded.work.identity[0]} packs={packs} groups={groups}"
        self._packed = PackStream(encoded, window, select=_whole, merge=self.packer, name=name)

    def __reduce__(self) -> tuple[object, ...]:
        return (Lanes, self._given)

    @property
    def lanes(self) -> int:
        """As the stream's."""
        return self._packed.lanes

    @property
    def schema(self) -> Schema:
        """Open: it is up to the task encoder."""
        return Schema((), open=True)

    @property
    def fingerprint(self) -> str:
        """Digest of the stream's, the window, and the task encoder's names."""
        return self._packed.fingerprint

    def outputs(self, lane: int, window: int, /) -> Iterator[Sample]:
        """The samples that one window of a lane gives."""
        for offset, one in enumerate(self._packed.outputs(lane, window)):
            made = one[SAMPLE][0]
            if isinstance(made, Group):
                for number, member in enumerate(made.samples):
                    set_restore_key(member, ("output", number, ("lane", lane, window, offset)))
            else:
                set_restore_key(made, ("lane", lane, window, offset))
            yield one

    def children(self) -> Mapping[str, Stream[Any]]:
        """The encoded stream, under the name `stream`."""
        return self._packed.children()

    def recipe(self) -> dict[str, Any]:
        """Plain JSON from which it can be made again."""
        return self._packed.recipe()

    def summary(self) -> str:
        """One line: the window."""
        return self._packed.summary()

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


def _whole(samples: list[Any]) -> list[list[int]]:
    return [list(range(len(samples)))]


def _key(sample: Any) -> tuple[Any, ...]:
    found = sample.get("__restore_key__") if isinstance(sample, dict) else getattr(sample, "__restore_key__", None)
    return found if isinstance(found, tuple) else ()


def _number(sample: Any) -> int:
    key = _key(sample)
    while key and isinstance(key[-1], tuple):
        key = key[-1]
    return key[-1] if key and isinstance(key[-1], int) else 0

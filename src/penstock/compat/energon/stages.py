"""Lanes of outputs, where a sample becomes any number of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock._tree import brief, html, tree
from penstock.abc import Stream
from penstock.compat.energon.encoded import SAMPLE, TURN, Encoded
from penstock.compat.energon.pulled import Fill, Group, How, Pulled
from penstock.compat.energon.work import set_restore_key
from penstock.cook import PackStream
from penstock.types import Sample, Schema


class Lanes:
    """Packs, groups and generated samples as a `LaneStream`.

    Functions are called in the order, and for the outputs, that they are in the original: one goes on when its next
    output is needed, and while the packs of a window are taken out one by one, the buffer is filled again by samples of
    the next window. So `current_batch_index` is the original's.

    Restore keys are `("lane", lane, window, offset, outputs of the lane before the window)`.

    Args:
        encoded: what is packed, grouped, or given as it is.
        window: samples of a lane that are read together.
        packs: whether samples are packed.
        groups: whether they come as `Group`s by `batch_group_criterion`; or the size of those, where one is given.
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
        """The samples that one window of a lane gives.

        Args:
            lane: below `lanes`.
            window: its number.
            before: outputs of the lane before it, by which batches are counted.
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
        """How the buffer was filled while the packs of a window were taken; it is read if it was not a moment ago.

        After a resume, that is. What samples are encoded into must then depend on their batch only so far that they
        are packed in the same way.
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

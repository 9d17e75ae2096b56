"""Which global positions each step of a run reads, across changes of its batch size and world size.

A run is a list of stretches. In a stretch from `first_step` on, step s reads the global positions
`[consumed + (s - first_step) · global_batch, + global_batch)`, until the next stretch begins.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

# Positions stay far enough below 2^63 that no sum of them overflows.
LIMIT = 1 << 62


class Stretch(NamedTuple):
    """Steps with the same batch size and world size."""

    first_step: int
    consumed: int
    global_batch: int
    world: int

    def consumed_at(self, step: int) -> int:
        return self.consumed + (step - self.first_step) * self.global_batch


History: TypeAlias = tuple[Stretch, ...]


def begin(start: int, global_batch: int, world: int) -> History:
    """Return the history of a run that starts after `start` consumed samples, counted as batches of this size."""
    return (Stretch(0, start % global_batch, global_batch, world),)


def stretch_of(history: History, step: int) -> Stretch:
    return next((stretch for stretch in reversed(history) if stretch.first_step <= step), history[0])


def step_at(history: History, consumed: int) -> int | None:
    """Return the step at which `consumed` samples are consumed, by the last stretch; None inside a step."""
    last = history[-1]
    steps, rest = divmod(consumed - last.consumed, last.global_batch)
    return None if rest or steps < 0 else last.first_step + steps


def steps_until(history: History, consumed: int) -> int:
    """Return how many steps of a run read its first `consumed` samples; the last one may read more."""
    stretch = next((one for one in reversed(history) if one.consumed < consumed), history[0])
    return stretch.first_step + max(0, -(-(consumed - stretch.consumed) // stretch.global_batch))


def go_on(history: History, step: int, global_batch: int, world: int) -> History:
    """Return the history up to `step`, continued with this batch size and world size."""
    consumed = stretch_of(history, step).consumed_at(step)
    kept = tuple(stretch for stretch in history if stretch.first_step < step) or history[:1]
    last = kept[-1]
    if (last.global_batch, last.world) == (global_batch, world):
        return kept
    if last.first_step == step:
        kept = kept[:-1]
    return (*kept, Stretch(step, consumed, global_batch, world))

"""Windows of a lane: samples that are taken together, and given one by one.

The place in a window is its number, the place below at its start, what was delivered of it, and the place below at its
end; the last is None where nothing was delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.compat.energon.walks import Lane, Place, SavableDataset, Walk

START = (0, None, 0, None)


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of a lane; none at its end.

    Attributes:
        samples: at most as many as were asked for.
        after: the place below after them.
        end: where the next pass begins, where there are none.
    """

    samples: list[Any]
    after: Place
    end: Place


def take(dataset: SavableDataset[Any], lane: Lane, below: Place, size: int) -> Window:
    """The next samples of a lane, up to a number."""
    walk, samples = Walk(dataset, lane, below), list[Any]()
    while len(samples) < size:
        try:
            samples.append(next(walk))
        except StopIteration:
            break
    walk.close()
    return Window(samples, walk.place, walk.end)


def split_window(dataset: SavableDataset[Any], place: Place, part: int, parts: int) -> Place:
    """The first of the lanes finishes the window; the others begin behind it."""
    number, below, done, after = START if place is None else place
    if not done:
        return number, dataset.split(below, part, parts), 0, None
    rest = dataset.split(after, part, parts)
    return (number, rest, 0, None) if part else (number, below, done, rest)

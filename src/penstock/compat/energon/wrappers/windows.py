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


class Taking:
    """Takes samples of a lane bit by bit.

    Attributes:
        samples: that were taken.
        place: the place below behind them.
        end: where the next pass begins, where the lane has ended.
    """

    def __init__(self, dataset: SavableDataset[Any], lane: Lane, below: Place) -> None:
        self._walk = Walk(dataset, lane, below)
        self._ended = False
        self.samples: list[Any] = []

    @property
    def place(self) -> Place:
        """See the class."""
        return self._walk.place

    @property
    def end(self) -> Place:
        """See the class."""
        return self._walk.end

    def upto(self, size: int) -> None:
        """Take samples up to so many, or to the end of the lane."""
        while len(self.samples) < size and not self._ended:
            try:
                self.samples.append(next(self._walk))
            except StopIteration:
                self._ended = True


def take(dataset: SavableDataset[Any], lane: Lane, below: Place, size: int) -> Window:
    """The next samples of a lane, up to a number."""
    taking = Taking(dataset, lane, below)
    taking.upto(size)
    return Window(taking.samples, taking.place, taking.end)


def split_window(dataset: SavableDataset[Any], place: Place, part: int, parts: int) -> Place:
    """The first of the lanes finishes the window; the others begin behind it."""
    number, below, done, after, *more = START if place is None else place
    if not done:
        return number, dataset.split(below, part, parts), 0, None, *more
    rest = dataset.split(after, part, parts)
    return (number, rest, 0, None, *more) if part else (number, below, done, rest, *more)

"""Overlays change ids, planes and flags in the same way, and as slices of one array do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock._tokens import Hidden
from penstock.node.tokens import UNCHANGED, Overlay, Part, PlaneOver, Runs

VALUES = np.arange(1000, 1060)
RUNS = [(0, 0), (3, 9), (9, 10), (20, 20), (22, 50), (59, 60)]


class Values:
    dtype = VALUES.dtype

    def read(self, start: int, stop: int) -> Any:
        assert 0 <= start <= stop <= len(VALUES)
        return VALUES[start:stop]

    def gather(self, starts: Any, length: int) -> Any:
        return np.lib.stride_tricks.sliding_window_view(VALUES, length)[starts]


def runs() -> Runs:
    starts, stops = np.array(RUNS).T
    return Runs(np.append(0, np.cumsum(stops - starts)), starts)


HIDDEN = Hidden(np.array([2, 30]), np.array([5, 31]), np.array([7, 8]))
HIDDEN_VALUES = VALUES.copy()
HIDDEN_VALUES[2:5], HIDDEN_VALUES[30] = 7, 8

CASES: list[tuple[Overlay, Any]] = [
    (UNCHANGED, VALUES),
    (Part(5, 40), VALUES[5:45]),
    (runs(), np.concatenate([VALUES[start:stop] for start, stop in RUNS])),
    (HIDDEN, HIDDEN_VALUES),
]


@pytest.mark.parametrize(("overlay", "wanted"), CASES)
def test_every_run_and_window(overlay: Overlay, wanted: Any) -> None:
    plane = PlaneOver(Values(), overlay)
    for start in range(len(wanted) + 1):
        for stop in range(start, len(wanted) + 1):
            assert plane.read(start, stop).tolist() == wanted[start:stop].tolist()
    for length in (1, 4, 13, len(wanted)):
        starts = np.random.default_rng(length).permutation(len(wanted) - length + 1)
        rows = [wanted[start : start + length].tolist() for start in starts.tolist()]
        assert plane.gather(starts, length).tolist() == rows
        assert plane.gather(starts[:0], length).shape == (0, length)


def wanted_of(overlay: Overlay) -> Any:
    return next(wanted for one, wanted in CASES if type(one) is type(overlay))


@pytest.mark.parametrize("overlay", [Part(5, 40), runs()])
def test_windows_outside_are_refused(overlay: Overlay) -> None:
    plane = PlaneOver(Values(), overlay)
    for start in (-1, 37):
        with pytest.raises(IndexError):
            plane.gather(np.array([0, start]), 4)
    for start, stop in ((-1, 3), (3, len(wanted_of(overlay)) + 1), (5, 4)):
        with pytest.raises(IndexError):
            plane.read(start, stop)

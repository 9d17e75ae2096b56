"""Many arrays as one: windows come from the right one, wherever they stand in memory and whenever they were added."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np
import pytest

from penstock.formats.tokens.zarr import span
from penstock.formats.tokens.zarr.span import MappedSpan

ITEMS = 4096


def mapped(seed: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """An anonymous mapping: the system puts it where it likes."""
    array = np.frombuffer(mmap.mmap(-1, ITEMS * 4), np.uint32)
    array.flags.writeable = True
    array[:] = np.random.default_rng(seed).integers(0, 1 << 32, ITEMS)
    return array


@pytest.mark.parametrize("length", [1, 7, 1000, ITEMS])
def test_windows_of_any_array(length: int) -> None:
    arrays = {number: mapped(number) for number in (3, 0, 17, 5, 1)}
    found = MappedSpan(np.dtype(np.uint32), ITEMS)
    rng = np.random.default_rng(0)
    known: list[int] = []
    for number, array in arrays.items():
        found.add(number, array)
        known.append(number)
        chosen = rng.choice(known, 600)
        offsets = rng.integers(0, ITEMS - length + 1, 600)
        places = np.array([found.places[one] for one in chosen.tolist()]) + offsets
        expected = np.stack(
            [arrays[one][at : at + length] for one, at in zip(chosen.tolist(), offsets.tolist(), strict=True)]
        )
        windows = found.gather(places, length, None)
        assert windows is not None
        assert (windows == expected).all()
        assert windows.flags.writeable
        out = np.zeros((600, length), np.int64)
        assert found.gather(places, length, out) is out
        assert (out == expected).all()


def test_what_can_not_be_one_array_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span, "_MOST_BYTES", ITEMS * 4)
    found = MappedSpan(np.dtype(np.uint32), ITEMS)
    found.add(0, mapped(0))
    found.add(1, mapped(1))
    assert found.gather(np.array([found.places[0]]), 10, None) is None


def test_arrays_are_kept() -> None:
    found = MappedSpan(np.dtype(np.uint32), ITEMS)
    for number in range(40):
        found.add(number, mapped(number))
    places = np.array([found.places[number] for number in range(40)])
    windows = found.gather(places, ITEMS, None)
    assert windows is not None
    assert (windows == np.stack([mapped(number) for number in range(40)])).all()


def test_arrays_added_while_others_read() -> None:
    found = MappedSpan(np.dtype(np.uint32), ITEMS)
    arrays = [mapped(number) for number in range(60)]
    found.add(0, arrays[0])
    wrong: list[int] = []

    def read(own: int) -> None:
        for number in range(own, 60, 4):
            found.add(number, arrays[number])
            for one in (0, number):
                windows = found.gather(np.array([found.places[one] + 5]), 100, None)
                if windows is None or not (windows[0] == arrays[one][5:105]).all():
                    wrong.append(number)

    threads = [threading.Thread(target=read, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []

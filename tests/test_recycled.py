"""Memory that comes back once nobody holds it."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import Any

import numpy as np

from penstock._arrays import Recycled

SHAPE = (64, 1024)


def test_memory_comes_back_when_the_last_view_is_gone() -> None:
    new = Recycled()
    array = new(SHAPE, np.int32)
    assert (array.shape, array.dtype) == (SHAPE, np.int32)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    place = array.ctypes.data
    view = array.reshape(-1)[5:9].view(np.uint8)
    del array
    gc.collect()
    assert new(SHAPE, np.int32).ctypes.data != place  # the view still holds it
    del view
    assert {new(SHAPE, np.float32).ctypes.data for _ in range(2)} & {place}  # whatever its type is


def test_arrays_of_another_size_get_memory_of_their_own() -> None:
    new = Recycled()
    large = new((1 << 17,), np.uint8)
    large[:] = 1
    del large
    assert new((1 << 18,), np.uint8).nbytes == 1 << 18
    assert new((3,), np.uint8).base is None  # small ones are numpy's


def test_few_blocks_are_kept() -> None:
    made: list[int] = []

    def block(size_bytes: int) -> Any:
        made.append(size_bytes)
        return np.empty(size_bytes, np.uint8)

    new = Recycled(block)
    held = [new((1 << 17,), np.uint8) for _ in range(40)]
    del held
    again = [new((1 << 17,), np.uint8) for _ in range(40)]
    assert len(made) == 40 + 40 - 16
    assert len({one.ctypes.data for one in again}) == 40


def test_threads_never_share_a_block() -> None:
    new = Recycled()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            array = new((1 << 16,), np.uint8)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_copy_begins_with_nothing() -> None:
    new = Recycled()
    new(SHAPE, np.int32)[:] = 1
    assert pickle.loads(pickle.dumps(new))(SHAPE, np.int32).shape == SHAPE

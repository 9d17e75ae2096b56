"""What a process holds of many files: a bound, and what happens at the system's own."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import resource
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from penstock.formats.tokens.common import TokenFile
from penstock.store import LocalStore, mapped
from penstock.store.mapped import Held, Ring, making_room


class Value:
    def __init__(self, name: int) -> None:
        self.name = name


def some(count: int, most: int, made: list[int]) -> tuple[Ring, list[Held[Value]]]:
    ring: Ring = deque()

    def make(name: int) -> Value:
        made.append(name)
        return Value(name)

    return ring, [Held(partial(make, name), ring=ring, most=most) for name in range(count)]


def test_no_more_are_held_than_the_bound_and_each_is_made_again() -> None:
    made: list[int] = []
    _, all_held = some(10, 3, made)
    for _ in range(2):
        for name, one in enumerate(all_held):
            assert one.get().name == name
            assert sum(one.held() is not None for one in all_held) <= 3
    assert made == [*range(10)] * 2


def test_what_is_used_stays() -> None:
    made: list[int] = []
    _, all_held = some(100, 4, made)
    for one in all_held[1:]:
        all_held[0].get()
        one.get()
    assert made.count(0) <= 2
    assert all_held[0].held() is not None


@pytest.mark.parametrize("count", [1000, 10_000])
def test_a_look_for_room_is_amortised(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    plain = Held.stays

    def counted(self: Held[Value]) -> bool:
        nonlocal looks
        looks += 1
        return plain(self)

    monkeypatch.setattr(Held, "stays", counted)
    _, all_held = some(count, 100, [])
    for one in all_held:
        one.get()
        one.get()
    assert looks <= 3 * count


def test_a_value_goes_with_its_owner() -> None:
    class Owner:
        def __init__(self) -> None:
            self.held = Held(self._make)

        def _make(self) -> Value:
            return Value(0)

    gc.disable()
    try:
        owner = Owner()
        value = weakref.ref(owner.held.get())
        assert value() is not None
        del owner
        assert value() is None
    finally:
        gc.enable()


def test_threads_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, all_held = some(50, 5, [])
    wrong: list[int] = []

    def read(seed: int) -> None:
        for name in np.random.default_rng(seed).integers(0, 50, 2000).tolist():
            if all_held[name].get().name != name:
                wrong.append(name)

    threads = [Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(one.held() is not None for one in all_held) <= 5 + len(threads)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_where_the_system_has_none_left_what_is_held_goes(number: int) -> None:
    ring, all_held = some(5, 100, [])
    for one in all_held:
        one.get()

    def make() -> Value:
        if any(one.held() is not None for one in all_held):
            raise OSError(number, os.strerror(number))
        return Value(7)

    assert making_room(make, ring).name == 7


def test_what_was_handed_out_lives_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "MOST_HELD", 2)
    runs = token_files(tmp_path, 20)
    views = [run.tokens(0, 100) for run in runs]
    windows = [run.gather(np.array([3]), 4) for run in runs]
    for number, (view, rows) in enumerate(zip(views, windows, strict=True)):
        assert (view == number).all()
        assert (rows == number).all()
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
    again = pickle.loads(pickle.dumps(runs[5]))
    assert (again.tokens(0, 100) == 5).all()


def test_mapped_files_take_no_descriptor(tmp_path: Path) -> None:
    runs = token_files(tmp_path, 300)
    with at_most_files(40):
        assert [int(run.tokens(99, 100)[0]) for run in runs] == [*range(300)]
        child = os.fork()
        if not child:
            os._exit(int([int(run.tokens(0, 1)[0]) for run in runs] != [*range(300)]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_too_many_open_files_are_one_clear_line(tmp_path: Path) -> None:
    (run,) = token_files(tmp_path, 1)
    with at_most_files(0), pytest.raises(OSError, match=r"Too many open files .*at most .* ulimit -n") as caught:
        run.tokens(0, 1)
    assert caught.value.filename == str(tmp_path / "0")


def token_files(folder: Path, count: int) -> list[TokenFile]:
    for number in range(count):
        np.full(100, number, "<u2").tofile(folder / str(number))
    return [TokenFile(LocalStore(), str(folder / str(one)), 0, 100, np.dtype("<u2"), "mmap") for one in range(count)]


@contextmanager
def at_most_files(more: int) -> Iterator[None]:
    """No more than so many descriptors beside those that are open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (last, limits[1]))
    filled: list[int] = []
    try:
        with suppress(OSError):
            while True:
                filled.append(os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + more, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in filled:
            os.close(one)

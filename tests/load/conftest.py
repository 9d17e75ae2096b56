"""A source of any length whose sample i says i, with faults where a test puts them."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import as_index, as_indices, digest

from penstock.types import Batch, Field, IntArray, Location, Sample, Schema


class Numbers:
    """`self[i]` is `{"id": i}`.

    Attributes:
        fail: called with the indices of each read, before it; raises what it likes.
        reads: number of reads.
        longest_read: largest number of samples in one read.
    """

    def __init__(
        self, length: int, name: str = "numbers", fail: Callable[[list[int]], object] | None = None, delay_s: float = 0
    ) -> None:
        self.length = length
        self.name = name
        self.fail = fail
        self.delay_s = delay_s
        self.reads = 0
        self._lock = threading.Lock()

    @property
    def schema(self) -> Schema:
        return Schema((Field("id", "int", "int64", ()),))

    @property
    def fingerprint(self) -> str:
        return digest("numbers", self.name, self.length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int, /) -> Sample:
        return {"id": as_index(index, self.length)}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        array = as_indices(indices, self.length)
        with self._lock:
            self.reads += 1
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.fail is not None:
            self.fail(array.tolist())
        return {"id": np.array(array)}

    def children(self) -> Mapping[str, Any]:
        return {}

    def recipe(self) -> dict[str, Any]:
        return {"kind": "numbers", "path": f"/data/{self.name}", "length": self.length}


@pytest.fixture(scope="session")
def numbers() -> type[Numbers]:
    return Numbers


class Mixed:
    """A stream of named children, dealt in turn: position p is child `p mod n`, position `p // n` in it."""

    lanes = 1

    def __init__(self, children: Mapping[str, Any], seed: int = 0) -> None:
        self._children = children
        self.seed = seed

    @property
    def schema(self) -> Schema:
        return next(iter(self._children.values())).schema

    @property
    def fingerprint(self) -> str:
        return digest("mixed", self.seed, [child.fingerprint for child in self._children.values()])

    def __getitem__(self, position: int, /) -> Sample:
        names = list(self._children)
        return self._children[names[position % len(names)]][position // len(names)]

    def get_batch(self, positions: Sequence[int] | IntArray, /) -> Batch:
        return {"id": np.array([self[int(position)]["id"] for position in positions])}

    def locate(self, position: int, /) -> Location:
        names = list(self._children)
        name, place = names[position % len(names)], position // len(names)
        below = self._children[name].locate(place)
        return Location(position, (name, *below.path), below.epoch, below.index)

    def children(self) -> Mapping[str, Any]:
        return self._children

    def recipe(self) -> dict[str, Any]:
        return {"kind": "mixed", "seed": self.seed, "of": {name: c.recipe() for name, c in self._children.items()}}


class Staged(Mixed):
    """One child after another: each `(length, stream)` is read from its own position 0 on; the last has no end."""

    def __init__(self, *stages: tuple[int | None, Any]) -> None:
        super().__init__({str(place): stream for place, (_, stream) in enumerate(stages)})
        self.lengths = [length for length, _ in stages]

    def _stage(self, position: int) -> tuple[str, int]:
        for name, length in zip(self._children, self.lengths, strict=True):
            if length is None or position < length:
                return name, position
            position -= length
        raise IndexError(position)

    def __getitem__(self, position: int, /) -> Sample:
        name, place = self._stage(position)
        return self._children[name][place]

    def recipe(self) -> dict[str, Any]:
        return {"kind": "staged", "lengths": self.lengths, "of": [c.recipe() for c in self._children.values()]}

    def horizon(self, stop: int, /) -> tuple[dict[str, Any], Mapping[str, int]]:
        last, place = self._stage(stop - 1)
        before = list(self._children)[: int(last)]
        reached = {name: length for name, length in zip(before, self.lengths, strict=False) if length is not None}
        own = {"kind": "staged", "lengths": list(reached.values())} if reached else {}
        return own, {**reached, last: place + 1}


@pytest.fixture(scope="session")
def mixed() -> type[Mixed]:
    return Mixed


@pytest.fixture(scope="session")
def staged() -> type[Staged]:
    return Staged


@pytest.fixture(scope="session")
def functions() -> Any:
    """What worker processes run: a module that they can import by its name."""
    folder = str(Path(__file__).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("process_functions")


@pytest.fixture(autouse=True)
def no_threads_of_others() -> None:
    """Loader threads that other tests have left do not count as those of this one."""
    if _loader_threads():
        gc.collect()  # takes long among all tests
    for thread in _loader_threads():
        thread.name = f"left by another test: {thread.name}"


def _loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-load-")]

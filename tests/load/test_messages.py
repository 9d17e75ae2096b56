"""What is sent between processes, and how much of it is copied into the pickle."""

from __future__ import annotations

import os
import pickle
import random
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.load import messages

torch: Any = pytest.importorskip("torch")


class Line:
    """Two ends of a socket in one process: what is sent, and what is received."""

    def __init__(self, limit: int = 4) -> None:
        self._one, self._other = socket.socketpair()
        self._inbox = messages.Inbox(self._other)
        self._blocks = messages.Blocks(limit)

    def sent(self, value: Any) -> Any:
        """`value` as the other side has it; what that side has let go of is reported first."""
        for number in self._inbox.released():
            self._blocks.released(number)
        messages.send(self._one, b"x", value, self._blocks)
        while not self._inbox.ready():
            self._inbox.fill()
        return self._inbox.take()[1]

    def close(self) -> None:
        self._one.close()
        self._inbox.close()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the anonymous files that are made."""
    made: list[int] = []
    original = messages._anonymous_file

    def counted(size_bytes: int) -> int:
        made.append(size_bytes)
        return original(size_bytes)

    monkeypatch.setattr(messages, "_anonymous_file", counted)
    return made


@pytest.mark.parametrize("size", [10, 100_000])
def test_memory_of_tensors_is_left_out_of_the_pickle(size: int) -> None:
    value = {"image": torch.arange(size, dtype=torch.float32), "ids": np.arange(size)}
    head, buffers = messages._pickled(value)
    assert len(head) < 1000
    assert [buffer.raw().nbytes for buffer in buffers] == [4 * size, 8 * size]


@pytest.mark.parametrize("size", [3, 70_000])
def test_tensors_come_as_they_were(line: Line, size: int) -> None:
    shared = torch.arange(size)
    with_grad = torch.ones(size, requires_grad=True)
    named = torch.ones(size)
    named.name_of_mine = "kept"
    values = [
        *(shared, shared, torch.tensor(5), torch.zeros(0, 4), torch.ones(size, dtype=torch.bfloat16), with_grad, named),
        *(torch.ones(4, size).T, torch.ones(size, dtype=torch.bool), torch.complex(shared * 1.0, shared * 2.0).conj()),
        *(torch.eye(4).to_sparse(), torch.nn.Parameter(torch.ones(size)), torch.ones(2, 3, 4, 5).permute(0, 3, 1, 2)),
    ]
    found = line.sent(values)
    assert found[0] is found[1]
    assert found[6].name_of_mine == "kept"
    for before, after in zip(values, found, strict=True):
        assert type(after) is type(before)
        assert (after.dtype, after.shape, after.requires_grad) == (before.dtype, before.shape, before.requires_grad)
        assert (after.to_dense() == before.to_dense()).all()
    found[0][0] = 7  # the receiver's own
    assert shared[0] == 0


def test_a_pickle_of_others_is_as_before(line: Line) -> None:
    value = {"words": ["a", b"b"], "number": 3, "nothing": None}
    assert line.sent(value) == value
    assert bytes(messages._pickled(value)[0]) == pickle.dumps(value, protocol=5)


@pytest.mark.parametrize("batches", [20, 200])
def test_memory_is_written_to_again(line: Line, files: list[int], batches: int) -> None:
    held = line.sent(np.full(100_000, -1))
    for number in range(batches):
        held = line.sent(np.full(100_000, number))
        assert (held == number).all()
    assert len(files) == 2  # the one that is held, and the one that is sent meanwhile


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_is_never_written_to(line: Line, files: list[int], seed: int) -> None:
    rng = random.Random(seed)
    kept: list[tuple[int, Any]] = []
    for number in range(120):
        size = rng.choice([20_000, 30_000, 39_000, 100_000])
        value = line.sent({"a": np.full(size, number), "b": [np.full(9, number), np.full(12_001, number)]})
        kept.append((number, value if rng.random() < 0.7 else value["b"][1]))
        if len(kept) > rng.choice([1, 2, 6]):
            kept.pop(rng.randrange(len(kept)))
        for was, value in kept:
            arrays = [value["a"], *value["b"]] if isinstance(value, dict) else [value]
            assert all((array == was).all() for array in arrays)
    assert len(files) < 120


def test_descriptors_are_bounded_by_the_limit(line: Line) -> None:
    before = len(os.listdir("/proc/self/fd"))
    kept = [line.sent(np.full(20_000, number)) for number in range(300)]
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * 4
    assert all((value == number).all() for number, value in enumerate(kept))


def test_a_forked_process_keeps_what_it_has(line: Line) -> None:
    value = line.sent(np.full(100_000, 7))
    reading, writing = os.pipe()
    go, gone = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go, 1)
        os.write(writing, b"same" if (value == 7).all() else b"other")
        os._exit(0)
    del value
    for _ in range(8):
        line.sent(np.full(100_000, 1))
    os.write(gone, b"x")
    assert os.read(reading, 9) == b"same"
    os.waitpid(child, 0)
    for descriptor in (reading, writing, go, gone):
        os.close(descriptor)

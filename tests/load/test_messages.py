"""What is sent between processes, and how much of it is copied into the pickle."""

from __future__ import annotations

import pickle
import socket
from typing import Any

import numpy as np
import pytest

from penstock.load import messages

torch: Any = pytest.importorskip("torch")


def sent(value: Any) -> Any:
    """`value` as the other side of a socket has it."""
    one, other = socket.socketpair()
    inbox = messages.Inbox(other)
    try:
        messages.send(one, b"x", value)
        while not inbox.ready():
            inbox.fill()
        return inbox.take()[1]
    finally:
        one.close()
        inbox.close()


@pytest.mark.parametrize("size", [10, 100_000])
def test_memory_of_tensors_is_left_out_of_the_pickle(size: int) -> None:
    value = {"image": torch.arange(size, dtype=torch.float32), "ids": np.arange(size)}
    head, buffers = messages._pickled(value)
    assert len(head) < 1000
    assert [buffer.raw().nbytes for buffer in buffers] == [4 * size, 8 * size]


@pytest.mark.parametrize("size", [3, 70_000])
def test_tensors_come_as_they_were(size: int) -> None:
    shared = torch.arange(size)
    with_grad = torch.ones(size, requires_grad=True)
    named = torch.ones(size)
    named.name_of_mine = "kept"
    values = [
        *(shared, shared, torch.tensor(5), torch.zeros(0, 4), torch.ones(size, dtype=torch.bfloat16), with_grad, named),
        *(torch.ones(4, size).T, torch.ones(size, dtype=torch.bool), torch.complex(shared * 1.0, shared * 2.0).conj()),
        *(torch.eye(4).to_sparse(), torch.nn.Parameter(torch.ones(size)), torch.ones(2, 3, 4, 5).permute(0, 3, 1, 2)),
    ]
    found = sent(values)
    assert found[0] is found[1]
    assert found[6].name_of_mine == "kept"
    for before, after in zip(values, found, strict=True):
        assert type(after) is type(before)
        assert (after.dtype, after.shape, after.requires_grad) == (before.dtype, before.shape, before.requires_grad)
        assert (after.to_dense() == before.to_dense()).all()
    found[0][0] = 7  # the receiver's own
    assert shared[0] == 0


def test_a_pickle_of_others_is_as_before() -> None:
    value = {"words": ["a", b"b"], "number": 3, "nothing": None}
    assert sent(value) == value
    assert bytes(messages._pickled(value)[0]) == pickle.dumps(value, protocol=5)

"""Batches that go to a device: on the processor the same way is taken, without a stream."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import ConfigError, TooLarge
from penstock.load.collate import ToSignedIds
from penstock.load.device import ToDevice, arrived
from penstock.load.torch import torch_loader
from penstock.order import Sequential
from penstock.pack import Chunk
from penstock.testing.memory import MemorySource, MemoryTokens

DOCUMENTS = [[*range(1 + i, 6 + i + i % 7), 0] for i in range(60)]


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize(("kind", "workers"), [("threads", 0), ("threads", 2), ("processes", 1)])
def test_the_same_batches_and_the_same_state(kind: Any, workers: int, dtype: str) -> None:
    stream = Sequential(Chunk(8, labels="shift")(MemoryTokens(DOCUMENTS, eos_id=0, dtype="uint16")))
    options: dict[str, Any] = {"rank": 0, "world": 1, "workers": workers, "worker_kind": kind, "dtype": dtype}
    with torch_loader(stream, 4, **options) as plain, torch_loader(stream, 4, device="cpu", **options) as moved:
        for expected, found in islice(zip(plain, moved, strict=True), 5):
            assert list(found) == list(expected)
            for name, value in expected.items():
                assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(value)), name
                assert getattr(found[name], "dtype", None) == getattr(value, "dtype", None), name
            assert moved.state_dict() == plain.state_dict()
            found["inputs"][:] = -1  # a tensor of its own, though both were views of one block
            assert torch.equal(found["targets"], expected["targets"])


def test_a_batch_is_one_copy_of_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []

    class Counting(ToDevice):
        def _copied(self, host: Any) -> Any:
            copies.append(host.nbytes)
            return super()._copied(host)

    block = np.arange(4 * 9, dtype=np.uint16).reshape(4, 9)
    columns = {
        "inputs": block[:, :-1],
        "targets": block[:, 1:],
        "pixels": np.ones((2, 3, 5), np.uint8),
        "part": np.arange(100)[::7],
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "ragged": [np.arange(3), np.arange(0), "text", [np.array(2.5)]],
        "nothing": np.empty((0, 3), np.float32),
        "texts": ["a", "b"],
        "number": 7,
    }
    found = arrived(Counting(ToSignedIds("int64", frozenset()), "cpu")(columns))
    assert len(copies) == 1
    assert copies[0] < block.nbytes + 1000  # the block once, and each of the others with its alignment
    assert found["inputs"].dtype == torch.int64
    assert found["pixels"].dtype == torch.uint8
    for name in ("inputs", "targets", "pixels", "part", "turned", "nothing"):
        assert found[name].tolist() == columns[name].tolist(), name
    assert found["ragged"][0].tolist() == [0, 1, 2]
    assert found["ragged"][1].shape == (0,)
    assert found["ragged"][2:] == ["text", [torch.tensor(2.5)]]
    assert (found["texts"], found["number"]) == (["a", "b"], 7)


def test_what_can_not_be() -> None:
    stream = Sequential(MemorySource([{"id": 1}]))
    with pytest.raises(ConfigError, match="doesn't know this device"):
        torch_loader(stream, 1, device="nowhere")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            torch_loader(stream, 1, device="cuda")
    with pytest.raises(TooLarge):
        ToDevice(ToSignedIds("int32", frozenset()), "cpu")({"tokens": np.array([1 << 31], np.uint32)})

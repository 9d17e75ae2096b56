from __future__ import annotations

import json
import logging
import warnings
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from penstock.errors import ConfigError, Corrupt, TooLarge
from penstock.load import Loader
from penstock.load.torch import ENDLESS, Rows, TorchDataset, torch_loader
from penstock.order import Sequential, Shuffle
from penstock.pack import Chunk
from penstock.testing.memory import MemorySource, MemoryTokens

DOCUMENTS = [[*range(1 + i, 6 + i + i % 7), 0] for i in range(60)]
KINDS = ["threads", "processes"]


def windows(labels: Any = None, dtype: str = "uint16") -> Any:
    return Chunk(8, labels=labels)(MemoryTokens(DOCUMENTS, eos_id=0, dtype=dtype))


def batches(loader: Any, count: int) -> list[Any]:
    return [batch["tokens"].tolist() for batch in islice(loader, count)]


@pytest.mark.parametrize(("num_workers", "context"), [(0, None), (2, "fork")])
@pytest.mark.parametrize("columns", [False, True])
def test_a_plain_dataloader_gives_the_samples_in_order(num_workers: int, context: str | None, columns: bool) -> None:
    source = windows()
    dataset = TorchDataset(source)
    loader = DataLoader(
        dataset,
        batch_size=5,
        num_workers=num_workers,
        multiprocessing_context=context,
        collate_fn=dataset.collate if columns else None,
    )
    found = list(loader)
    assert len(dataset) == len(source)
    assert all(batch["tokens"].dtype == torch.int64 for batch in found)
    tokens = torch.cat([batch["tokens"] for batch in found])
    assert tokens.tolist() == source.get_batch(np.arange(len(source)))["tokens"].tolist()


def test_items_and_batches_of_items_are_the_same_and_may_be_written_to() -> None:
    dataset = TorchDataset(windows("start-zero"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = dataset.__getitems__([3, 1])
        one = dataset[3]
    assert set(rows[0]) == set(one)
    for name, value in one.items():
        assert torch.as_tensor(rows[0][name]).tolist() == torch.as_tensor(value).tolist(), name
    one["tokens"] += 1
    assert dataset[3]["tokens"].tolist() == rows[0]["tokens"].tolist()
    assert [row["tokens"].tolist() for row in rows] == [dataset[i]["tokens"].tolist() for i in (3, 1)]
    assert isinstance(rows, Rows)
    assert len(rows[:1]) == 1


@pytest.mark.parametrize("length", [None, 9000])
def test_batches_of_a_stream_in_any_order_are_its_own(length: int | None) -> None:
    stream = Shuffle(MemorySource([{"id": number} for number in range(500)]), seed=3)
    dataset = TorchDataset(stream, length=length)
    asked = [[0, 1, 2], [3, 4], [1, 0], [8190, 8191, 8192], [8193, 8300], [2], [8999, 7], [], [8999], [8998, 8999]]
    for places in asked:
        rows = dataset.__getitems__(places)
        assert [int(rows[i]["id"]) for i in range(len(rows))] == [stream[place]["id"] for place in places]


def test_dtypes_are_int64_or_int32_for_ids_and_their_own_for_the_rest() -> None:
    for dtype, expected in (("int64", torch.int64), ("int32", torch.int32), (torch.int32, torch.int32)):
        for width in ("uint8", "uint16", "uint32"):
            sample = TorchDataset(windows("shift", width), dtype=dtype)[0]
            assert [sample[name].dtype for name in ("tokens", "inputs", "targets")] == [expected] * 3
            assert sample["cu_seqlens"].dtype == torch.int32
            assert sample["loss_mask"].dtype == torch.bool
    image = TorchDataset(MemorySource([{"image": np.zeros((2, 2), np.uint8), "text": "a", "score": 0.5}]))[0]
    assert (image["image"].dtype, image["text"], image["score"]) == (torch.uint8, "a", 0.5)
    with pytest.raises(ConfigError, match="int64 or int32"):
        TorchDataset(windows(), dtype="int16")


def test_an_id_that_int32_does_not_hold_is_refused() -> None:
    dataset = TorchDataset(MemoryTokens([[1, 2**31]]), dtype="int32")
    with pytest.raises(TooLarge, match="2147483648"):
        dataset[0]
    assert TorchDataset(MemoryTokens([[1, 2**31]]))[0]["tokens"].tolist() == [1, 2**31]


def test_lengths_of_sources_and_streams() -> None:
    source = windows()
    assert len(TorchDataset(source, length=7)) == 7
    assert len(TorchDataset(Sequential(source))) == ENDLESS
    assert batches(DataLoader(TorchDataset(Shuffle(source, 3)), batch_size=4), 30) == batches(
        Loader(Shuffle(source, 3), 4, workers=0), 30
    )
    with pytest.raises(ConfigError, match="out of range"):
        TorchDataset(source, length=len(source) + 1)
    for index in (7, -8):
        with pytest.raises(IndexError):
            TorchDataset(source, length=7)[index]
    with pytest.raises(IndexError):
        TorchDataset(source, length=7).__getitems__([7])


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_dataloader_resumes_with_as_many_workers() -> None:
    dataset = TorchDataset(Shuffle(windows(), seed=1), length=60)

    def loader() -> Any:
        return StatefulDataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork")

    first, second = loader(), loader()
    iterator = iter(first)
    read = [next(iterator)["tokens"].tolist() for _ in range(5)]
    second.load_state_dict(first.state_dict())
    read += batches(second, 100)
    assert read == batches(Loader(Shuffle(windows(), seed=1), 4, workers=0), 15)


def test_a_plain_dataloader_works_with_spawn() -> None:
    dataset = TorchDataset(windows(), dtype="int32")
    loader = DataLoader(dataset, batch_size=5, num_workers=1, multiprocessing_context="spawn")
    assert batches(loader, 4) == batches(Loader(Sequential(windows()), 5, workers=0), 4)


@pytest.mark.parametrize(("kind", "workers"), [("threads", 0), ("threads", 3), ("processes", 0), ("processes", 2)])
def test_torch_loader_gives_the_loaders_batches(kind: Any, workers: int) -> None:
    stream = Shuffle(windows("shift"), seed=1)
    loader = torch_loader(stream, 12, rank=1, world=2, micro_batch=3, workers=workers, worker_kind=kind)
    plain = Loader(stream, 12, rank=1, world=2, micro_batch=3, workers=0)
    for batch, expected in islice(zip(loader, plain, strict=True), 9):
        assert set(batch) == set(expected)
        for name, value in expected.items():
            assert torch.as_tensor(batch[name]).tolist() == np.asarray(value).tolist(), name
    assert batch["tokens"].dtype == torch.int64
    assert loader.state_dict() == plain.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_torch_loader_resumes_elastically_while_it_runs(kind: Any) -> None:
    stream = Shuffle(windows(), seed=1)
    first = torch_loader(stream, 4, workers=2, worker_kind=kind)
    expected = Loader(stream, 8, start=12, workers=0)
    batches(first, 3)
    second = torch_loader(stream, 8, workers=1, worker_kind=kind)
    iterator = iter(second)
    next(iterator)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [next(iterator)["tokens"].tolist() for _ in range(3)] == batches(expected, 3)
    assert (second.step, second.consumed) == (6, 36)
    iterator.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_in_tensors_ends_with_its_last_batch(kind: Any) -> None:
    source = windows()
    loader = torch_loader(source, 10, tail="pad", workers=2, worker_kind=kind)
    found = list(loader)
    assert len(found) == len(loader) == -(-len(source) // 10)
    valid = torch.cat([batch["valid"] for batch in found])
    assert (valid.dtype, int(valid.sum())) == (torch.bool, len(source))


@pytest.mark.parametrize("kind", KINDS)
def test_errors_in_workers_come_in_order_and_whole(kind: Any, functions: Any) -> None:
    source = functions.Failing([{"tokens": np.array([i])} for i in range(40)])
    loader = torch_loader(Sequential(source), 4, workers=2, worker_kind=kind)
    iterator = iter(loader)
    assert [next(iterator)["tokens"].flatten().tolist()[0] for _ in range(2)] == [0, 4]
    with pytest.raises(Corrupt) as caught:
        next(iterator)
    assert (caught.value.path, caught.value.offset_bytes, loader.consumed) == ("a.bin", 9, 8)


@pytest.mark.parametrize("name", ["raise_lookup_error", "raise_own_error"])
def test_foreign_errors_of_processes_come_with_their_text(name: str, functions: Any) -> None:
    loader = torch_loader(Sequential(windows()), 4, worker_kind="processes", collate=getattr(functions, name))
    with pytest.raises((LookupError, RuntimeError), match="a bug") as caught:
        next(iter(loader))
    assert "in loader process 0" in caught.value.__notes__[0]


def test_what_torch_loader_can_not_do_is_said(caplog: pytest.LogCaptureFixture) -> None:
    stream = Sequential(windows())
    with pytest.raises(ConfigError, match="'threads' or 'processes'"):
        torch_loader(stream, 4, worker_kind="fibres")  # pyright: ignore
    with pytest.raises(ConfigError, match="workers=-1"):
        torch_loader(stream, 4, workers=-1, worker_kind="processes")
    if not torch.cuda.is_available():
        [batch] = islice(torch_loader(stream, 4, pin_memory=True), 1)
        assert not batch["tokens"].is_pinned()
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_own_collate_comes_before_the_tensors() -> None:
    loader = torch_loader(Sequential(windows()), 4, collate=lambda batch: {"sums": batch["tokens"].sum(axis=1)})
    [batch] = islice(loader, 1)
    assert batch["sums"].shape == (4,)
    assert isinstance(batch["sums"], torch.Tensor)
    plain = torch_loader(Sequential(windows()), 4, collate=lambda batch: len(batch["tokens"]))
    assert list(islice(plain, 2)) == [4, 4]

"""`StreamingDataset` and `StreamingDataLoader`: the original's samples in its order, by any number of workers."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import StreamingEpochs as Epochs
from tests.internals import StreamingWorker as Worker
from torch.utils.data import DataLoader

import penstock as ps
from penstock.compat.streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
from penstock.errors import ConfigError, NotFound, ResumeMismatch
from penstock.store import LocalStore
from penstock.testing import FileServer

GOLDEN = Path(__file__).parents[2] / "golden" / "streaming"
MAIN = str(GOLDEN / "order_data" / "main")
ORDERS = json.loads((GOLDEN / "orders.json").read_text())
RESUMED = ORDERS["resume_with_dataloader"][0]


def main_dataset(**more: Any) -> StreamingDataset:
    return StreamingDataset(local=MAIN, **{"batch_size": 16, "shuffle": True, **more})


def ids_of(loader: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


# --- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ORDERS["iterated_single_process"], ids=lambda case: case["algo"])
def test_epochs_in_one_process(case: dict[str, Any]) -> None:
    options = {name: case[name] for name in ("batch_size", "shuffle_seed", "shuffle_block_size")}
    dataset = main_dataset(shuffle_algo=case["algo"], **options)
    order = dataset.order()
    first = [sample["id"] for sample in dataset]
    second = [sample["id"] for sample in dataset]
    assert first[:8] == case["first"]
    assert first == order.worker_ids(epoch=0, rank=0).tolist()
    assert second == order.worker_ids(epoch=1, rank=0).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on(workers: int) -> None:
    begun = StreamingDataLoader(main_dataset(shuffle_seed=7, num_canonical_nodes=2), batch_size=16, num_workers=workers)
    batches = iter(begun)
    assert ids_of(islice(batches, 25)) == RESUMED["batches_before"]
    assert begun.state_dict() == RESUMED["state_dict"]
    del batches

    # Its seed and canonical nodes are the state's.
    resumed = StreamingDataLoader(main_dataset(), batch_size=16, num_workers=workers)
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    assert resumed.state_dict() == RESUMED["state_dict"]
    assert ids_of(resumed) == RESUMED["batches_after_resume"]
    batches = iter(resumed)
    assert ids_of(islice(batches, 3)) == RESUMED["first_batches_of_next_epoch"]
    assert resumed.state_dict() == {**RESUMED["state_dict"], "epoch": 1, "sample_in_epoch": 48}
    del batches
    # It has passed by now.
    resumed.load_state_dict(RESUMED["state_dict"])
    assert ids_of(resumed)[:1] != RESUMED["batches_after_resume"][:1]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_count_epochs_together(persistent: bool) -> None:
    dataset = main_dataset()
    loader = DataLoader(
        dataset,  # pyright: ignore[reportArgumentType]
        batch_size=16,
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=persistent,
    )
    order = dataset.order()
    for epoch in range(2):
        assert flat(ids_of(loader)) == order.worker_ids(epoch=epoch, rank=0).tolist()
    # A second loader goes on with the next epoch, a single process after it too.
    other = DataLoader(dataset, batch_size=16, num_workers=1)  # pyright: ignore[reportArgumentType]
    assert flat(ids_of(other)) == order.worker_ids(epoch=2, rank=0).tolist()
    assert [sample["id"] for sample in dataset] == order.worker_ids(epoch=3, rank=0).tolist()


def test_equal_seeds_of_workers_are_other_epochs() -> None:
    import torch

    dataset = main_dataset()
    epochs: list[list[int]] = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(dataset, batch_size=16, num_workers=2, generator=generator)  # pyright: ignore
        epochs.append(flat(ids_of(loader)))
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


def test_ranks_share_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    read: list[int] = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        dataset = main_dataset(batch_size=4)
        assert len(dataset) == 250
        of_rank = [sample["id"] for sample in dataset]
        ids = ps.StreamingOrder(ps.open(MAIN), world=(2, 2, 1), batch_size=4, shuffle=True).epoch_ids(epoch=0)
        expected = ids[rank // 2, rank % 2].reshape(-1)
        assert of_rank == expected[expected >= 0].tolist()
        read += of_rank
    assert sorted(set(read)) == list(range(1000))


def test_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    found: list[list[int]] = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        loader = StreamingDataLoader(main_dataset(batch_size=8, replication=2), batch_size=8)
        batches = iter(loader)
        found.append(next(batches)["id"].tolist())
        assert loader.state_dict() == {
            "epoch": 0,
            "sample_in_epoch": 16,
            "num_canonical_nodes": 1,
            "shuffle_seed": 9176,
            "initial_physical_nodes": 1,
        }
    assert found[0] == found[1] != found[2] == found[3]


# --- streams ---------------------------------------------------------------------------------------------------------


def test_weighted_streams(small: Path) -> None:
    streams = [Stream(local=str(small / "a"), proportion=1), Stream(local=str(small / "b"), proportion=3)]
    dataset = StreamingDataset(streams=streams, epoch_size="80", batch_size=8, batching_method="stratified")
    assert (dataset.size, dataset.epoch_size, len(dataset)) == (100, 80, 80)
    assert [stream.choose for stream in streams] == [20, 60]
    assert [stream.proportion for stream in streams] == [0.25, 0.75]
    for batch in ids_of(StreamingDataLoader(dataset, batch_size=8)):
        assert sum(number < 100 for number in batch) == 2


def test_samples_by_number(small: Path) -> None:
    streams = [Stream(local=str(small / "a")), Stream(local=str(small), split="b")]
    dataset = StreamingDataset(streams=streams)
    assert dataset[0] == {"id": 0, "text": ""}
    assert dataset[-1]["id"] == dataset.get_item(99, retry=2)["id"] == 139
    assert [sample["id"] for sample in dataset[58:62]] == [58, 59, 100, 101]
    assert [[sample["id"] for sample in row] for row in dataset[[[1, 60], [-1, -2]]]] == [[1, 100], [139, 138]]
    assert [sample["id"] for sample in dataset[np.array([60, 3])]] == [100, 3]
    with pytest.raises(IndexError):
        dataset[100]
    with pytest.raises(TypeError):
        dataset[1.5]
    with pytest.raises(ConfigError, match="batch_size"):
        next(iter(dataset))


def test_local_dataset(small: Path) -> None:
    dataset = LocalDataset(str(small), "b")
    assert (len(dataset), dataset.size, dataset[3]["id"], dataset.get_item(4)["id"]) == (40, 40, 103, 104)
    loader = DataLoader(dataset, batch_size=10, num_workers=1)  # pyright: ignore[reportArgumentType]
    assert flat(ids_of(loader)) == list(range(100, 140))


def test_a_remote_folder_and_a_local_one(small: Path) -> None:
    remote, local = small / "a", small / "copy"
    assert StreamingDataset(remote=str(remote), local=str(local)).size == 60
    assert StreamingDataset(remote=f"file://{remote}", local=str(local)).size == 60
    assert not local.exists()
    # A whole local copy is read, one that lacks a shard is not.
    os.rename(remote, local)
    assert StreamingDataset(remote=str(remote), local=str(local)).size == 60
    (local / "shard.00001.mds").unlink()
    with pytest.raises(NotFound):
        StreamingDataset(remote=str(remote), local=str(local))


def test_a_missing_shard_is_an_error(small: Path) -> None:
    (small / "a" / "shard.00002.mds").unlink()
    dataset = StreamingDataset(local=str(small / "a"), batch_size=4, shuffle=True)
    with pytest.raises(NotFound, match=r"shard\.00002\.mds"):
        list(dataset)
    loader = DataLoader(dataset, batch_size=4, num_workers=2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(Exception, match=r"shard\.00002\.mds"):
        ids_of(loader)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"streams": [Stream(local=MAIN)], "local": MAIN},
        {"local": MAIN, "batch_size": 4, "shuffle_algo": "py1b"},
        {"local": MAIN, "epoch_size": "many"},
        {"local": MAIN, "stream_config": {"repeat": 1.0}, "epoch_size": 5},
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        StreamingDataset(**arguments)


@pytest.mark.parametrize("arguments", [{}, {"local": MAIN, "repeat": 1, "choose": 2}, {"local": MAIN, "choose": -1}])
def test_streams_that_cannot_be(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Stream(**arguments)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="shards"):
        StreamingDataset(local=str(tmp_path / "a.jsonl"))


# --- state -----------------------------------------------------------------------------------------------------------


def test_states(small: Path) -> None:
    dataset = StreamingDataset(local=str(small / "a"), batch_size=4, shuffle=True)
    assert dataset.state_dict(0, False)["epoch"] == -1
    assert (dataset.next_epoch, dataset.shuffle, dataset.shuffle_algo, dataset.shuffle_seed) == (0, True, "py1e", 9176)
    with pytest.raises(ResumeMismatch):
        dataset.load_state_dict({"epoch": 1})
    state = {"epoch": 2, "sample_in_epoch": 8, "num_canonical_nodes": 3, "shuffle_seed": 4}
    dataset.load_state_dict(state)
    assert dataset.next_epoch == 2
    iterator = iter(dataset)
    next(iterator)
    assert dataset.next_epoch == 3
    assert dataset.state_dict(4, False)["sample_in_epoch"] == 12
    assert dataset.state_dict(12, True) == {**state, "sample_in_epoch": 12, "initial_physical_nodes": 1}


def test_other_batches_are_counted(small: Path) -> None:
    def listed(samples: Any) -> Any:
        return samples

    dataset = StreamingDataset(local=str(small / "a"), batch_size=4)
    for collate in (None, listed, lambda samples: [[one["id"] for one in samples], [0] * len(samples)]):
        loader = StreamingDataLoader(dataset, batch_size=4, collate_fn=collate)
        next(iter(loader))
        assert loader.num_samples_yielded == 4
    other = StreamingDataLoader(LocalDataset(str(small / "a")), batch_size=4)
    assert other.state_dict() is None
    other.load_state_dict({})


def test_pickled_datasets_go_on(small: Path) -> None:
    dataset = StreamingDataset(local=str(small / "a"), batch_size=4, shuffle=True)
    list(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    assert [one["id"] for one in copy] == [one["id"] for one in dataset]
    list(copy)  # counts for itself
    assert [one["id"] for one in dataset] == dataset.order().worker_ids(epoch=2, rank=0).tolist()


def test_epochs_of_workers() -> None:
    epochs = Epochs()
    assert [epochs.begin(Worker(7, number, 2)) for number in (1, 0)] == [(0, None)] * 2
    assert [epochs.begin(Worker(7, number, 2, round=1)) for number in (0, 1)] == [(1, None)] * 2
    # Workers of a new iterator with the same seed.
    assert [epochs.begin(Worker(7, number, 2, round=1)) for number in (1, 0)] == [(2, None)] * 2
    assert epochs.begin(Worker()) == (3, None)
    state = {"epoch": 9, "sample_in_epoch": 5}
    epochs.load(state)
    assert epochs.running() == (9, 5, state)
    assert [epochs.begin(Worker(8, number, 2)) for number in (0, 1)] == [(9, state)] * 2
    assert epochs.begin(Worker()) == (10, state)
    assert epochs.running() == (10, 0, state)


def test_spawned_workers_count_too() -> None:
    epochs = Epochs()
    epochs.begin(Worker())
    child = multiprocessing.get_context("spawn").Process(target=Epochs.begin, args=(epochs, Worker(5, 1, 2)))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert epochs.begin(Worker(5, 0, 2)) == (1, None)
    assert epochs.begin(Worker()) == (2, None)


def test_files_are_closed(small: Path) -> None:
    for _ in range(3):
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            next(iter(StreamingDataset(local=str(small / "a"), batch_size=4)))
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_importing_compat_stays_cheap() -> None:
    script = "import sys, penstock.compat.streaming; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- remote ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_remote_dataset(small: Path, workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "predownload": 7}
    with FileServer() as server:
        for name in "ab":
            server.files.update({f"{name}/{file.name}": file.read_bytes() for file in (small / name).iterdir()})
        remote = StreamingDataset(streams=[Stream(remote=f"{server.url}/{name}") for name in "ab"], **options)
        local = StreamingDataset(streams=[Stream(local=str(small / name)) for name in "ab"], **options)
        loader = StreamingDataLoader(remote, batch_size=4, num_workers=workers)
        assert [remote[index] for index in (0, 99)] == [local[index] for index in (0, 99)]
        assert flat(ids_of(loader)) == [sample["id"] for sample in local]


def test_a_local_copy_is_found_whole_without_a_look_at_each_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    looked: list[str] = []

    def counted(real: Any) -> Any:
        def counting(store: LocalStore, path: str, *more: Any) -> Any:
            looked.append(path)
            return real(store, path, *more)

        return counting

    for name in ("exists", "size", "is_folder", "list"):
        monkeypatch.setattr(LocalStore, name, counted(getattr(LocalStore, name)))
    for shards in (5, 50):
        folder = tmp_path / str(shards)
        with ps.create(folder, format="mds", columns={"id": "int"}, size_limit=64) as writer:
            for number in range(shards * 3):
                writer.write({"id": number})
        assert len(list(folder.glob("*.mds"))) >= shards
        looked.clear()
        assert len(StreamingDataset(remote="s3://nowhere/at/all", local=str(folder), batch_size=4)) == shards * 3
        counts.append(len(looked))
    assert counts[1] <= counts[0] + 2

"""Subclasses of `StreamingDataset` say what a sample is, as the original's own datasets of text and images do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import penstock as ps
from penstock.compat.streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
from penstock.errors import ConfigError, Corrupt
from penstock.testing import FileServer


class ByItem(StreamingDataset):
    """As the original's text datasets."""

    def get_item(self, idx: int) -> Any:  # pyright: ignore
        sample = super().get_item(idx)
        return {"id": sample["id"], "tokens": -sample["id"]}


class ByIndex(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return {"id": sample["id"], "tokens": -sample["id"]}


class ByBoth(ByItem):
    def __getitem__(self, at: Any) -> Any:
        made = super().__getitem__(at)
        return {**made, "tokens": made["tokens"] * 1}


class Pairs(StreamingDataset):
    """As the original's image datasets: an input and a label."""

    def __init__(self, *, transform: Callable[[int], int], **options: Any) -> None:
        super().__init__(**options)
        self.transform = transform

    def get_item(self, idx: int) -> Any:  # pyright: ignore
        sample = super().get_item(idx)
        return self.transform(sample["id"]), sample["text"]


@pytest.fixture
def served(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with FileServer() as server:
        for name in "ab":
            server.files.update({f"{name}/{file.name}": file.read_bytes() for file in (small / name).iterdir()})
        yield server


def streams(small: Path) -> list[Stream]:
    return [Stream(local=str(small / name)) for name in "ab"]


OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "shuffle_seed": 3}
OWN = pytest.mark.parametrize("kind", [ByItem, ByIndex, ByBoth])


def is_own(samples: list[Any], stored: list[Any]) -> bool:
    return samples == [{"id": sample["id"], "tokens": -sample["id"]} for sample in stored]


@OWN
def test_iterating_and_indexing_give_the_subclass_s_samples(kind: Any, small: Path) -> None:
    plain, own = (one(streams=streams(small), **OPTIONS) for one in (StreamingDataset, kind))
    for _ in range(2):
        assert is_own(list(own), list(plain))
    assert own[61] == {"id": 101, "tokens": -101}
    assert own[-1] == {"id": 139, "tokens": -139}


def test_lists_and_slices_go_through_it(small: Path) -> None:
    own = ByItem(streams=streams(small), **OPTIONS)
    expected = [{"id": number, "tokens": -number} for number in (0, 1)]
    assert own[[0, 1]] == own[:2] == own[np.arange(2)] == expected
    assert own[[[0], 1]] == [expected[:1], expected[1]]


@OWN
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", [DataLoader, StreamingDataLoader])
def test_data_loaders_get_them(kind: Any, workers: int, loader: Any, small: Path) -> None:
    own = kind(streams=streams(small), **OPTIONS)
    batches = list(loader(own, batch_size=4, num_workers=workers))
    assert sorted(one for batch in batches for one in batch["id"].tolist()) == [*range(60), *range(100, 140)]
    assert all(batch["tokens"].tolist() == (-batch["id"]).tolist() for batch in batches)
    assert all(set(batch) == {"id", "tokens"} for batch in batches)


@OWN
def test_they_come_after_a_resume(kind: Any, small: Path) -> None:
    whole = list(kind(streams=streams(small), **OPTIONS))
    begun = StreamingDataLoader(kind(streams=streams(small), **OPTIONS), batch_size=4)
    assert len(list(islice(iter(begun), 7))) == 7
    resumed = StreamingDataLoader(kind(streams=streams(small), **OPTIONS), batch_size=4)
    resumed.load_state_dict(begun.state_dict() or {})
    found = [one for batch in resumed for one in batch["tokens"].tolist()]
    assert found == [sample["tokens"] for sample in whole[28:]]


@OWN
def test_penstock_s_loader_gets_them(kind: Any, small: Path) -> None:
    own = kind(streams=streams(small), **OPTIONS)
    expected = [sample["tokens"] for sample in kind(streams=streams(small), **OPTIONS)]
    order = own.order()
    found = [batch["tokens"].tolist() for batch in islice(ps.Loader(order, 4), 25)]
    assert [one for batch in found for one in batch] == expected
    assert order[0] == {"id": -expected[0], "tokens": expected[0]}
    assert order.get_resolved_samples(order.resolve(np.arange(2)))[1]["tokens"] == expected[1]
    assert order.locate(0).index == own.order().resolve(np.array([0]))[0]
    plain = StreamingDataset(streams=streams(small), **OPTIONS).order()
    assert order.fingerprint != plain.fingerprint


def test_what_has_no_columns_is_for_torch_s_loaders(small: Path) -> None:
    own = Pairs(local=str(small / "a"), transform=lambda number: number + 1000, batch_size=4)
    assert next(iter(own)) == (1000, "")
    loader = StreamingDataLoader(own, batch_size=4)
    inputs, texts = next(iter(loader))
    assert inputs.tolist() == [1000, 1001, 1002, 1003]
    assert list(texts) == ["", "x", "xx", "xxx"]
    assert loader.num_samples_yielded == 4
    with pytest.raises(ConfigError, match="have no columns"):
        next(iter(ps.Loader(own.order(), 4)))


@OWN
@pytest.mark.parametrize("workers", [0, 2])
def test_remote_ones_too_and_fetched_ahead(kind: Any, workers: int, small: Path, served: FileServer) -> None:
    remote = [Stream(remote=f"{served.url}/{name}") for name in "ab"]
    own = kind(streams=remote, predownload=7, **OPTIONS)
    expected = list(kind(streams=streams(small), **OPTIONS))
    batches = list(StreamingDataLoader(own, batch_size=4, num_workers=workers))
    found = [one for batch in batches for one in batch["tokens"].tolist()]
    assert sorted(found) == sorted(sample["tokens"] for sample in expected)
    if not workers:
        assert found == [sample["tokens"] for sample in expected]


def test_remote_samples_are_read_as_often_as_without_a_subclass(small: Path, served: FileServer) -> None:
    """What was fetched ahead is what `super().get_item()` gives: nothing is read twice."""
    counts: list[int] = []
    for kind in (StreamingDataset, ByItem):
        dataset = kind(remote=f"{served.url}/a", predownload=7, **OPTIONS)
        reads, inner = [0], dataset.source.get_samples

        def counted(ids: Any, reads: list[int] = reads, inner: Any = inner) -> Any:
            reads[0] += len(ids)
            return inner(ids)

        dataset.source = type("Counted", (), {"get_samples": staticmethod(counted), "__getitem__": _refused})()
        assert len(list(dataset)) == 60
        counts.append(reads[0])
    assert counts == [60, 60]


def _refused(self: Any, index: int) -> Any:
    raise AssertionError(f"sample {index} was read by itself")


def test_a_subclass_can_leave_out_a_damaged_remote_sample(small: Path, served: FileServer) -> None:
    class Careful(StreamingDataset):
        def get_item(self, idx: int) -> Any:  # pyright: ignore
            try:
                return super().get_item(idx)["id"]
            except Corrupt:
                return None

    name = "a/shard.00001.mds"
    data = bytearray(served.files[name])
    count = int.from_bytes(data[:4], "little")
    second = int.from_bytes(data[8:12], "little")
    data[second : second + 4] = b"\xff\xff\xff\xff"  # the length of the second sample's text
    served.files[name] = bytes(data)
    found = list(Careful(remote=f"{served.url}/a", predownload=7, batch_size=4))
    assert count > 2
    assert len(found) == 60
    assert found.count(None) == 1


def test_a_method_of_the_object_counts(small: Path) -> None:
    dataset: Any = StreamingDataset(local=str(small / "a"), batch_size=4)
    dataset.get_item = lambda idx: idx * 10
    assert list(dataset)[:3] == [0, 10, 20]


def test_settings_of_the_object_count(small: Path) -> None:
    """The original reads them at each epoch."""
    dataset = StreamingDataset(local=str(small / "a"), batch_size=4, shuffle=True)
    dataset.shuffle_seed = 7
    expected = StreamingDataset(local=str(small / "a"), batch_size=4, shuffle=True, shuffle_seed=7)
    assert list(dataset) == list(expected)


def test_a_local_dataset_s_get_item(small: Path) -> None:
    class Numbers(LocalDataset):
        def get_item(self, idx: int) -> Any:  # pyright: ignore
            return super().get_item(idx)["id"]

    dataset = Numbers(str(small / "b"))
    assert dataset[0] == 100
    assert dataset[[1, 2]] == dataset[1:3] == [101, 102]
    loader = DataLoader(dataset, batch_size=4)
    assert next(iter(loader)).tolist() == [100, 101, 102, 103]


def test_a_loader_s_own_count_of_samples(small: Path) -> None:
    class Halves(StreamingDataLoader):
        def _get_batch_size(self, batch: Any) -> int:
            return super()._get_batch_size(batch) // 2

    loader = Halves(StreamingDataset(local=str(small / "a"), batch_size=4), batch_size=4)
    next(iter(loader))
    assert loader.num_samples_yielded == 2


# --- what is not offered ---------------------------------------------------------------------------------------------


def test_other_kinds_of_streams_are_refused(small: Path) -> None:
    with pytest.raises(ConfigError, match="unknown kind of stream"):
        StreamingDataset(local=str(small / "a"), stream_name="delta")
    with pytest.raises(ConfigError, match="found both"):
        StreamingDataset(streams=streams(small), stream_config={"split": "x"})


def test_arguments_without_effect_are_said(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        dataset = StreamingDataset(local=str(small / "a"), split="", download_retry=2, keep_zip=False, batch_size=4)
        assert not caplog.messages
        StreamingDataset(
            local=str(small / "a"), download_retry=5, download_timeout=9, keep_zip=True, cache_limit="1gb",
        )  # fmt: skip
        dataset.get_item(0, retry=3)
        dataset.get_item(1, retry=3)
    said = " ".join(caplog.messages)
    for name in (
        "download_retry=5",
        "download_timeout=9",
        "keep_zip=True",
        "cache_limit='1gb'",
    ):
        assert name in said
    assert said.count("retry=3") == 1

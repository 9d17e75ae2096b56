"""Validation and single passes: each sample once, in as many batches, of as many samples, as the original's."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.internals import Shares, turns

from penstock.compat import energon as en
from penstock.errors import ConfigError


@en.stateless
def cook(sample: Any) -> en.TextSample:
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["json"]["text"])


class Texts(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(cook),)


def write(folder: Path, samples: int) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(samples)))
    return path


def validation(path: Path, *, rank: int = 0, world: int = 1, workers: int = 0, encoder: Any = None, **more: Any) -> Any:
    config = en.WorkerConfig(rank=rank, world_size=world, num_workers=workers)
    encoder = Texts() if encoder is None else encoder
    return en.get_savable_loader(en.get_val_dataset(path, worker_config=config, task_encoder=encoder, **more))


def sizes(loader: Any) -> list[int]:
    return [len(batch.__key__) for batch in loader]


@pytest.mark.parametrize(
    ("ranks", "workers", "expected"),
    [(1, 4, [11, 11, 11, 11, 2, 1, 2, 1]), (2, 2, [11, 11, 2, 1]), (1, 0, [11] * 4 + [6])],
)
def test_each_worker_ends_with_a_short_batch(tmp_path: Path, ranks: int, workers: int, expected: list[int]) -> None:
    path, keys = write(tmp_path, 50), list[str]()
    for rank in range(ranks):
        loader = validation(path, rank=rank, world=ranks, workers=workers, batch_size=11)
        assert len(loader) == len(loader.dataset) == len(expected)
        assert sizes(loader) == sizes(loader) == expected
        keys += [key for batch in loader for key in batch.__key__]
    assert sorted(keys, key=int) == [str(number) for number in range(50)]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("samples", [0, 1, 2, 7, 24, 50])
@pytest.mark.parametrize(("workers", "size"), [(1, 1), (1, 4), (3, 4), (4, 11)])
def test_cuts_of_a_pass(world: int, samples: int, workers: int, size: int) -> None:
    shares = Shares(samples, world, workers, size, drop_last=False)
    own = [[shares.samples(rank, batch).tolist() for batch in range(len(shares))] for rank in range(world)]
    assert sorted(one for rank in own for batch in rank for one in batch) == list(range(samples))
    assert all(len(batch) <= size for rank in own for batch in rank)
    assert all(batch for rank in own for batch in rank[:-1])
    for taken in range(len(shares) + 1):
        first = sorted(one for rank in own for batch in rank[:taken] for one in batch)
        assert first == list(range(shares.taken(taken)))
    if (shares.sizes > 1).any():
        assert all(batch for rank in own for batch in rank)
    assert max(map(len, own)) == min(map(len, own)) == len(shares)


def test_turns_of_workers() -> None:
    assert turns(1) == [0]
    assert turns(4) == [0, 2, 1, 3]
    assert sorted(turns(6)) == list(range(6))


def test_saved_and_restored_on_other_ranks(tmp_path: Path) -> None:
    path = write(tmp_path, 29)
    ranks = [validation(path, rank=rank, world=2, batch_size=4) for rank in range(2)]
    seen = list[str]()
    for loader in ranks:
        batches = iter(loader)
        seen += [key for _ in range(2) for key in next(batches).__key__]
    states = [json.loads(json.dumps(loader.save_state_rank())) for loader in ranks]
    assert states[0] == states[1]
    for rank in range(3):
        loader = validation(path, rank=rank, world=3, batch_size=5)
        loader.restore_state_rank(states[0])
        seen += [key for batch in loader for key in batch.__key__]
        assert sizes(loader) == sizes(validation(path, rank=rank, world=3, batch_size=5))
    assert sorted(seen, key=int) == [str(number) for number in range(29)]


class Skips(Texts):
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 3 == 0:
            raise en.SkipSample
        return sample


def test_skipped_samples_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path, 12)
    loader = validation(path, batch_size=3, encoder=Skips())
    assert [batch.__key__ for batch in loader] == [[str(n), str(n + 1)] for n in (1, 4, 7, 10)]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_without_a_sample_are_left_out_where_there_is_one_rank(tmp_path: Path, workers: int) -> None:
    path = write(tmp_path, 12)
    loader = validation(path, batch_size=None, encoder=Skips(), workers=workers)
    wanted = [str(number) for number in range(12) if number % 3]
    assert [sample.__key__ for sample in loader] == [sample.__key__ for sample in loader] == wanted
    limited = validation(path, batch_size=None, encoder=Skips(), workers=workers, limit=3)
    assert [sample.__key__ for sample in limited] == wanted[:3]

    batches = iter(loader)
    before = [next(batches).__key__ for _ in range(3)]
    again = validation(path, batch_size=None, encoder=Skips(), workers=workers)
    again.restore_state_rank(json.loads(json.dumps(loader.save_state_rank())))
    assert before + [sample.__key__ for sample in again] == wanted


class SkipsAll(Texts):
    def encode_sample(self, sample: Any) -> Any:
        raise en.SkipSample


def test_a_pass_in_which_every_sample_fails(tmp_path: Path) -> None:
    path = write(tmp_path, 12)
    assert list(validation(path, batch_size=3, encoder=SkipsAll())) == []
    with pytest.raises(ConfigError, match="no sample is left as a substitute"):  # ranks would fall out of step
        next(iter(validation(path, batch_size=3, world=2, encoder=SkipsAll())))


def test_a_rank_without_a_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, counted = write(tmp_path, 3), 0
    for rank in range(2):
        loader = validation(path, rank=rank, world=2, batch_size=1)
        with caplog.at_level(logging.WARNING):
            batches = list(loader)
        assert len(batches) == 2
        assert bool(loader.valid.all()) == (rank == 0)
        counted += sum("loader.valid" in line for line in caplog.messages)
        caplog.clear()
    assert counted == 1


def test_one_pass_of_training_data(tmp_path: Path) -> None:
    path, keys = write(tmp_path, 10), list[str]()
    for rank in range(2):
        config = en.WorkerConfig(rank=rank, world_size=2, num_workers=2)
        options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
        dataset = en.get_train_dataset(path, worker_config=config, batch_size=2, task_encoder=Texts(), **options)
        loader = en.get_savable_loader(dataset)
        assert sizes(loader) == [2, 2, 1]
        keys += [key for batch in loader for key in batch.__key__]
    assert sorted(keys, key=int) == [str(number) for number in range(10)]


class Numbers(Texts):
    def encode_sample(self, sample: Any) -> Any:
        sample.text = (self.current_batch_index, self.current_sample_index)
        return sample


@pytest.mark.parametrize("workers", [0, 2])
def test_index_of_the_batch_in_encode_sample(tmp_path: Path, workers: int) -> None:
    path = write(tmp_path, 20)
    config = en.WorkerConfig(rank=0, world_size=2, num_workers=workers)
    options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}

    def loader() -> Any:
        return en.get_savable_loader(
            en.get_train_dataset(path, worker_config=config, batch_size=2, task_encoder=Numbers(), **options)
        )

    running = loader()
    batches = [batch for _, batch in zip(range(30), running, strict=False)]
    assert [one for batch in batches for one, _ in batch.text] == [number for number in range(30) for _ in range(2)]
    resumed = loader()
    resumed.restore_state_rank(running.save_state_rank())
    assert next(iter(resumed)).text[0][0] == 30
    assert running.restore_sample(batches[7].__restore_key__).text == batches[7].text
    checked = validation(path, batch_size=8, workers=2, encoder=Numbers())
    assert [{one for one, _ in batch.text} for batch in checked] == [{0}, {1}, {2}, {3}]

"""`WorkerConfig`'s methods, inside the functions of a task encoder and outside: the original's numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import penstock.compat.energon as en
from penstock.errors import ConfigError

pytest.importorskip("torch")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(24)))
    return path


@en.stateless
def cook(sample: Any) -> dict[str, Any]:
    config = en.WorkerConfig.active_worker_config
    assert config is not None
    worker = config.rank_worker_id(), config.global_worker_id(), config.worker_seed()
    return {**en.basic_sample_keys(sample), "text": sample["json"]["text"], "worker": worker}


class Workers(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Keeps of each batch what its samples' functions saw of their worker."""

    cookers = [en.Cooker(cook)]  # noqa: RUF012

    def batch(self, samples: list[Any]) -> Any:
        return samples

    def encode_batch(self, batch: Any) -> Any:
        config = en.WorkerConfig.active_worker_config
        assert config is not None
        number = config.active_worker_batch_index
        assert number == self.current_batch_index
        return number, config.rank_worker_id(), [one["worker"] for one in batch]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_are_of_workers_in_turn(rows: Path, workers: int) -> None:
    config = en.WorkerConfig(rank=1, world_size=2, num_workers=workers)
    how: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    data = en.get_train_dataset(rows, worker_config=config, task_encoder=Workers(), **how)
    loader = en.get_loader(data)
    seen = [next(loader_batches) for loader_batches in [iter(loader)] for _ in range(6)]
    for place, (number, worker, samples) in enumerate(seen):
        assert (number, worker) == (place, place % max(workers, 1))
        assert samples == [(worker, workers + worker, config.worker_seed(worker))] * 2
    assert en.WorkerConfig.active_worker_config is None
    assert config.rank_worker_id() == 0


def test_seeds_are_the_originals() -> None:
    """Recorded of megatron-energon 7.4.1."""
    config = en.WorkerConfig(rank=1, world_size=2, num_workers=3, seed_offset=7)
    assert [config.worker_seed(one) for one in range(3)] == [1092027588, 2336997276, 2998845336]
    assert en.WorkerConfig(rank=1, world_size=2, num_workers=0, seed_offset=7).worker_seed() == 3126671482
    assert [config.global_worker_id(one) for one in range(3)] == [3, 4, 5]


def test_samples_by_hand() -> None:
    config = en.WorkerConfig(rank=0, world_size=1, num_workers=2)
    config.worker_activate(5)
    try:
        assert en.WorkerConfig.active_worker_config is config
        assert (config.active_worker_sample_index, config.rank_worker_id()) == (5, 1)
        with pytest.raises(ConfigError, match="worker_deactivate"):
            config.worker_activate(6)
    finally:
        config.worker_deactivate()
    assert config.active_worker_config is None
    with pytest.raises(ConfigError, match="active_worker_sample_index"):
        _ = config.active_worker_sample_index
    with pytest.raises(ConfigError, match="only the index of the sample"):
        config.worker_activate(0, override_global_rank=1)


def test_a_log_of_a_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = en.WorkerConfig(rank=1, world_size=2, num_workers=2, worker_log_level=1)
    assert [config.should_log(level) for level in (0, 1, 2)] == [True, True, False]
    config.worker_log({"a": 1})
    assert capsys.readouterr().out == '{"a": 1}\n'
    config.worker_debug_path = str(tmp_path / "logs" / "{worker_id}.jsonl")
    for number in range(2):
        config.worker_log({"a": number})
    assert (tmp_path / "logs" / "2.jsonl").read_text() == '{"a": 0}\n{"a": 1}\n'
    config.worker_debug_path = "s3://bucket/{worker_id}.jsonl"
    with pytest.raises(ConfigError, match="must be on this machine"):
        config.worker_log({})

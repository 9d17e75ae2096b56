"""Modalities' sampler: the same indices on every rank, from a file that is made once a host."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.internals import replace

from penstock.compat.modalities import ResumableDistributedSampler

CASES = json.loads((Path(__file__).parents[2] / "golden" / "modalities" / "orders.json").read_text())["sampler"]


def make(case: dict[str, Any], rank: int) -> ResumableDistributedSampler:
    return ResumableDistributedSampler(
        dataset=range(case["n"]),
        rank=rank,
        num_replicas=case["num_replicas"],
        epoch=case["epoch"],
        shuffle=case["shuffle"],
        seed=case["seed"],
        drop_last=case["drop_last"],
        skip_num_global_samples=case["skip"],
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, list(case.values())[:-1])))
def test_golden(case: dict[str, Any]) -> None:
    for rank, expected in enumerate(case["per_rank"]):
        if isinstance(expected, dict):
            with pytest.raises(ValueError, match="skip"):
                make(case, rank)
            continue
        sampler = make(case, rank)
        assert list(sampler) == expected
        assert len(sampler) == sampler.local_num_samples == len(expected)
        assert sampler.global_num_samples_effective == len(expected) * case["num_replicas"]
        assert sampler.global_num_samples == case["n"] - case["skip"]


def test_a_torch_sampler_under_a_batch_sampler() -> None:
    sampler = ResumableDistributedSampler(range(100), rank=1, num_replicas=3, shuffle=True, seed=5, drop_last=True)
    assert isinstance(sampler, torch.utils.data.Sampler)
    batches = list(torch.utils.data.BatchSampler(sampler, batch_size=4, drop_last=True))
    assert [index for batch in batches for index in batch] == list(sampler)[:32]
    assert all(type(index) is int for index in sampler)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


def test_the_epoch_may_be_set_later() -> None:
    sampler = ResumableDistributedSampler(range(50), 0, 1, shuffle=True, seed=3)
    first = list(sampler)
    sampler.epoch = 1
    assert list(sampler) != first
    # As in the original, seed and epoch are added.
    assert list(sampler) == list(ResumableDistributedSampler(range(50), 0, 1, shuffle=True, seed=4))


def test_the_world_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    sampler = ResumableDistributedSampler(range(10), rank=3)
    assert sampler.num_replicas == 4
    assert list(sampler) == [3, 7, 1]


def test_a_process_does_not_hold_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 2_000_000
    sampler = ResumableDistributedSampler(range(n), 0, 8, shuffle=True, seed=1)
    next(iter(sampler))
    replace(monkeypatch, "sampler_at_once", 1 << 10)
    tracemalloc.start()
    try:
        count = sum(1 for _ in sampler)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == n // 8
    assert peak < 1_000_000

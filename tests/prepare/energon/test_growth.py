"""What a preparation costs is a number of calls of the system a shard, counted at n and 10 n."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.prepare.energon import index
from penstock.prepare.energon.run import prepare_webdataset

from .test_run import write_tar

CALLS = ("open", "stat", "lstat", "fstat", "listdir", "fsync", "unlink", "rename", "replace", "link")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of the system by name, and names that were listed."""
    made: Counter[str] = Counter()

    def count(name: str) -> None:
        call = getattr(os, name)

        def counting(*given: Any, **more: Any) -> Any:
            made[name] += 1
            result = call(*given, **more)
            made["names listed"] += len(result) if name == "listdir" else 0
            return result

        monkeypatch.setattr(os, name, counting)

    for name in CALLS:
        count(name)
    return made


def test_cost_of_a_shard_does_not_grow(tmp_path: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_GROUP_SAMPLES", 30)
    costs: list[Counter[str]] = []
    for shards in (12, 120):
        root = tmp_path / f"set-{shards}"
        for shard in range(shards):
            write_tar(root / f"s_{shard:04d}.tar", [(f"k{shard}_{place}.txt", b"text") for place in range(3)])
        counted.clear()
        prepare_webdataset(root, split_ratio=(8, 1, 1), workers=1)
        costs.append(Counter(counted))
    grown = {name: (costs[0][name], count) for name, count in costs[1].items() if count > 12 * max(1, costs[0][name])}
    assert not grown
    assert costs[1]["stat"] > 120  # it counts

"""What a preparation costs is a number of calls of the system a shard, counted at n and 10 n."""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.internals import prepare_webdataset, replace

CALLS = ("open", "stat", "lstat", "fstat", "listdir", "fsync", "unlink", "rename", "replace", "link")


def header(name: str, size_bytes: int) -> bytes:
    """The header of a member of a tar."""
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    return info.tobuf()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of the system by name, and names that were listed."""
    made: Counter[str] = Counter()

    def count(name: str) -> None:
        call = getattr(os, name)

        def counting(*given: Any, **more: Any) -> Any:
            made[name] += 1
            result = None if name == "fsync" else call(*given, **more)
            made["names listed"] += len(result) if name == "listdir" else 0
            return result

        monkeypatch.setattr(os, name, counting)

    for name in CALLS:
        count(name)
    return made


def test_cost_of_a_shard_does_not_grow(tmp_path: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "energon_group_samples", 120)
    costs: list[Counter[str]] = []
    for shards in (100, 1000):
        root = tmp_path / f"set-{shards}"
        root.mkdir()
        for shard in range(shards):
            members = (header(f"k{shard}_{place}.txt", 4) + b"text".ljust(512, b"\0") for place in range(2))
            (root / f"s_{shard:04d}.tar").write_bytes(b"".join(members) + bytes(1024))
        counted.clear()
        prepare_webdataset(root, split_ratio=(8, 1, 1), workers=1)
        costs.append(Counter(counted))
    grown = {name: (costs[0][name], count) for name, count in costs[1].items() if count > 10.5 * max(1, costs[0][name])}
    assert not grown
    # What a shard costs: a part and an index are made durable, each with its folder; folders are listed for many.
    at_most = {"open": 11, "fsync": 5, "listdir": 0.5, "names listed": 2, "unlink": 3, "link": 2, "rename": 2}
    assert {name: costs[1][name] for name, each in at_most.items() if costs[1][name] > 1000 * each} == {}
    assert costs[1]["stat"] > 1000  # it counts

"""Counts of windows without a target, against masks cut by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError
from penstock.pack import labels
from penstock.testing.memory import MemoryTokens

LENGTH = 4
SIZES = (4, 12, 8, 4, 4, 8, 12, 4, 4, 16)
RNG = np.random.default_rng(5)
MASK = RNG.random(sum(SIZES)) < 0.15
BORDERS = list(pairwise(np.cumsum([0, *SIZES]).tolist()))
FIRST = np.isin(np.arange(len(MASK)), [start for start, _ in BORDERS])

# (packing, the first and last + 1 target of each window). Every document fills whole windows.
CASES: list[tuple[Any, list[tuple[int, int]]]] = [
    (ps.Whole(LENGTH), [(start + 1, min(start + 5, stop)) for start, stop in BORDERS]),
    (ps.Whole(LENGTH, labels="start-zero"), [(start, start + 4) for start, _ in BORDERS]),
    (ps.BestFit(LENGTH, long="truncate"), [(start + 1, min(start + 5, stop)) for start, stop in BORDERS]),
    (ps.BestFit(LENGTH, long="drop"), [(start + 1, stop) for start, stop in BORDERS if stop - start == 4]),
    (ps.BestFit(LENGTH), [(k + 1, min(k + 5, stop)) for start, stop in BORDERS for k in range(start, stop, 4)]),
    (ps.Chunk(LENGTH, labels="shift"), [(k + 1, k + 5) for k in range(0, sum(SIZES) - 4, 4)]),
    (ps.Chunk(LENGTH, labels="start-zero"), [(k, k + 4) for k in range(0, sum(SIZES), 4)]),
    (ps.Chunk(LENGTH, labels="shift", fields=("tokens",)), [(k + 1, k + 5) for k in range(0, sum(SIZES) - 4, 4)]),
    (ps.MegatronBlocks(LENGTH, labels="shift"), [(start + 1, start + 5) for start, _ in BORDERS]),
]


@pytest.mark.parametrize("with_mask", [True, False])
@pytest.mark.parametrize(("packing", "targets"), CASES, ids=lambda one: repr(one)[:50])
def test_windows_without_a_target_are_counted(
    packing: Any, targets: Any, with_mask: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes = {"planes": {"loss_mask": "bool"}} if with_mask else {}
    mask = MASK if with_mask else np.ones_like(MASK)
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0, **planes) as writer:
        for start, stop in BORDERS:
            values = {"loss_mask": MASK[start:stop].tolist()} if with_mask else {}
            writer.write({"tokens": [*range(1, stop - start), 0], **values})
    is_target = mask if getattr(packing, "labels", None) == "start-zero" else mask & ~FIRST
    expected = sum(not is_target[start:stop].any() for start, stop in targets)
    assert bool(expected) == with_mask
    windows = packing(ps.open(tmp_path / "a.pbin"))
    assert len(windows) == len(targets)
    for read_tokens in (LENGTH * 3, 1 << 20):
        monkeypatch.setattr(labels, "_READ_TOKENS", read_tokens)
        assert windows.count_without_targets() == expected


def test_documents_of_one_token_have_no_target() -> None:
    source = MemoryTokens([[1], [2, 3], [4], [], [5]])
    assert ps.Whole(4)(source).count_without_targets() == 4
    assert ps.BestFit(2)(source).count_without_targets() == 2  # [2, 3], and three documents of one token in two
    assert ps.BestFit(1)(source).count_without_targets() == 4


@pytest.mark.parametrize("packing", [ps.Chunk(2), ps.MegatronBlocks(2)])
def test_windows_without_labels_have_no_targets_to_count(packing: Any) -> None:
    with pytest.raises(ConfigError, match="without labels"):
        packing(MemoryTokens([[1, 2, 3, 4, 5]])).count_without_targets()

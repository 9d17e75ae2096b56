"""Sample orders of the real mosaicml-streaming, beside ours, for arguments drawn by chance."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest

from penstock.errors import ConfigError
from penstock.mix import StreamingOrder
from penstock.testing import MemorySource

SCRIPT = peers.SCRIPTS / "streaming_orders.py"
CASES = 400


class Shards(MemorySource):
    """Samples in shards of these sizes."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__([{"id": number} for number in range(sum(sizes))])
        self.block_starts = np.cumsum([0, *sizes])


def a_case(rng: random.Random) -> dict[str, Any]:
    weighting = rng.choice(["none", "none", "proportion", "absolute"])
    streams = [a_stream(rng, weighting) for _ in range(rng.choice([1, 1, 2, 3, 5]))]
    nodes = rng.choice([1, 1, 2, 3, 4])
    canonical = rng.choice([None, nodes, nodes * rng.choice([1, 2, 3]), max(1, nodes // 2), rng.randint(1, 8)])
    epoch_size = rng.choice([None, None, rng.randint(20, 2000)]) if weighting != "absolute" else None
    case: dict[str, Any] = {
        "streams": streams,
        "world": (nodes, rng.choice([1, 1, 2, 4, 5]), rng.choice([1, 1, 2, 3])),
        "replication": None,
        "epoch": rng.choice([0, 0, 1, 7]),
        "drop": rng.choice([0, 0, rng.randint(0, 300)]),
        "state": None,
        "options": {
            "shuffle": rng.random() < 0.8,
            "shuffle_algo": rng.choice(["naive", "py1s", "py2s", "py1br", "py1e"]),
            "shuffle_seed": rng.choice([0, 9176, rng.randrange(2**40)]),
            "shuffle_block_size": rng.choice([None, rng.randint(2, 400)]),
            "batch_size": rng.randint(1, 16),
            "batching_method": rng.choice(["random", "random", "stratified", "per_stream", "device_per_stream"]),
            "partition_algo": rng.choice(["relaxed", "relaxed", "orig"]),
            "sampling_method": rng.choice(["balanced", "balanced", "fixed"]),
            "sampling_granularity": rng.choice([1, 1, rng.randint(2, 20)]),
            "num_canonical_nodes": canonical,
            "epoch_size": epoch_size,
        },
    }
    if rng.random() < 0.2:
        ranks = case["world"][0] * case["world"][1]
        case["replication"] = rng.choice([number for number in range(1, ranks + 1) if ranks % number == 0])
    if rng.random() < 0.3:
        case["state"] = a_state(rng, case)
    return case


def a_stream(rng: random.Random, weighting: str) -> dict[str, Any]:
    shards = [rng.choice([rng.randint(1, 60), rng.randint(1, 60), 0]) for _ in range(rng.randint(1, 12))]
    if not sum(shards):
        shards = [5]
    weight: dict[str, float] = {}
    if weighting == "proportion":
        weight = {"proportion": rng.choice([1, 2, rng.random() * 3])}
    elif weighting == "absolute":
        weight = rng.choice([{}, {"repeat": rng.random() * 3}, {"choose": rng.randint(0, 600)}])
    return {"shards": shards, "weight": weight}


def a_state(rng: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    """A state of a run that began with as many nodes, or with others and the same global batch."""
    nodes, ranks, _ = case["world"]
    first = rng.choice([nodes, 1, 2, 3, 4, 6])
    case["options"]["batch_size"] = max(1, case["options"]["batch_size"] // first) * first
    state = {
        "epoch": rng.choice([0, 2]),
        "sample_in_epoch": rng.randint(0, 20) * nodes * ranks * case["options"]["batch_size"],
        "num_canonical_nodes": rng.choice([first, first * 2, nodes]),
        "shuffle_seed": rng.randrange(1000),
    }
    case["options"]["num_canonical_nodes"] = state["num_canonical_nodes"]
    return {**state, "initial_physical_nodes": first} if rng.random() < 0.9 else state


def ours(case: dict[str, Any]) -> np.ndarray[Any, Any]:
    sources = [(Shards(stream["shards"]), stream["weight"]) for stream in case["streams"]]
    made = StreamingOrder(sources, world=case["world"], replication=case["replication"], **case["options"])
    state = case["state"]
    if state:
        made.load_state_dict(state)
        ids = made.epoch_ids(epoch=state["epoch"])
    else:
        ids = made.epoch_ids(epoch=case["epoch"], drop_first=case["drop"])
    if case["replication"]:
        # The original's functions see only the ranks that read apart.
        ids = ids.reshape(ids.shape[0] * ids.shape[1], *ids.shape[2:])[:: case["replication"]]
    return ids


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    rng = random.Random(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    return [a_case(rng) for _ in range(CASES)]


def test_epochs(cases: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    found = peers.run_script("streaming", SCRIPT, {"cases": str(tmp_path / "cases.json")})
    equal = 0
    for case, theirs in zip(cases, found, strict=True):
        # An epoch without a whole batch is refused here, and read as nothing there.
        empty = "ids" in theirs and max(theirs["ids"], default=-1) < 0
        try:
            ids, refused = ours(case), None
        except ConfigError as error:
            ids, refused = None, error.what
        if ids is None or "error" in theirs:
            assert refused is not None, case
            assert "error" in theirs or (empty and refused == "an epoch is smaller than one batch"), (case, refused)
            continue
        shape = theirs["shape"]
        if case["replication"]:
            shape = [shape[0] * shape[1], *shape[2:]]
        assert list(ids.shape) == shape, case
        assert ids.reshape(-1).tolist() == theirs["ids"], case
        equal += 1
    assert equal > CASES // 3

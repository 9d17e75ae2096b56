"""JaxLoader with the real jax: in one process over several devices, and in several processes."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest

import penstock as ps

SCRIPT = peers.SCRIPTS / "jax_loader.py"
SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    path = tmp_path_factory.mktemp("jax") / "a.pbin"
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0) as writer:
        for _ in range(300):
            writer.write({"tokens": [*(rng.randrange(1, 60_000) for _ in range(rng.randrange(30))), 0]})
    return path


def arguments(path: Path, **more: Any) -> dict[str, Any]:
    usual = {"src": str(SRC), "path": str(path), "devices": 4, "global_batch": 8, "step": 3, "steps": 4}
    return usual | {"packing": "chunk", "sharded": True, "rank": 0, "world": 1} | more


def expected(path: Path, packing: str = "chunk", rank: int = 0, world: int = 1) -> list[Any]:
    made = ps.BestFit(16) if packing == "best-fit" else ps.Chunk(16, labels="shift")
    loader = ps.Loader(ps.Shuffle(made(ps.open(path)), seed=7), 8, rank=rank, world=world)
    loader.seek(3)
    return list(islice(loader, 4))


@pytest.mark.parametrize("packing", ["chunk", "best-fit"])
@pytest.mark.parametrize("sharded", [False, True])
def test_one_process(packed: Path, packing: str, sharded: bool) -> None:
    found = peers.run_script("jax", SCRIPT, arguments(packed, packing=packing, sharded=sharded))
    plain = expected(packed, packing)
    for batch, own in zip(found["batches"], plain, strict=True):
        assert (batch["shape"], batch["dtype"]) == ([8, 16], "int32")
        assert batch["shards"] == (4 if sharded else 1)
        assert batch["local"] == own["tokens"].tolist()
        assert batch["sum"] == int(own["tokens"].astype(np.int64).sum())
        assert batch["cu_seqlens"] == own["cu_seqlens"].tolist()
    assert found["state"]["consumed"] == 8 * 7


def test_several_processes(packed: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    command = [str(peers.python_of("jax")), str(SCRIPT)]
    running = [
        subprocess.Popen(
            [*command, json.dumps(arguments(packed, devices=2, rank=rank, world=2, coordinator=coordinator))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    states = []
    for rank, (output, _) in enumerate(said):
        found = json.loads(output.splitlines()[-1])
        for batch, own in zip(found["batches"], expected(packed, rank=rank, world=2), strict=True):
            assert batch["shape"] == [8, 16]  # of all processes together
            assert batch["shards"] == 2
            assert batch["local"] == own["tokens"].tolist()
        states.append(found["state"])
    assert states[0] == states[1]

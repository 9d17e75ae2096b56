"""Runs with jax's interpreter: our JaxLoader over a packed file, in one process or as one of several."""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from typing import Any

given: dict[str, Any] = json.loads(sys.argv[1])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={given['devices']}"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, given["src"])

import jax  # noqa: E402

if given["world"] > 1:
    jax.distributed.initialize(given["coordinator"], num_processes=given["world"], process_id=given["rank"])

import numpy as np  # noqa: E402

import penstock as ps  # noqa: E402
from penstock.load.jax import JaxLoader  # noqa: E402


def main() -> None:
    packing = ps.BestFit(16) if given["packing"] == "best-fit" else ps.Chunk(16, labels="shift")
    stream = ps.Shuffle(packing(ps.open(given["path"])), seed=7)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", None))
    loader = JaxLoader(stream, given["global_batch"], sharding=sharding if given["sharded"] else None)
    loader.seek(given["step"])
    found: list[dict[str, Any]] = []
    for batch in islice(loader, given["steps"]):
        assert all(isinstance(value, jax.Array | int) for value in batch.values())
        tokens = batch["tokens"]
        local = np.concatenate([np.asarray(shard.data) for shard in tokens.addressable_shards])
        row = {"shape": list(tokens.shape), "dtype": str(tokens.dtype), "local": local.tolist()}
        row |= {"shards": len(tokens.addressable_shards), "cu_seqlens": np.asarray(batch["cu_seqlens"]).tolist()}
        if given["world"] == 1:
            # An array over devices takes part in a computation as one.
            row["sum"] = int(jax.jit(lambda x: x.sum())(tokens))
        found.append(row)
    print(json.dumps({"batches": found, "state": loader.state_dict()}))


main()

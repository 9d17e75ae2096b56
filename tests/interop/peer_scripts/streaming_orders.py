"""Runs inside mosaicml-streaming's environment: whole epochs by its own functions, for shards that are sizes alone.

Gets a list of cases; the last line it prints is a list of {"shape", "ids"}, or {"error"}.
"""

import json
import sys
import warnings
from typing import Any

import numpy as np
from streaming import Stream, StreamingDataset
from streaming.base.batching import generate_work
from streaming.base.world import World


class Bare(StreamingDataset):
    """A dataset without files, processes and shared memory."""

    def __init__(self) -> None:
        pass

    def __del__(self) -> None:
        pass


def stream_of(weight: dict[str, float]) -> Stream:
    stream = object.__new__(Stream)
    for name, value in weight.items():
        setattr(stream, name, value)
    return stream


def dataset_of(case: dict[str, Any], world: World) -> Bare:
    made = Bare()
    streams, options, state = case["streams"], case["options"], case["state"]
    sizes = [np.array(stream["shards"], np.int64) for stream in streams]
    made.streams = [stream_of(stream["weight"]) for stream in streams]
    made.num_streams = len(streams)
    made.shards_per_stream = np.array([len(one) for one in sizes])
    made.shard_offset_per_stream = np.cumsum(made.shards_per_stream) - made.shards_per_stream
    made.samples_per_shard = np.concatenate(sizes)
    made.sample_offset_per_shard = made.samples_per_shard.cumsum() - made.samples_per_shard
    for name in ("shuffle", "shuffle_algo", "shuffle_seed", "batch_size", "batching_method", "partition_algo"):
        setattr(made, name, options[name])
    made.sampling_method = options["sampling_method"]
    made.sampling_granularity = options["sampling_granularity"]
    made.epoch_seed_change = made.shuffle and made.sampling_method == "balanced"
    Stream.validate_weights(made.streams)
    totals = np.array([one.sum() for one in sizes])
    made.epoch_size = Stream.apply_weights(made.streams, totals, options["epoch_size"], made.shuffle_seed)
    made.initial_physical_nodes = None
    made.num_canonical_nodes = options["num_canonical_nodes"]
    if state is not None:
        made.num_canonical_nodes = state["num_canonical_nodes"]
        made.shuffle_seed = state["shuffle_seed"]
        made.initial_physical_nodes = state.get("initial_physical_nodes")
    elif made.num_canonical_nodes is None:
        made.num_canonical_nodes = world.num_nodes * (64 if made.shuffle_algo in ("py1s", "py2s") else 1)
    made.shuffle_block_size = options["shuffle_block_size"]
    made._set_shuffle_block_size(world)
    return made


def run(case: dict[str, Any]) -> dict[str, Any]:
    nodes, ranks, workers = case["world"]
    world = World(num_nodes=nodes, ranks_per_node=ranks, workers_per_rank=workers, worker=0)
    if case["replication"]:
        world = world.replicate(case["replication"])
    state = case["state"]
    epoch, drop = (state["epoch"], state["sample_in_epoch"]) if state else (case["epoch"], case["drop"])
    try:
        made = dataset_of(case, world)
        ids = generate_work(made.batching_method, made, world, epoch, drop)
    except (ValueError, ZeroDivisionError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"shape": ids.shape, "ids": ids.reshape(-1).tolist()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with open(json.loads(sys.argv[1])["cases"]) as file:
        cases = json.load(file)
    with np.errstate(all="ignore"):
        print(json.dumps([run(case) for case in cases]))

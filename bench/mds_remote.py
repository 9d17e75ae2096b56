"""How fast does a remote MDS dataset come that nothing is here of yet, and what is asked of the server for it?"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

import shards
from harness import DATA, PYTHON, Options, Result, Row, alternate, answer, child, columns, row
from peers import streaming
from s3_server import BUCKET, S3Server, serving

BATCH = 64
SHARD_BYTES = 1 << 24
SEED = 9
RANDOM = 100
TARGET = 1
MODES = {
    "random": f"{RANDOM} random samples, one at a time",
    "sequential": "an epoch in stored order",
    "shuffled": "a shuffled epoch",
}


def run(options: Options) -> Result:
    """Each mode with an empty cache, beside the other, against one server."""
    with serving({"tokens": shards.samples(shards.TOKEN_BYTES, SHARD_BYTES)}) as server:
        os.environ.update(server.environment)
        rows = [one for mode in MODES for one in _rows(server, mode, options)]
    return Result(
        "200 MB of remote MDS samples of 4 KB in shards of 16 MB, nothing cached",
        rows,
        [
            "One S3 server (moto) on this machine for both; it counts requests and the bytes that it sends. It takes "
            "each request in Python and reads the whole object for a range, so it is what limits both.",
            "Start of the dataset included. A shuffled epoch: ours in mode blocks, the other's default.",
        ],
    )


def _rows(server: S3Server, mode: str, options: Options) -> list[Row]:
    cache = DATA / "remote-cache"
    server.counts()

    def counted(read: Any) -> dict[str, float]:
        shutil.rmtree(cache, ignore_errors=True)
        found = read()
        counts = server.counts()
        shutil.rmtree(cache, ignore_errors=True)
        return {**found, "requests": counts["requests"], "mb": counts["sent_bytes"] / 1e6}

    url = f"s3://{BUCKET}/tokens"
    pairs = alternate(
        lambda: counted(lambda: child(PYTHON, __file__, "remote", url=url, cache=cache, mode=mode)),
        lambda: counted(lambda: streaming.inside("remote", url=url, local=cache, mode=mode, count=RANDOM, batch=BATCH)),
        options.pairs(3),
    )
    what = MODES[mode]
    return [
        row(what, "samples/s", columns(pairs, "samples", "samples"), streaming.NAME, TARGET),
        row(f"{what}: requests", "requests", columns(pairs, "requests", "requests"), streaming.NAME),
        row(f"{what}: fetched", "MB", columns(pairs, "mb", "mb"), streaming.NAME),
    ]


def remote(url: str, cache: str, mode: str) -> dict[str, float]:
    """In a child: samples a second with an empty cache."""
    os.environ["PENSTOCK_CACHE"] = cache
    import numpy as np

    import penstock as ps

    began = time.perf_counter()
    source = ps.open(url)
    seen = 0
    if mode == "random":
        for place in np.random.default_rng(SEED).integers(0, len(source), RANDOM).tolist():
            source[place]
            seen += 1
    else:
        data: Any = ps.Sequential(source) if mode == "sequential" else ps.Shuffle(source, seed=7, mode="blocks")
        loader = ps.Loader(data, BATCH, rank=0, world=1)
        for batch in loader:
            seen += len(batch["tokens"])
            if seen >= len(source):
                break
    return {"samples": seen / (time.perf_counter() - began), "seen": seen}


if __name__ == "__main__":
    answer(globals())

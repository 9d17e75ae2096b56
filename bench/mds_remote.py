"""How fast is a remote MDS dataset read with an empty cache, and with how many requests?"""

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
    """Run each mode with an empty cache on both sides, with the same server."""
    with serving({"tokens": shards.samples(shards.TOKEN_BYTES, SHARD_BYTES)}) as server:
        os.environ.update(server.environment)
        rows = [one for mode in MODES for one in _rows(server, mode, options)]
    return Result(
        "Read 200 MB of remote MDS samples, empty cache",
        rows,
        [
            "Samples of 4 KB in shards of 16 MB. Both sides read from the same local S3 server (moto), which counts "
            "requests and the bytes it sends. The server handles requests in Python and reads the whole object for "
            "each range, so it limits both sides.",
            "Opening the dataset is included. For the shuffled epoch, Penstock uses the mode `blocks`, and "
            "mosaicml-streaming its default.",
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
        row(f"{what}: data fetched", "MB", columns(pairs, "mb", "mb"), streaming.NAME),
    ]


def remote(url: str, cache: str, mode: str) -> dict[str, float]:
    """Return samples per second with an empty cache; runs in a child process."""
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

"""Time tensorstore. Runs in its environment, without Penstock."""

import json
import sys
import time

import numpy as np
import tensorstore


def windows(path: str, length: int, n_tokens: int, cache_bytes: int, driver: str) -> dict:
    """Return windows per second, one at a time and in batches of 32 concurrent reads, shifted to ids."""
    spec = {
        "driver": driver,
        "kvstore": {"driver": "file", "path": f"{path}/encoded_tokens"},
        "context": {"cache_pool": {"total_bytes_limit": cache_bytes}},
    }
    array = tensorstore.open(spec, read=True).result()
    count = 512
    starts = np.random.default_rng(5).integers(0, n_tokens - length, count)

    def one() -> None:
        for start in starts.tolist():
            array[start : start + length].read().result() >> 1

    def batch() -> None:
        for chosen in starts.reshape(-1, 32).tolist():
            reads = [array[start : start + length].read() for start in chosen]
            for read in reads:
                read.result() >> 1

    return {"one": count / _seconds(one), "batch": count / _seconds(batch)}


def _seconds(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))

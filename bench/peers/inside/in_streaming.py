"""Time classes of mosaicml-streaming, without imports. Runs in its environment, without Penstock."""

import itertools
import json
import os
import resource
import shutil
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import streaming
from streaming.base.util import clean_stale_shared_memory

WRITERS = {"mds": streaming.MDSWriter, "csv": streaming.CSVWriter, "json-shards": streaming.JSONWriter}


def write(out: str, payloads: str, size_bytes: int, hashes: list, size_limit: int = 1 << 26) -> dict:
    """Write samples of one column `tokens`, cut from a file."""
    data = Path(payloads).read_bytes()
    samples = [{"tokens": data[at : at + size_bytes]} for at in range(0, len(data), size_bytes)]
    shutil.rmtree(out, ignore_errors=True)
    started, cpu_started = time.perf_counter(), time.process_time()
    columns = {"tokens": "bytes"}
    with streaming.MDSWriter(out=out, columns=columns, hashes=hashes, size_limit=size_limit) as writer:
        for sample in samples:
            writer.write(sample)
    taken, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return {"samples": len(samples) / taken, "per_cpu_s": len(samples) / cpu_s}


def write_rows(out: str, format: str, rows: str) -> dict:
    """Rows `[id, text, score]` of a JSON file."""
    with WRITERS[format](out=out, columns={"id": "int", "text": "str", "score": "float"}) as writer:
        for number, text, score in json.loads(Path(rows).read_text()):
            writer.write({"id": number, "text": text, "score": score})
    return {}


def read(path: str, seed: int, count: int) -> dict:
    """Return samples per second of a folder: sequential, and random through readers and through LocalDataset."""
    dataset = streaming.LocalDataset(path)
    places = np.random.default_rng(seed).integers(0, len(dataset), count).tolist()
    starts = np.cumsum([0] + [shard.samples for shard in dataset.shards])
    shards = (np.searchsorted(starts, places, side="right") - 1).tolist()
    pairs = [(dataset.shards[shard], place - int(starts[shard])) for shard, place in zip(shards, places, strict=True)]

    def reader() -> None:
        for shard, place in pairs:
            shard[place]

    def local() -> None:
        for place in places:
            dataset[place]

    def sequential() -> None:
        for shard in dataset.shards:
            for place in range(shard.samples):
                shard[place]

    sequential()
    return {
        "reader": count / seconds(reader),
        "local": count / seconds(local),
        "sequential": len(dataset) / seconds(sequential),
    }


def epoch(path: str, batch: int, workers: int) -> dict:
    """Return samples per second of a shuffled epoch: only the dataset, and through its loader."""

    def dataset() -> streaming.StreamingDataset:
        return streaming.StreamingDataset(local=path, shuffle=True, shuffle_seed=7, batch_size=batch)

    alone = loader = streaming.StreamingDataLoader(dataset(), batch_size=batch, num_workers=workers)
    for _ in loader:
        pass
    taken = seconds(lambda: [None for _ in loader])
    found = {"loader": len(loader.dataset) / taken}
    if workers == 0:
        alone = dataset()
        for _ in alone:
            pass
        found["alone"] = len(alone) / seconds(lambda: [None for _ in alone])
    return found


def first_batch(path: str, small: str, batch: int, resume_at: int) -> dict:
    """Return seconds to the first batch of a shuffled epoch and growth of memory, optionally from a state."""

    def one(path: str, resume_at: int) -> None:
        dataset = streaming.StreamingDataset(local=path, shuffle=True, shuffle_seed=7, batch_size=batch)
        if resume_at:
            state = dataset.state_dict(0, from_beginning=False)
            dataset.load_state_dict(
                state
                | {
                    "sample_in_epoch": resume_at,
                    "num_canonical_nodes": 1,
                    "initial_physical_nodes": 1,
                    "shuffle_seed": 7,
                }
            )
        for _ in itertools.islice(dataset, batch):
            pass

    one(small, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = seconds(lambda: one(path, resume_at))
    # The order of the epoch is in shared memory, which is part of the resident size.
    return {"seconds": taken, "grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000}


def cold(path: str, seed: int, count: int) -> dict:
    """Return seconds to open and read the first sample, and per further random sample, from an empty page cache."""
    for file in Path(path).iterdir():
        drop(file)
    started = time.perf_counter()
    dataset = streaming.LocalDataset(path)
    len(dataset[len(dataset) // 3]["tokens"])
    first = time.perf_counter() - started
    places = np.random.default_rng(seed).integers(0, len(dataset), count).tolist()
    taken = [seconds(lambda place=place: sum(dataset[place]["tokens"][::512])) for place in places]
    return {"first": first, "p50": float(np.percentile(taken, 50)), "p99": float(np.percentile(taken, 99))}


def remote(url: str, local: str, mode: str, count: int, batch: int) -> dict:
    """Return samples per second of a remote dataset with an empty cache."""
    shutil.rmtree(local, ignore_errors=True)
    started = time.perf_counter()
    shuffle = mode == "shuffled"
    dataset = streaming.StreamingDataset(remote=url, local=local, shuffle=shuffle, shuffle_seed=7, batch_size=batch)
    if mode == "random":
        for place in np.random.default_rng(9).integers(0, len(dataset), count).tolist():
            dataset[place]
        seen = count
    else:
        seen = sum(len(one["tokens"]) for one in streaming.StreamingDataLoader(dataset, batch_size=batch))
    return {"samples": seen / (time.perf_counter() - started), "seen": seen}


def drop(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] in ("epoch", "first_batch", "remote"):
        clean_stale_shared_memory()
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
    sys.stdout.flush()
    # Exit without waiting for its threads.
    os._exit(0)

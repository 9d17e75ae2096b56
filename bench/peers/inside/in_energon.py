"""Time classes of Megatron-Energon, without imports. Runs in its environment, without Penstock."""

import io
import itertools
import json
import random
import sys
import time
import warnings
from pathlib import Path

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from megatron.energon.cache.file_store import WebdatasetFileStore
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.itar_reader import ShardInfosITarReader, SqliteITarEntryReader
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator
from megatron.energon.flavors.webdataset.structs import ShardInfo
from PIL import Image

warnings.simplefilter("ignore")


def prepare(path: str, shards: list, workers: int) -> dict:
    """Return the seconds of a preparation, without the startup of the command."""
    started = time.perf_counter()
    ratio = [("train", 1.0), ("val", 0.0), ("test", 0.0)]
    WebdatasetPreparator.prepare_dataset(EPath(path), shards, split_parts_ratio=ratio, workers=workers)
    return {"seconds": time.perf_counter() - started}


def random_access(path: str, seed: int, count: int) -> dict:
    """Return samples per second by file name, key and index."""
    draw = random.Random(seed)
    store, by_key = WebdatasetFileStore(EPath(path)), SqliteITarEntryReader(EPath(path))
    keys = [key for key, *_ in by_key.list_all_samples()]
    chosen = [draw.randrange(len(keys)) for _ in range(count)]
    counts = json.loads(Path(path, ".nv-meta", ".info.json").read_text())["shard_counts"]
    infos = [ShardInfo(name=name, path=EPath(path) / name, count=held) for name, held in counts.items()]
    by_number = ShardInfosITarReader(EPath(path), infos)
    names = [f"{keys[place]}.txt" for place in chosen]
    return {
        "name": _rate(count, lambda: [store[name] for name in names]),
        "key": _rate(count, lambda: [by_key[keys[place]] for place in chosen]),
        "number": _rate(count, lambda: [by_number[place] for place in chosen]),
    }


@stateless
def _as_it_is(sample: dict) -> dict:
    return sample


class _Raw(DefaultTaskEncoder):
    decoder = None
    cookers = (Cooker(_as_it_is),)


def epoch(path: str) -> dict:
    """Return samples per second of one epoch in validation order, in this process, as stored bytes."""
    workers = WorkerConfig(rank=0, world_size=1, num_workers=0)
    loader = get_loader(
        get_val_dataset(path, split_part="train", worker_config=workers, batch_size=None, task_encoder=_Raw())
    )
    count = 0
    started = time.perf_counter()
    for _ in loader:
        count += 1
    return {"samples": count / (time.perf_counter() - started)}


def shuffled(path: str, count: int) -> dict:
    """Return samples per second of the first `count` samples of a shuffled epoch."""
    workers = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100, "batch_size": None}
    loader = get_loader(get_train_dataset(path, worker_config=workers, task_encoder=_Raw(), **options))
    started = time.perf_counter()
    found = sum(1 for _ in itertools.islice(loader, count))
    return {"samples": found / (time.perf_counter() - started)}


def images(folder: str, suffix: str, rounds: int) -> dict:
    """Return images per second that Pillow opens for size and mode, without decoding; best of several rounds."""
    paths = [str(path) for path in sorted(Path(folder).glob(f"*.{suffix}"))]
    stored = [Path(path).read_bytes() for path in paths]

    def opened(file) -> None:
        with Image.open(file) as image:
            _ = (image.width, image.height, image.format, image.mode)

    def best(items: list, work) -> float:
        return max(_rate(len(items), lambda: [work(item) for item in items]) for _ in range(rounds))

    return {"memory": best(stored, lambda data: opened(io.BytesIO(data))), "files": best(paths, opened)}


def _rate(count: int, work) -> float:
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


if __name__ == "__main__":
    print("\n" + json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))

"""Time classes of Modalities, without imports. Runs in its environment, without Penstock."""

import itertools
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
from modalities.dataloader.create_index import IndexGenerator
from modalities.dataloader.dataloader import LLMDataLoader
from modalities.dataloader.dataset import PackedMemMapDatasetContinuous
from modalities.dataloader.filter_packed_data import filter_dataset
from modalities.dataloader.samplers import ResumableDistributedSampler
from modalities.models.gpt2.collator import GPT2LLMCollateFn
from torch.utils.data import BatchSampler

WARM_STEPS = 50


def index(jsonl: str, idx: str) -> dict:
    started = time.perf_counter()
    IndexGenerator(Path(jsonl)).create_index(Path(idx))
    return {"seconds": time.perf_counter() - started}


def keep_long(pbin: str, out: str, min_tokens: int) -> dict:
    filter_dataset(Path(pbin), Path(out), lambda item: len(item[1]["input_ids"]) >= min_tokens)
    return {}


def dataset(pbin: str, length: int) -> PackedMemMapDatasetContinuous:
    return PackedMemMapDatasetContinuous(Path(pbin), sample_key="tokens", block_size=length, reuse_last_target=True)


def loader(source: PackedMemMapDatasetContinuous, batch: int, workers: int) -> LLMDataLoader:
    sampler = ResumableDistributedSampler(source, rank=0, num_replicas=1, shuffle=True, seed=7, drop_last=True)
    return LLMDataLoader(
        dataloader_tag="train",
        batch_sampler=BatchSampler(sampler, batch_size=batch, drop_last=True),
        dataset=source,
        num_workers=workers,
        collate_fn=GPT2LLMCollateFn(sample_key="tokens", target_key="targets"),
    )


def windows(pbin: str, length: int, count: int) -> dict:
    source = dataset(pbin, length)
    for i in range(len(source)):
        source[i]
    indices = np.random.default_rng(5).integers(0, len(source), count).tolist()
    started = time.perf_counter()
    for i in indices:
        source[i]["tokens"]
    return {"one": count / (time.perf_counter() - started)}


def load(pbin: str, length: int, batch: int, steps: int, workers: int) -> dict:
    source = dataset(pbin, length)
    # Touch every page and set everything up before the timing.
    for i in range(len(source)):
        source[i]
    for _ in itertools.islice(loader(source, batch, workers), WARM_STEPS):
        pass
    started = time.perf_counter()
    for step, _ in enumerate(loader(source, batch, workers), start=1):
        if step == steps:
            break
    seconds = time.perf_counter() - started
    return {"windows_per_second": step * batch / seconds, "steps": step}


def first_batch(pbin: str, small: str, length: int, batch: int) -> dict:
    # A small file first, to import and set everything up before the timing.
    next(iter(loader(dataset(small, length), batch, 0)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    next(iter(loader(dataset(pbin, length), batch, 0)))
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))

"""Runs with Megatron-Energon's interpreter: what its loader gives."""

from __future__ import annotations

import json
import sys
from typing import Any

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.decode("latin-1") if isinstance(value, bytes) else value


@stateless
def _parts(sample: dict[str, Any], **stores: Any) -> dict[str, Any]:
    sources = sample["__sources__"]
    return {
        "key": sample["__key__"],
        "subflavors": sample["__subflavors__"],
        "stores": sorted(stores),
        "sources": [[one.index, one.shard_name, list(one.file_names)] for one in sources],
        "parts": {name: _plain(value) for name, value in sample.items() if not name.startswith("__")},
    }


def contents(path: str, split: str, image: str | None, training: bool) -> list[Any]:
    """Every sample of one epoch; in validation in order."""

    class Encoder(DefaultTaskEncoder):
        cookers = (Cooker(_parts),)
        decoder = None if image is None else SampleDecoder(image_decode=image)

    options: dict[str, Any] = {"worker_config": WorkerConfig(rank=0, world_size=1, num_workers=0), "batch_size": None}
    options |= {"task_encoder": Encoder(), "split_part": split}
    if not training:
        return list(get_savable_loader(get_val_dataset(path, **options)))
    options |= {"shuffle_buffer_size": 5, "max_samples_per_sequence": 3, "repeat": False}
    return list(get_savable_loader(get_train_dataset(path, **options)))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print()
    print(json.dumps(globals()[given.pop("call")](**given)))

"""Runs with Megatron-Energon's interpreter: its commands, and what its loader and its file stores give."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless
from megatron.energon.cache.file_store import SystemFileStore, WebdatasetFileStore
from megatron.energon.epathlib import EPath


def command(arguments: list[str], answers: str = "") -> dict[str, Any]:
    """One of its commands: exit status and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "megatron.energon.cli.main", *arguments],
        input=answers,
        capture_output=True,
        text=True,
    )
    return {"status": done.returncode, "said": done.stdout + done.stderr}


@stateless
def _as_it_is(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


class _Raw(DefaultTaskEncoder):
    """Crude samples as stored bytes."""

    decoder = None
    cookers = (Cooker(_as_it_is),)


def samples(path: str, split: str, raw: bool) -> list[dict[str, Any]]:
    """Samples of a split in the order of validation; values by `_plain`."""
    workers = WorkerConfig(rank=0, world_size=1, num_workers=0)
    encoder = {"task_encoder": _Raw()} if raw else {}
    dataset = get_val_dataset(path, split_part=split, worker_config=workers, batch_size=None, **encoder)
    return [_plain_sample(one) for one in get_loader(dataset)]


def files(path: str, names: list[str]) -> dict[str, str]:
    """Digest of each part by its full name."""
    store = WebdatasetFileStore(EPath(path))
    return {name: hashlib.sha256(store[name][0]).hexdigest() for name in names}


def media(path: str, names: list[str], folder: bool) -> dict[str, Any]:
    """Media metadata by name."""
    store = SystemFileStore(EPath(path)) if folder else WebdatasetFileStore(EPath(path))
    return {name: asdict(store.get_media_metadata(name)) for name in names}


def _plain_sample(sample: Any) -> dict[str, Any]:
    typed = is_dataclass(sample)
    found = {one.name: getattr(sample, one.name) for one in fields(sample)} if typed else dict(sample)
    return {name: _plain(value) for name, value in found.items() if name not in ("__sources__", "__shard__")}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if hasattr(value, "numpy"):
        return {"shape": list(value.shape), "sum": round(float(value.double().sum()), 3)}
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return value


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print("\n" + json.dumps(globals()[given.pop("call")](**given), default=str))

"""Streams whose states and recipes were saved by version 0.1, over files that no version of ours wrote.

Run as a script, by the version whose states are to be kept: `python -m tests.acceptance.old_states > FILE`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

import penstock as ps
from penstock.types import Sample

STEPS, BATCH = 7, 6
PBIN, OTHER = "modalities/pbin/docs.bpe2.pbin", "modalities/pbin/docs.small1.pbin"


def _windows(path: str, length: int = 16) -> Any:
    return ps.Chunk(length, labels="shift", eos_id=0)(ps.open(path))


def _mixed() -> Any:
    streams = {"a": ps.Shuffle(_windows(PBIN), seed=1), "b": ps.Shuffle(_windows(OTHER), seed=2)}
    return ps.Blend(streams, weights={"a": 0.3, "b": 0.7}, seed=7)


def _pairs(samples: list[Sample]) -> list[list[Sample]]:
    return [samples[at : at + 2] for at in range(0, len(samples), 2)]


def _joined(samples: list[Sample]) -> Sample:
    return {"keys": " ".join(str(one["id"]) for one in samples)}


STREAMS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: ps.Sequential(_windows(PBIN)),
    "shuffle": lambda: ps.Shuffle(_windows(PBIN), seed=3),
    "blocks": lambda: ps.Shuffle(ps.open("streaming/mds_tokens"), seed=3, mode="blocks", lanes=3),
    "whole": lambda: ps.Shuffle(ps.Whole(24, pad_id=0)(ps.open(PBIN)), seed=5),
    "best-fit": lambda: ps.Shuffle(ps.BestFit(32)(ps.open(PBIN)), seed=5),
    "blend": _mixed,
    "stages": lambda: ps.Stages([(18, _mixed()), (None, ps.Sequential(_windows(PBIN, 8)))]),
    "skip": lambda: ps.Skip(ps.Shuffle(_windows(PBIN), seed=3), [(4, 9)]),
    "packed": lambda: ps.PackStream(
        ps.Shuffle(ps.open("streaming/jsonl"), seed=3, lanes=2), window=4, select=_pairs, merge=_joined, name="pairs"
    ),
}


def digest(batches: list[Any]) -> str:
    """Of batches: their fields and values."""
    return xxhash.xxh3_128_hexdigest(
        repr([{name: _plain(one[name]) for name in sorted(one)} for one in batches]).encode()
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return (
        value.tolist()
        if hasattr(value, "tolist")
        else repr(value)
        if isinstance(value, bytes | str)
        else str(type(value))
    )


def loader(name: str) -> Any:
    """A loader over a stream, in the folder of the golden files."""
    return ps.Loader(STREAMS[name](), global_batch=BATCH, rank=0, world=1, workers=0)


def saved(name: str) -> dict[str, Any]:
    """The state after some steps, the recipe where there is one, and what comes next."""
    fed = loader(name)
    batches = iter(fed)
    for _ in range(STEPS):
        next(batches)
    state = fed.state_dict()
    recipe = STREAMS[name]().recipe() if name != "packed" else None
    return {"state": state, "recipe": recipe, "next": digest([next(batches) for _ in range(5)])}


if __name__ == "__main__":
    import os

    os.chdir(Path(__file__).parents[1] / "golden")
    json.dump({name: saved(name) for name in STREAMS}, sys.stdout, indent=1)

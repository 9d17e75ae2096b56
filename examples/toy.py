"""What the examples share: a corpus that a small model can learn, its windows, and notes of each step."""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps

VOCABULARY = 256
LENGTH = 64


def arguments() -> argparse.Namespace:
    """`tokens folder steps [--notes FILE]`, as each example takes them; the corpus is made where it is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens", type=Path, help="a packed corpus, which is made where it is missing")
    parser.add_argument("folder", type=Path, help="where checkpoints go, and where one is taken up")
    parser.add_argument("steps", type=int, help="steps of the whole training, those before a stop included")
    parser.add_argument("--notes", type=Path, help="a line of JSON for each step, in FILE.RANK")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if os.environ.get("RANK", "0") == "0" and not given.tokens.exists():
        corpus(given.tokens)
    while not given.tokens.exists():  # the first rank makes it; it is there when it is whole
        time.sleep(0.1)
    return given


def corpus(path: Path) -> None:
    """Documents in which a token follows from the one before it, nine times of ten."""
    rng = np.random.default_rng(0)
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0, overwrite=True) as writer:
        for length in rng.integers(20, 200, 2_000):
            tokens = [int(rng.integers(1, VOCABULARY))]
            for surprise in rng.random(length) < 0.1:
                tokens.append(int(rng.integers(1, VOCABULARY)) if surprise else tokens[-1] * 7 % 255 + 1)
            writer.write({"tokens": [*tokens, 0]})


def windows(path: Path, fields: tuple[str, ...] = ("inputs", "targets")) -> ps.Stream[Any]:
    """Shuffled without end: `fields` of windows of LENGTH tokens."""
    packing = ps.Chunk(LENGTH, labels="shift", fields=fields)
    return ps.Shuffle(packing(ps.open(path)), seed=7)


def note(notes: Path | None, rank: int, step: int, inputs: Any, loss: float) -> None:
    """Write down which samples a step had, by their content."""
    if notes is not None:
        samples = [zlib.crc32(np.asarray(row, np.uint16).tobytes()) for row in inputs]
        with Path(f"{notes}.{rank}").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "samples": samples, "loss": loss}) + "\n")


def replace(path: Path, write: Any) -> None:
    """`write(temporary)`, then rename: a checkpoint is there whole, or the one before it is."""
    temporary = path.with_name(path.name + ".new")
    write(temporary)
    os.replace(temporary, path)


def leave() -> None:
    """End torch's process group, if there is one, and give gloo's threads time to let go of what they have reduced.

    They need the interpreter for that, and where it ends before them, torch aborts (pytorch/pytorch#179291).
    """
    from torch import distributed  # the JAX example runs without torch

    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()
    time.sleep(0.5)

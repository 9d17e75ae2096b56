"""Code shared by the examples: a corpus that a small model can learn, its windows, and a log of each step."""

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
    """Parse `tokens folder steps [--notes FILE]`, the arguments of each example; create the corpus if it is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens", type=Path, help="a packed corpus; created if it is missing")
    parser.add_argument("folder", type=Path, help="directory of checkpoints; training resumes from the newest one")
    parser.add_argument("steps", type=int, help="total number of steps, including those before a stop")
    parser.add_argument("--notes", type=Path, help="write a line of JSON per step to FILE.RANK")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if os.environ.get("RANK", "0") == "0" and not options.tokens.exists():
        corpus(options.tokens)
    while not options.tokens.exists():  # the first rank creates it, and it appears only when it is complete
        time.sleep(0.1)
    return options


def corpus(path: Path) -> None:
    """Write documents in which nine of ten tokens follow from the previous token."""
    rng = np.random.default_rng(0)
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0, overwrite=True) as writer:
        for length in rng.integers(20, 200, 2_000):
            tokens = [int(rng.integers(1, VOCABULARY))]
            for surprise in rng.random(length) < 0.1:
                tokens.append(int(rng.integers(1, VOCABULARY)) if surprise else tokens[-1] * 7 % 255 + 1)
            writer.write({"tokens": [*tokens, 0]})


def windows(path: Path, fields: tuple[str, ...] = ("inputs", "targets")) -> ps.Stream[Any]:
    """Return an endless shuffled stream of windows of LENGTH tokens, with these `fields`."""
    packing = ps.Chunk(LENGTH, labels="shift", fields=fields)
    return ps.Shuffle(packing(ps.open(path)), seed=7)


def note(notes: Path | None, rank: int, step: int, inputs: Any, loss: float) -> None:
    """Record the samples of a step as checksums of their content."""
    if notes is not None:
        samples = [zlib.crc32(np.asarray(row, np.uint16).tobytes()) for row in inputs]
        with Path(f"{notes}.{rank}").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "samples": samples, "loss": loss}) + "\n")


def replace(path: Path, write: Any) -> None:
    """Call `write(temporary)`, then rename: either the new checkpoint is complete or the previous one remains."""
    temporary = path.with_name(path.name + ".new")
    write(temporary)
    os.replace(temporary, path)


def leave() -> None:
    """End torch's process group, if there is one, and wait until gloo's threads have released their tensors.

    They need the interpreter for that. If it exits first, torch aborts (pytorch/pytorch#179291).
    """
    from torch import distributed  # the JAX example runs without torch

    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()
    time.sleep(0.5)

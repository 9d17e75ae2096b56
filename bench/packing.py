"""What the two questions on packing share: our command, Modalities' command, and gigatoken by itself."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data
from harness import DATA, PENSTOCK, PYTHON, Failed, answer, command_seconds
from peers import modalities

WORKERS = 2


def ours(jsonl: Path) -> Callable[[], float]:
    """Seconds of `penstock pack`."""
    out = DATA / "ours.pbin"
    command: list[object] = [PENSTOCK, "pack", jsonl, "-o", out, "--tokenizer", data.tokenizer()]
    command += ["--eos", data.EOS, "--workers", WORKERS]
    return lambda: command_seconds(command, before=lambda: _remove(out, DATA / "ours.pbin.penstock"))


def theirs(jsonl: Path) -> Callable[[], float]:
    """Seconds of `modalities data pack_encoded_data`; the index that it needs is made before, untimed."""
    out, idx = DATA / "theirs.pbin", DATA / f"{jsonl.stem}.theirs.idx"
    if not idx.exists():
        command_seconds(modalities.index_command(jsonl, idx))
    command = modalities.pack_command(jsonl, idx, out, data.tokenizer(), data.EOS, WORKERS)
    return lambda: command_seconds(command, before=lambda: _remove(out))


def check_same_bytes() -> str:
    """A note that both outputs are equal, or an error."""
    if not _same(DATA / "ours.pbin", DATA / "theirs.pbin"):
        raise Failed("the two packed files differ: a figure would mean nothing")
    return f"Both packed files have the same {os.path.getsize(DATA / 'ours.pbin') / 1e6:,.0f} MB, byte for byte."


def gigatoken(jsonl: Path) -> Callable[[], float]:
    """Seconds of a process in which gigatoken encodes the file, on the same cores."""
    arguments = json.dumps({"jsonl": str(jsonl), "model": str(data.tokenizer())})
    return lambda: command_seconds([PYTHON, __file__, "encode", arguments])


def encode(jsonl: str, model: str) -> dict[str, Any]:
    """In a child: gigatoken's own whole-file encoding, and nothing else."""
    import gigatoken

    tokenizer = gigatoken.Tokenizer(f"{model}/tokenizer.json")
    started = time.perf_counter()
    documents = tokenizer.encode_files(gigatoken.JsonlFileSource([jsonl]), parallel=True)
    return {"seconds": time.perf_counter() - started, "documents": len(documents)}


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _same(first: Path, second: Path) -> bool:
    import filecmp

    return filecmp.cmp(first, second, shallow=False)


if __name__ == "__main__":
    answer(globals())

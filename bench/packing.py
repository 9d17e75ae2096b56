"""Commands shared by the packing benchmarks: Penstock, Modalities, and gigatoken on its own."""

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
TOKENIZER_NOTE = "The tokenizer is a byte-level BPE with 32,000 entries."


def ours(jsonl: Path) -> Callable[[], float]:
    """Return a function that times `penstock pack`."""
    out = DATA / "ours.pbin"
    command: list[object] = [PENSTOCK, "pack", jsonl, "-o", out, "--tokenizer", data.tokenizer()]
    command += ["--eos", data.EOS, "--workers", WORKERS]
    return lambda: command_seconds(command, before=lambda: _remove(out, DATA / "ours.pbin.penstock"))


def theirs(jsonl: Path) -> Callable[[], float]:
    """Return a function that times `modalities data pack_encoded_data`, without creating the index it needs."""
    out, idx = DATA / "theirs.pbin", DATA / f"{jsonl.stem}.theirs.idx"
    if not idx.exists():
        command_seconds(modalities.index_command(jsonl, idx))
    command = modalities.pack_command(jsonl, idx, out, data.tokenizer(), data.EOS, WORKERS)
    return lambda: command_seconds(command, before=lambda: _remove(out))


def check_same_bytes() -> str:
    """Return a note that both outputs are identical; raise `Failed` if they aren't."""
    if not _same(DATA / "ours.pbin", DATA / "theirs.pbin"):
        raise Failed("the two packed files differ, so the timings are meaningless")
    return f"Both packed files are byte-identical ({os.path.getsize(DATA / 'ours.pbin') / 1e6:,.0f} MB)."


def gigatoken(jsonl: Path) -> Callable[[], float]:
    """Return a function that times a process in which gigatoken encodes the file on the same cores."""
    arguments = json.dumps({"jsonl": str(jsonl), "model": str(data.tokenizer())})
    return lambda: command_seconds([PYTHON, __file__, "encode", arguments])


def encode(jsonl: str, model: str) -> dict[str, Any]:
    """Encode the whole file with gigatoken and nothing else; runs in a child process."""
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

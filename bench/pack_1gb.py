"""How fast is a gigabyte of JSONL tokenized and packed? Runs only with `--large`: Modalities takes minutes."""

from __future__ import annotations

import data
import packing
from harness import NotRun, Options, Result, alternate, row
from peers import modalities

TARGET_MODALITIES, TARGET_GIGATOKEN = 25, 0.5


def run(options: Options) -> Result:
    """Time the whole command with two workers, once. Both packed files must be identical."""
    if not options.large:
        raise NotRun("takes many minutes; pass --large to run it")
    jsonl = data.text(data.LARGE_BYTES)
    ours = packing.ours(jsonl)
    with_them = alternate(ours, packing.theirs(jsonl), 1)
    note = packing.check_same_bytes()
    with_engine = alternate(ours, packing.gigatoken(jsonl), options.pairs(3))
    return Result(
        "Tokenize and pack 1 GB of JSONL, two workers",
        [
            row("whole command", "s", with_them, modalities.NAME, TARGET_MODALITIES),
            row("whole command (gigatoken: whole process)", "s", with_engine, "gigatoken", TARGET_GIGATOKEN),
        ],
        [packing.TOKENIZER_NOTE, note, "Modalities was run once."],
    )

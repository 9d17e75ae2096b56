"""How fast is a gigabyte of JSONL tokenised and packed? Only with `--large`: Modalities takes minutes."""

from __future__ import annotations

import data
import packing
from harness import NotRun, Options, Result, alternate, row
from peers import modalities

TARGET_MODALITIES, TARGET_GIGATOKEN = 25, 0.5


def run(options: Options) -> Result:
    """The whole command with two workers, one pair; both sides must give the same bytes."""
    if not options.large:
        raise NotRun("takes many minutes: asked for with --large")
    jsonl = data.text(data.LARGE_BYTES)
    ours = packing.ours(jsonl)
    with_them = alternate(ours, packing.theirs(jsonl), 1)
    note = packing.check_same_bytes()
    with_engine = alternate(ours, packing.gigatoken(jsonl), options.pairs(3))
    return Result(
        "Pack 1 GB with a BPE of 32,000 entries, two workers",
        [
            row("whole command", "s", with_them, modalities.NAME, TARGET_MODALITIES),
            row("whole command, gigatoken's whole process", "s", with_engine, "gigatoken", TARGET_GIGATOKEN),
        ],
        [note, "One pair with Modalities."],
    )

"""How fast are 100 MB of JSONL tokenised and packed?"""

from __future__ import annotations

import data
import packing
from harness import PYTHON, Options, Result, alternate, child, row
from peers import modalities

TARGET_MODALITIES, TARGET_GIGATOKEN = 10, 0.5


def run(options: Options) -> Result:
    """The whole command with two workers; both sides must give the same bytes."""
    jsonl = data.text()
    ours = packing.ours(jsonl)
    with_them = alternate(ours, packing.theirs(jsonl), options.pairs(3))
    note = packing.check_same_bytes()
    with_engine = alternate(ours, packing.gigatoken(jsonl), options.pairs(5))

    def engine_alone() -> float:
        return child(PYTHON, packing.__file__, "encode", jsonl=jsonl, model=data.tokenizer())["seconds"]

    return Result(
        "Pack 100 MB with a BPE of 32,000 entries, two workers",
        [
            row("whole command", "s", with_them, modalities.NAME, TARGET_MODALITIES),
            row("whole command, gigatoken's whole process", "s", with_engine, "gigatoken", TARGET_GIGATOKEN),
            row(
                "whole command, gigatoken's encode_files alone",
                "s",
                alternate(ours, engine_alone, options.pairs(3)),
                "gigatoken",
            ),
        ],
        [note, "gigatoken only encodes, with all its threads, into memory: it writes no file, checks nothing."],
    )

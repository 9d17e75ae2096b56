"""How fast are 100 MB of JSONL tokenized and packed?"""

from __future__ import annotations

import data
import packing
from harness import PYTHON, Options, Result, alternate, child, row
from peers import modalities

TARGET_MODALITIES, TARGET_GIGATOKEN = 10, 0.5


def run(options: Options) -> Result:
    """Time the whole command with two workers. Both packed files must be identical."""
    jsonl = data.text()
    ours = packing.ours(jsonl)
    with_them = alternate(ours, packing.theirs(jsonl), options.pairs(3))
    note = packing.check_same_bytes()
    with_engine = alternate(ours, packing.gigatoken(jsonl), options.pairs(5))

    def engine_alone() -> float:
        return child(PYTHON, packing.__file__, "encode", jsonl=jsonl, model=data.tokenizer())["seconds"]

    return Result(
        "Tokenize and pack 100 MB of JSONL, two workers",
        [
            row("whole command", "s", with_them, modalities.NAME, TARGET_MODALITIES),
            row("whole command (gigatoken: whole process)", "s", with_engine, "gigatoken", TARGET_GIGATOKEN),
            row(
                "whole command (gigatoken: encode_files only)",
                "s",
                alternate(ours, engine_alone, options.pairs(3)),
                "gigatoken",
            ),
        ],
        [
            packing.TOKENIZER_NOTE,
            note,
            "gigatoken only encodes into memory, with all its threads. It writes no file and checks nothing.",
        ],
    )

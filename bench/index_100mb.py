"""How fast is the raw index of 100 MB of JSONL made, every line checked?"""

from __future__ import annotations

import time
from typing import Any

import data
from harness import (
    DATA,
    PENSTOCK,
    PYTHON,
    Failed,
    Options,
    Result,
    alternate,
    answer,
    child,
    columns,
    command_seconds,
    row,
)
from peers import modalities

TARGET = 8


def run(options: Options) -> Result:
    """The whole command, then the work alone; both sides must give the same bytes."""
    jsonl = data.text()
    ours, theirs = jsonl.with_suffix(".idx"), DATA / "theirs.idx"
    whole = alternate(
        lambda: command_seconds([PENSTOCK, "index", jsonl, "--overwrite"]),
        lambda: command_seconds(modalities.index_command(jsonl, theirs)),
        options.pairs(5),
    )
    if ours.read_bytes() != theirs.read_bytes():
        raise Failed("the two indexes differ: a figure would mean nothing")
    alone = alternate(
        lambda: child(PYTHON, __file__, "index", jsonl=jsonl),
        lambda: modalities.inside("index", jsonl=jsonl, idx=theirs),
        options.pairs(3),
    )
    return Result(
        "Raw index of 100 MB, each line checked as JSON",
        [
            row("whole command", "s", whole, modalities.NAME, TARGET),
            row("inside, without imports", "s", columns(alone, "seconds", "seconds"), modalities.NAME),
        ],
        ["Both indexes have the same bytes."],
    )


def index(jsonl: str) -> dict[str, Any]:
    """In a child: our builder alone."""
    from penstock.prepare.raw import build_index

    started = time.perf_counter()
    build_index(jsonl, overwrite=True)
    return {"seconds": time.perf_counter() - started}


if __name__ == "__main__":
    answer(globals())

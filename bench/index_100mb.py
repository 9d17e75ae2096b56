"""How fast are 100 MB of JSONL indexed if every line is validated?"""

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
    """Time the whole command, then only the indexing. Both indexes must be identical."""
    jsonl = data.text()
    ours, theirs = jsonl.with_suffix(".idx"), DATA / "theirs.idx"
    whole = alternate(
        lambda: command_seconds([PENSTOCK, "index", jsonl, "--overwrite"]),
        lambda: command_seconds(modalities.index_command(jsonl, theirs)),
        options.pairs(5),
    )
    if ours.read_bytes() != theirs.read_bytes():
        raise Failed("the two indexes differ, so the timings are meaningless")
    alone = alternate(
        lambda: child(PYTHON, __file__, "index", jsonl=jsonl),
        lambda: modalities.inside("index", jsonl=jsonl, idx=theirs),
        options.pairs(3),
    )
    return Result(
        "Index 100 MB of JSONL, validating each line",
        [
            row("whole command", "s", whole, modalities.NAME, TARGET),
            row("indexing only, without imports", "s", columns(alone, "seconds", "seconds"), modalities.NAME),
        ],
        ["Both indexes are identical."],
    )


def index(jsonl: str) -> dict[str, Any]:
    """Time only the index builder; runs in a child process."""
    from penstock.prepare.jsonl_index import build_index

    started = time.perf_counter()
    build_index(jsonl, overwrite=True)
    return {"seconds": time.perf_counter() - started}


if __name__ == "__main__":
    answer(globals())

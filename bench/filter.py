"""How fast are documents filtered by length?"""

from __future__ import annotations

from pathlib import Path

import data
from harness import Options, Result
from peers import modalities
from whole import compare_with_modalities, penstock, same_bytes

TARGET = 5
MIN_TOKENS = 40


def run(options: Options) -> Result:
    """Keep documents of at least 40 tokens among a million. Modalities can filter only from Python."""
    packed = data.packed_tokens()

    def ours(path: Path) -> list[object]:
        return penstock("filter", packed, "-o", path, "--min-tokens", MIN_TOKENS)

    def theirs(path: Path) -> list[object]:
        return modalities.inside_command("keep_long", pbin=packed, out=path, min_tokens=MIN_TOKENS)

    rows = compare_with_modalities("1 M documents", ours, theirs, "filtered.pbin", options, TARGET)
    return Result("Filter packed files by document length", rows, [same_bytes(ours, theirs, "filtered.pbin")])

"""How fast are documents and lines shuffled, in Modalities' order and in Penstock's?"""

from __future__ import annotations

from pathlib import Path

import data
from harness import Options, Result, alternate, row
from peers import modalities
from whole import compare_with_modalities, penstock, same_bytes, timed

TARGET = 5
SEED = 7


def run(options: Options) -> Result:
    """Shuffle a million documents and 100 MB of lines. In Modalities' order, both outputs must be identical."""
    packed, jsonl = data.packed_tokens(), data.text()

    def ours(path: Path) -> list[object]:
        return penstock("modalities", *arguments("shuffle_tokenized_data", packed, path))

    def theirs(path: Path) -> list[object]:
        return modalities.command(*arguments("shuffle_tokenized_data", packed, path))

    documents = compare_with_modalities("1 M documents", ours, theirs, "shuffled.pbin", options, TARGET)
    lines = compare_with_modalities(
        "100 MB of JSONL",
        lambda path: penstock("modalities", *arguments("shuffle_jsonl_data", jsonl, path)),
        lambda path: modalities.command(*arguments("shuffle_jsonl_data", jsonl, path)),
        "shuffled.jsonl",
        options,
        TARGET,
    )
    own = alternate(
        timed(lambda path: penstock("shuffle", packed, "-o", path, "--seed", SEED), "shuffled.pbin"),
        timed(theirs, "shuffled.pbin"),
        options.pairs(5),
    )
    return Result(
        "Shuffle documents and lines",
        [*documents, *lines, row("1 M documents, in Penstock's own order", "s", own, modalities.NAME, TARGET)],
        [same_bytes(ours, theirs, "shuffled.pbin")],
    )


def arguments(command: str, source: Path, target: Path) -> list[object]:
    """Return the arguments, which are the same on both command lines."""
    return ["data", command, "--input_data_path", source, "--output_data_path", target, "--seed", SEED]

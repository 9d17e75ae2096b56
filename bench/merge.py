"""How fast are packed files merged, beside Modalities and beside the disk's own copying?"""

from __future__ import annotations

from pathlib import Path

import data
from harness import Options, Result, alternate, row
from peers import modalities
from whole import beside_modalities, penstock, timed

FILES = 8
TARGET = 2
COPY_TARGET = 0.5


def run(options: Options) -> Result:
    """Two files of 128 MB beside Modalities; eight beside `cat` and `sync`."""
    packed = data.packed_tokens()
    two = beside_modalities(
        "two files of 128 MB",
        lambda path: penstock("merge", packed, packed, "-o", path),
        lambda path: modalities.command("data", "merge_packed_data", packed, packed, path),
        "merged.pbin",
        options,
        TARGET,
    )
    many = [packed] * FILES
    copies = alternate(
        timed(lambda path: penstock("merge", *many, "-o", path), "merged.pbin"),
        timed(lambda path: copy(many, path), "merged.bin"),
        options.pairs(3),
    )
    against = row(f"{FILES} files of 128 MB, cat and sync", "s", copies, "cat", COPY_TARGET)
    return Result("Merge of packed files", [*two, against], ["Modalities' index of the merged file is wrong."])


def copy(files: list[Path], target: Path) -> list[object]:
    """The disk's own copying, durable as a merge is."""
    names = " ".join(f"'{file}'" for file in files)
    return ["sh", "-c", f"cat {names} > '{target}' && sync '{target}'"]

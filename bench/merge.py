"""How fast are packed files merged, compared with Modalities and with `cat`?"""

from __future__ import annotations

from pathlib import Path

import data
from harness import Options, Result, alternate, row
from peers import modalities
from whole import compare_with_modalities, penstock, timed

FILES = 8
TARGET = 2
COPY_TARGET = 0.5


def run(options: Options) -> Result:
    """Compare two files of 128 MB with Modalities, and eight with `cat` and `sync`."""
    packed = data.packed_tokens()
    two = compare_with_modalities(
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
    against = row(f"{FILES} files of 128 MB, whole command", "s", copies, "cat and sync", COPY_TARGET)
    return Result("Merge packed files", [*two, against], ["Modalities writes a wrong index for the merged file."])


def copy(files: list[Path], target: Path) -> list[object]:
    """Return a command that concatenates the files and syncs the result, as a merge does."""
    names = " ".join(f"'{file}'" for file in files)
    return ["sh", "-c", f"cat {names} > '{target}' && sync '{target}'"]

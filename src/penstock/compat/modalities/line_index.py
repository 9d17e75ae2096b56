"""Line index of a JSONL file of Modalities. The command line imports this module, so it doesn't import torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.errors import Corrupt
from penstock.prepare.jsonl_index import IndexReport, build_index


class FaultyLine(Corrupt, ValueError):
    """A line of invalid JSON: the original's `ValueError`."""


def write_index(
    path: Path, target: Path, *, drops: bool = False, overwrite: bool, progress: Callable[[int], None] | None = None
) -> IndexReport:
    """Write the index of a JSONL file; raise `FaultyLine` for invalid JSON, unless such lines are dropped."""
    try:
        on_error = "skip" if drops else "raise"
        return build_index(path, target, on_error=on_error, overwrite=overwrite, progress=progress)
    except Corrupt as error:
        raise FaultyLine(
            error.what, path=error.path, offset_bytes=error.offset_bytes, found=error.found, hint=error.hint
        ) from error

"""Check the rows of tables by decoding whole blocks."""

from __future__ import annotations

import numpy as np

from penstock.errors import PenstockError, TooLarge, UnsafeData
from penstock.formats.tables.arrow import ArrowSource
from penstock.types import Depth, Finding

_STEP = 1024


def check_blocks(source: ArrowSource, format_name: str, depth: Depth) -> list[Finding]:
    """Return the findings: `quick` checks the list of blocks, `sample` the first and last block, `full` all blocks."""
    findings: list[Finding] = []
    try:
        n_blocks = len(source.block_starts) - 1
    except (UnsafeData, TooLarge):
        raise
    except PenstockError as error:
        return [_finding(error, format_name, source.path)]
    chosen = {"quick": (), "sample": (0, n_blocks - 1), "full": range(n_blocks)}[depth]
    for block in dict.fromkeys(number for number in chosen if 0 <= number < n_blocks):
        start, stop = source.block_starts[block : block + 2].tolist()
        try:
            for step in range(start, stop, _STEP):
                source.get_samples(np.arange(step, min(stop, step + _STEP)))
        except TooLarge:
            raise
        except PenstockError as error:
            findings.append(_finding(error, format_name, source.path))
    return findings


def _finding(error: PenstockError, format_name: str, path: str) -> Finding:
    return Finding(
        code=f"{format_name}.damaged",
        severity="error",
        path=str(error.path or path),
        offset_bytes=getattr(error, "offset_bytes", None),
        found=str(error.found or error.what),
        expected=None if error.expected is None else str(error.expected),
        fix="Copy it again, or recreate it",
    )

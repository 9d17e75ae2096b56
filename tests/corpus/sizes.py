"""Tasks of a few rows, so that tiny inputs make several tasks and each part of a job has rows.

This is the one place of the corpus that knows modules of Penstock that aren't public: change it along with the engine.
What a job writes doesn't depend on these sizes.
"""

from __future__ import annotations

import importlib
from typing import Any

_TASK_BYTES = 60
_SIZES: dict[str, Any] = {
    "penstock.reshape.pieces.PIECE_BYTES": _TASK_BYTES,
    "penstock.reshape.shuffle.PIECE_BYTES": _TASK_BYTES,
    "penstock.reshape.share_copies.PIECE_BYTES": _TASK_BYTES,
    "penstock.reshape.share_tars.PIECE_BYTES": _TASK_BYTES,
    "penstock.reshape.share_tars._MOST_ROWS": 5,
    "penstock.reshape.share_shards._GROUP_BYTES": _TASK_BYTES,
    "penstock.reshape.rows.runs.__defaults__": (0, None, _TASK_BYTES),
    "penstock.convert.plan.TASK_TOKENS": 30,
    "penstock.prepare.tokens.planned.default_task_bytes": lambda total_bytes: 200,
    "penstock.prepare.tokens.pipeline.default_task_bytes": lambda total_bytes: 200,
}


def shrink_tasks() -> None:
    """Make the tasks of this process small from now on."""
    for name, size in _SIZES.items():
        owner, _, attribute = name.rpartition(".")
        if attribute == "__defaults__":
            module, _, function = owner.rpartition(".")
            target = getattr(importlib.import_module(module), function)
        else:
            target = importlib.import_module(owner)
        getattr(target, attribute)  # a name that is gone is an error
        setattr(target, attribute, size)

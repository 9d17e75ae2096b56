"""Tasks of a few rows, so that tiny inputs make several tasks and each part of a job has rows.

This is the one place of the corpus that knows modules of Penstock that aren't public: change it along with the engine.
What a job writes doesn't depend on these sizes.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

_TASK_BYTES = 60
_SIZES: dict[str, Any] = {
    "penstock.reshape.row_job TASK_BYTES": _TASK_BYTES,
    "penstock.reshape.shuffle TASK_BYTES": _TASK_BYTES,
    "penstock.reshape.shards TASK_BYTES": _TASK_BYTES,
    "penstock.reshape.tar_job TASK_BYTES": _TASK_BYTES,
    "penstock.reshape.tar_job _MOST_ROWS": 5,
    "penstock.reshape.shards _GROUP_BYTES": _TASK_BYTES,
    "penstock.engine.rows runs.__defaults__": (0, None, _TASK_BYTES),
    "penstock.convert.tokens TASK_TOKENS": 30,
    "penstock.prepare.tokens.request default_task_bytes": lambda total_bytes: 200,
    "penstock.prepare.tokens.job default_task_bytes": lambda total_bytes: 200,
}


def shrink_tasks() -> None:
    """Make the tasks of this process small from now on; names that are gone are left out."""
    for owner, place, size in _places():
        if owner is not None:
            setattr(owner, place.rpartition(" ")[2].rpartition(".")[2], size)


def unknown_sizes() -> list[str]:
    """Return the names that are gone."""
    return [place for owner, place, _ in _places() if owner is None]


def _places() -> Iterator[tuple[Any, str, Any]]:
    """Yield what has each size, or None, its place and the size."""
    for place, size in _SIZES.items():
        module, _, name = place.partition(" ")
        *functions, attribute = name.split(".")
        try:
            owner: Any = importlib.import_module(module)
            for one in functions:
                owner = getattr(owner, one)
        except (ImportError, AttributeError):
            owner = None
        yield (owner if hasattr(owner, attribute) else None), place, size

"""Preparing data: raw JSONL gets its index, and becomes packed tokens."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.prepare.tokens.pipeline import pack as pack
    from penstock.prepare.tokens.report import Dropped as Dropped
    from penstock.prepare.tokens.report import PackProgress as PackProgress
    from penstock.prepare.tokens.report import PackReport as PackReport

# At first use: a worker process imports this package, and needs only a few of its modules.
_WHERE = {
    "Dropped": "tokens.report",
    "PackProgress": "tokens.report",
    "PackReport": "tokens.report",
    "pack": "tokens.pipeline",
}

__all__ = ["Dropped", "PackProgress", "PackReport", "pack"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'penstock.prepare' has no attribute {name!r}")
    return getattr(importlib.import_module(f"penstock.prepare.{_WHERE[name]}"), name)

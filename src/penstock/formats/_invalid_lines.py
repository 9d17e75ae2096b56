"""Setting by which JSONL skips invalid lines, for commands that only look at data of any format."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

SKIPPING: ContextVar[dict[str, Any] | None] = ContextVar("skipping_invalid_lines", default=None)
"""Path → its `IndexedLines`, for files in which invalid lines were skipped. None: invalid lines raise."""


@contextlib.contextmanager
def skipping_invalid_lines() -> Generator[dict[str, Any]]:
    """Let JSONL that is opened here skip and count its invalid lines."""
    known = SKIPPING.get()
    skipped: dict[str, Any] = {} if known is None else known
    token = SKIPPING.set(skipped)
    try:
        yield skipped
    finally:
        SKIPPING.reset(token)

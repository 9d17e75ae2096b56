"""Functions of the original's `streaming.base.util` that scripts call."""

from __future__ import annotations

import logging

_log = logging.getLogger("penstock")


def clean_stale_shared_memory() -> None:
    """Do nothing: datasets here make no shared memory, so a killed run leaves none behind."""
    _log.info("there is no shared memory to clean")

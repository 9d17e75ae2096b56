"""The original's `streaming.base.distributed`: what the launcher said of ranks.

Its collectives are not here, as datasets need none: torch's own serve a program.
"""

from __future__ import annotations

import os

__all__ = ["get_local_rank", "get_local_world_size", "get_rank", "get_world_size"]


def get_rank() -> int:
    """RANK, or 0."""
    return _told("RANK", 0)


def get_world_size() -> int:
    """WORLD_SIZE, or 1."""
    return _told("WORLD_SIZE", 1)


def get_local_rank() -> int:
    """LOCAL_RANK, or 0."""
    return _told("LOCAL_RANK", 0)


def get_local_world_size() -> int:
    """LOCAL_WORLD_SIZE, or 1."""
    return _told("LOCAL_WORLD_SIZE", 1)


def _told(name: str, default: int) -> int:
    return int(os.environ.get(name, default))

"""The original's `streaming.base.stream`."""

from penstock.compat.streaming.registry import streams_registry
from penstock.compat.streaming.streams import Stream

__all__ = ["Stream", "streams_registry"]

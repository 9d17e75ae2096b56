"""Preparing data: raw JSONL gets its index, and becomes packed tokens."""

from __future__ import annotations

from penstock.prepare.pipeline import pack
from penstock.prepare.report import Dropped, PackProgress, PackReport

__all__ = ["Dropped", "PackProgress", "PackReport", "pack"]

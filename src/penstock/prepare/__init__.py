"""Preparation of raw data.

Indexes and token datasets from JSONL, and Energon's metadata for tars and directories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.prepare.tokens.encode import Dropped as Dropped
    from penstock.prepare.tokens.encode import PackProgress as PackProgress
    from penstock.prepare.tokens.encode import PackReport as PackReport
    from penstock.prepare.tokens.pipeline import pack as pack

__getattr__, __dir__ = facade(__name__)

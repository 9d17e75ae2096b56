"""Preparing data: raw JSONL gets its index, and becomes packed tokens; tars and folders get Energon's metadata.

Names are imported at first use: a worker process imports this package, and needs only a few of its modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.prepare.tokens.pipeline import pack as pack
    from penstock.prepare.tokens.report import Dropped as Dropped
    from penstock.prepare.tokens.report import PackProgress as PackProgress
    from penstock.prepare.tokens.report import PackReport as PackReport

__getattr__, __dir__ = facade(__name__)

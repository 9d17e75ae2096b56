"""Functions that check, repair and describe datasets in every format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.check.repairs import repair as repair
    from penstock.check.summary import summarise as summarise
    from penstock.check.verification import verify as verify

__getattr__, __dir__ = facade(__name__)

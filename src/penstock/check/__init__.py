"""Functions that check, repair and describe datasets in every format."""

from penstock.check.repair import repair
from penstock.check.summary import summarise
from penstock.check.verify import verify

__all__ = ["repair", "summarise", "verify"]

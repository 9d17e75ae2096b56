"""Check and mend datasets of every format, and say what they are."""

from penstock.check.repair import repair
from penstock.check.summary import summarise
from penstock.check.verify import verify

__all__ = ["repair", "summarise", "verify"]

"""Raw sample → typed sample, and stages whose number of outputs is known only after that."""

from __future__ import annotations

from penstock.cook.packstream import PackStream

__all__ = ["PackStream"]

"""The original's `streaming.text.pile`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.text import StreamingPile as StreamingPile

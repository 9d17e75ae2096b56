"""The original's `streaming.vision.coco`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.vision import StreamingCOCO as StreamingCOCO

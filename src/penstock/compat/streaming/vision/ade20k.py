"""The original's `streaming.vision.ade20k`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.vision import StreamingADE20K as StreamingADE20K

"""The original's `streaming.vision.base`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.vision import StreamingVisionDataset as StreamingVisionDataset

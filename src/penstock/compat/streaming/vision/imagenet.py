"""The original's `streaming.vision.imagenet`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.vision import StreamingImageNet as StreamingImageNet

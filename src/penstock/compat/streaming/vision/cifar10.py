"""The original's `streaming.vision.cifar10`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.vision import StreamingCIFAR10 as StreamingCIFAR10

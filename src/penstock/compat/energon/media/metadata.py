"""Energon's module `media.metadata`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.types import AVMetadata as AVMetadata
from penstock.types import ImageMetadata as ImageMetadata

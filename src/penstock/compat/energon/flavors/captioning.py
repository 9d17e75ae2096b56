"""Energon's module `flavors.captioning`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import CaptioningWebdataset as CaptioningWebdataset
from penstock.compat.energon.samples import CaptioningSample as CaptioningSample

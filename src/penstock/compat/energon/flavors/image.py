"""Energon's module `flavors.image`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import ImageWebdataset as ImageWebdataset
from penstock.compat.energon.samples import ImageSample as ImageSample

"""Energon's module `flavors.text`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import TextWebdataset as TextWebdataset
from penstock.compat.energon.samples import TextSample as TextSample

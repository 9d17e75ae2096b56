"""Energon's module `flavors.vqa`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import VQAWebdataset as VQAWebdataset
from penstock.compat.energon.samples import VQASample as VQASample

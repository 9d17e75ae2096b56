"""Energon's module `flavors.vid_qa`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import VidQAWebdataset as VidQAWebdataset
from penstock.compat.energon.samples import VidQASample as VidQASample

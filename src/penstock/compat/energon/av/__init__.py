"""Energon's module `av`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.media import AVData as AVData
from penstock.compat.energon.media import AVDecoder as AVDecoder

"""Energon's module `av.av_data`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.media import AVData as AVData

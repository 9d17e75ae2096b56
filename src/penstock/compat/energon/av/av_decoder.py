"""Energon's module `av.av_decoder`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.media import AVDecoder as AVDecoder

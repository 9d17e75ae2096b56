"""The original's `streaming.multimodal.webvid`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.multimodal import StreamingInsideWebVid as StreamingInsideWebVid
from penstock.compat.streaming.multimodal import StreamingOutsideDTWebVid as StreamingOutsideDTWebVid
from penstock.compat.streaming.multimodal import StreamingOutsideGIWebVid as StreamingOutsideGIWebVid

"""The original's `streaming.text.c4`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.text import StreamingC4 as StreamingC4

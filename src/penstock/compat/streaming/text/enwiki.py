"""The original's `streaming.text.enwiki`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.text import StreamingEnWiki as StreamingEnWiki

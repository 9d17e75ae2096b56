"""How a source is best shuffled, by where its bytes are."""

from __future__ import annotations

from typing import Literal

from penstock.abc import Store, SupportsMmap

Mode = Literal["global", "blocks"]


def preferred_mode(store: Store, *, compressed: bool = False) -> Mode:
    """`"blocks"` where a sample costs what its neighbours cost too: a request, or the decoding of a block."""
    return "blocks" if compressed or not isinstance(store, SupportsMmap) else "global"

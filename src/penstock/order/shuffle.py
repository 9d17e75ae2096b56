"""A new order every epoch, from a seed."""

from __future__ import annotations

import operator
from typing import Literal

from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.order.lanes import check_lanes
from penstock.order.ordered import OrderedStream, T
from penstock.order.permutation import GlobalOrder

Mode = Literal["global", "blocks"]


def Shuffle(source: Source[T], seed: int, *, mode: Mode | None = None, lanes: int = 1) -> OrderedStream[T]:
    check_lanes(lanes)
    seed = operator.index(seed)
    chosen = mode if mode is not None else getattr(source, "preferred_mode", "global")
    if chosen == "global":
        return OrderedStream("Shuffle", source, GlobalOrder(len(source), seed), lanes)
    raise ConfigError("unknown mode of shuffling", found=repr(chosen), expected="'global' or 'blocks'")

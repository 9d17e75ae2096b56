"""A new order every epoch, from a seed."""

from __future__ import annotations

import operator
from functools import partial
from typing import Literal

from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.order.blocks import OPEN_BLOCKS, BlockOrder
from penstock.order.borders import blocks_of
from penstock.order.lanes import check_lanes
from penstock.order.ordered import OrderedStream, T
from penstock.order.permutation import GlobalOrder, check_size, size_of

Mode = Literal["global", "blocks"]


def Shuffle(
    source: Source[T],
    seed: int | None = None,
    *,
    mode: Mode | None = None,
    lanes: int = 1,
    open_blocks: int = OPEN_BLOCKS,
    block_size: int | None = None,
) -> OrderedStream[T]:
    """An endless stream of `source`, every epoch in another order.

    `mode="global"` permutes all samples: best mixing, any sample may come next. `mode="blocks"` permutes the
    source's storage blocks and mixes a few of them at a time, so that each block is read about once an epoch; with
    lanes, each lane has blocks of its own. See `BlockOrder`.

    Args:
        source: at least one sample.
        seed: any integer; left open (None) it is 0, or comes from the `Blend` around it.
        mode: by default what the source prefers (remote and compressed data: blocks), else global.
        lanes: number of sub-streams; position p is in lane `p mod lanes`.
        open_blocks: blocks mixed at a time, in mode blocks: 16 unless said.
        block_size: samples of a block, in mode blocks; by default the source's own blocks, else 4,096.

    Raises:
        ConfigError: the source is empty, or a stream, or an option that can't work.
    """
    check_lanes(lanes)
    size = size_of(source)
    check_size(size)
    given, seed = seed, 0 if seed is None else operator.index(seed)
    chosen = getattr(source, "preferred_mode", "global") if mode is None else mode
    options = {"mode": chosen, "lanes": lanes, "open_blocks": open_blocks, "block_size": block_size}
    with_seed = partial(Shuffle, source, **options) if given is None else None
    if chosen == "global":
        return OrderedStream("Shuffle", source, GlobalOrder(size, seed), lanes, with_seed)
    if chosen == "blocks":
        order = BlockOrder(blocks_of(source, block_size), seed, lanes, open_blocks)
        written = {} if block_size is None else {"block_size": block_size}
        own = block_size is None
        return OrderedStream("Shuffle", source, order, lanes, with_seed, written, whole_blocks=own)
    raise ConfigError("unknown mode of shuffling", found=repr(chosen), expected="'global' or 'blocks'")

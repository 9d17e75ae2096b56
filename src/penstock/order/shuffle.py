"""A new order every epoch, from a seed."""

from __future__ import annotations

import operator
from functools import partial
from typing import Literal

from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.node.blocks import blocks_of, preferred_mode
from penstock.order.blocks import OPEN_BLOCKS, BlockOrder
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
    """Return an endless stream of `source`, in a different order each epoch.

    `mode="global"` permutes all samples: best mixing, with random reads. `mode="blocks"` permutes the source's storage
    blocks and mixes a few of them at a time, so each block is read about once per epoch; each lane has its own blocks.
    See `BlockOrder`.

    Args:
        source: any source with at least one sample.
        seed: any integer. If None, the seed is 0, or comes from an enclosing `Blend`.
        mode: `"global"` or `"blocks"`. By default the source's preferred mode: blocks for remote and compressed data,
            otherwise global.
        lanes: number of lanes. Position p is in lane `p % lanes`.
        open_blocks: number of blocks mixed at a time (mode `"blocks"`).
        block_size: samples per block (mode `"blocks"`). By default the source's own blocks, or 4,096.

    Returns:
        A stream with positions 0, 1, …; epoch e is the positions `[e * len(source), (e + 1) * len(source))`.

    Raises:
        ConfigError: the source is empty or a stream, or an option is invalid.

    Examples:
        >>> import penstock as ps
        >>> stream = ps.Shuffle(ps.open("corpus.pbin"), seed=0)
        >>> stream[0]["tokens"]
        array([601, 602, 603, 604, 605, 606, 607, 608, 609,   0], dtype=uint16)
        >>> sorted(stream.locate(position).index for position in range(6))
        [0, 1, 2, 3, 4, 5]
    """
    check_lanes(lanes)
    size = size_of(source)
    check_size(size)
    given, seed = seed, 0 if seed is None else operator.index(seed)
    chosen = preferred_mode(source) if mode is None else mode
    options = {"mode": chosen, "lanes": lanes, "open_blocks": open_blocks, "block_size": block_size}
    with_seed = partial(Shuffle, source, **options) if given is None else None
    if chosen == "global":
        return OrderedStream("Shuffle", source, GlobalOrder(size, seed), lanes, with_seed)
    if chosen == "blocks":
        order = BlockOrder(blocks_of(source, block_size), seed, lanes, open_blocks)
        written = {} if block_size is None else {"block_size": block_size}
        own = block_size is None
        return OrderedStream("Shuffle", source, order, lanes, with_seed, written, whole_blocks=own)
    raise ConfigError("unknown shuffle mode", found=repr(chosen), expected="'global' or 'blocks'")

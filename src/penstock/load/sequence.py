"""Attention masks and parallel slices of a batch of windows in torch, exported by `penstock.load.torch`."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from penstock._optional import require
from penstock.errors import ConfigError

torch: Any = require("torch", extra="torch")

Layout: TypeAlias = Literal["contiguous", "zigzag", "per-document"]

_LENGTH_FIELDS = ("inputs", "tokens", "targets", "segment_ids")


def block_mask(batch: dict[str, Any], block_size: int = 128) -> Any:
    """Return the `BlockMask` for torch's FlexAttention: causal, and only within equal `segment_ids`.

    Padding attends only to padding. The mask is made from the smallest and largest id of each block, so no [length,
    length] mask is created.

    Args:
        batch: batch with `segment_ids` int[k, L], as made by `labels`: ascending in a row, then 0 for padding.
        block_size: queries and keys per block.

    Returns:
        A mask for k samples and any number of heads, on the device of `segment_ids`.

    Raises:
        ConfigError: `segment_ids` is missing, or not ascending before the padding.

    Examples:
        >>> import penstock as ps
        >>> from penstock.load.torch import block_mask, torch_loader
        >>> windows = ps.BestFit(256)(ps.open("corpus.pbin"))
        >>> with torch_loader(ps.Shuffle(windows, seed=0), global_batch=2) as loader:
        ...     mask = block_mask(next(iter(loader)))
        >>> mask.shape
        (2, 1, 256, 256)
    """
    flex: Any = require("torch.nn.attention.flex_attention", extra="torch")
    ids = _segment_ids(batch)
    samples, length = ids.shape
    if block_size < 1:
        raise ConfigError("block_size must be at least one token", found=f"block_size={block_size}")
    # Padding is the last segment of its row; the rest of the last block is a separate one.
    last = ids.amax(1, keepdim=True) + 1 if length else ids
    rising = torch.where(ids == 0, last, ids)
    if not bool((rising[:, 1:] >= rising[:, :-1]).all()):
        hint = "Build the mask from whole windows (the output of Chunk, Whole or BestFit) before context_parallel"
        raise ConfigError("segment_ids decrease within a row before its padding", hint=hint)
    blocks = -(-length // block_size)
    filled = torch.cat([rising, (last + 1).expand(samples, blocks * block_size - length)], 1)
    filled = filled.view(samples, blocks, block_size)
    low, high = filled[:, :, 0], filled[:, :, -1]  # ascending
    number = torch.arange(blocks, device=ids.device)
    below = number[:, None] > number
    shared = below & (high[:, None, :] >= low[:, :, None])
    one = low == high
    full = shared & one[:, :, None] & one[:, None, :]
    partial = (shared & ~full) | (number[:, None] == number)

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (ids[b, q] == ids[b, k])

    return flex.BlockMask.from_kv_blocks(
        *_listed(partial), *_listed(full), BLOCK_SIZE=block_size, mask_mod=mask_mod, seq_lengths=(length, length)
    )


def context_parallel(batch: dict[str, Any], rank: int, world: int, layout: Layout = "contiguous") -> dict[str, Any]:
    """Return a context-parallel rank's part of a batch: each field [k, L, ...] is cut along L.

    All peers must have the same batch. `positions`, `segment_ids` and `targets` are those of the whole windows, so a
    token has the same values on each rank. Fields of other shapes are unchanged, and so are `cu_seqlens` and
    `max_seqlen`, because ring attention needs those of the whole.

    With `layout="per-document"`, the documents of all windows are joined and window padding is dropped. Each document
    is padded with zeros to a multiple of 2 * world tokens and cut zigzag, so fields become [1, T, ...]. T is the same
    on each rank, but differs between batches. Padding has `loss_mask` False and `segment_ids` 0; documents are numbered
    from 1 over the batch. `cu_seqlens` (without padding) and `cu_seqlens_padded` are int32[n + 1] over the documents of
    all ranks, and `max_seqlen` is the longest padded document, as Transformer Engine's `thd` format expects.

    Args:
        batch: arrays or tensors by name. L is the length of `inputs`, `tokens`, `targets` or `segment_ids`.
        rank: this peer's number in its context-parallel group.
        world: number of peers.
        layout: `"contiguous"` returns piece `rank` of `world` as a view. `"zigzag"` returns pieces rank and 2 * world -
            1 - rank of 2 * world, as a copy, so that each rank has the same amount of work under a causal mask.
            `"per-document"` returns these pieces of each document and requires `segment_ids`.

    Returns:
        The batch of this rank.

    Raises:
        ConfigError: the rank or layout is invalid, no field has the length, or the length can't be divided. For
            `"per-document"`: `segment_ids` is missing, or `targets` comes without the `loss_mask` that excludes
            padding.

    Examples:
        >>> import penstock as ps
        >>> from penstock.load.torch import context_parallel
        >>> batch = ps.Chunk(16, labels="shift")(ps.open("corpus.pbin")).get_batch([0, 1])
        >>> context_parallel(batch, rank=0, world=2, layout="zigzag")["positions"][0]
        array([0, 1, 2, 3, 1, 2, 3, 4], dtype=int32)
    """
    if layout not in ("contiguous", "zigzag", "per-document"):
        expected = "'contiguous', 'zigzag' or 'per-document'"
        raise ConfigError("unknown layout", found=repr(layout), expected=expected)
    if not 0 <= rank < world:
        raise ConfigError(
            "context-parallel rank is out of range", found=f"{rank} of {world}", expected=f"0 to {world - 1}"
        )
    if layout == "per-document":
        return _cut_documents(batch, rank, 2 * world)
    shape = next((tuple(batch[name].shape[:2]) for name in _LENGTH_FIELDS if len(_shape(batch.get(name))) > 1), None)
    if shape is None:
        raise ConfigError("the length of the windows is unknown", expected=f"one of {', '.join(_LENGTH_FIELDS)}")
    pieces = world if layout == "contiguous" else 2 * world
    step, rest = divmod(shape[1], pieces)
    if rest:
        raise ConfigError(f"windows can't be cut into {pieces} equal pieces", found=f"{shape[1]} tokens")
    places = (rank,) if layout == "contiguous" else (rank, pieces - 1 - rank)

    def cut(value: Any) -> Any:
        if tuple(_shape(value)[:2]) != shape:
            return value
        parts = [value[:, place * step : (place + 1) * step] for place in places]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts, 1) if isinstance(value, np.ndarray) else torch.cat(parts, 1)

    return {name: cut(value) for name, value in batch.items()}


def _cut_documents(batch: dict[str, Any], rank: int, pieces: int) -> dict[str, Any]:
    """Return pieces `rank` and `pieces - 1 - rank` of each document, padded to a multiple of `pieces` tokens."""
    segment_ids = _segment_ids(batch)
    shape = tuple(segment_ids.shape)
    if "targets" in batch and tuple(_shape(batch.get("loss_mask"))[:2]) != shape:
        hint = "Add loss_mask to fields="
        raise ConfigError("padding of documents would be trained on: the batch has targets but no loss_mask", hint=hint)
    firsts, lengths = _document_ranges(segment_ids.cpu().numpy())
    steps = -(-lengths // pieces)
    counts = 2 * steps
    document = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    step = steps[document]
    offset = np.where(within < step, rank * step + within, (pieces - 2 - rank) * step + within)
    is_padding = offset >= lengths[document]
    index = np.where(is_padding, 0, firsts[document] + offset)

    def cut(value: Any) -> Any:
        if tuple(_shape(value)[:2]) != shape:
            return value
        if isinstance(value, np.ndarray):
            part = value.reshape(-1, *value.shape[2:])[index]
            part[is_padding] = 0
        else:
            part = value.flatten(0, 1)[torch.as_tensor(index, device=value.device)]
            part[torch.as_tensor(is_padding, device=value.device)] = 0
        return part[None]

    def like_ids(values: Any, dtype: Any) -> Any:
        ids = batch["segment_ids"]
        if isinstance(ids, np.ndarray):
            return values.astype(ids.dtype if dtype is None else dtype)
        return torch.as_tensor(values, dtype=ids.dtype if dtype is None else torch.int32, device=ids.device)

    padded = steps * pieces
    return {name: cut(value) for name, value in batch.items()} | {
        "segment_ids": like_ids(np.where(is_padding, 0, document + 1)[None], None),
        "cu_seqlens": like_ids(np.cumsum([0, *lengths]), np.int32),
        "cu_seqlens_padded": like_ids(np.cumsum([0, *padded]), np.int32),
        "max_seqlen": int(padded.max(initial=0)),
    }


def _document_ranges(segment_ids: Any) -> tuple[Any, Any]:
    """Return int64[n] twice: first place and length of each document in int[k, L] read row by row."""
    is_real = segment_ids != 0
    begins, ends = is_real.copy(), is_real.copy()
    is_border = segment_ids[:, 1:] != segment_ids[:, :-1]
    begins[:, 1:] &= is_border
    ends[:, :-1] &= is_border
    firsts = np.flatnonzero(begins)
    return firsts, np.flatnonzero(ends) + 1 - firsts


def broadcast(batch: dict[str, Any] | None, group: Any = None) -> dict[str, Any]:
    """Copy the batch of the group's first rank to all of its ranks.

    For tensor-parallel peers that don't read themselves.

    Peers that pass the same data-parallel rank to their loaders read the same batches without this function. It pays
    off if reading costs more than the network.

    Args:
        batch: dict of tensors and plain values; None on the other ranks.
        group: torch ProcessGroup; all ranks by default. Tensors arrive on the device they have at the first rank, which
            the group's backend must support.

    Returns:
        The batch, on every rank.

    Raises:
        ConfigError: the first rank has no batch.

    Examples:
        >>> import torch
        >>> import torch.distributed as dist
        >>> from penstock.load.torch import broadcast
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> broadcast({"inputs": torch.tensor([1, 2])})
        {'inputs': tensor([1, 2])}
        >>> dist.destroy_process_group()
    """
    distributed: Any = require("torch.distributed", extra="torch")
    source = distributed.get_global_rank(group or distributed.group.WORLD, 0)
    is_source = distributed.get_rank() == source
    told: list[Any] = [None]
    if is_source and batch is not None:
        tensors = {name for name, value in batch.items() if isinstance(value, torch.Tensor)}
        kinds = {name: (batch[name].shape, batch[name].dtype, batch[name].device.type) for name in tensors}
        told = [(list(batch), kinds, {name: value for name, value in batch.items() if name not in tensors})]
    distributed.broadcast_object_list(told, src=source, group=group)
    if told[0] is None:
        raise ConfigError("the group's first rank has no batch to broadcast", found=f"None on rank {source}")
    names, kinds, plain = told[0]
    found: dict[str, Any] = {}
    for name in names:
        if name not in kinds:
            found[name] = plain[name]
            continue
        shape, dtype, device = kinds[name]
        given = batch[name].contiguous() if is_source and batch is not None else None
        found[name] = torch.empty(shape, dtype=dtype, device=device) if given is None else given
        distributed.broadcast(found[name], src=source, group=group)
    return found


def _segment_ids(batch: dict[str, Any]) -> Any:
    if len(_shape(batch.get("segment_ids"))) != 2:
        hint = "Windows with labels have them. With fields=, add segment_ids"
        raise ConfigError("the batch has no segment_ids of shape [samples, length]", hint=hint)
    return torch.as_tensor(batch["segment_ids"])


def _listed(mask: Any) -> tuple[Any, Any]:
    """Return int32[k, 1, n] and int32[k, 1, n, n]: the number of blocks per row of `mask`, and their indices."""
    order = torch.argsort(mask.to(torch.int8), dim=-1, descending=True, stable=True)
    return mask.sum(-1, dtype=torch.int32)[:, None].contiguous(), order.to(torch.int32)[:, None].contiguous()


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, np.ndarray | torch.Tensor) else ()

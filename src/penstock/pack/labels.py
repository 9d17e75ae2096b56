"""Training columns from runs of tokens: inputs, targets, masks, segments, for whole batches."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import New
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.types import Batch, Field, IntArray, Sample, TokenArray

BoolArray = NDArray[np.bool_]

SEGMENTS = ("segment_ids", "positions", "cu_seqlens", "max_seqlen")
"""Columns of `segments`."""

SHIFT = ("tokens", "inputs", "targets", "loss_mask", *SEGMENTS)
"""Columns of `shifted`."""

START_ZERO = ("tokens", "inputs", "targets", "loss_mask", "is_seq_start", *SEGMENTS)
"""Columns of `start_zero`."""

_READ_TOKENS = 1 << 20


def starts_after(blocks: TokenArray, eos_id: int, first: bool | BoolArray = True) -> BoolArray:
    """Return bool[k, n]: whether each token of `blocks` (uint[k, n]) follows an EOS token.

    Args:
        blocks: windows of tokens.
        eos_id: the id that ends a document.
        first: bool[k] for the first token of each window: its predecessor isn't in `blocks`.
    """
    starts = np.empty(blocks.shape, dtype=np.bool_)
    np.equal(blocks[:, :-1], eos_id, out=starts[:, 1:])
    starts[:, 0] = first
    return starts


def shifted(blocks: TokenArray, starts: BoolArray | None, names: Collection[str] = SHIFT, new: New = np.empty) -> Batch:
    """Return the columns of k windows of L tokens; each token's target is the next one.

    Args:
        blocks: uint[k, L + 1]; tokens, inputs and targets are views of it.
        starts: bool[k, L + 1]: whether each token is the first of a document; None if no name `needs_starts`.
        names: columns to make, of `SHIFT`.
        new: allocates the columns.

    Returns:
        tokens, inputs, targets uint[k, L]; loss_mask bool[k, L], false if the target starts another document;
        and the columns of `segments`.
    """
    inputs = blocks[:, :-1]
    made: Batch = {"tokens": inputs, "inputs": inputs, "targets": blocks[:, 1:]}
    if starts is not None:
        if "loss_mask" in names:
            made["loss_mask"] = np.logical_not(starts[:, 1:], out=new(inputs.shape, np.bool_))
        made |= segments(starts[:, :-1], None, names, new)
    return {name: made[name] for name in names}


def start_zero(
    blocks: TokenArray, starts: BoolArray | None, names: Collection[str] = START_ZERO, new: New = np.empty
) -> Batch:
    """Return the columns of k windows of L targets; the input before a document's first token is 0.

    Args:
        blocks: uint[k, L].
        starts: bool[k, L]: whether each token is the first of a document; None if no name `needs_starts`.
        names: columns to make, of `START_ZERO`.
        new: allocates the columns.

    Returns:
        tokens, inputs, targets uint[k, L]; loss_mask bool[k, L], all true; is_seq_start bool[k, L] = `starts`;
        and the columns of `segments`.
    """
    made: Batch = {"tokens": blocks, "targets": blocks}
    if "loss_mask" in names:
        made["loss_mask"] = np.ones(blocks.shape, dtype=np.bool_)
    if starts is not None:
        if "inputs" in names:
            inputs = made["inputs"] = new(blocks.shape, blocks.dtype)
            inputs[:, 0] = 0
            np.multiply(blocks[:, :-1], ~starts[:, 1:], out=inputs[:, 1:])
        made["is_seq_start"] = starts
        made |= segments(starts, None, names, new)
    return {name: made[name] for name in names}


def needs_starts(names: Collection[str], kind: str) -> bool:
    """Return whether columns with these names require document borders; `kind` is that of the labels."""
    free = {"tokens", "targets", "inputs" if kind == "shift" else "loss_mask"}
    return not free.issuperset(names)


def segments(
    starts: BoolArray, used: IntArray | None = None, names: Collection[str] = SEGMENTS, new: New = np.empty
) -> Batch:
    """Return the segments of k windows of L tokens. The first token of a window always starts a segment.

    Args:
        starts: bool[k, L]: whether each token is the first of a document.
        used: int64[k]: tokens before the padding; all L by default.
        names: columns to make; other names are ignored.
        new: allocates the columns.

    Returns:
        segment_ids int32[k, L] from 1, 0 on padding; positions int32[k, L] from 0 in each segment, 0 on padding;
        cu_seqlens: a list of int32[n + 1], segment borders without the padding; max_seqlen int32[k].
    """
    if not set(SEGMENTS).intersection(names):
        return {}
    rows, length = starts.shape
    columns = np.arange(length, dtype=np.int32)
    begins = starts.copy()
    begins[:, 0] = True
    if used is not None:
        begins &= columns < used[:, None]
        begins |= columns == used[:, None]  # the padding is a last segment, blanked below
    flat = np.flatnonzero(begins)
    row = flat // length
    counts = np.bincount(row, minlength=rows)
    row_first = np.cumsum(counts) - counts  # each row has a segment: its tokens, or its padding
    first_columns = (flat - row * length).astype(np.int32)
    sizes = np.empty(len(flat), np.int64)
    np.subtract(flat[1:], flat[:-1], out=sizes[:-1])
    sizes[-1:] = rows * length - flat[-1:]
    real = None if used is None else first_columns < used[row]
    made: Batch = {}
    if "segment_ids" in names:
        ids = np.arange(1, len(flat) + 1, dtype=np.int32)
        ids -= row_first.astype(np.int32)[row]
        if real is not None:
            ids *= real
        made["segment_ids"] = new(starts.shape, np.int32)
        made["segment_ids"][:] = np.repeat(ids, sizes).reshape(starts.shape)
    if "positions" in names:
        firsts = np.repeat(first_columns, sizes).reshape(starts.shape)
        positions = np.subtract(columns, firsts, out=new(starts.shape, np.int32))
        if used is not None:
            positions[columns >= used[:, None]] = 0
        made["positions"] = positions
    if "cu_seqlens" in names:
        ends = np.full(rows, length) if used is None else used
        chosen = slice(None) if real is None else real
        made["cu_seqlens"] = _borders(first_columns[chosen], row[chosen], ends)
    if "max_seqlen" in names:
        longest = sizes if real is None else sizes * real
        made["max_seqlen"] = np.maximum.reduceat(longest, row_first).astype(np.int32) if rows else counts.astype("i4")
    return made


def _borders(columns: NDArray[np.int32], row: IntArray, ends: IntArray) -> list[NDArray[np.int32]]:
    """Return a list of int32[n + 1]: for each row the starts of its segments, and its end."""
    joined = np.empty(len(columns) + len(ends), dtype=np.int32)
    joined[np.arange(len(columns)) + row] = columns
    stops = np.cumsum(np.bincount(row, minlength=len(ends))) + np.arange(len(ends))
    joined[stops] = ends
    cuts = [0, *(stops + 1).tolist()]
    return [joined[start:stop] for start, stop in itertools.pairwise(cuts)]


def first_row(batch: Batch) -> Sample:
    """Return the sample of a batch of one."""
    sample = {name: column[0] for name, column in batch.items()}
    if "max_seqlen" in sample:
        sample["max_seqlen"] = int(sample["max_seqlen"])
    return sample


def count_without_targets(windows: Source[Any], length: int) -> int:
    """Return how many windows have a `loss_mask` without a single target."""
    at_once = max(1, _READ_TOKENS // length)
    count = 0
    for start in range(0, len(windows), at_once):
        indices = np.arange(start, min(start + at_once, len(windows)), dtype=np.int64)
        masks = windows.get_batch(indices)["loss_mask"]
        count += len(indices) - int(np.count_nonzero(masks.any(axis=1)))
    return count


def require_labels(labels: str | None) -> None:
    """Raise `ConfigError` if windows have no labels, and so no targets to count."""
    if labels is None:
        hint = "Pass labels='shift'"
        raise ConfigError("windows without labels have no targets to count", found="labels=None", hint=hint)


def fields(dtype: str, length: int, *, start_zero: bool) -> tuple[Field, ...]:
    shape = (length,)
    window = (("tokens", dtype), ("inputs", dtype), ("targets", dtype), ("loss_mask", "bool"))
    window += (("is_seq_start", "bool"),) if start_zero else ()
    window += (("segment_ids", "int32"), ("positions", "int32"))
    return (
        *(Field(name, "tokens" if kind == dtype else "ndarray", kind, shape) for name, kind in window),
        Field("cu_seqlens", "ndarray", "int32", (None,)),
        Field("max_seqlen", "int", "int32", ()),
    )


def mask_between(targets: NDArray[np.integer[Any]], begin_id: int, end_id: int) -> BoolArray:
    """Return bool[k, L] or bool[L]: which targets are between a begin marker and the next end marker.

    A begin marker without an end keeps everything up to the end of its row. If one of the markers is missing in all
    rows, nothing is kept.

    Args:
        targets: int[k, L], or int[L].
        begin_id: the id that opens a run of targets to train on.
        end_id: the id that closes it.

    Raises:
        ConfigError: both ids are equal, or the markers of a row don't alternate, starting with a begin marker.
    """
    if begin_id == end_id:
        raise ConfigError("the markers must differ", found=f"id {begin_id} for both")
    begins, ends = targets == begin_id, targets == end_id
    if not (begins.any() and ends.any()):
        return np.zeros(targets.shape, dtype=np.bool_)
    # A begin marker counts from the target after it, an end marker from its own place: neither is kept.
    steps = np.negative(ends, dtype=np.int32)
    steps[..., 1:] += begins[..., :-1]
    depth = np.cumsum(steps, axis=-1, dtype=np.int32)
    wrong = (depth < 0) | (depth > 1)
    # A second begin directly before an end: both changes are at one place and cancel.
    wrong[..., 1:] |= begins[..., :-1] & ends[..., 1:] & (depth[..., :-1] == 1)
    if wrong.any():
        *row, place = np.argwhere(wrong)[0].tolist()
        raise ConfigError(
            f"the markers{f' of row {row[0]}' if row else ''} don't alternate",
            found=f"an end marker without a begin at {place}" if depth[*row, place] < 0 else f"two begins by {place}",
            expected=f"id {begin_id}, then id {end_id}",
            hint="Truncate or pad documents so that no window begins inside a marked range",
        )
    return depth == 1

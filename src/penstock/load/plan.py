"""Prediction of a run's reads, from indexes and a few samples of each source."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock._access import capability, place_of
from penstock._kinds import HasHorizon, is_finite, is_lane_stream, is_stream, is_token_source
from penstock._tree import ShownDict
from penstock.errors import ConfigError
from penstock.load.excluded import lists_of
from penstock.mix import Blend, Epochs, Stages
from penstock.mix.repeats import repeats_by_content
from penstock.mix.shares import requested_shares
from penstock.node.blocks import own_blocks
from penstock.node.walk import leaves
from penstock.order import OrderedStream
from penstock.types import IntArray

MOST_EPOCHS = 10.0
SMALL_SHARE = 0.001
MOST_PADDING = 0.2
_LOOKED_AT = 32
_MOST_POSITIONS = 1 << 60


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """Planned reads of one source.

    Attributes:
        path: its place in the printed tree.
        epochs: reads / samples.
        repeats: how often its most frequently read sample is read again.
        tokens: tokens read in the run, without padding; None if samples hold no tokens.
        padding: share of padding in token windows, estimated from some samples; None if samples hold no tokens.
        size_bytes: bytes read, estimated from some samples; None if their location is unknown.
        requests: reads of files or ranges; one per block if blocks are read whole.
        distinct_bytes: bytes that are read at least once: the required cache size for remote data.
        is_remote: whether the data is read over a network.
        looked_at: number of samples from which padding, bytes and requests are estimated.
    """

    path: str
    samples: int
    reads: int
    epochs: float
    repeats: int
    share: float
    tokens: int | None
    padding: float | None
    size_bytes: int | None
    requests: int
    distinct_bytes: int | None
    is_remote: bool
    looked_at: int


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    source: Any
    reads: int
    is_by_blocks: bool


def once(data: Any) -> int:
    """Return the positions after which every order has finished its first epoch; of a source, its number of samples."""
    if not is_stream(data):
        return len(data)
    low, high = 0, 1
    while high < _MOST_POSITIONS and not _all_read(data, high):
        low, high = high, high * 2
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _all_read(data, middle) else (middle, high)
    return high


def _all_read(node: Any, reads: int) -> bool:
    size = capability(node, "size") or capability(node, "epoch_size")
    if isinstance(size, int):
        return reads >= size
    streams = {name: child for name, child in node.children().items() if is_stream(child)}
    if not streams:
        return True
    reached = node.horizon(reads)[1] if isinstance(node, HasHorizon) else dict.fromkeys(streams, reads)
    # A stage that ends early never finishes its epoch, and doesn't need to.
    lengths = dict(zip(streams, np.diff([0, *node.borders]).tolist(), strict=False)) if isinstance(node, Stages) else {}
    return all(
        _all_read(child, reached.get(name, 0)) or reached.get(name, 0) >= lengths.get(name, _MOST_POSITIONS)
        for name, child in streams.items()
    )


def plan(
    data: Any, *, global_batch: int | None = None, world: int | None = None, steps: int | None = None,
    opened_seconds: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Return the predicted reads of a run over a stream, or of one pass over a source.

    Raises:
        ConfigError: steps without a global batch, or a batch size that isn't divisible by the ranks.
    """
    if steps is not None and global_batch is None:
        raise ConfigError("the number of samples per step is unknown", hint="Pass the global batch")
    if global_batch is not None and world is not None and global_batch % world:
        found, below = f"a batch of {global_batch} on {world} ranks", global_batch // world * world
        nearest_ones = f"{below} or {below + world}" if below else f"{world}"
        raise ConfigError("the ranks don't divide the global batch", found=found, expected=nearest_ones)
    inner: Any = next(iter(data.children().values())) if is_lane_stream(data) else data
    stop = _stop(inner, global_batch, steps)
    found = list(_sources(inner, "", stop, False))
    sources = [_planned(one, stop) for one in found]
    start_up = opened_seconds + _first_samples(inner, global_batch or 1)
    tokens = [one.tokens for one in sources if one.tokens is not None]
    sizes = [one.size_bytes for one in sources if one.size_bytes is not None]
    cached = [one.distinct_bytes or 0 for one in sources if one.is_remote]
    return ShownDict(
        {
            "samples": stop,
            "steps": None if global_batch is None else -(-stop // global_batch),
            "global_batch": global_batch,
            "world": world,
            "tokens": sum(tokens) if tokens else None,
            "padding": _mean_padding(sources),
            "bytes": sum(sizes) if sizes else None,
            "requests": sum(one.requests for one in sources),
            "cache_bytes": sum(cached),
            "start_up_seconds": round(start_up, 4),
            "sources": [_as_json(one) for one in sources],
            "warnings": list(_warnings(data, inner, list(zip(found, sources, strict=True)), global_batch, world)),
        }
    )


def _stop(data: Any, global_batch: int | None, steps: int | None) -> int:
    if steps is None or global_batch is None:
        return once(data)
    stop = steps * global_batch
    return stop if is_stream(data) else min(stop, len(data))


def _as_json(one: SourcePlan) -> dict[str, Any]:
    row = asdict(one)
    row["bytes"] = row.pop("size_bytes")
    return row


def _sources(node: Any, path: str, reads: int, is_by_blocks: bool) -> Iterable[_Found]:
    """Yield each source that an order or a pass draws from, with its samples read before `reads` positions."""
    children: Mapping[str, Any] = node.children()
    if isinstance(node, OrderedStream):
        source: Any = node.source
        mode = node.recipe().get("mode") == "blocks"
        yield from _sources(source, path, reads, mode)
    elif isinstance(node, Epochs):
        for name, (child, count) in _of_passes(node, reads).items():
            yield from _sources(child, f"{path}/{name}" if path else name, count, is_by_blocks)
    elif isinstance(node, HasHorizon):
        reached = node.horizon(max(1, reads))[1] if reads else dict.fromkeys(children, 0)
        streams = {name: child for name, child in children.items() if is_stream(child)}
        for name, child in streams.items():
            below = path if len(streams) == 1 else f"{path}/{name}" if path else name
            yield from _sources(child, below, min(reads, reached.get(name, 0)), is_by_blocks)
    elif is_finite(node):
        yield _Found(path, node, reads, is_by_blocks)
    else:
        for child in children.values():
            yield from _sources(child, path, reads, is_by_blocks)


def _of_passes(node: Epochs, reads: int) -> dict[str, tuple[Any, int]]:
    passes, rest = divmod(reads, max(1, len(node)))
    # In a shuffled pass, children are read in proportion.
    share = rest / max(1, len(node))
    return {name: (child, round(node.counts[name] * (passes + share))) for name, child in node.children().items()}


def _planned(one: _Found, stop: int) -> SourcePlan:
    source, size = one.source, len(one.source)
    epochs = one.reads / size if size else 0.0
    looked_at = np.unique(np.linspace(0, size - 1, min(size, _LOOKED_AT), dtype=np.int64)) if size else np.empty(0, int)
    each, ranges = _ranges_of_sample(source, looked_at)
    room, padding = _tokens_and_padding(source, looked_at)
    tokens = None if room is None else round(one.reads * room * (1 - (padding or 0.0)))
    requests = round(one.reads * ranges)
    blocks = own_blocks(source) if one.is_by_blocks else None
    if blocks is not None and blocks.count:
        requests = round(epochs * blocks.count)
    return SourcePlan(
        path=one.path or "source",
        samples=size,
        reads=one.reads,
        epochs=round(epochs, 6),
        repeats=max(0, -(-one.reads // size) - 1) if size else 0,
        share=one.reads / stop if stop else 0.0,
        tokens=tokens,
        padding=padding,
        size_bytes=None if each is None else round(each * one.reads),
        requests=requests,
        distinct_bytes=None if each is None else round(each * min(one.reads, size)),
        is_remote=_is_remote(source),
        looked_at=len(looked_at),
    )


def _ranges_of_sample(source: Any, indices: IntArray) -> tuple[float | None, float]:
    """Return the bytes per sample, None if unknown, and the number of ranges that they are in."""
    sizes: list[int] = []
    ranges: list[int] = []
    for index in indices.tolist():
        extents = place_of(source, index).extents
        if extents is None:
            return None, 1.0
        sizes.append(sum(extent.length_bytes for extent in extents))
        ranges.append(len(extents))
    return (float(np.mean(sizes)), float(np.mean(ranges))) if sizes else (None, 1.0)


def _tokens_and_padding(source: Any, indices: IntArray) -> tuple[float | None, float | None]:
    """Return the token places per sample, and the share of padding in them."""
    if is_token_source(source):
        return (source.num_tokens / len(source) if len(source) else None), 0.0
    shape = next((one.shape for one in source.schema.fields if one.kind == "tokens" and one.name == "tokens"), None)
    if shape is None or len(shape) != 1 or shape[0] is None:
        return None, None
    if not any(one.name == "segment_ids" for one in source.schema.fields) or not len(indices):
        return float(shape[0]), 0.0
    segments: Any = np.asarray(source.get_batch(indices)["segment_ids"])
    return float(shape[0]), float((segments == 0).mean())


def _is_remote(node: Any) -> bool:
    paths = (str(leaf.recipe().get("path", "")) for _, leaf in leaves(node))
    return any("://" in path and not path.startswith("file://") for path in paths)


def _first_samples(data: Any, count: int) -> float:
    """Return the seconds to the first samples: at most 32 of them are read."""
    began = time.perf_counter()
    few = min(count, _LOOKED_AT, _MOST_POSITIONS if is_stream(data) else len(data))
    try:
        data.get_batch(np.arange(few, dtype=np.int64))
    except Exception:  # a function that may not run, or an unreadable sample: the plan is valid without it
        return 0.0
    return time.perf_counter() - began


def _mean_padding(sources: list[SourcePlan]) -> float | None:
    known = [(one.reads, one.padding) for one in sources if one.padding is not None]
    total = sum(reads for reads, _ in known)
    return sum(reads * padding for reads, padding in known) / total if total else None


def _warnings(
    data: Any, inner: Any, sources: list[tuple[_Found, SourcePlan]], global_batch: int | None, world: int | None
) -> Iterable[str]:
    if is_lane_stream(data):
        yield "packing on the fly: the number of outputs is only known once the samples are read"
    for place, source in lists_of(inner):
        count = len(source.exclusions.indices)
        are = "is" if count == 1 else "are"
        yield f"{place}: {count:,} of its {len(source):,} samples {are} excluded (replaced or masked)"
    for found, one in sources:
        if one.epochs > MOST_EPOCHS:
            yield (
                f"{one.path}: its {one.samples:,} samples are read {one.epochs:,.1f} times. Use a smaller weight or "
                "more data to repeat them less"
            )
        if one.samples and not one.reads:
            yield f"{one.path}: no samples of it are read"
        elif 0 < one.share < SMALL_SHARE:
            yield f"{one.path}: only {one.share:.3%} of the run, {one.reads:,} samples"
        if one.padding is not None and one.padding > MOST_PADDING:
            yield f"{one.path}: {one.padding:.0%} of its tokens are padding; BestFit or Chunk pads less"
        if one.is_remote and one.requests >= one.reads > 1 and not found.is_by_blocks:
            yield f'{one.path}: remote data is read sample by sample; mode="blocks" reads each block about once'
    yield from repeats_by_content(inner)
    yield from _about_lanes(inner, world)
    yield from _about_weights(inner, "")
    if global_batch is not None and not is_stream(inner) and len(inner) % global_batch:
        left = len(inner) % global_batch
        yield f'the last batch has {left} of {global_batch} samples: tail="pad" repeats some, tail="drop" drops {left}'


def _about_lanes(data: Any, world: int | None) -> Iterable[str]:
    lanes = data.lanes if is_stream(data) else 1
    if world is not None and lanes > 1 and lanes % world:
        yield f"{lanes} lanes, {world} ranks: several ranks read each block. Let the ranks divide the lanes"


def _about_weights(node: Any, path: str) -> Iterable[str]:
    if isinstance(node, Blend):
        requested = requested_shares(node.weights)
        for name, count in node.counts.items():
            share, error = count / node.block_size, count / node.block_size / requested[name] - 1
            if abs(error) > 0.01:
                yield (
                    f"{path}{name}: the share is {share:.4%} instead of {requested[name]:.4%} ({error:+.0%}): "
                    f"shares are multiples of 1/{node.block_size:,}. "
                    "Blend small sources together first, then add that blend"
                )
    for name, child in node.children().items():
        if is_stream(child):
            yield from _about_weights(child, f"{path}{name}/")

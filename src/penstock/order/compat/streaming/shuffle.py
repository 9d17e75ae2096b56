"""Bit-exact versions of the five shuffles of MosaicML Streaming, in a fraction of their memory.

All work on *units*: runs of consecutive ids, one per shard (or per piece of a shard that is taken several times).
Random numbers come from `numpy.random.default_rng` in the same order as in the original. Checked against streaming
0.13.0.

Memory: 4 bytes per id (8 from 2^32 ids on), twice that for `py2s`; `py1e` adds 32 bytes per id for about two blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.types import IntArray

Rng = np.random.Generator

# py1e: minimum number of placed ids before those that can't move any more are removed.
_FEWEST_PLACED = 1 << 20


class UnknownAlgorithm(ConfigError, KeyError):
    """Unknown algorithm; the original's `KeyError`."""


def shuffled_ids(
    algo: str, unit_sizes: IntArray, canonical_nodes: int, seed: int, epoch: int, block_size: int
) -> NDArray[Any]:
    """Return uint32[n] (int64 from 2^32 on): all ids in the order of an epoch.

    Args:
        algo: `naive`, `py1s`, `py2s`, `py1br` or `py1e`.
        unit_sizes: int64[k]: ids of each unit.
        canonical_nodes: number of independently shuffled parts.
        seed: 0 or more.
        epoch: used as `seed + epoch`, as in the original.
        block_size: about how far `py1br` and `py1e` move an id.

    Raises:
        ConfigError: the algorithm is unknown, the block is too small, or (`py1e`) a part has no ids.
    """
    if algo not in SHUFFLES:
        raise UnknownAlgorithm("unknown shuffle_algo", found=repr(algo), expected=", ".join(SHUFFLES))
    fewest = {"py1br": 2, "py1e": 1}.get(algo)
    if fewest is not None and block_size < fewest:
        raise ConfigError(
            f"{algo} can't shuffle with this block size",
            found=f"block size {block_size}",
            expected=f"{fewest} or more",
            hint="Raise shuffle_block_size; some batching methods give each stream its share of it",
        )
    sizes = np.asarray(unit_sizes, dtype=np.int64)
    return SHUFFLES[algo](sizes, canonical_nodes, seed, epoch, block_size)


@dataclass(frozen=True, slots=True)
class _Spans:
    """Runs of consecutive ids, assigned to parts: int64[k] each, and `parts` int64[canonical_nodes + 1].

    Attributes:
        begins: first id of each run.
        sizes: ids of each run.
        parts: runs `[parts[p], parts[p + 1])` belong to part p.
    """

    begins: IntArray
    sizes: IntArray
    parts: IntArray

    def shuffle_part(self, part: int, rng: Rng) -> None:
        here = slice(self.parts[part], self.parts[part + 1])
        order = _shuffled_range(self.parts[part + 1] - self.parts[part], rng)
        self.begins[here] = self.begins[here][order]
        self.sizes[here] = self.sizes[here][order]

    def starts(self) -> IntArray:
        """Return int64[k + 1]: place of each run's first id, and the number of ids."""
        return np.concatenate([[0], np.cumsum(self.sizes)])


def _naive(sizes: IntArray, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> NDArray[Any]:
    return _shuffled_range(int(sizes.sum()), np.random.default_rng(seed + epoch))


def _py1s(sizes: IntArray, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> NDArray[Any]:
    rng, spans = _assigned(sizes, canonical_nodes, seed, epoch)
    ids = _filled(spans)
    _shuffle_runs(ids, spans.starts(), rng)
    return ids


def _py2s(sizes: IntArray, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> NDArray[Any]:
    run_rng, rng = np.random.default_rng(seed), np.random.default_rng(seed + epoch)
    order = _shuffled_range(len(sizes), run_rng)
    whole = _Spans(_begins(sizes)[order], sizes[order], np.empty(0, np.int64))
    source = _filled(whole)
    _shuffle_runs(source, whole.starts(), run_rng)
    # Runs of places in `source` from here on.
    spans = _cut(_Spans(whole.starts()[:-1], whole.sizes, whole.parts), canonical_nodes)
    ids = np.empty_like(source)
    place = 0
    for part in range(canonical_nodes):
        spans.shuffle_part(part, rng)
        here = slice(spans.parts[part], spans.parts[part + 1])
        for begin, size in zip(spans.begins[here].tolist(), spans.sizes[here].tolist(), strict=True):
            run = ids[place : place + size]
            run[:] = source[begin : begin + size]
            rng.shuffle(run)
            place += size
    return ids


def _py1br(sizes: IntArray, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> NDArray[Any]:
    rng, spans = _assigned(sizes, canonical_nodes, seed, epoch)
    ids = _filled(spans)
    low, high = int(0.75 * block_size), int(1.25 * block_size)
    staggers = rng.integers(0, low, (canonical_nodes,)).tolist()
    borders = spans.starts()[spans.parts].tolist()
    for part, stagger in enumerate(staggers):
        first, last = borders[part], borders[part + 1]
        # All sizes are drawn before the first block is shuffled.
        blocks: list[tuple[int, int]] = []
        place = first
        while place < last:
            size = int(rng.integers(low, high))
            block = max(place - stagger, first), min(place + size - stagger, last)
            blocks.append(block)
            place += block[1] - block[0]
        for start, stop in blocks:
            rng.shuffle(ids[start:stop])
    return ids


def _py1e(sizes: IntArray, canonical_nodes: int, seed: int, epoch: int, block_size: int) -> NDArray[Any]:
    rng, spans = _assigned(sizes, canonical_nodes, seed, epoch)
    ids = _filled(spans)
    starts = spans.starts()
    borders = starts[spans.parts]
    for part in range(canonical_nodes):
        runs = slice(spans.parts[part], spans.parts[part + 1])
        if borders[part] == borders[part + 1]:
            raise ConfigError(
                "The number of samples assigned to a canonical node must be 1 or more for py1e",
                found=f"{len(ids)} samples, num_canonical_nodes={canonical_nodes}",
            )
        _shuffle_runs(ids, starts[spans.parts[part] : spans.parts[part + 1] + 1], rng)
        _spread(ids[borders[part] : borders[part + 1]], spans.sizes[runs].tolist(), block_size, rng)
    return ids


def _spread(ids: NDArray[Any], sizes: list[int], block_size: int, rng: Rng) -> None:
    """Move each id by a random shift of up to about half a block, in place.

    An id's key is its place and a shift; ids are sorted by key. No later id has a key below its run's start minus the
    largest shift, so smaller keys are final. Equal keys, about one in 10^8 ids, may be in
    either order; in the original that depends on the CPU.
    """
    low, high = int(0.75 * block_size), int(1.25 * block_size)
    largest_shift = high / 2
    enough = max(_FEWEST_PLACED, high)
    waiting_keys: list[NDArray[np.float64]] = []
    waiting_ids: list[NDArray[Any]] = []
    waiting = place = done = 0
    for number, size in enumerate(sizes):
        reach = max((int(rng.integers(low, high)) - size) / 2, 0)
        shifts = rng.uniform(max(-reach, -place), min(reach, len(ids) - place - size), size)
        waiting_keys.append(np.arange(place, place + size) + shifts)
        # Ids that have been read may be overwritten by final ones.
        waiting_ids.append(ids[place : place + size].copy())
        place += size
        waiting += size
        last = number + 1 == len(sizes)
        if waiting < enough + largest_shift and not last:
            continue
        keys, moved = np.concatenate(waiting_keys), np.concatenate(waiting_ids)
        final = np.full(len(keys), True) if last else keys < place - largest_shift
        ready = moved[final][np.argsort(keys[final])]
        ids[done : done + len(ready)] = ready
        done += len(ready)
        waiting_keys, waiting_ids = [keys[~final]], [moved[~final]]
        waiting -= len(ready)


SHUFFLES: dict[str, Callable[[IntArray, int, int, int, int], NDArray[Any]]] = {
    "naive": _naive,
    "py1s": _py1s,
    "py2s": _py2s,
    "py1br": _py1br,
    "py1e": _py1e,
}


def _assigned(sizes: IntArray, canonical_nodes: int, seed: int, epoch: int) -> tuple[Rng, _Spans]:
    """Return the epoch's generator, and the units assigned to parts, in the epoch's order within each."""
    order = _shuffled_range(len(sizes), np.random.default_rng(seed))
    spans = _cut(_Spans(_begins(sizes)[order], sizes[order], np.empty(0, np.int64)), canonical_nodes)
    rng = np.random.default_rng(seed + epoch)
    for part in range(canonical_nodes):
        spans.shuffle_part(part, rng)
    return rng, spans


def _cut(spans: _Spans, parts: int) -> _Spans:
    """Return the runs assigned to parts of equal size (within one id), split at the ends of parts."""
    ends = np.cumsum(spans.sizes)
    total = int(ends[-1]) if len(ends) else 0
    part_ends = np.array([total * (part + 1) // parts for part in range(parts)], dtype=np.int64)
    inside = np.unique(part_ends[part_ends < total])
    owner = np.searchsorted(ends, inside)
    cuts = ends[owner] - spans.sizes[owner] < inside
    cuts &= inside < ends[owner]
    inside, owner = inside[cuts], owner[cuts]
    owners = np.insert(np.arange(len(ends)), owner, owner)
    piece_ends = np.insert(ends, owner, inside)
    piece_starts = np.concatenate([[0], piece_ends[:-1]])[: len(piece_ends)]
    begins = spans.begins[owners] + piece_starts - (ends - spans.sizes)[owners]
    part_of = np.searchsorted(part_ends, piece_ends)
    return _Spans(begins, piece_ends - piece_starts, np.searchsorted(part_of, np.arange(parts + 1)))


def _begins(sizes: IntArray) -> IntArray:
    return np.cumsum(sizes) - sizes


def _filled(spans: _Spans) -> NDArray[Any]:
    starts = spans.starts()
    ids = np.empty(int(starts[-1]), dtype=_dtype(int(starts[-1])))
    for begin, (start, stop) in zip(spans.begins.tolist(), pairwise(starts.tolist()), strict=True):
        ids[start:stop] = np.arange(begin, begin + stop - start)
    return ids


def _shuffle_runs(ids: NDArray[Any], starts: IntArray, rng: Rng) -> None:
    borders = starts.tolist()
    for start, stop in pairwise(borders):
        rng.shuffle(ids[start:stop])


def _shuffled_range(n: int, rng: Rng) -> NDArray[Any]:
    places = np.arange(n, dtype=_dtype(n))
    rng.shuffle(places)
    return places


def _dtype(n: int) -> type[np.unsignedinteger[Any]] | type[np.signedinteger[Any]]:
    return np.uint32 if n < 1 << 32 else np.int64

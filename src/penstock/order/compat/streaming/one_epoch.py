"""Bit-exact sample orders of MosaicML Streaming: one epoch of a run, for its seed, nodes, ranks and workers.

An epoch is drawn from the shards (`sampling`), shuffled (`shuffle`) and assigned to
nodes and ranks (`partition`). How streams share batches is determined here:

* `random`: all streams are shuffled and assigned as one.
* `stratified`: each global batch has the same number of samples of each stream; the smallest one ends the epoch.
* `per_stream`: each global batch is of one stream; the streams' batches are randomly interleaved.
* `device_per_stream`: each batch of a rank is of one stream.

The last three drop incomplete batches, and begin a resumed epoch at a whole global batch.

Memory during the computation of an epoch: 8 bytes per sample and a few MB, 12 if streams are sampled in part or by
batches (twice that from 2^32 samples on). Checked against streaming 0.13.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.order.compat.streaming.partition import (
    Cluster,
    grid_of,
    is_relaxed,
    padded,
    partition,
    relaxed_batches,
    steps_of,
)
from penstock.order.compat.streaming.sampling import Drawn, Shares, drawn_ids
from penstock.order.compat.streaming.shuffle import SHUFFLES, UnknownAlgorithm, shuffled_ids
from penstock.types import IntArray

VERSION = "streaming-0.13"

_CHUNK = 1 << 20


class TooSmall(ConfigError):
    """Stream without a sample in a global batch."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamingRun:
    """Everything that determines a run's epochs, as resolved by the original from its arguments.

    Attributes:
        cluster: nodes, ranks, workers and batch; with replication, those of independently reading ranks.
        shards: shards of each stream, int64[shards]: samples.
        shares: samples of each stream per epoch.
        canonical_nodes: independently shuffled parts.
        block_size: block size of the block-wise shuffles.
        shuffle_algo, batching_method, partition_algo, sampling_method, sampling_granularity: as in the original.
        first_nodes: nodes at the start of a resumed run.
        paths: paths of the streams, for errors; "" if a stream has none.
    """

    cluster: Cluster
    shards: tuple[IntArray, ...]
    shares: Shares
    canonical_nodes: int
    block_size: int
    seed: int
    shuffle: bool
    shuffle_algo: str
    batching_method: str
    partition_algo: str
    sampling_method: str
    sampling_granularity: int
    first_nodes: int | None = None
    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        cluster = self.cluster
        counts = (cluster.nodes, cluster.ranks_per_node, cluster.workers, cluster.batch, self.canonical_nodes)
        if min(counts) < 1 or (self.first_nodes is not None and self.first_nodes < 1):
            raise ConfigError("nodes, ranks, workers and batches must be at least 1", found=counts)
        if self.seed < 0:
            raise ConfigError("numpy's generator doesn't accept negative seeds", found=self.seed, expected="0 or more")
        for name, value, known in (
            ("shuffle_algo", self.shuffle_algo, tuple(SHUFFLES)),
            ("batching_method", self.batching_method, tuple(_GRIDS)),
            ("partition_algo", self.partition_algo, ("orig", "relaxed")),
            ("sampling_method", self.sampling_method, ("balanced", "fixed")),
        ):
            if value not in known:
                raise UnknownAlgorithm(f"unknown {name}", found=repr(value), expected=", ".join(known))

    @property
    def changes(self) -> bool:
        """Whether random choices besides the shuffle change with the epoch."""
        return self.shuffle and self.sampling_method == "balanced"

    @property
    def needs_state(self) -> bool:
        """Whether these numbers of nodes are only valid with a resumed run's original numbers."""
        nodes = self.cluster.nodes
        uneven = max(nodes, self.canonical_nodes) % min(nodes, self.canonical_nodes) != 0
        return uneven and self.first_nodes is None

    @property
    def relaxed(self) -> bool:
        """Whether the global batches of another number of nodes are preserved."""
        return is_relaxed(self.partition_algo, self.canonical_nodes, self.cluster.nodes, self.first_nodes)


def epoch_grid(run: StreamingRun, epoch: int, drop_first: int = 0) -> NDArray[Any]:
    """Return [steps, ranks]: the samples of an epoch in the layout of `partition`, padded to whole batches.

    Raises:
        ConfigError: the arguments don't match each other or the data.
    """
    grid = _GRIDS[run.batching_method](run, epoch, drop_first)
    return padded(grid, run.cluster.batch * run.cluster.workers)


def epoch_samples(run: StreamingRun, drop_first: int = 0) -> int:
    """Return the samples of an epoch over all ranks, without padding, by arithmetic only.

    Raises:
        ConfigError: the arguments don't match each other or the data.
    """
    cluster = run.cluster
    if run.batching_method == "random":
        _check_drop_first(run, drop_first)
        return _steps(run, run.shares.epoch_size, drop_first) * _first_ranks(run)
    dropped = drop_first // cluster.global_batch
    if run.batching_method == "device_per_stream":
        batches = sum(_device_batches(run, stream) for stream in range(len(run.shards)))
        return max(0, batches * cluster.nodes * cluster.batch - dropped * cluster.global_batch)
    if run.batching_method == "stratified":
        parts = stratified_parts(run)
        sizes = [_stratified_samples(run, stream) // part for stream, part in enumerate(parts)]
        return max(0, min(sizes) - dropped) * cluster.global_batch
    batches = sum(_global_batches(run, stream) for stream in range(len(run.shards)))
    return max(0, batches - dropped) * cluster.global_batch


def stratified_parts(run: StreamingRun) -> list[int]:
    """Return the samples of each stream in a global batch of `stratified`.

    Raises:
        ConfigError: a stream has no sample in it.
    """
    whole = run.cluster.global_batch
    wanted = whole * run.shares.proportions
    parts = np.array([int(share) for share in run.shares.proportions * whole], dtype=np.int64)
    # The default sort, as in the original: streams with equal remainders are in its order.
    parts[np.flip(np.argsort(wanted - parts))[: whole - int(parts.sum())]] += 1
    if (parts < 1).any():
        stream = int(np.flatnonzero(parts < 1)[0])
        raise TooSmall(
            f"Number of samples for stream {stream} is 0 in a global batch",
            path=_path(run, stream),
            found=f"{parts.tolist()} samples of each stream in {whole}",
            hint="Use a larger global batch, or give that stream a larger share",
        )
    return parts.tolist()


def _random(run: StreamingRun, epoch: int, drop_first: int) -> NDArray[Any]:
    _check_drop_first(run, drop_first)
    streams = range(len(run.shards))
    # Without a name here, the ids are freed as soon as they are assigned.
    if run.relaxed:
        return grid_of(_relaxed(run, _ordered(run, streams, epoch, run.block_size), drop_first))
    return partition(_ordered(run, streams, epoch, run.block_size), run.canonical_nodes, run.cluster, drop_first)


def _stratified(run: StreamingRun, epoch: int, drop_first: int) -> NDArray[Any]:
    parts = stratified_parts(run)
    one_node = Cluster(1, run.cluster.ranks_per_node, run.cluster.workers, 1)
    columns: list[NDArray[Any]] = []
    for stream, part in enumerate(parts):
        with _naming(run, stream):
            samples = partition(_of_stream(run, stream, epoch), run.canonical_nodes, one_node).reshape(-1)
        columns.append(samples[: len(samples) // part * part].reshape(-1, part))
    rows = min(map(len, columns))
    return _grid_of_global_batches(run, np.concatenate([column[:rows] for column in columns], axis=1), drop_first)


def _per_stream(run: StreamingRun, epoch: int, drop_first: int) -> NDArray[Any]:
    cluster = run.cluster
    streams: list[NDArray[Any]] = []
    for stream in range(len(run.shards)):
        count = _global_batches(run, stream)
        with _naming(run, stream):
            ids = _of_stream(run, stream, epoch)
            if run.relaxed:
                batches = _relaxed(run, ids, 0)[:count]
            else:
                grid = partition(ids, run.canonical_nodes, cluster)[: count * cluster.batch]
                batches = grid.reshape(count, cluster.batch, cluster.ranks).transpose(0, 2, 1)
        streams.append(batches.reshape(count, cluster.global_batch))
    turns = _turns([len(batches) for batches in streams], _turn_rng(run, epoch))
    return _grid_of_global_batches(run, np.concatenate(streams)[turns], drop_first)


def _device_per_stream(run: StreamingRun, epoch: int, drop_first: int) -> NDArray[Any]:
    cluster, parts = run.cluster, run.canonical_nodes
    alike = Cluster(parts, cluster.ranks_per_node, cluster.workers, 1)
    counts = [_device_batches(run, stream) for stream in range(len(run.shards))]
    batches: list[NDArray[Any]] = []
    for stream, count in enumerate(counts):
        with _naming(run, stream):
            grid = partition(_of_stream(run, stream, epoch), parts, alike)
        of_node = grid.reshape(len(grid), cluster.nodes, -1).transpose(1, 0, 2).reshape(cluster.nodes, -1)
        batches.append(of_node[:, : count * cluster.batch].reshape(cluster.nodes, count, cluster.batch))
    rng = _turn_rng(run, epoch)
    nodes = [
        np.concatenate([of_stream[node] for of_stream in batches])[_turns(counts, rng)] for node in range(cluster.nodes)
    ]
    # Nodes alternate batch by batch, as in the original: the batches of one node go to ranks of all. There is always
    # padding.
    ids = np.stack(nodes, axis=1).reshape(-1, cluster.batch)
    count = sum(counts)
    whole = padded(ids, (count + cluster.ranks - count % cluster.ranks) * cluster.nodes)
    return _grid_of_global_batches(run, whole.reshape(-1, cluster.global_batch), drop_first)


_GRIDS: dict[str, Callable[[StreamingRun, int, int], NDArray[Any]]] = {
    "random": _random,
    "stratified": _stratified,
    "per_stream": _per_stream,
    "device_per_stream": _device_per_stream,
}


def _ordered(run: StreamingRun, streams: range, epoch: int, block_size: int) -> NDArray[Any]:
    """Return any[n]: the samples that an epoch takes from some streams, in order."""
    drawn = _drawn(run, streams, epoch)
    ids, n = drawn.ids, int(drawn.units.sum())
    if not run.shuffle:
        return np.arange(drawn.first, drawn.first + n, dtype=drawn.dtype) if ids is None else ids
    order = shuffled_ids(run.shuffle_algo, drawn.units, run.canonical_nodes, run.seed, epoch, block_size)
    out = order if order.dtype == drawn.dtype else np.empty(n, drawn.dtype)
    if out is order and ids is None and drawn.first == 0:
        return out
    for start in range(0, n, _CHUNK):
        part = order[start : start + _CHUNK]
        out[start : start + _CHUNK] = (
            part.astype(drawn.dtype) + drawn.dtype.type(drawn.first) if ids is None else ids[part]
        )
    return out


def _drawn(run: StreamingRun, streams: range, epoch: int) -> Drawn:
    return drawn_ids(
        run.shards,
        run.shares.choose.tolist(),
        streams,
        granularity=run.sampling_granularity,
        seed=run.seed,
        epoch=epoch,
        changes=run.changes,
        balanced=run.sampling_method == "balanced",
    )


def _of_stream(run: StreamingRun, stream: int, epoch: int) -> NDArray[Any]:
    _check_some(run, int(run.shares.choose[stream]), stream, "sample")
    return _ordered(run, range(stream, stream + 1), epoch, int(run.block_size * run.shares.proportions[stream]))


def _relaxed(run: StreamingRun, ids: NDArray[Any], drop_first: int) -> NDArray[Any]:
    return relaxed_batches(ids, run.canonical_nodes, run.cluster, drop_first, run.first_nodes or run.cluster.nodes)


def _first_ranks(run: StreamingRun) -> int:
    """Return the number of ranks of the cluster that samples are first assigned to."""
    nodes = run.first_nodes if run.relaxed and run.first_nodes else run.cluster.nodes
    ranks = nodes * run.cluster.ranks_per_node
    if run.cluster.global_batch % ranks:
        raise ConfigError(
            "the original number of ranks doesn't divide this global batch",
            found=f"a global batch of {run.cluster.global_batch}",
            expected=f"a multiple of {ranks}, as when the run started",
        )
    return ranks


def _steps(run: StreamingRun, n: int, drop_first: int = 0) -> int:
    """Return the number of samples of each of those ranks."""
    cluster = run.cluster
    first = Cluster(_first_ranks(run) // cluster.ranks_per_node, cluster.ranks_per_node, 1, 1)
    return steps_of(n, run.canonical_nodes, first, drop_first)


def _global_batches(run: StreamingRun, stream: int) -> int:
    batch = run.cluster.global_batch // _first_ranks(run)
    count = _steps(run, int(run.shares.choose[stream])) // batch
    _check_some(run, count, stream, "global batch")
    return count


def _stratified_samples(run: StreamingRun, stream: int) -> int:
    ranks = run.cluster.ranks_per_node
    return steps_of(int(run.shares.choose[stream]), run.canonical_nodes, Cluster(1, ranks, 1, 1)) * ranks


def _device_batches(run: StreamingRun, stream: int) -> int:
    """Return the number of batches of a stream on each node."""
    parts, ranks = run.canonical_nodes, run.cluster.ranks_per_node
    if parts % run.cluster.nodes:
        raise ConfigError(
            "device_per_stream needs canonical nodes to be a multiple of the physical nodes",
            found=f"num_canonical_nodes={parts}, {run.cluster.nodes} nodes",
        )
    steps = steps_of(int(run.shares.choose[stream]), parts, Cluster(parts, ranks, 1, 1))
    count = steps * ranks * (parts // run.cluster.nodes) // run.cluster.batch
    _check_some(run, count, stream, "batch of a rank")
    if run.shuffle and not int(run.block_size * run.shares.proportions[stream]):
        what, found = f"stream {stream} has no share in a block of the shuffle", f"block {run.block_size}"
        raise ConfigError(what, path=_path(run, stream), found=found)
    return count


def _check_drop_first(run: StreamingRun, drop_first: int) -> None:
    n, ranks = run.shares.epoch_size, run.cluster.ranks
    if drop_first > n + ranks - n % ranks:
        found, expected = f"{drop_first} samples read", f"at most {n + ranks - n % ranks}"
        raise ConfigError("the epoch has fewer samples", found=found, expected=expected)


def _check_some(run: StreamingRun, count: int, stream: int, unit: str) -> None:
    if count < 1:
        found = f"{run.shares.choose[stream]} samples per epoch"
        hint = "Use a smaller batch, a larger share of that stream, or batching_method='random'"
        raise ConfigError(
            f"stream {stream} has too few samples for one {unit}", path=_path(run, stream), found=found, hint=hint
        )


def _path(run: StreamingRun, stream: int) -> str | None:
    return run.paths[stream] or None if run.paths else None


@contextlib.contextmanager
def _naming(run: StreamingRun, stream: int) -> Generator[None]:
    """Name the stream in errors that only concern its samples."""
    try:
        yield
    except ConfigError as error:
        error.path = error.path or _path(run, stream)
        named = f"stream {stream}"
        error.what = error.what if named in error.what else f"{named}: {error.what}"
        raise


def _grid_of_global_batches(run: StreamingRun, batches: NDArray[Any], drop_first: int) -> NDArray[Any]:
    """Return the grid of global batches `[k, ranks · batch]`, without those that were read before."""
    cluster = run.cluster
    left = batches[drop_first // cluster.global_batch :]
    return grid_of(left.reshape(-1, cluster.ranks, cluster.batch))


def _turn_rng(run: StreamingRun, epoch: int) -> np.random.Generator:
    return np.random.default_rng(run.seed + epoch if run.changes else run.seed)


def _turns(counts: Sequence[int], rng: np.random.Generator) -> IntArray:
    """Return int64[sum]: the stream of each batch: streams in random order, each one's batches in their order."""
    streams = np.repeat(np.arange(len(counts)), counts)
    rng.shuffle(streams)
    turns = np.empty(len(streams), dtype=np.int64)
    turns[np.argsort(streams, kind="stable")] = np.arange(len(streams))
    return turns

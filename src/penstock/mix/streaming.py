"""Sample order of a MosaicML Streaming run, as a stream over any sources with shards."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from penstock._access import capability, excluded_of, place_of, prefetch_of, samples_of
from penstock._arrays import as_positions
from penstock._digest import digest
from penstock._kinds import Derived
from penstock._secrets import logger
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.mix.concat import ConcatSource
from penstock.node.over import StreamNode
from penstock.order.compat.streaming.epochs import StreamingEpochs, decode_state
from penstock.order.compat.streaming.one_epoch import VERSION, StreamingRun
from penstock.order.compat.streaming.partition import Cluster, as_original, padding_of
from penstock.order.compat.streaming.sampling import Shares, Weight, shares_of
from penstock.order.shuffle import Sequential
from penstock.store.derived import DerivedCache
from penstock.types import Batch, IntArray, Location, Sample, Schema

_log = logger()

Weighted: TypeAlias = tuple[Source[Sample], Mapping[str, float]]

_NUMBER = re.compile(r"(\d{1,30})(?:\.0*)?$|((?:\d{1,30}(?:\.\d*)?|\.\d+))\s*([kmbt])$")
_ABBREVIATIONS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


class StreamingOrder(StreamNode):
    """Endless stream in the order of MosaicML's `StreamingDataset` with the same arguments.

    Position p is the p-th sample that the original run reads: global batch after global batch, and in each the first
    sample of every rank, then the second of every rank, and so on. `Loader(order, nodes * ranks_per_node * batch_size,
    rank=r, world=nodes * ranks_per_node)` gives each rank its original batches, and any other world size the same
    global batches. The original's padding has no position, so if the last batch of its epoch is short, batches here
    continue into the next epoch.

    After `load_state_dict`, position 0 is the next sample of the run that saved the state. Load it before creating a
    loader.

    The order of an epoch is computed when it is first read. From 2^20 samples on it is cached in a mapped file, once
    per host, at 4 bytes per sample.

    Args:
        source: a source, or a sequence of sources or `(source, {"proportion" | "repeat" | "choose": number})` pairs.
            Shard sizes are read from `block_starts`.
        world: numbers of nodes, ranks per node, and workers per rank. Workers don't affect the stream.
        batch_size: samples per batch of one rank.
        epoch_size: samples per epoch, such as 1000000 or "1m"; all by default.
        predownload: accepted for compatibility and ignored, with a log message.
        sampling_method: `"balanced"` or `"fixed"`.
        sampling_granularity: samples drawn from one shard at a time.
        partition_algo: `"relaxed"` or `"orig"`.
        num_canonical_nodes: number of canonical nodes. By default the number of nodes; 64 times as many for `py1s` and
            `py2s`.
        shuffle: whether to shuffle.
        shuffle_algo: `"py1e"`, `"py1br"`, `"py1s"`, `"py2s"` or `"naive"`.
        shuffle_seed: 0 or more.
        shuffle_block_size: by default 4,000,000 divided by the canonical nodes, at least 262,144.
        batching_method: `"random"`, `"stratified"`, `"per_stream"` or `"device_per_stream"`.
        replication: number of consecutive ranks that get the same samples. The stream contains each sample once: pass
            `rank // replication` and `world // replication` to the loader.
        derived: cache for the orders; by default the cache folder.

    Raises:
        ConfigError: arguments don't match each other or the data, or a source has no shards.

    Examples:
        >>> import penstock as ps
        >>> order = ps.StreamingOrder(ps.open("chat-mds"), world=(1, 2, 1), batch_size=2, shuffle=True)
        >>> with ps.Loader(order, global_batch=4, rank=0, world=2) as loader:
        ...     batch = next(iter(loader))
        >>> batch["id"]
        array([7, 8])
    """

    kind, version = "streaming-order", VERSION
    lanes = 1

    def __init__(
        self,
        source: Source[Sample] | Sequence[Source[Sample] | Weighted],
        *,
        world: tuple[int, int, int] = (1, 1, 1),
        batch_size: int,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        replication: int | None = None,
        derived: Derived | None = None,
    ) -> None:
        if predownload is not None:
            _log.warning("predownload=%r has no effect on an order: pass it to the reader", predownload)
        sources, weights = _weighted(source)
        self._source = sources[0] if len(sources) == 1 else ConcatSource(sources, as_stored=True)
        self._copies = operator.index(replication or 1)
        self._ranks_per_node = world[1]
        self._block_size = shuffle_block_size
        cluster = _cluster(world, operator.index(batch_size), self._copies)
        canonical = num_canonical_nodes or cluster.nodes * (64 if shuffle_algo in ("py1s", "py2s") else 1)
        shards = tuple(_shards_of(one) for one in sources)
        sizes = np.array([len(one) for one in sources], dtype=np.int64)
        run = StreamingRun(
            cluster=cluster,
            shards=shards,
            shares=shares_of(sizes, weights, number_of(epoch_size), shuffle_seed),
            canonical_nodes=operator.index(canonical),
            block_size=_block_size(shuffle_block_size, canonical),
            seed=operator.index(shuffle_seed),
            shuffle=bool(shuffle),
            shuffle_algo=shuffle_algo,
            batching_method=batching_method,
            partition_algo=partition_algo,
            sampling_method=sampling_method,
            sampling_granularity=operator.index(sampling_granularity),
            paths=tuple(str(one.recipe().get("path", "")) for one in sources),
        )
        self._derived = DerivedCache() if derived is None else derived
        self._epochs = StreamingEpochs(run, derived=self._derived)
        self.prefetch = prefetch_of(self._source)
        if not run.needs_state:
            _ = self._epochs.sizes  # invalid arguments raise an error here

    @property
    def schema(self) -> Schema:
        """Fields of the samples: those of the first source."""
        return self._source.schema

    def children(self) -> Mapping[str, Source[Sample]]:
        """Return the source, under the name `source`; several sources are concatenated."""
        return {"source": self._source}

    @property
    def fingerprint(self) -> str:
        """Digest of the sources and all parameters of the order, which a loaded state changes."""
        return digest("streaming-order", VERSION, self.own(), self._source.fingerprint)

    @property
    def shares(self) -> Shares:
        """Samples that an epoch draws from each source."""
        return self._epochs.run.shares

    @property
    def epoch_size(self) -> int:
        """Samples per epoch, before they are assigned to ranks."""
        return self.shares.epoch_size

    def __getitem__(self, position: int, /) -> Sample:
        return self._source[int(self.resolve(as_positions([position]))[0])]

    def resolve(self, positions: IntArray, /) -> IntArray:
        """Return int64[k]: the global id of the sample at each position, or of its substitute if it is excluded."""
        return with_substitutes(self._source, self._epochs.order(positions))

    def get_resolved(self, resolved: IntArray, /) -> Batch:
        """Return the samples with ids from `resolve` as columns."""
        return self._source.get_batch(resolved)

    def get_resolved_samples(self, resolved: IntArray, /) -> list[Sample]:
        """Return the samples with ids from `resolve`."""
        return samples_of(self._source, resolved)

    def locate(self, position: int, /) -> Location:
        """Return where `position` comes from: its epoch, as the original counts, and its global id as index."""
        epoch, _ = self._epochs.place(position)
        given = self._epochs.order_one(position)
        index = int(with_substitutes(self._source, np.array([given]))[0])
        place = place_of(self._source, index)
        instead_of = None if index == given else given
        return Location(position, (), epoch, index, place.key, place.documents, place.extents, instead_of)

    def epoch_ids(self, epoch: int, drop_first: int = 0) -> IntArray:
        """Return the global ids of a whole epoch.

        The result is int64[nodes, ranks, workers, batches, batch], padded with -1. Ids count over all sources, one
        after another. With replication, consecutive ranks have equal ids.

        Args:
            epoch: from 0. In the epoch of a loaded state, samples read before are left out.
            drop_first: number of samples to leave out at the start, over all ranks, as the original does when it
                resumes.

        Raises:
            ConfigError: the epoch has fewer samples.
        """
        epochs = self._epochs
        if epoch == epochs.epoch:
            drop_first = max(drop_first, epochs.drop_first)
        ids = as_original(epochs.grid(operator.index(epoch), drop_first), epochs.run.cluster)
        if self._copies == 1:
            return ids
        ranks = ids.shape[0] * ids.shape[1]
        copies = ids.reshape(ranks, *ids.shape[2:]).repeat(self._copies, axis=0)
        nodes = ranks * self._copies // self._ranks_per_node
        return copies.reshape(nodes, self._ranks_per_node, *ids.shape[2:])

    def worker_ids(self, epoch: int, rank: int, worker: int = 0) -> IntArray:
        """Return the global ids that one worker reads in an epoch, in order and without padding: int64[k].

        Args:
            epoch: from 0. In the epoch of a loaded state, samples read before are left out.
            rank: rank over all nodes.
            worker: worker of the rank.
        """
        cluster = self._epochs.run.cluster
        grid = self._epochs.grid(operator.index(epoch), self._epochs.drop_first if epoch == self._epochs.epoch else 0)
        of_rank = grid[:, rank // self._copies].reshape(-1, cluster.workers, cluster.batch)
        ids = of_rank[:, worker].reshape(-1)
        return ids[ids != padding_of(ids.dtype)].astype(np.int64)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the original: position 0 becomes the next sample of that run.

        Args:
            state: result of `StreamingDataset.state_dict` or `StreamingDataLoader.state_dict`. Its seed, canonical
                nodes and first number of nodes are used, too; all other arguments must be those of the run.

        Raises:
            ResumeMismatch: this isn't such a state.
            ConfigError: the state doesn't match the arguments or the data.
        """
        loaded = decode_state(state)
        run = replace(
            self._epochs.run,
            seed=loaded.shuffle_seed,
            canonical_nodes=loaded.num_canonical_nodes,
            block_size=_block_size(self._block_size, loaded.num_canonical_nodes),
            first_nodes=loaded.initial_physical_nodes,
        )
        epochs = StreamingEpochs(run, loaded.epoch, loaded.sample_in_epoch, self._derived)
        _ = epochs.sizes  # an invalid state raises an error here, and changes nothing
        self._epochs = epochs

    def state_dict(self, consumed: int = 0) -> dict[str, Any]:
        """Return the original's state after `consumed` samples of this stream, such as `loader.consumed`."""
        epoch, place = self._epochs.place(consumed)
        run = self._epochs.run
        before = self._epochs.drop_first if epoch == self._epochs.epoch else 0
        return {
            "epoch": epoch,
            "sample_in_epoch": before + place,
            "num_canonical_nodes": run.canonical_nodes,
            "shuffle_seed": run.seed,
            "initial_physical_nodes": run.first_nodes or run.cluster.nodes,
        }

    def own(self) -> dict[str, Any]:
        return self._epochs.params()

    def shown(self) -> dict[str, Any]:
        params = self._epochs.params()
        names = ("shuffle_algo", "shuffle_seed", "batching_method", "num_canonical_nodes", "batch_size", "epoch")
        return {**{name: params[name] for name in names}, "samples": self.epoch_size}


def with_substitutes(source: Source[Any], ids: IntArray) -> IntArray:
    """Return int64[k]: the ids, with excluded samples replaced by their substitutes."""
    return ids if excluded_of(source) is None else Sequential(source).resolve(ids) % len(source)


def number_of(value: int | str | None) -> int | None:
    """Return a number of samples; text such as "1.5k" counts thousands, millions, billions or trillions.

    Fractions of a sample are truncated, as in streaming: "0.0015k" is 1. None stays None.

    Raises:
        ConfigError: the text isn't such a number.
    """
    if not value:
        return None
    found = _NUMBER.match(str(value).strip().lower())
    if not found:
        raise ConfigError("invalid number of samples", found=repr(value), expected="such as 1000000, '90k' or '1.5m'")
    if found[1]:
        return int(found[1])
    if found[2].isdigit():
        return int(found[2]) * _ABBREVIATIONS[found[3]]
    return int(float(found[2]) * _ABBREVIATIONS[found[3]])


def _weighted(source: Any) -> tuple[tuple[Source[Sample], ...], list[Weight]]:
    if hasattr(source, "get_batch"):
        return (source,), [Weight()]
    pairs: list[tuple[Any, Any]] = [one if isinstance(one, tuple) else (one, {}) for one in source]
    if not pairs:
        raise ConfigError("no sources", expected="at least one")
    for _, weight in pairs:
        if not isinstance(weight, Mapping) or set(weight) - {"proportion", "repeat", "choose"}:
            raise ConfigError("unknown kind of weight", found=repr(weight), expected="proportion, repeat or choose")
    return tuple(one for one, _ in pairs), [Weight(**weight) for _, weight in pairs]


def _cluster(world: tuple[int, int, int], batch: int, copies: int) -> Cluster:
    """Return the cluster of independently reading ranks, as the original counts them with replication."""
    if len(world) != 3:
        raise ConfigError("world must be (nodes, ranks_per_node, workers_per_rank)", found=repr(world))
    nodes, ranks_per_node, workers = map(operator.index, world)
    if copies < 1 or nodes * ranks_per_node % copies:
        raise ConfigError("replication must divide the ranks", found=f"{copies} of {nodes * ranks_per_node}")
    ranks = nodes * ranks_per_node // copies
    whole = ranks >= 1 and ranks_per_node >= 1 and ranks % ranks_per_node == 0
    own_nodes = ranks // ranks_per_node if whole else 1
    return Cluster(own_nodes, ranks // own_nodes, max(workers, 1), batch)


def _block_size(given: int | None, canonical_nodes: int) -> int:
    return max(4_000_000 // max(canonical_nodes, 1), 1 << 18) if given is None else operator.index(given)


def _shards_of(source: Source[Sample]) -> IntArray:
    starts = capability(source, "block_starts")
    if starts is None or not len(source):
        raise ConfigError(
            "the order of a StreamingDataset needs shards",
            found=f"{type(source).__name__} of {len(source)} samples, without block_starts"
            if starts is None
            else "a source without samples",
            hint="Pass the dataset of the run as MDS, CSV or JSON shards",
        )
    return np.diff(np.asarray(starts, dtype=np.int64))

"""`StreamingDataset`: the original's samples in the original's order, over Penstock's sources."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from penstock._access import samples_of
from penstock._threads import Pool
from penstock.compat.streaming.checks import check_cache_limit, check_sampling, check_streams, warn_of_blocks
from penstock.compat.streaming.epochs import Epochs, Worker
from penstock.compat.streaming.local import OwnSamples, at_places
from penstock.compat.streaming.shards import Shards
from penstock.compat.streaming.streams import Stream, made_stream, say_unused_fetching
from penstock.compat.streaming.world import get_local_world_size, get_rank, get_world_size
from penstock.compat.torch_bases import IterableDataset, worker_info
from penstock.compat.unused import refuse_overrides, say_unused
from penstock.errors import ConfigError, PenstockError
from penstock.mix import ConcatSource, StreamingOrder
from penstock.mix.streaming import number_of, with_substitutes
from penstock.order.compat.streaming.epochs import decode_state
from penstock.order.compat.streaming.one_epoch import TooSmall
from penstock.order.compat.streaming.sampling import Weight, drawn_ids, shares_of
from penstock.types import IntArray, Sample

_SHOWN = (
    *("num_canonical_nodes", "partition_algo", "sampling_method", "sampling_granularity", "shuffle", "shuffle_algo"),
    *("shuffle_seed", "shuffle_block_size", "batching_method", "replication"),
)
_NEVER_CALLED = (
    "prepare_shard", "evict_shard", "evict_coldest_shard", "resample_streams", "on_exception", "_evict_shard",
    "_evict_coldest_shard", "_prepare_thread", "_ready_thread", "_each_sample_id", "_resume", "_resume_incr_epoch",
    "_get_work", "_share_work", "_attach_work", "_set_shuffle_block_size",
)  # fmt: skip
"""Methods of the original that its iteration goes through, and ours does not."""
_INSTEAD = "Define samples with get_item or __getitem__; the store downloads and evicts shards"
_RETRIES = 7


class StreamingDataset(IterableDataset):
    """Iterable torch dataset that can also be indexed by number.

    If a subclass defines `__getitem__` or `get_item`, all iteration uses it. `source` contains the samples as stored.

    Ranks are read from RANK, WORLD_SIZE and LOCAL_WORLD_SIZE, workers from torch's DataLoader, as in the original.
    Processes share only mapped files: no shared memory, no barriers, no process group.

    Attributes:
        streams: the datasets, with their resolved weights.
        num_samples: samples of all streams.
        epoch_size: samples per epoch.
        num_canonical_nodes, partition_algo, sampling_method, sampling_granularity, shuffle, shuffle_algo, shuffle_seed,
            shuffle_block_size, batching_method, batch_size, predownload, replication: the arguments, read-only.

    Args:
        streams: datasets with weights; or use `remote` and `local` for one dataset.
        remote, local, split: as in `Stream`.
        epoch_size, sampling_method, sampling_granularity, partition_algo, num_canonical_nodes, shuffle, shuffle_algo,
            shuffle_seed, shuffle_block_size, batching_method, replication: see `penstock.StreamingOrder`.
        batch_size: samples per DataLoader batch; required for iteration, but not for indexing.
        predownload: samples to fetch ahead from remote data; by default 8 batches, or 64 samples.
        allow_unsafe_types: decode `pkl` columns.
        stream_config: further arguments of the single stream.
        validate_hash: for streams without their own; see `Stream`.
        download_retry, download_timeout, keep_zip, cache_limit: ignored, with a log message: stores retry by
            themselves, and all datasets share one cache folder with one budget. A `cache_limit` that the original
            rejects is an error.

    Raises:
        ConfigError: arguments don't match each other or the data, or a subclass overrides a method that is never
            called.
        NotFound: a dataset has no index.

    Examples:
        >>> from penstock.compat.streaming import StreamingDataset
        >>> dataset = StreamingDataset(local="chat-mds", batch_size=4, shuffle=True, shuffle_seed=1)
        >>> len(dataset), dataset[3]["text"]
        (12, 'conversation 3')
        >>> sorted(sample["id"] for sample in dataset)
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    """

    num_canonical_nodes: int | None
    partition_algo: str
    sampling_method: str
    sampling_granularity: int
    shuffle: bool
    shuffle_algo: str
    shuffle_seed: int
    shuffle_block_size: int | None
    batching_method: str
    _closed = False

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
    ) -> None:
        refuse_overrides(type(self), StreamingDataset, _NEVER_CALLED, _INSTEAD)
        check_sampling(sampling_method, predownload, batch_size)
        fetching = {"download_retry": download_retry, "download_timeout": download_timeout, "keep_zip": keep_zip}
        say_unused_fetching("StreamingDataset", fetching, cache_limit=cache_limit)
        one = {name: value for name, value in (("remote", remote), ("local", local), ("split", split)) if value}
        self.streams = _streams(streams, stream_name, one, stream_config or {})
        self.batch_size, self.replication = batch_size, replication
        self.predownload = (8 * batch_size if batch_size else 64) if predownload is None else predownload
        self.sampling_method = sampling_method
        self.sampling_granularity = sampling_granularity
        self.partition_algo = partition_algo
        self.num_canonical_nodes = num_canonical_nodes
        self.shuffle = shuffle
        self.shuffle_algo = shuffle_algo
        self.shuffle_seed = shuffle_seed
        self.shuffle_block_size = shuffle_block_size
        self.batching_method = batching_method
        self._epoch_size_given = epoch_size
        self._epochs, self._rounds = Epochs(), dict[int, int]()
        self._at_hand: dict[int, Sample] = {}
        self._retry_said = False
        self.allow_unsafe_types, self.cache_limit = allow_unsafe_types, cache_limit
        self._sources = [one.open(split, trust=allow_unsafe_types, validate_hash=validate_hash) for one in self.streams]
        self._shards = self._checked_shards()
        self._remote = any(stream.is_remote for stream in self.streams)
        several = len(self._sources) > 1
        self.source: Any = ConcatSource(tuple(self._sources), as_stored=True) if several else self._sources[0]
        self.num_samples, self.epoch_size = len(self.source), self._weigh()
        self.length = -(-self.epoch_size // max(1, get_world_size() // (replication or 1)))
        if batch_size is not None:
            self._check_order()

    @property
    def size(self) -> int:
        """Number of samples of all streams."""
        return self.num_samples

    @property
    def num_streams(self) -> int:
        """Number of streams."""
        return len(self.streams)

    @property
    def shards(self) -> Shards:
        """Shards of all streams, in order: metadata and samples of each."""
        return self._shards

    @property
    def num_shards(self) -> int:
        """Number of shards of all streams."""
        return len(self._shards)

    @property
    def samples_per_shard(self) -> IntArray:
        """Number of samples of each shard, int64[num_shards]."""
        return self._shards.samples_per_shard

    @property
    def shards_per_stream(self) -> IntArray:
        """Number of shards of each stream, int64[num_streams]."""
        return self._shards.per_stream

    @property
    def shard_offset_per_stream(self) -> IntArray:
        """Number of each stream's first shard, int64[num_streams]."""
        return self._shards.offsets

    @property
    def samples_per_stream(self) -> IntArray:
        """Number of samples of each stream, int64[num_streams]."""
        return np.array([len(source) for source in self._sources], np.int64)

    @property
    def sample_offset_per_shard(self) -> IntArray:
        """Number of each shard's first sample, int64[num_shards]."""
        return self.samples_per_shard.cumsum() - self.samples_per_shard

    @property
    def sample_offset_per_stream(self) -> IntArray:
        """Number of each stream's first sample, int64[num_streams]."""
        return self.samples_per_stream.cumsum() - self.samples_per_stream

    @property
    def stream_per_shard(self) -> IntArray:
        """Number of each shard's stream, int64[num_shards]."""
        return np.repeat(np.arange(len(self.streams)), self.shards_per_stream)

    @property
    def cache_usage(self) -> int:
        """Size in bytes of its shards on this machine: copies in the cache folder, or local files."""
        return self._shards.resident_bytes()

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Fetch a shard into the cache folder. `blocking=False` has no effect, with a log message.

        Raises:
            NotFound, FormatError, Unreachable: the shard doesn't exist, is damaged, or can't be fetched.
        """
        say_unused(
            "prepare_shard", "the shard is available when it returns", {"blocking": blocking}, {"blocking": True}
        )
        self._shards.fetch(shard_id)

    def evict_shard(self, shard_id: int) -> None:
        """Remove a shard's copies from the cache folder. Files of a dataset on this machine are never removed."""
        self._shards.evict(shard_id)

    def evict_coldest_shard(self) -> None:
        """Evict the least recently used shard, if any shard has a copy."""
        self._shards.evict_coldest()

    def resample_streams(self, epoch: int, stream_id: int | None = None) -> tuple[IntArray, IntArray]:
        """Return the samples drawn for an epoch, before they are shuffled.

        Args:
            epoch: number of the epoch, from 0.
            stream_id: number of one stream; None for all.

        Returns:
            The sizes of the runs that are shuffled separately, int64[k], and the samples, int64[n].
        """
        balanced = self.sampling_method == "balanced"
        all_streams = range(self.num_streams)
        chosen = all_streams if stream_id is None else range(first := all_streams[stream_id], first + 1)
        drawn = drawn_ids(
            [np.diff(source.block_starts) for source in self._sources],
            [int(stream.choose or 0) for stream in self.streams],
            chosen,
            granularity=self.sampling_granularity,
            seed=self.shuffle_seed,
            epoch=epoch,
            changes=self.shuffle and balanced,
            balanced=balanced,
        )
        if drawn.ids is None:
            return drawn.units, np.arange(drawn.first, drawn.first + int(drawn.units.sum()), dtype=np.int64)
        return drawn.units, drawn.ids.astype(np.int64)

    @property
    def next_epoch(self) -> int:
        """Epoch that the next iteration reads."""
        return self._epochs.coming()

    def __len__(self) -> int:
        """Return the number of samples of an epoch on each rank."""
        return self.length

    def __getitem__(self, at: Any) -> Any:
        return at_places(self, at)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return sample `sample_id`, counted over all streams. `retry` has no effect: the store decides."""
        if retry != _RETRIES and not self._retry_said:
            self._retry_said = True
            say_unused("get_item", "the store retries reads", {"retry": retry}, {})
        at_hand = self._at_hand.pop(sample_id, None) if self._at_hand else None
        return self.source[sample_id] if at_hand is None else at_hand

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of this rank and worker in the next epoch, or in that of a loaded state.

        If a subclass defines `__getitem__` or `get_item`, samples come from it, as in the original.
        """
        self._require_open()
        if self.shuffle and self.shuffle_algo == "py1e":
            warn_of_blocks(self._shards, self.shuffle_block_size, self.num_canonical_nodes or 1)
        worker = self._worker()
        epoch, state = self._epochs.begin(worker)
        ids = self._order(self._sources, worker.count, state).worker_ids(
            epoch=epoch, rank=get_rank(), worker=worker.number
        )
        ids = with_substitutes(self.source, ids)
        if self._is_own():
            samples = self._made(ids)
        elif self._remote:
            samples = _fetched(partial(samples_of, self.source), ids, max(1, self.predownload))
        else:
            samples = map(self.source.__getitem__, ids.tolist())
        for sample in samples:
            self._require_open()
            yield sample

    def order(self, workers: int = 1, state: Mapping[str, Any] | None = None) -> StreamingOrder:
        """Return the order in which this dataset is read, as a stream for `penstock.Loader`.

        If a subclass defines `__getitem__` or `get_item`, the samples come from it.

        Args:
            workers: DataLoader workers per rank.
            state: state to resume from.

        Raises:
            ConfigError: there is no batch size, or arguments don't match each other.
        """
        if not self._is_own():
            return self._order(self._sources, workers, state)
        firsts = np.cumsum([0, *map(len, self._sources)]).tolist()
        name = f"{type(self).__module__}:{type(self).__qualname__}"
        own = [
            OwnSamples(source, first, name, self._made) for source, first in zip(self._sources, firsts, strict=False)
        ]
        return self._order(own, workers, state)

    def _order(self, sources: Sequence[Any], workers: int, state: Mapping[str, Any] | None) -> StreamingOrder:
        if not isinstance(self.batch_size, int):
            what = "Please pass `batch_size` to StreamingDataset: iterating needs the samples of a DataLoader's batch"
            raise ConfigError(what, found=self.batch_size)
        weighted = [(source, stream.weight) for source, stream in zip(sources, self.streams, strict=True)]
        per_node = get_local_world_size()
        options = {name: getattr(self, name) for name in _SHOWN}
        made = StreamingOrder(
            weighted,
            world=(get_world_size() // per_node, per_node, workers),
            batch_size=self.batch_size,
            epoch_size=self._epoch_size_given,
            **options,
        )
        if state is not None:
            made.load_state_dict(state)
        return made

    def _is_own(self) -> bool:
        """Whether a subclass, or the object, overrides how samples are made."""
        methods = (self.__getitem__, self.get_item)
        return tuple(getattr(method, "__func__", None) for method in methods) != _OURS

    def _made(self, ids: IntArray) -> Iterator[Any]:
        """Yield the results of `__getitem__` for int64[k] ids; remote samples are fetched ahead in large groups."""
        if not self._remote:
            yield from map(self.__getitem__, ids.tolist())
            return
        ahead = _fetched(partial(_samples_or_none, self.source), ids, max(1, self.predownload))
        for sample_id, sample in zip(ids.tolist(), ahead, strict=True):
            if sample is not None:
                self._at_hand[sample_id] = sample
            try:
                made = self[sample_id]
            finally:
                self._at_hand.pop(sample_id, None)
            yield made

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """Return the original's state.

        Args:
            num_samples: samples of the current epoch read so far, over all ranks.
            from_beginning: count them from the start of the epoch, not from where this run resumed.
        """
        epoch, before, state = self._epochs.running()
        read = num_samples if from_beginning else before + num_samples
        of_order = self._order(self._sources, 1, state).state_dict()
        return {**of_order, "epoch": epoch, "sample_in_epoch": read}

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Resume from a state of the original, at the next iteration, in all workers.

        Raises:
            ResumeMismatch: this isn't such a state.
        """
        loaded = decode_state(obj)
        self._epochs.load(asdict(loaded))

    def close(self) -> None:
        """Stop reading: iterating is then an error. A second call does nothing. The state can still be saved."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ConfigError("the dataset is closed", hint="Create a new one and resume with load_state_dict(…)")

    def _checked_shards(self) -> Shards:
        check_streams(self.streams, self._sources, allow_unsafe_types=self.allow_unsafe_types)
        check_cache_limit(self.cache_limit, self._sources)
        return Shards(self._sources, [one.split for one in self.streams])

    def _check_order(self) -> None:
        """Refuse arguments that don't fit; of streams too small for batches there is a warning, as it may end there."""
        try:
            self.order()
        except TooSmall as error:
            warnings.warn(f"{error}; iterating raises", stacklevel=3)

    def _weigh(self) -> int:
        """Return the number of samples in an epoch, and set the resolved weights of the streams."""
        sizes = np.array([len(source) for source in self._sources])
        weights = [Weight(**stream.weight) for stream in self.streams]
        shares = shares_of(sizes, weights, number_of(self._epoch_size_given), self.shuffle_seed)
        for stream, size, choose, share in zip(
            self.streams, sizes.tolist(), shares.choose.tolist(), shares.proportions.tolist(), strict=True
        ):
            stream.choose, stream.proportion, stream.repeat = choose, share, choose / size
        return shares.epoch_size

    def _worker(self) -> Worker:
        info = worker_info()
        if info is None:
            return Worker()
        # Torch gives the workers of one iterator consecutive seeds.
        session = int(info.seed) - int(info.id)
        made = Worker(session, info.id, info.num_workers, self._rounds.get(session, 0))
        self._rounds[session] = made.round + 1
        return made


_OURS = (StreamingDataset.__getitem__, StreamingDataset.get_item)


def _streams(
    streams: Sequence[Stream] | None, name: str, one: Mapping[str, Any], more: Mapping[str, Any]
) -> list[Stream]:
    """Return the given streams, or one of a registered kind; raise `ConfigError` if both are specified."""
    if streams and (set(one) - {"split"} or more or name != "stream"):
        expected = "either streams=, or remote=, local=, stream_name= and stream_config="
        raise ConfigError("streams are specified in two ways", found="both", expected=expected)
    if twice := sorted(set(one) & set(more)):
        raise ConfigError("an argument is given twice, once in stream_config=", found=", ".join(twice))
    return list(streams or [made_stream(name, {**one, **more})])


def _fetched(read: Callable[[IntArray], list[Any]], ids: IntArray, ahead: int) -> Iterator[Any]:
    """Yield the results of `read`, fetching the next `ahead` while the previous ones are delivered."""
    parts = np.split(ids, range(ahead, len(ids), ahead))
    with Pool(1, "penstock-fetch") as pool:
        waiting = pool.submit(read, parts[0])
        for number in range(len(parts)):
            ready = waiting.result()
            if number + 1 < len(parts):
                waiting = pool.submit(read, parts[number + 1])
            yield from ready


def _samples_or_none(source: Any, ids: IntArray) -> list[Any]:
    """Return the samples, or only None if one fails: `__getitem__` then reads each, and subclasses can catch errors."""
    try:
        return samples_of(source, ids)
    except PenstockError:
        return [None] * len(ids)

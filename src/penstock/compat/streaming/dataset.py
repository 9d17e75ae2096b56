"""`StreamingDataset`: the original's samples in the original's order, over Penstock's sources."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import numpy as np

from penstock._pool import Pool
from penstock._resolved import samples_of
from penstock.compat.streaming.bases import IterableDataset, worker_info
from penstock.compat.streaming.epochs import Epochs, Worker
from penstock.compat.streaming.places import at_places
from penstock.compat.streaming.streams import Stream
from penstock.errors import ConfigError
from penstock.mix import ConcatSource, StreamingOrder
from penstock.mix.streaming import number_of
from penstock.order.compat_streaming_epochs import decode_state
from penstock.order.compat_streaming_sampling import Weight, shares_of
from penstock.types import IntArray, Sample

_SHOWN = (
    *("num_canonical_nodes", "partition_algo", "sampling_method", "sampling_granularity", "shuffle", "shuffle_algo"),
    *("shuffle_seed", "shuffle_block_size", "batching_method"),
)


class StreamingDataset(IterableDataset):
    """An iterable torch dataset; also indexed by number.

    Ranks are taken from RANK, WORLD_SIZE and LOCAL_WORLD_SIZE, workers from torch's DataLoader, as in the original.
    Processes share nothing but mapped files: no shared memory, no barriers, no process group.

    Attributes:
        streams: what it draws from, with the weights as they came out.
        num_samples: samples of all streams.
        epoch_size: samples that an epoch draws.
        num_canonical_nodes, partition_algo, sampling_method, sampling_granularity, shuffle, shuffle_algo, shuffle_seed,
            shuffle_block_size, batching_method, batch_size, predownload, replication: as they were given, to be read.

    Args:
        streams: datasets with weights; or else `remote` and `local`, one dataset.
        remote, local, split: as in `Stream`.
        epoch_size, sampling_method, sampling_granularity, partition_algo, num_canonical_nodes, batch_size, shuffle,
            shuffle_algo, shuffle_seed, shuffle_block_size, batching_method, replication: see `penstock.StreamingOrder`.
        batch_size: samples of a DataLoader's batch; needed to iterate, not to index.
        predownload: samples fetched ahead from remote data; by default 8 batches, or 64.
        allow_unsafe_types: decode `pkl` columns.
        stream_config: further arguments of the one stream.
        stream_name: taken, without effect: there is one kind of stream.
        validate_hash: of streams that name none; see `Stream`.
        download_retry, download_timeout, keep_zip, cache_limit: taken, without effect: the cache folder has its own
            budget, and the store tries again by its own rules.

    Raises:
        ConfigError: arguments that don't fit each other or the data.
        NotFound: a dataset has no index.
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
        del download_retry, download_timeout, keep_zip, cache_limit, stream_name
        if streams and (remote or local):
            raise ConfigError("a StreamingDataset takes streams=, or else remote= and local=", found="both")
        self.streams = list(streams or [Stream(remote=remote, local=local, split=split, **(stream_config or {}))])
        self.batch_size = batch_size
        self.replication = replication
        self.predownload = (8 * batch_size if batch_size else 64) if predownload is None else predownload
        self._options: dict[str, Any] = {
            "epoch_size": epoch_size,
            "sampling_method": sampling_method,
            "sampling_granularity": sampling_granularity,
            "partition_algo": partition_algo,
            "num_canonical_nodes": num_canonical_nodes,
            "shuffle": shuffle,
            "shuffle_algo": shuffle_algo,
            "shuffle_seed": shuffle_seed,
            "shuffle_block_size": shuffle_block_size,
            "batching_method": batching_method,
            "replication": replication,
        }
        for name in _SHOWN:
            setattr(self, name, self._options[name])
        self._epochs, self._rounds = Epochs(), dict[int, int]()
        self._sources = [one.open(split, trust=allow_unsafe_types, validate_hash=validate_hash) for one in self.streams]
        self._remote = any(stream.is_remote for stream in self.streams)
        several = len(self._sources) > 1
        self.source: Any = ConcatSource(tuple(self._sources), as_stored=True) if several else self._sources[0]
        self.num_samples, self.epoch_size = len(self.source), self._weigh()
        self.length = -(-self.epoch_size // max(1, _ranks() // (replication or 1)))
        if batch_size is not None:
            self.order()  # arguments that don't fit are refused here

    @property
    def size(self) -> int:
        """Samples of all streams."""
        return self.num_samples

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return self._epochs.coming()

    def __len__(self) -> int:
        """Samples of an epoch on each rank."""
        return self.length

    def __getitem__(self, at: Any) -> Any:
        return at_places(self.source, at)

    def get_item(self, sample_id: int, retry: int = 7) -> Sample:
        """Sample `sample_id`, counted over all streams; `retry` has no effect: the store decides."""
        del retry
        return self.source[sample_id]

    def __iter__(self) -> Iterator[Sample]:
        """The samples of this rank and worker in the next epoch, or in that of a loaded state."""
        self._require_open()
        worker = self._worker()
        epoch, state = self._epochs.begin(worker)
        ids = self.order(worker.count, state).worker_ids(epoch=epoch, rank=_rank(), worker=worker.number)
        if self._remote:
            samples = _fetched(self.source, ids, max(1, self.predownload))
        else:
            samples = map(self.source.__getitem__, ids.tolist())
        for sample in samples:
            self._require_open()
            yield sample

    def order(self, workers: int = 1, state: Mapping[str, Any] | None = None) -> StreamingOrder:
        """The order that this dataset is read in, as a stream for `penstock.Loader`.

        Args:
            workers: DataLoader workers of each rank.
            state: go on from there.

        Raises:
            ConfigError: no batch size was given, or arguments that don't fit each other.
        """
        if not isinstance(self.batch_size, int):
            raise ConfigError("iterating needs batch_size=, the samples of a DataLoader's batch", found=self.batch_size)
        weighted = [(source, stream.weight) for source, stream in zip(self._sources, self.streams, strict=True)]
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        world = (_ranks() // per_node, per_node, workers)
        made = StreamingOrder(weighted, world=world, batch_size=self.batch_size, **self._options)
        if state is not None:
            made.load_state_dict(state)
        return made

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """The original's state.

        Args:
            num_samples: samples of the running epoch read so far, over all ranks.
            from_beginning: count them from the epoch's beginning, not from where this run went on.
        """
        epoch, before, state = self._epochs.running()
        read = num_samples if from_beginning else before + num_samples
        return {**self.order(state=state).state_dict(), "epoch": epoch, "sample_in_epoch": read}

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Go on from a state of the original, at the next iteration, in all workers.

        Raises:
            ResumeMismatch: it is no such state.
        """
        loaded = decode_state(obj)
        self._epochs.load(asdict(loaded))

    def close(self) -> None:
        """To iterate or go on is an error from now on; a second call does nothing. The state can still be saved."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise ConfigError("the dataset is closed", hint="Make another one; it goes on from load_state_dict(…)")

    def _weigh(self) -> int:
        """Samples of an epoch; streams are told their shares of it."""
        sizes = np.array([len(source) for source in self._sources])
        weights = [Weight(**stream.weight) for stream in self.streams]
        shares = shares_of(sizes, weights, number_of(self._options["epoch_size"]), self._options["shuffle_seed"])
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


def _fetched(source: Any, ids: IntArray, ahead: int) -> Iterator[Sample]:
    """Samples, of which `ahead` are fetched while as many others are handed out."""
    parts = np.split(ids, range(ahead, len(ids), ahead))
    with Pool(1, "penstock-fetch") as pool:
        waiting = pool.submit(samples_of, source, parts[0])
        for number in range(len(parts)):
            ready = waiting.result()
            if number + 1 < len(parts):
                waiting = pool.submit(samples_of, source, parts[number + 1])
            yield from ready


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))

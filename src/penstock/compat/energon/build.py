"""Datasets of batches, made from the crude samples of a path and a task encoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from penstock._digest import derive_key
from penstock._kinds import is_stream
from penstock.abc import Source, Stream
from penstock.compat.energon.encoded import Encoded, Filled, Samples
from penstock.compat.energon.opening import Opening, open_node
from penstock.compat.energon.passes import Shares
from penstock.compat.energon.stages import Lanes
from penstock.compat.energon.walks import Lane, Place, SavableDataset, Steps
from penstock.compat.energon.work import AnyEncoder, Work
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.energon.wrapper_samples import EpochizeDataset, LimitDataset
from penstock.errors import ConfigError
from penstock.order import Sequential
from penstock.recipe.build import multiplied, shuffled
from penstock.recipe.tree import Mixed, Node

_GROUP_WINDOW = 1024


@dataclass(frozen=True, eq=False)
class EnergonDataset(SavableDataset[Any]):
    """Result of `get_train_dataset` and `get_val_dataset`, for `get_loader` and `get_savable_loader`.

    Attributes:
        data: `Filled`, a stream of positions, or `Lanes`.
        encoder: the task encoder.
        worker_config: rank, world size and workers.
        batch_size: samples per batch of a rank; None delivers single samples.
        batch_drop_last: drop a last batch that isn't full.
        size: number of samples of a finite pass; None for an endless stream.
        batches: number of batches of a rank after which an iteration ends and the next one continues; 0 for no end.
        starts_anew: whether each iteration begins at the first sample: validation.
        sources: sources of an epoch, which together contain its samples.
        stream: the samples before they are encoded.
        packing: number of samples passed to `select_samples_to_pack`.
        walked: whether it is read lane by lane with wrappers: if the number of samples of a pass is unknown, or the
            task encoder adds wrappers.

    Examples:
        >>> from penstock.compat.energon import EnergonDataset, WorkerConfig, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=4)
        >>> isinstance(dataset, EnergonDataset), dataset.size, len(dataset)
        (True, 6, 2)
    """

    data: Filled | Lanes
    encoder: AnyEncoder
    worker_config: WorkerConfig
    batch_size: int | None
    batch_drop_last: bool
    size: int | None
    batches: int
    starts_anew: bool
    sources: tuple[Source[Any], ...] = field(repr=False)
    stream: Stream[Any] = field(repr=False)
    packing: int | None = None
    walked: bool = False

    def __post_init__(self) -> None:
        if self.walked:
            _ = self.composed  # raises configuration errors now

    def __str__(self) -> str:
        return str(self.data)

    def __len__(self) -> int:
        """Return the number of batches of this rank in an iteration, or in one epoch if it is endless.

        Endless data is counted as in Energon: each worker has its share of the epoch's samples, and ends with a batch
        that may be short. The results of packing, grouping and generators are unknown in advance: a sample counts as
        one, or as a group of its own.
        """
        if self.walked:
            return len(self.composed)
        world, size = self.worker_config.world_size, self.batch_size or 1
        if self.size is not None:
            batches = len(self.shares(self.size))
            return min(batches, self.batches or batches)
        if self.batches:
            return self.batches
        size = 1 if self.encoder.is_overridden("batch_group_criterion") else size
        workers = world * max(1, self.worker_config.num_workers)
        share, more = divmod(sum(map(len, self.sources)), workers)
        mine = range(self.worker_config.rank, workers, world)  # the remainder is distributed over the ranks
        return sum(_parts(share + (worker < more), size, self.batch_drop_last) for worker in mine)

    @cached_property
    def composed(self) -> SavableDataset[Any]:
        """Same data as a chain of wrappers, as arranged by the task encoder."""
        encoder, config, epoch = self.encoder, self.worker_config, sum(map(len, self.sources))
        encodes = not encoder.is_overridden("build_encode_sample")
        work = Work(encoder, config, self.batch_size, packs=True, encodes=encodes)
        made: SavableDataset[Any] = Samples(Encoded(self.stream, work), self.size, epoch, config)
        if not encodes:
            made = _of_hook(encoder.build_encode_sample(made, worker_config=config), "build_encode_sample")
        options: dict[str, Any] = {"batch_drop_last": self.batch_drop_last, "packing_buffer_size": self.packing}
        batches = encoder.build_batch(made, batch_size=self.batch_size, worker_config=config, **options)
        made = _of_hook(batches, "build_batch")
        if not self.batches:
            return made
        if self.starts_anew:
            return LimitDataset(made, self.batches, reset_after_epoch=True, worker_config=config)
        return EpochizeDataset(made, self.batches, worker_config=config)

    def walk(self, lane: Lane, place: Place) -> Steps:
        return self.composed.walk(lane, place)

    def split(self, place: Place, part: int, parts: int) -> Place:
        return self.composed.split(place, part, parts)

    def identity(self) -> list[Any]:
        return self.composed.identity()

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of batches of a worker; see `composed`."""
        return self.composed.len_worker(worker_idx)

    def len_rank(self) -> int:
        """Return `len(self)`."""
        return len(self)

    def config(self) -> dict[str, Any]:
        """Return the configuration of the datasets as plain JSON."""
        return {"type": "EnergonDataset", "data": self.data.recipe()}

    @property
    def grouped(self) -> bool:
        """Whether samples are read as groups, each a batch."""
        return isinstance(self.data, Lanes) and self.encoder.is_overridden("batch_group_criterion")

    def filled(self) -> Filled:
        """Return the stream of positions from which a pass is read."""
        return cast(Filled, self.data)

    def shares(self, left: int) -> Shares:
        """Return how the remaining samples of a pass are divided into batches."""
        config = self.worker_config
        shape = (config.world_size, max(1, config.num_workers), self.batch_size or 1, self.batch_drop_last)
        return Shares(left, *shape)


def _parts(samples: int, size: int, drop_last: bool) -> int:
    return samples // size if drop_last else -(-samples // size)


def _of_hook(made: Any, name: str) -> SavableDataset[Any]:
    if not isinstance(made, SavableDataset):
        raise ConfigError(
            f"{name} doesn't return a dataset",
            found=type(made).__name__,
            expected="the dataset it received, or a wrapper",
        )
    return made


@dataclass(frozen=True, slots=True)
class Shape:
    """Division of a dataset into batches.

    Attributes:
        config: rank, world size and workers.
        batch_size: samples per batch of a rank; None delivers single samples.
        drop_last: drop a last batch that isn't full.
        packing: number of samples passed to `select_samples_to_pack`.
        batches: batches of a rank per iteration; 0 for no end.
    """

    config: WorkerConfig
    batch_size: int | None
    drop_last: bool
    packing: int | None
    batches: int


def train(
    node: Node, opening: Opening, encoder: AnyEncoder, shape: Shape, repeat: bool, lanes: int | None
) -> EnergonDataset:
    """Return the training dataset of a path.

    Raises:
        ConfigError: the options contradict each other.
    """
    config, multiplier = shape.config, checked(opening.multiplier)
    work = Work(encoder, config, shape.batch_size, shape.packing is not None)
    irregular = _needs_lanes(work, shape.packing)
    own = _has_wrappers(work)
    walked = own or (irregular and not repeat)
    if walked and lanes is not None:
        what = "custom wrappers of the task encoder, or several batches from one," if own else "repeat=False"
        hint = "Omit lanes: their states work with any world size"
        raise ConfigError(f"{what} and lanes= can't be combined", found=lanes, hint=hint)
    in_lanes = (irregular and not walked) or lanes is not None
    workers = config.world_size * max(1, config.num_workers)
    count = (workers if lanes is None else lanes) if in_lanes else 1
    found, sources = open_node(node, opening, encoder, "train", count, config.seed_offset, multiplier)
    size = None if repeat else _size_of_pass(found, in_lanes)
    stream = found if is_stream(found) else _shuffled(found, node, multiplier, count, config.seed_offset)
    data = _encoded(stream, work, in_lanes, shape.batch_size, shape.packing)
    given = (config, shape.batch_size, shape.drop_last, size, shape.batches, False, sources, stream, shape.packing)
    return EnergonDataset(data, encoder, *given, walked=walked)


def validation(node: Node, opening: Opening, encoder: AnyEncoder, shape: Shape) -> EnergonDataset:
    config = shape.config
    work = Work(encoder, config, shape.batch_size, shape.packing is not None)
    found, sources = open_node(node, opening, encoder, "val", 1, config.seed_offset)
    source = cast(Source[Any], found)
    stream = Sequential(source)
    given = (
        config,
        shape.batch_size,
        shape.drop_last,
        len(source),
        shape.batches,
        True,
        sources,
        stream,
        shape.packing,
    )
    walked = _has_wrappers(work) or _needs_lanes(work, shape.packing)
    return EnergonDataset(Filled(stream, work), encoder, *given, walked=walked)


def _shuffled(found: Any, node: Node, multiplier: int | None, lanes: int, seed: int) -> Stream[Any]:
    own = 1 if isinstance(node, Mixed) else node.multiplier
    return shuffled(found, multiplied(multiplier, own), derive_key(seed, "energon") >> 12, lanes)


def order_of(source: Source[Any], node: Node, multiplier: int | None, config: WorkerConfig) -> Stream[Any]:
    return _shuffled(source, node, multiplier, 1, config.seed_offset)


def checked(multiplier: int | None) -> int | None:
    if multiplier is not None and (multiplier < -1 or multiplier == 0):
        expected = "a number of copies, -1 or None"
        raise ConfigError("invalid shuffle_over_epochs_multiplier", found=multiplier, expected=expected)
    return multiplier


def _size_of_pass(found: Source[Any] | Stream[Any], in_lanes: bool) -> int:
    """Return the samples of one epoch, which must be known for `repeat=False`."""
    if is_stream(found) or in_lanes:
        raise ConfigError(
            "repeat=False needs samples that can be counted",
            found="lanes=" if in_lanes else "a weighted blend",
            hint="Use virtual_epoch_length",
        )
    return len(cast(Source[Any], found))


def _has_wrappers(work: Work) -> bool:
    """Return whether the task encoder can only be applied by wrappers."""
    return work.encoder.is_overridden("build_batch", "build_encode_sample") or work.gives_several_batches


def _needs_lanes(work: Work, packing_buffer_size: int | None) -> bool:
    """Return whether a sample may become any number of samples."""
    return packing_buffer_size is not None or work.is_generator or work.encoder.is_overridden("batch_group_criterion")


def _encoded(
    stream: Stream[Any], work: Work, in_lanes: bool, batch_size: int | None, packing: int | None
) -> Filled | Lanes:
    if not in_lanes:
        return Filled(stream, work)
    groups: bool | int = False
    if work.encoder.is_overridden("batch_group_criterion"):
        groups = True if batch_size is None else batch_size
    window = packing or (_GROUP_WINDOW if groups else 1)
    return Lanes(Encoded(stream, work), window, packing is not None, groups)

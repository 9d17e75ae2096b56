"""Reading by lanes, for manually composed datasets and passes in which a sample may have several outputs.

A lane is a part of the data that one worker reads; its place is nested tuples of numbers, so it can be saved between
any two samples. Lanes belong to the run: other ranks and workers take the same lanes, or parts of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from penstock.compat.energon.worker import WorkerConfig
from penstock.errors import ConfigError, ResumeMismatch

T_sample = TypeVar("T_sample")

Place: TypeAlias = Any
"""Nested tuples of integers and None; the place None is the beginning."""

Steps: TypeAlias = "Generator[tuple[Any, Place], None, Place]"
"""Samples, each with the place after it; returns the place at which the next pass begins."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A part of the data: lane `number` of `count`, turn `turn` of the rank's `turns` lanes."""

    number: int
    count: int
    seed: int
    turn: int = 0
    turns: int = 1

    def share(self, total: int) -> int:
        """Return the lane's share of a number for the whole rank."""
        return total // self.turns + (self.turn < total % self.turns)


class Unsavable:
    """Place of a function that keeps samples to itself."""

    def __init__(self, why: str) -> None:
        self.why = why


class SavableDataset(ABC, Generic[T_sample]):
    """Base class of the datasets that a loader reads.

    Build your own datasets from the wrappers, not by subclassing.

    Attributes:
        worker_config: rank, world size and workers.
        datasets: the inner datasets of a wrapper.

    Examples:
        >>> from penstock.compat.energon import SavableDataset, WorkerConfig, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> isinstance(samples, SavableDataset), len(samples), samples.can_restore_sample()
        (True, 6, True)
    """

    worker_config: WorkerConfig
    datasets: tuple[SavableDataset[Any], ...] = ()

    def __init__(self, worker_config: WorkerConfig) -> None:
        self.worker_config = worker_config

    @abstractmethod
    def walk(self, lane: Lane, place: Place) -> Steps:
        """Yield the samples of a lane from a place to the end of a pass."""

    @abstractmethod
    def split(self, place: Place, part: int, parts: int) -> Place:
        """Return the place of one of several lanes that share the rest of a lane; lane n becomes n, n + count etc."""

    @abstractmethod
    def identity(self) -> list[Any]:
        """Return what determines the samples, as plain JSON."""

    @abstractmethod
    def len_worker(self, worker_idx: int | None = None) -> int:
        """Return the number of samples of a worker in a pass, ignoring skipped samples and generators."""

    def len_rank(self) -> int:
        """Return the number of samples of this rank in a pass; see `len_worker`."""
        return sum(map(self.len_worker, range(max(1, self.worker_config.num_workers))))

    def __len__(self) -> int:
        """Return `len_rank()`."""
        return self.len_rank()

    def worker_has_samples(self) -> bool:
        """Return whether this rank has any samples."""
        return len(self) > 0

    def config(self) -> dict[str, Any]:
        """Return the configuration of the datasets as plain JSON."""
        return {"type": type(self).__name__}

    def can_restore_sample(self) -> bool:
        """Return whether samples can be made again by their keys."""
        return True

    def assert_can_restore(self) -> None:
        """Raise `ConfigError` if samples can't be made again."""
        if not self.can_restore_sample():
            hint = "Mark the functions as stateless"
            raise ConfigError(f"{type(self).__name__} can't rebuild samples", found=str(self), hint=hint)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__iter__" in vars(cls):
            raise ConfigError(
                f"{cls.__name__} overrides __iter__, which is never called",
                hint="Build the dataset from MapDataset, IterMapDataset and the other wrappers; see the guide",
            )


class Walk:
    """Iterator of a lane's samples; `place` is after the last sample, `end` is where the next pass begins."""

    __slots__ = ("_steps", "end", "place")

    def __init__(self, dataset: SavableDataset[Any], lane: Lane, place: Place) -> None:
        self.place = place
        self.end: Place = None
        self._steps = dataset.walk(lane, place)

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        try:
            sample, self.place = next(self._steps)
        except StopIteration as stop:
            if stop.value is not None:  # None if it had ended before
                self.end = stop.value
            raise
        return sample

    def close(self) -> None:
        self._steps.close()


def again(dataset: SavableDataset[Any], lane: Lane, place: Place) -> Any:
    for sample in Walk(dataset, lane, place):
        return sample
    raise ResumeMismatch("the sample at this position no longer exists", found=repr(place)[:120])


def encode(place: Place) -> Any:
    """Convert a place for a state: to lists and numbers.

    Raises:
        ConfigError: a function holds back samples.
    """
    if isinstance(place, Unsavable):
        raise ConfigError(
            "this position can't be saved", found=place.why, hint="Pass stateless_iter_fn=True if it is stateless"
        )
    return [encode(one) for one in place] if isinstance(place, tuple) else place


def decode(place: Any) -> Place:
    """Return the place in a state or key."""
    if isinstance(place, (list, tuple)):
        return tuple(decode(one) for one in place)
    if place is None or (isinstance(place, int) and not isinstance(place, bool)):
        return place
    raise ResumeMismatch("not a position of a lane", found=repr(place)[:80])

"""`WorkerConfig`, and what functions of a task encoder can query about the sample that they work on."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from penstock._secrets import logger
from penstock.compat.unused import say_unused
from penstock.errors import ConfigError, PenstockError
from penstock.store.place import fixed_path, local_path

_log = logger("penstock.energon")

NOW = threading.local()
"""Current work of a thread: `at` is set around every call of a task encoder's function."""

Handler = Callable[[Exception, Any, "list[Any] | None"], None]
"""Handler of a failed sample, called with exception, sample and sources; raises to end the run."""


class SampleException(PenstockError, ValueError):
    """A sample that fails."""

    @classmethod
    def from_sample_key(cls, sample_key: str) -> Self:
        """One that names the sample."""
        return cls(f"Sample {sample_key} failed")

    @classmethod
    def from_sample(cls, sample: Any, message: str = "") -> Self:
        """Return an error with the key of the sample and the reason."""
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", type(sample).__name__)
        return cls(f"Sample {key} failed" + (f": {message}" if message else ""))


class FatalSampleError(SampleException):
    """Error that ends the run, whatever the error handler does.

    Examples:
        >>> from penstock.compat.energon import FatalSampleError, MapDataset, WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> def label(sample):
        ...     raise FatalSampleError.from_sample(sample, "the label file is missing")
        >>> next(iter(get_loader(MapDataset(samples, label, worker_config=config))))
        Traceback (most recent call last):
        ...
        penstock.compat.energon.worker.FatalSampleError: Sample 000 failed: the label file is missing
    """


def log_exception(e: Exception, sample: Any, sources: list[Any] | None = None) -> None:
    """Log a failed sample and its origin; the run continues without it.

    Examples:
        >>> from penstock.compat.energon import MapDataset, WorkerConfig, get_loader, get_val_dataset, log_exception
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=log_exception)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> inverse = MapDataset(samples, lambda sample: 12 // int(sample.__key__), worker_config=config)
        >>> list(get_loader(inverse))  # 12 // 0 fails, and is logged
        [12, 6, 4, 3, 2]
    """
    key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
    places = [f"{one.dataset_path}/{one.shard_name} ({one.index})" for one in sources or ()]
    origin = f" of {', '.join(places)}" if places else ""
    _log.warning("sample %r%s failed and is skipped: %s", key, origin, said(e), exc_info=e)


def said(e: Exception) -> str:
    """Return an error's message, with its class name unless it is ours."""
    return str(e) if isinstance(e, PenstockError) else f"{type(e).__name__}: {e}"


def reraise_exception(e: Exception, sample: Any, sources: list[Any] | None = None) -> None:
    """End the run at a sample that fails.

    Examples:
        >>> from penstock.compat.energon import MapDataset, WorkerConfig
        >>> from penstock.compat.energon import get_loader, get_val_dataset, reraise_exception
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=reraise_exception)
        >>> samples = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=None)
        >>> numbers = MapDataset(samples, lambda sample: int(sample.caption), worker_config=config)
        >>> next(iter(get_loader(numbers)))
        Traceback (most recent call last):
        ...
        ValueError: invalid literal for int() with base 10: 'picture 0'...
    """
    del sample, sources
    raise e


class _Active:
    """Config of the run that the calling thread works for, read from the class or an object."""

    def __get__(self, instance: Any, owner: Any = None) -> WorkerConfig | None:
        at: At | None = getattr(NOW, "at", None)
        return None if at is None else at[0]


@dataclass(kw_only=True, eq=False)
class WorkerConfig:
    """Ranks, workers and seeds: which process and thread reads which samples.

    The thread or process that reads a sample isn't determined by this class. As in the original, worker `n %
    num_workers` is considered the maker of a rank's n-th batch and of its samples, whichever thread makes it, so
    everything that depends on the worker is the same after a restore.

    Attributes:
        rank: data-parallel rank; equal ranks get equal data.
        world_size: number of data-parallel ranks.
        num_workers: number of threads (or processes, see `get_loader`) that read ahead; 0 reads in the calling thread.
        data_parallel_group: torch group for `save_state_global` and `restore_state_global`.
        seed_offset: changes the order and all other randomness.
        worker_debug_path, worker_log_level: for `worker_log` and `should_log`. Nothing else is written there, with a
            log message: `Loader` metrics and `penstock explain` show what was read.
        global_error_handler: called with every sample that fails.
        restore_error_handler: ignored, with a log message: nothing is read again by a restore.
        active_worker_config: the config in use; None outside the functions of a task encoder.

    Examples:
        >>> from penstock.compat.energon import WorkerConfig
        >>> config = WorkerConfig(rank=1, world_size=4, num_workers=2, seed_offset=7)
        >>> config.rank, config.num_workers
        (1, 2)
        >>> WorkerConfig.active_worker_config is None
        True
    """

    active_worker_config: ClassVar[_Active] = _Active()

    rank: int
    world_size: int
    num_workers: int
    data_parallel_group: Any = None
    seed_offset: int = 0
    worker_debug_path: Any = None
    worker_log_level: int = 0
    global_error_handler: Handler = log_exception
    restore_error_handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        debug = {"worker_debug_path": self.worker_debug_path, "worker_log_level": self.worker_log_level}
        if self.worker_debug_path is not None:
            self.worker_debug_path = fixed_path(str(self.worker_debug_path))
        if not 0 <= self.rank < self.world_size or self.num_workers < 0:
            raise ConfigError(
                "rank or number of workers is out of range",
                found=f"rank {self.rank} of {self.world_size}, {self.num_workers} workers",
            )
        because = "use the metrics of the loader and `penstock explain` instead"
        say_unused("WorkerConfig", because, debug, {"worker_log_level": 0})
        handler = {"restore_error_handler": self.restore_error_handler}
        say_unused(
            "WorkerConfig", "restoring doesn't re-read samples", handler, {"restore_error_handler": reraise_exception}
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerConfig):
            return NotImplemented
        return self._shape == other._shape

    def __hash__(self) -> int:
        return hash(self._shape)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.rank, self.world_size, self.num_workers

    @classmethod
    def default_worker_config(cls, num_workers: int = 4, data_parallel_group: Any = None) -> WorkerConfig:
        """Return a config for torch.distributed if it is initialized, else for one rank."""
        from penstock._optional import require

        dist = require("torch.distributed", extra="torch")
        if not (dist.is_available() and dist.is_initialized()):
            return cls(rank=0, world_size=1, num_workers=num_workers)
        group = data_parallel_group
        return cls(
            rank=dist.get_rank(group),
            world_size=dist.get_world_size(group),
            num_workers=num_workers,
            data_parallel_group=group,
        )

    def global_rank(self) -> int:
        """Return the rank in torch.distributed's world, or the data-parallel rank if that isn't initialized."""
        if self.data_parallel_group is None:
            return self.rank
        from penstock._optional import require

        return require("torch.distributed", extra="torch").get_global_rank(self.data_parallel_group, self.rank)

    @property
    def active_worker_sample_index(self) -> int:
        """Same as `TaskEncoder.current_sample_index`."""
        return current("sample", "active_worker_sample_index")

    @property
    def active_worker_batch_index(self) -> int:
        """Same as `TaskEncoder.current_batch_index`."""
        return current("batch", "active_worker_batch_index")

    def rank_worker_id(self) -> int:
        """Return the worker number of the calling function, below `num_workers`; 0 outside a task encoder."""
        at: At | None = getattr(NOW, "at", None)
        number = 0 if at is None else _first_known(at[3], at[2], at[1])
        return number % max(self.num_workers, 1)

    def global_worker_id(self, override_local_worker_id: int | None = None) -> int:
        """Return the worker's number among those of all ranks.

        Args:
            override_local_worker_id: a worker of this rank instead of the active one.
        """
        local = self.rank_worker_id() if override_local_worker_id is None else override_local_worker_id
        return self.rank * self.num_workers + local

    def worker_seed(self, override_local_worker_id: int | None = None) -> int:
        """Return a seed below 2³² for the worker, the same number as the original's.

        Args:
            override_local_worker_id: as in `global_worker_id`.
        """
        worker = self.global_worker_id(override_local_worker_id) if self.num_workers else self.rank
        return int.from_bytes(hashlib.sha1(f"{worker},{self.seed_offset}".encode()).digest()[-4:], "big")

    def assert_worker(self) -> None:
        """Do nothing: every caller counts as a worker."""

    def worker_activate(
        self, sample_index: int, override_global_rank: int | None = None, cache_pool: Any = None
    ) -> None:
        """Start to work on a sample, for functions that are called by hand; `worker_deactivate` ends it.

        Raises:
            ConfigError: another sample is active, or another argument is given.
        """
        if override_global_rank is not None or cache_pool is not None:
            what = "a sample has no rank or pool of its own here"
            raise ConfigError(what, hint="Pass only the index of the sample to worker_activate")
        if getattr(NOW, "at", None) is not None:
            raise ConfigError("a sample is already active", hint="Call worker_deactivate first")
        begin(self, sample_index, sample_index, sample_index)

    def worker_deactivate(self) -> None:
        """End the work that `worker_activate` started."""
        end(None)

    def should_log(self, level: int) -> bool:
        """Return whether `worker_log_level` is at least this high."""
        return level <= self.worker_log_level

    def worker_log(self, data: Mapping[str, Any]) -> None:
        """Append a line of JSON to the file `worker_debug_path`.

        If that is unset, the line goes to standard output. `{worker_id}` and `{pid}` in the path are replaced; lines of
        earlier runs are kept.
        """
        line = json.dumps(data)
        if self.worker_debug_path is None:
            sys.stdout.write(line + "\n")
            return
        path = str(self.worker_debug_path).format(worker_id=self.global_worker_id(), pid=os.getpid())
        path = local_path(path, "the log of a worker")
        log = Path(path)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def config(self) -> dict[str, Any]:
        """Return the settings as plain JSON; the group is represented by its size."""
        group = self.data_parallel_group
        shape = {"rank": self.rank, "world_size": self.world_size, "num_workers": self.num_workers}
        return {**shape, "data_parallel_group": None if group is None else group.size()}


Index = int | Callable[[], int] | None
"""A number, or a function that computes it on demand."""


At = tuple["WorkerConfig", int | None, Index, Index]
"""Current work, as a plain tuple because one is made for every sample:

- the config of the run;
- the number that seeds random numbers: for a sample, its position;
- the number of the rank's current batch;
- the number of samples, or batches, passed to the function by its worker before, as in the original.
"""


@contextmanager
def working_on(
    config: WorkerConfig, number: int | None = None, batch: Index = None, index: Index = None
) -> Generator[None]:
    """Set the current work for the calls in the block; see `At`."""
    before = begin(config, number, batch, index)
    try:
        yield
    finally:
        end(before)


@dataclass(frozen=True, slots=True)
class OfBatch:
    """Batch for which samples are encoded.

    Attributes:
        number: number of the rank's batch.
        row: row of the sample in it.
        first: position of the sample in that row, if the batch takes every world-th sample from there on.
    """

    number: int
    row: int = 0
    first: int | None = None


@contextmanager
def batch_index(number: int, row: int = 0, first: int | None = None) -> Generator[None]:
    """Set the batch for which samples are encoded inside; see `OfBatch`."""
    before = getattr(NOW, "batch", None)
    NOW.batch = OfBatch(number, row, first)
    try:
        yield
    finally:
        NOW.batch = before


def current_batch() -> int:
    batch: OfBatch | None = getattr(NOW, "batch", None)
    return 0 if batch is None else batch.number


def begin(config: WorkerConfig, number: int | None = None, batch: Index = None, index: Index = None) -> At | None:
    """Set what calls work on from now on; return the previous value, for `end`."""
    before: At | None = getattr(NOW, "at", None)
    NOW.at = config, number, batch, index
    return before


def end(before: At | None) -> None:
    NOW.at = before


def seed_now() -> tuple[int, int]:
    """Return the run's seed, and the number of the current sample, or else batch."""
    at: At | None = getattr(NOW, "at", None)
    return (0, 0) if at is None else (at[0].seed_offset, _first_known(at[1], at[2]))


def current(what: Literal["sample", "batch"], name: str) -> int:
    """Return the index of the current sample or batch."""
    at: At | None = getattr(NOW, "at", None)
    found = None if at is None else at[3] if what == "sample" else at[2]
    if found is None:
        raise ConfigError(f"{name} is only available inside task encoder functions that process a single sample")
    return found() if callable(found) else found


def _first_known(*numbers: Index) -> int:
    found = next((one for one in numbers if one is not None), 0)
    return found() if callable(found) else found

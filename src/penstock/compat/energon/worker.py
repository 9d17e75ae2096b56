"""`WorkerConfig`, and what functions of a task encoder can query about the sample that they work on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock._secrets import logger
from penstock.compat.unused import say_unused
from penstock.errors import ConfigError, PenstockError

_log = logger("penstock.energon")

Handler = Callable[[Exception, Any, "list[Any] | None"], None]
"""Exception, sample, sources: what is done with a sample that fails; it raises to end the run."""


class FatalSampleError(PenstockError):
    """A failure that ends the run, whatever the handler does."""


def log_exception(e: Exception, sample: Any, sources: list[Any] | None = None) -> None:
    """Log a sample that failed, and where it comes from; the run goes on without it."""
    key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
    places = [f"{one.dataset_path}/{one.shard_name} ({one.index})" for one in sources or ()]
    origin = f" of {', '.join(places)}" if places else ""
    _log.warning("sample %r%s failed and is left out: %s", key, origin, said(e), exc_info=e)


def said(e: Exception) -> str:
    """The message of an exception, with the name of its class where it is none of ours."""
    return str(e) if isinstance(e, PenstockError) else f"{type(e).__name__}: {e}"


def reraise_exception(e: Exception, sample: Any, sources: list[Any] | None = None) -> None:
    """End the run at a sample that fails."""
    del sample, sources
    raise e


@dataclass(kw_only=True, eq=False)
class WorkerConfig:
    """Ranks, workers and seeds: which process and thread reads which samples.

    Attributes:
        rank: data-parallel rank; equal ranks get equal data.
        world_size: number of data-parallel ranks.
        num_workers: threads (or processes, see `get_loader`) that read ahead; 0 reads in the calling thread.
        data_parallel_group: torch group for `save_state_global` and `restore_state_global`.
        seed_offset: another order and other randomness.
        worker_debug_path, worker_log_level: change nothing, which is logged: `Loader` metrics and `penstock explain`
            show what was read.
        global_error_handler: called with every sample that fails.
        restore_error_handler: changes nothing, which is logged: nothing is read again at a restore.
    """

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
        if not 0 <= self.rank < self.world_size or self.num_workers < 0:
            raise ConfigError(
                "no such rank or number of workers",
                found=f"rank {self.rank} of {self.world_size}, {self.num_workers} workers",
            )
        debug = {"worker_debug_path": self.worker_debug_path, "worker_log_level": self.worker_log_level}
        because = "the loader's metrics and `penstock explain` tell what is read"
        say_unused("WorkerConfig", because, debug, {"worker_log_level": 0})
        handler = {"restore_error_handler": self.restore_error_handler}
        say_unused(
            "WorkerConfig", "nothing is read again at a restore", handler, {"restore_error_handler": reraise_exception}
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
        """Of torch.distributed where it runs, else of one rank."""
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
        """The rank in torch.distributed's world; the data-parallel one where that does not run."""
        if self.data_parallel_group is None:
            return self.rank
        from penstock._optional import require

        return require("torch.distributed", extra="torch").get_global_rank(self.data_parallel_group, self.rank)

    def config(self) -> dict[str, Any]:
        """What is decided by it, as plain JSON; of the group its ranks."""
        group = self.data_parallel_group
        if group is not None:
            from penstock._optional import require

            group = list(require("torch.distributed", extra="torch").get_process_group_ranks(group))
        shape = {"rank": self.rank, "world_size": self.world_size, "num_workers": self.num_workers}
        return {**shape, "data_parallel_group": group}


NOW = threading.local()
"""What a thread works on: its `at` is set around every call of a function of a task encoder."""


@contextmanager
def working_on(seed: int, sample: int | None = None, batch: int | None = None) -> Generator[None]:
    """Set the sample and batch that the calls inside work on."""
    before = begin(seed, sample, batch)
    try:
        yield
    finally:
        end(before)


@contextmanager
def batch_index(number: int) -> Generator[None]:
    """Say which batch the samples that are encoded inside are for."""
    before = getattr(NOW, "batch", None)
    NOW.batch = number
    try:
        yield
    finally:
        NOW.batch = before


def begin(seed: int, sample: int | None = None, batch: int | None = None) -> Any:
    """Set the sample and batch that calls from now on work on; returns the previous ones, for `end`."""
    before = getattr(NOW, "at", None)
    NOW.at = seed, sample, batch
    return before


def end(before: Any) -> None:
    """Restore the sample and batch that `begin` returned."""
    NOW.at = before


def seed_now() -> tuple[int, int]:
    """Seed of the run, and the number of the sample, or else of the batch, that is worked on."""
    at: tuple[int, int | None, int | None] | None = getattr(NOW, "at", None)
    if at is None:
        return 0, 0
    return at[0], at[1] if at[1] is not None else at[2] or 0


def current(what: int, name: str) -> int:
    """Number of the sample (1) or batch (2) that is worked on."""
    at: tuple[int, int | None, int | None] | None = getattr(NOW, "at", None)
    found = None if at is None else at[what]
    if found is None:
        raise ConfigError(f"{name} is known only inside the functions of a task encoder that work on one")
    return found

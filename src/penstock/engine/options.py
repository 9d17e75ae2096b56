"""Options of all jobs: executor, part of a distributed job, and handling of an existing output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.executors import AnyExecutor

Progress = Callable[[int, str], None]
"""Called with the number of samples done so far, and a text to show."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of how a job runs. Public functions build it from their arguments and pass it on as one value.

    Attributes:
        executor: name of an executor, or an executor. None: processes if there is more than one worker.
        workers: number of workers; None: the default of the executor.
        part: `(i, n)`: only part i (from 0) of n of a distributed job, without commit.
        finish: finalize a distributed job: do the missing work, then commit.
        no_work: with `finish`: only commit if nothing is missing.
        restart: discard unfinished work.
        dry_run: check everything and count what would be written, without writing.
        overwrite: replace an existing output.
        keep_map: write a row map next to the output.
        keep_excluded: also copy excluded samples, with their entries in the exclude list.
        progress: called with the number of samples done and a text.

    Raises:
        ConfigError: the executor doesn't exist, or options contradict each other.
    """

    executor: AnyExecutor | None = None
    workers: int | None = None
    part: tuple[int, int] | None = None
    finish: bool = False
    no_work: bool = False
    restart: bool = False
    dry_run: bool = False
    overwrite: bool = False
    keep_map: bool = False
    keep_excluded: bool = False
    progress: Callable[..., None] | None = None

    def __post_init__(self) -> None:
        if self.executor is not None or self.workers is not None:
            from penstock.executors import require_executor

            require_executor(self.executor or "processes", self.workers)
        if self.part is not None:
            index, count = self.part
            if not 0 <= index < count:
                raise ConfigError("the part is out of range", found=f"{index}/{count}", expected="I/N with 0 <= I < N")
            what = "this option can't be combined with part (--part)"
            if self.finish:
                raise ConfigError(what, found="finish (--finish)", hint="Omit one of the two")
            if self.restart:
                hint = "Discard finished work once with --finish --no-work --restart, then start the parts"
                raise ConfigError(what, found="restart (--restart)", hint=hint)
        if self.no_work and not self.finish:
            raise ConfigError("no_work (--no-work) only applies to finish", hint="Add finish (--finish)")
        if self.is_distributed and self.dry_run:
            hint = "Omit part, finish and no_work (--part, --finish, --no-work)"
            raise ConfigError("a dry run always covers the whole job", found="dry_run (--dry-run)", hint=hint)

    @property
    def is_distributed(self) -> bool:
        return self.part is not None or self.finish

    @property
    def has_workers(self) -> bool:
        return self.executor != "inline" and (self.executor is not None or self.workers not in (None, 1))

    @property
    def is_inline(self) -> bool:
        return not self.is_distributed and (self.dry_run or not self.has_workers)

    def takes(self, task: int) -> bool:
        """Whether this run does the task with this number."""
        index, count = self.part or (0, 1)
        return task % count == index


@dataclass(slots=True)
class Counter:
    """Reports how many of `total` samples are done; `total` may be unknown."""

    total: int | None
    progress: Callable[..., None] | None
    done: int = 0

    def add(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, "" if self.total is None else f"of {self.total:,}")


class NumberCounter(Counter):
    def add(self, count: int) -> None:
        self.done += count
        if self.progress is not None and count:
            self.progress(self.done, self.total)

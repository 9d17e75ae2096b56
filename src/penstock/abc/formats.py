"""Formats and their writers, and executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from penstock.abc.sources import Source
from penstock.abc.stores import Store
from penstock.types import Action, Batch, Depth, Finding, Manifest, OpenOptions, Sample, Sniff, Traits

T = TypeVar("T")
R = TypeVar("R")


class Writer(Protocol):
    """Makes one dataset.

    Laws: bytes depend on (options, samples) alone; nothing is visible before `commit`; `commit` happens once, and a
    write or a `commit` after it, or after `abort`, is a `ConfigError`. The end of the `with` block commits, or aborts
    where an exception ends it; a writer that was committed or aborted inside the block it leaves as it is.
    """

    def write(self, sample: Sample, /) -> None:
        """Add one sample."""
        ...

    def write_batch(self, batch: Batch, /) -> None:
        """Add k samples given as columns."""
        ...

    def commit(self) -> Manifest:
        """Make the dataset visible, durably."""
        ...

    def abort(self) -> None:
        """Discard everything written; after `commit` it does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Format(Protocol):
    """One on-disk format. A module of `penstock.formats` exposes one as `FORMAT`."""

    name: str
    traits: Traits

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Return whether `path` looks like this format, from at most 64 KiB, and why."""
        ...

    def open(self, store: Store, path: str, options: OpenOptions, /) -> Source[Sample]:
        """Return the dataset; raise a `FormatError` that describes the damage, or `NotFound`."""
        ...

    def create(self, store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> Writer:
        """Return a writer; unknown options raise a `ConfigError` that lists the known ones."""
        ...

    def check(self, store: Store, path: str, options: OpenOptions, depth: Depth, /) -> Iterable[Finding]:
        """Return findings. Never writes, never raises an error for bad data; raises `NotFound`."""
        ...

    def repair(
        self, store: Store, path: str, options: OpenOptions, findings: Sequence[Finding], *, write: bool
    ) -> list[Action]:
        """List the repairs; make them if `write` is true, keeping a backup. Called if `traits.repair` is true."""
        ...


class Executor(Protocol):
    """Runs tasks.

    Laws: results come in task order. `fn` may run several times for one task, and at once. An error of `fn` stops the
    work and is raised in the caller, after the results of earlier tasks; it is an answer, and never tried again. A
    worker that dies is the executor's to replace: its task runs again. A task that kills three workers is set aside
    while the rest goes on, and the work ends with an error that names it. Tasks are taken as they are needed.

    A task may have a text `described`, by which errors name it: its file and its bytes.
    """

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`fn` of each task, in order; one map at a time.

        Raises:
            PrepareError: a task was set aside, or no worker can be had.
        """
        ...

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
    """Writer of one dataset, as returned by `penstock.create`.

    Contract: the bytes written depend only on options and samples. Nothing is visible before `commit`. `commit` happens
    once; a write or `commit` after it, or after `abort`, raises `ConfigError`. The end of the `with` block commits, or
    aborts after an exception. It does nothing if the writer was committed or aborted inside the block.

    Examples:
        >>> import penstock as ps
        >>> from penstock.abc import Writer
        >>> def write_squares(writer: Writer, count: int) -> int:
        ...     for number in range(count):
        ...         writer.write({"square": number**2})
        ...     return writer.commit().num_samples
        >>> write_squares(ps.create("squares.jsonl", format="jsonl"), 4)
        4
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
    """On-disk format.

    A module of `penstock.formats` exports one as `FORMAT`; a plug-in registers one as an entry point.

    The entry-point group is `penstock.formats`.

    Examples:
        >>> from penstock.abc import Format
        >>> from penstock.formats import get_format
        >>> from penstock.store import LocalStore
        >>> from penstock.types import OpenOptions
        >>> pbin: Format = get_format("pbin")
        >>> pbin.sniff(LocalStore(), "corpus.pbin").matches
        True
        >>> len(pbin.open(LocalStore(), "corpus.pbin", OpenOptions()))
        6
    """

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
    """Interface for running tasks.

    Contract: results come in task order. `fn` may run several times for one task, and concurrently. An error raised by
    `fn` stops the work and is raised in the caller, after the results of earlier tasks; the task isn't retried. The
    executor replaces a worker that dies, and its task runs again. A task that kills three workers is set aside; the
    others still run, and the work ends with an error that names it. Tasks are taken from the iterable as they are
    needed.

    A task may have an attribute `described`, a text by which errors name it: its file and bytes.

    Examples:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> import penstock as ps
        >>> class Threads:
        ...     def map(self, fn, tasks):
        ...         with ThreadPoolExecutor(2) as pool:
        ...             yield from pool.map(fn, tasks)
        >>> ps.verify("corpus.pbin", depth="full", executor=Threads())
        []
    """

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield `fn(task)` for each task, in order. Only one map at a time.

        Raises:
            PrepareError: a task was set aside, or no worker is available.
        """
        ...

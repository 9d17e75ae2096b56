"""Formats and their writers, and who runs work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.abc.sources import Source
from penstock.abc.stores import Store
from penstock.types import Action, Batch, Depth, Finding, IntArray, Manifest, OpenOptions, Sample, Sniff, Traits

T = TypeVar("T")
R = TypeVar("R")


class Writer(Protocol):
    """Makes one dataset.

    Laws: bytes depend on (options, samples) alone; nothing is visible before `commit`; leaving the `with`
    block by an exception aborts; `commit` happens once, a write after it is an error.
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
        """Leave nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@runtime_checkable
class SupportsTokenParts(Protocol):
    """A writer that takes finished runs of tokens from files, without passing them through Python."""

    def write_part(self, path: str, start_bytes: int, doc_lengths: IntArray, max_token_id: int | None) -> None:
        """Append documents whose tokens lie back to back in a file, little-endian in the writer's width.

        Args:
            path: local file.
            start_bytes: where its tokens begin.
            doc_lengths: int64[n_docs], in tokens.
            max_token_id: the largest id in there, -1 when there is no token, or None: the writer looks.
        """
        ...


@runtime_checkable
class SupportsDocumentRuns(Protocol):
    """A writer that takes many documents as one run of tokens: the way of `convert`, `merge` and `shuffle`."""

    def write_documents(self, tokens: NDArray[Any], doc_lengths: IntArray, /) -> None:
        """Append documents that lie back to back.

        Args:
            tokens: uint[n_tokens], any unsigned dtype.
            doc_lengths: int64[n_docs], in tokens; their sum is `len(tokens)`.
        """
        ...


@runtime_checkable
class SupportsLineRuns(Protocol):
    """A writer that takes many lines as they are: the way of `merge` and `shuffle` for files of lines."""

    def write_lines(self, data: NDArray[np.uint8], line_lengths: IntArray, /) -> None:
        """Append lines.

        Args:
            data: uint8[n_bytes]: lines back to back, each with its `\\n`.
            line_lengths: int64[k], in bytes, without the `\\n`.
        """
        ...


@runtime_checkable
class SupportsSampleRuns(Protocol):
    """A writer that takes many samples as they are stored under the same columns: the way of `shuffle` and `split`."""

    def write_samples(self, data: NDArray[np.uint8], lengths: IntArray, /) -> None:
        """Append samples, whose bytes are not looked at.

        Args:
            data: uint8[n_bytes]: stored samples back to back; not used after the call.
            lengths: int64[k], in bytes.
        """
        ...


class Format(Protocol):
    """One on-disk format. A module of `penstock.formats` exposes one as `FORMAT`."""

    name: str
    traits: Traits

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Whether `path` looks like this format, from at most 64 KiB, and why."""
        ...

    def open(self, store: Store, path: str, options: OpenOptions, /) -> Source[Sample]:
        """The dataset; raises a `FormatError` that says what is wrong."""
        ...

    def create(self, store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> Writer:
        """A writer; unknown options are a `ConfigError` that lists the known ones."""
        ...

    def check(self, store: Store, path: str, options: OpenOptions, depth: Depth, /) -> Iterable[Finding]:
        """Findings; never writes, never raises for bad data."""
        ...

    def repair(
        self, store: Store, path: str, options: OpenOptions, findings: Sequence[Finding], *, write: bool
    ) -> list[Action]:
        """What would be mended, and mends it when `write` is true, keeping a backup."""
        ...


@runtime_checkable
class SupportsManifest(Protocol):
    """A format that can make the side file for data that another tool wrote."""

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /, *, replace: bool = False) -> str:
        """Write the side file; returns its path.

        Raises:
            Corrupt: there is one that the data contradict, and `replace` is false.
        """
        ...


class Executor(Protocol):
    """Runs tasks.

    Laws: results come in task order; the first error stops the work and is raised in the caller; a killed
    worker is an error, never silence.
    """

    def map(self, fn: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`fn` of each task, in order."""
        ...

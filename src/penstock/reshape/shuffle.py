"""`shuffle`: documents or lines in a random order that a seed decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from penstock._keywords import Reshaping
from penstock._secrets import redact
from penstock.abc import Writer
from penstock.engine.options import Counter, Progress, RunOptions
from penstock.engine.parts import require_intact
from penstock.engine.rows import StoredRows, read_run, runs
from penstock.engine.run import Wave, run
from penstock.engine.work import Work
from penstock.errors import ConfigError, Unsupported
from penstock.executors import AnyExecutor
from penstock.formats.tables.lines import TableLines
from penstock.reshape.dataset_job import TASK_BYTES
from penstock.reshape.outputs import Output, Written, write_rows
from penstock.reshape.reorder import (
    Announce,
    Passes,
    RowOrder,
    SeededOrder,
    Window,
    bucket_borders,
    cost_of_places,
    cost_of_rows,
    gather,
    grouped,
    passes_of,
    reordered,
    windows_of,
)
from penstock.reshape.row_job import (
    Appended,
    Copy,
    Made,
    Make,
    RowJob,
    RowRange,
    part_rows,
    ranges_of,
)
from penstock.reshape.rows import is_tars, open_rows
from penstock.reshape.sidecars import RowNumbers, Sidecars, refuse_sidecars, rows_in_order
from penstock.store.base import Store
from penstock.store.derived import keeping_nothing
from penstock.store.place import Data, Given, place_of
from penstock.types import IntArray

_LEAST_MEMORY_BYTES = 1 << 20


def shuffle(
    source: Data,
    target: Given,
    *,
    seed: int = 0,
    to: str | None = None,
    format: str | None = None,
    token_bytes: int | None = None,
    memory_bytes: int | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    keep_map: bool = False,
    keep_excluded: bool = False,
    store: Store | None = None,
    progress: Progress | None = None,
    executor: AnyExecutor | None = None,
    workers: int | None = None,
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    restart: bool = False,
    announce: Announce | None = None,
    **options: Unpack[Reshaping],
) -> Written:
    """Write the documents, lines or samples of a dataset in a random order.

    The order is the first epoch of `penstock.Shuffle` with the same seed. The bytes written depend only on the source
    and the seed. Data larger than memory goes through an unnamed scratch file next to the target, as large as the data.
    Memory: `memory_bytes`, 100 MB, and 12 bytes per document; or a few times the longest document.

    Args:
        source: token dataset, JSONL file, or shards.
        target: path of the dataset to write.
        seed: any integer.
        to: format of the target. By default that of its suffix, else that of the source.
        format: format of the source; detected by default.
        token_bytes: bytes per token id, if wider than in the source.
        memory_bytes: memory for rows, by default 48 to 112 MB. More is faster for data larger than memory. Doesn't
            affect the output.
        overwrite: replace an existing target.
        dry_run: check everything and count what would be written, without writing.
        keep_map: write a row map next to the target, 8 bytes per row.
        keep_excluded: also copy excluded samples, with their entries: they are excluded in the target.
        store: store of all files.
        progress: called after each batch of rows.
        executor: how to run the work, as in `penstock.pack`. By default this process. Doesn't affect the output.
        workers: number of workers, as in `penstock.pack`.
        part: `(i, n)`: do part i (from 0) of n parts of a distributed job, a range of the output's rows.
        finish: finalize the distributed job, doing missing work first.
        no_work: with `finish`, only commit if nothing is missing.
        restart: discard existing work.
        announce: called with the planned reads once the output is claimed, before anything is written.
        options: options of `penstock.open` for the source. For tars see `penstock.reshape.tars.merge_tars`; each split
            of tars is shuffled separately.

    Returns:
        A report on the dataset written.

    Raises:
        ConfigError: the output exists, or an option is invalid.
        FormatError: the source is damaged.

    Examples:
        >>> import penstock as ps
        >>> written = ps.shuffle("docs.jsonl", "shuffled.jsonl", seed=0)
        >>> sorted(sample["id"] for sample in ps.open("shuffled.jsonl"))
        ['a1', 'a2', 'a3', 'a4', 'a5', 'a6']
    """
    cast(dict[str, Any], options)["keep_excluded"] = keep_excluded
    if memory_bytes is not None and memory_bytes < _LEAST_MEMORY_BYTES:
        least = f"{_LEAST_MEMORY_BYTES} or more"
        raise ConfigError("too little memory for a shuffle", found=memory_bytes, expected=least)
    dataset, place = place_of(source, store), place_of(target, store).bare()
    how = RunOptions(
        executor, workers, part, finish, no_work, restart, dry_run, overwrite, keep_map, keep_excluded, progress
    )
    if is_tars(dataset, format, options.get("layout")):
        refuse_sidecars(cast(dict[str, Any], options), keep_map, "tars are written whole")
        from penstock.reshape.tars import merge_tars  # slow

        given: dict[str, Any] = {"announce": announce, "to": to, "seed": seed}
        given |= {"token_bytes": token_bytes, "memory_bytes": memory_bytes}
        return merge_tars([dataset], place, how, **given, **options)[0]
    with keeping_nothing(dry_run):
        rows = open_rows(dataset, format=format, **options)
    if how.is_distributed and memory_bytes is not None:
        what, hint = "a part of a distributed shuffle uses a fixed 64 MiB of rows", "Omit memory_bytes (--memory-mb)"
        raise ConfigError(what, found=f"{memory_bytes} bytes", hint=hint)
    common: dict[str, Any] = {"output": place, "outputs": [Output(place, to, token_bytes)], "options": how}
    common |= {"sources": [rows], "opened_with": options, "command": {"command": "shuffle", "seed": seed}}
    return run(_job(rows, SeededOrder(len(rows), seed) if len(rows) else None, memory_bytes, announce, common))[0]


def _job(
    rows: StoredRows,
    order: RowOrder | None,
    memory_bytes: int | None,
    announce: Announce | None,
    common: dict[str, Any],
) -> RowJob:
    """Return the cheapest job that gives this order."""
    how: RunOptions = common["options"]
    common["counter"] = Counter(len(rows), how.progress)
    if order is None:
        return ShuffleJob(**common, make=Copy(), laid=[], order=None, passes=None)
    passes = passes_of(rows, order, memory_bytes)
    by_workers = how.is_distributed or how.has_workers
    picked = by_workers and _is_picked(rows, passes, distributed=how.is_distributed)
    common["announced"] = _told(announce, rows, None if picked else passes)
    if how.is_inline:
        laid = list(ranges_of(0, rows)) if how.dry_run else []  # the writer gets rows in passes
        return ShuffleJob(**common, make=Copy(), laid=laid, order=order, passes=passes)
    if not picked:
        make = Bucket(order, bucket_borders(passes))
        return BucketJob(**common, make=make, laid=list(ranges_of(0, rows)), order=order, passes=passes)
    task_bytes = TASK_BYTES if memory_bytes is None else min(TASK_BYTES, memory_bytes // 2)
    laid = [_places(rows, one) for one in windows_of(rows, order, task_bytes)]
    return RowJob(**common, make=Pick(order), laid=laid, task_bytes=task_bytes)


def _is_picked(rows: StoredRows, passes: Passes, *, distributed: bool) -> bool:
    """Return whether rows are read one by one: always in parts, with workers of one run if nothing else reads less.

    Raises:
        Unsupported: the job is distributed, and the format has no random access.
    """
    can = rows.can_view() or rows.can_pick()
    if distributed and not can:
        path, is_table = rows.place.path, isinstance(rows.place.store, TableLines)
        stem = rows.place.name.rpartition(".")[0] or rows.place.name
        to = f"`penstock convert {path} {stem}.jsonl`" if is_table else "to pbin, or to shards without compression"
        what = "a distributed shuffle needs random access to rows, which this format doesn't support"
        raise Unsupported(what, path=path, hint=f"Convert them first: {to}, or omit --part and --finish")
    return can and (distributed or passes.gathers)


def _told(announce: Announce | None, rows: StoredRows, passes: Passes | None) -> Callable[[], None] | None:
    """Return a callback that reports the cost of reading, in passes or row by row."""
    if announce is None:
        return None
    remote = not rows.place.is_local

    def tell() -> None:
        cost = (
            cost_of_places(rows, is_remote=remote) if passes is None else cost_of_rows(rows, passes, is_remote=remote)
        )
        announce(cost)

    return tell


def _places(rows: StoredRows, window: Window) -> RowRange:
    described = f"{redact(rows.place.path)}, places {window.first} to {window.stop} of the output"
    return RowRange(0, window.first, window.stop, described)


# --- in this process -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ShuffleJob(RowJob):
    """A shuffle in one process.

    Attributes:
        order: of the rows; None for an empty source.
        passes: how they get into it.
        rows: the rows to put in order; by default those of the one source.
    """

    order: RowOrder | None
    passes: Passes | None
    rows: StoredRows | None = None

    def fill(self, writers: Sequence[Writer], numbers: Sequence[list[range | IntArray]]) -> None:
        rows, order = self.rows or self.sources[0], self.order
        if order is None:
            return
        for data, lengths in reordered(rows, order, output=self.outputs[0].place, passes=self.passes):
            write_rows(writers[0], self.sources[0], data, lengths, rows.place)
            self.counter.add(len(lengths))

    def along(self, output: Output, rows: RowNumbers | None = None) -> Sidecars:
        return super().along(output, self._numbers)

    def _numbers(self) -> Iterator[IntArray]:
        total = 0 if self.order is None else len(self.rows or self.sources[0])
        return iter(()) if self.order is None else rows_in_order(self.order.rows_at, total)


# --- by workers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pick(Make):
    """Collects the rows of a range of the output by random access."""

    order: RowOrder

    def __call__(self, rows: StoredRows, task: RowRange, /) -> Iterator[Made]:
        rows.prove(task.first, task.stop)  # those that come next in the source: all tasks together prove all rows
        indices = self.order.rows_at(task.first, task.stop)
        if rows.can_view() or not rows.can_pick():
            out = np.empty(int(rows.ranges(indices)[1].sum()), rows.dtype)
            yield Made(0, out, gather(rows, indices, out), indices)
        else:
            yield Made(0, rows.pick(indices), rows.ranges(indices)[1], indices)


@dataclass(frozen=True, slots=True)
class Bucket(Make):
    """Sorts the rows of a task by the window of the output that they go to.

    Attributes:
        order: of all rows.
        borders: int64[n_windows + 1]: first row of each window in the output.
    """

    order: RowOrder
    borders: IntArray

    def __call__(self, rows: StoredRows, task: RowRange, /) -> Iterator[Made]:
        found = dict[int, list[tuple[NDArray[Any], IntArray, IntArray]]]()
        for first, stop in runs(rows, task.first, task.stop):
            buckets = self._buckets_of(first, stop)
            for bucket, data, lengths in grouped(*read_run(rows, first, stop), buckets):
                found.setdefault(bucket, []).append((data, lengths, first + np.flatnonzero(buckets == bucket)))
        for bucket in sorted(found):
            for data, lengths, numbers in found[bucket]:
                yield Made(0, data, lengths, numbers)

    def buckets(self, task: RowRange, data: NDArray[Any], lengths: IntArray) -> Iterator[tuple[int, NDArray[Any]]]:
        """Return each bucket's rows of a task, given all of them in the order of `__call__`."""
        buckets = np.sort(self._buckets_of(task.first, task.stop))
        stops = np.cumsum(np.bincount(buckets, lengths)).astype(np.int64)
        for bucket in np.unique(buckets).tolist():
            yield bucket, data[int(stops[bucket - 1]) if bucket else 0 : int(stops[bucket])]

    def _buckets_of(self, first: int, stop: int) -> IntArray:
        return self.order.buckets_of(first, stop, self.borders)


@dataclass(frozen=True, kw_only=True)
class BucketJob(ShuffleJob):
    """A shuffle whose workers sort ranges of the source into buckets; one process then puts each bucket in order."""

    make: Bucket

    @property
    def unit_bytes(self) -> int:
        return self.sources[0].dtype.itemsize  # the writer widens tokens

    def wave(self, work: Work) -> Wave:
        return _Bucketed(self, work)


class _Bucketed(Appended):
    """Takes the buckets of all parts, and writes them in order."""

    job: BucketJob

    def fill(self, writer: Writer, group: int) -> None:
        job, (rows,) = self.job, self.job.sources
        if job.order is None:
            return
        for data, lengths in reordered(rows, job.order, output=job.output, passes=job.passes, dealt=self._dealt()):
            write_rows(writer, rows, data, lengths)

    def _dealt(self) -> Iterator[tuple[int, NDArray[Any]]]:
        for task, name in self.job.in_order(self.work, 0):
            if name is not None and isinstance(task, RowRange):
                require_intact(self.work.parts, name)
                data, lengths = part_rows(self.work.parts.child(name.path), self.job.unit_bytes)
                yield from self.job.make.buckets(task, data, lengths)


def write_in_order(
    rows: StoredRows,
    order: RowOrder | None,
    sources: Sequence[StoredRows],
    output: Output,
    command: dict[str, Any],
    how: RunOptions,
) -> Written:
    """Write all rows in an order that isn't ours.

    Args:
        rows: what is to be written, of `sources`.
        order: of as many rows; None if there are none.
        sources: what the rows come from.
        output: what is to be made.
        command: command and options, for the side file.
        how: how to run it.
    """
    passes = None if order is None else passes_of(rows, order)
    job = ShuffleJob(
        output=output.place, outputs=[output], options=how, counter=Counter(len(rows), how.progress), sources=sources,
        opened_with={}, command=command, make=Copy(), laid=[], order=order, passes=passes, rows=rows,
    )  # fmt: skip
    return run(job)[0]

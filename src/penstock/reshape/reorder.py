"""Rows in another order, in bounded memory.

A few windows of output rows are gathered from mapped local files, piece by piece in file order. Otherwise rows go
through a scratch file: one pass over the data puts each row into its bucket of the output, and each bucket, which fits
in memory, is then put in order. So the data is read and written once more, sequentially, at any size. Both ways give
the same rows. The cheaper one is chosen by the cost of a page, a row and a byte.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._threads import thread_pool
from penstock.codec.runs import argsort_small, copy_runs
from penstock.engine.rows import PIECE_UNITS, RUN_BYTES, StoredRows, read_run, runs, total_units
from penstock.errors import PrepareError
from penstock.order.permutation import GlobalOrder
from penstock.store._copies import in_cache_folder
from penstock.store._files import named
from penstock.store.derived import upload_folder
from penstock.store.place import Place
from penstock.types import IntArray

MEMORY_BYTES = 7 << 24
_LEAST_MEMORY_BYTES = 3 << 24
_ROW_BYTES = 12  # what an index of rows, an order's table and a writer's lengths hold of each

T = TypeVar("T")

_BLOCK_ROWS = 1 << 16
_PAGE_BYTES = 4096
_PAGE_NS, _BUCKET_BYTE_NS, _BUCKET_ROW_NS = 700, 2.2, 200  # measured on a machine of two cores
_MOST_BUCKETS = 1 << 14
_WRITE_BYTES = 1 << 17  # larger writes take page cache in larger pieces, which can take longer


@dataclass(frozen=True, slots=True)
class Window:
    """Places `[first, stop)` of the output, and their number of units."""

    first: int
    stop: int
    units: int


class RowOrder(Protocol):
    """Order of rows."""

    def rows_at(self, first: int, stop: int) -> IntArray:
        """Return int64[stop - first]: the rows at these places of the output."""
        ...

    def buckets_of(self, first: int, stop: int, borders: IntArray) -> IntArray:
        """Return int64[stop - first]: the buckets of input rows, the last b with `borders[b] <= place`."""
        ...


class SeededOrder:
    """The first epoch of `penstock.Shuffle`, computed without a table."""

    __slots__ = ("_order",)

    def __init__(self, size: int, seed: int) -> None:
        self._order = GlobalOrder(size, seed)

    def rows_at(self, first: int, stop: int) -> IntArray:
        return self._order.order(np.arange(first, stop))

    def buckets_of(self, first: int, stop: int, borders: IntArray) -> IntArray:
        return np.searchsorted(borders, self._order.inverse(np.arange(first, stop), 0), side="right") - 1


class TableOrder:
    """An order given by a table of the row at each place, such as another tool's."""

    __slots__ = ("_buckets", "_table")

    def __init__(self, table: NDArray[Any]) -> None:
        self._table = table
        self._buckets: NDArray[np.uint16] | None = None

    def rows_at(self, first: int, stop: int) -> IntArray:
        return self._table[first:stop].astype(np.int64)

    def buckets_of(self, first: int, stop: int, borders: IntArray) -> IntArray:
        """Return the buckets of rows; the first call computes all, in 2 bytes per row."""
        if self._buckets is None:
            self._buckets = np.empty(len(self._table), np.uint16)
            for bucket, (low, high) in enumerate(zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)):
                self._buckets[self._table[low:high]] = bucket
        return self._buckets[first:stop].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Passes:
    """How rows are put in order.

    Attributes:
        gathers: gather windows from mapped files; else use a scratch file.
        windows: windows of the output; each is a bucket of the scratch file.
        total_bytes: size of all rows.
    """

    gathers: bool
    windows: list[Window]
    total_bytes: int


def passes_of(rows: StoredRows, order: RowOrder, memory_bytes: int | None = None) -> Passes:
    """Return the cheaper way to put rows in order.

    `memory_bytes`: for rows in memory; by default 48 MB with many rows, up to 112 MB.
    """
    if memory_bytes is None:
        memory_bytes = max(_LEAST_MEMORY_BYTES, MEMORY_BYTES - _ROW_BYTES * len(rows))
    total_bytes = total_units(rows) * rows.dtype.itemsize
    # Half for the run that is made, half for the one that is written.
    window_bytes = max(1, memory_bytes // 2)
    gathers = _gathers(rows, total_bytes, -(-total_bytes // window_bytes))
    if not gathers:  # a third is for rows as they come out of their bucket
        window_bytes = max(1, memory_bytes // 3, total_bytes // _MOST_BUCKETS)
    return Passes(gathers, windows_of(rows, order, window_bytes), total_bytes)


def reordered(
    rows: StoredRows,
    order: RowOrder,
    *,
    output: Place,
    memory_bytes: int | None = None,
    passes: Passes | None = None,
    dealt: Iterable[tuple[int, NDArray[Any]]] | None = None,
) -> Iterator[tuple[NDArray[Any], IntArray]]:
    """Return all rows in `order`, in runs of (any[n_units] back to back, their int64[k] lengths).

    The next run is made while the caller uses the last one, whose memory is then reused. Memory: `memory_bytes`, or a
    5000th of the data if that is more, and 40 MB; or a few times the longest row.

    Args:
        rows: the input.
        order: of as many rows.
        output: their output, for the unnamed scratch file and errors.
        memory_bytes: as of `passes_of`.
        passes: how; by default as of `passes_of`.
        dealt: `(window, rows of it)` for all rows, those of a window in input order; by default read here.

    Raises:
        ConfigError: the upload folder, which holds the scratch file for a URL, can't be written.
        OSError: the directory of a local output can't be written.
    """
    passes = passes or passes_of(rows, order, memory_bytes)
    if passes.gathers:
        yield from ahead(_gathered(rows, order, passes.windows))
        return
    if dealt is None:
        dealt = _dealt(rows, order, bucket_borders(passes))
    with _scratch_file(output) as scratch:
        yield from ahead(_through_buckets(rows, order, passes.windows, _Scratch(scratch.fileno(), output), dealt))


def bucket_borders(passes: Passes) -> IntArray:
    """Return int64[n_windows + 1]: first row of each bucket in the output."""
    return np.array([0, *(window.stop for window in passes.windows)], np.int64)


def _dealt(rows: StoredRows, order: RowOrder, borders: IntArray) -> Iterator[tuple[int, NDArray[Any]]]:
    for first, stop in runs(rows):
        data, lengths = read_run(rows, first, stop)
        for bucket, some, _ in grouped(data, lengths, order.buckets_of(first, stop, borders)):
            yield bucket, some


def _scratch_file(output: Place) -> IO[bytes]:
    with _named_errors(output):
        return tempfile.TemporaryFile(dir=output.folder().path if output.is_local else upload_folder())


@contextlib.contextmanager
def _named_errors(output: Place, wanted_bytes: int = 0) -> Generator[None]:
    """Add the output to operating system errors of its scratch file."""
    if not output.is_local:
        with in_cache_folder(output.path):
            yield
        return
    try:
        yield
    except OSError as error:
        raise named(error, output.path, wanted_bytes) from None


@dataclass(frozen=True, slots=True)
class _Scratch:
    fd: int
    output: Place

    def write_at(self, offset_bytes: int, data: NDArray[Any]) -> None:
        view = data.view(np.uint8).data
        with _named_errors(self.output, len(view)):
            while view:
                written = os.pwrite(self.fd, view[:_WRITE_BYTES], offset_bytes)
                view, offset_bytes = view[written:], offset_bytes + written

    def read_at(self, offset_bytes: int, out: NDArray[Any]) -> None:
        view = out.view(np.uint8).data
        with _named_errors(self.output):
            while view:
                read = os.preadv(self.fd, [view], offset_bytes)
                if read == 0:
                    raise PrepareError("the scratch file ends early", path=self.output.path, offset_bytes=offset_bytes)
                view, offset_bytes = view[read:], offset_bytes + read


def _gathers(rows: StoredRows, total_bytes: int, num_windows: int) -> bool:
    """Return whether to gather windows from mapped files."""
    if num_windows <= 1:
        return True
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not rows.can_view() or total_bytes > memory_bytes // 4:  # more is not all in the page cache
        return False
    # Rows all over the file touch nearly every page of it, in every window again.
    map_ns = num_windows * total_bytes / _PAGE_BYTES * _PAGE_NS
    return map_ns <= total_bytes * _BUCKET_BYTE_NS + len(rows) * _BUCKET_ROW_NS


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Return the same items; the next one is made in a thread meanwhile."""
    with thread_pool(1) as pool:
        pending = pool.submit(next, items, None)
        while (item := pending.result()) is not None:
            pending = pool.submit(next, items, None)
            yield item


def windows_of(rows: StoredRows, order: RowOrder, window_bytes: int) -> list[Window]:
    """Return windows of the output, each of at most `window_bytes` or one longer row."""
    most = window_bytes // rows.dtype.itemsize
    windows: list[Window] = []
    first = opened = total = 0
    for at in range(0, len(rows), _BLOCK_ROWS):
        _, lengths = rows.ranges(order.rows_at(at, min(len(rows), at + _BLOCK_ROWS)))
        marks = total + np.concatenate([[0], np.cumsum(lengths)])  # units before each row of the block, and behind it
        while (fitting := int(np.searchsorted(marks, opened + most, side="right")) - 1) < len(lengths):
            stop = max(at + fitting, first + 1)
            windows.append(Window(first, stop, int(marks[stop - at]) - opened))
            first, opened = stop, int(marks[stop - at])
        total = int(marks[-1])
    return [*windows, Window(first, len(rows), total - opened)] if first < len(rows) else windows


def _buffers(rows: StoredRows, windows: list[Window], count: int) -> list[NDArray[Any]]:
    """Return memory for a window each. It is reused, as fresh memory costs as much as copying into it."""
    largest = max((window.units for window in windows), default=0)
    return [np.empty(largest, rows.dtype) for _ in range(min(count, len(windows)))]


def _gathered(rows: StoredRows, order: RowOrder, windows: list[Window]) -> Iterator[tuple[NDArray[Any], IntArray]]:
    """Return the rows of each window, copied from their files."""
    for window, out in zip(windows, itertools.cycle(_buffers(rows, windows, 2))):
        rows.prove(window.first, window.stop)
        yield out[: window.units], gather(rows, order.rows_at(window.first, window.stop), out)


def gather(rows: StoredRows, indices: IntArray, out: NDArray[Any]) -> IntArray:
    """Copy the rows at `indices` to `out` in that order; return their lengths."""
    starts, lengths = rows.ranges(indices)
    places = np.cumsum(lengths) - lengths
    pieces = starts // PIECE_UNITS
    by_piece = argsort_small(pieces)
    borders = np.flatnonzero(np.diff(pieces[by_piece], prepend=-1, append=-1))
    read = rows.view if rows.can_view() else rows.read
    for first, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        some = by_piece[first:stop]
        own_starts, own_lengths = starts[some], lengths[some]
        low, high = int(own_starts.min()), int((own_starts + own_lengths).max())
        copy_runs(read(low, high), own_starts - low, own_lengths, out, places[some])
        rows.release()
    return lengths


def _through_buckets(
    rows: StoredRows,
    order: RowOrder,
    windows: list[Window],
    scratch: _Scratch,
    dealt: Iterable[tuple[int, NDArray[Any]]],
) -> Iterator[tuple[NDArray[Any], IntArray]]:
    """Return the rows of each window by way of a scratch file."""
    width = rows.dtype.itemsize
    sizes_bytes = np.array([window.units * width for window in windows])
    starts_bytes = (np.cumsum(sizes_bytes) - sizes_bytes).tolist()
    filled_bytes = list(starts_bytes)
    for group, some in dealt:
        scratch.write_at(filled_bytes[group], some)
        filled_bytes[group] += some.nbytes
    (bucket,) = _buffers(rows, windows, 1)
    for window, start_bytes, out in zip(windows, starts_bytes, itertools.cycle(_buffers(rows, windows, 2))):
        scratch.read_at(start_bytes, bucket[: window.units])
        indices = order.rows_at(window.first, window.stop)
        _, lengths = rows.ranges(indices)
        # In its bucket a row comes in the order of the input.
        by_index = np.argsort(indices)
        starts = np.empty(len(indices), np.int64)
        starts[by_index] = np.cumsum(lengths[by_index]) - lengths[by_index]
        copy_runs(bucket[: window.units], starts, lengths, out, np.cumsum(lengths) - lengths)
        yield out[: window.units], lengths


def grouped(data: NDArray[Any], lengths: IntArray, groups: IntArray) -> Iterator[tuple[int, NDArray[Any], IntArray]]:
    """Return the rows of a run by group: (group, any[n_units], int64[k] lengths) for each group with rows.

    Rows of a negative group are left out.
    """
    num_rows = len(lengths)
    taken = np.flatnonzero(groups >= 0)
    taken = taken[argsort_small(groups[taken])]
    if not len(taken):
        return
    starts, groups, lengths = (np.cumsum(lengths) - lengths)[taken], groups[taken], lengths[taken]
    marks = np.concatenate([[0], np.cumsum(lengths)])
    if groups[0] == groups[-1] and len(taken) == num_rows:
        out = data  # one group, and all of it
    else:
        out = np.empty(int(marks[-1]), data.dtype)
        copy_runs(data, starts, lengths, out, marks[:-1])
    borders = np.flatnonzero(np.diff(groups, prepend=-1, append=-1))
    for first, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        yield int(groups[first]), out[marks[first] : marks[stop]], lengths[first:stop]


_BY_BLOCKS = "shuffle by blocks during training instead: penstock.Shuffle(source, seed, mode='blocks')"


@dataclass(frozen=True, slots=True)
class ShuffleCost:
    """What a shuffle is going to read.

    Attributes:
        reads: maximum number of requests, or of random reads from a disk.
        read_bytes: bytes read from the source.
        scratch_bytes: bytes written to and read from a scratch file.
        is_remote: whether the source is in an object store.
        cheaper: a cheaper alternative, if there is one.
    """

    reads: int
    read_bytes: int
    scratch_bytes: int
    is_remote: bool
    cheaper: str | None


Announce = Callable[[ShuffleCost], None]
"""Called once, when the output is taken and nothing is written yet."""


def cost_of_rows(rows: StoredRows, passes: Passes, *, is_remote: bool) -> ShuffleCost:
    total, shards = passes.total_bytes, len(rows.borders()) - 1
    if not passes.gathers:
        reads = max(shards, -(-total // RUN_BYTES))
        return ShuffleCost(reads, total, total, is_remote, f"no scratch file with --memory-mb {2 * total // 2**20 + 1}")
    if rows.can_view():
        return ShuffleCost(len(rows), total, 0, is_remote, _BY_BLOCKS if len(passes.windows) > 1 else None)
    pieces = -(-total // rows.dtype.itemsize // PIECE_UNITS)
    return ShuffleCost(max(shards, pieces + 1), total, 0, is_remote, None)


def cost_of_places(rows: StoredRows, *, is_remote: bool) -> ShuffleCost:
    """Return the cost of reading each row individually, over all parts of a distributed job."""
    total = total_units(rows) * rows.dtype.itemsize
    return ShuffleCost(len(rows), total, 0, is_remote, _BY_BLOCKS)


def cost_of_samples(count: int, total_bytes: int, *, is_remote: bool) -> ShuffleCost:
    advice = f"copy the tars to this machine first, or {_BY_BLOCKS}" if is_remote else _BY_BLOCKS
    return ShuffleCost(count, total_bytes, 0, is_remote, advice)

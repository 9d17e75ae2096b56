"""Samples of a dataset by number: decoded, or as they are stored, back to back in runs of some MB."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codec.runs import copy_runs
from penstock.codec.tokens import dtype_for
from penstock.errors import Truncated
from penstock.store._files import on_network
from penstock.store.exclude_list import NO_LIST, ExcludeList
from penstock.store.mapped import MappedFile
from penstock.store.place import Place
from penstock.types import Extent, IntArray, Sample

RUN_BYTES = 1 << 24
PIECE_UNITS = 1 << 22
"""Rows that begin in the same multiple of this number of units are in one file, and may be requested by one `view`."""

BLOCK_ROWS = 1 << 16
_LEAST_ROW_BYTES = 64  # of rows that are mostly shorter, a run has fewer bytes
_MOST_SPREAD = 4


@dataclass(frozen=True, slots=True)
class Excluded:
    """Excluded samples of a dataset; rows are numbered without them.

    Attributes:
        indices: int64[k], ascending, in the whole dataset; None without excluded samples.
        listed: their exclude list.
        carried: the entries of excluded samples that are copied, by their row numbers.
    """

    indices: IntArray | None = None
    listed: ExcludeList = NO_LIST
    carried: ExcludeList = NO_LIST

    def __len__(self) -> int:
        return 0 if self.indices is None else len(self.indices)


NOTHING_EXCLUDED = Excluded()


class Rows(ABC):
    """Samples by number, without the excluded ones.

    Attributes:
        source: the source that they are read from; None for text tables.
        num_excluded: number of excluded samples.
    """

    source: Any = None
    num_excluded: int = 0

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the content."""
        return self.source.fingerprint

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def samples(self, start: int, stop: int, /) -> list[Sample]:
        """Return the samples `[start, stop)`."""

    def batches(self, start: int, stop: int, step: int) -> Iterator[list[Sample]]:
        """Read the samples `[start, stop)`, `step` at a time."""
        for at in range(start, stop, step):
            yield self.samples(at, min(stop, at + step))

    def numbered(self, start: int, stop: int, step: int) -> Iterator[tuple[int, Sample]]:
        """Read the same samples, each with its number."""
        return enumerate(itertools.chain.from_iterable(self.batches(start, stop, step)), start)


class StoredRows(Rows):
    """Rows in stored form: a unit is a token id of a document, a byte of a line, or a byte of a stored sample.

    Attributes:
        place, format: the dataset.
        dtype: of the units.
        excluded: the excluded samples.
        run: the range of all units in a local file, if there is one.
    """

    def __init__(
        self,
        place: Place,
        format: str,
        dtype: np.dtype[Any],
        source: Any = None,
        excluded: Excluded = NOTHING_EXCLUDED,
        run: Extent | None = None,
    ) -> None:
        self.source = source
        self.place = place
        self.format = format
        self.dtype = dtype
        self.excluded = excluded
        self.num_excluded = len(self.excluded)
        self.run = run
        self._map: MappedFile | None = None

    def borders(self) -> list[int]:
        """Return indices of rows that no run crosses, from 0 to the number of rows."""
        return [0, len(self)]

    @abstractmethod
    def ranges(self, rows: slice | IntArray) -> tuple[IntArray, IntArray]:
        """Return first unit and number of units of the rows at these indices, each int64[k]."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the units `[start, stop)`."""

    @abstractmethod
    def decode(self, row: memoryview, index: int) -> Mapping[str, Any]:
        """Return the fields of a stored row."""

    def decoder(self, names: Collection[str]) -> Callable[[memoryview, int], Mapping[str, Any]]:
        """Return a form of `decode` for callers that only use these fields; it may leave out others."""
        return self.decode

    def samples(self, start: int, stop: int, /, names: Collection[str] = ()) -> list[Sample]:
        """Return the fields of stored rows; if only some are used, `names`."""
        data, lengths = read_run(self, start, stop)
        view, ends, decode = data.data, np.cumsum(lengths), self.decoder(names)
        pairs = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        return [dict(decode(view[a:b], index)) for index, (a, b) in enumerate(pairs, start)]

    def can_view(self) -> bool:
        """Return whether `view` maps a local file."""
        return self.run is not None and not on_network(self.run.path)

    def view(self, start: int, stop: int) -> NDArray[Any]:
        """Return the same units as `read`, mapped."""
        run, width = self.run, self.dtype.itemsize
        if run is None or stop * width > run.length_bytes:
            return self.read(start, stop)
        self._map = self._map or MappedFile(run.path)
        data = self._map.data[run.offset_bytes + start * width : run.offset_bytes + stop * width]
        return require_read(data, (stop - start) * width, self.place).view(dtype_for(width, "<"))

    def release(self) -> None:
        """Release mapped pages."""
        if self._map is not None:
            self._map.release()

    def prove(self, first: int, stop: int) -> None:
        """Raise `Corrupt` if rows `[first, stop)` differ from the digests of their side file."""

    def can_pick(self) -> bool:
        """Return whether rows can be read one by one without reading more."""
        return False

    def pick(self, rows: IntArray) -> NDArray[Any]:
        """Return the rows at these indices, back to back."""
        starts, lengths = self.ranges(rows)
        pairs = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        return np.concatenate([np.empty(0, self.dtype), *(self.read(*pair) for pair in pairs)])


@dataclass(frozen=True, slots=True)
class InPlace:
    """All documents of the source number `source`, in a file of the output's store as a writer would store them."""

    source: int
    rows: StoredRows
    file: Place
    start_bytes: int
    size_bytes: int


def runs(
    rows: StoredRows, first: int = 0, stop: int | None = None, run_bytes: int = RUN_BYTES
) -> Iterator[tuple[int, int]]:
    """Return borders of runs of rows in `[first, stop)`, each of at most `run_bytes`, or one longer row."""
    most = run_bytes // rows.dtype.itemsize
    last = len(rows) if stop is None else stop
    for border in rows.borders():
        part_stop = min(last, border)
        while first < part_stop:
            most_rows = max(BLOCK_ROWS, run_bytes // _LEAST_ROW_BYTES)
            _, lengths = rows.ranges(slice(first, min(part_stop, first + most_rows)))
            step = max(1, int(np.searchsorted(np.cumsum(lengths), most, side="right")))
            yield first, first + step
            first += step


def read_run(rows: StoredRows, first: int, stop: int) -> tuple[NDArray[Any], IntArray]:
    """Return the rows of one run, back to back: (any[n_units], int64[n_rows] lengths); raises as `StoredRows.prove`."""
    rows.prove(first, stop)
    starts, lengths = rows.ranges(slice(first, stop))
    ends = starts + lengths
    if bool((starts[1:] == ends[:-1]).all()):
        return (rows.read(int(starts[0]), int(ends[-1])) if len(starts) else np.empty(0, rows.dtype)), lengths
    total = int(lengths.sum())
    out = np.empty(total, rows.dtype)
    places = np.cumsum(lengths) - lengths
    low, high = int(starts.min()), int(ends.max())
    if high - low <= _MOST_SPREAD * total:
        copy_runs(rows.read(low, high), starts - low, lengths, out, places)
    else:  # an index in another order than its file
        for start, end, place in zip(starts.tolist(), ends.tolist(), places.tolist(), strict=True):
            out[place : place + end - start] = rows.read(start, end)
    return out, lengths


def total_units(rows: StoredRows) -> int:
    blocks = range(0, len(rows), BLOCK_ROWS)
    return sum(int(rows.ranges(slice(at, min(len(rows), at + BLOCK_ROWS)))[1].sum()) for at in blocks)


def require_read(data: NDArray[Any], wanted_bytes: int, place: Place) -> NDArray[Any]:
    if len(data) < wanted_bytes:
        raise Truncated(
            "the file became shorter while it was being read",
            path=place.path,
            found=f"{len(data)} bytes",
            expected=f"{wanted_bytes} bytes",
        )
    return data

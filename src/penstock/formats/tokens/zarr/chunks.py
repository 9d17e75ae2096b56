"""Reading a one-dimensional zarr array by its chunk files, without zarr.

Each file is read in one of three ways. Unchanged items are mapped, or read with one `pread`. Blosc frames are decoded
block by block, and everything else chunk by chunk. Decoded pieces are kept in a bounded cache. Windows are read in the
order of their chunks, so that a batch decodes each piece once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock._threads import Pool
from penstock.errors import Corrupt, FormatError, NotFound, TooLarge, Truncated, Unsupported
from penstock.formats._findings import Problem
from penstock.formats.tokens.zarr.decode import (
    BLOSC_HEAD_BYTES,
    MOST_BYTES,
    BloscHead,
    Damage,
    decode,
    decode_blosc_block,
    decode_into,
    parse_blosc_blocks,
    parse_blosc_head,
)
from penstock.formats.tokens.zarr.files import ChunkFiles
from penstock.formats.tokens.zarr.meta import AGAIN, ArrayMeta, fault
from penstock.formats.tokens.zarr.span import MappedSpan, PieceCache
from penstock.store.base import Store
from penstock.store.mapped import Advice, Readahead, disk_faults
from penstock.types import Extent, IntArray, ReadMode

_ASKED_ITEMS = 1 << 13
_PROBE = 4
_LARGE_ITEMS = 1 << 20
_MOST_FILL_ITEMS = 1 << 26
_MOST_FILL_FILES = 1 << 16
_MOST_FRAMES = 4096
_FRAME_BYTES = 4096  # the header and the offsets of a thousand blocks, for one read
_MOST_RATIO = 1 << 15  # of zstd, the best of all on zeros

_Flat: TypeAlias = tuple[NDArray[Any], int, int, Advice | None]
"""Items of a mapped file, their number, the position of the first in bytes, and a function for readahead."""


class ChunkArray:
    """Items of one array. Thread-safe, picklable, safe after fork.

    Args:
        store: store of the array.
        folder: folder of the array.
        meta: metadata of the array, all of it supported here.
        read: `"mmap"`, `"pread"` or `"auto"`.
        budget_bytes: size of decoded pieces that are kept; one piece is kept even if it is larger.
        requires_files: a missing file is an error for any fill value; chunks missing within a shard are filled.
    """

    __slots__ = (
        *("_ahead", "_args", "_by_blocks", "_cache", "_chunk_items", "_dtype", "_flats", "_frames"),
        *("_is_mapped", "_is_native", "_raw", "_requires_files", "_span", "files", "meta"),
    )

    def __init__(
        self,
        store: Store,
        folder: str,
        meta: ArrayMeta,
        read: ReadMode,
        budget_bytes: int,
        requires_files: bool = False,
    ) -> None:
        self._args = (store, folder, meta, read, budget_bytes, requires_files)
        self._requires_files = requires_files
        self.meta = meta
        self.files = ChunkFiles(store, folder, meta, read)
        self._raw = meta.chain.raw
        self._is_mapped = self._raw and self.files.mapped
        self._is_native = meta.chain.stored.isnative
        self._chunk_items = meta.chunk_items
        self._dtype = meta.dtype
        self._by_blocks = meta.chain.delta is None and [codec.name for codec in meta.chain.codecs] == ["blosc"]
        self._cache = PieceCache(budget_bytes)
        self._flats: dict[int, _Flat | None] = {}
        self._frames: dict[int, tuple[BloscHead, IntArray]] = {}
        self._ahead = Readahead()
        self._span = MappedSpan(meta.chain.stored, meta.chunk_items)

    def __reduce__(self) -> tuple[object, ...]:
        return (ChunkArray, self._args)

    def read(self, start: int, stop: int, shift: int = 0) -> NDArray[Any]:
        """Return items `[start, stop)`, shifted right by `shift` bits; the caller checks the range.

        A view, if they are in one mapped file and not shifted.

        Raises:
            FormatError: a chunk is missing, short or damaged.
        """
        number, offset = divmod(start, self._chunk_items)
        if self._is_mapped:
            flat = self._flats.get(number) or self._flat_or_raise(number)
            if flat is not None and offset + stop - start <= flat[1]:
                if stop - start >= _ASKED_ITEMS:
                    self._ask(flat, offset, offset + stop - start)
                found = flat[0][offset : offset + stop - start]
                if shift:
                    return np.right_shift(found, self._dtype.type(shift), dtype=self._dtype)
                return found if self._is_native else found.astype(self._dtype)
        if stop - start > _MOST_FILL_ITEMS:
            self._require_content(start, stop)
        out = np.empty(stop - start, self._dtype)
        if stop - start >= _LARGE_ITEMS and not self._raw:
            self._read_in_parallel(start, stop, out, shift)
            return out
        self._copy_range(start, out)
        return np.right_shift(out, self._dtype.type(shift), out=out) if shift else out

    def gather(self, starts: IntArray, length: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return windows, [len(starts), length], in `out` if given; the caller checks the ranges.

        Raises:
            FormatError: a chunk is missing, short or damaged.
        """
        if self._is_mapped and length > 0 and len(starts):
            return self._gather_mapped(starts, length, out)
        out = np.empty((len(starts), length), self._dtype) if out is None else out
        rest: list[int] | range = self._gather_read(starts, length, out) if self._raw else range(len(starts))
        for row in sorted(rest, key=starts.__getitem__):
            self._copy_range(int(starts[row]), out[row])
        return out

    def scan(self, number: int) -> Iterator[NDArray[Any] | Problem]:
        """Yield all items of an existing chunk file in pieces, checked as far as possible, or its problem.

        Nothing is kept: memory is one piece, which is a chunk if it is compressed.
        """
        try:
            yield from self._scan(number)
        except Damage as damage:
            yield self._problem(number, damage)
        except Truncated:  # a chunk missing in a shard
            yield self._missing(number)

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        """Yield the file ranges of items: exact ones if uncompressed, else whole files; none for missing files."""
        for number, low, high, _ in self._pieces(start, stop):
            path = self.files.path(number)
            if not self.files.store.exists(path):
                continue
            try:
                first_bytes, items = self.files.run(number) if self._raw else (0, 0)
            except Damage as damage:
                raise self._problem(number, damage).error() from None
            if high <= items:
                width = self.meta.chain.stored.itemsize
                yield Extent(path, first_bytes + low * width, (high - low) * width)
            else:
                yield Extent(path, 0, self.files.size(number))

    # --- uncompressed --------------------------------------------------------------------------------------------

    def _gather_mapped(self, starts: IntArray, length: int, out: NDArray[Any] | None) -> NDArray[Any]:
        if self._ahead.wanted():
            self._ask_for(starts, length)
            return self._copy_mapped(starts, length, out)
        before = disk_faults()
        if not self._ahead.probing:
            found = self._copy_mapped(starts, length, out)
            self._ahead.watch(before)
            return found
        out = np.empty((len(starts), length), self._dtype) if out is None else out
        self._copy_mapped(starts[:_PROBE], length, out[:_PROBE])
        if self._ahead.watch(before):
            self._ask_for(starts[_PROBE:], length)
        if len(starts) > _PROBE:
            self._copy_mapped(starts[_PROBE:], length, out[_PROBE:])
        return out

    def _ask_for(self, starts: IntArray, length: int) -> None:
        """Request readahead of windows."""
        for start in starts.tolist():
            number, offset = divmod(start, self._chunk_items)
            flat = self._flat_or_raise(number)
            if flat is not None and offset + length <= flat[1]:
                self._ask(flat, offset, offset + length)

    def _copy_mapped(self, starts: IntArray, length: int, out: NDArray[Any] | None) -> NDArray[Any]:
        """Copy all windows inside one mapped file at once, and the few others one by one."""
        numbers, offsets = np.divmod(starts, self._chunk_items)
        windows = self._places_of(numbers.tolist())
        split = (offsets > self._chunk_items - length) | (windows == 0)
        windows += offsets
        alone = np.flatnonzero(split).tolist()
        found = None
        if len(alone) < len(starts):
            if alone:
                windows[split] = windows[np.argmin(split)]  # until these rows are made, below
            if out is None and not self._is_native:
                out = np.empty((len(starts), length), self._dtype)
            found = self._span.gather(windows, length, out)
        if found is None:
            found = np.empty((len(starts), length), self._dtype) if out is None else out
            alone = range(len(starts))
        for row in alone:
            self._copy_range(int(starts[row]), found[row])
        return found

    def _places_of(self, numbers: list[int]) -> IntArray:
        """Return the starts of files in the span of mapped ones, int64[k]; 0 for files outside it."""
        places = self._span.places
        try:
            return np.array([places[number] for number in numbers])
        except KeyError:
            for number in set(numbers).difference(places):
                self._flat_or_raise(number)
            return np.array([places.get(number, 0) for number in numbers])

    def _gather_read(self, starts: IntArray, length: int, out: NDArray[Any]) -> list[int]:
        """Copy windows by one read each, opening each file once; return the other rows."""
        numbers, offsets = np.divmod(starts, self.meta.chunk_items)
        rest: list[int] = []
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            try:
                first_bytes, items = self.files.run(number)
                width = self.meta.chain.stored.itemsize
                fitting = rows[offsets[rows] + length <= items]
                begins = (first_bytes + offsets[fitting] * width).tolist()
                ranges = [(begin, begin + length * width) for begin in begins]
                found = self.files.get_ranges(number, ranges) if ranges else []
            except NotFound:
                rest += rows.tolist()
                continue
            except Damage as damage:
                raise self._problem(number, damage).error() from None
            for row, data in zip(fitting.tolist(), found, strict=True):
                out[row] = np.frombuffer(data, self.meta.chain.stored)
            rest += np.setdiff1d(rows, fitting).tolist()
        return rest

    def _flat_or_raise(self, number: int) -> _Flat | None:
        """Return the items of a mapped file; None if it is missing, or must be read or assembled."""
        if number in self._flats:
            return self._flats[number]
        try:
            flat = self._flat(number)
        except NotFound:
            return None
        except Damage as damage:
            raise self._problem(number, damage).error() from None
        self._flats[number] = flat
        if flat is not None and flat[1] == self._chunk_items:
            self._span.add(number, flat[0])
        return flat

    def _flat(self, number: int) -> _Flat | None:
        mapped = self.files.map(number)
        if mapped is None:
            return None
        first_bytes, items = self.files.run(number)
        data, ask = mapped
        if self.meta.shard is None:
            self._require_size(len(data))
        stored = self.meta.chain.stored
        view = data[first_bytes : first_bytes + items * stored.itemsize]
        if view.ctypes.data % stored.itemsize:
            return None
        return view.view(stored), items, first_bytes, ask

    def _ask(self, flat: _Flat, low: int, high: int) -> None:
        """Request readahead of items of a mapped file."""
        if flat[3] is not None:
            width = self.meta.chain.stored.itemsize
            flat[3](flat[2] + low * width, flat[2] + high * width)

    def _require_size(self, size_bytes: int) -> None:
        """Raise an error unless an uncompressed file has exactly the size of its items."""
        expected = self.meta.chunk_items * self.meta.chain.stored.itemsize + self.meta.chain.checksum_bytes
        if size_bytes != expected:
            raise Damage("chunk.size", "a chunk has the wrong size", f"{size_bytes} bytes", f"{expected} bytes")

    # --- by pieces -----------------------------------------------------------------------------------------------

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield `(file, first item, last item + 1, place in the range)` for each file of a range."""
        chunk_items = self.meta.chunk_items
        place = start
        while place < stop:
            number, low = divmod(place, chunk_items)
            high = min(chunk_items, low + stop - place)
            yield number, low, high, place - start
            place += high - low

    def _copy_range(self, start: int, out: NDArray[Any]) -> None:
        if self._is_mapped and len(out) >= _LARGE_ITEMS:
            for number, low, high, _ in self._pieces(start, start + len(out)):
                flat = self._flat_or_raise(number)  # the disk reads the next files while one is copied
                if flat is not None:
                    self._ask(flat, low, min(high, flat[1]))
        for number, low, high, place in self._pieces(start, start + len(out)):
            flat = self._flats.get(number)
            if flat is not None and high <= flat[1] and high - low < _ASKED_ITEMS:
                out[place : place + high - low] = flat[0][low:high]
            else:
                self._copy_file(number, low, high, out[place : place + high - low])

    def _copy_file(self, number: int, low: int, high: int, out: NDArray[Any]) -> None:
        """Copy the items `[low, high)` of one file."""
        if self._is_mapped:
            flat = self._flat_or_raise(number)
            if flat is not None and high <= flat[1]:
                if high - low >= _ASKED_ITEMS:
                    self._ask(flat, low, high)
                out[:] = flat[0][low:high]
                return
        try:
            if not (self._raw and self._read_run(number, low, high, out)):
                cell_items, first = self.meta.cell_items, number * self.meta.cells_per_file
                for cell in range(low // cell_items, -(-high // cell_items)):
                    begin, end = max(low, cell * cell_items), min(high, (cell + 1) * cell_items)
                    base = cell * cell_items
                    self._copy_cell(first + cell, begin - base, end - base, out[begin - low : end - low])
        except NotFound:
            self.files.require_missing(number)
            self._fill_file(number, out)
        except Damage as damage:
            raise self._problem(number, damage).error() from None

    def _read_run(self, number: int, low: int, high: int, out: NDArray[Any]) -> bool:
        """Read items that are stored back to back, by one read; return false if they aren't."""
        first_bytes, items = self.files.run(number)
        if high > items:
            return False
        stored = self.meta.chain.stored
        begin, end = first_bytes + low * stored.itemsize, first_bytes + high * stored.itemsize
        data = byte_view(self.files.get(number, begin, end))
        if len(data) != end - begin:
            raise Damage("chunk.size", "a chunk ends early", f"{begin + len(data)} bytes", f"{end} bytes or more")
        out[:] = np.frombuffer(data, stored)
        return True

    def _copy_cell(self, cell: int, low: int, high: int, out: NDArray[Any]) -> None:
        """Copy the items `[low, high)` of a chunk or inner chunk, through the cache."""
        size = self._piece_items(cell)
        for number in range(low // size, -(-high // size)):
            begin, end = max(low, number * size), min(high, (number + 1) * size)
            base = number * size
            out[begin - low : end - low] = self._piece(cell, number)[begin - base : end - base]

    def _piece_items(self, cell: int) -> int:
        """Return the number of items that are decoded together: a block, or the whole chunk."""
        frame = self._frame(cell) if self._by_blocks else None
        return self.meta.cell_items if frame is None else frame[0].block_bytes // self._dtype.itemsize

    def _piece(self, cell: int, number: int) -> NDArray[Any]:
        """Return piece `number` of a chunk or inner chunk, from the cache or decoded into it."""
        piece = self._cache.get((cell, number))
        if piece is None:
            frame = self._frame(cell) if self._by_blocks else None
            piece = self._decode_cell(cell) if frame is None else self._decode_block(cell, number, frame)
            self._cache.put((cell, number), piece)
        return piece

    def _place(self, cell: int) -> tuple[int, int, int]:
        """Return `(file, first byte, last byte + 1)` of a chunk or inner chunk; an empty range if it isn't stored."""
        number, inner = divmod(cell, self.meta.cells_per_file)
        if self.meta.shard is None:
            return number, 0, self.files.size(number)
        first_bytes, length_bytes = self.files.shard(number).places[inner].tolist()
        return number, max(first_bytes, 0), max(first_bytes, 0) + length_bytes

    def _decode_cell(self, cell: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return all items of a chunk or inner chunk, in native byte order; in `out` if given."""
        number, first_bytes, stop_bytes = self._place(cell)
        items, dtype = self.meta.cell_items, self._dtype
        cell_bytes = items * dtype.itemsize
        if first_bytes == stop_bytes and self.meta.shard is not None:
            found = np.empty(items, dtype) if out is None else out
            self._fill(number, found)
            return found
        if cell_bytes > MOST_BYTES or cell_bytes > (stop_bytes - first_bytes + 16) * _MOST_RATIO:
            what = f"a chunk of {stop_bytes - first_bytes} bytes can't hold its items"
            raise Damage("chunk.decode", what, None, f"{cell_bytes} bytes decoded")
        data = self.files.get(number, first_bytes, stop_bytes)
        if out is not None:
            decode_into(self.meta.chain, data, out)
            return out
        return decode(self.meta.chain, data, items).astype(dtype, copy=False)

    def _frame(self, cell: int) -> tuple[BloscHead, IntArray] | None:
        """Return header and block places of a Blosc frame; None if reading it in blocks isn't worthwhile."""
        found = self._frames.get(cell)
        if found is None:
            number, first_bytes, stop_bytes = self._place(cell)
            if first_bytes == stop_bytes:
                return None
            data = byte_view(self.files.get(number, first_bytes, first_bytes + _FRAME_BYTES))
            cell_bytes = self.meta.cell_items * self._dtype.itemsize
            head = parse_blosc_head(data[:BLOSC_HEAD_BYTES], cell_bytes, stop_bytes - first_bytes)
            if head.offsets_bytes > len(data):
                data = byte_view(self.files.get(number, first_bytes, first_bytes + head.offsets_bytes))
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            self._frames[cell] = found = (head, parse_blosc_blocks(head, data[: head.offsets_bytes]) + first_bytes)
        return None if found[0].block_bytes % self._dtype.itemsize else found

    def _decode_block(self, cell: int, block: int, frame: tuple[BloscHead, IntArray]) -> NDArray[Any]:
        start_bytes, stop_bytes = frame[1][block].tolist()
        data = self.files.get(cell // self.meta.cells_per_file, start_bytes, stop_bytes)
        return decode_blosc_block(frame[0], block, data).view(self.meta.chain.stored).astype(self._dtype, copy=False)

    # --- large ranges --------------------------------------------------------------------------------------------

    def _read_in_parallel(self, start: int, stop: int, out: NDArray[Any], shift: int) -> None:
        """Decode whole chunks into their place, on all cores, without keeping them."""
        bits = self._dtype.type(shift)
        items = self.meta.cell_items
        first, last = start // items, -(-stop // items)
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        step = max(1, (last - first) // (4 * threads))

        def work(begin: int) -> None:
            for cell in range(begin, min(begin + step, last)):
                low, high = max(start, cell * items), min(stop, (cell + 1) * items)
                piece = out[low - start : high - start]
                self._copy_large(cell, low, high, piece)
                if shift:
                    np.right_shift(piece, bits, out=piece)

        with Pool(min(threads, last - first), "penstock-chunks") as pool:
            for _ in pool.map(work, range(first, last, step)):
                pass

    def _copy_large(self, cell: int, low: int, high: int, out: NDArray[Any]) -> None:
        number = cell // self.meta.cells_per_file
        try:
            if high - low == self.meta.cell_items:
                self._decode_cell(cell, out)
            else:
                base = cell * self.meta.cell_items
                self._copy_cell(cell, low - base, high - base, out)
        except NotFound:
            self.files.require_missing(number)
            self._fill_file(number, out)
        except Damage as damage:
            raise self._problem(number, damage).error() from None

    def _require_content(self, start: int, stop: int) -> None:
        """Raise an error unless files hold the items, before memory is allocated: metadata may be wrong."""
        missing = self._count_missing_files(start, stop)
        if missing > _MOST_FILL_FILES or missing * self._chunk_items > _MOST_FILL_ITEMS + 2 * self._chunk_items:
            raise self._too_many_missing(start, stop, start // self._chunk_items)
        items, files = 0, 0
        for number, low, high, _ in self._pieces(start, stop):
            with contextlib.suppress(NotFound):
                found_bytes = self.files.size(number)
                size_bytes = found_bytes * (1 if self._raw else _MOST_RATIO)
                if size_bytes < (high - low) * self._dtype.itemsize and self.meta.shard is None:
                    damage = Damage("chunk.size", "a chunk is too short", f"{found_bytes} bytes")
                    raise self._problem(number, damage).error()
                continue
            items, files = items + high - low, files + 1
            if items > _MOST_FILL_ITEMS or files > _MOST_FILL_FILES:
                raise self._too_many_missing(start, stop, number)

    def _count_missing_files(self, start: int, stop: int) -> int:
        """Return a lower bound, by names: 0 if the range may be complete or the store can't list."""
        num_files = -(-stop // self._chunk_items) - start // self._chunk_items
        most_present = num_files - min(_MOST_FILL_FILES, _MOST_FILL_ITEMS // self._chunk_items + 2)
        if most_present <= 0:
            return 0
        try:
            num_present = sum(1 for _ in itertools.islice(self.files.store.list(self.files.folder), most_present))
        except NotFound:
            return num_files
        except Unsupported:
            return 0
        return num_files - num_present if num_present < most_present else 0

    def _too_many_missing(self, start: int, stop: int, number: int) -> TooLarge:
        return TooLarge(
            "a large range of missing chunks",
            path=self.files.path(number),
            found=f"{stop - start} items requested",
            expected=f"at most {_MOST_FILL_ITEMS} from missing chunks",
            hint="Read smaller ranges",
        )

    # --- problems ------------------------------------------------------------------------------------------------

    def _scan(self, number: int) -> Iterator[NDArray[Any]]:
        meta = self.meta
        begin = number * meta.chunk_items
        stop = min(meta.num_items, begin + meta.chunk_items)
        if meta.shard is None and self._raw and not meta.chain.codecs:
            self._require_size(self.files.size(number))
            for start in range(begin, stop, _LARGE_ITEMS):
                yield self.read(start, min(stop, start + _LARGE_ITEMS))
            return
        for start in range(begin, stop, meta.cell_items):
            yield self._decode_cell(start // meta.cell_items)[: stop - start]

    def _fill_file(self, number: int, out: NDArray[Any]) -> None:
        """Fill the items of a missing file; raises `Truncated` if it may not be missing."""
        if self._requires_files:
            raise self._missing(number).error()
        self._fill(number, out)

    def _fill(self, number: int, out: NDArray[Any]) -> None:
        """Fill the items of a missing chunk; raises `Truncated` if it may not be missing."""
        if self.meta.fill is None:
            raise self._missing(number).error()
        out[:] = self.meta.fill

    def _missing(self, number: int) -> Problem:
        path = self.files.path(number)
        return fault("chunk.present", Truncated, path, "a chunk file is missing", AGAIN, None, None, "a file")

    def _problem(self, number: int, damage: Damage) -> Problem:
        kind: type[FormatError] = Truncated if damage.code == "chunk.size" else Corrupt
        path = self.files.path(number)
        return fault(damage.code, kind, path, damage.what, AGAIN, 0, damage.found, damage.expected)

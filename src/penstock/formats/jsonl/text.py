"""The text of several or of compressed JSONL files as one run of bytes, like the content of a single file.

Files are joined, with a line end between two, so a source reads their lines like those of one file. Line offsets are
found once per host and cached.

A compressed file is read from the nearest position at which decompression can begin: the start of a gzip member or a
zstd frame and, in gzip, positions that this process has passed. Sequential reads decompress the data once.
"""

from __future__ import annotations

import hashlib
import os
import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from penstock._digest import digest
from penstock._secrets import logger
from penstock._threads import Pool
from penstock.errors import Corrupt, NotFound, Truncated
from penstock.formats._manifest import DATA
from penstock.formats.jsonl.build import (
    RANGE_BYTES,
    IndexedLines,
    index_path_for,
    is_skipping,
    require_several,
    warn_of_dropped,
)
from penstock.formats.jsonl.decompress import Gunzip, Start, Unzstd, cut_stream, reader_of
from penstock.formats.jsonl.index import is_megatrons, load_lines
from penstock.store._files import status_of
from penstock.store.base import Store, require_inside
from penstock.store.derived import DerivedCache, Put
from penstock.store.fingerprint import OpenedFile, file_key
from penstock.store.memory import MemoryStore
from penstock.store.names import NEXT
from penstock.store.place import Place, absolute
from penstock.store.progress import counted
from penstock.store.put import NamesBeside, read_small
from penstock.types import Extent, IntArray

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
"""Suffixes of compressed files and their compression."""

_TEXT_VERSION = "jsonl-text-1"
_FRAMES_VERSION = "jsonl-frames-1"
_BLOCK_BYTES = 1 << 20
_KEPT_BLOCKS = 8
_MOST_STARTS, _START_EVERY_BYTES = 128, 1 << 22  # a zlib state takes 40 KB
_MOST_OPEN = 8
_WHOLE_BYTES, _MOST_WHOLE = 1 << 16, 64
_FAR_BYTES = 1 << 26  # decompressing this much text for one line triggers a warning
_AT_ONCE = 16
_GONE = -1
_NEWLINE = b"\n"
_log = logger()


def compression_of(path: str) -> str | None:
    return COMPRESSED.get(os.path.splitext(path)[1])


class Text(Store):
    """Store with a single file: the joined text of files of another store. Read-only, thread-safe, picklable.

    Memory: 16 MiB for each of up to 8 compressed files in use, and up to 64 files of at most 64 KiB; lines are mapped.

    Args:
        base: the store of the files.
        path: the name of the text.
        files: paths of the files, in order.
    """

    read_only = "the text of several files is read-only"

    def __init__(self, base: Store, path: str, files: Sequence[str], *, skip_faulty: bool = False) -> None:
        self.base = base
        self.path = path
        self.files = tuple(files)
        self._skip_faulty = skip_faulty or is_skipping()
        self._known: tuple[IntArray, IntArray] | None = None
        self._packed: int | None = None
        self._seen: tuple[str, IntArray, IntArray] | None = None  # files are examined once
        self._open: OrderedDict[int, _Decompressed] = OrderedDict()
        self._wholes: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[object, ...]:
        kind = partial(Text, skip_faulty=True) if self._skip_faulty else Text
        return (kind, (self.base, self.path, self.files))

    def lines(self) -> IntArray:
        """Lines of the text: int64[k, 2], start and length in bytes, mapped. Raises `Corrupt` if a line is invalid."""
        return self._layout()[0]

    def extents(self, start: int, length: int) -> tuple[Extent, ...] | None:
        """Return the place of a line in its file, or None if the file is compressed."""
        number, within = self._file_at(start)
        path = self.files[number]
        return None if compression_of(path) else (Extent(path, within, length),)

    def path_at(self, start: int) -> tuple[str, int]:
        """Return the file of an offset in the text, and the offset in that file's content."""
        number, within = self._file_at(start)
        return self.files[number], within

    def named(self) -> list[tuple[str, str]]:
        """Return name and path of each file; names don't depend on the common folder."""
        if len(self.files) == 1:
            return [(DATA, self.files[0])]
        root = os.path.commonpath([os.path.dirname(absolute(path)) for path in self.files])
        return [(os.path.relpath(path, root or "."), path) for path in self.files]

    def count_compressed(self) -> int:
        if self._packed is None:
            self._packed = sum(path.endswith(tuple(COMPRESSED)) for path in self.files)
        return self._packed

    def stored_stops(self) -> IntArray:
        """Return int64[n_files], the cumulative stored sizes in bytes; raise `NotFound` if a file is gone."""
        sizes = self._states()[1]
        if len(gone := np.flatnonzero(sizes < 0)):
            raise NotFound("no such file", path=self.files[int(gone[0])], hint="It disappeared after it was listed")
        return np.cumsum(sizes)

    # --- as a store --------------------------------------------------------------------------------------------------

    def size(self, path: str) -> int:
        self._require(path)
        return int(self._layout()[1][-1])

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges with one call of the underlying store per file; see `penstock.abc.Store`."""
        require_inside(path, ranges, self.size(path))
        if len(self.files) == 1:
            return self._of_file(0, ranges)
        if len(ranges) == 1:
            return [self._read(*ranges[0])]
        text_starts = self._layout()[1]
        asked = np.array(ranges, np.int64).reshape(-1, 2)
        owners = np.searchsorted(text_starts, asked[:, 0], side="right") - 1
        inside = asked[:, 1] < text_starts[np.minimum(owners + 1, len(self.files))]
        found: list[bytes] = [b""] * len(asked)
        for number in np.unique(owners[inside]).tolist():
            rows = np.flatnonzero(inside & (owners == number)).tolist()
            within = (asked[rows] - text_starts[number]).tolist()
            for row, data in zip(rows, self._of_file(number, [(low, high) for low, high in within]), strict=True):
                found[row] = data
        for row in np.flatnonzero(~inside).tolist():
            found[row] = self._read(*asked[row].tolist())
        return found

    def exists(self, path: str) -> bool:
        return path == self.path

    # --- inside ------------------------------------------------------------------------------------------------------

    def _require(self, path: str) -> None:
        if path != self.path:
            raise NotFound("no such file", path=path)

    def _layout(self) -> tuple[IntArray, IntArray]:
        """Return the lines, int64[k, 2], and int64[n_files + 1]: the start of each file's text, and the last end."""
        if self._known is None:
            try:
                kept = DerivedCache().fed(f"{_TEXT_VERSION}-{self._states()[0]}", "int64", self._feed)
            except Corrupt:
                if not self._skip_faulty:
                    raise
                pieces: list[IntArray] = []
                self._feed(lambda one: pieces.append(np.array(one)), skip_faulty=True)
                kept = np.concatenate(pieces)
            borders = len(self.files) + 1
            self._known = kept[:-borders].reshape(-1, 2), kept[-borders:]
            if len(self.files) == 1:
                require_several(self, self.path, self._known[0])
        return self._known

    def _states(self) -> tuple[str, IntArray, IntArray]:
        """Return the state of the files when they were first needed.

        Returns:
            A digest of all that the lines depend on, files and indexes; int64[n_files], bytes of each file; and
            int64[n_files], the time of change in ns of each local file.
        """
        if self._seen is not None:
            return self._seen
        total = len(self.files)
        sizes, mtimes, found = np.empty(total, np.int64), np.zeros(total, np.int64), hashlib.blake2b(digest_size=16)
        for number, (size_bytes, mtime_ns, state) in enumerate(counted("sizes of files", self._each_state(), total)):
            sizes[number], mtimes[number] = size_bytes, mtime_ns
            found.update(f"{len(state)} {state}".encode(errors="surrogateescape"))
        self._seen = found.hexdigest(), sizes, mtimes
        return self._seen

    def _require_same(self, number: int) -> None:
        """Raise `FormatError` if a local file was replaced since its lines were found."""
        if self.base.is_local:
            _, sizes, mtimes = self._states()
            OpenedFile(self.files[number], int(sizes[number]), int(mtimes[number])).require_same()

    def _each_state(self) -> Iterator[tuple[int, int, str]]:
        """Yield size, modification time and a fingerprint of each file and its index."""
        if self.base.is_local:
            yield from _local_states(self.files)
            return
        with Pool(_AT_ONCE, "penstock-states") as pool:  # one request per file
            yield from pool.map(partial(_state_of, self.base), self.files)

    def _feed(self, put: Put, *, skip_faulty: bool = False) -> None:
        start = 0
        starts: list[int] = []
        beside = NamesBeside(self.files, (".idx", NEXT))
        for path in self.files:
            starts.append(start)
            start += self._feed_file(path, start, put, beside, skip_faulty=skip_faulty) + len(_NEWLINE)
        put(np.array([*starts, max(0, start - len(_NEWLINE))], np.int64))

    def _feed_file(self, path: str, start: int, put: Put, beside: NamesBeside, *, skip_faulty: bool) -> int:
        """Put the lines of a file whose text begins at `start`, and return the size of its text in bytes."""
        compression = compression_of(path)
        if compression is None:
            index_path = index_path_for(path)
            is_local = self.base.is_local
            indexed = beside.has(index_path) if is_local else self.base.exists(index_path)
            replaced = is_local and indexed and beside.has(index_path + NEXT)
            files = self.base if replaced else read_small(self.base, path, *([index_path] if indexed else []))
            size_bytes = files.size(path)
            if size_bytes:
                lines = _lines_of(files, path, size_bytes, indexed=indexed, skip_faulty=skip_faulty)
                for pairs in lines:
                    put((pairs + np.array([start, 0])).reshape(-1))
                if isinstance(lines, IndexedLines):
                    warn_of_dropped(path, lines)
            return size_bytes
        file = Place(self.base, path)
        frames, size_bytes = scan_compressed(file, compression, start, put, skip_faulty=skip_faulty)
        _frames(file, compression, frames, size_bytes)
        return size_bytes

    def _file_at(self, start: int) -> tuple[int, int]:
        starts = self._layout()[1]
        number = min(int(np.searchsorted(starts, start, side="right")) - 1, len(self.files) - 1)
        return number, start - int(starts[number])

    def _read(self, start: int, stop: int) -> bytes:
        starts = self._layout()[1]
        pieces: list[bytes] = []
        while start < stop:
            number, within = self._file_at(start)
            last = number == len(self.files) - 1
            end = int(starts[number + 1]) - (0 if last else len(_NEWLINE))
            if start < end:
                pieces += self._of_file(number, [(within, min(stop, end) - int(starts[number]))])
            if stop > end and not last:
                pieces.append(_NEWLINE)
            start = end if last else int(starts[number + 1])
        return b"".join(pieces)

    def _of_file(self, number: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        path = self.files[number]
        compression = compression_of(path)
        if compression is None:
            whole = self._whole(number)
            if whole is None or any(stop > len(whole) for _, stop in ranges):
                pieces = self.base.get_ranges(path, ranges)
                self._require_same(number)
                return pieces
            return [whole[start:stop] for start, stop in ranges]
        with self._locked():
            found = self._open.pop(number, None) or _Decompressed(Place(self.base, path), compression)
            self._open[number] = found
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
            texts = [found.read(start, stop) for start, stop in ranges]
            self._require_same(number)
            return texts

    def _whole(self, number: int) -> bytes | None:
        """Return the content of a small local file, opened once and cached; None for other files."""
        starts = self._layout()[1]
        if not self.base.is_local or int(starts[number + 1] - starts[number]) > _WHOLE_BYTES:
            return None
        with self._locked():
            whole = self._wholes.get(number)
        if whole is None:
            whole = self.base.get(self.files[number], 0, _WHOLE_BYTES)
            self._require_same(number)
            with self._locked():
                self._wholes[number] = whole
                while len(self._wholes) > _MOST_WHOLE:
                    self._wholes.popitem(last=False)
        return whole

    def _locked(self) -> threading.Lock:
        if self._pid != os.getpid():
            # A thread of the parent may have held the lock at the fork; it doesn't exist in this process.
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock


def _lines_of(store: Store, path: str, size_bytes: int, *, indexed: bool, skip_faulty: bool) -> Iterable[IntArray]:
    """Yield the lines of a file by its index, or by a scan; the cache holds the lines of all files together."""
    if not indexed:
        return IndexedLines(store, path, size_bytes, skip_faulty=skip_faulty)
    if store.in_memory:
        index_path = index_path_for(path)
        if is_megatrons(store, index_path):
            return IndexedLines(store, path, size_bytes, skip_faulty=skip_faulty)
        return (load_lines(store, path, index_path),)
    return (load_lines(store, path, skip_faulty=skip_faulty),)


class _Decompressed:
    """Content of a compressed file, in blocks of 1 MiB."""

    def __init__(self, file: Place, compression: str) -> None:
        self._file = file
        self._compression = compression
        self._starts = [(text, Start(offset)) for offset, text in _frames(file, compression).reshape(-1, 2).tolist()]
        self._every_bytes = _START_EVERY_BYTES
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._reader: Gunzip | Unzstd | None = None
        self._at = 0
        self._rest = b""

    def read(self, start: int, stop: int) -> bytes:
        blocks = [self._block(number) for number in range(start // _BLOCK_BYTES, -(-stop // _BLOCK_BYTES))]
        low = start // _BLOCK_BYTES * _BLOCK_BYTES
        found = b"".join(blocks)[start - low : stop - low] if len(blocks) != 1 else blocks[0][start - low : stop - low]
        if len(found) < stop - start:
            what = "the content became shorter after it was scanned"
            raise Truncated(what, path=self._file.path, offset_bytes=start, expected=f"{stop - start} bytes")
        return found

    def _block(self, number: int) -> bytes:
        found = self._blocks.get(number)
        if found is None:
            self._go_to(number * _BLOCK_BYTES)
            while self._at <= number * _BLOCK_BYTES and self._advance():
                pass
            found = self._blocks.get(number, b"")
        self._keep(number, found)
        return found

    def _go_to(self, text: int) -> None:
        """Go to the last position before `text` from which it can be reached."""
        nearest, start = self._starts[bisect_right(self._starts, text, key=lambda one: one[0]) - 1]
        if self._reader is None or not nearest <= self._at <= text:
            self._reader = reader_of(self._file, self._compression, start, nearest)
            self._at, self._rest = nearest, b""

    def _advance(self) -> bool:
        """Decompress up to the next block boundary; return false at the end."""
        end = (self._at // _BLOCK_BYTES + 1) * _BLOCK_BYTES
        pieces, held_bytes = [self._rest], len(self._rest)
        while self._reader is not None and self._at + held_bytes < end:
            piece = next(self._reader, None)
            if piece is None:
                self._reader = None
                break
            pieces.append(piece)
            held_bytes += len(piece)
        self._note_start(self._at + held_bytes)
        text = b"".join(pieces)
        if self._at % _BLOCK_BYTES == 0:
            self._keep(self._at // _BLOCK_BYTES, text[: end - self._at])
        self._at, self._rest = min(end, self._at + held_bytes), text[end - self._at :]
        return self._reader is not None or bool(self._rest)

    def _keep(self, number: int, block: bytes) -> None:
        self._blocks[number] = block
        self._blocks.move_to_end(number)
        while len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)

    def _note_start(self, text: int) -> None:
        """Remember a position at which decompression can begin; drop every second one if there are too many."""
        last = self._starts[bisect_right(self._starts, text, key=lambda one: one[0]) - 1][0]
        start = None if self._reader is None or text - last < self._every_bytes else self._reader.here()
        if start is None or start.member is None:
            return
        insort(self._starts, (text, start), key=lambda one: one[0])
        states = [one for one in self._starts if one[1].member is not None]
        if len(states) > _MOST_STARTS:
            dropped = {one[0] for one in states[1::2]}
            self._starts = [one for one in self._starts if one[1].member is None or one[0] not in dropped]
            self._every_bytes *= 2


def scan_compressed(
    file: Place, compression: str, start: int = 0, put: Put = lambda _: None, *, skip_faulty: bool = False
) -> tuple[IntArray, int]:
    """Find the lines of a compressed file, in one pass.

    Args:
        file: the file.
        compression: `"gzip"` or `"zstd"`.
        start: offset of its content in the text.
        put: called with int64[2 k]: start and length of lines.
        skip_faulty: skip invalid lines and log their number.

    Returns:
        int64[2 k], offset in the file and in its content of members or frames; and the size of its content in bytes.

    Raises:
        Corrupt: a line is invalid, or the file is damaged.
        Truncated: the file is cut off.
    """
    reader = reader_of(file, compression)
    size_bytes = 0
    lines = IndexedLines(file.store, file.path, 0)
    for offset_bytes, data, is_last in cut_stream(file, compression, RANGE_BYTES, reader):
        part = MemoryStore({file.path: data})
        lines = replace(lines, store=part, size_bytes=len(data), skip_faulty=skip_faulty, is_whole=is_last)
        try:
            for pairs in lines if data else ():
                put((pairs + np.array([start + offset_bytes, 0])).reshape(-1))
        except Corrupt as error:
            error.offset_bytes = offset_bytes + (error.offset_bytes or 0)
            error.hint = "The offset is in the decompressed text. Fix the line there"
            raise
        size_bytes = offset_bytes + len(data)
    warn_of_dropped(file.path, lines)
    return np.array(_thinned(reader.frames), np.int64).reshape(-1), size_bytes


def _frames(file: Place, compression: str, known: IntArray | None = None, size_bytes: int = 0) -> IntArray:
    """Return int64[2 k], offset in the file and in its content of members or frames; cached."""

    def build() -> IntArray:
        if known is not None:
            return known
        reader = reader_of(file, compression)
        for _ in reader:
            pass
        return np.array(_thinned(reader.frames), np.int64).reshape(-1)

    frames = DerivedCache().array(f"{_FRAMES_VERSION}-{file_key(file.store, 'jsonl', file.path)}", "int64", build)
    borders = [*frames.reshape(-1, 2)[:, 1].tolist(), size_bytes]
    far_bytes = max((stop - start for start, stop in pairwise(borders)), default=0)
    if far_bytes > _FAR_BYTES:
        what = "%s: random access is slow: one line needs up to %.0f MB decompressed before it. Compress it in %s"
        better = "members, as bgzip does" if compression == "gzip" else "frames, as pzstd does"
        _log.warning(what, file.path, far_bytes / 1e6, better)
    return frames if len(frames) else np.zeros(2, np.int64)


def _thinned(frames: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return only positions at least a block of text apart."""
    kept: list[tuple[int, int]] = []
    for offset_bytes, text in frames:
        if not kept or text - kept[-1][1] >= _BLOCK_BYTES:
            kept.append((offset_bytes, text))
    return kept


def _local_states(paths: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield size, modification time and fingerprint per file; lists folders instead of probing for each index."""
    names = NamesBeside(paths, (".idx",))
    for path in paths:
        beside = None if compression_of(path) else index_path_for(path)
        yield _local_state(path, beside if beside is not None and names.has(beside) else None)


def _local_state(path: str, beside: str | None) -> tuple[int, int, str]:
    state, size_bytes, mtime_ns = "", _GONE, 0
    for one in (path,) if beside is None else (path, beside):
        if (status := status_of(os.stat, one)) is not None:
            state += f"{len(one)} {one} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino} "
            size_bytes, mtime_ns = (status.st_size, status.st_mtime_ns) if one == path else (size_bytes, mtime_ns)
    return size_bytes, mtime_ns, state


def _state_of(store: Store, path: str) -> tuple[int, int, str]:
    beside = () if compression_of(path) else (index_path_for(path),)
    there = [one for one in (path, *beside) if store.exists(one)]
    return store.size(path) if path in there else _GONE, 0, digest(*(file_key(store, "jsonl", one) for one in there))

"""Read the files of one shard: memory-mapped, decompressed into memory, or in ranges.

Every shard has a table of offsets, `u32 n, u32 offset[n + 1]`: at the start of an MDS file, and in the meta file of the
text formats. Before its first use it is checked once per shard against the index and the real size of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.abc import SupportsMmap
from penstock.codec.compress import FAMILIES, decompress
from penstock.codec.hashes import ALGORITHMS, hasher
from penstock.errors import Corrupt, FormatError, MissingExtra, NotFound, PenstockError, Truncated
from penstock.formats.shards.index_json import Shard, ShardFile
from penstock.store.base import Store
from penstock.store.fingerprint import OpenedFile
from penstock.types import Batch, Buffer, Extent, Field, IntArray, Sample

_PIECE_BYTES = 1 << 24
_LARGEST_BYTES = 1 << 32  # offsets have 32 bits, whatever size an index states

HEAD_BYTES = 1 << 16
"""Largest table of offsets that is fetched as a whole from unmapped files; from larger ones, 8 bytes per sample."""

Row: TypeAlias = tuple[memoryview, int, int]
"""Buffer, and start and stop of the bytes of one sample in it."""

FAULTS = (PenstockError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, struct.error)
"""Errors that decoding of damaged bytes may raise."""


@dataclass(frozen=True, slots=True)
class RowCodec:
    """Decoder of the samples of a layout; each shard format makes its own.

    Attributes:
        fields: the fields of a sample, in order.
        floor_bytes: for `n` samples, the smallest possible offset of the first sample in the data file.
        decode: returns the sample in `view[start:stop]`. Offsets in its errors are relative to the start of `view`.
        decode_rows: returns columns of many rows, also of several buffers. An error means that some row is irregular;
            `decode` then raises the specific error.
        decode_many: returns columns of the samples in `data[starts:stops]`, or None if some of them are irregular;
            `decode` then raises the specific error. None if the format decodes sample by sample.
        arrays: every column is an array, so batches are decoded fastest when their samples are adjacent in memory.
    """

    fields: tuple[Field, ...]
    floor_bytes: Callable[[int], int]
    decode: Callable[[memoryview, int, int], Sample]
    decode_rows: Callable[[Sequence[Row]], Batch]
    decode_many: Callable[[NDArray[np.uint8], IntArray, IntArray], Batch | None] | None = None
    arrays: bool = False


@dataclass(frozen=True, slots=True)
class Folder:
    """Place of the shards of an index, and options for reading them.

    Attributes:
        store: the store of the shards.
        path: the folder of the index.
        mapped: files are memory-mapped.
        validate_hash: algorithm of the digest by which each complete file is checked before it is read.
        index: state of the index file when it was opened, compared after every read of a shard; None if unknown.
    """

    store: Store
    path: str
    mapped: bool
    validate_hash: str | None = None
    index: OpenedFile | None = None

    def place(self, file: ShardFile) -> str:
        return f"{self.path}/{file.basename}"

    def require_same_index(self) -> None:
        """Raise `FormatError` if the dataset was replaced since it was opened."""
        if self.index is not None:
            self.index.require_same()


class WholeShard:
    """Shard with all of its decompressed bytes available, mapped or in memory.

    Attributes:
        array: uint8[size_bytes], the data file; `view` is the same as a memoryview.
        offsets: table of n + 1 offsets in it, as a memoryview of Python ints; `table` is the same as an array.
        codec: decodes its samples.
        held: the bytes are in private memory, not mapped; `cost_bytes` is their size.
        used: time of the last use, by `time.monotonic`.
    """

    __slots__ = (
        *("_decode", "_number", "_path", "_stored", "array", "codec", "cost_bytes", "held", "offsets", "table"),
        *("used", "view"),
    )

    def __init__(
        self,
        number: int,
        path: str,
        stored: Extent | None,
        array: NDArray[np.uint8],
        table: NDArray[np.uint32],
        codec: RowCodec,
    ) -> None:
        self._number = number
        self._path = path
        self._stored = stored
        self._decode = codec.decode
        self.array = array
        self.view = array.data
        self.table = table
        self.offsets = table.data
        self.codec = codec
        self.held = stored is not None
        self.cost_bytes = array.nbytes + table.nbytes if self.held else 0
        self.used = monotonic()

    def sample(self, place: int) -> Sample:
        self.used = monotonic()
        start, stop = self.offsets[place], self.offsets[place + 1]
        try:
            return self._decode(*self.row(place)) if self.held else self._decode(self.view, start, stop)
        except FAULTS as error:
            raise fault(error, self._path, self._number, place, start if self.held else 0, start) from error

    def row(self, place: int) -> Row:
        """Return the bytes of sample `place`; a copy if the shard is in memory, so that views don't keep it alive."""
        start, stop = self.offsets[place], self.offsets[place + 1]
        if self.held:
            return memoryview(bytes(self.view[start:stop])), 0, stop - start
        return self.view, start, stop

    def rows(self, places: list[int]) -> list[Row]:
        self.used = monotonic()
        return list(map(self.row, places))

    def extent(self, place: int) -> Extent:
        if self._stored is not None:
            return self._stored
        return Extent(self._path, self.offsets[place], self.offsets[place + 1] - self.offsets[place])


class RangedShard:
    """Shard that is read only in ranges.

    Attributes:
        codec: decodes its samples.
        cost_bytes: memory in use.
        used: time of the last use, by `time.monotonic`.
    """

    __slots__ = (
        *(
            "_folder",
            "_number",
            "_part",
            "_part_left",
            "_part_start",
            "_path",
            "_samples",
            "_size_bytes",
            "_store",
            "_table",
        ),
        *("codec", "cost_bytes", "used"),
    )

    def __init__(
        self,
        number: int,
        folder: Folder,
        shard: Shard,
        table: NDArray[np.uint32] | None,
        codec: RowCodec,
        part: tuple[int, int] | None = None,
    ) -> None:
        self._number = number
        self._folder = folder
        self._store = store = folder.store
        self._path = path = folder.place(shard.raw_data)
        self._samples = shard.samples
        self._size_bytes = shard.raw_data.size_bytes
        self._table = table
        self.codec = codec
        self.cost_bytes = 0 if table is None else table.nbytes
        self.used = monotonic()
        self._part = b""
        self._part_start = self._part_left = 0
        if part is not None and table is not None and store.keeps_copies:
            self._part_start, stop = int(table[part[0]]), int(table[part[1]])
            self._part_left = part[1] - part[0]
            self._part = store.peek(path, [(self._part_start, stop)])[0]
            self.cost_bytes += len(self._part)

    def sample(self, place: int) -> Sample:
        row = self.rows([place])[0]
        try:
            return self.codec.decode(*row)
        except FAULTS as error:
            start = self._ranges([place])[0][0]
            raise fault(error, self._path, self._number, place, start, start) from error

    def rows(self, places: list[int]) -> list[Row]:
        """Return the samples at `places`, in one call of the store."""
        self.used = monotonic()
        ranges = self._ranges(places)
        found = self._of_part(ranges)
        if not found:
            found = self._store.get_ranges(self._path, ranges)
            self._folder.require_same_index()
        return [(memoryview(data), 0, len(data)) for data in found]

    def _of_part(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the ranges from the part in memory, or nothing if some are outside it. The part is freed once read."""
        part, first = self._part, self._part_start
        if not part or min(ranges)[0] < first or max(stop for _, stop in ranges) > first + len(part):
            return []
        self._part_left -= len(ranges)
        if self._part_left <= 0:
            self._part = b""
        return [part[start - first : stop - first] for start, stop in ranges]

    def extent(self, place: int) -> Extent:
        start, stop = self._ranges([place])[0]
        return Extent(self._path, start, stop - start)

    def _ranges(self, places: list[int]) -> list[tuple[int, int]]:
        if self._table is not None:
            offsets = self._table.data
            return [(offsets[place], offsets[place + 1]) for place in places]
        pairs = self._store.get_ranges(self._path, [(4 + 4 * place, 12 + 4 * place) for place in places])
        floor_bytes = self.codec.floor_bytes(self._samples)
        ranges: list[tuple[int, int]] = []
        for place, pair in zip(places, pairs, strict=True):
            start, stop = struct.unpack("<2I", pair)
            if not floor_bytes <= start <= stop <= self._size_bytes:
                raise _bad_offsets(self._path, self._number, place, 4 + 4 * place, start, stop, self._size_bytes)
            ranges.append((start, stop))
        return ranges


OpenShard: TypeAlias = WholeShard | RangedShard


def open_shard(
    folder: Folder, number: int, shard: Shard, codec: RowCodec, part: tuple[int, int] | None = None
) -> OpenShard:
    """Open shard `number` and check its table of offsets; for a remote shard, fetch `part`, a range of samples, now.

    Raises:
        NotFound: a file doesn't exist.
        FormatError: a file doesn't match the index, or its offsets are impossible.
        UnsafeData: a file is a link that leaves the folder.
    """
    try:
        if is_ranged(folder, shard):
            return _ranged(folder, number, shard, codec, part)
        path = folder.place(shard.raw_data)
        data, stored = read_whole(folder, shard, shard.raw_data, shard.zip_data)
        head, head_path = data, path
        if shard.raw_meta is not None:
            head_path = folder.place(shard.raw_meta)
            head = read_whole(folder, shard, shard.raw_meta, shard.zip_meta)[0]
        folder.require_same_index()
        table = offset_table(head, shard.samples, codec.floor_bytes(shard.samples), len(data), head_path)
        return WholeShard(number, path, stored, data, table, codec)
    except PenstockError as error:
        error.what = f"shard {number}: {error.what}"
        raise


def is_ranged(folder: Folder, shard: Shard) -> bool:
    """Return true if the shard's data file is read in ranges: it is neither mapped nor needed as a whole.

    The whole file is needed if it is compressed, or if a store with local copies has to check them.
    """
    checked_whole = folder.validate_hash is not None and folder.store.keeps_copies
    return not folder.mapped and shard.zip_data is None and not checked_whole


def expect_stated(folder: Folder, file: ShardFile, path: str) -> None:
    """Tell a store with local copies size and hashes from the index, so that it can check copies without requests."""
    hashes = checkable(file)
    if folder.store.keeps_copies:
        folder.store.expect_size(path, file.size_bytes)
        if hashes:
            folder.store.expect_hashes(path, hashes)


def checkable(file: ShardFile) -> dict[str, str]:
    """Return the digests of a file by known algorithms; `verify` reports the others."""
    return {name: value for name, value in file.hashes.items() if name in ALGORITHMS}


def _ranged(folder: Folder, number: int, shard: Shard, codec: RowCodec, part: tuple[int, int] | None) -> RangedShard:
    path, size_bytes = folder.place(shard.raw_data), shard.raw_data.size_bytes
    if isinstance(folder.store, SupportsMmap):  # cheap for these stores
        _require_size(folder.store.size(path), shard.raw_data, path)
    expect_stated(folder, shard.raw_data, path)
    if folder.validate_hash is not None:
        pieces = range(0, size_bytes, _PIECE_BYTES)
        _require_hash(folder, shard.raw_data, path, (folder.store.get(path, at, _PIECE_BYTES) for at in pieces))
    floor_bytes, head_bytes = codec.floor_bytes(shard.samples), 4 * (shard.samples + 2)
    table = None
    if shard.raw_meta is not None:
        meta_path = folder.place(shard.raw_meta)
        meta = read_whole(folder, shard, shard.raw_meta, shard.zip_meta)[0]
        table = offset_table(meta, shard.samples, floor_bytes, size_bytes, meta_path)
    elif head_bytes <= HEAD_BYTES:
        head = np.frombuffer(folder.store.get(path, 0, head_bytes), np.uint8)
        table = offset_table(head, shard.samples, floor_bytes, size_bytes, path)
    else:
        _require_count(np.frombuffer(folder.store.get(path, 0, 4), np.uint8), shard.samples, path)
    folder.require_same_index()
    return RangedShard(number, folder, shard, table, codec, part)


def read_whole(
    folder: Folder, shard: Shard, raw: ShardFile, zipped: ShardFile | None
) -> tuple[NDArray[np.uint8], Extent | None]:
    """Return uint8[raw.size_bytes], a file, mapped if possible; decompressed if only the compressed file exists.

    Returns:
        The bytes, and their place if they aren't stored in a file with exactly these bytes.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: the size of the file, or of its decompressed bytes, differs from the index.
    """
    path, store = folder.place(raw), folder.store
    if zipped is None or (isinstance(store, SupportsMmap) and store.exists(path)):
        return _read(folder, raw, path), None
    family = (shard.layout.compression or "").partition(":")[0]
    if family not in FAMILIES:
        found = repr(shard.layout.compression)
        raise Corrupt("a file with an unknown compression", path=path, found=found, expected=", ".join(FAMILIES))
    zip_path = folder.place(zipped)
    try:
        packed = _read(folder, zipped, zip_path)
    except NotFound:
        if isinstance(store, SupportsMmap):
            raise
        return _read(folder, raw, path), None  # another process decompressed it and kept only the result
    data = decompress(packed, family, limit_bytes=min(raw.size_bytes, _LARGEST_BYTES), path=zip_path)
    if len(data) != raw.size_bytes:
        found, expected = f"{len(data)} bytes", f"{raw.size_bytes} bytes"
        raise Truncated(
            "the decompressed file is shorter than its index records", path=zip_path, found=found, expected=expected
        )
    return np.frombuffer(data, np.uint8), Extent(zip_path, 0, len(packed))


def offset_table(
    head: NDArray[np.uint8], samples: int, floor_bytes: int, size_bytes: int, path: str
) -> NDArray[np.uint32]:
    """Return uint32[samples + 1], the offsets of the samples.

    Args:
        head: uint8[n], the first bytes of an MDS file or a meta file, at least `4 · (samples + 2)` bytes.
        samples: number of samples in the index.
        floor_bytes: smallest possible offset of the first sample.
        size_bytes: size of the data file.
        path: the file of `head`.

    Raises:
        Truncated: the file ends inside the table.
        Corrupt: the number of samples differs from the index, or offsets decrease or exceed the file.
    """
    _require_count(head, samples, path)
    stop_bytes = 4 * (samples + 2)
    if len(head) < stop_bytes:
        what = "the file ends in the middle of its offset table"
        raise Truncated(what, path=path, offset_bytes=len(head), expected=f"{stop_bytes} bytes")
    table = head[4:stop_bytes].view("<u4").astype(np.uint32, copy=False)
    falls = table[1:] < table[:-1]
    if table[0] < floor_bytes or table[-1] > size_bytes or falls.any():
        early = table[0] < floor_bytes or samples == 0
        place = 0 if early else int(np.argmax(falls | (table[1:] > size_bytes)))
        start, stop = (int(table[min(place + step, samples)]) for step in (0, 1))
        raise _bad_offsets(path, None, place, 4 + 4 * place, start, stop, size_bytes)
    return table


def fault(error: Exception, path: str, number: int, place: int, base: int, start: int) -> PenstockError:
    """Return the error for a sample that can't be decoded, with its place added.

    Args:
        error: the error of the codec.
        path: the data file.
        number: number of the shard.
        place: number of the sample in the shard.
        base: offset to which the codec's offsets are relative.
        start: offset of the sample.
    """
    where = f"sample {place} of shard {number}"
    if not isinstance(error, PenstockError):
        return Corrupt(f"{where} does not decode", path=path, offset_bytes=start, found=str(error))
    error.what = f"{where}: {error.what}"
    error.path = path
    if isinstance(error, FormatError):
        error.offset_bytes = start if error.offset_bytes is None else base + error.offset_bytes
    elif not isinstance(error, MissingExtra):
        error.offset_bytes = start
    return error


def join_rows(rows: Sequence[Row]) -> tuple[NDArray[np.uint8], IntArray, IntArray]:
    """Copy the samples of many rows back to back into new memory; return it with their starts and stops."""
    joined = b"".join([view[start:stop] for view, start, stop in rows])
    stops = np.cumsum([stop - start for _, start, stop in rows])
    starts = np.zeros_like(stops)
    starts[1:] = stops[:-1]
    return np.frombuffer(joined, np.uint8), starts, stops


def _read(folder: Folder, file: ShardFile, path: str) -> NDArray[np.uint8]:
    store: Any = folder.store
    if folder.store.keeps_copies:
        data = store.mapped_copy(path, size_bytes=file.size_bytes, hashes=checkable(file))
    elif folder.mapped:
        data = store.mmap(path)
    else:
        data = np.frombuffer(store.get(path), np.uint8)
    _require_size(len(data), file, path)
    if folder.validate_hash is not None and not folder.store.keeps_copies:
        _require_hash(folder, file, path, (data,))
    return data


def _require_hash(folder: Folder, file: ShardFile, path: str, pieces: Iterable[Buffer]) -> None:
    algorithm = str(folder.validate_hash)
    digest = hasher(algorithm)
    for piece in pieces:
        digest.update(piece)
    found, expected = digest.hexdigest(), file.hashes[algorithm]
    if found != expected:
        what = f"the {algorithm} hash differs from the index"
        hint = "The file is damaged, or does not belong to this index"
        raise Corrupt(what, path=path, found=found, expected=expected, hint=hint)


def _require_count(head: NDArray[np.uint8], samples: int, path: str) -> None:
    if len(head) < 4:
        raise Truncated("the file has no header", path=path, offset_bytes=len(head), expected="4 bytes")
    count = int(head[:4].view("<u4")[0])
    if count != samples:
        expected = f"{samples}, as in the index"
        raise Corrupt("the number of samples differs", path=path, offset_bytes=0, found=count, expected=expected)


def _require_size(size_bytes: int, file: ShardFile, path: str) -> None:
    if size_bytes != file.size_bytes:
        kind = Truncated if size_bytes < file.size_bytes else Corrupt
        found, expected = f"{size_bytes} bytes", f"{file.size_bytes} bytes"
        raise kind("the file has a different size than its index records", path=path, found=found, expected=expected)


def _bad_offsets(
    path: str, number: int | None, place: int, offset_bytes: int, start: int, stop: int, size_bytes: int
) -> Corrupt:
    where = f"sample {place}" if number is None else f"sample {place} of shard {number}"
    return Corrupt(
        f"{where} has offsets out of order or beyond its file",
        path=path,
        offset_bytes=offset_bytes,
        found=f"{start} to {stop}",
        expected=f"increasing offsets after the table, up to {size_bytes}",
    )

"""Read whole lines of compressed files, decompressed once in pieces of bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock._limits import LEAST_LINE_BYTES, UNPACKED_RATIO
from penstock._optional import require
from penstock.codec.compress import FrameCount
from penstock.errors import Corrupt, TooLarge, Truncated
from penstock.store.place import Place

BLOCK_BYTES = 1 << 20
LINE_LIMIT_BYTES = 1 << 30
"""Limit of the length of a line. The ratio of a line to its stored bytes is limited too; see `penstock._limits`."""

_FEED_BYTES = 1 << 12  # a zstd block of 4 bytes may hold 128 KiB, so one feed gives at most 128 MiB
_ZSTD_WINDOW_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Start:
    """Position at which decompression can begin.

    Attributes:
        offset_bytes: offset in the compressed file.
        member: the state of the decompressor at the offset, or None at the first byte of a member or frame.
    """

    offset_bytes: int = 0
    member: Any = None


_FIRST = Start()


def blocks_of(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        stop = data.find(b"\n", start + BLOCK_BYTES - 1) + 1 or len(data)
        yield data[start:stop]
        start = stop


def cut_stream(
    file: Place, compression: str, piece_bytes: int, reader: Gunzip | Unzstd | None = None
) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the content of a compressed file as `(offset, whole lines, is_last)`.

    All pieces but the last have at least `piece_bytes`. The content is decompressed lazily and once. Memory: three
    pieces and a line, and 128 MiB for a decompression bomb.

    Raises:
        Truncated: the file ends inside a member or frame.
        Corrupt: its bytes are damaged, or are followed by other data.
        TooLarge: a line is longer than `LINE_LIMIT_BYTES`, or than the limit for its stored bytes.
    """
    offset_bytes, held, held_bytes, wanted_bytes = 0, list[bytes](), 0, piece_bytes
    ready: tuple[int, bytes] | None = None
    reader = reader or reader_of(file, compression)
    line_bytes, line_start_bytes, before_bytes = 0, reader.consumed_bytes, reader.consumed_bytes
    for data in reader:
        if end := data.rfind(b"\n") + 1:
            line_bytes, line_start_bytes = 0, before_bytes
        line_bytes += len(data) - end
        before_bytes = reader.consumed_bytes
        most_bytes = max(LEAST_LINE_BYTES, UNPACKED_RATIO * (before_bytes - line_start_bytes))
        if line_bytes > min(most_bytes, LINE_LIMIT_BYTES):
            raise _too_long(file, offset_bytes, min(most_bytes, LINE_LIMIT_BYTES))
        held.append(data)
        held_bytes += len(data)
        if held_bytes < wanted_bytes:
            continue
        whole, start = _joined(held, file, offset_bytes), 0
        while end := whole.find(b"\n", start + piece_bytes - 1) + 1:
            if ready is not None:
                yield ready[0], ready[1], False
            ready = (offset_bytes, whole[start:end])
            offset_bytes += end - start
            start = end
        held, held_bytes, wanted_bytes = [whole[start:]], len(whole) - start, piece_bytes
        if held_bytes >= piece_bytes:
            # The line is incomplete: search again once the data over `piece_bytes` has doubled.
            wanted_bytes = 2 * held_bytes - piece_bytes + 1
    rest = _joined(held, file, offset_bytes)
    if ready is not None:
        yield ready[0], ready[1], not rest
    if rest or ready is None:
        yield offset_bytes, rest, True


class Gunzip:
    """Iterator over the content of gzip members, in pieces of at most 1 MiB. Raises the errors of `cut_stream`.

    Attributes:
        frames: `(offset in the file, offset in the content)` of the members reached so far.
    """

    def __init__(self, file: Place, start: Start = _FIRST, begun_bytes: int = 0) -> None:
        self._file = file
        self._offset_bytes = start.offset_bytes
        self._data = b""
        self._member = zlib.decompressobj(31) if start.member is None else start.member.copy()
        self._begun = start.member is not None
        self._whole = start.offset_bytes == 0
        self._count = FrameCount()
        self._held_bytes = begun_bytes
        self.frames: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            if not self._data:
                self._data = self._file.store.get(self._file.path, self._offset_bytes, BLOCK_BYTES)
                self._offset_bytes += len(self._data)
                if not self._data:
                    break
            if not self._begun:
                self._data = self._data.lstrip(b"\0")  # members may be padded with zeros, as on tapes
                if not self._data:
                    continue
                self.frames.append((self._offset_bytes - len(self._data), self._held_bytes))
            return self._decompressed()
        if self._begun or not self._offset_bytes:  # an empty file isn't valid gzip
            raise _cut_off(self._file, self._offset_bytes)
        if self._whole and not self.frames:
            raise _damaged(self._file, 0, "zeros alone")
        raise StopIteration

    @property
    def consumed_bytes(self) -> int:
        return self._offset_bytes - len(self._data)

    def here(self) -> Start | None:
        state = self._member.copy() if self._begun else None
        return Start(self._offset_bytes - len(self._data), state)

    def _decompressed(self) -> bytes:
        try:
            piece = self._member.decompress(self._data, BLOCK_BYTES)
        except zlib.error as error:
            raise _damaged(self._file, self._offset_bytes - len(self._data), error) from error
        self._held_bytes += len(piece)
        self._begun, self._data = not self._member.eof, self._member.unconsumed_tail
        if self._member.eof:
            _count(self._count, self._held_bytes, self._file, self._offset_bytes)
            self._data, self._member = self._member.unused_data, zlib.decompressobj(31)
        return piece


class Unzstd:
    """Iterator over the content of zstd frames; see `Gunzip`. Decompression can't begin inside a frame."""

    def __init__(self, file: Place, start: Start = _FIRST, begun_bytes: int = 0) -> None:
        zstandard = require("zstandard", extra="tokenize")
        self._error: type[Exception] = zstandard.ZstdError
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._offset_bytes = start.offset_bytes
        self._block, self._used_bytes, self._data = b"", 0, b""
        self._frame = self._decompressor.decompressobj()
        self._begun = False
        self._count = FrameCount()
        self._held_bytes = begun_bytes
        self.frames: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if not self._data and not self._fed():
            if self._begun or not self._offset_bytes:  # an empty file isn't valid zstd
                raise _cut_off(self._file, self._offset_bytes)
            raise StopIteration
        at_bytes = self._at()
        if not self._begun:
            self.frames.append((at_bytes, self._held_bytes))
        try:
            piece = self._frame.decompress(self._data)
        except self._error as error:
            raise _damaged(self._file, at_bytes, error) from error
        self._held_bytes += len(piece)
        self._begun, self._data = not self._frame.eof, self._frame.unused_data
        if self._frame.eof:
            _count(self._count, self._held_bytes, self._file, at_bytes)
            self._frame = self._decompressor.decompressobj()
        return piece

    @property
    def consumed_bytes(self) -> int:
        return self._at()

    def here(self) -> Start | None:
        """Return the start of the next piece, or None inside a frame."""
        return None if self._begun else Start(self._at())

    def _fed(self) -> bool:
        if self._used_bytes == len(self._block):
            self._block = self._file.store.get(self._file.path, self._offset_bytes, BLOCK_BYTES)
            self._offset_bytes, self._used_bytes = self._offset_bytes + len(self._block), 0
        self._data = self._block[self._used_bytes : self._used_bytes + _FEED_BYTES]
        self._used_bytes += len(self._data)
        return bool(self._data)

    def _at(self) -> int:
        return self._offset_bytes - len(self._block) + self._used_bytes - len(self._data)


def reader_of(file: Place, compression: str, start: Start = _FIRST, begun_bytes: int = 0) -> Gunzip | Unzstd:
    """Return an iterator over the content of a compressed file.

    Args:
        file: the file.
        compression: `"gzip"` or `"zstd"`.
        start: where to begin.
        begun_bytes: size of the content before `start`.
    """
    return (Gunzip if compression == "gzip" else Unzstd)(file, start, begun_bytes)


def _count(frames: FrameCount, held_bytes: int, file: Place, offset_bytes: int) -> None:
    try:
        frames.begin(held_bytes, offset_bytes)
    except Corrupt as error:
        error.path = file.path
        raise


def _joined(held: list[bytes], file: Place, offset_bytes: int) -> bytes:
    try:
        return b"".join(held)
    except MemoryError:  # a decompression bomb
        raise _too_long(file, offset_bytes, sum(map(len, held))) from None


def _too_long(file: Place, offset_bytes: int, held_bytes: int) -> TooLarge:
    return TooLarge(
        "a line of the decompressed file is too long",
        path=file.path,
        offset_bytes=offset_bytes,
        found=f"more than {held_bytes} bytes without a line end",
        expected="JSONL: one document per line",
    )


def _cut_off(file: Place, offset_bytes: int) -> Truncated:
    return Truncated("the compressed file is cut off", path=file.path, offset_bytes=offset_bytes, hint="Copy it again")


def _damaged(file: Place, offset_bytes: int, error: Exception | str) -> Corrupt:
    return Corrupt("the compressed file is damaged", path=file.path, offset_bytes=offset_bytes, found=str(error))

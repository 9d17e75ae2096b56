"""Compression of whole files in memory: the families br, bz2, gz, snappy (raw blocks) and zstd.

Files are compatible with mosaicml-streaming 0.13.0 in both directions. Decompression is bounded: it stops as soon as
the output passes the caller's limit, before it is allocated.
"""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock._arrays import byte_view
from penstock._limits import BYTES_PER_FRAME, FRAMES, count_in
from penstock._optional import require
from penstock.errors import ConfigError, Corrupt, PenstockError, TooLarge, Truncated
from penstock.types import Buffer

_STEP_BYTES = 1 << 20
_FEED_BYTES = 1 << 16
_LEVELS: dict[str, tuple[int, int, int] | None] = {
    "br": (0, 11, 11),
    "bz2": (1, 9, 9),
    "gz": (0, 9, 9),
    "snappy": None,
    "zstd": (1, 22, 3),
}
"""Family → lowest, highest and default level."""

_SNAPPY_MAX_RATIO = 22  # a copy of 64 bytes takes 3
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_WINDOW_BYTES = 1 << 27
_ZSTD_BLOCK_BYTES = 1 << 17

FAMILIES = tuple(_LEVELS)
"""Names of the families, which are also their file extensions."""


@dataclass(frozen=True, slots=True)
class Compression:
    """Compression method: `zstd:7` is family `"zstd"`, level 7; a level of None is the family's default."""

    family: str
    level: int | None = None


def parse_compression(text: str | None) -> Compression | None:
    """Parse `code` or `code:level`; None stays None.

    Raises:
        ConfigError: the family is unknown, or doesn't have the level.
    """
    if text is None:
        return None
    family, colon, level = text.partition(":")
    levels = _LEVELS.get(family)
    if family in _LEVELS and not colon:
        return Compression(family)
    number = count_in(level)
    if levels is None or number is None or not levels[0] <= number <= levels[1]:
        raise ConfigError("unknown compression", found=repr(text), expected=_choices())
    return Compression(family, number)


def levels_of(family: str) -> range:
    """Return the levels of a family; empty if it has none."""
    levels = _LEVELS[family]
    return range(0) if levels is None else range(levels[0], levels[1] + 1)


def _choices() -> str:
    return ", ".join(
        name if levels is None else f"{name} or {name}:{levels[0]} to {name}:{levels[1]}"
        for name, levels in _LEVELS.items()
    )


def compress(data: Buffer, how: Compression) -> bytes:
    """Return `data` compressed, always to the same bytes: a gz header has no time, a zstd frame its size."""
    view = byte_view(data)
    levels = _LEVELS[how.family]
    level = how.level if how.level is not None or levels is None else levels[2]
    if how.family == "br":
        return require("brotli", extra="mds").compress(view, quality=level)
    if how.family == "bz2":
        return bz2.compress(view, level or 9)
    if how.family == "gz":
        return gzip.compress(view, 9 if level is None else level, mtime=0)
    if how.family == "snappy":
        return bytes(require("snappy", extra="mds").compress(view))
    return require("zstandard", extra="mds").ZstdCompressor(level=level, write_content_size=True).compress(view)


def decompress(data: Buffer, family: str, *, limit_bytes: int, path: str | None = None) -> bytes:
    """Return the decompressed content of a file.

    Memory: the output, at most `limit_bytes` and a step of 1 MiB, and the decoder's own window (128 MiB at most).

    Raises:
        TooLarge: the content is larger than `limit_bytes`.
        Truncated: the data ends inside a member or frame.
        Corrupt: the data is damaged, or something else follows.
        ConfigError: the family is unknown.
    """
    decoder = _DECODERS.get(family)
    if decoder is None:
        raise ConfigError("unknown compression family", path=path, found=repr(family), expected=", ".join(FAMILIES))
    output = _Output(limit_bytes)
    try:
        for piece in decoder(byte_view(data), output):
            output.take(piece)
        return output.finish()
    except PenstockError as error:
        error.path = path
        raise
    except MemoryError:
        raise TooLarge("the decompressed file doesn't fit into memory", path=path) from None


class FrameCount:
    """Counter of frames or members that limits how many may be empty."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun = 0

    def begin(self, held_bytes: int, offset_bytes: int) -> None:
        """Count one more, after `held_bytes` bytes of content; raise `Corrupt` if most of them must be empty."""
        self._begun += 1
        if self._begun > FRAMES + held_bytes // BYTES_PER_FRAME:
            raise _damaged(offset_bytes, f"{self._begun} frames with {held_bytes} bytes")


class _Output:
    __slots__ = ("_file", "_frames", "left_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._file = io.BytesIO()
        self.limit_bytes = limit_bytes
        self.left_bytes = limit_bytes
        self._frames = FrameCount()

    def begin(self, offset_bytes: int) -> None:
        self._frames.begin(self.limit_bytes - self.left_bytes, offset_bytes)

    def step_bytes(self) -> int:
        """Return how many bytes to decompress next: one more than allowed, to detect an excess."""
        return min(_STEP_BYTES, self.left_bytes + 1)

    def take(self, piece: bytes) -> None:
        if len(piece) > self.left_bytes:
            raise _too_large(self.limit_bytes, "more")
        if self.left_bytes == self.limit_bytes:
            self._file = io.BytesIO(piece)  # shares the first piece, often the only one, without a copy
            self._file.seek(0, io.SEEK_END)
        else:
            self._file.write(piece)
        self.left_bytes -= len(piece)

    def finish(self) -> bytes:
        return self._file.getvalue()


def _feeds(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    for start in range(0, len(view), _FEED_BYTES):
        yield start, view[start : start + _FEED_BYTES]


def _gunzip(view: memoryview, output: _Output) -> Iterator[bytes]:
    member: Any = zlib.decompressobj(31)
    for start, feed in _feeds(view):
        data: Any = feed
        while data:
            if member is None:
                data = bytes(data).lstrip(b"\0")  # zeros may pad the end of a member
                member = zlib.decompressobj(31) if data else None
                output.begin(start)
                continue
            try:
                yield member.decompress(data, output.step_bytes())
            except zlib.error as error:
                raise _damaged(start, error) from error
            data = member.unconsumed_tail
            if member.eof:
                data, member = member.unused_data, None
    if member is not None:
        raise _cut_off(view)


def _bunzip2(view: memoryview, output: _Output) -> Iterator[bytes]:
    stream: Any = bz2.BZ2Decompressor()
    for start, feed in _feeds(view):
        data: Any = feed
        while data or (stream is not None and not stream.needs_input):
            if stream is None:
                stream = bz2.BZ2Decompressor()
                output.begin(start)
            try:
                yield stream.decompress(data, output.step_bytes())
            except OSError as error:
                raise _damaged(start, error) from error
            data = b""
            if stream.eof:
                data, stream = stream.unused_data, None
    if stream is not None:
        raise _cut_off(view)


def _unbrotli(view: memoryview, output: _Output) -> Iterator[bytes]:
    brotli = require("brotli", extra="mds")
    stream = brotli.Decompressor()
    for start, feed in _feeds(view):
        data: Any = feed
        while data or not stream.can_accept_more_data():
            if stream.is_finished():
                raise _damaged(start, "bytes after the end of the stream")
            try:
                yield stream.process(data, output_buffer_limit=output.step_bytes())
            except brotli.error as error:
                raise _damaged(start, error) from error
            data = b""
    if not stream.is_finished():
        raise _cut_off(view)


def _unsnappy(view: memoryview, output: _Output) -> Iterator[bytes]:
    snappy = require("snappy", extra="mds")
    size_bytes = _snappy_size(view)
    if size_bytes > output.limit_bytes:
        raise _too_large(output.limit_bytes, f"{size_bytes} bytes")
    if size_bytes > len(view) * _SNAPPY_MAX_RATIO:
        raise _damaged(0, f"a length of {size_bytes} bytes, too many for {len(view)} compressed bytes")
    try:
        yield bytes(snappy.uncompress(view))
    except Exception as error:  # the package doesn't wrap its own and cramjam's errors
        raise _damaged(0, error) from error


def _snappy_size(view: memoryview) -> int:
    """Return the length of a raw block from its varint header."""
    size_bytes = 0
    for place, byte in enumerate(view[:5]):
        size_bytes |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return size_bytes
    if len(view) < 5:
        raise _cut_off(view)
    raise _damaged(0, "a length of more than 5 bytes")


def _unzstd(view: memoryview, output: _Output) -> Iterator[bytes]:
    zstandard = require("zstandard", extra="mds")
    start, (stop, blocks) = 0, _zstd_frame_end(view, 0)
    while start < len(view):
        output.begin(start)
        try:
            if int.from_bytes(view[start : start + 4], "little") == _ZSTD_MAGIC:
                yield from _zstd_frame(zstandard, view[start:stop], blocks, output)
        except zstandard.ZstdError as error:
            raise _damaged(start, error) from error
        start, (stop, blocks) = stop, _zstd_frame_end(view, stop) if stop < len(view) else (stop, 0)


def _zstd_frame(zstandard: Any, frame: memoryview, blocks: int, output: _Output) -> Iterator[bytes]:
    size_bytes = zstandard.frame_content_size(frame)
    if size_bytes > blocks * _ZSTD_BLOCK_BYTES:
        raise _damaged(0, f"a length of {size_bytes} bytes, too many for {blocks} blocks")
    if size_bytes > output.left_bytes:
        raise _too_large(output.limit_bytes, f"{output.limit_bytes - output.left_bytes + size_bytes} bytes")
    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    if size_bytes >= 0:
        yield decoder.decompress(frame)
        return
    reader = decoder.stream_reader(frame, read_across_frames=False)
    while piece := reader.read(output.step_bytes()):
        yield piece


def _zstd_frame_end(view: memoryview, start: int) -> tuple[int, int]:
    """Return the end of the frame at `start` and its number of blocks, from headers (RFC 8878, 3.1.1)."""
    magic = int.from_bytes(view[start : start + 4], "little")
    if len(view) - start < 5:
        raise _cut_off(view)
    if magic & ~0xF == _ZSTD_SKIPPABLE:
        stop = start + 8 + int.from_bytes(view[start + 4 : start + 8], "little")
        if stop > len(view):
            raise _cut_off(view)
        return stop, 0
    if magic != _ZSTD_MAGIC:
        raise _damaged(start, "not a zstd frame")
    flags = view[start + 4]
    single = flags >> 5 & 1
    at = start + 5 + (not single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
    last = blocks = 0
    while not last:
        if at + 3 > len(view):
            raise _cut_off(view)
        block = int.from_bytes(view[at : at + 3], "little")
        last, kind = block & 1, block >> 1 & 3
        at += 3 + (1 if kind == 1 else block >> 3)
        blocks += 1
    at += 4 * (flags >> 2 & 1)
    if at > len(view):
        raise _cut_off(view)
    return at, blocks


_DECODERS: dict[str, Callable[[memoryview, _Output], Iterator[bytes]]] = {
    "br": _unbrotli,
    "bz2": _bunzip2,
    "gz": _gunzip,
    "snappy": _unsnappy,
    "zstd": _unzstd,
}


def _too_large(limit_bytes: int, found: str) -> TooLarge:
    return TooLarge("the compressed file expands too far", found=found, expected=f"at most {limit_bytes} bytes")


def _cut_off(view: memoryview) -> Truncated:
    return Truncated("the compressed file is truncated", offset_bytes=len(view), hint="Copy it again")


def _damaged(offset_bytes: int, why: object) -> Corrupt:
    return Corrupt("the compressed file is damaged", offset_bytes=offset_bytes, found=str(why))

"""Whole lines of compressed files: decompressed once, in pieces of bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from penstock._optional import require
from penstock.codec.compress import FrameCount
from penstock.errors import Corrupt, TooLarge, Truncated
from penstock.store.place import Place

BLOCK_BYTES = 1 << 20
LINE_LIMIT_BYTES = 1 << 30
"""A longer line is refused: a few bytes may decompress to any amount."""

_FEED_BYTES = 1 << 12  # a zstd block of 4 bytes may hold 128 KiB: so a feed gives 128 MiB at most
_ZSTD_WINDOW_BYTES = 1 << 31


def blocks_of(data: bytes) -> Iterator[bytes]:
    """Whole lines, about 1 MiB at a time."""
    start = 0
    while start < len(data):
        stop = data.find(b"\n", start + BLOCK_BYTES - 1) + 1 or len(data)
        yield data[start:stop]
        start = stop


def cut_stream(file: Place, compression: str, piece_bytes: int) -> Iterator[tuple[int, bytes, bool]]:
    """`(offset, whole lines, last)` of a compressed file's content, pieces of at least `piece_bytes` but the last.

    The content is decompressed once, as it is asked for. Memory: three pieces and a line, and 128 MiB for a stream
    made to expand.

    Raises:
        Truncated: the file ends inside a member or frame.
        Corrupt: its bytes are damaged, or something else follows.
        TooLarge: a line is longer than `LINE_LIMIT_BYTES`.
    """
    offset_bytes, held, held_bytes, wanted_bytes = 0, list[bytes](), 0, piece_bytes
    ready: tuple[int, bytes] | None = None
    for data in _gunzip(file) if compression == "gzip" else _unzstd(file):
        held.append(data)
        held_bytes += len(data)
        if held_bytes < wanted_bytes:
            continue
        whole, start = b"".join(held), 0
        while end := whole.find(b"\n", start + piece_bytes - 1) + 1:
            if ready is not None:
                yield (*ready, False)
            ready = (offset_bytes, whole[start:end])
            offset_bytes += end - start
            start = end
        held, held_bytes, wanted_bytes = [whole[start:]], len(whole) - start, piece_bytes
        if held_bytes >= piece_bytes:
            # The line goes on: looked at again when there is twice as much of what is over.
            if held_bytes >= LINE_LIMIT_BYTES:
                raise _too_long(file, offset_bytes)
            wanted_bytes = 2 * held_bytes - piece_bytes + 1
    rest = b"".join(held)
    if ready is not None:
        yield (*ready, not rest)
    if rest or ready is None:
        yield offset_bytes, rest, True


def _gunzip(file: Place) -> Iterator[bytes]:
    offset_bytes, data, member, begun = 0, b"", zlib.decompressobj(31), False
    frames, held_bytes = FrameCount(), 0
    while True:
        if not data:
            data = file.store.get(file.path, offset_bytes, BLOCK_BYTES)
            offset_bytes += len(data)
            if not data:
                break
        if not begun:
            data = data.lstrip(b"\0")  # zeros may pad the end of a member, as tapes have it
            if not data:
                continue
        try:
            piece = member.decompress(data, BLOCK_BYTES)
            yield piece
        except zlib.error as error:
            raise _damaged(file, offset_bytes - len(data), error) from error
        held_bytes += len(piece)
        begun, data = not member.eof, member.unconsumed_tail
        if member.eof:
            _count(frames, held_bytes, file, offset_bytes)
            data, member = member.unused_data, zlib.decompressobj(31)
    if begun:
        raise _cut_off(file, offset_bytes)


def _unzstd(file: Place) -> Iterator[bytes]:
    zstandard = require("zstandard", extra="tokenize")
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    offset_bytes, frame, begun = 0, decompressor.decompressobj(), False
    frames, held_bytes = FrameCount(), 0
    while block := file.store.get(file.path, offset_bytes, BLOCK_BYTES):
        for start in range(0, len(block), _FEED_BYTES):
            data = block[start : start + _FEED_BYTES]
            while data:
                try:
                    piece = frame.decompress(data)
                    yield piece
                except zstandard.ZstdError as error:
                    raise _damaged(file, offset_bytes + start, error) from error
                held_bytes += len(piece)
                begun, data = not frame.eof, frame.unused_data
                if frame.eof:
                    _count(frames, held_bytes, file, offset_bytes + start)
                    frame = decompressor.decompressobj()
        offset_bytes += len(block)
    if begun:
        raise _cut_off(file, offset_bytes)


def _count(frames: FrameCount, held_bytes: int, file: Place, offset_bytes: int) -> None:
    try:
        frames.begin(held_bytes, offset_bytes)
    except Corrupt as error:
        error.path = file.path
        raise


def _too_long(file: Place, offset_bytes: int) -> TooLarge:
    return TooLarge(
        "a line of the decompressed file is too long",
        path=file.path,
        offset_bytes=offset_bytes,
        found=f"more than {LINE_LIMIT_BYTES} bytes without a line end",
        expected="JSONL: one document a line",
    )


def _cut_off(file: Place, offset_bytes: int) -> Truncated:
    return Truncated("the compressed file is cut off", path=file.path, offset_bytes=offset_bytes, hint="Copy it again")


def _damaged(file: Place, offset_bytes: int, error: Exception) -> Corrupt:
    return Corrupt("the compressed file is damaged", path=file.path, offset_bytes=offset_bytes, found=str(error))

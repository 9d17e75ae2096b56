"""Bytes of one media file, in memory or in a range of a stored file.

Headers are read from the first few KiB. Readers request more only if necessary, so that no film is read whole for its
length.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.abc import Store
from penstock.errors import Truncated

HEAD_BYTES = 1 << 12
"""How much of each file is read first: enough for most headers."""

_BLOCK_BYTES = 1 << 16


@dataclass(slots=True)  # created for millions of files: frozen would take twice as long
class MediaBytes:
    """One media file.

    Attributes:
        head: its first bytes, at most the whole file.
        more: `more(start_bytes, length_bytes)` reads the others, fewer only at the end.
    """

    size_bytes: int
    head: bytes
    more: Callable[[int, int], bytes]

    def read(self, start_bytes: int, length_bytes: int) -> bytes:
        """Return the bytes `[start, start + length)`, fewer only at the end."""
        stop_bytes = start_bytes + length_bytes
        if stop_bytes <= len(self.head) or self.size_bytes == len(self.head):
            return self.head[start_bytes:stop_bytes]
        length_bytes = min(length_bytes, self.size_bytes - start_bytes)
        return self.more(start_bytes, length_bytes) if length_bytes > 0 else b""

    def need(self, start_bytes: int, length_bytes: int) -> bytes:
        """Return the bytes `[start, start + length)`.

        Raises:
            Truncated: the file is too short.
        """
        data = self.read(start_bytes, length_bytes)
        if len(data) < length_bytes:
            raise Truncated(
                "the file ends in the middle of its header",
                offset_bytes=start_bytes,
                found=f"{self.size_bytes} bytes",
                expected=f"{start_bytes + length_bytes} bytes",
                hint="Copy or recreate the file",
            )
        return data

    def file(self) -> io.BufferedReader:
        """Return a seekable reader; reads blocks of 64 KiB."""
        return io.BufferedReader(_File(self), _BLOCK_BYTES)


def media_bytes(data: bytes) -> MediaBytes:
    return MediaBytes(len(data), data, _nothing)


def stored_media(store: Store, path: str, start_bytes: int, size_bytes: int) -> MediaBytes:
    """Return the file at `path[start_bytes : start_bytes + size_bytes]`."""
    return MediaBytes(size_bytes, b"", lambda start, length: store.get(path, start_bytes + start, length))


def _nothing(_start_bytes: int, _length_bytes: int) -> bytes:
    return b""


class _File(io.RawIOBase):
    def __init__(self, media: MediaBytes) -> None:
        self._media = media
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._media.size_bytes}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        data = self._media.read(self._place, len(buffer))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

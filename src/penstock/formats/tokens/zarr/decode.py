"""From stored bytes to items: whole chunks, and single blocks of Blosc-1 frames. No files here.

Sizes in the bytes are compared with the metadata before anything is allocated, so a chunk never takes more memory than
recorded there. zlib and gzip are Python's own; blosc, lz4 and zstd are decoded by numcodecs.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock._optional import require
from penstock.formats.tokens.zarr.meta import Chain
from penstock.types import Buffer, IntArray

Bytes: TypeAlias = NDArray[np.uint8]

MOST_BYTES = (1 << 31) - 1
"""Largest chunk that numcodecs decodes."""

BLOSC_HEAD_BYTES = 16
_BLOSC_COPIED, _BLOSC_UNSPLIT = 0x02, 0x10
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Damage(Exception):
    """Stored bytes that contradict the metadata; becomes a `Problem` once the file is known.

    Attributes:
        code: check that finds the damage.
        what, found, expected: as in `Problem`.
    """

    def __init__(self, code: str, what: str, found: object = None, expected: object = None) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.found = None if found is None else str(found)
        self.expected = None if expected is None else str(expected)


def decode(chain: Chain, data: Buffer, num_items: int) -> NDArray[Any]:
    """Return the items, [num_items], in the stored byte order unless they are differences.

    Args:
        chain: how the items became bytes.
        data: all bytes of a chunk.
        num_items: number of items in the chunk, by the metadata.

    Raises:
        Damage: sizes, checksums or compressed data are wrong.
    """
    sizes: list[int | None] = [num_items * chain.stored.itemsize]
    for codec in chain.codecs:
        before = sizes[-1]
        sizes.append(before + 4 if codec.name == "crc32c" and before is not None else None)
    view = byte_view(data)
    for codec, size_bytes in zip(reversed(chain.codecs), reversed(sizes[:-1]), strict=True):
        if codec.name == "crc32c":
            view = _checked(view)
        elif size_bytes is not None:
            view = _decompressed(codec.name, view, size_bytes)
    if len(view) != sizes[0]:
        raise Damage("chunk.size", "a chunk has the wrong size", f"{len(view)} bytes", f"{sizes[0]} bytes")
    return restore(chain, np.frombuffer(view, chain.stored))


def decode_into(chain: Chain, data: Buffer, out: NDArray[Any]) -> None:
    """Decode into contiguous items in native byte order, without a copy if possible; see `decode`."""
    view, size_bytes = byte_view(data), out.nbytes
    plain = chain.delta is None and chain.stored.isnative and len(chain.codecs) == 1
    if not plain or chain.codecs[0].name not in _CHECK_SIZE:
        out[:] = decode(chain, data, len(out))
        return
    _CHECK_SIZE[chain.codecs[0].name](view, size_bytes)
    decompress(chain.codecs[0].name, view, out.view(np.uint8))


def restore(chain: Chain, stored: NDArray[Any]) -> NDArray[Any]:
    """Return items from decompressed bytes: differences are summed up."""
    return stored if chain.delta is None else np.cumsum(stored, dtype=chain.delta)


# --- codecs ------------------------------------------------------------------------------------------------------


def _check_blosc(view: memoryview, size_bytes: int) -> None:
    parse_blosc_head(view[:BLOSC_HEAD_BYTES], size_bytes, len(view))


def _check_lz4(view: memoryview, size_bytes: int) -> None:
    found = int.from_bytes(view[:4], "little")
    if len(view) < 4 or found != size_bytes:
        raise Damage("chunk.decode", "an lz4 chunk has the wrong size", f"{found} bytes", f"{size_bytes} bytes")


def _check_zstd(view: memoryview, size_bytes: int) -> None:
    found = _zstd_content_bytes(view)
    if found is not None and found != size_bytes:
        raise Damage("chunk.decode", "a zstd chunk has the wrong size", f"{found} bytes", f"{size_bytes} bytes")


_CHECK_SIZE = {"blosc": _check_blosc, "lz4": _check_lz4, "zstd": _check_zstd}
_WINDOW_BITS = {"gzip": zlib.MAX_WBITS + 16, "zlib": zlib.MAX_WBITS}


def _decompressed(name: str, view: memoryview, size_bytes: int) -> memoryview:
    if name in _WINDOW_BITS:
        return _inflated(view, size_bytes, _WINDOW_BITS[name])
    _CHECK_SIZE[name](view, size_bytes)
    out = np.empty(size_bytes, np.uint8)
    decompress(name, view, out)
    return out.data


def decompress(name: str, data: Buffer, out: Bytes) -> None:
    """Decode a frame, known to hold `len(out)` bytes, into `out`; raises `Damage`."""
    try:
        require(f"numcodecs.{name}", extra="zarr").decompress(data, out)
    except (RuntimeError, ValueError) as error:
        raise Damage("chunk.decode", f"{name} can't decode a chunk", error) from None


def _inflated(view: memoryview, size_bytes: int, window_bits: int) -> memoryview:
    try:
        inflater = zlib.decompressobj(window_bits)
        found = inflater.decompress(view, size_bytes + 1)
    except zlib.error as error:
        raise Damage("chunk.decode", "zlib can't decode a chunk", error) from None
    if len(found) != size_bytes or not inflater.eof:
        raise Damage("chunk.decode", "a zlib chunk has the wrong size", f"{len(found)} bytes", f"{size_bytes} bytes")
    return memoryview(found)


def _zstd_content_bytes(view: memoryview) -> int | None:
    """Return the decoded size recorded in a zstd frame; None if not recorded."""
    head = bytes(view[:18])
    if len(head) < 6 or head[:4] != _ZSTD_MAGIC:
        raise Damage("chunk.decode", "not a zstd frame", head[:4].hex(" "), _ZSTD_MAGIC.hex(" "))
    flags = head[4]
    single = flags >> 5 & 1
    place = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    width = (single, 2, 4, 8)[flags >> 6]
    if width == 0:
        return None
    return int.from_bytes(head[place : place + width], "little") + (256 if width == 2 else 0)


# --- checksums ---------------------------------------------------------------------------------------------------


def crc32c(data: Buffer) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes; by google-crc32c if it is installed."""
    try:
        import google_crc32c
    except ImportError:
        value = 0xFFFFFFFF
        table = _crc_table()
        for byte in byte_view(data):
            value = table[(value ^ byte) & 0xFF] ^ value >> 8
        return value ^ 0xFFFFFFFF
    return int(google_crc32c.value(bytes(byte_view(data))))


def _checked(view: memoryview) -> memoryview:
    """Return the bytes without the checksum at their end."""
    if len(view) < 4:
        raise Damage("chunk.crc", "a chunk has no checksum", f"{len(view)} bytes", "4 bytes or more")
    found, expected = crc32c(view[:-4]), int.from_bytes(view[-4:], "little")
    if found != expected:
        raise Damage("chunk.crc", "a chunk's checksum differs", f"{found:08x}", f"{expected:08x}")
    return view[:-4]


@cache
def _crc_table() -> tuple[int, ...]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


# --- blocks of a Blosc-1 frame -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BloscHead:
    """The header of a frame.

    Attributes:
        lead: version, version of the codec, flags, width of an item: 4 bytes.
        num_bytes: decoded bytes.
        block_bytes: decoded bytes of each block but the last.
        stored_bytes: of the frame.
    """

    lead: bytes
    num_bytes: int
    block_bytes: int
    stored_bytes: int

    @property
    def copied(self) -> bool:
        """Whether the bytes are stored unchanged after the header."""
        return bool(self.lead[2] & _BLOSC_COPIED)

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the frame."""
        return -(-self.num_bytes // self.block_bytes)

    @property
    def offsets_bytes(self) -> int:
        """Size of the header and of the block offsets after it."""
        return BLOSC_HEAD_BYTES + (0 if self.copied else 4 * self.num_blocks)

    def block_range(self, block: int) -> tuple[int, int]:
        """Return the range of decoded bytes of a block."""
        return block * self.block_bytes, min(self.num_bytes, (block + 1) * self.block_bytes)


def parse_blosc_head(data: Buffer, num_bytes: int, stored_bytes: int) -> BloscHead:
    """Return the header of a frame of `stored_bytes` that decodes to `num_bytes`; raise `Damage` otherwise."""
    head = bytes(byte_view(data))
    if len(head) < BLOSC_HEAD_BYTES:
        raise Damage("chunk.decode", "a blosc chunk has no header", f"{len(head)} bytes", "16 bytes")
    found = BloscHead(head[:4], *struct.unpack("<3I", head[4:16]))
    if found.stored_bytes != stored_bytes:
        raise Damage(
            "chunk.decode", "a blosc chunk is truncated", f"{stored_bytes} bytes", f"{found.stored_bytes} bytes"
        )
    if found.num_bytes != num_bytes:
        what = "a blosc chunk has the wrong size"
        raise Damage("chunk.decode", what, f"{found.num_bytes} bytes", f"{num_bytes} bytes")
    if not 0 < found.block_bytes <= max(num_bytes, 1) or found.offsets_bytes > stored_bytes:
        raise Damage("chunk.decode", "a blosc chunk's blocks don't fit", f"blocks of {found.block_bytes} bytes")
    if found.copied and stored_bytes != BLOSC_HEAD_BYTES + num_bytes:
        what = "an uncompressed blosc chunk has the wrong size"
        raise Damage("chunk.decode", what, f"{stored_bytes} bytes", f"{BLOSC_HEAD_BYTES + num_bytes} bytes")
    return found


def parse_blosc_blocks(head: BloscHead, data: Buffer) -> IntArray:
    """Return `(start, stop)` of each block in the frame, int64[n_blocks, 2]; raise `Damage`.

    Args:
        head: the header.
        data: the `head.offsets_bytes` first bytes of the frame.
    """
    if head.copied:
        starts = np.arange(head.num_blocks, dtype=np.int64) * head.block_bytes + BLOSC_HEAD_BYTES
    else:
        starts = np.frombuffer(byte_view(data)[BLOSC_HEAD_BYTES:], "<i4").astype(np.int64)
    order = np.argsort(starts)
    stops = np.empty_like(starts)
    stops[order] = np.append(starts[order[1:]], head.stored_bytes)
    if starts.min() < head.offsets_bytes or (stops <= starts).any():
        raise Damage("chunk.decode", "block offsets of a blosc chunk overlap")
    return np.stack([starts, stops], axis=1)


def decode_blosc_block(head: BloscHead, block: int, data: Buffer) -> Bytes:
    """Return one block, uint8[n_bytes], decoded through a frame of its own; raise `Damage`.

    Args:
        head: header of the whole frame.
        block: number of the block.
        data: its stored bytes.
    """
    view = byte_view(data)
    start_bytes, stop_bytes = head.block_range(block)
    length_bytes = stop_bytes - start_bytes
    if head.copied:
        return np.frombuffer(view, np.uint8)
    lead = bytearray(head.lead)
    if length_bytes < head.block_bytes:
        # The short last block is never split by item bytes, which a frame of one block has to record.
        lead[2] |= _BLOSC_UNSPLIT
    frame = bytes(lead) + struct.pack("<4I", length_bytes, length_bytes, 20 + len(view), 20)
    out = np.empty(length_bytes, np.uint8)
    decompress("blosc", frame + view, out)
    return out

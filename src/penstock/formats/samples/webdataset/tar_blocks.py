"""Headers of many tar members at once, by arrays over blocks; only for members of the commonest kind.

That kind is a regular member with the magic of ustar, without a folder field, its size in eleven octal digits. It may
have a PAX header of one block, such as for a fractional time, that doesn't change its name, size or holes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.types import IntArray

BLOCK_BYTES = 512
PAX_OF_INTEREST = re.compile(rb" (?:path|linkpath|size|GNU\.sparse[^=]*)=")
PAX_KIND = 120

Blocks: TypeAlias = NDArray[np.uint8]
"""uint8[n, 512]."""

Gather: TypeAlias = Callable[[IntArray, int], Blocks]
"""Function that returns the blocks at an offset from members, selected by number; zeros if there is none."""

_OCTAL = 8 ** np.arange(10, -1, -1, dtype=np.int64)
_PAX_BYTES = 2 * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive members, as columns; all are regular, and none is sparse."""

    names: list[str]
    starts: list[int]
    contents: list[int]
    sizes: list[int]
    stop_bytes: int


@dataclass(frozen=True, slots=True)
class Heads:
    """Headers of members, as columns.

    Attributes:
        blocks: the header of each.
        sizes: int64[n]: sizes of their contents; -1 if a member is of another kind, or its header is damaged.
        leads: int64[n]: number of bytes before the header.
    """

    blocks: Blocks
    sizes: IntArray
    leads: IntArray

    def stops(self, starts: IntArray | list[int]) -> list[int]:
        padded = (self.sizes + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
        return (np.asarray(starts) + self.leads + BLOCK_BYTES + padded).tolist()


def read_heads(gather: Gather, count: int) -> Heads:
    blocks = gather(np.arange(count), 0)
    leads = np.zeros(count, np.int64)
    pax = np.flatnonzero(blocks[:, 156] == PAX_KIND)
    if len(pax):
        told = blocks[pax]
        good = checksums_agree(told) & _short_pax(told) & _tells_nothing(gather(pax, BLOCK_BYTES))
        plain = pax[good]
        blocks = blocks.copy()
        blocks[plain] = gather(plain, _PAX_BYTES)
        leads[plain] = _PAX_BYTES
    sizes = plain_sizes(blocks)
    return Heads(blocks, np.where(checksums_agree(blocks), sizes, -1), leads)


def names_of(headers: Blocks) -> list[str]:
    names = np.ascontiguousarray(headers[:, :100]).reshape(-1).view("S100").tolist()
    return [_plain_name(name) for name in names]


def plain_sizes(headers: Blocks) -> IntArray:
    """Return int64[n], content sizes of headers; -1 if a block isn't a header of the plain kind."""
    return np.where((headers[:, 156] == 48) & _are_ustar(headers), _sizes(headers), -1)


def checksums_agree(headers: Blocks) -> NDArray[np.bool_]:
    """Return bool[n], true if the checksum of a header is six octal digits, and correct."""
    digits = headers[:, 148:154] - np.uint8(48)
    stated = digits @ _OCTAL[5:]
    sums = headers.sum(1, dtype=np.uint32) - headers[:, 148:156].sum(1, dtype=np.uint32) + 256
    return (digits < 8).all(1) & (headers[:, 154] < 33) & (stated == sums)


def _sizes(headers: Blocks) -> IntArray:
    return (headers[:, 124:135] - np.uint8(48)) @ _OCTAL


def _are_ustar(headers: Blocks) -> NDArray[np.bool_]:
    digits = headers[:, 124:135] - np.uint8(48)
    ustar = (headers[:, 257] == 117) & (headers[:, 258] == 115) & (headers[:, 345] == 0)
    return ustar & (digits < 8).all(1) & ((headers[:, 135] == 0) | (headers[:, 135] == 32))


def _short_pax(headers: Blocks) -> NDArray[np.bool_]:
    sizes = _sizes(headers)
    return _are_ustar(headers) & (sizes > 0) & (sizes <= BLOCK_BYTES)


def _tells_nothing(bodies: Blocks) -> NDArray[np.bool_]:
    """Return bool[n], true if the records of a PAX header don't change name, size and content."""
    nothing = np.ones(len(bodies), np.bool_)
    nothing[[found.start() // BLOCK_BYTES for found in PAX_OF_INTEREST.finditer(bodies.tobytes())]] = False
    return nothing


def _plain_name(name: bytes) -> str:
    if b"\0" in name:
        name = name[: name.index(b"\0")]
    return name.decode("utf-8", "surrogateescape")


@dataclass(slots=True)
class Window:
    """Piece of an archive, and the runs of plain members found in it so far.

    Attributes:
        start_bytes: its offset in the archive.
        data: its bytes.
        stop_bytes: the end of the archive.
    """

    start_bytes: int
    data: bytes | memoryview
    stop_bytes: int
    _steps: list[int] = field(default_factory=list[int])
    _runs: dict[int, Run] = field(default_factory=dict[int, Run])
    _known_bytes: int = 0

    def has(self, start_bytes: int, stop_bytes: int) -> bool:
        return self.start_bytes <= start_bytes and stop_bytes <= self.start_bytes + len(self.data)

    def run_at(self, offset_bytes: int) -> Run | None:
        """Return the run of plain members that begins at an offset of the archive, or None."""
        first = offset_bytes - self.start_bytes
        if first % BLOCK_BYTES:
            return None
        if offset_bytes >= self._known_bytes and self.data[first + 156] in (48, PAX_KIND):
            self._follow(first // BLOCK_BYTES)
        return self._runs.get(offset_bytes)

    def _follow(self, block: int) -> None:
        """Find the members from a block on, up to one of another kind."""
        blocks = np.frombuffer(self.data, np.uint8, count=len(self.data) // BLOCK_BYTES * BLOCK_BYTES)
        blocks = blocks.reshape(-1, BLOCK_BYTES)
        steps = self._steps = self._steps or _steps(blocks)
        limit = (self.stop_bytes - self.start_bytes) // BLOCK_BYTES
        rows: list[int] = []
        while block < len(steps) and steps[block] and block + steps[block] <= limit:
            rows.append(block)
            block += steps[block]
        self._known_bytes = self.start_bytes + block * BLOCK_BYTES
        if rows:
            chosen = np.array(rows)
            heads = read_heads(lambda which, ahead: blocks[chosen[which] + ahead // BLOCK_BYTES], len(rows))
            starts = self.start_bytes + chosen * BLOCK_BYTES
            for run in _runs(heads, starts):
                self._runs[run.starts[0]] = run


def _steps(blocks: Blocks) -> list[int]:
    sizes = plain_sizes(blocks)
    steps = np.where(sizes < 0, 0, 1 + (sizes + BLOCK_BYTES - 1) // BLOCK_BYTES)
    pax = np.flatnonzero(blocks[:-2, 156] == PAX_KIND)
    if len(pax):
        pax = pax[_short_pax(blocks[pax]) & (steps[pax + 2] > 0)]
        steps[pax] = 2 + steps[pax + 2]
    return steps.tolist()


def _runs(heads: Heads, starts: IntArray) -> Iterator[Run]:
    """Yield runs of plain members among consecutive members."""
    plain = heads.sizes >= 0
    edges = np.flatnonzero(np.diff(plain, prepend=False, append=False)).tolist()
    contents, stops = starts + heads.leads + BLOCK_BYTES, heads.stops(starts)
    for first, after in zip(edges[::2], edges[1::2], strict=True):
        part = slice(first, after)
        yield Run(
            names_of(heads.blocks[part]), starts[part].tolist(), contents[part].tolist(), heads.sizes[part].tolist(),
            stops[after - 1],
        )  # fmt: skip

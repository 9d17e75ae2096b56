"""Digests of the blocks of an output that is to be joined of parts, by many workers.

When all parts are there, their names tell what lies where in each output, so the digest of a block of 64 MiB, and of
the blocks of tokens that a document digest is made of, is a task. What it finds is the name of an empty file: a fact
again, and a listing tells all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from penstock._buffers import byte_view
from penstock.abc import Store
from penstock.codec.hashes import BLOCK_BYTES, BLOCK_TOKENS
from penstock.codec.tokens import dtype_for
from penstock.store.place import Place
from penstock.store.put import put_new

_READ_BYTES = 1 << 24
_STEP_TOKENS = 1 << 15  # 128 KiB as uint32: stays in the processor's cache
_MARK = re.compile(r"(\d{8,})-([0-9a-f]{32})-(-1|\d+)((?:-[0-9a-f]{32})*)")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of an output that lie back to back in a file, as its writer stores them.

    Attributes:
        store: number of the store.
        path: the file.
        start_bytes: where they begin.
        size_bytes: of all of them.
    """

    store: int
    path: str
    start_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Block:
    """A block of an output, to be digested.

    Attributes:
        number: among the blocks of all outputs.
        index: among those of its output.
        head: what stands before the rows of that.
        size_bytes: of head and rows of that.
        first_bytes: offset of the first stretch behind the head.
        stretches: those that the block, and blocks of tokens that begin in it, lie in.
    """

    number: int
    index: int
    head: bytes
    size_bytes: int
    first_bytes: int
    stretches: tuple[Stretch, ...]

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"the digest of block {self.number} of the output"


@dataclass(frozen=True, slots=True)
class BlockJob:
    """What all such tasks share.

    Attributes:
        stores: by number.
        marks: where marks go.
        token_bytes: width of the tokens; 0 for outputs that hold none.
    """

    stores: tuple[Store, ...]
    marks: Place
    token_bytes: int


@dataclass(frozen=True, slots=True)
class BlockMark:
    """What is known of a block.

    Attributes:
        number: see `Block`.
        digest: of its bytes.
        max_token_id: of the blocks of tokens that begin in it; -1 where there is none.
        token_blocks: their digests.
    """

    number: int
    digest: str
    max_token_id: int
    token_blocks: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of its file."""
        return "-".join([f"{self.number:08d}", self.digest, str(self.max_token_id), *self.token_blocks])


def parse_mark(name: str) -> BlockMark | None:
    """The mark in a file's name; None for that of another file."""
    found = _MARK.fullmatch(name)
    if found is None:
        return None
    return BlockMark(int(found[1]), found[2], int(found[3]), tuple(found[4].split("-")[1:]))


def digest_block(job: BlockJob, block: Block) -> BlockMark:
    """Digest a block, and mark that it is done. Memory: 64 MiB, and as much again of tokens of 4 bytes."""
    start = block.index * BLOCK_BYTES
    stop = min(
        block.size_bytes, max([start + BLOCK_BYTES, *(stop for _, stop in token_blocks(job.token_bytes, block))])
    )
    data = b"".join(read_stretches(job.stores, block, start, stop))
    highest, digests = digest_tokens(job.token_bytes, block, data)
    found = BlockMark(block.number, xxhash.xxh3_128_hexdigest(memoryview(data)[:BLOCK_BYTES]), highest, digests)
    put_new(job.marks.store, job.marks.child(found.name).path, b"")
    return found


def digest_tokens(token_bytes: int, block: Block, data: bytes) -> tuple[int, tuple[str, ...]]:
    """(the largest id, digest of each) of the blocks of tokens that begin in a block, whose bytes these are."""
    highest, digests, start = -1, list[str](), block.index * BLOCK_BYTES
    for first, stop in token_blocks(token_bytes, block):
        tokens = np.frombuffer(data, dtype_for(token_bytes, "<"), (stop - first) // token_bytes, first - start)
        hasher = xxhash.xxh3_128()
        for at in range(0, len(tokens), _STEP_TOKENS):
            hasher.update(byte_view(np.ascontiguousarray(tokens[at : at + _STEP_TOKENS], "<u4")))
        highest = max(highest, int(tokens.max(initial=0)))
        digests.append(hasher.hexdigest())
    return highest, tuple(digests)


def token_blocks(token_bytes: int, block: Block) -> Iterator[tuple[int, int]]:
    """Where the blocks of tokens begin and end in the file that begin in a block."""
    if not token_bytes:
        return
    step, head = BLOCK_TOKENS * token_bytes, len(block.head)
    number = max(0, -(-(block.index * BLOCK_BYTES - head) // step))
    while (first := head + number * step) < min(block.size_bytes, (block.index + 1) * BLOCK_BYTES):
        yield first, min(block.size_bytes, first + step)
        number += 1


def read_stretches(stores: Sequence[Store], block: Block, start: int, stop: int) -> Iterator[bytes]:
    """Bytes `[start, stop)` of an output, head and rows, in pieces."""
    yield block.head[start:stop]
    at = block.first_bytes
    for one in block.stretches:
        low, high = max(start, at), min(stop, at + one.size_bytes)
        for first in range(low, high, _READ_BYTES):
            begin = one.start_bytes + first - at
            ranges = [(begin, begin + min(high - first, _READ_BYTES))]
            yield stores[one.store].get_ranges(one.path, ranges)[0]
        at += one.size_bytes

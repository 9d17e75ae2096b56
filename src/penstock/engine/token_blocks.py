"""Outputs of one file that are joined from parts and existing files, without reading them in the committing process.

When all parts exist, their names give the position of every row in the output. A task of the second wave digests one
block of 64 MiB, and the blocks of tokens that begin in it. Its result is the name of an empty file, so one listing
gives all results. The file and its side file are equal to those of a single writer.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock._kinds import JoinedRows, JoinsRows
from penstock._threads import Pool
from penstock.abc import Executor
from penstock.codec.hashes import BLOCK_BYTES, BLOCK_TOKENS, DocumentDigest
from penstock.codec.tokens import dtype_for
from penstock.engine.parts import PartName, made_of, read_part
from penstock.engine.rows import InPlace
from penstock.engine.run import Wave
from penstock.engine.work import Work
from penstock.errors import Corrupt, NotFound
from penstock.formats import get_format
from penstock.formats.tokens.joined import JoinedTokens, JoinsTokens
from penstock.store.base import Store
from penstock.store.compose import can_compose, joining
from penstock.store.place import Place
from penstock.store.put import put_new
from penstock.types import IntArray

_READ_BYTES = 1 << 24
_STEP_TOKENS = 1 << 15  # 128 KiB as uint32: stays in the processor's cache
_MARK = re.compile(r"(\d{8,})-([0-9a-f]{32})-(-1|\d+)((?:-[0-9a-f]{32})*)")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive rows of an output in a file, as its writer stores them. `store`: number of the store."""

    store: int
    path: str
    start_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Block:
    """A block of an output, to be digested.

    Attributes:
        number: number among the blocks of all outputs.
        index: number among those of its output.
        head: header of the output.
        size_bytes: size of its header and rows.
        first_bytes: offset of the first stretch.
        stretches: those of the block, and of the blocks of tokens that begin in it.
    """

    number: int
    index: int
    head: bytes
    size_bytes: int
    first_bytes: int
    stretches: tuple[Stretch, ...]

    @property
    def described(self) -> str:
        return f"the digest of block {self.number} of the output"


@dataclass(frozen=True, slots=True)
class BlockJob:
    """Parameters of all such tasks. `token_bytes`: width of the tokens; 0 for outputs without tokens."""

    stores: tuple[Store, ...]
    marks: Place
    token_bytes: int


@dataclass(frozen=True, slots=True)
class BlockMark:
    """Digest of a block, and of the blocks of tokens that begin in it, with their largest id (-1 without tokens)."""

    number: int
    digest: str
    max_token_id: int
    token_blocks: tuple[str, ...]

    @property
    def name(self) -> str:
        return "-".join([f"{self.number:08d}", self.digest, str(self.max_token_id), *self.token_blocks])


def parse_mark(name: str) -> BlockMark | None:
    found = _MARK.fullmatch(name)
    if found is None:
        return None
    return BlockMark(int(found[1]), found[2], int(found[3]), tuple(found[4].split("-")[1:]))


def digest_block(job: BlockJob, block: Block) -> BlockMark:
    """Digest a block and record it. Memory: 64 MiB, and as much again for tokens of 4 bytes."""
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
    """Return the largest id and the digests of the blocks of tokens that begin in a block with these bytes."""
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
    """Return the ranges in the file of the blocks of tokens that begin in a block."""
    if not token_bytes:
        return
    step, head = BLOCK_TOKENS * token_bytes, len(block.head)
    number = max(0, -(-(block.index * BLOCK_BYTES - head) // step))
    while (first := head + number * step) < min(block.size_bytes, (block.index + 1) * BLOCK_BYTES):
        yield first, min(block.size_bytes, first + step)
        number += 1


def read_stretches(stores: Sequence[Store], block: Block, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes `[start, stop)` of an output, header and rows, in pieces."""
    yield block.head[start:stop]
    at = block.first_bytes
    for one in block.stretches:
        low, high = max(start, at), min(stop, at + one.size_bytes)
        for first in range(low, high, _READ_BYTES):
            begin = one.start_bytes + first - at
            ranges = [(begin, begin + min(high - first, _READ_BYTES))]
            yield stores[one.store].get_ranges(one.path, ranges)[0]
        at += one.size_bytes


_THREADS = 16
_RUN_ROWS = 1 << 16


@dataclass(slots=True)
class Layout:
    """One output: a header, and rows in parts and in files of its store.

    Attributes:
        laid: its rows in order.
        parts: directory of the parts.
        stretches: the rows as ranges of files.
        stores: stores by number: the store of the parts, then those of the sources.
        unit_bytes: bytes per token; 1 for other rows.
        token_bytes: the same; 0 for rows without tokens.
        first_number: number of its first block among those of all outputs.
        head: header.
        ends: int64[n]: end of each stretch in the output.
    """

    laid: Sequence[PartName | InPlace]
    parts: Place
    stretches: Sequence[Stretch]
    stores: tuple[Store, ...]
    unit_bytes: int
    token_bytes: int
    first_number: int
    head: bytes
    ends: IntArray
    _lengths: list[NDArray[Any]] = field(default_factory=list[NDArray[Any]])

    @classmethod
    def of(
        cls,
        laid: Iterable[PartName | InPlace],
        parts: Place,
        unit_bytes: int,
        token_bytes: int,
        first_number: int,
        head_of: Callable[[int], bytes],
    ) -> Layout:
        """Return the layout of rows in this order; `head_of` returns the header for a number of bytes of rows."""
        laid = list(laid)
        stores, stretches = [parts.store], list[Stretch]()
        for one in laid:
            if isinstance(one, PartName):
                stretches.append(Stretch(0, parts.child(one.path).path, 0, one.tokens * unit_bytes))
                continue
            stretches.append(Stretch(len(stores), one.file.path, one.start_bytes, one.size_bytes))
            stores.append(one.file.store)
        head = head_of(sum(one.size_bytes for one in stretches))
        ends = len(head) + np.cumsum([one.size_bytes for one in stretches], dtype=np.int64)
        return cls(laid, parts, stretches, tuple(stores), unit_bytes, token_bytes, first_number, head, ends)

    @property
    def size_bytes(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else len(self.head)

    @property
    def num_blocks(self) -> int:
        """Number of whole blocks."""
        return self.size_bytes // BLOCK_BYTES

    def blocks(self) -> Iterator[Block]:
        return (self._block(index) for index in range(self.num_blocks))

    def joined(self, marks: Mapping[int, BlockMark], digest: Callable[[], str] | None) -> JoinedRows:
        """Return the arguments of the writer. Memory: 4 bytes per row.

        Args:
            marks: records of all blocks.
            digest: returns the document digest, if it is known.
        """
        self._read_lengths()
        known = [made_of(marks, self.first_number + index, self.parts) for index in range(self.num_blocks)]
        last = self._block(self.num_blocks)
        rest = b"".join(read_stretches(self.stores, last, self.num_blocks * BLOCK_BYTES, self.size_bytes))
        highest, digests = digest_tokens(self.token_bytes, last, rest)
        highest = max([highest, *(one.max_token_id for one in known)])
        token_blocks = [*(text for one in known for text in one.token_blocks), *digests]
        text = "" if not self.token_bytes else digest() if digest is not None else self._digest(token_blocks)
        ranges = [(one.path, one.start_bytes, one.size_bytes) for one in self.stretches if one.size_bytes]
        blocks = [one.digest for one in known]
        return JoinedRows(ranges, self._runs, self.size_bytes - len(self.head), text, highest, blocks, lambda: [rest])

    def _digest(self, token_blocks: Sequence[str]) -> str:
        """Return the document digest of version 1."""
        documents = DocumentDigest()
        for one in token_blocks:
            documents.update_block(bytes.fromhex(one))
        for run in self._runs():
            documents.update_lengths(run)
        return documents.hexdigest()

    def _block(self, index: int) -> Block:
        start, stop = index * BLOCK_BYTES, (index + 2) * BLOCK_BYTES
        low = int(np.searchsorted(self.ends, start, side="right"))
        high = int(np.searchsorted(self.ends, stop, side="left")) + 1
        first = len(self.head) if low == 0 else int(self.ends[low - 1])
        chosen = tuple(self.stretches[low:high])
        return Block(self.first_number + index, index, self.head, self.size_bytes, first, chosen)

    def _read_lengths(self) -> None:
        with Pool(1 if self.parts.is_local else _THREADS, "lengths") as pool:
            for runs in pool.map(self._lengths_of, self.laid):
                self._lengths += runs

    def _lengths_of(self, one: PartName | InPlace) -> list[NDArray[Any]]:
        if isinstance(one, PartName):
            found = [read_part(self.parts.child(one.path), self.unit_bytes)[1]]
        else:
            starts = range(0, len(one.rows), _RUN_ROWS)
            found = [one.rows.ranges(slice(at, min(len(one.rows), at + _RUN_ROWS)))[1] for at in starts]
        return [run.astype(np.uint32 if int(run.max(initial=0)) < 1 << 32 else np.int64) for run in found]

    def _runs(self) -> Iterator[IntArray]:
        for run in self._lengths:
            for start in range(0, len(run), _RUN_ROWS):
                yield run[start : start + _RUN_ROWS].astype(np.int64)


def marks_in(folder: Place) -> dict[int, BlockMark]:
    """Return the finished blocks by one listing; raises `Corrupt` if two workers disagree."""
    found: dict[int, BlockMark] = {}
    with contextlib.suppress(NotFound):
        for path in folder.store.list(folder.path):
            mark = parse_mark(path.rpartition("/")[2])
            if mark is not None and found.setdefault(mark.number, mark) != mark:
                hint = "Discard the work and start again (--restart)"
                raise Corrupt(f"two workers disagree on block {mark.number}", path=path, hint=hint)
    return found


class BlockWave(Wave):
    """Second wave of outputs that their store joins: each task digests a block of one.

    Args:
        layouts: the outputs.
        marks: directory of the records of finished blocks.
        later: digests missing blocks in `write`, instead of tasks.
    """

    def __init__(self, layouts: Sequence[Layout], marks: Place, later: Executor | None = None) -> None:
        self.layouts = layouts
        self._marks = marks
        self._later = later
        job = BlockJob(layouts[0].stores, marks, layouts[0].token_bytes)
        self.fn: Callable[[Any], object] = functools.partial(digest_block, job)
        self.tasks = [] if later is not None else self._blocks()

    def _blocks(self) -> list[Block]:
        return [block for layout in self.layouts for block in layout.blocks()]

    def done(self) -> Mapping[int, BlockMark]:
        return marks_in(self._marks)

    def write(self, writer: JoinsRows, output: int = 0, digest: Callable[[], str] | None = None) -> None:
        """Pass all rows of an output to its writer, with the digests of all blocks, and of the documents if known."""
        if self._later is not None:
            done = self.done()
            self.run(self._later, [block for block in self._blocks() if block.number not in done])
        writer.write_joined(self.layouts[output].joined(self.done(), digest))


@dataclass(frozen=True, slots=True)
class OneFile:
    """One token file that its store joins from parts.

    Attributes:
        to: its format.
        output: path, in a store that can join.
        options: options of the writer.
        token_bytes: width of the tokens of the parts.
        work: the work folder.
    """

    to: JoinsTokens
    output: Place
    options: Mapping[str, Any]
    token_bytes: int
    work: Work

    def wave(self, parts: Sequence[PartName], later: Executor | None = None) -> BlockWave:
        """Return the second wave, now that all parts exist; `later` as of `BlockWave`."""
        width = self.token_bytes
        layout = Layout.of(parts, self.work.parts, width, width, 0, lambda rows_bytes: self.head(rows_bytes) or b"")
        return BlockWave([layout], self.work.place.child("files"), later)

    def head(self, rows_bytes: int) -> bytes | None:
        """Return the header before tokens of this size; None if the format doesn't store them as the parts do."""
        tokens = JoinedTokens(list, 0, rows_bytes // self.token_bytes, -1, (), self.token_bytes)
        frame = self.to.join(self.options, tokens, self.output.path)
        return None if frame is None else frame.head


def joined_file(
    to: str, output: Place, options: Mapping[str, Any], token_bytes: int, work: Work, *, overwrite: bool
) -> OneFile | None:
    """Return the file if its store can join it from parts; None if a writer must encode each part."""
    chosen = get_format(to)
    if not isinstance(chosen, JoinsTokens) or not can_compose(output.store):
        return None
    place = Place(joining(output.store, None if overwrite else work.digest), output.path)
    found = OneFile(chosen, place, options, token_bytes, work)
    return None if found.head(0) is None else found

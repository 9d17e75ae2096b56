"""What lies where in an output of shared work, as the names of its parts tell; and all that its writer has to know."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._kinds import JoinedRows
from penstock._pool import Pool
from penstock.abc import Store
from penstock.codec.hashes import BLOCK_BYTES, DocumentDigest
from penstock.engine.parts import PartName, made_of, read_part
from penstock.engine.tokens.blocks import Block, BlockMark, Stretch, digest_tokens, parse_mark, read_stretches
from penstock.errors import Corrupt, NotFound
from penstock.store.place import Place
from penstock.types import IntArray

_THREADS = 16
_RUN_ROWS = 1 << 16


class _Rows(Protocol):
    """Rows that are asked for their lengths."""

    def __len__(self) -> int: ...

    def ranges(self, rows: slice, /) -> tuple[IntArray, IntArray]:
        """int64[k] starts and lengths of some of them."""
        ...


class InPlace(Protocol):
    """Rows that lie in a file of the output's store as its writer would put them there.

    Attributes:
        rows: all of a source.
        file: where they lie.
        start_bytes: where they begin in it.
        size_bytes: of all of them.
    """

    @property
    def rows(self) -> _Rows: ...
    @property
    def file(self) -> Place: ...
    @property
    def start_bytes(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass(slots=True)
class Layout:
    """One output: a head, and rows that lie in parts and in files of its store.

    Attributes:
        laid: where its rows are, in order.
        parts: where parts are.
        stretches: the same as ranges of files.
        stores: by number: that of the parts, and those of the sources.
        unit_bytes: of the units of rows.
        token_bytes: the same, 0 where rows hold no tokens.
        first_number: of its first block among those of all outputs.
        head: what stands before the rows.
        ends: int64[n]: where each of the stretches ends in the output.
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
        """The layout of what is laid out in this order; `head_of` gives the head before rows of so many bytes."""
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
        """Bytes of head and rows."""
        return int(self.ends[-1]) if len(self.ends) else len(self.head)

    @property
    def num_blocks(self) -> int:
        """Whole blocks of head and rows."""
        return self.size_bytes // BLOCK_BYTES

    def blocks(self) -> Iterator[Block]:
        """The whole blocks, in order."""
        return (self._block(index) for index in range(self.num_blocks))

    def joined(self, marks: Mapping[int, BlockMark], digest: Callable[[], str] | None) -> JoinedRows:
        """All that the writer has to know. Memory: 4 bytes a row.

        Args:
            marks: of all blocks.
            digest: gives the document digest, where that is known.
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
        """The document digest of version 1."""
        documents = DocumentDigest()
        for one in token_blocks:
            documents.update_block(bytes.fromhex(one))
        for run in self._runs():
            documents.update_lengths(run)
        return documents.hexdigest()

    def _block(self, index: int) -> Block:
        """A block, with those stretches that it may lie in: it, and what begins in it, ends before the next but one."""
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
        """Lengths of rows, as small as they may be."""
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
    """The blocks that are done, by one listing; raises `Corrupt` where two workers disagree."""
    found: dict[int, BlockMark] = {}
    with contextlib.suppress(NotFound):
        for path in folder.store.list(folder.path):
            mark = parse_mark(path.rpartition("/")[2])
            if mark is not None and found.setdefault(mark.number, mark) != mark:
                hint = "Discard the work and start again (--restart)"
                raise Corrupt(f"two workers disagree on block {mark.number}", path=path, hint=hint)
    return found

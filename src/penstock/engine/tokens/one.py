"""One token file of parts that its own object store joins: no token passes through the process that commits it.

The writer gets what it would have found out itself: workers digest blocks (`blocks.py`), and names and ends of parts
tell the rest (`layout.py`). So the file and its side file are, byte for byte, those of one process that writes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._kinds import JoinsRows
from penstock.abc import Executor
from penstock.engine.parts import PartName
from penstock.engine.run import Wave
from penstock.engine.shared import SharedWork
from penstock.engine.tokens.blocks import BlockJob, BlockMark, digest_block
from penstock.engine.tokens.layout import Layout, marks_in
from penstock.formats import get_format
from penstock.formats.tokens.joined import JoinedTokens, JoinsTokens
from penstock.store.compose import can_compose
from penstock.store.joining import joining
from penstock.store.place import Place


@dataclass(frozen=True, slots=True)
class OneFile:
    """One token file that a store joins of parts.

    Attributes:
        to: its format.
        output: where it goes, in a store that joins.
        options: of its writer.
        token_bytes: width of the tokens of the parts.
        work: where they are.
        pool: digests blocks.
        takes: whether a block is of this run's share.
    """

    to: JoinsTokens
    output: Place
    options: Mapping[str, Any]
    token_bytes: int
    work: SharedWork
    pool: Executor
    takes: Callable[[int], bool]

    def digest(self, parts: Sequence[PartName]) -> None:
        """Digest what is missing of the blocks of this share, when all parts are there."""
        self._digest(self.layout(parts))

    def write(self, writer: JoinsRows, parts: Sequence[PartName]) -> None:
        """Give all parts to the file's writer, with the digests of all blocks; raises as `JoinsRows.write_joined`."""
        layout = self.layout(parts)
        self._digest(layout)
        writer.write_joined(layout.joined(marks_in(self.marks), None))

    @property
    def marks(self) -> Place:
        """Folder of the records of finished blocks."""
        return self.work.place.child("files")

    def _digest(self, layout: Layout) -> None:
        done = marks_in(self.marks)
        missing = (block for block in layout.blocks() if block.number not in done and self.takes(block.number))
        job = BlockJob(layout.stores, self.marks, self.token_bytes)
        for _ in self.pool.map(functools.partial(digest_block, job), missing):
            pass

    def layout(self, parts: Sequence[PartName]) -> Layout:
        """Return where the parts are in the file."""
        width = self.token_bytes
        return Layout.of(parts, self.work.parts, width, width, 0, self._head)

    def _head(self, rows_bytes: int) -> bytes:
        frame = self._frame(rows_bytes // self.token_bytes)
        return b"" if frame is None else frame.head

    def _frame(self, num_tokens: int) -> Any:
        tokens = JoinedTokens(list, 0, num_tokens, -1, (), self.token_bytes)
        return self.to.join(self.options, tokens, self.output.path)

    def fits(self) -> bool:
        """Whether the format stores tokens as the parts have them."""
        return self._frame(0) is not None


def joined_file(
    to: str,
    output: Place,
    options: Mapping[str, Any],
    token_bytes: int,
    work: SharedWork,
    pool: Executor,
    takes: Callable[[int], bool],
    *,
    overwrite: bool,
) -> OneFile | None:
    """The one file that parts are joined to in their store; None where that can't, and a writer takes each part."""
    chosen = get_format(to)
    if not isinstance(chosen, JoinsTokens) or not can_compose(output.store):
        return None
    place = Place(joining(output.store, None if overwrite else work.digest), output.path)
    found = OneFile(chosen, place, options, token_bytes, work, pool, takes)
    return found if found.fits() else None


class BlockWave(Wave):
    """Second wave: each task computes the digests of a block of a joined file."""

    def __init__(self, file: OneFile, parts: Sequence[PartName]) -> None:
        self._layout = file.layout(parts)
        self._marks = file.marks
        self.tasks = list(self._layout.blocks())
        job = BlockJob(self._layout.stores, file.marks, file.token_bytes)
        self.fn: Callable[[Any], object] = functools.partial(digest_block, job)

    def done(self) -> Mapping[int, BlockMark]:
        """Return the finished blocks by number."""
        return marks_in(self._marks)

    def write(self, writer: JoinsRows) -> None:
        """Give all parts to the file's writer, with the digests of all blocks; raises as `JoinsRows.write_joined`."""
        writer.write_joined(self._layout.joined(self.done(), None))

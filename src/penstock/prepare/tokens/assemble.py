"""Parts in input order → the output, and the books of the whole run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock._kinds import TokenParts
from penstock.errors import PrepareError
from penstock.prepare.tokens.engines import Reference
from penstock.prepare.tokens.inputs import InputFile
from penstock.prepare.tokens.oracle import check_probes
from penstock.prepare.tokens.parts import BadLine, PartMeta, read_part
from penstock.prepare.tokens.report import Dropped, PackProgress
from penstock.prepare.tokens.tasks import text_bytes
from penstock.prepare.tokens.tokenize import MOST_DROPPED, Done
from penstock.store.local import LocalStore


@dataclass(slots=True)
class Assembly:
    """Appends parts to a writer, in order.

    Attributes:
        writer: takes the tokens.
        store: where parts are.
        inputs: the files.
        token_bytes: width of the tokens.
        skip: whether bad lines are left out.
        reference: compares what parts remember; None where it encoded them itself.
        progress: told after each part.
        documents: so far; `tokens`, `tasks`, `reused_tasks` and `num_dropped` too.
        dropped: the first lines that were left out.
    """

    writer: TokenParts
    store: LocalStore
    inputs: Sequence[InputFile]
    token_bytes: int
    skip: bool
    reference: Reference | None
    progress: Callable[[PackProgress], None]
    documents: int = 0
    tokens: int = 0
    tasks: int = 0
    reused_tasks: int = 0
    num_dropped: int = 0
    dropped: list[Dropped] = field(default_factory=list[Dropped])
    _file: int = -1
    _lines: int = 0
    _before_bytes: int = 0
    _total_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self._total_bytes = sum(one.size_bytes for one in self.inputs)

    def add(self, done: Done) -> None:
        """Append the next part.

        Raises:
            PrepareError: it has a bad line that is not to be skipped, or the reference disagrees.
        """
        one = self.inputs[done.file]
        while self._file < done.file:
            self._before_bytes += self.inputs[self._file].size_bytes if self._file >= 0 else 0
            self._file, self._lines = self._file + 1, 0
        bad = done.bad or (done.meta.dropped[0] if done.meta is not None and done.meta.dropped else None)
        if bad is not None and not self.skip:
            raise self._bad_line(one, bad)
        if done.meta is None:
            raise PrepareError("a task ended without a part", path=one.path)
        if self.reference is not None:
            check_probes(self.reference, done.meta, one.path)
        _, lengths = read_part(self.store, done.path, self.token_bytes)
        if len(lengths):
            self.writer.write_part(done.path, 0, lengths, done.meta.max_token_id)
            _drop_cache(done.path)
        self._book(one, done.meta, done.reused)

    def _book(self, one: InputFile, meta: PartMeta, reused: bool) -> None:
        room = MOST_DROPPED - len(self.dropped)
        self.dropped += [Dropped(one.name, self._lines + bad.line + 1, bad.reason) for bad in meta.dropped[:room]]
        self.num_dropped += meta.num_dropped
        self.documents += meta.documents
        self.tokens += meta.tokens
        self.tasks += 1
        self.reused_tasks += reused
        self._lines += meta.lines
        done_bytes = meta.stop_bytes * one.size_bytes // max(1, text_bytes(one.path, one.size_bytes))
        here_bytes = one.size_bytes if meta.last else min(one.size_bytes, done_bytes)
        self.progress(PackProgress(self.documents, self.tokens, self._before_bytes + here_bytes, self._total_bytes))

    def _bad_line(self, one: InputFile, bad: BadLine) -> PrepareError:
        unit = "row" if one.kind == "parquet" else "line"
        what = bad.reason if one.kind == "whole" else f"{unit} {self._lines + bad.line + 1}: {bad.reason}"
        return PrepareError(
            what,
            path=one.path,
            offset_bytes=bad.offset_bytes if one.compression == "none" and one.kind == "lines" else None,
            hint="Mend it, or leave such lines out and have them listed: on_error='skip' (--on-error skip)",
        )


def _drop_cache(path: str) -> None:
    """Tell the system that a part, durable and read, need not stay in memory."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)

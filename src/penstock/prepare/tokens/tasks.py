"""The cut: which piece of which input is a task. It decides what a restart finds finished, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.prepare.tokens.decompress import cut_stream
from penstock.prepare.tokens.inputs import InputFile
from penstock.prepare.tokens.parquet import row_groups
from penstock.prepare.tokens.tokenize import Task
from penstock.work.pack import Journal, Plan
from penstock.work.parts import part_name, read_part

_LEAST_BYTES = 1 << 23
_MOST_BYTES = 1 << 26
_WANTED = 64
_ALL = 1 << 62
_EXPANSION = 4  # of compressed text, roughly


def default_task_bytes(total_bytes: int) -> int:
    """Enough tasks to spread well and to lose little by a kill, none too small for what each costs."""
    return min(max(total_bytes // _WANTED, _LEAST_BYTES), _MOST_BYTES)


def text_bytes(path: str, size_bytes: int) -> int:
    """Roughly how much text a file holds."""
    return size_bytes * (_EXPANSION if path.endswith((".gz", ".zst")) else 1)


def cut_tasks(journal: Journal, inputs: Sequence[InputFile], task_bytes: int, token_bytes: int) -> Iterator[Task]:
    """All tasks in input order, finished ones too. Compressed files are decompressed as their tasks are asked for.

    Args:
        journal: knows what is finished.
        inputs: the files.
        task_bytes: size of a piece.
        token_bytes: width of the tokens in parts.
    """
    for file, one in enumerate(inputs):
        trusted = _is_trusted(journal.plan, one, file)
        if one.kind == "parquet":
            groups = row_groups(one.path)
            for piece, (start_bytes, stop_bytes) in enumerate(groups):
                last = piece == len(groups) - 1
                yield Task(
                    file, piece, one.path, start_bytes, stop_bytes, one.size_bytes, None, last, trusted, "parquet"
                )
        elif one.kind == "whole" and one.compression == "none":
            yield from _ranges(file, one, max(1, one.size_bytes), trusted)
        elif one.compression == "none":
            yield from _ranges(file, one, task_bytes, trusted)
        else:
            finished = _finished_pieces(journal, file, token_bytes) if trusted else 0
            yield from _pieces(journal, file, one, _ALL if one.kind == "whole" else task_bytes, trusted, finished)


def _is_trusted(before: Plan | None, one: InputFile, file: int) -> bool:
    """Whether the finished parts of an input need no further look: its digest, or its time of change, says so."""
    if before is None:
        return True
    return one.digested_whole or before.inputs[file].mtime_ns == one.mtime_ns


def _ranges(file: int, one: InputFile, task_bytes: int, trusted: bool) -> Iterator[Task]:
    for piece, start_bytes in enumerate(range(0, one.size_bytes, task_bytes)):
        stop_bytes = min(start_bytes + task_bytes, one.size_bytes)
        last = stop_bytes == one.size_bytes
        yield Task(file, piece, one.path, start_bytes, stop_bytes, one.size_bytes, None, last, trusted, one.kind)


def _pieces(
    journal: Journal, file: int, one: InputFile, task_bytes: int, trusted: bool, finished: int
) -> Iterator[Task]:
    if finished:
        # All of the file is done: nothing needs to be decompressed.
        yield from (Task(file, piece, one.path, 0, 0, 0) for piece in range(finished))
        return
    cut = cut_stream(journal.folder.store, one.path, one.compression, task_bytes)
    for piece, (start_bytes, data, last) in enumerate(cut):
        stop_bytes = start_bytes + len(data)
        lines: bytes | None = data
        if trusted and (file, piece) in journal.parts:
            lines = b""
        yield Task(file, piece, one.path, start_bytes, stop_bytes, stop_bytes, lines, last, trusted, one.kind)


def _finished_pieces(journal: Journal, file: int, token_bytes: int) -> int:
    """How many pieces a compressed file has, where all of them are finished; else 0."""
    piece = 0
    while (file, piece) in journal.parts:
        meta, _ = read_part(journal.folder.file(part_name(file, piece)), token_bytes)
        piece += 1
        if meta.last:
            return piece
    return 0

"""`shuffle`: documents or lines in a random order that a seed decides."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock._secrets import redact
from penstock.abc import Store, Writer
from penstock.errors import ConfigError
from penstock.executors import AnyExecutor
from penstock.reshape.cost import Announce, cost_of_rows
from penstock.reshape.pieces import Range, Workers, pieces_for, ranges_of
from penstock.reshape.reorder import Bucketed, Gathered, RowOrder, SeededOrder, Window, passes_of, reordered
from penstock.reshape.rewrite import Counter, Output, Progress, Written, append_made, write_output, write_rows
from penstock.reshape.rows import AnyRows, Rows, RowsAt, is_tars, open_rows, rows_at
from penstock.store.place import Given, place_of

_LEAST_MEMORY_BYTES = 1 << 20


def shuffle(
    source: Given,
    target: Given,
    *,
    seed: int,
    to: str | None = None,
    format: str | None = None,
    token_bytes: int | None = None,
    memory_bytes: int | None = None,
    overwrite: bool = False,
    store: Store | None = None,
    progress: Progress | None = None,
    executor: AnyExecutor | None = None,
    workers: int | None = None,
    announce: Announce | None = None,
    **options: Any,
) -> Written:
    """Write the documents, or the lines, of a dataset in another order.

    The order is the first epoch of `penstock.Shuffle` with the same seed, so it needs no table, and the bytes depend on
    source and seed alone. Data larger than memory go through a scratch file beside the target, which has no name and is
    as large as the data. Memory: `memory_bytes`, 100 MB, and 12 bytes a document; or a few times the longest one.

    Args:
        source: dataset of documents, or a JSONL file.
        target: dataset to make.
        seed: any integer.
        to, format: of the target, by default that of its suffix or the source; and of the source, by default found.
        token_bytes: width of the ids, where it is to be wider than that of the source.
        memory_bytes: for the rows held at once, by default 48 to 112 MB; more is faster for data larger than memory. No
            influence on the output.
        overwrite: replace the target.
        store: where all files are.
        progress: called after each run.
        executor, workers: who reads, as of `penstock.pack`; this process where both are None. They change no byte.
        announce: told what will be read, once the output is taken and before anything is written.
        options: what `penstock.open` takes for the source; see `penstock.reshape.tars.merge_tars` for tars, of which
            each split is shuffled for itself.

    Raises:
        ConfigError: the output exists, or an option can't be.
        FormatError: the source is damaged.
    """
    if memory_bytes is not None and memory_bytes < _LEAST_MEMORY_BYTES:
        raise ConfigError(
            "too little memory to shuffle in", found=memory_bytes, expected=f"{_LEAST_MEMORY_BYTES} or more"
        )
    dataset, place = place_of(source, store), place_of(target, store).bare()
    if is_tars(dataset, format):
        from penstock.reshape.tars import merge_tars  # slow

        hands = Workers(executor, workers)
        options |= {"overwrite": overwrite, "progress": progress, "announce": announce}
        return merge_tars([dataset], place, hands, to=to, seed=seed, **options)[0]
    rows = open_rows(dataset, format=format, **options)
    output = Output(place, to, overwrite, token_bytes)
    order = SeededOrder(len(rows), seed) if len(rows) else None
    hands = Hands(Workers(executor, workers), rows_at(rows, options), token_bytes or rows.dtype.itemsize, announce)
    made_by = {"command": "shuffle", "seed": seed}
    return write_in_order(rows, order, [rows], output, made_by, memory_bytes, progress, hands)


@dataclass(frozen=True, slots=True)
class Hands:
    """Who reads rows, what these are called, the width that they are written in, and who is told what it costs."""

    workers: Workers
    rows_at: RowsAt
    unit_bytes: int
    announce: Announce | None = None


def write_in_order(
    rows: Rows,
    order: RowOrder | None,
    sources: Sequence[AnyRows],
    output: Output,
    made_by: dict[str, Any],
    memory_bytes: int | None = None,
    progress: Progress | None = None,
    hands: Hands | None = None,
) -> Written:
    """Write all rows in an order.

    Args:
        rows: what is to be written, of `sources`.
        order: of as many rows; None where there is none.
        sources: what the rows come from.
        output: what is to be made.
        made_by: command and options, for the side file.
        memory_bytes: for the rows held at once.
        progress: called after each run.
        hands: who reads the rows; None: this process.
    """
    counter = Counter(len(rows), progress)
    passes = None if order is None else passes_of(rows, order, memory_bytes)

    def fill(writer: Writer) -> None:
        if order is None or passes is None:
            return
        if hands is not None and hands.announce is not None:
            hands.announce(cost_of_rows(rows, passes, is_remote=not rows.place.is_local))
        dealt = None
        with contextlib.ExitStack() as stack:
            if hands is not None and not hands.workers.are_alone:
                pieces = stack.enter_context(pieces_for(hands.workers, output.place))
                if passes.gathers:
                    tasks = (Range(0, one.first, one.stop, _described(rows, one)) for one in passes.windows)
                    made = pieces.made([hands.rows_at], Gathered(order), tasks, hands.unit_bytes)
                    append_made(made, writer, sources, counter)
                    return
                deal = Bucketed.of(order, passes)
                made = pieces.made([hands.rows_at], deal, ranges_of(0, rows), rows.dtype.itemsize)
                dealt = ((one.group, one.data) for _, segments in made for one in segments)
            for data, lengths in reordered(rows, order, output=output.place, passes=passes, dealt=dealt):
                write_rows(writer, sources[0], data, lengths, rows.place)
                counter.add(len(lengths))

    return Written.of(output.place, write_output(output, sources, made_by, fill, len(rows)))


def _described(rows: Rows, window: Window) -> str:
    return f"{redact(rows.place.path)}, places {window.first} to {window.stop} of the output"

"""`shuffle`: documents or lines in a random order that a seed decides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack, cast

from penstock._keywords import Reshaping
from penstock._secrets import redact
from penstock.abc import Store, Writer
from penstock.engine.sharing import Sharing
from penstock.errors import ConfigError, Unsupported
from penstock.executors import AnyExecutor
from penstock.formats.tables.lines import TableLines
from penstock.reshape.cost import Announce, cost_of_places, cost_of_rows
from penstock.reshape.origins import refuse_along, rows_in_order, something_goes_along
from penstock.reshape.pieces import PIECE_BYTES, Copied, Range, Workers, hands_for, pieces_for, ranges_of
from penstock.reshape.reorder import (
    Bucketed,
    Gathered,
    Passes,
    Picked,
    RowOrder,
    SeededOrder,
    Window,
    passes_of,
    reordered,
    windows_of,
)
from penstock.reshape.rewrite import (
    Counter,
    Output,
    Progress,
    Written,
    append_made,
    excluded_in,
    write_output,
    write_rows,
)
from penstock.reshape.rows import AnyRows, Rows, RowsAt, is_tars, open_rows, rows_at, runs
from penstock.reshape.share_rows import RowWork
from penstock.reshape.shares import How, is_shared, share
from penstock.reshape.tally import Tally
from penstock.store._keeping import keeping_nothing
from penstock.store.place import Data, Given, place_of
from penstock.types import IntArray

_LEAST_MEMORY_BYTES = 1 << 20


def shuffle(
    source: Data,
    target: Given,
    *,
    seed: int = 0,
    to: str | None = None,
    format: str | None = None,
    token_bytes: int | None = None,
    memory_bytes: int | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    keep_map: bool = False,
    keep_excluded: bool = False,
    store: Store | None = None,
    progress: Progress | None = None,
    executor: AnyExecutor | None = None,
    workers: int | None = None,
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    restart: bool = False,
    announce: Announce | None = None,
    **options: Unpack[Reshaping],
) -> Written:
    """Write the documents, lines or samples of a dataset in a random order.

    The order is the first epoch of `penstock.Shuffle` with the same seed. The bytes written depend only on the source
    and the seed. Data larger than memory goes through an unnamed scratch file next to the target, as large as the data.
    Memory: `memory_bytes`, 100 MB, and 12 bytes per document; or a few times the longest document.

    Args:
        source: token dataset, JSONL file, or shards.
        target: path of the dataset to write.
        seed: any integer.
        to, format: formats of the target and the source. By default that of the target's suffix or of the source; the
            source's format is detected.
        token_bytes: bytes per token id, if wider than in the source.
        memory_bytes: memory for rows, by default 48 to 112 MB. More is faster for data larger than memory. Doesn't
            affect the output.
        overwrite: replace an existing target.
        dry_run: check everything and count what would be written, without writing.
        keep_map: write a row map next to the target, 8 bytes per row.
        keep_excluded: also copy excluded samples, with their entries: they are excluded in the target.
        store: store of all files.
        progress: called after each batch of rows.
        executor, workers: how to run the work, as in `penstock.pack`. By default this process. Doesn't affect the
            output.
        part, finish, no_work, restart: distributed job, as in `penstock.pack`. A part is a range of the output's rows.
        announce: called with the planned reads once the output is claimed, before anything is written.
        options: options of `penstock.open` for the source. For tars see `penstock.reshape.tars.merge_tars`; each split
            of tars is shuffled separately.

    Returns:
        A report on the dataset written.

    Raises:
        ConfigError: the output exists, or an option is invalid.
        FormatError: the source is damaged.

    Examples:
        >>> import penstock as ps
        >>> written = ps.shuffle("docs.jsonl", "shuffled.jsonl", seed=0)
        >>> sorted(sample["id"] for sample in ps.open("shuffled.jsonl"))
        ['a1', 'a2', 'a3', 'a4', 'a5', 'a6']
    """
    cast(dict[str, Any], options)["keep_excluded"] = keep_excluded
    if memory_bytes is not None and memory_bytes < _LEAST_MEMORY_BYTES:
        least = f"{_LEAST_MEMORY_BYTES} or more"
        raise ConfigError("too little memory for a shuffle", found=memory_bytes, expected=least)
    dataset, place = place_of(source, store), place_of(target, store).bare()
    by, sharing = hands_for(executor, workers, dry_run=dry_run), Sharing(part, finish, no_work, restart)
    shares = is_shared(sharing, by, dry_run=dry_run)
    of_tars = is_tars(dataset, format, options.get("layout"))
    if shares or of_tars:
        refuse_along(
            cast(dict[str, Any], options),
            keep_map,
            "tars and distributed outputs are written whole",
            by_shares=not of_tars,
        )
    if of_tars:
        from penstock.reshape.tars import merge_tars  # slow

        given: dict[str, Any] = {"overwrite": overwrite, "announce": announce, "to": to, "seed": seed}
        given |= {"token_bytes": token_bytes, "memory_bytes": memory_bytes, "dry_run": dry_run}
        return merge_tars([dataset], place, How(sharing, by, Counter(0, progress)), **given, **options)[0]
    with keeping_nothing(dry_run):
        rows = open_rows(dataset, format=format, **options)
    output = Output(place, to, overwrite, token_bytes, dry_run=dry_run, keep_map=keep_map)
    order = SeededOrder(len(rows), seed) if len(rows) else None
    made_by = {"command": "shuffle", "seed": seed}
    if shares and memory_bytes is not None:
        what, hint = "a part of a distributed shuffle uses a fixed 64 MiB of rows", "Omit memory_bytes (--memory-mb)"
        raise ConfigError(what, found=f"{memory_bytes} bytes", hint=hint)
    goes_along = memory_bytes is not None or something_goes_along([rows], keep_map=keep_map)
    alone = Workers(executor, workers).are_alone
    by_parts = (shares or not (alone or goes_along)) and _is_picked(rows, order, shares=shares)
    told = None if announce is None else partial(_tell, announce, rows, by_parts)
    hands = Hands(by, rows_at(rows, options), token_bytes or rows.dtype.itemsize, told)
    if by_parts and not dry_run:
        return share(_asked(rows, order, output, made_by, hands, sharing, Counter(len(rows), progress)))[0]
    return write_in_order(rows, order, [rows], output, made_by, memory_bytes, progress, hands)


def _is_picked(rows: AnyRows, order: RowOrder | None, *, shares: bool) -> bool:
    """Whether rows are read where they lie: so shares are, and one run where nothing else would read less.

    Raises:
        Unsupported: shares of rows that can't be read so.
    """
    can = rows.can_view() or rows.can_pick()
    if shares and not can:
        path, is_table = rows.place.path, isinstance(rows.place.store, TableLines)
        stem = rows.place.name.rpartition(".")[0] or rows.place.name
        to = f"`penstock convert {path} {stem}.jsonl`" if is_table else "to pbin, or to shards without compression"
        what = "a distributed shuffle needs random access to rows, which this format doesn't support"
        raise Unsupported(what, path=path, hint=f"Convert them first: {to}, or omit --part and --finish")
    return can and (shares or order is None or passes_of(rows, order, None).gathers)


def _asked(
    rows: AnyRows,
    order: RowOrder | None,
    output: Output,
    made_by: dict[str, Any],
    hands: Hands,
    sharing: Sharing,
    counter: Counter,
) -> RowWork:
    """The same by parts: a task is a range of the output, cut by bytes alone, so that it is one everywhere."""
    laid = [] if order is None else [_range(rows, one) for one in windows_of(rows, order, PIECE_BYTES)]
    making = Copied() if order is None else Picked(order)
    told = None if hands.announce is None else partial(hands.announce, None)
    how = How(sharing, hands.workers, counter, told)
    places = [partial(_places, order, len(rows))]
    return RowWork(output.place, [output], [rows], [hands.rows_at], made_by, making, laid, how, rows=places)


def _places(order: RowOrder | None, count: int) -> Iterator[IntArray]:
    return iter(()) if order is None else rows_in_order(order.rows_at, count)


def _tell(announce: Announce, rows: AnyRows, by_parts: bool, passes: Passes | None) -> None:
    """What reading costs, where each row is read at its place, or in passes."""
    is_remote = not rows.place.is_local
    if by_parts or passes is None:
        announce(cost_of_places(rows, is_remote=is_remote))
    else:
        announce(cost_of_rows(rows, passes, is_remote=is_remote))


@dataclass(frozen=True, slots=True)
class Hands:
    """Who reads rows, what these are called, the width that they are written in, and who is told what it costs."""

    workers: Workers
    rows_at: RowsAt
    unit_bytes: int
    announce: Callable[[Passes | None], None] | None = None


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
            hands.announce(passes)
        if isinstance(writer, Tally):  # the order changes no count
            for first, stop in runs(rows):
                writer.take(rows.ranges(slice(first, stop))[1])
                counter.add(stop - first)
            return
        dealt = None
        with contextlib.ExitStack() as stack:
            if hands is not None and not hands.workers.are_alone:
                pieces = stack.enter_context(pieces_for(hands.workers, output.place))
                if passes.gathers:
                    tasks = (_range(rows, one) for one in passes.windows)
                    made = pieces.made([hands.rows_at], Gathered(order), tasks, hands.unit_bytes)
                    append_made(made, writer, sources, counter)
                    return
                deal = Bucketed.of(order, passes)
                made = pieces.made([hands.rows_at], deal, ranges_of(0, rows), rows.dtype.itemsize)
                dealt = ((one.group, one.data) for _, segments in made for one in segments)
            for data, lengths in reordered(rows, order, output=output.place, passes=passes, dealt=dealt):
                write_rows(writer, sources[0], data, lengths, rows.place)
                counter.add(len(lengths))

    places = partial(_places, order, len(rows))
    manifest = write_output(output, sources, made_by, fill, len(rows), places)
    return Written.of(output.place, manifest, excluded_in(sources))


def _range(rows: Rows, window: Window) -> Range:
    described = f"{redact(rows.place.path)}, places {window.first} to {window.stop} of the output"
    return Range(0, window.first, window.stop, described)

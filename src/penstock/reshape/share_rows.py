"""What the verbs do on rows as shared work: documents, lines, and samples of shards.

A task is a range of rows; where rows lie in a file of the output's own store as its writer stores them, they need none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock._kinds import ExpectsDigest, JoinsRows, TokenParts
from penstock.abc import Writer
from penstock.codec.tokens import dtype_for
from penstock.engine.groups import is_free_place, require_no_object
from penstock.engine.parts import PartName, made_of, read_part, require_intact
from penstock.engine.plan import Plan, PlannedInput
from penstock.engine.shared import SharedWork
from penstock.engine.tokens.blocks import BlockJob, BlockMark, digest_block
from penstock.engine.tokens.layout import Layout, marks_in
from penstock.errors import Unsupported
from penstock.formats import files_at, get_format, owned_by
from penstock.formats._last_files import last_file
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.formats.tokens.joined import JoinedTokens, JoinsTokens
from penstock.reshape.in_place import InPlace
from penstock.reshape.origins import Along, Rows
from penstock.reshape.pieces import PIECE_BYTES, Job, Make, Range
from penstock.reshape.planes import planes_in, require_place_of_planes
from penstock.reshape.rewrite import (
    Output,
    Written,
    along_with,
    append_rows,
    excluded_in,
    format_for,
    lineage,
    once_of,
    open_writer,
    write_rows,
    writer_options,
)
from penstock.reshape.rows import AnyRows, RowsAt, TokenRows, total_units
from penstock.reshape.samples import SampleRows
from penstock.reshape.share_shards import (
    ShardJob,
    ShardPlan,
    bare,
    commit_shards,
    groups_there,
    plan_shards,
    write_shards,
)
from penstock.reshape.share_tasks import PartJob, make_parts
from penstock.reshape.shares import How, Wave
from penstock.store.joining import joining
from penstock.store.local import output_exists
from penstock.store.object_folder import not_replaceable
from penstock.store.place import Place, distinct_names
from penstock.store.unfinished import Once
from penstock.types import Manifest


@dataclass(frozen=True, slots=True)
class RowWork:
    """A verb on rows; see `penstock.reshape.shares.Asked`.

    Attributes:
        beside: what the work is for: the output, or where split puts its parts.
        outputs: what is made.
        sources: what is read, and `at` what workers open.
        made_by: verb and options, for the side files.
        make: what is done with a range.
        laid: all rows of the sources in the order of the output: ranges for workers, and files that need none.
        how: how it is asked for.
        digest: gives the document digest, where it is known without a look at tokens.
        rows: of each output which of all sources' rows it has, in order: with them planes go along.
    """

    beside: Place
    outputs: Sequence[Output]
    sources: Sequence[AnyRows]
    at: Sequence[RowsAt]
    made_by: Mapping[str, Any]
    make: Make
    laid: Sequence[Range | InPlace]
    how: How
    digest: Callable[[], str] | None = None
    rows: Sequence[Rows] = ()

    @property
    def tasks(self) -> list[Range]:
        """What workers do."""
        return [one for one in self.laid if isinstance(one, Range)]

    @property
    def reads(self) -> list[Place]:
        """What workers open."""
        return [rows.place for rows in self.sources]

    @property
    def excluded(self) -> int:
        """Samples that exclude lists leave out."""
        return excluded_in(self.sources)

    @property
    def unit_bytes(self) -> int:
        """Width of the tokens of the outputs; 1 for bytes."""
        return self.outputs[0].token_bytes or self.sources[0].dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """The same; 0 for outputs that hold no tokens."""
        return self.unit_bytes if isinstance(self.sources[0], TokenRows) else 0

    @property
    def holds_samples(self) -> bool:
        """Whether the outputs are folders of shards."""
        return isinstance(self.sources[0], SampleRows)

    def plan(self) -> Plan:
        """See `Asked`."""
        for output in self.outputs:
            writer_options(output, self.sources, self.made_by)  # what one process refuses
            if planes := planes_in(self.sources):
                require_place_of_planes(output.place, format_for(output, self.sources), planes)
        options = planned_options(self.outputs, self.sources, self.made_by)
        options["--token-bytes"] = self.unit_bytes
        return Plan(options, planned_inputs(self.sources), PIECE_BYTES, "")

    def once(self, output: Output) -> Once[Manifest]:
        """See `Asked`."""
        return once_of(output, self.sources, self.made_by)

    def published(self, output: Output) -> Manifest | None:
        """See `Asked`."""
        return published(output, self.sources, self.made_by, self.once(output))

    def commit(self, group: int, once: Once[Manifest], commit: Callable[[], Manifest]) -> Manifest:
        """Make an output visible, with its planes: they are read from the sources by who commits."""
        along = self._along(group)
        return along.commit(once, commit) if along.has_planes else once.commit(commit)

    def settle(self, group: int, made: Manifest) -> None:
        """See `Asked`."""
        along = self._along(group)
        if along.has_planes:
            along.stands()
            along.settled(made)

    def _along(self, group: int) -> Along:
        rows = self.rows[group] if self.rows else None
        return along_with(self.outputs[group], self.sources, self.made_by, rows)

    def require_free(self, output: Output) -> None:
        """See `Asked`."""
        place, to = output.place, format_for(output, self.sources)
        if self.holds_samples:
            require_free_folder(place)
            return
        last = files_at(to, place.path)[-1]
        if place.is_local and place.exists():
            standing = place.path
        elif not place.is_local and owned_by(to, place.store) is not None:
            # Other files of a folder come before the last one.
            standing = last_file(to, place.store, place.path)
        else:
            standing = last if place.store.exists(last) else None
        if standing is not None:
            raise output_exists(place.path, standing)

    def require_beginning(self, *, left: bool) -> None:
        """See `Asked`."""
        to = format_for(self.outputs[0], self.sources)
        for place in (output.place for output in self.outputs):
            if self.holds_samples:
                require_no_object(place, left=left)
            elif not place.is_local and last_file(to, place.store, place.path) is not None:
                raise not_replaceable(place.path)

    def sent(self, number: int, task: Range) -> tuple[int, Range]:
        """See `Asked`."""
        return number, task

    def part_fn(self, work: SharedWork) -> Callable[[tuple[int, Range]], object]:
        """See `Asked`."""
        job = PartJob(Job(tuple(self.at), self.make, self.unit_bytes), len(self.outputs), work.parts)
        return functools.partial(make_parts, job)

    def wave(self, work: SharedWork) -> Wave:
        """See `Asked`."""
        if self.holds_samples:
            return _Shards(self, work)
        frames = [head_of(self, output, 0) for output in self.outputs]
        return _Blocks(self, work) if None not in frames else _Appended(self, work)

    def told(self, work: SharedWork, group: int, names: Sequence[PartName]) -> Written:
        """See `Asked`."""
        output = self.outputs[group]
        units, rows = sum(name.tokens for name in names), sum(name.documents for name in names)
        tokens, size_bytes = (units if self.token_bytes else None), units * self.unit_bytes
        return Written(output.place.path, format_for(output, self.sources), rows, tokens, size_bytes)


# --- the same for rows and for whole shards --------------------------------------------------------------------------


def require_free_folder(place: Place) -> None:
    """That no dataset of shards is there; raises `ConfigError`."""
    if not is_free_place(place):
        raise output_exists(place.path, place.child(INDEX_NAME).path)


def planned_options(
    outputs: Sequence[Output], sources: Sequence[AnyRows], made_by: Mapping[str, Any]
) -> dict[str, Any]:
    """What of a plan the outputs and options are."""
    options = {f"--{name}": value for name, value in made_by.items()}
    options["--to"] = format_for(outputs[0], sources)
    options["--overwrite"] = outputs[0].overwrite
    options["outputs"] = [output.place.name for output in outputs]
    return options | {f"--{name}": value for name, value in outputs[0].what.items() if f"--{name}" not in options}


def planned_inputs(sources: Sequence[AnyRows]) -> tuple[PlannedInput, ...]:
    """What of a plan the sources are, without what their exclude lists take out."""
    names = distinct_names([rows.place for rows in sources])
    if len(set(names)) < len(names):  # a source may be given twice
        names = [f"{number}: {name}" for number, name in enumerate(names)]
    return tuple(map(_planned, names, sources))


def _planned(name: str, rows: AnyRows) -> PlannedInput:
    known = str(rows.source.fingerprint) if rows.source is not None else ""
    left_out = f", without what {rows.taken_out.listed.digest} excludes" if len(rows.taken_out) else ""
    return PlannedInput(name, total_units(rows) * rows.dtype.itemsize, known + left_out)


def published(
    output: Output, sources: Sequence[AnyRows], made_by: Mapping[str, Any], once: Once[Manifest]
) -> Manifest | None:
    """The side file of an output that is there, and is what was asked for."""
    known, told = once.published(None), lineage(sources, made_by)
    if known is None or dict(known.inputs) != told["inputs"]:
        return None
    # `once` passes over what is not recorded: one source is not, nor that nothing is excluded.
    fits = all(known.options.get(name) == told["options"].get(name) for name in ("excluded", "sources"))
    return known if fits else None


# --- second waves ----------------------------------------------------------------------------------------------------


def _laid(asked: RowWork, listed: Mapping[int, Sequence[PartName]], group: int) -> Iterator[PartName | InPlace]:
    """What an output holds, in order."""
    task = 0
    for one in asked.laid:
        if isinstance(one, InPlace):
            yield one
        else:
            yield made_of(listed, task, asked.beside)[group]
            task += 1


def head_of(asked: RowWork, output: Output, rows_bytes: int) -> bytes | None:
    """What stands before rows of so many bytes; None where they don't become the file as they are."""
    if not asked.token_bytes:
        return b""
    to = get_format(format_for(output, asked.sources))
    if not isinstance(to, JoinsTokens):
        return None
    rows = JoinedTokens(list, 0, rows_bytes // asked.token_bytes, -1, (), asked.token_bytes)
    frame = to.join(writer_options(output, asked.sources, asked.made_by), rows, output.place.path)
    return None if frame is None else frame.head


class _Blocks:
    """Outputs of one file, whose blocks are digested; see `work.tokens.layout`."""

    def __init__(self, asked: RowWork, work: SharedWork) -> None:
        self._asked = asked
        self._work = work.digest
        self._marks = work.place.child("files")
        self._parts = work.parts
        self._layouts: list[Layout] = []
        self.tasks: list[Any] = []
        listed = work.listed()
        for group, output in enumerate(asked.outputs):
            laid, head = _laid(asked, listed, group), functools.partial(_head, asked, output)
            first = len(self.tasks)
            layout = Layout.of(laid, work.parts, asked.unit_bytes, asked.token_bytes, first, head)
            self._layouts.append(layout)
            self.tasks += layout.blocks()
        job = BlockJob(self._layouts[0].stores, self._marks, asked.token_bytes)
        self.fn: Callable[[Any], object] = functools.partial(digest_block, job)

    def done(self) -> Mapping[int, BlockMark]:
        """What is done, by number."""
        return marks_in(self._marks)

    def commit(self, group: int, once: Once[Manifest]) -> Manifest:
        """Make an output visible, by its writer, which gets all that is known."""
        asked, output = self._asked, self._asked.outputs[group]
        _prove_in_place(asked)
        for one in self._layouts[group].laid:
            if isinstance(one, PartName):
                require_intact(self._parts, one)
        store = joining(output.place.store, None if output.overwrite else self._work)
        joined = replace(output, place=Place(store, output.place.path))
        rows = self._layouts[group].joined(self.done(), asked.digest)
        with open_writer(joined, asked.sources, asked.made_by) as writer:
            if not isinstance(writer, JoinsRows):
                raise Unsupported("this format can't be written in parts", path=output.place.path)
            writer.write_joined(rows)
            return asked.commit(group, once, writer.commit)


class _Appended:
    """Outputs whose writer changes what it is given: it takes all parts, in the end."""

    def __init__(self, asked: RowWork, work: SharedWork) -> None:
        self._asked = asked
        self._work = work
        self.tasks: list[Any] = []
        self.fn: Callable[[Any], object] = id

    def done(self) -> Mapping[int, object]:
        """Nothing is to be done."""
        return {}

    def commit(self, group: int, once: Once[Manifest]) -> Manifest:
        """Make an output visible."""
        asked = self._asked
        laid = _laid(asked, self._work.listed(), group)
        with open_writer(asked.outputs[group], asked.sources, asked.made_by) as writer:
            if asked.digest is not None and isinstance(writer, ExpectsDigest):
                writer.expect_digest(asked.digest)
            for one in laid:
                if isinstance(one, InPlace):
                    append_rows(writer, one.rows, 0, len(one.rows), asked.unit_bytes, lambda _: None)
                else:
                    require_intact(self._work.parts, one)
                    self._append(writer, self._work.parts.child(one.path))
            return asked.commit(group, once, writer.commit)

    def _append(self, writer: Writer, part: Place) -> None:
        width = self._asked.unit_bytes
        meta, lengths = read_part(part, width)
        if part.is_local and isinstance(writer, TokenParts):
            writer.write_part(part.path, 0, lengths, None)
            return
        (data,) = part.store.get_ranges(part.path, [(0, meta.tokens * width)])
        write_rows(writer, self._asked.sources[0], np.frombuffer(data, dtype_for(width, "<")), lengths)


class _Shards:
    """Outputs of shards, which are written side by side; see `share_shards`."""

    def __init__(self, asked: RowWork, work: SharedWork) -> None:
        self._asked = asked
        outputs = tuple(bare(output.place) for output in asked.outputs)
        options = tuple(writer_options(output, asked.sources, asked.made_by) for output in asked.outputs)
        self._job = ShardJob(format_for(asked.outputs[0], asked.sources), outputs, options, work.place)
        self._plans: list[ShardPlan] = []
        self.tasks: list[Any] = []
        listed = work.listed()
        for group in range(len(outputs)):
            parts = [one for one in _laid(asked, listed, group) if isinstance(one, PartName)]
            self._plans.append(plan_shards(self._job, group, parts, len(self.tasks)))
            self.tasks += self._plans[-1].runs
        self.fn: Callable[[Any], object] = functools.partial(write_shards, self._job)

    def done(self) -> Mapping[int, PartName]:
        """What is done, by number."""
        return groups_there(self._job.marks)

    def commit(self, group: int, once: Once[Manifest]) -> Manifest:
        """Make an output visible."""
        output, done = self._asked.outputs[group], self.done()
        told = (self._job, group, self._plans[group], done, output.place)
        return once.commit(functools.partial(commit_shards, *told, overwrite=output.overwrite))


def _prove_in_place(asked: RowWork) -> None:
    """Rows that no worker reads are held against their side files by who commits."""
    for one in asked.laid:
        if isinstance(one, InPlace):
            one.rows.prove(0, len(one.rows))


def _head(asked: RowWork, output: Output, rows_bytes: int) -> bytes:
    return head_of(asked, output, rows_bytes) or b""

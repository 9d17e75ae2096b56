"""Jobs that make datasets of rows: documents of tokens, lines, or samples of shards.

A task is a range of rows and makes a part for each output. No task is needed for rows that are already stored, in the
store of the output, as its writer would store them.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock._kinds import ExpectsDigest, JoinsRows, TokenParts
from penstock._secrets import redact
from penstock.abc import Writer
from penstock.codec.hashes import BLOCK_BYTES
from penstock.codec.tokens import dtype_for
from penstock.engine.groups import Assembly, is_free_place, require_no_object
from penstock.engine.parts import (
    PartMeta,
    PartName,
    encode_end,
    made_of,
    read_part,
    read_row_numbers,
    require_intact,
)
from penstock.engine.plan import Plan
from penstock.engine.rows import InPlace, StoredRows, read_run, runs, total_units
from penstock.engine.run import Wave
from penstock.engine.token_blocks import BlockWave, Layout
from penstock.engine.work import Work, is_complete
from penstock.errors import Unsupported
from penstock.formats import files_at, get_format, owned_by
from penstock.formats._folders import last_file
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.formats.tokens.joined import JoinedTokens, JoinsTokens
from penstock.reshape.dataset_job import TASK_BYTES, DatasetJob
from penstock.reshape.outputs import (
    Output,
    Written,
    append_rows,
    excluded_in,
    format_for,
    once_of,
    open_writer,
    planned_inputs,
    planned_options,
    published,
    rehearse,
    require_whole,
    sidecars_of,
    write_rows,
    writer_options,
)
from penstock.reshape.reorder import grouped
from penstock.reshape.rows import SampleRows, TokenRows, opener_of
from penstock.reshape.shards import ShardPlan, ShardWave, plan_shards, write_shards
from penstock.reshape.sidecars import (
    RowNumbers,
    Sidecars,
    all_rows,
    has_sidecars,
    planes_in,
    recorded,
    require_place_of_planes,
)
from penstock.store.compose import joining
from penstock.store.local import output_exists
from penstock.store.object_folder import not_replaceable
from penstock.store.place import Place
from penstock.store.put import put_new
from penstock.store.unfinished import Once
from penstock.types import IntArray, Manifest


@dataclass(frozen=True, slots=True)
class RowRange:
    """A task: rows of one source.

    Attributes:
        source: number of the source.
        first, stop: the rows `[first, stop)`; of a shuffle, of the output.
        described: what errors call it.
        bits: one bit per row, if the command needs one.
    """

    source: int
    first: int
    stop: int
    described: str = ""
    bits: bytes = b""

    @property
    def num_samples(self) -> int:
        return self.stop - self.first


class Made(NamedTuple):
    """Rows for one output: data back to back, lengths in units, and row numbers in the source."""

    output: int
    data: NDArray[Any]
    lengths: IntArray
    rows: IntArray


class Make:
    """Makes the rows of the outputs from a range of rows; picklable."""

    @abstractmethod
    def __call__(self, rows: StoredRows, task: RowRange, /) -> Iterator[Made]:
        """Return the rows made of a range."""

    def counted(self, rows: StoredRows, task: RowRange) -> Iterator[tuple[int, IntArray]]:
        """Return only the outputs and lengths, for a dry run."""
        return ((made.output, made.lengths) for made in self(rows, task))


@dataclass(frozen=True, slots=True)
class Copy(Make):
    """Copies all rows to one output."""

    def __call__(self, rows: StoredRows, task: RowRange, /) -> Iterator[Made]:
        for first, stop in runs(rows, task.first, task.stop):
            yield Made(0, *read_run(rows, first, stop), np.arange(first, stop))

    def counted(self, rows: StoredRows, task: RowRange) -> Iterator[tuple[int, IntArray]]:
        for first, stop in runs(rows, task.first, task.stop):
            yield 0, rows.ranges(slice(first, stop))[1]


class Run(NamedTuple):
    """Rows `[first, stop)` of a source: any[n_units] back to back, and int64[stop - first] lengths."""

    first: int
    stop: int
    data: NDArray[Any]
    lengths: IntArray


class Assign(Protocol):
    """Assigns rows to outputs; picklable."""

    @property
    def by_content(self) -> bool:
        """Whether it reads the rows; else `Run.data` may be empty."""
        ...

    def assign(self, rows: StoredRows, task: RowRange, run: Run, /) -> IntArray:
        """Return int64[n_rows]: the output of each row of a run of the task; negative for none."""
        ...


@dataclass(frozen=True, slots=True)
class Deal(Make):
    """Sends each row to one output, or to none."""

    to: Assign

    def __call__(self, rows: StoredRows, task: RowRange, /) -> Iterator[Made]:
        for first, stop in runs(rows, task.first, task.stop):
            data, lengths = read_run(rows, first, stop)
            outputs = self.to.assign(rows, task, Run(first, stop, data, lengths))
            for output, some, some_lengths in grouped(data, lengths, outputs):
                yield Made(output, some, some_lengths, first + np.flatnonzero(outputs == output))

    def counted(self, rows: StoredRows, task: RowRange) -> Iterator[tuple[int, IntArray]]:
        if self.to.by_content:
            yield from Make.counted(self, rows, task)
            return
        nothing = np.empty(0, rows.dtype)
        for first, stop in runs(rows, task.first, task.stop):
            lengths = rows.ranges(slice(first, stop))[1]
            outputs = self.to.assign(rows, task, Run(first, stop, nothing, lengths))
            for output in np.unique(outputs[outputs >= 0]).tolist():
                yield output, lengths[outputs == output]


def ranges_of(source: int, rows: StoredRows, first: int = 0, last: int | None = None) -> Iterator[RowRange]:
    """Return tasks for rows `[first, last)` of a source in order, of about `TASK_BYTES` each."""
    most, last = TASK_BYTES // rows.dtype.itemsize, len(rows) if last is None else last
    opened, held = first, 0
    for start, stop in runs(rows, first, last):
        units = int(rows.ranges(slice(start, stop))[1].sum())
        if held and held + units > most:
            yield range_of(source, rows, opened, start)
            opened, held = start, 0
        held += units
    if opened < last:
        yield range_of(source, rows, opened, last)


def range_of(source: int, rows: StoredRows, first: int, stop: int) -> RowRange:
    """Return rows `[first, stop)` of a source as a task."""
    return RowRange(source, first, stop, f"{redact(rows.place.path)}, samples {first} to {stop}")


# --- the job ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RowJob(DatasetJob):
    """A command on rows.

    Attributes:
        sources: the opened datasets.
        opened_with: options of `penstock.open`, with which workers open them.
        command: command and options, for the side files.
        make: makes the rows of the outputs from a range.
        laid: all rows of the outputs in order: ranges, and files that can be used in place.
        digest: gives the document digest, if it is known without reading tokens.
        task_bytes: size of a task.
    """

    sources: Sequence[StoredRows]
    opened_with: Mapping[str, Any]
    command: Mapping[str, Any]
    make: Make
    laid: Sequence[RowRange | InPlace]
    digest: Callable[[], str] | None = None
    task_bytes: int = TASK_BYTES
    preload = (__name__, "penstock.reshape.shards")

    @functools.cached_property
    def made_by(self) -> dict[str, Any]:
        return recorded(self.command, self.sources, keep_map=self.options.keep_map)

    @property
    def tasks(self) -> Sequence[RowRange]:
        return [one for one in self.laid if isinstance(one, RowRange)]

    @functools.cached_property
    def before(self) -> list[int]:
        """Number of rows before each source."""
        return np.cumsum([0, *map(len, self.sources)]).tolist()

    @property
    def reads(self) -> list[Place]:
        return [rows.place for rows in self.sources]

    @property
    def most_workers(self) -> int:
        return max(len(self.tasks), 1 + sum(map(total_bytes, self.sources)) // BLOCK_BYTES)

    @property
    def num_excluded(self) -> int:
        return excluded_in(self.sources)

    @property
    def unit_bytes(self) -> int:
        """Bytes per token of the outputs; 1 for other data."""
        return self.outputs[0].token_bytes or self.sources[0].dtype.itemsize

    @property
    def token_bytes(self) -> int:
        return self.unit_bytes if isinstance(self.sources[0], TokenRows) else 0

    @property
    def holds_samples(self) -> bool:
        return isinstance(self.sources[0], SampleRows)

    @functools.cached_property
    def needs_row_numbers(self) -> bool:
        return has_sidecars(self.sources, keep_map=self.options.keep_map)

    def along(self, output: Output, rows: RowNumbers | None = None) -> Sidecars:
        """Return the row map, exclude list and planes of an output. `rows` gives row numbers once it is written."""
        return sidecars_of(output, self.sources, self.made_by, rows, keep_map=self.options.keep_map)

    # --- in this process

    def rehearse(self) -> tuple[Written, ...]:
        for output in self.outputs:
            self.along(output).require_possible()
        for output in self.outputs:
            rehearse(output, self.sources, self.made_by, overwrite=self.options.overwrite)
        counts = [[0, 0] for _ in self.outputs]  # rows, units
        self.announce()
        for task in self.tasks:
            for output, lengths in self.make.counted(self.sources[task.source], task):
                counts[output][0] += len(lengths)
                counts[output][1] += int(lengths.sum())
            self.counter.add(task.num_samples)
        pairs = zip(self.outputs, counts, strict=True)
        return tuple(self._counted(output, *one, excluded=self.num_excluded) for output, one in pairs)

    def open_writer(self, output: Output, *, overwrite: bool) -> Writer:
        writer = open_writer(output, self.sources, self.made_by, overwrite=overwrite)
        if self.digest is not None and isinstance(writer, ExpectsDigest):
            writer.expect_digest(self.digest)
        return writer

    @property
    def what_of_all(self) -> dict[str, Any]:
        (rows,) = self.sources
        return self.made_by | {"source": rows.place.shown, "rows": len(rows), "units": total_units(rows)}

    def fill(self, writers: Sequence[Writer], numbers: Sequence[list[range | IntArray]]) -> None:
        for task in self.tasks:
            rows, before = self.sources[task.source], self.before[task.source]
            if isinstance(self.make, Copy):
                append_rows(writers[0], rows, task.first, task.stop, self.unit_bytes, self.counter.add)
                numbers[0].append(range(before + task.first, before + task.stop))
                continue
            for made in self.make(rows, task):
                write_rows(writers[made.output], rows, made.data, made.lengths)
                if self.needs_row_numbers:
                    numbers[made.output].append(before + made.rows)
            self.counter.add(task.num_samples)

    # --- in parts

    def plan(self) -> Plan:
        for output in self.outputs:
            writer_options(output, self.sources, self.made_by)  # raises the errors of an inline run
            self.along(output).require_possible()
            if planes := planes_in(self.sources):
                require_place_of_planes(output.place, format_for(output, self.sources), planes)
        options = planned_options(self.outputs, self.sources, self.made_by, overwrite=self.options.overwrite)
        options["--token-bytes"] = self.unit_bytes
        return Plan(options, planned_inputs(self.sources), self.task_bytes, "")

    def once(self, output: Output) -> Once[Manifest]:
        return once_of(output, self.sources, self.made_by)

    def published_output(self, output: Output) -> Manifest | None:
        return published(output, self.sources, self.made_by, self.once(output))

    def settle_output(self, output: Output, made: Manifest) -> None:
        along = self.along(output)
        along.stands()
        along.settled(made)

    def require_free_place(self, output: Output) -> None:
        place, to = output.place, format_for(output, self.sources)
        if self.holds_samples:
            if not is_free_place(place):
                raise output_exists(place.path, place.child(INDEX_NAME).path)
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
        to = format_for(self.outputs[0], self.sources)
        for place in (output.place for output in self.outputs):
            if self.holds_samples:
                require_no_object(place, left=left)
            elif not place.is_local and last_file(to, place.store, place.path) is not None:
                raise not_replaceable(place.path)

    def sent(self, number: int, task: RowRange, parts: Sequence[PartName]) -> tuple[int, RowRange] | None:
        return None if is_complete(parts) else (number, task)

    def part_fn(self, work: Work) -> Callable[[Any], object]:
        at = tuple(opener_of(rows, self.opened_with) for rows in self.sources)
        return PartWriter(at, self.make, self.unit_bytes, len(self.outputs), work.parts, self.needs_row_numbers)

    def wave(self, work: Work) -> Wave:
        if self.holds_samples:
            return self._shard_wave(work)
        frames = [head_of(self, output, 0) for output in self.outputs]
        return _Blocks(self, work) if None not in frames else Appended(self, work)

    def _shard_wave(self, work: Work) -> ShardWave:
        jobs, plans, count = list[Assembly](), list[ShardPlan](), 0
        for number, output in enumerate(self.outputs):
            options = writer_options(output, self.sources, self.made_by)
            jobs.append(Assembly(format_for(output, self.sources), output.place, work.place, options))
            parts = [one for one in self.parts_in_order(work, number) if isinstance(one, PartName)]
            plans.append(plan_shards(jobs[-1], number, parts, count))
            count += len(plans[-1].runs)
        return ShardWave(write_shards, jobs, plans)

    def commit_output(self, work: Work, wave: Any, number: int, once: Once[Manifest]) -> Manifest:
        if not isinstance(wave, ShardWave):
            return wave.commit(number, once)
        return self.publish(work, number, once, functools.partial(wave.end, number, overwrite=self.options.overwrite))

    def count_parts(self, group: int, names: Sequence[PartName]) -> Written:
        rows, units = sum(name.documents for name in names), sum(name.tokens for name in names)
        return self._counted(self.outputs[group], rows, units)

    def _counted(self, output: Output, rows: int, units: int, excluded: int = 0) -> Written:
        """Return a report on rows of an output; its bytes don't include what the format adds."""
        form, tokens = format_for(output, self.sources), units if self.token_bytes else None
        return Written(output.place.path, form, rows, tokens, units * self.unit_bytes, excluded=excluded)

    def publish(self, work: Work, group: int, once: Once[Manifest], commit: Callable[[], Manifest]) -> Manifest:
        """Make an output visible, with its row map, exclude list and planes."""
        numbers = functools.partial(self.row_numbers, work, group)
        return self.along(self.outputs[group], numbers).commit(once, commit)

    def row_numbers(self, work: Work, group: int) -> Iterator[IntArray]:
        """Return the rows of an output, numbered through all sources, as the parts record them."""
        for one, name in self.in_order(work, group):
            before = self.before[one.source]
            if name is None:
                yield from all_rows(before, before + len(self.sources[one.source]))
            else:
                yield before + read_row_numbers(work.parts.child(name.path), self.unit_bytes)

    def in_order(self, work: Work, group: int) -> Iterator[tuple[RowRange | InPlace, PartName | None]]:
        """Return the ranges and files of an output in order, with the part of each range."""
        listed, task = work.all_parts(), 0
        for one in self.laid:
            if isinstance(one, InPlace):
                yield one, None
            else:
                yield one, made_of(listed, task, self.output)[group]
                task += 1

    def parts_in_order(self, work: Work, group: int) -> Iterator[PartName | InPlace]:
        """Return the parts and files that an output consists of."""
        for one, name in self.in_order(work, group):
            if name is not None:
                yield name
            elif isinstance(one, InPlace):
                yield one


def total_bytes(rows: StoredRows) -> int:
    return total_units(rows) * rows.dtype.itemsize


# --- what workers do -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartWriter:
    """Makes the parts of a task: one for each output, in the form of `penstock.engine.parts`.

    Memory: the rows of a range, twice.

    Attributes:
        sources: open the sources; the source opened last stays open.
        make: what to do with a range.
        unit_bytes: bytes per token of the outputs; 1 for other data.
        num_outputs: number of outputs.
        parts: directory of the parts.
        numbered: whether parts hold row numbers.
    """

    sources: tuple[Callable[[], StoredRows], ...]
    make: Make
    unit_bytes: int
    num_outputs: int
    parts: Place
    numbered: bool
    _opened: tuple[int, StoredRows] | None = field(default=None, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        given = (self.sources, self.make, self.unit_bytes, self.num_outputs, self.parts, self.numbered)
        return (PartWriter, given)

    def __call__(self, sent: tuple[int, RowRange]) -> list[PartName]:
        number, task = sent
        rows, stored = self._rows(task.source), dtype_for(self.unit_bytes, "<")
        found: list[list[Made]] = [[] for _ in range(self.num_outputs)]
        for made in self.make(rows, task):
            require_whole(rows, made.data, made.lengths)
            found[made.output].append(made._replace(data=np.array(made.data, stored).view(np.uint8)))
        return [self._put(number, output, some) for output, some in enumerate(found)]

    def _rows(self, source: int) -> StoredRows:
        if self._opened is None or self._opened[0] != source:
            self._opened = None
            self._opened = (source, self.sources[source]())
        return self._opened[1]

    def _put(self, number: int, output: int, found: Sequence[Made]) -> PartName:
        nothing = np.empty(0, np.int64)
        lengths = np.concatenate([nothing, *(one.lengths for one in found)])
        rows = np.concatenate([nothing, *(one.rows for one in found)]) if self.numbered else None
        units = int(lengths.sum())
        end = encode_end(lengths, PartMeta((), len(lengths), units, -1, ()), rows)
        data = b"".join([*(byte_view(one.data) for one in found), end])
        last = output == self.num_outputs - 1
        name = PartName(number, output, last, len(lengths), units, 0, xxhash.xxh3_64_hexdigest(data))
        put_new(self.parts.store, self.parts.child(name.path).path, data)
        return name


# --- second waves ----------------------------------------------------------------------------------------------------


def head_of(job: RowJob, output: Output, rows_bytes: int) -> bytes | None:
    """Return the header of an output with `rows_bytes` of rows; None if its file isn't header plus rows."""
    if not job.token_bytes:
        return b""
    to = get_format(format_for(output, job.sources))
    if not isinstance(to, JoinsTokens):
        return None
    rows = JoinedTokens(list, 0, rows_bytes // job.token_bytes, -1, (), job.token_bytes)
    frame = to.join(writer_options(output, job.sources, job.made_by), rows, output.place.path)
    return None if frame is None else frame.head


class Appended(Wave):
    """Outputs whose writer encodes rows: it takes all parts at the end."""

    def __init__(self, job: RowJob, work: Work) -> None:
        self.job = job
        self.work = work

    def commit(self, group: int, once: Once[Manifest]) -> Manifest:
        job = self.job
        with job.open_writer(job.outputs[group], overwrite=job.options.overwrite) as writer:
            self.fill(writer, group)
            return job.publish(self.work, group, once, writer.commit)

    def fill(self, writer: Writer, group: int) -> None:
        for one in self.job.parts_in_order(self.work, group):
            if isinstance(one, InPlace):
                append_rows(writer, one.rows, 0, len(one.rows), self.job.unit_bytes, lambda _: None)
            else:
                require_intact(self.work.parts, one)
                self._append(writer, self.work.parts.child(one.path))

    def _append(self, writer: Writer, part: Place) -> None:
        width = self.job.unit_bytes
        if part.is_local and isinstance(writer, TokenParts):
            writer.write_part(part.path, 0, read_part(part, width)[1], None)
            return
        data, lengths = part_rows(part, width)
        write_rows(writer, self.job.sources[0], data, lengths)


def part_rows(part: Place, unit_bytes: int) -> tuple[NDArray[Any], IntArray]:
    """Return the rows of a part, back to back, and their lengths."""
    meta, lengths = read_part(part, unit_bytes)
    (data,) = part.store.get_ranges(part.path, [(0, meta.tokens * unit_bytes)])
    return np.frombuffer(data, dtype_for(unit_bytes, "<")), lengths


class _Blocks(BlockWave):
    """Outputs of one file: the tasks compute checksums of its blocks."""

    def __init__(self, job: RowJob, work: Work) -> None:
        self._job = job
        self._work = work
        layouts, first = list[Layout](), 0
        for group, output in enumerate(job.outputs):
            laid, head = job.parts_in_order(work, group), functools.partial(_head, job, output)
            layouts.append(Layout.of(laid, work.parts, job.unit_bytes, job.token_bytes, first, head))
            first += layouts[-1].num_blocks
        super().__init__(layouts, work.place.child("files"))

    def commit(self, group: int, once: Once[Manifest]) -> Manifest:
        job, output, overwrite = self._job, self._job.outputs[group], self._job.options.overwrite
        for one in self.layouts[group].laid:
            if isinstance(one, PartName):
                require_intact(self._work.parts, one)
        for one in job.laid:
            if isinstance(one, InPlace):  # no worker has read these rows
                one.rows.prove(0, len(one.rows))
        store = joining(output.place.store, None if overwrite else self._work.digest)
        joined = replace(output, place=Place(store, output.place.path))
        with open_writer(joined, job.sources, job.made_by, overwrite=overwrite) as writer:
            if not isinstance(writer, JoinsRows):
                raise Unsupported("this format can't be written in parts", path=output.place.path)
            self.write(writer, group, job.digest)
            return job.publish(self._work, group, once, writer.commit)


def _head(job: RowJob, output: Output, rows_bytes: int) -> bytes:
    return head_of(job, output, rows_bytes) or b""

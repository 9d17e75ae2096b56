"""Outputs of shards in parts: written from rows by a second wave of tasks, or copied whole.

The lengths of all rows determine where shards end, so a task is a run of shards. Its worker writes them in a directory
of its own. Locally the files stay there and are linked into the output at the end. In an object store they get their
final names at once, unless a name exists. The record of a run is named by its content.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import xxhash

from penstock.abc import Writer
from penstock.codec.hashes import BLOCK_BYTES, BlockHasher
from penstock.engine.folder import bare, local_store
from penstock.engine.groups import (
    SHARDS,
    Assembly,
    Group,
    GroupPart,
    encode_group,
    files_of,
    group_part,
    is_free_place,
    kept_shards,
    read_group,
    require_no_object,
)
from penstock.engine.parts import PartName, made_of, parse_part_name, read_part, require_intact
from penstock.engine.plan import Plan
from penstock.engine.rows import total_units
from penstock.engine.run import Wave
from penstock.engine.work import SCRATCH, Work, scratch
from penstock.errors import ConfigError, NotFound, PenstockError, PrepareError, Unsupported
from penstock.formats import get_format
from penstock.formats._manifest import Provenance
from penstock.formats.shards.index_json import INDEX_NAME, Shard, encode_index
from penstock.formats.shards.merge import FileCopy, copy_shards, numbered_shards
from penstock.formats.shards.writer import ShardWriter
from penstock.reshape.dataset_job import TASK_BYTES, DatasetJob
from penstock.reshape.outputs import (
    Output,
    RowlessWriter,
    Written,
    lineage,
    once_of,
    planned_inputs,
    planned_options,
    published,
    rehearse,
    require_other_dataset,
    sidecars_of,
)
from penstock.reshape.rows import SampleRows
from penstock.reshape.sidecars import RowNumbers, Sidecars
from penstock.store.local import output_exists
from penstock.store.outputs import claimed
from penstock.store.place import Place
from penstock.store.put import aborting, put_local_file, put_new
from penstock.store.unfinished import Once
from penstock.types import IntArray, Manifest

_GROUP_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class ShardRun:
    """Some shards of an output; `ranges`: (part, first row, stop) of their rows."""

    number: int
    output: int
    is_first: bool
    first_shard: int
    ranges: tuple[tuple[PartName, int, int], ...]

    @property
    def described(self) -> str:
        return f"shards of the output starting at {self.first_shard}"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The tasks of an output, and the provenance for its side file."""

    runs: Sequence[Run]
    noted: Provenance


class ShardWave(Wave):
    """Second wave of outputs of shards, which the tasks write.

    Args:
        fn: does a task, given the outputs.
        jobs: the outputs.
        plans: their tasks.
    """

    def __init__(
        self, fn: Callable[[Sequence[Assembly], Any], PartName], jobs: Sequence[Assembly], plans: Sequence[ShardPlan]
    ) -> None:
        self._jobs, self._plans, self._marks = jobs, plans, marks_of(jobs[0].work)
        self.tasks = [run for plan in plans for run in plan.runs]
        without_cache = tuple(replace(job, target=bare(job.target)) for job in jobs)
        self.fn: Callable[[Any], object] = functools.partial(fn, without_cache)

    def done(self) -> Mapping[int, PartName]:
        return groups_there(self._marks)

    def end(self, output: int, *, overwrite: bool) -> Manifest:
        """Make an output visible whose shards are finished."""
        job, plan, done = self._jobs[output], self._plans[output], self.done()
        groups = [
            read_group(made_of(done, run.number, self._marks), job.work, self._marks, run.is_first) for run in plan.runs
        ]
        return SHARDS.end(groups, lambda: iter(()), job, plan.noted, overwrite=overwrite)


def marks_of(work: Place) -> Place:
    return work.child("files")


def plan_shards(job: Assembly, output: int, parts: Sequence[PartName], first_number: int) -> ShardPlan:
    """Cut an output into shards, and these into runs of about 64 MiB. Memory: 8 bytes per row."""
    lengths = [read_part(job.work.child(f"parts/{name.path}"), 1)[1] for name in parts]
    every = np.concatenate([np.empty(0, np.int64), *lengths])
    with scratch(job.work.child(SCRATCH)) as folder:
        place = Place(local_store(job.work), f"{folder}/empty")
        writer = _writer(job, place)
        try:
            borders = writer.borders(every)
            manifest = writer.commit()
        except PenstockError as error:
            writer.abort()
            error.path = job.target.path
            raise
    starts = np.concatenate([[0], np.cumsum([name.documents for name in parts], dtype=np.int64)])
    ends = np.concatenate([[0], np.cumsum(every)])
    runs: list[ShardRun] = []
    for first, stop in _run_shards(borders, ends):
        low, high = borders[first], borders[stop] if stop < len(borders) else len(every)
        runs.append(
            ShardRun(first_number + len(runs), output, not runs, first, tuple(_ranges(parts, starts, low, high)))
        )
    return ShardPlan(runs, Provenance(inputs=manifest.inputs, options=manifest.options))


def _run_shards(borders: Sequence[int], ends: IntArray) -> Iterator[tuple[int, int]]:
    """Return (first, stop) shards of each run; an empty first shard goes with the next one."""
    first = 0
    for shard in range(1, len(borders)):
        if ends[borders[shard]] - ends[borders[first]] >= _GROUP_BYTES:
            yield first, shard
            first = shard
    if borders:
        yield first, len(borders)


def _ranges(parts: Sequence[PartName], starts: IntArray, low: int, high: int) -> Iterator[tuple[PartName, int, int]]:
    part = int(np.searchsorted(starts, low, side="right")) - 1
    while part < len(parts) and starts[part] < high:
        begin = int(starts[part])
        first, stop = max(low, begin) - begin, min(high, int(starts[part + 1])) - begin
        if first < stop:
            yield parts[part], first, stop
        part += 1


def groups_there(marks: Place) -> dict[int, PartName]:
    """Return the finished runs of shards, by one listing."""
    try:
        names = [parse_part_name(path.rpartition("/")[2]) for path in marks.store.list(marks.path)]
    except NotFound:
        return {}
    return {name.task: name for name in names if name is not None}


def write_shards(jobs: Sequence[Assembly], run: ShardRun) -> PartName:
    """Write and record some shards. Memory: that of the format's writer, and a part."""
    job = jobs[run.output]
    with scratch(job.work.child(SCRATCH)) as folder:
        made = Place(local_store(job.work), f"{folder}/group")
        with _writer(job, made) as writer:
            for name, first, stop in run.ranges:
                part = job.work.child(f"parts/{name.path}")
                lengths = read_part(part, 1)[1]
                if first == 0:
                    require_intact(job.work.child("parts"), name)
                ends = np.concatenate([[0], np.cumsum(lengths)])
                (data,) = part.store.get_ranges(part.path, [(int(ends[first]), int(ends[stop]))])
                writer.write_run(np.frombuffer(data, np.uint8), lengths[first:stop])
            manifest = writer.commit()
        index = made.store.get(made.child(INDEX_NAME).path)
        part = group_part("0", index, manifest.block_digests, made)
        shards = len(kept_shards(index, 0 if run.is_first else 1, made))
        return _put_shards(job, run, (manifest.num_samples, shards), part, made)


Run: TypeAlias = "ShardRun | ShardCopies"


def _put_shards(job: Assembly, run: Run, counts: tuple[int, int], part: GroupPart, made: Place) -> PartName:
    """Store finished shards and record them.

    Args:
        job: the output.
        run: the task.
        counts: number of samples and of shards.
        part: record of the group.
        made: local directory of its files.

    Raises:
        PrepareError: the output has a file of one of the names with other bytes.
    """
    data = encode_group(part)
    name, target = PartName(run.number, 0, True, *counts, 0, xxhash.xxh3_64_hexdigest(data)), job.target
    if target.is_local:
        put_local_file(job.work.store, made.path, files_of(name, job.work).path)
    else:
        for before, after in Group(name, part, made, run.is_first).names(run.first_shard):
            file, there = made.child(before), target.child(after)
            if not put_local_file(there.store, file.path, there.path) and there.store.get(there.path) != file.store.get(
                file.path
            ):
                what = "another run wrote a file with this name"
                raise PrepareError(what, path=there.path, hint="Choose another output, or remove it")
    put_new(job.work.store, marks_of(job.work).child(name.path).path, data)
    return name


def _writer(job: Assembly, place: Place) -> ShardWriter:
    writer = get_format(job.to).create(place.store, place.path, job.options, overwrite=False)
    if not isinstance(writer, ShardWriter):
        writer.abort()
        raise ConfigError("not a shard format", path=job.target.path, found=job.to)
    return writer


@dataclass(frozen=True, slots=True)
class ShardCopies:
    """Shards that are copied whole: each with its number in the output and its files by name."""

    number: int
    first_shard: int
    shards: tuple[tuple[Shard, Mapping[str, FileCopy]], ...] = field(repr=False)
    output: int = 0
    is_first: bool = True  # an empty first shard of a later source stays too

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for _, files in self.shards for file in files.values())

    @property
    def described(self) -> str:
        return f"shards of the output starting at {self.first_shard}"


@dataclass(frozen=True, kw_only=True)
class ShardCopyJob(DatasetJob):
    """A merge of whole shards. Their places in the output are known, so there is only a second wave."""

    sources: Sequence[SampleRows]
    command: Mapping[str, Any]
    preload = (__name__,)

    def __post_init__(self) -> None:
        super().__post_init__()
        first, to = self.sources[0], self.outputs[0].to
        require_other_dataset(self.sources, self.output, first.format)
        if to not in (None, first.format):
            what = f"shards of {first.format} are copied unchanged"
            hint = "Use `penstock convert` before or after it"
            raise Unsupported(what, path=self.output.path, found=f"--to {to}", hint=hint)

    @property
    def tasks(self) -> Sequence[Any]:
        return ()

    @property
    def num_excluded(self) -> int:
        return 0  # shards of which something is excluded aren't copied whole

    @property
    def reads(self) -> list[Place]:
        return [rows.place for rows in self.sources]

    @property
    def most_workers(self) -> int:
        return 1 + sum(map(total_units, self.sources)) // BLOCK_BYTES

    def rehearse(self) -> tuple[Written, ...]:
        output, first = self.outputs[0], self.sources[0]
        rehearse(output, self.sources, self.command, overwrite=self.options.overwrite)
        size_bytes = sum(map(total_units, self.sources))
        return (Written(output.place.path, first.format, sum(map(len, self.sources)), None, size_bytes),)

    def along(self, output: Output, rows: RowNumbers | None = None) -> Sidecars:
        return sidecars_of(output, self.sources, self.command, rows, keep_map=False)

    def open_writer(self, output: Output, *, overwrite: bool) -> Writer:
        place, known = output.place, lineage(self.sources, self.command)
        parts, path = [rows.part for rows in self.sources], place.path.rstrip("/") or place.path
        held = contextlib.ExitStack()
        store = held.enter_context(claimed(place.store, path))
        copy = functools.partial(copy_shards, parts, store, path, name=self.sources[0].format, **known)
        return RowlessWriter(functools.partial(copy, overwrite=overwrite), held.close)

    def fill(self, writers: Sequence[Writer], numbers: Sequence[list[range | IntArray]]) -> None: ...

    def plan(self) -> Plan:
        options = planned_options(self.outputs, self.sources, self.command, overwrite=self.options.overwrite)
        return Plan(options, planned_inputs(self.sources), TASK_BYTES, "")

    def once(self, output: Output) -> Once[Manifest]:
        return once_of(output, self.sources, self.command, sum(map(len, self.sources)))

    def published_output(self, output: Output) -> Manifest | None:
        return published(output, self.sources, self.command, self.once(output))

    def require_free_place(self, output: Output) -> None:
        if not is_free_place(output.place):
            raise output_exists(output.place.path, output.place.child(INDEX_NAME).path)

    def require_beginning(self, *, left: bool) -> None:
        require_no_object(self.output, left=left)

    def part_fn(self, work: Work) -> Callable[[Any], object]:
        return id  # there are no tasks

    def wave(self, work: Work) -> ShardWave:
        job = Assembly(self.sources[0].format, self.output, work.place, {})
        plan = ShardPlan(list(_runs(self.sources)), Provenance(**lineage(self.sources, self.command)))
        return ShardWave(copy_run, [job], [plan])

    def commit_output(self, work: Work, wave: ShardWave, number: int, once: Once[Manifest]) -> Manifest:
        return once.commit(functools.partial(wave.end, number, overwrite=self.options.overwrite))

    def parts_done(self, work: Work) -> list[PartName]:
        return [name for number, name in groups_there(marks_of(work.place)).items() if self.options.takes(number)]

    def count_parts(self, group: int, names: Sequence[PartName]) -> Written:
        done = {name.task for name in names}
        size_bytes = sum(one.size_bytes for one in _runs(self.sources) if one.number in done)
        samples = sum(name.documents for name in names)
        return Written(self.output.path, self.sources[0].format, samples, None, size_bytes)


def _runs(sources: Sequence[SampleRows]) -> Iterator[ShardCopies]:
    """Return all shards of all sources, about 64 MiB together. Memory: the indexes."""
    number = first = 0
    held: list[tuple[Shard, Mapping[str, FileCopy]]] = []
    size_bytes = 0
    for shard, files in numbered_shards([rows.part for rows in sources]):
        held.append((shard, files))
        size_bytes += sum(file.size_bytes for file in files.values())
        if size_bytes >= TASK_BYTES:
            yield ShardCopies(number, first, tuple(held))
            number, first, size_bytes = number + 1, first + len(held), 0
            held = []
    if held:
        yield ShardCopies(number, first, tuple(held))


def copy_run(jobs: Sequence[Assembly], run: ShardCopies) -> PartName:
    """Copy some shards and record them. Memory: 1 MiB."""
    job = jobs[run.output]
    with scratch(job.work.child(SCRATCH)) as folder:
        made, blocks = Place(local_store(job.work), f"{folder}/group"), dict[str, tuple[str, ...]]()
        for _, files in run.shards:
            for name, file in files.items():
                digester = BlockHasher()
                with aborting(made.store.stage(made.child(name).path)) as staged:
                    for chunk in file.chunks(digester):
                        staged.write(chunk)
                    staged.commit()
                blocks[name] = digester.finish()
        index = encode_index([shard for shard, _ in run.shards])
        samples = sum(shard.samples for shard, _ in run.shards)
        return _put_shards(job, run, (samples, len(run.shards)), group_part("0", index, blocks, made), made)

"""Outputs of shards in parts: written from rows by a second wave of tasks, or copied whole.

The lengths of all rows determine where shards end, so a task is a run of shards. Its worker writes them in a directory
of its own. Locally the files stay there and are linked into the output at the end. In an object store they get their
final names at once, unless a name exists. The record of a run is named by its content.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
import xxhash

from penstock.abc import Writer
from penstock.codec.hashes import BLOCK_BYTES, BlockHasher
from penstock.engine.folder import bare, local_store
from penstock.engine.groups import (
    Group,
    GroupPart,
    assemble,
    encode_group,
    files_of,
    group_part,
    is_free_place,
    kept_shards,
    publish,
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
class ShardJob:
    """Parameters of all such tasks.

    Attributes:
        to: format of the outputs.
        outputs: the outputs, in stores without a cache.
        options: options of each writer.
        work: directory of the plan.
    """

    to: str
    outputs: tuple[Place, ...]
    options: tuple[Mapping[str, Any], ...]
    work: Place

    @property
    def marks(self) -> Place:
        return self.work.child("files")


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The tasks of an output, and its side file without counts and digests."""

    runs: Sequence[Run]
    manifest: Manifest


def plan_shards(job: ShardJob, output: int, parts: Sequence[PartName], first_number: int) -> ShardPlan:
    """Cut an output into shards, and these into runs of about 64 MiB. Memory: 8 bytes per row."""
    lengths = [read_part(job.work.child(f"parts/{name.path}"), 1)[1] for name in parts]
    every = np.concatenate([np.empty(0, np.int64), *lengths])
    with scratch(job.work.child(SCRATCH)) as folder:
        place = Place(local_store(job.work), f"{folder}/empty")
        writer = _writer(job, output, place)
        try:
            borders = writer.borders(every)
            manifest = writer.commit()
        except PenstockError as error:
            writer.abort()
            error.path = job.outputs[output].path
            raise
    starts = np.concatenate([[0], np.cumsum([name.documents for name in parts], dtype=np.int64)])
    ends = np.concatenate([[0], np.cumsum(every)])
    runs: list[ShardRun] = []
    for first, stop in _run_shards(borders, ends):
        low, high = borders[first], borders[stop] if stop < len(borders) else len(every)
        runs.append(
            ShardRun(first_number + len(runs), output, not runs, first, tuple(_ranges(parts, starts, low, high)))
        )
    return ShardPlan(runs, manifest)


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


def write_shards(job: ShardJob, run: ShardRun) -> PartName:
    """Write and record some shards. Memory: that of the format's writer, and a part."""
    with scratch(job.work.child(SCRATCH)) as folder:
        made = Place(local_store(job.work), f"{folder}/group")
        with _writer(job, run.output, made) as writer:
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
        data = encode_group(group_part("0", index, manifest.block_digests, made))
        shards = len(kept_shards(index, 0 if run.is_first else 1, made))
        name = PartName(run.number, 0, True, manifest.num_samples, shards, 0, xxhash.xxh3_64_hexdigest(data))
        put_shards(job, run, name, data, made)
    return name


Run: TypeAlias = "ShardRun | ShardCopies"


def put_shards(job: ShardJob, run: Run, name: PartName, data: bytes, made: Place) -> None:
    """Store finished shards and record them.

    Args:
        job: the job.
        run: the task.
        name: name of the group, as a part.
        data: record of the group.
        made: local directory of its files.
    """
    place = job.outputs[run.output]
    if place.is_local:
        put_local_file(job.work.store, made.path, files_of(name, job.work).path)
    else:
        _upload(Group(name, msgspec.json.decode(data, type=GroupPart), made, run.is_first), place, run.first_shard)
    put_new(job.work.store, job.marks.child(name.path).path, data)


def _writer(job: ShardJob, output: int, place: Place) -> ShardWriter:
    writer = get_format(job.to).create(place.store, place.path, job.options[output], overwrite=False)
    if not isinstance(writer, ShardWriter):
        writer.abort()
        raise ConfigError("not a shard format", path=job.outputs[output].path, found=job.to)
    return writer


def _upload(group: Group, target: Place, first: int) -> None:
    """Upload the files of a group; raises `PrepareError` if a name exists with other bytes."""
    for _, names in group.moved(first):
        for before, after in names.items():
            file, there = group.files.child(before), target.child(after)
            if not put_local_file(there.store, file.path, there.path) and there.store.get(there.path) != file.store.get(
                file.path
            ):
                what = "another run wrote a file with this name"
                raise PrepareError(what, path=there.path, hint="Choose another output, or remove it")


def commit_shards(
    job: ShardJob, output: int, plan: ShardPlan, done: Mapping[int, PartName], place: Place, *, overwrite: bool
) -> Manifest:
    """Make an output visible whose shards are finished."""
    made = plan.manifest
    recorded = {"inputs": made.inputs, "options": made.options}
    groups = [read_group(made_of(done, run.number, job.marks), job.work, job.marks, run.is_first) for run in plan.runs]
    if place.is_local:
        return assemble(groups, place, name=job.to, recorded=recorded, overwrite=overwrite)
    return publish(groups, place, name=job.to, recorded=recorded)


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
        copy = functools.partial(copy_shards, parts, place.store, path, name=self.sources[0].format, **known)
        return RowlessWriter(functools.partial(copy, overwrite=overwrite))

    def fill(self, writers: Sequence[Writer], numbers: Sequence[list[range | IntArray]]) -> None: ...

    def plan(self) -> Plan:
        options = planned_options(self.outputs, self.sources, self.command, overwrite=self.options.overwrite)
        return Plan(options, planned_inputs(self.sources), TASK_BYTES, "")

    def once(self, output: Output) -> Once[Manifest]:
        return once_of(output, self.sources, self.command, sum(map(len, self.sources)))

    def published(self, output: Output) -> Manifest | None:
        return published(output, self.sources, self.command, self.once(output))

    def require_free_place(self, output: Output) -> None:
        if not is_free_place(output.place):
            raise output_exists(output.place.path, output.place.child(INDEX_NAME).path)

    def require_beginning(self, *, left: bool) -> None:
        require_no_object(self.output, left=left)

    def part_fn(self, work: Work) -> Callable[[Any], object]:
        return id  # there are no tasks

    def wave(self, work: Work) -> Wave:
        return _Copies(self, work)

    def parts_done(self, work: Work) -> list[PartName]:
        return [name for number, name in _Copies(self, work).done().items() if self.options.takes(number)]

    def count_parts(self, group: int, names: Sequence[PartName]) -> Written:
        done = {name.task for name in names}
        size_bytes = sum(one.size_bytes for one in _runs(self.sources) if one.number in done)
        samples = sum(name.documents for name in names)
        return Written(self.output.path, self.sources[0].format, samples, None, size_bytes)


class _Copies(Wave):
    def __init__(self, job: ShardCopyJob, work: Work) -> None:
        self._job = job
        self._shards = ShardJob(job.sources[0].format, (bare(job.output),), ({},), work.place)
        self.tasks = list(_runs(job.sources))
        self.fn: Callable[[Any], object] = functools.partial(copy_run, self._shards)

    def done(self) -> Mapping[int, PartName]:
        return groups_there(self._shards.marks)

    def commit(self, group: int, once: Once[Manifest]) -> Manifest:
        job = self._job
        known = Manifest(self._shards.to, 0, 0, **lineage(job.sources, job.command))
        told = (self._shards, group, ShardPlan(self.tasks, known), self.done(), job.output)
        return once.commit(functools.partial(commit_shards, *told, overwrite=job.options.overwrite))


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


def copy_run(job: ShardJob, run: ShardCopies) -> PartName:
    """Copy some shards and record them. Memory: 1 MiB."""
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
        data = encode_group(group_part("0", index, blocks, made))
        name = PartName(run.number, 0, True, samples, len(run.shards), 0, xxhash.xxh3_64_hexdigest(data))
        put_shards(job, run, name, data, made)
    return name

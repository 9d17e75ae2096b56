"""Shards of an output of shared work: where they end follows from the lengths of all rows, then each is one's own.

A task is a run of shards. Its worker gives their rows to the writer of the format, in a folder of its own. On a disk
the files stay there, and the end gives them second names in the output; in an object store they go where they belong
at once, each only where none is of that name. The group that says so is a file of the work, named by its content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
import xxhash

from penstock.engine.folder import local_store
from penstock.engine.groups import (
    Group,
    GroupPart,
    assemble,
    encode_group,
    files_of,
    group_part,
    kept_shards,
    publish,
    read_group,
)
from penstock.engine.parts import PartName, made_of, parse_part_name, read_part, require_intact
from penstock.engine.shared import SCRATCH, scratch
from penstock.errors import ConfigError, NotFound, PenstockError, PrepareError
from penstock.formats import get_format
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.formats.shards.writer import ShardWriter
from penstock.store.place import Place
from penstock.store.put import put_local_file, put_new
from penstock.types import IntArray, Manifest

_GROUP_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class ShardRun:
    """A task: some shards of an output.

    Attributes:
        number: among those of all outputs.
        output: number of the output.
        is_first: they are the first of it.
        first_shard: number of the first one.
        ranges: (part, first row, row behind the last) of their rows.
    """

    number: int
    output: int
    is_first: bool
    first_shard: int
    ranges: tuple[tuple[PartName, int, int], ...]

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"shards of the output starting at {self.first_shard}"


@dataclass(frozen=True, slots=True)
class ShardJob:
    """What all such tasks share.

    Attributes:
        to: format of the outputs.
        outputs: where they go, in a store that answers with what is there now.
        options: of the writer of each.
        work: the folder of the plan.
    """

    to: str
    outputs: tuple[Place, ...]
    options: tuple[Mapping[str, Any], ...]
    work: Place

    @property
    def marks(self) -> Place:
        """Where groups are noted."""
        return self.work.child("files")


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How an output is cut.

    Attributes:
        runs: its tasks.
        manifest: what its side file says, but for counts and digests.
    """

    runs: Sequence[Run]
    manifest: Manifest


def plan_shards(job: ShardJob, output: int, parts: Sequence[PartName], first_number: int) -> ShardPlan:
    """Cut an output into shards, and these into runs of about 64 MiB. Memory: 8 bytes a row."""
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
    """(first, behind the last) shard of each run: an empty first shard goes with the one behind it."""
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
    """The runs of shards that are done, by one listing."""
    try:
        names = [parse_part_name(path.rpartition("/")[2]) for path in marks.store.list(marks.path)]
    except NotFound:
        return {}
    return {name.task: name for name in names if name is not None}


def write_shards(job: ShardJob, run: ShardRun) -> PartName:
    """Write some shards, and note that they are there. Memory: what the format's writer takes, and a part."""
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


class Run(Protocol):
    """Shards that follow one another in an output."""

    @property
    def number(self) -> int:
        """Among those of all outputs."""
        ...

    @property
    def output(self) -> int:
        """Number of the output."""
        ...

    @property
    def is_first(self) -> bool:
        """Whether an empty first shard stays."""
        ...

    @property
    def first_shard(self) -> int:
        """Number of the first one."""
        ...


def put_shards(job: ShardJob, run: Run, name: PartName, data: bytes, made: Place) -> None:
    """Put shards that are made where they belong, and note that they are there.

    Args:
        job: of the task.
        run: which they are.
        name: of the group, as a part.
        data: of it.
        made: the folder of its files, on this machine.
    """
    place = job.outputs[run.output]
    if place.is_local:
        put_local_file(job.work.store, made.path, files_of(name, job.work).path)
    else:
        _upload(Group(name, msgspec.json.decode(data, type=GroupPart), made, run.is_first), place, run.first_shard)
    put_new(job.work.store, job.marks.child(name.path).path, data)


def _writer(job: ShardJob, output: int, place: Place) -> ShardWriter:
    """The writer of an output, at another place."""
    writer = get_format(job.to).create(place.store, place.path, job.options[output], overwrite=False)
    if not isinstance(writer, ShardWriter):
        writer.abort()
        raise ConfigError("not a shard format", path=job.outputs[output].path, found=job.to)
    return writer


def _upload(group: Group, target: Place, first: int) -> None:
    """Put the files of a group where they belong; raises `PrepareError` where other bytes have such a name."""
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
    """Make an output visible whose shards are all there.

    Args:
        job: of its tasks.
        output: its number.
        plan: how it is cut.
        done: what `groups_there` gives.
        place: the output.
        overwrite: replace what is there, on this machine.
    """
    made = plan.manifest
    recorded = {"inputs": made.inputs, "options": made.options}
    groups = [read_group(made_of(done, run.number, job.marks), job.work, job.marks, run.is_first) for run in plan.runs]
    if place.is_local:
        return assemble(groups, place, name=job.to, recorded=recorded, overwrite=overwrite)
    return publish(groups, place, name=job.to, recorded=recorded)

"""Whole shards of several datasets as shared work: a task is a run of them, copied as they are and numbered anew.

How many shards each source has is known before: so where a run goes is too, and there is one wave of tasks alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from penstock.codec.hashes import BLOCK_BYTES, BlockHasher
from penstock.engine.folder import bare, local_store
from penstock.engine.groups import encode_group, group_part, is_free_place, require_no_object
from penstock.engine.parts import PartName
from penstock.engine.plan import Plan
from penstock.engine.run import Wave
from penstock.engine.shared import SCRATCH, SharedWork, scratch
from penstock.errors import Unsupported
from penstock.formats.shards.index_json import INDEX_NAME, Shard, encode_index
from penstock.formats.shards.merge import FileCopy, copy_shards, numbered_shards
from penstock.reshape.dataset_job import DatasetJob
from penstock.reshape.outputs import (
    Output,
    Written,
    lineage,
    once_of,
    planned_inputs,
    planned_options,
    published,
    rehearse,
    require_other_dataset,
)
from penstock.reshape.row_job import TASK_BYTES, RowRange
from penstock.reshape.rows import total_units
from penstock.reshape.samples import SampleRows
from penstock.reshape.shard_runs import ShardJob, ShardPlan, commit_shards, groups_there, put_shards
from penstock.reshape.unfinished import sweep_unfinished
from penstock.store.local import output_exists
from penstock.store.place import Place
from penstock.store.put import aborting
from penstock.store.unfinished import Once
from penstock.types import Manifest


@dataclass(frozen=True, slots=True)
class ShardCopies:
    """A task: shards that follow one another in the output; see `share_shards.ShardRun`.

    Attributes:
        number: among all.
        first_shard: number of the first one.
        shards: as they are numbered in the output, each with its files by name.
    """

    number: int
    first_shard: int
    shards: tuple[tuple[Shard, Mapping[str, FileCopy]], ...] = field(repr=False)
    output: int = 0
    is_first: bool = True  # an empty first shard of a later source stays too

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for _, files in self.shards for file in files.values())

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"shards of the output starting at {self.first_shard}"


@dataclass(frozen=True, kw_only=True)
class ShardCopyJob(DatasetJob):
    """A merge of whole shards. Their places in the output are known at once: the second wave is all there is.

    Attributes:
        sources: the opened datasets.
        command: command and options, for the side file.
    """

    sources: Sequence[SampleRows]
    command: Mapping[str, Any]
    preload = (__name__,)

    @property
    def tasks(self) -> Sequence[RowRange]:
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
        self._require_copyable()
        output, first = self.outputs[0], self.sources[0]
        rehearse(output, self.sources, self.command, overwrite=self.options.overwrite)
        size_bytes = sum(map(total_units, self.sources))
        return (Written(output.place.path, first.format, sum(map(len, self.sources)), None, size_bytes),)

    def write(self) -> tuple[Written, ...]:
        self._require_copyable()
        place, once = self.output, self.once(self.outputs[0])
        sweep_unfinished(place)
        made = None if self.options.overwrite else once.made()
        if made is None:
            parts = [rows.part for rows in self.sources]
            path, known = place.path.rstrip("/") or place.path, lineage(self.sources, self.command)
            copy = functools.partial(copy_shards, parts, place.store, path, name=self.sources[0].format, **known)
            made = once.commit(functools.partial(copy, overwrite=self.options.overwrite))
        return (Written.of(place, made),)

    def _require_copyable(self) -> None:
        """Raise what a copy is refused for: another format, or an output that is an input."""
        first, to = self.sources[0], self.outputs[0].to
        require_other_dataset(self.sources, self.output, first.format)
        if to not in (None, first.format):
            what = f"shards of {first.format} are copied unchanged"
            hint = "Use `penstock convert` before or after it"
            raise Unsupported(what, path=self.output.path, found=f"--to {to}", hint=hint)

    def plan(self) -> Plan:
        self._require_copyable()
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

    def part_fn(self, work: SharedWork) -> Callable[[Any], object]:
        return id  # there are no tasks

    def wave(self, work: SharedWork) -> Wave:
        return _Copies(self, work)

    def parts_done(self, work: SharedWork) -> list[PartName]:
        return [name for number, name in _Copies(self, work).done().items() if self.options.takes(number)]

    def count_parts(self, group: int, names: Sequence[PartName]) -> Written:
        done = {name.task for name in names}
        size_bytes = sum(one.size_bytes for one in _runs(self.sources) if one.number in done)
        samples = sum(name.documents for name in names)
        return Written(self.output.path, self.sources[0].format, samples, None, size_bytes)


class _Copies(Wave):
    """The copies, and the index over them."""

    def __init__(self, job: ShardCopyJob, work: SharedWork) -> None:
        self._job = job
        self._shards = ShardJob(job.sources[0].format, (bare(job.output),), ({},), work.place)
        self.tasks = list(_runs(job.sources))
        self.fn: Callable[[Any], object] = functools.partial(copy_run, self._shards)

    def done(self) -> Mapping[int, PartName]:
        """Return the finished tasks by number."""
        return groups_there(self._shards.marks)

    def commit(self, group: int, once: Once[Manifest]) -> Manifest:
        """Make the output visible."""
        job = self._job
        known = Manifest(self._shards.to, 0, 0, **lineage(job.sources, job.command))
        told = (self._shards, group, ShardPlan(self.tasks, known), self.done(), job.output)
        return once.commit(functools.partial(commit_shards, *told, overwrite=job.options.overwrite))


def _runs(sources: Sequence[SampleRows]) -> Iterator[ShardCopies]:
    """All shards of all sources, about 64 MiB together. Memory: the indexes."""
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
    """Copy some shards, and note that they are there. Memory: 1 MiB."""
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

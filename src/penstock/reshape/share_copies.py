"""Whole shards of several datasets as shared work: a task is a run of them, copied as they are and numbered anew.

How many shards each source has is known before: so where a run goes is too, and there is one wave of tasks alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from penstock.codec.hashes import BlockHasher
from penstock.engine.folder import local_store
from penstock.engine.groups import encode_group, group_part, require_no_object
from penstock.engine.parts import PartName
from penstock.engine.plan import Plan
from penstock.engine.shared import SCRATCH, SharedWork, scratch
from penstock.formats.shards.index_json import Shard, encode_index
from penstock.formats.shards.merge import FileCopy, numbered_shards
from penstock.reshape.pieces import PIECE_BYTES, Range
from penstock.reshape.rewrite import Output, Written, lineage, once_of
from penstock.reshape.samples import SampleRows
from penstock.reshape.share_rows import (
    planned_inputs,
    planned_options,
    published,
    require_free_folder,
)
from penstock.reshape.share_shards import ShardJob, ShardPlan, bare, commit_shards, groups_there, put_shards
from penstock.reshape.shares import How, Wave
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


@dataclass(frozen=True, slots=True)
class CopyWork:
    """A merge of whole shards; see `penstock.reshape.shares.Asked`.

    Attributes:
        output: what is made.
        sources: what is read.
        made_by: command and options, for the side file.
        how: how it is asked for.
    """

    output: Output
    sources: Sequence[SampleRows]
    made_by: Mapping[str, Any]
    how: How

    @property
    def beside(self) -> Place:
        """The output."""
        return self.output.place

    @property
    def outputs(self) -> list[Output]:
        """The one."""
        return [self.output]

    @property
    def tasks(self) -> list[Range]:
        """None: the second wave is all."""
        return []

    @property
    def reads(self) -> list[Place]:
        """What workers open."""
        return [rows.place for rows in self.sources]

    @property
    def excluded(self) -> int:
        """None: rows of which some are left out are no whole shards."""
        return 0

    def plan(self) -> Plan:
        """See `Asked`."""
        return Plan(
            planned_options(self.outputs, self.sources, self.made_by), planned_inputs(self.sources), PIECE_BYTES, ""
        )

    def once(self, output: Output) -> Once[Manifest]:
        """See `Asked`."""
        return once_of(output, self.sources, self.made_by, sum(map(len, self.sources)))

    def published(self, output: Output) -> Manifest | None:
        """See `Asked`."""
        return published(output, self.sources, self.made_by, self.once(output))

    def require_free(self, output: Output) -> None:
        """See `Asked`."""
        require_free_folder(output.place)

    def settle(self, group: int, made: Manifest) -> None:
        """See `Asked`: nothing goes along."""

    def require_beginning(self, *, left: bool) -> None:
        """See `Asked`."""
        require_no_object(self.output.place, left=left)

    def sent(self, number: int, task: Range) -> Range:
        """Of no task."""
        return task

    def part_fn(self, work: SharedWork) -> Callable[[Any], object]:
        """Of no task."""
        return id

    def wave(self, work: SharedWork) -> Wave:
        """See `Asked`."""
        return _Copies(self, work)

    def told(self, work: SharedWork, group: int, names: Sequence[PartName]) -> Written:
        """What this share has copied."""
        wave = _Copies(self, work)
        mine = {number: name for number, name in wave.done().items() if self.how.sharing.takes(number)}
        size_bytes = sum(task.size_bytes for task in wave.tasks if task.number in mine)
        samples = sum(name.documents for name in mine.values())
        return Written(self.output.place.path, self.sources[0].format, samples, None, size_bytes)


class _Copies:
    """The copies, and the index over them."""

    def __init__(self, asked: CopyWork, work: SharedWork) -> None:
        self._asked = asked
        self._job = ShardJob(asked.sources[0].format, (bare(asked.output.place),), ({},), work.place)
        self.tasks: list[Any] = list(_runs(asked.sources))
        self.fn: Callable[[Any], object] = functools.partial(copy_run, self._job)

    def done(self) -> Mapping[int, PartName]:
        """What is done, by number."""
        return groups_there(self._job.marks)

    def commit(self, group: int, once: Once[Manifest]) -> Manifest:
        """Make the output visible."""
        asked = self._asked
        known = Manifest(self._job.to, 0, 0, **lineage(asked.sources, asked.made_by))
        told = (self._job, group, ShardPlan(self.tasks, known), self.done(), asked.output.place)
        return once.commit(functools.partial(commit_shards, *told, overwrite=asked.output.overwrite))


def _runs(sources: Sequence[SampleRows]) -> Iterator[ShardCopies]:
    """All shards of all sources, about 64 MiB together. Memory: the indexes."""
    number = first = 0
    held: list[tuple[Shard, Mapping[str, FileCopy]]] = []
    size_bytes = 0
    for shard, files in numbered_shards([rows.part for rows in sources]):
        held.append((shard, files))
        size_bytes += sum(file.size_bytes for file in files.values())
        if size_bytes >= PIECE_BYTES:
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

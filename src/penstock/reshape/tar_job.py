"""Jobs that make tars: a task is a run of samples in the order of the output, and becomes a group for each output.

When all groups exist, the sizes of their samples determine where tars end. Each is then made of ranges of groups.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from penstock._secrets import redact
from penstock.abc import Writer
from penstock.engine.folder import bare
from penstock.engine.groups import Assembly, GroupWave, is_free_place, make_group, require_no_object
from penstock.engine.parts import PartName, made_of
from penstock.engine.plan import Plan, PlannedInput
from penstock.engine.run import Wave
from penstock.engine.sample_groups import group_format
from penstock.engine.work import Work, is_complete
from penstock.formats import create_dry, get_format
from penstock.formats._manifest import Provenance
from penstock.formats.samples.webdataset.manifest import manifest_of_tars
from penstock.formats.samples.webdataset.shards import ShardTable
from penstock.formats.samples.webdataset.writer import WebdatasetWriter
from penstock.reshape.dataset_job import TASK_BYTES, DatasetJob
from penstock.reshape.outputs import Output, Written, once_dataset
from penstock.reshape.reorder import SeededOrder
from penstock.reshape.sidecars import RowNumbers, Sidecars
from penstock.store.dry import dry_place
from penstock.store.local import output_exists
from penstock.store.place import Place
from penstock.store.unfinished import Once
from penstock.types import IntArray, Manifest, Sample

FORMAT = "webdataset"

RowsAt = Callable[[int, int], IntArray]
"""(first, stop) → int64[stop - first]: what is at these places of an order."""


@dataclass(frozen=True, slots=True)
class TarSamples:
    """The samples of one split of a dataset, or of all its shards: `(shard, table, places of its samples)`."""

    shards: tuple[tuple[Place, ShardTable, IntArray], ...]
    excluded: int = 0

    def without(self, indices: IntArray | None) -> TarSamples:
        """Return the same without the samples at `indices`: int64[k], rising."""
        if indices is None:
            return self
        borders = np.cumsum([0, *(len(places) for *_, places in self.shards)])
        cuts = np.split(indices, np.searchsorted(indices, borders[1:-1]))
        shards = tuple(
            (shard, table, np.delete(places, cut - first))
            for (shard, table, places), cut, first in zip(self.shards, cuts, borders, strict=False)
        )
        return TarSamples(shards, len(indices))

    def with_prefixes(self, prefixes: Sequence[str]) -> TarSamples:
        shards: list[tuple[Place, ShardTable, IntArray]] = []
        for (shard, table, places), prefix in zip(self.shards, prefixes, strict=True):
            shards.append((shard, replace(table, keys=[prefix + key for key in table.keys]), places))
        return replace(self, shards=tuple(shards))

    def __len__(self) -> int:
        return sum(len(places) for *_, places in self.shards)

    @property
    def size_bytes(self) -> int:
        return sum(int(table.sizes.sum()) for _, table, _ in self.shards)

    def at(self, rows: Iterable[IntArray]) -> Iterator[Sample]:
        """Return the samples at `rows`, runs of at most a few hundred, in that order."""
        for some in rows:
            block = self.block(some)
            yield from block.samples(block.read())

    def block(self, some: IntArray) -> Block:
        borders = np.cumsum([0, *(len(places) for *_, places in self.shards)])
        numbers = np.searchsorted(borders, some, side="right") - 1
        reads: list[tuple[Place, list[tuple[int, int]]]] = []
        found: dict[int, tuple[str, list[tuple[str, int]]]] = {}
        count = 0
        for number in np.unique(numbers).tolist():
            shard, table, places = self.shards[number]
            ranges: list[tuple[int, int]] = []
            chosen = np.flatnonzero(numbers == number)
            for row, place in zip(chosen.tolist(), places[some[chosen] - borders[number]].tolist(), strict=True):
                stored = range(*table.part_starts[place : place + 2].tolist())
                starts = table.contents[stored.start : stored.stop].tolist()
                sizes = table.sizes[stored.start : stored.stop].tolist()
                names = [table.part_names[part] for part in stored]
                parts = [*zip(names, starts, sizes, strict=True), *table.linked.get(place, ())]
                ranges += [(start, start + size) for _, start, size in parts]
                found[row] = (table.keys[place], [(part[0], count + number) for number, part in enumerate(parts)])
                count += len(parts)
            reads.append((shard, ranges))
        return Block(reads, [found[row] for row in range(len(some))])


@dataclass(frozen=True, slots=True)
class Block:
    """Some samples by names and ranges; picklable.

    Attributes:
        reads: ranges of shards.
        names: key of each sample, and name and range number of each of its parts.
    """

    reads: list[tuple[Place, list[tuple[int, int]]]]
    names: list[tuple[str, list[tuple[str, int]]]]

    @property
    def described(self) -> str:
        return f"{len(self.names)} samples of {redact(self.reads[0][0].path)}" if self.reads else "no sample"

    def read(self) -> Iterator[bytes | memoryview]:
        for shard, ranges in self.reads:
            yield from shard.store.get_ranges(shard.path, ranges)

    def samples(self, contents: Iterator[bytes | memoryview]) -> Iterator[Sample]:
        parts = list(contents)
        for key, names in self.names:
            yield {"__key__": key} | {name: parts[number] for name, number in names}


_MOST_ROWS = 4096
_AT_ONCE = 256
_TARS = group_format(FORMAT)


class Deal(Protocol):
    """Assigns samples to outputs; picklable."""

    @property
    def by_content(self) -> bool:
        """Whether it reads the samples; else any sequence of that length will do."""
        ...

    def __call__(self, first: int, samples: Sequence[Any], /) -> IntArray:
        """Return int64[k]: the output of each of k consecutive samples from number `first`."""
        ...


@dataclass(frozen=True, slots=True)
class TarTask:
    """Consecutive samples of the outputs: `rows` of `samples`, from number `first`."""

    samples: TarSamples
    rows: IntArray
    first: int

    @property
    def num_samples(self) -> int:
        return len(self.rows)


def tasks_of(samples: TarSamples, rows_at: RowsAt) -> Iterator[TarTask]:
    """Return all samples in an order, about 64 MiB each by their mean size."""
    step = max(1, min(_MOST_ROWS, TASK_BYTES * len(samples) // max(1, samples.size_bytes)))
    for first in range(0, len(samples), step):
        yield TarTask(samples, rows_at(first, min(len(samples), first + step)), first)


@dataclass(frozen=True, kw_only=True)
class TarJob(DatasetJob):
    """A command on tars: all splits go to one dataset, or the samples of one are assigned to several.

    Attributes:
        sources: the directories read.
        by_split: name of a split → its samples.
        seed: of a shuffle; None: samples keep their order.
        deal: assigns samples to outputs; None for one output.
        writer_options: options of the writers.
        noted: what side files record of the sources.
        what: all that determines the outputs, as plain JSON.
    """

    sources: Sequence[Place]
    by_split: Mapping[str, TarSamples]
    seed: int | None = None
    deal: Deal | None = None
    writer_options: Mapping[str, Any]
    noted: Provenance
    what: Mapping[str, Any]
    preload = (__name__,)

    @functools.cached_property
    def _tasks_by_split(self) -> dict[str, list[TarTask]]:
        return {name: list(tasks_of(one, self._rows_at(len(one)))) for name, one in self.by_split.items()}

    def _rows_at(self, count: int) -> RowsAt:
        return np.arange if self.seed is None or not count else SeededOrder(count, self.seed).rows_at

    @property
    def tasks(self) -> Sequence[TarTask]:
        return list(itertools.chain.from_iterable(self._tasks_by_split.values()))

    def _splits(self) -> tuple[tuple[str, int], ...]:
        """Return name and number of tasks of each split of the output; none if samples are assigned to outputs."""
        return tuple((name, len(tasks)) for name, tasks in self._tasks_by_split.items()) if self.deal is None else ()

    @property
    def num_excluded(self) -> int:
        return sum(one.excluded for one in self.by_split.values())

    @property
    def num_samples(self) -> int:
        return sum(map(len, self.by_split.values()))

    @property
    def reads(self) -> Sequence[Place]:
        return self.sources

    def once(self, output: Output) -> Once[Manifest]:
        store, root = output.place.store, output.place.path.rstrip("/") or output.place.path
        count = self.num_samples if self.deal is None else None
        return once_dataset(
            Place(store, root),
            FORMAT,
            dict(self.what),
            self.noted.options,
            count,
            lambda: manifest_of_tars(store, root),
        )

    # --- in this process

    @property
    def what_of_all(self) -> dict[str, Any]:
        return dict(self.what)

    def along(self, output: Output, rows: RowNumbers | None = None) -> Sidecars:
        noted = {"inputs": dict(self.noted.inputs), "options": dict(self.noted.options)}
        return Sidecars(output.place, FORMAT, (), noted, rows or tuple, keep_map=False)

    def open_writer(self, output: Output, *, overwrite: bool) -> Writer:
        writer = get_format(FORMAT).create(
            output.place.store, output.place.path, dict(self.writer_options), overwrite=overwrite
        )
        if isinstance(writer, WebdatasetWriter):
            writer.note(self.noted)
        return writer

    def fill(self, writers: Sequence[Writer], numbers: Sequence[list[range | IntArray]]) -> None:
        for split, samples in self.by_split.items():
            if self.deal is None and isinstance(writers[0], WebdatasetWriter):
                writers[0].begin_split(split)
            for first, some in self._in_order(samples):
                outputs = np.zeros(len(some), np.int64) if self.deal is None else self.deal(first, some)
                for sample, output in zip(some, outputs.tolist(), strict=True):
                    writers[output].write(sample)
                self.counter.add(len(some))

    def _in_order(self, samples: TarSamples, *, read: bool = True) -> Iterator[tuple[int, Sequence[Any]]]:
        """Return runs of samples in their order with the number of the first; only rows unless `read`."""
        rows_at = self._rows_at(len(samples))
        for first in range(0, len(samples), _AT_ONCE):
            rows = rows_at(first, min(len(samples), first + _AT_ONCE))
            yield first, list(samples.at([rows])) if read else range(len(rows))

    def rehearse(self) -> tuple[Written, ...]:
        self.require_writable()
        self.announce()
        size_bytes, deal = sum(one.size_bytes for one in self.by_split.values()), self.deal
        if deal is None:
            place = self.output.path
            return (Written(place, FORMAT, self.num_samples, None, size_bytes, excluded=self.num_excluded),)
        counts = np.zeros(len(self.outputs), np.int64)
        for samples in self.by_split.values():
            for first, some in self._in_order(samples, read=deal.by_content):
                counts += np.bincount(deal(first, some), minlength=len(counts))
        mean_bytes = size_bytes // max(1, self.num_samples)
        pairs = zip(self.outputs, counts.tolist(), strict=True)
        return tuple(Written(one.place.path, FORMAT, count, None, count * mean_bytes) for one, count in pairs)

    def require_writable(self) -> None:
        for output in self.outputs:
            dry = dry_place(output.place)
            create_dry(FORMAT, dry.store, dry.path, dict(self.writer_options), overwrite=self.options.overwrite)

    # --- in parts

    def plan(self) -> Plan:
        options = {f"--{name}": value for name, value in self.what.items()}
        options |= {"--overwrite": self.options.overwrite, "outputs": [one.place.name for one in self.outputs]}
        inputs = (PlannedInput(one.name, 0, self.noted.inputs.get(one.name, "")) for one in self.sources)
        return Plan(options, tuple(inputs), TASK_BYTES, "")

    def published_output(self, output: Output) -> Manifest | None:
        known, given = self.once(output).published(None), self.writer_options
        asked = {name: given[name] for name in ("maxcount", "maxsize", "pattern") if name in given}
        if known is None or dict(known.inputs) != dict(self.noted.inputs):
            return None
        told = {**self.noted.options, **asked}
        return known if all(known.options.get(name) == value for name, value in told.items()) else None

    def require_free_place(self, output: Output) -> None:
        if not is_free_place(output.place, _TARS.last):
            raise output_exists(output.place.path)

    def require_beginning(self, *, left: bool) -> None:
        for output in self.outputs:
            require_no_object(output.place, _TARS.last, left=left)

    def sent(self, number: int, task: TarTask, parts: Sequence[PartName]) -> tuple[int, int, Block] | None:
        # Names and ranges, never contents.
        return None if is_complete(parts) else (number, task.first, task.samples.block(task.rows))

    def part_fn(self, work: Work) -> Callable[[tuple[int, int, Block]], object]:
        jobs = tuple(replace(job, target=bare(job.target)) for job in self._assemblies(work))
        return functools.partial(write_groups, jobs, self.deal)

    def _assemblies(self, work: Work) -> list[Assembly]:
        about = (work.place, self.writer_options, self._splits())
        return [Assembly(FORMAT, output.place, *about, f"tars/{number}") for number, output in enumerate(self.outputs)]

    def wave(self, work: Work) -> Wave:
        listed, names = work.all_parts(), list[list[PartName]]()
        for output in range(len(self.outputs)):
            every = [made_of(listed, task, work.parts)[output] for task in range(len(self.tasks))]
            names.append([name for name in every if name.documents])
        return GroupWave(_TARS, work, self._assemblies(work), names)

    def commit_output(self, work: Work, wave: GroupWave, number: int, once: Once[Manifest]) -> Manifest:
        end = functools.partial(wave.end, number, wave.groups(number), self.noted, overwrite=self.options.overwrite)
        return once.commit(end)

    def count_parts(self, group: int, names: Sequence[PartName]) -> Written:
        rows, size_bytes = sum(name.documents for name in names), sum(name.tokens for name in names)
        return Written(self.outputs[group].place.path, FORMAT, rows, None, size_bytes)


def write_groups(jobs: Sequence[Assembly], deal: Deal | None, sent: tuple[int, int, Block]) -> list[PartName]:
    """Write some samples as a group for each output, even an empty one. Memory: these samples."""
    number, first, block = sent
    samples = list(block.samples(block.read()))
    outputs = np.zeros(len(samples), np.int64) if deal is None else deal(first, samples)
    found: list[PartName] = []
    for piece, job in enumerate(jobs):
        some = [sample for sample, output in zip(samples, outputs.tolist(), strict=True) if output == piece]
        fill = functools.partial(_write_all, some)
        found.append(make_group(_TARS, job, (number, piece, piece == len(jobs) - 1), fill))
    return found


def _write_all(samples: Sequence[Sample], writer: Writer) -> tuple[int, int]:
    for sample in samples:
        writer.write(sample)
    return len(samples), 0

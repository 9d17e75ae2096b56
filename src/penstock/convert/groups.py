"""Samples in groups, by many workers of this machine or of others: shared work, of which a group is a task.

What a group is follows from the source and the options alone: so the bytes do not depend on who does it, and a run
that was killed goes on with the groups that are finished. A group is a dataset of its own in the work folder, and a
part that says what it holds. All of them together become the output: on this machine by second names, in an object
store by copies under their names, which the workers make side by side; the index comes last. Tars and folders of files
become so what they are as `families` says.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._pool import Pool
from penstock.abc import Writer
from penstock.convert.columns import RowMaker
from penstock.convert.output import Written
from penstock.convert.plan_samples import SamplePlan
from penstock.convert.rows import Dataset, Group, Opened, Selected, batches, sample_digest, shown_digest
from penstock.engine.folder import bare, local_store
from penstock.engine.groups import (
    assemble,
    copy_group,
    group_part,
    is_free_place,
    kept_shards,
    publish,
    put_group,
    read_group,
    require_no_object,
)
from penstock.engine.options import Counter, RunOptions
from penstock.engine.parts import PartName, get_mark, put_mark
from penstock.engine.plan import Plan, require_same
from penstock.engine.run import Job, Wave, sweep_made
from penstock.engine.sample_groups import GROUP_FORMATS, Assembly, GroupTask
from penstock.engine.work import SCRATCH, Work, open_work, peek, refuse_old, scratch
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, PrepareError
from penstock.formats import get_format
from penstock.formats._manifest import Provenance
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.formats.shards.side import SIDE_NAME
from penstock.store.local import output_exists
from penstock.store.outputs import sweep_killed
from penstock.store.place import Place
from penstock.store.side_file import load_manifest
from penstock.types import Sample

_THREADS = 32
_NUMBERED = re.compile(r"^sample \d+: ")


@dataclass(frozen=True, kw_only=True)
class SampleJob(Job[Written]):
    """A conversion of samples in groups.

    Attributes:
        conversion: what is written.
        output: the dataset, in a store whose writers join its holder.
        options: how to run it.
        counter: counts samples.
        verify: reads the output back, before the work is discarded.
    """

    conversion: SamplePlan
    output: Place
    options: RunOptions
    counter: Counter
    verify: Callable[[Written], object]
    preload = (__name__,)

    @classmethod
    def of(cls, conversion: SamplePlan, output: Place, verify: Callable[[Written], object] = id) -> SampleJob:
        """Return the job of a conversion."""
        rows, how = conversion.given.rows, conversion.how
        counter = Counter(None if rows is None else len(rows), how.progress)
        return cls(conversion=conversion, output=output, options=how, counter=counter, verify=verify)

    def rehearse(self) -> Written:
        self.require_free()
        rows = self.conversion.given.rows
        before = None if self.options.restart else peek(self.folder)
        if before is None:
            refuse_old(self.output)
            self.require_beginning(left=False)
        require_same(before, self.plan(), self.output.path)
        if rows is not None and not len(rows) and self.last == INDEX_NAME:
            raise _no_sample(self.conversion)
        return Written(None, None)

    @property
    def last(self) -> str:
        """The file that makes the output visible."""
        family = GROUP_FORMATS.get(self.conversion.output.dataset.format)
        return INDEX_NAME if family is None else family.last

    @property
    def reads(self) -> Sequence[Place]:
        return self.conversion.given.reads

    @property
    def num_tasks(self) -> int | None:
        rows = self.conversion.given.rows
        return None if rows is None else -(-len(rows) // self.conversion.group_rows)

    @property
    def tasks(self) -> Iterable[Group]:
        return self.conversion.given.groups(self.conversion.group_rows)

    def plan(self) -> Plan:
        return self.conversion.shared

    def first_files(self) -> list[Place]:
        return [self.output]

    def finished(self) -> Written | None:
        plan, place = self.conversion, self.output
        if not place.child(self.last).exists():
            return None
        made = load_manifest(place.store, place.child(SIDE_NAME).path)
        if made is None or made.options.get("plan") != plan.recorded["options"]["plan"]:
            return None
        samples = made.options.get("samples", made.num_samples)  # of a folder, which counts files
        count = -(-samples // plan.group_rows)
        written = Written(str(made.options.get("digest")), made, samples, count, count, was_complete=True)
        if not self.options.is_distributed:
            sweep_killed(place.store, [place.path])
            self.verify(written)
        else:
            sweep_made(place, plan.output.dataset.format)
        if self.folder.is_there():
            opened = open_work(place, self.folder, restart=False, shared=False)
            with contextlib.suppress(PrepareError), opened as work:
                if work.head is None or work.head.digest == plan.shared.digest():
                    work.clear()
        return written

    def require_free(self) -> None:
        if not self.options.overwrite and not is_free_place(self.output, self.last):
            raise output_exists(self.output.path)

    def require_beginning(self, *, left: bool) -> None:
        require_no_object(self.output, self.last, left=left)

    def sent(self, number: int, task: Group, parts: Sequence[PartName]) -> tuple[Group, PartName | None] | None:
        # Samples that come once are compared with those of the group that exists.
        known = parts[0] if parts else None
        return (task, known) if known is None or task.samples is not None else None

    def part_fn(self, work: Work) -> Callable[[Any], object]:
        return functools.partial(write_group, self._group_job(work))

    def wave(self, work: Work) -> _Seconds:
        return _Seconds(self, work, self._group_job(work))

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> Written:
        listed = {} if missing else work.listed()
        names = [parts[0] for task, parts in listed.items() if self.options.takes(task)]
        return Written(None, None, sum(one.documents for one in names), len(names), work.reused, missing=missing)

    def commit(self, work: Work, wave: _Seconds) -> Written:
        plan, place, ordered = self.conversion, self.output, wave.names
        samples, rows = sum(name.documents for name in ordered), plan.given.rows
        if not ordered and wave.family is None:
            raise _no_sample(plan)
        if rows is not None and samples != len(rows):
            raise Corrupt("the source changed while it was being read", path=plan.given.shown)
        with Pool(1 if place.is_local else _THREADS, "convert") as pool:
            found = list(pool.map(functools.partial(read_group, work=work.place), ordered))
        digest = shown_digest(sum(int(group.part.digest) for group in found))
        noted = {**plan.recorded["options"], "digest": digest}
        told: dict[str, Any] = {"name": plan.output.dataset.format, "recorded": {**plan.recorded, "options": noted}}
        if wave.family is not None:
            data = [get_mark(wave.mark(task.number)) for task in wave.tasks]
            given = Provenance(inputs=plan.recorded["inputs"], options=noted | {"samples": samples})
            made = wave.family.end(found, data, self._group_job(work).assembly, given, self.options.overwrite)
        elif place.is_local:
            made = assemble(found, place, overwrite=self.options.overwrite, **told)
        else:
            made = publish(found, place, **told)
        written = Written(digest, made, samples, len(ordered), work.reused)
        self.verify(written)
        return written

    def _group_job(self, work: Work) -> GroupJob:
        plan, output = self.conversion, self.conversion.output
        about = (plan.given.dataset, plan.maker, output.dataset, output.options, plan.batch_rows)
        return GroupJob(*about, work.place, bare(self.output), self.options.is_distributed)


def _no_sample(plan: SamplePlan) -> ConfigError:
    return ConfigError("the source has no samples", path=plan.given.shown, hint="The index would have no columns")


class _Seconds(Wave):
    """What remains to be done when all groups exist.

    Attributes:
        names: of all groups, in order.
        family: how groups become the output; None for shards.
    """

    def __init__(self, job: SampleJob, work: Work, shared: GroupJob) -> None:
        self._marks = work.place.child("files")
        listed = work.listed()
        self.names = [listed[task][0] for task in sorted(listed)]
        self.family = GROUP_FORMATS.get(shared.dataset.format)
        self.fn = functools.partial(do_second, shared)
        if self.family is not None:
            self.tasks = self.family.second(self.names, shared.assembly)
        elif not job.output.is_local:  # where a group's shards go follows from how many are in those before it
            firsts = itertools.accumulate((name.tokens for name in self.names), initial=0)
            pairs = zip(self.names, firsts, strict=False)
            self.tasks = [GroupTask(name.task, (name, first)) for name, first in pairs]

    def done(self) -> Mapping[int, object]:
        """Return the finished tasks by number."""
        with contextlib.suppress(NotFound):
            return {int(path.rpartition("/")[2]): path for path in self._marks.store.list(self._marks.path)}
        return {}

    def mark(self, number: int) -> Place:
        """Return the record of a finished task."""
        return self._marks.child(f"{number:08d}")


# --- what workers do -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupJob:
    """What every worker gets.

    Attributes:
        source: where the rows are; None where they come along.
        maker: of the rows that are written.
        dataset: the output, for its format and the options of reading it back.
        options: of its writer.
        batch_rows: rows that are read at once.
        work: the folder of the plan.
        target: the output, in a store that answers with what is there now.
        read_back: compare each group with what was read: nobody reads all of the output back then.
    """

    source: Dataset | Opened | Selected | None
    maker: RowMaker
    dataset: Dataset
    options: Mapping[str, Any]
    batch_rows: int
    work: Place
    target: Place
    read_back: bool

    @property
    def assembly(self) -> Assembly:
        """What the second wave is told."""
        return Assembly(self.target, self.work, self.options)


def write_group(job: GroupJob, task: tuple[Group, PartName | None]) -> PartName:
    """Write one group as a dataset of its own, and the part that says so; or find samples that come once in it."""
    group, known = task
    format = job.dataset.format
    family = GROUP_FORMATS.get(format)
    rows = job.source.rows() if job.source is not None and group.samples is None else None
    samples = group.read(rows, job.batch_rows)
    if known is not None:
        if str(write_rows(samples, job.maker, None, format)[1]) != read_group(known, job.work).part.digest:
            hint = "Use the same samples as before, or discard the finished work: restart (--restart)"
            what = f"group {group.number} of the unfinished work has different samples"
            raise ConfigError(what, path=job.work.path, hint=hint)
        return known
    with scratch(job.work.child(SCRATCH)) as folder:
        place = Place(local_store(job.work), f"{folder}/group")
        with _named(place, job.target):
            options = job.options if family is None else family.of_group(job.options)
            with get_format(format).create(place.store, place.path, options, overwrite=False) as writer:
                count, total = write_rows(samples, job.maker, writer, format)
                manifest = writer.commit()
            if job.read_back:
                _require_same(job, group, place, total)
        blocks = manifest.block_digests
        if family is None:
            index = place.store.get(place.child(INDEX_NAME).path)
        else:
            index, blocks = family.keep(place, blocks)
        part = group_part(str(total), index, blocks, place)
        shards = len(kept_shards(index, group.number, place)) if family is None else 0
        return put_group(job.work, (group.number, 0, True), (count, shards), part, place)


@contextlib.contextmanager
def _named(group: Place, target: Place) -> Generator[None]:
    """Errors name the output, not the folder in which a group of it is made."""
    try:
        yield
    except PenstockError as error:
        if error.path is not None and error.path.startswith(group.path):
            error.path = target.path
        raise


def do_second(job: GroupJob, task: GroupTask) -> int:
    """Do a task of the second wave, and mark that it is done; its number."""
    family, data = GROUP_FORMATS.get(job.dataset.format), b""
    if family is not None:
        data = family.make(task, job.assembly)
    else:
        name, first = task.what
        copy_group(read_group(name, job.work), job.target, first)
    put_mark(job.work.child(f"files/{task.number:08d}"), data)
    return task.number


def _require_same(job: GroupJob, group: Group, place: Place, total: int) -> None:
    """That a group reads back as what was read; raises `Corrupt`."""
    written = Dataset(place, job.dataset.format, job.dataset.options, every_file=True).rows()
    rows = enumerate(itertools.chain.from_iterable(batches(written, 0, len(written), job.batch_rows)), group.start)
    format = job.dataset.format
    if sum(sample_digest(digest_number(format, index), row) for index, row in rows) != total:
        raise Corrupt(f"group {group.number} differs from the source when read back", path=place.path)


def write_rows(
    samples: Iterable[tuple[int, Sample]],
    maker: RowMaker,
    writer: Writer | None,
    format: str,
    told: Callable[[int], None] | None = None,
) -> tuple[int, int]:
    """Write rows that are made of samples, or only look at them; how many, and the sum of their digests."""
    count, total = 0, 0
    for index, sample in samples:
        row = maker(sample, index)
        if writer is not None:
            try:
                writer.write(row)
            except PenstockError as error:
                error.what = f"sample {index}: {_NUMBERED.sub('', error.what)}"  # a writer counts its own
                raise
        total += sample_digest(digest_number(format, index), row)
        count += 1
        if told is not None:
            told(count)
    return count, total


def digest_number(format: str, index: int) -> int:
    """The number that a row is digested with; a folder has an order of its own, so there it is the key alone."""
    return 0 if format == "folder" else index

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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock._pool import Pool
from penstock.abc import Executor, Writer
from penstock.convert.columns import RowMaker
from penstock.convert.output import Advance, Written
from penstock.convert.plan_samples import SamplePlan
from penstock.convert.rows import Dataset, Group, Opened, Selected, batches, sample_digest, shown_digest
from penstock.engine.ended import sweep_made
from penstock.engine.families import FAMILIES, Assembly, Second
from penstock.engine.folder import WorkFolder, local_store
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
from penstock.engine.parts import PartName, get_mark, put_mark
from penstock.engine.plan import require_same
from penstock.engine.shared import (
    HEAD_NAME,
    SCRATCH,
    SharedWork,
    open_shared,
    peek,
    refuse_old,
    scratch,
    work_folder,
)
from penstock.engine.sharing import join, kept_or_not, plain_errors, wait_for_another
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, PrepareError
from penstock.executors import make_executor
from penstock.formats import get_format
from penstock.formats._manifest import Provenance
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.formats.shards.side import SIDE_NAME
from penstock.store.cache import CachedStore
from penstock.store.local import output_exists
from penstock.store.outputs import claimed, sweep_killed
from penstock.store.place import Place
from penstock.store.side_file import load_manifest
from penstock.types import Manifest, Sample

_PRELOAD = ("penstock.convert.groups",)
_THREADS = 32
_NUMBERED = re.compile(r"^sample \d+: ")


def write_groups(plan: SamplePlan, advance: Advance, verify: Callable[[Written], None]) -> Written:
    """Do this run's share of the work, and make the output visible where it has all of it.

    Args:
        plan: what is written.
        advance: told of samples.
        verify: reads the output back, before the work is thrown away.

    Raises:
        ConfigError: the output exists, or unfinished work was asked for otherwise.
        PrepareError: another run writes it.
    """
    place, sharing = plan.output.place, plan.sharing
    folder = work_folder(place, inside=False)
    with contextlib.ExitStack() as held:
        if not sharing.is_distributed:
            place = Place(held.enter_context(claimed(place.store, place.path)), place.path)
        made = None if sharing.restart else _made(plan, folder)
        if made is not None:
            return _known_again(plan, place, made, folder, verify)
        if not plan.output.overwrite and not is_free_place(place, _last(plan)):
            raise output_exists(place.path)
        while True:
            try:
                return _write(plan, place, folder, advance, verify)
            except (ConfigError, PrepareError) as error:
                # Another finisher of the same plan was first, or is about to end.
                waited = isinstance(error, PrepareError) and wait_for_another(place, folder, sharing)
                made = _made(plan, folder) if sharing.is_distributed else None
                if made is not None:
                    return _known_again(plan, place, made, folder, verify)
                if not waited:
                    raise


def _write(
    plan: SamplePlan, place: Place, folder: WorkFolder, advance: Advance, verify: Callable[[Written], None]
) -> Written:
    sharing, rows = plan.sharing, plan.given.rows
    had = sharing.restart and folder.file(HEAD_NAME).exists()
    opened = open_shared(place, folder, restart=sharing.restart, shared=sharing.is_distributed)
    with plain_errors(place, folder), opened as work:
        if work.head is None:
            require_no_object(place, _last(plan), left=had)
        tasks = 0 if rows is None else -(-len(rows) // plan.group_rows)
        join(work, plan.shared, tasks, sharing, plan.given.reads)
        with kept_or_not(work, joins=sharing.is_distributed):
            return _Pass(plan, place, work, advance).run(verify)


def require_makeable(plan: SamplePlan) -> None:
    """That the output can be made, or unfinished work for it be gone on with; raises as `write_groups`."""
    place, rows = plan.output.place, plan.given.rows
    folder = work_folder(place, inside=False)
    if not plan.output.overwrite and not is_free_place(place, _last(plan)):
        raise output_exists(place.path)
    before = None if plan.sharing.restart else peek(folder)
    if before is None:
        refuse_old(place)
        require_no_object(place, _last(plan), left=False)
    require_same(before, plan.shared, place.path)
    if rows is not None and not len(rows) and _last(plan) == INDEX_NAME:
        raise _no_sample(plan)


def _no_sample(plan: SamplePlan) -> ConfigError:
    return ConfigError("the source has no samples", path=plan.given.shown, hint="The index would have no columns")


# --- what is there ---------------------------------------------------------------------------------------------------


def _made(plan: SamplePlan, folder: WorkFolder) -> Manifest | None:
    """The side file of the output, where that is what was asked for, and somebody may come late for it, or again."""
    place, sharing = plan.output.place, plan.sharing
    if not (sharing.is_distributed or (folder.is_there() and not plan.output.overwrite)):
        return None
    if not place.child(_last(plan)).exists():
        return None
    known = load_manifest(place.store, place.child(SIDE_NAME).path)
    asked = plan.recorded["options"]["plan"]
    return known if known is not None and known.options.get("plan") == asked else None


def _known_again(
    plan: SamplePlan, place: Place, made: Manifest, folder: WorkFolder, verify: Callable[[Written], None]
) -> Written:
    """Say that the output is there, and sweep what a killed run left; who has it alone reads it back."""
    samples = made.options.get("samples", made.num_samples)  # of a folder, which counts files
    count = -(-samples // plan.group_rows)
    written = Written(str(made.options.get("digest")), made, samples, count, count, was_complete=True)
    if not plan.sharing.is_distributed:
        sweep_killed(place.store, [place.path])
        verify(written)
    else:
        sweep_made(place, plan.output.dataset.format)
    if folder.is_there():
        with contextlib.suppress(PrepareError), open_shared(place, folder, restart=False, shared=False) as work:
            if work.head is None or work.head.digest == plan.shared.digest():
                work.clear()
    return written


def _last(plan: SamplePlan) -> str:
    """The file that makes the output visible."""
    family = FAMILIES.get(plan.output.dataset.format)
    return INDEX_NAME if family is None else family.last


# --- one run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pass:
    """A run whose plan is there."""

    plan: SamplePlan
    place: Place
    work: SharedWork
    advance: Advance

    def run(self, verify: Callable[[Written], None]) -> Written:
        """Do what is to be done; see `write_groups`."""
        work, sharing = self.work, self.plan.sharing
        with self._executor() as pool:
            if sharing.no_work and (missing := work.missing()):
                return self._told({}, missing)
            names, reused = self._groups(pool)
            work.require_unchanged_inputs()
            if sharing.part is not None and work.missing():
                return self._told(names, reused=reused)
            # Others may have written groups since, or sweep them: what follows goes by all that there are or were.
            names |= {task: parts[0] for task, parts in work.listed().items()} if sharing.is_distributed else {}
            tasks = self._second(names)
            if sharing.no_work and tasks:
                return self._told({}, [task.number for task in tasks])
            mine = (task for task in tasks if sharing.takes(task.number))
            for _ in pool.map(functools.partial(do_second, self._job()), mine):
                pass
            if sharing.part is not None:
                return self._told(names, reused=reused)
        written = self._published(names, reused)
        verify(written)
        with contextlib.suppress(OSError, PenstockError):
            work.clear()  # the output is complete and right: what can't be removed now is removed by the next run
        return written

    def _groups(self, pool: Executor) -> tuple[dict[int, PartName], int]:
        """Write the groups that are missing, of a share or of all; all that are there then, and how many were."""
        plan, given, sharing = self.plan, self.plan.given, self.plan.sharing
        names = {task: parts[0] for task, parts in self.work.listed().items()}
        total = "" if given.rows is None else f"of {len(given.rows):,}"
        samples = sum(name.documents for name in names.values())
        there = frozenset(names)

        def missing() -> Iterator[tuple[Group, PartName | None]]:
            for group in given.groups(plan.group_rows):
                if sharing.takes(group.number) and (group.number not in there or group.samples is not None):
                    yield group, names.get(group.number)

        for name in pool.map(functools.partial(write_group, self._job()), missing()):
            samples += name.documents if name.task not in there else 0
            names[name.task] = name
            self.advance(samples, total)
        return names, sum(map(sharing.takes, there))

    def _published(self, names: Mapping[int, PartName], reused: int) -> Written:
        """Make the output visible."""
        plan, place, work = self.plan, self.place, self.work
        ordered = [names[task] for task in sorted(names)]
        samples, rows = sum(name.documents for name in ordered), plan.given.rows
        family = FAMILIES.get(plan.output.dataset.format)
        if not ordered and family is None:
            raise _no_sample(plan)
        if rows is not None and samples != len(rows):
            raise Corrupt("the source changed while it was being read", path=plan.given.shown)
        with Pool(1 if place.is_local else _THREADS, "convert") as pool:
            found = list(pool.map(functools.partial(read_group, work=work.place), ordered))
        digest = shown_digest(sum(int(group.part.digest) for group in found))
        noted = {**plan.recorded["options"], "digest": digest}
        told: dict[str, Any] = {"name": plan.output.dataset.format, "recorded": {**plan.recorded, "options": noted}}
        if family is not None:
            job = self._job()
            count = len(family.second(ordered, job.assembly))
            data = [get_mark(self._mark(number)) for number in range(count)]
            given = Provenance(inputs=plan.recorded["inputs"], options=noted | {"samples": samples})
            manifest = family.end(found, data, job.assembly, given, plan.output.overwrite)
        elif place.is_local:
            manifest = assemble(found, place, overwrite=plan.output.overwrite, **told)
        else:
            manifest = publish(found, place, **told)
        return Written(digest, manifest, samples, len(ordered), reused)

    def _second(self, names: Mapping[int, PartName]) -> list[Second]:
        """What is to be done still when all groups are there, and before the end."""
        there: set[int] = set()
        with contextlib.suppress(NotFound):
            there = {int(path.rpartition("/")[2]) for path in self.work.folder.store.list(self._marks.path)}
        ordered = [names[task] for task in sorted(names)]
        family = FAMILIES.get(self.plan.output.dataset.format)
        if family is not None:
            tasks = family.second(ordered, self._job().assembly)
        elif self.place.is_local:
            tasks = []
        else:  # where a group's shards go follows from how many are in those before it
            firsts = itertools.accumulate((name.tokens for name in ordered), initial=0)
            tasks = [Second(name.task, (name, first)) for name, first in zip(ordered, firsts, strict=False)]
        return [task for task in tasks if task.number not in there]

    def _told(self, names: Mapping[int, PartName], missing: Iterable[int] = (), reused: int = 0) -> Written:
        """What there is to say of a share, or of work that is not all there."""
        mine = [name for task, name in names.items() if self.plan.sharing.takes(task)]
        samples = sum(name.documents for name in mine)
        return Written(None, None, samples, len(mine), reused, missing=self.work.shares_of(missing))

    def _executor(self) -> contextlib.AbstractContextManager[Executor]:
        plan, given, sharing = self.plan, self.plan.given, self.plan.sharing
        count = None if given.rows is None else -(-len(given.rows) // plan.group_rows)
        alone = plan.workers == 1 or sharing.no_work or (count is not None and count <= 1)
        reads = [given.dataset.place] if isinstance(given.dataset, Dataset) else []
        return make_executor(plan.executor, plan.workers, _PRELOAD, alone=alone, reads=reads, writes=[self.place])

    def _job(self) -> Job:
        plan, output = self.plan, self.plan.output
        store = self.place.store.remote if isinstance(self.place.store, CachedStore) else self.place.store
        return Job(
            plan.given.dataset,
            plan.maker,
            output.dataset,
            output.options,
            plan.batch_rows,
            self.work.place,
            Place(store, self.place.path),
            plan.sharing.is_distributed,
        )

    @property
    def _marks(self) -> Place:
        return self.work.place.child("files")

    def _mark(self, number: int) -> Place:
        return self._marks.child(f"{number:08d}")


# --- what workers do -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
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


def write_group(job: Job, task: tuple[Group, PartName | None]) -> PartName:
    """Write one group as a dataset of its own, and the part that says so; or find samples that come once in it."""
    group, known = task
    format = job.dataset.format
    family = FAMILIES.get(format)
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


def do_second(job: Job, task: Second) -> int:
    """Do a task of the second wave, and mark that it is done; its number."""
    family, data = FAMILIES.get(job.dataset.format), b""
    if family is not None:
        data = family.make(task, job.assembly)
    else:
        name, first = task.what
        copy_group(read_group(name, job.work), job.target, first)
    put_mark(job.work.child(f"files/{task.number:08d}"), data)
    return task.number


def _require_same(job: Job, group: Group, place: Place, total: int) -> None:
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

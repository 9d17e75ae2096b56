"""Conversion of samples: cut into groups by position, written by many processes, assembled, read back, compared.

What a group is follows from the source and the options alone: so the bytes do not depend on the number of workers, and
a run that was killed goes on with the groups that it finished. Formats of one writer, tars and files, are written as
one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from penstock.abc import Writer
from penstock.convert.assemble import assemble
from penstock.convert.columns import RowMaker
from penstock.convert.output import Advance, Output, ReadBack, Written
from penstock.convert.plan_samples import SamplePlan
from penstock.convert.rows import Dataset, Group, Opened, batches, sample_digest, shown_digest
from penstock.errors import ConfigError, Corrupt, PenstockError
from penstock.executors import make_executor
from penstock.formats import get_format
from penstock.store._files import is_free
from penstock.store.local import output_exists
from penstock.types import Manifest, Sample
from penstock.work.convert import Done, find_done, group_at, is_begun, open_work, save_done, sweep_work, work_of
from penstock.work.folder import WorkFolder

_PRELOAD = ("penstock.convert.samples",)
_VERIFY_BYTES = 1 << 27


def write_samples(plan: SamplePlan, output: Output, advance: Advance) -> Written:
    """Make the output visible, by many processes or by one writer; what a run that was killed had made is kept."""
    made = output.is_made()
    if plan.is_grouped and not made:
        return _write_in_groups(plan, output, advance)
    # Without its work it was found right, and the run was killed while it cleaned up: it is read once more.
    found = _finished_groups(output) if plan.is_grouped else None
    return found or _write_at_once(plan, output, advance, made=made and plan.given.rows is not None)


def verify_samples(plan: SamplePlan, output: Output, written: Written, advance: Advance) -> ReadBack:
    """Read the output back, count and compare.

    Raises:
        Corrupt: it reads back differently.
    """
    rows = output.dataset.rows()
    step = max(1, _VERIFY_BYTES // max(1, plan.mean_bytes))
    ranges = [(start, min(len(rows), start + step)) for start in range(0, len(rows), step)]
    one = functools.partial(_digest_of_range, output.dataset, plan.batch_rows)
    alone = plan.workers == 1 or len(ranges) <= 1
    total = 0
    reads = [output.place]
    with make_executor(plan.executor, plan.workers, _PRELOAD, alone=alone, most=len(ranges), reads=reads) as pool:
        for (_, stop), part in zip(ranges, pool.map(one, ranges), strict=True):
            total += part
            advance(stop, f"of {len(rows):,} read back")
    digest = shown_digest(total)
    for what, found, expected in (
        ("the converted dataset has another number of samples", len(rows), written.samples),
        ("the converted dataset reads back differently", digest, written.digest),
    ):
        if found != expected:
            raise Corrupt(what, path=output.place.path, found=found, expected=expected)
    return ReadBack(len(rows), digest, 0 if written.manifest is None else written.manifest.size_bytes)


def _digest_of_range(dataset: Dataset, step: int, found: tuple[int, int]) -> int:
    rows, (start, stop) = dataset.rows(), found
    numbered = enumerate(itertools.chain.from_iterable(batches(rows, start, stop, step)), start)
    return sum(sample_digest(_numbered(dataset.format, index), row) for index, row in numbered)


def _numbered(format: str, index: int) -> int:
    """The number that a row is digested with; a folder has an order of its own, so there it is the key alone."""
    return 0 if format == "folder" else index


# --- by one writer -------------------------------------------------------------------------------------------------


def _write_at_once(plan: SamplePlan, output: Output, advance: Advance, *, made: bool) -> Written:
    """Write with the format's one writer; only read, where a run that was killed had made the output visible."""
    groups = plan.given.groups(plan.group_rows)
    samples = itertools.chain.from_iterable(group.read(plan.given.rows, plan.batch_rows) for group in groups)

    def told(count: int) -> None:
        if count % plan.batch_rows == 0:
            advance(count, "")

    with nullcontext() if made else output.create() as writer:
        count, total = _write(samples, plan.maker, writer, output.dataset.format, told)
        manifest = None if writer is None else output.publish(writer.commit)
    return Written(shown_digest(total), manifest, count)


def _write(
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
                error.what = f"sample {index}: {error.what}"
                raise
        total += sample_digest(_numbered(format, index), row)
        count += 1
        if told is not None:
            told(count)
    return count, total


# --- in groups -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker gets.

    Attributes:
        source: where the rows are; None where they come along.
        maker: of the rows that are written.
        format: of the output.
        options: of its writer.
        batch_rows: rows that are read at once.
        work: the folder of the work.
    """

    source: Dataset | Opened | None
    maker: RowMaker
    format: str
    options: Mapping[str, Any]
    batch_rows: int
    work: WorkFolder


def write_group(job: Job, group: Group) -> Done:
    """Write one group as a dataset of its own, or find it written."""
    done = find_done(job.work, group.number)
    if done is not None and group.samples is None:
        return replace(done, reused=True)
    rows = job.source.rows() if job.source is not None and group.samples is None else None
    samples = group.read(rows, job.batch_rows)
    if done is not None:
        if str(_write(samples, job.maker, None, job.format)[1]) != done.digest:
            hint = "Give the same samples as before, or remove the work: it stands beside the output"
            what = f"group {group.number} of the unfinished work holds other samples"
            raise ConfigError(what, path=job.work.path, hint=hint)
        return replace(done, reused=True)
    place = group_at(job.work, group.number)
    with get_format(job.format).create(place.store, place.path, job.options, overwrite=True) as writer:
        count, total = _write(samples, job.maker, writer, job.format)
        manifest = writer.commit()
    done = Done(group.number, count, str(total), manifest.size_bytes)
    save_done(job.work, done)
    return done


def _write_in_groups(plan: SamplePlan, output: Output, advance: Advance) -> Written:
    """Write, assemble and publish; the work folder stays until the output is found right."""
    given, place, what = plan.given, output.place, output.what or {}
    if not output.overwrite and not is_free(place.path):
        sweep_work(place, what)
        raise output_exists(place.path)
    format, n_rows = output.dataset.format, None if given.rows is None else len(given.rows)
    with open_work(place, what) as work:
        job = Job(given.dataset, plan.maker, format, output.options, plan.batch_rows, work)
        alone = plan.workers == 1 or (n_rows is not None and n_rows <= plan.group_rows)
        dones: list[Done] = []
        reads = [given.dataset.place] if isinstance(given.dataset, Dataset) else []
        with make_executor(plan.executor, plan.workers, _PRELOAD, alone=alone, reads=reads, writes=[place]) as pool:
            for done in pool.map(functools.partial(write_group, job), given.groups(plan.group_rows)):
                dones.append(done)
                advance(sum(one.samples for one in dones), "" if n_rows is None else f"of {n_rows:,}")
        if not dones:
            raise ConfigError("the source has no sample", path=given.shown, hint="An index would have no columns")
        if n_rows is not None and sum(one.samples for one in dones) != n_rows:
            raise Corrupt("the source changed while it was read", path=given.shown)
        groups = [group_at(work, one.number) for one in dones]
        put = functools.partial(assemble, groups, place, name=format, recorded=plan.recorded)
        return _of_groups(dones, output.publish(lambda: put(overwrite=output.overwrite)))


def _finished_groups(output: Output) -> Written | None:
    """What an earlier run wrote and published, by its work folder; None where that is gone, or on its way."""
    work = work_of(output.place)
    if not is_begun(work):
        return None
    numbered = (find_done(work, number) for number in itertools.count())
    dones = [done for done in itertools.takewhile(lambda done: done is not None, numbered) if done is not None]
    return _of_groups([replace(one, reused=True) for one in dones], None) if dones else None


def _of_groups(dones: Sequence[Done], manifest: Manifest | None) -> Written:
    digest = shown_digest(sum(int(one.digest) for one in dones))
    samples, reused = sum(one.samples for one in dones), sum(one.reused for one in dones)
    return Written(digest, manifest, samples, len(dones), reused)

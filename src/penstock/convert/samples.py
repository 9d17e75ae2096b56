"""Conversion of samples: cut into groups by position, written by many processes, assembled, read back, compared.

What a group is follows from the source and the options alone: so the bytes do not depend on the number of workers, and
a run that was killed goes on with the groups that it finished. Formats of one writer, tars and files, are written as
one.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from penstock.abc import Writer
from penstock.convert.assemble import assemble
from penstock.convert.columns import PART_FORMATS, TEXT_FORMATS, Column
from penstock.convert.forms import Convert, converter
from penstock.convert.rows import KEY, MemoryRows, Place, Rows, batches, sample_digest, shown_digest
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError
from penstock.executors import make_executor
from penstock.formats import files_at, get_format
from penstock.store.local import LocalStore, output_exists
from penstock.store.outputs import sweep_killed
from penstock.store.place import Place as StorePlace
from penstock.store.unfinished import has_mark, remove_mark, set_mark
from penstock.types import Manifest, Sample
from penstock.work.convert import (
    Done,
    find_done,
    group_at,
    is_begun,
    open_work,
    remove_work,
    save_done,
    sweep_work,
    work_of,
)
from penstock.work.folder import WorkFolder

GROUPED = ("mds", *TEXT_FORMATS)
"""Formats whose shards are written by many processes."""

Advance = Callable[[int, str], None]

_PRELOAD = ("penstock.convert.samples",)
_VERIFY_BYTES = 1 << 27
_BATCH_BYTES = 1 << 23
_MOST_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """What is written.

    Attributes:
        place: of the dataset, with the options for reading back what was stored.
        columns: of its rows.
        options: of its writer.
        overwrite: replace what is there.
        mean_bytes: of a row, about.
        group_rows: rows of a group.
        recorded: fields of the side file that tell of the source.
    """

    place: Place
    columns: tuple[Column, ...]
    options: Mapping[str, Any]
    overwrite: bool
    mean_bytes: int
    group_rows: int
    recorded: Mapping[str, Any]

    @property
    def batch_rows(self) -> int:
        """Rows that are read at once."""
        return max(1, min(_MOST_BATCH, _BATCH_BYTES // max(1, self.mean_bytes)))


@dataclass(frozen=True, slots=True)
class Group:
    """Rows `[start, stop)` of the source; those of an iterable come along."""

    number: int
    start: int
    stop: int
    samples: list[Sample] | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    Attributes:
        samples: rows.
        digest: of them, before they were written.
        groups: how many; None where one writer wrote all.
        reused: of these, by an earlier run.
        manifest: of the target; None where an earlier run had published it.
    """

    samples: int
    digest: str
    groups: int | None
    reused: int
    manifest: Manifest | None


# --- rows ----------------------------------------------------------------------------------------------------------


class RowMaker:
    """Rows of the source → rows of the target."""

    def __init__(self, columns: Sequence[Column], to: str, path: str) -> None:
        self._ways: list[tuple[Column, Convert]] = []
        for column in columns:
            way = converter(column.read, column.write)
            if way is None:
                raise ConfigError(f"no way from {column.read} to {column.write}", path=path, found=column.source)
            self._ways.append((column, way))
        self._path = path
        self._keyed = to in PART_FORMATS and not any(column.name == KEY for column in columns)

    def __call__(self, sample: Sample, index: int) -> Sample:
        """One row; raises what its columns raise, with the number of the sample."""
        row: Sample = {KEY: f"{index:09d}"} if self._keyed else {}
        for column, way in self._ways:
            value = sample.get(column.source)
            if value is None and column.missing != "null":
                if column.missing == "error":
                    hint = "Name an encoding that holds null, json, or leave the column out (--columns)"
                    what = f"sample {index} lacks the column {column.source!r}, or it is null"
                    raise ConfigError(what, path=self._path, hint=hint)
                if column.source not in sample or column.write != "json":
                    continue
            try:
                row[column.name] = way(value)
            except PenstockError as error:
                error.what = f"sample {index}, column {column.source!r}: {error.what}"
                error.path = error.path or self._path
                raise
        return row


def rows_of(rows: Rows, maker: RowMaker, start: int, first: int, stop: int, step: int) -> Iterator[tuple[int, Sample]]:
    """`(index, row)` of the rows `[first, stop)`, whose numbers count from `start`."""
    index = start
    for found in batches(rows, first, stop, step):
        for sample in found:
            yield index, maker(sample, index)
            index += 1


# --- one group -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker is told."""

    source: Place | None
    source_path: str
    target: Target
    work: WorkFolder


def write_group(job: Job, group: Group) -> Done:
    """Write one group as a dataset of its own, or find it written."""
    done = find_done(job.work, group.number)
    if done is not None and group.samples is None:
        return Done(done.number, done.samples, done.digest, done.size_bytes, reused=True)
    target = job.target
    maker = RowMaker(target.columns, target.place.format, job.source_path)
    rows, first = _rows(job, group)
    found = rows_of(rows, maker, group.start, first, first + group.stop - group.start, target.batch_rows)
    if done is not None:
        if str(sum(sample_digest(index, row) for index, row in found)) != done.digest:
            hint = "Give the same samples as before, or remove the work: it stands beside the output"
            raise ConfigError(
                f"group {group.number} of the unfinished work holds other samples", path=job.work.path, hint=hint
            )
        return Done(done.number, done.samples, done.digest, done.size_bytes, reused=True)
    place = group_at(job.work, group.number)
    total, count = 0, 0
    with get_format(target.place.format).create(place.store, place.path, target.options, overwrite=True) as writer:
        for index, row in found:
            _write(writer, row, index, job.source_path)
            total += sample_digest(index, row)
            count += 1
        manifest = writer.commit()
    done = Done(group.number, count, str(total), manifest.size_bytes)
    save_done(job.work, done)
    return done


def _rows(job: Job, group: Group) -> tuple[Rows, int]:
    if group.samples is not None:
        return MemoryRows(group.samples), 0
    if job.source is None:
        raise ConfigError("a group without samples", path=job.source_path)
    return job.source.open(), group.start


def _write(writer: Writer, row: Sample, index: int, path: str) -> None:
    try:
        writer.write(row)
    except PenstockError as error:
        error.what = f"sample {index}: {error.what}"
        raise


# --- all of it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Input:
    """What is read: a place with its fingerprint and count, or samples that come once.

    Attributes:
        path: for messages.
        place: where the rows are; None for an iterable.
        rows: opened; None for an iterable.
        samples: of the iterable, the first ones included.
    """

    path: str
    place: Place | None
    rows: Rows | None
    samples: Iterable[Sample] = ()

    def groups(self, group_rows: int) -> Iterator[Group]:
        """The cut: by position alone."""
        if self.rows is not None:
            for number, start in enumerate(range(0, len(self.rows), group_rows)):
                yield Group(number, start, min(len(self.rows), start + group_rows))
            return
        run = iter(self.samples)
        for number in itertools.count():
            found = list(itertools.islice(run, group_rows))
            if not found:
                return
            yield Group(number, number * group_rows, number * group_rows + len(found), found)


def write_in_groups(
    given: Input, target: Target, store: LocalStore, workers: int, executor: str, advance: Advance
) -> Written:
    """Write, assemble and publish; the work folder stays until the caller removes it."""
    path, to = target.place.path, target.place.format
    what = _what(given, target)
    if not target.overwrite and has_mark(store, path, what) and _is_visible(target):
        # Without its work it was found right, and the run was killed while it cleaned up: it is read once more.
        return _published(store, path) or write_at_once(given, target, advance)
    if not target.overwrite and store.exists(path) and not _is_empty(store, path):
        sweep_work(StorePlace(store, path), what)
        raise output_exists(path)
    with open_work(StorePlace(store, path), what) as work:
        job = Job(given.place, given.path, target, work)
        alone = given.rows is not None and len(given.rows) <= target.group_rows
        dones: list[Done] = []
        with make_executor("inline" if alone or workers == 1 else executor, workers, _PRELOAD) as pool:
            for done in pool.map(functools.partial(write_group, job), given.groups(target.group_rows)):
                dones.append(done)
                advance(sum(one.samples for one in dones), "" if given.rows is None else f"of {len(given.rows):,}")
        groups = [group_at(work, number).path for number in range(len(dones))]
        if not groups:
            raise ConfigError("the source has no sample", path=given.path, hint="An index would have no columns")
        if given.rows is not None and sum(one.samples for one in dones) != len(given.rows):
            raise Corrupt("the source changed while it was read", path=given.path)
        set_mark(store, path, what)
        try:
            manifest = assemble(store, groups, path, name=to, recorded=target.recorded, overwrite=target.overwrite)
        except BaseException:
            remove_mark(store, path)
            raise
    return Written(
        sum(one.samples for one in dones), _digest(dones), len(dones), sum(one.reused for one in dones), manifest
    )


def write_at_once(given: Input, target: Target, advance: Advance) -> Written:
    """Write with the format's one writer; only read, where a run that was killed had made the target visible."""
    place = target.place
    maker = RowMaker(target.columns, place.format, given.path)
    total, count = 0, 0
    what = _what(given, target)
    # Samples that come once can't be known again.
    marked = isinstance(place.store, LocalStore) and given.rows is not None
    done = marked and not target.overwrite and has_mark(place.store, place.path, what) and _is_visible(target)
    if done:
        sweep_killed(place.store, files_at(place.format, place.path))
    with nullcontext() if done else _writer(target) as writer:
        for group in given.groups(target.group_rows):
            rows = given.rows if group.samples is None else MemoryRows(group.samples)
            if rows is None:
                raise ConfigError("a group without samples", path=given.path)
            first = group.start if group.samples is None else 0
            size = group.stop - group.start
            for index, row in rows_of(rows, maker, group.start, first, first + size, target.batch_rows):
                if writer is not None:
                    _write(writer, row, index, given.path)
                total += sample_digest(_numbered(place, index), row)
                count += 1
                if count % target.batch_rows == 0:
                    advance(count, "")
        manifest = None if writer is None else _commit(writer, place, what if marked else None)
    return Written(count, shown_digest(total), None, 0, manifest)


def _writer(target: Target) -> Writer:
    place = target.place
    return get_format(place.format).create(place.store, place.path, target.options, overwrite=target.overwrite)


def _commit(writer: Writer, place: Place, what: dict[str, Any] | None) -> Manifest:
    """Make the target visible; `finish` removes the mark."""
    if what is None:
        return writer.commit()
    set_mark(place.store, place.path, what)
    try:
        return writer.commit()
    except BaseException:
        remove_mark(place.store, place.path)
        raise


def verify(target: Target, written: Written, workers: int, executor: str, advance: Advance) -> int:
    """Read the target back, count and compare; returns its samples.

    Raises:
        Corrupt: it reads back differently.
    """
    rows = target.place.open()
    step = max(1, _VERIFY_BYTES // max(1, target.mean_bytes))
    ranges = [(start, min(len(rows), start + step)) for start in range(0, len(rows), step)]
    one = functools.partial(_digest_of_range, target.place, target.batch_rows)
    alone = workers == 1 or len(ranges) <= 1
    total = 0
    with make_executor("inline" if alone else executor, workers, _PRELOAD) as pool:
        for (_, stop), part in zip(ranges, pool.map(one, ranges), strict=True):
            total += part
            advance(stop, f"of {len(rows):,} read back")
    for what, found, expected in (
        ("the converted dataset has another number of samples", len(rows), written.samples),
        ("the converted dataset reads back differently", shown_digest(total), written.digest),
    ):
        if found != expected:
            raise Corrupt(what, path=target.place.path, found=found, expected=expected)
    return len(rows)


def _published(store: LocalStore, path: str) -> Written | None:
    """What an earlier run wrote and published, by its work folder; None where that is gone, or on its way."""
    work = work_of(StorePlace(store, path))
    if not is_begun(work):
        return None
    numbered = (find_done(work, number) for number in itertools.count())
    dones = [done for done in itertools.takewhile(lambda done: done is not None, numbered) if done is not None]
    if not dones:
        return None
    return Written(sum(one.samples for one in dones), _digest(dones), len(dones), len(dones), None)


def _digest_of_range(place: Place, step: int, found: tuple[int, int]) -> int:
    rows, (start, stop) = place.open(), found
    numbered = enumerate(itertools.chain.from_iterable(batches(rows, start, stop, step)), start)
    return sum(sample_digest(_numbered(place, index), row) for index, row in numbered)


def _numbered(place: Place, index: int) -> int:
    """The number that a row is digested with; a folder has an order of its own, so there it is the key alone."""
    return 0 if place.format == "folder" else index


def _digest(dones: Sequence[Done]) -> str:
    return shown_digest(sum(int(one.digest) for one in dones))


def _what(given: Input, target: Target) -> dict[str, Any]:
    """What decides the bytes, as plain JSON."""
    return {
        "to": target.place.format,
        "source": None if given.rows is None else given.rows.fingerprint,
        "columns": [[one.source, one.name, one.read, one.write, one.missing] for one in target.columns],
        "options": dict(target.options),
        "group_rows": target.group_rows,
        "version": 1,
    }


def _is_empty(store: LocalStore, path: str) -> bool:
    return store.is_folder(path) and not os.listdir(path)


def _is_visible(target: Target) -> bool:
    with suppress(NotFound):
        target.place.open()
        return True
    return False


def count_workers(workers: int | None) -> int:
    """As asked for, else one a core; raises `ConfigError`."""
    if workers is None:
        return len(os.sched_getaffinity(0))
    if workers < 1:
        raise ConfigError("the work needs a worker", found=f"workers={workers}", expected="1 or more")
    return workers


def finish(store: LocalStore, path: str) -> None:
    """The target is checked: nothing of the work is needed."""
    remove_work(StorePlace(store, path))
    remove_mark(store, path)  # last: until then the same command knows that this output is its own

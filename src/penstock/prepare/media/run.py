"""Media metadata: what the headers of images, sounds and films say, kept in `.nv-meta/index.sqlite`.

For a folder of files, and for the members of prepared tars, whose samples stay as they are. A run reads new and changed
files alone: a side file knows size and time of those that were looked at. Rows are those of all filters that ever ran,
and rows of files that are gone go. The new index is made beside the old one and takes its place at once, so a run that
is killed leaves the old one; the next run goes on with the rows that it has, in parts of shared work.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import xxhash

from penstock._regular import open_regular
from penstock._secrets import redacted_repr
from penstock.errors import ConfigError, NotFound, PenstockError, PrepareError
from penstock.executors import AnyExecutor, make_executor
from penstock.formats.samples import media_index
from penstock.formats.samples.folder.files import INDEX, is_text, list_files
from penstock.formats.samples.media_index import MediaFilter, MediaRow, decode_metadata, encode_metadata
from penstock.formats.samples.sqlite import connect, connect_to_write, system_errors
from penstock.formats.samples.webdataset.nvmeta import INFO_JSON, INFO_YAML, meta_path, read_info
from penstock.prepare.media.rows import MediaFile, MediaProblem, may_hold, media_filter, read_rows
from penstock.prepare.media.seen import Seen, Stamp, open_seen, seen_path, write_seen
from penstock.store._named import named
from penstock.store.local import LocalStore
from penstock.store.outputs import claimed_data
from penstock.store.place import Given, Place, dataset_at
from penstock.store.side_file import file_binding
from penstock.store.state import state_of
from penstock.work.folder import WorkFolder
from penstock.work.parts import PartName, get_part, put_part
from penstock.work.plan import Plan, PlannedInput
from penstock.work.shared import OF_METADATA, SharedWork, open_shared, peek, work_folder
from penstock.work.sharing import Sharing, join, plain_errors

Progress = Callable[[int, int], None]
"""Called with how many files are done, and of how many."""

_FILES_A_TASK = 500
_WORTH_A_WORKER = 2000
_MOST_WORKERS = 16
_BLOCK_BYTES = 1 << 22
_EPOCH = "1970-01-01 00:00:00"


@redacted_repr
@dataclass(frozen=True, slots=True)
class MediaSummary:
    """What a run did.

    Attributes:
        path: the dataset's folder.
        num_files: files, or members of tars, that its filters choose.
        num_read: how many of them were read in this run; the others were known.
        num_rows: rows of the index now.
        problems: files that can't be read or seem to be cut short, of those that were read.
        part: which share of the work this is about, which reads and writes no index; None for all of it.
        missing: the shares of which something is missing, where no work was to be done.
    """

    path: str
    num_files: int
    num_read: int
    num_rows: int
    problems: tuple[MediaProblem, ...]
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Task:
    """Ranges of one or several files: `(file, its members)`."""

    files: tuple[tuple[Place, tuple[MediaFile, ...]], ...]
    filters: tuple[MediaFilter, ...]
    exact: bool

    @property
    def described(self) -> str:
        """What an error calls it."""
        first, last = self.files[0], self.files[-1]
        return f"{first[0].shown}, {first[1][0].name} to {last[1][-1].name}"

    @property
    def num_files(self) -> int:
        return sum(len(members) for _, members in self.files)


def prepare_media(
    path: Given,
    *,
    by: str = "extension",
    patterns: str | Iterable[str] | None = None,
    workers: int | None = None,
    executor: AnyExecutor = "processes",
    exact: bool = False,
    follow_links: bool = False,
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    restart: bool = False,
    progress: Progress | None = None,
) -> MediaSummary:
    """Make or renew the media index of a folder of files, or of a prepared WebDataset.

    Args:
        path: the folder.
        by: `"extension"`, `"glob"` or `"header"`: which files are looked at.
        patterns: of `"glob"`, such as `"*.jpg,*.png"`.
        workers: processes; by default one for each 2,000 files, but no more than cores.
        executor: `"processes"`, `"inline"` for none, `"ray"`, another name, or an executor; see `penstock.executors`.
        exact: decode images and sound, and count, instead of believing headers.
        follow_links: read files through links that lead out of the dataset's folder.
        part, finish, no_work, restart: see `penstock.work.sharing.Sharing`; a share is of runs of 500 files.
        progress: called with what is done.

    Memory: about 500 bytes a file.

    Raises:
        NotFound: no such folder, or a WebDataset without an index of its samples.
        ConfigError: no file that the filter would choose, or a filter that can't be.
        PrepareError: a worker was killed, or another writer holds this dataset.
    """
    chosen = media_filter(by, patterns)
    root = dataset_at(path, follow_links=follow_links).bare()
    if not root.is_folder():
        raise NotFound("no such folder", path=root.path, hint="Check the path")
    is_tars = any(root.store.exists(meta_path(root.path, name)) for name in (INFO_JSON, INFO_YAML))
    index = root.child(INDEX)
    if is_tars and not index.exists():
        raise NotFound("no index of the samples", path=index.path, hint=f"Make it: `penstock prepare {root.path}`")
    sharing = Sharing(part, finish, no_work, restart)
    sharing.require_sense()
    return _prepare(root, chosen, exact, sharing, (workers, executor, progress), is_tars=is_tars)


_How: TypeAlias = tuple[int | None, AnyExecutor, Progress | None]


def _prepare(
    root: Place, chosen: MediaFilter, exact: bool, sharing: Sharing, how: _How, *, is_tars: bool
) -> MediaSummary:
    folder = work_folder(root, inside=True, name=OF_METADATA)
    with (
        plain_errors(root, folder),
        claimed_data(root.store, root.path, shared=sharing.joins),
        tempfile.TemporaryDirectory() as scratch,
    ):
        run = _Run(root, Place(LocalStore(), scratch).child("index.sqlite"), chosen, exact)
        files = run.look(is_tars=is_tars)
        if sharing.joins:
            _drop_outdated(root, folder, run.plan(files))
        if sharing.joins and not files.tasks and run.is_made():
            return run.summary(files, (), part=sharing.part)
        with open_shared(root, folder, restart=sharing.restart, shared=sharing.joins) as work:
            _join(work, run.plan(files), files, sharing)
            if sharing.no_work and (missing := work.missing()):
                return run.summary(files, (), missing=work.shares_of(missing))
            names = _results(work, files.tasks, sharing, how)
            if sharing.part is not None:
                return run.summary(files, names.values(), part=sharing.part)
            found = (_read(work.parts, names[number]) for number in range(len(files.tasks)))
            summary = run.finish(files, found, is_tars=is_tars)
            with contextlib.suppress(OSError, PenstockError):
                work.clear()  # what can't be removed now is removed by the next run
            return summary


@dataclass(frozen=True, slots=True)
class _Unit:
    """What changes as a whole: a file of a folder, or a tar. `files` are looked at in it."""

    name: str
    place: Place
    stamp: Stamp
    version: str
    files: tuple[MediaFile, ...]

    @property
    def mtime_ns(self) -> int:
        return -1 if self.version else self.stamp[1]


@dataclass(frozen=True, slots=True)
class _Files:
    """What there is to look at.

    Attributes:
        units: all files, or tars.
        known: those that an earlier run looked at in the same way, and that are the same since.
        filters: of this run and of all before.
        counts: unit → its files that a filter chooses.
        tasks: runs of those that are not known.
    """

    units: Sequence[_Unit]
    known: frozenset[str]
    filters: tuple[MediaFilter, ...]
    counts: Mapping[str, int]
    tasks: Sequence[_Task]


class _Part(msgspec.Struct, array_like=True):
    """The part of a task: its rows, as name, kind and JSON, and what is wrong with others of its files."""

    rows: list[tuple[str, str, str]]
    problems: list[MediaProblem]


class _Run:
    """One run: the old index and what is known of its files, and the `new` one, elsewhere."""

    def __init__(self, root: Place, new: Place, chosen: MediaFilter, exact: bool) -> None:
        self._root, self._index, self._new, self._exact = root, root.child(INDEX), new, exact
        self._chosen = chosen
        self._has_old = self._index.exists()
        self.filters: list[tuple[MediaFilter, str]] = []
        self._seen: Seen = Seen({}, (), False)
        if self._has_old:
            store, index = self._index.store, self._index.path
            with closing(media_index.connect_media(store, index)) as old:
                self.filters = media_index.read_filters(old, path=index)
            self._seen = open_seen(store, index, file_binding(store, index))

    def look(self, *, is_tars: bool) -> _Files:
        """What there is to look at; raises `ConfigError` where no file could be media."""
        filters = tuple(dict.fromkeys((*(one for one, _ in self.filters), self._chosen)))
        units = self.tar_units() if is_tars else self.folder_units()
        known = self.unchanged(units, filters)
        counts = {unit.name: sum(may_hold(filters, file.name) for file in unit.files) for unit in units}
        if not sum(counts.values()):
            hint = "Choose others: by header, or by glob with patterns"
            raise ConfigError(
                "no file that could be media", path=self._root.path, found=f"{len(units)} looked at", hint=hint
            )
        new = [unit for unit in units if unit.name not in known]
        return _Files(units, known, filters, counts, list(_tasks(new, filters, self._exact)))

    def is_made(self) -> bool:
        """Whether the index that is there is by this filter too."""
        return any(one == self._chosen for one, _ in self.filters)

    def plan(self, files: _Files) -> Plan:
        """What is new, by size, and time of change or version; and the index that is to be replaced."""
        store, index = self._index.store, self._index.path
        options = {
            "verb": "prepare-media",
            "--media": [[one.strategy, one.patterns] for one in files.filters],
            "--exact": self._exact,
            "--overwrite": True,
            "index": file_binding(store, index) if self._has_old else None,
        }
        inputs: list[PlannedInput] = []
        for unit in files.units:
            if unit.name not in files.known:
                inputs.append(PlannedInput(unit.name, unit.stamp[0], unit.version, max(0, unit.mtime_ns)))
        return Plan(options, tuple(inputs), _FILES_A_TASK, "")

    def summary(
        self,
        files: _Files,
        done: Iterable[PartName],
        *,
        part: tuple[int, int] | None = None,
        missing: tuple[int, ...] = (),
    ) -> MediaSummary:
        """What there is to say where no index is made."""
        names = list(done)
        num_read, num_rows = sum(name.tokens for name in names), sum(name.documents for name in names)
        return MediaSummary(self._root.path, sum(files.counts.values()), num_read, num_rows, (), part, missing)

    def folder_units(self) -> list[_Unit]:
        """Each file of the folder as one."""
        units: list[_Unit] = []
        for name in list_files(self._root.store, self._root.path):
            if is_text(name):
                place = self._root.child(name)
                stamp, version = _stamp(place)
                units.append(_Unit(name, place, stamp, version, (MediaFile(name, 0, stamp[0]),)))
        return units

    def tar_units(self) -> list[_Unit]:
        """Each tar as one, with its members by the index of its samples."""
        index = self._index
        names = list(read_info(self._root.store, self._root.path).counts)
        query = (
            "SELECT p.tar_file_id, s.sample_key || '.' || p.part_name, p.content_byte_offset, p.content_byte_size "
            "FROM sample_parts p JOIN samples s ON s.tar_file_id = p.tar_file_id AND s.sample_index = p.sample_index "
            "ORDER BY p.tar_file_id, p.content_byte_offset"
        )
        members: list[list[MediaFile]] = [[] for _ in names]
        try:
            with system_errors(index.path), closing(connect(index.store, index.path)) as old:
                for number, name, start_bytes, size_bytes in old.execute(query):
                    members[number].append(MediaFile(name, start_bytes, size_bytes))
        except (sqlite3.Error, IndexError, TypeError) as error:
            hint = f"Make it again: `penstock prepare --tar-index-only {self._root.path}`"
            raise NotFound("no index of the samples' parts", path=index.path, found=str(error), hint=hint) from None
        units: list[_Unit] = []
        for name, files in zip(names, members, strict=True):
            place = self._root.child(name)
            stamp, version = _stamp(place)
            inside = (file for file in files if file.start_bytes + file.size_bytes <= stamp[0])
            units.append(_Unit(name, place, stamp, version, tuple(inside)))
        return units

    def unchanged(self, units: Sequence[_Unit], filters: Sequence[MediaFilter]) -> frozenset[str]:
        """Units that an earlier run looked at in the same way, and that are the same since."""
        seen = self._seen
        if not set(filters) <= set(seen.filters) or (self._exact and not seen.exact):
            return frozenset()
        return frozenset(unit.name for unit in units if seen.stamps.get(unit.name) == unit.stamp)

    def finish(self, files: _Files, done: Iterable[_Part], *, is_tars: bool) -> MediaSummary:
        """Make the new index of what was read and what is known, and put it in place."""
        units, known = files.units, files.known
        problems: list[MediaProblem] = []
        if is_tars:
            _copy(self._index, self._new)
        with system_errors(self._new.path), closing(connect_to_write(self._new.path)) as new:
            # What was written ahead of old indexes is in them: leaving that mode first makes a plain file of one.
            for pragma in ("journal_mode=DELETE", "journal_mode=OFF", "synchronous=OFF"):
                new.execute(f"PRAGMA {pragma}").fetchall()
            new.execute("BEGIN")
            media_index.create_tables(new)
            kept = {file.name for unit in units if unit.name in known for file in unit.files}
            self._put_known(new, kept, is_tars)
            for found in done:
                rows = (MediaRow(name, decode_metadata(kind, text)) for name, kind, text in found.rows)
                media_index.put_rows(new, rows)
                problems += found.problems
            media_index.add_filters(new, [*self.filters, (self._chosen, _newest(units))])
            num_rows = int(new.execute("SELECT COUNT(entry_key) FROM media_metadata").fetchone()[0])
            new.execute("COMMIT")
        self._publish(Seen({unit.name: unit.stamp for unit in units}, files.filters, self._exact))
        num_read = sum(count for name, count in files.counts.items() if name not in known)
        return MediaSummary(self._root.path, sum(files.counts.values()), num_read, num_rows, tuple(problems))

    def _put_known(self, new: sqlite3.Connection, kept: set[str], is_tars: bool) -> None:
        """Rows of files that were not read again; all others go."""
        if is_tars:
            rows: list[tuple[str]] = new.execute("SELECT entry_key FROM media_metadata").fetchall()
            gone = [row for row in rows if row[0] not in kept]
            new.executemany("DELETE FROM media_metadata WHERE entry_key = ?", gone)
        elif self._has_old:
            with closing(media_index.connect_media(self._index.store, self._index.path)) as old:
                rows_of_old = media_index.read_rows(old, path=self._index.path)
                media_index.put_rows(new, (row for row in rows_of_old if row.name in kept))

    def _publish(self, seen: Seen) -> None:
        store, path = self._index.store, self._index.path
        index = store.stage(path, overwrite=True)
        side = None
        try:
            index.append_file(self._new.path)
            side = store.stage(seen_path(path), overwrite=True)
            side.write(write_seen(seen, file_binding(self._new.store, self._new.path)))
            # The index first: without its side file the next run only reads more than it had to.
            store.commit([index, side])
        except BaseException:
            index.abort()
            if side is not None:
                side.abort()
            raise


# --- work ----------------------------------------------------------------------------------------------------------


def _tasks(units: Iterable[_Unit], filters: Sequence[MediaFilter], exact: bool) -> Iterator[_Task]:
    """Runs of about 500 files."""
    waiting: list[tuple[Place, tuple[MediaFile, ...]]] = []
    count = 0
    for unit in units:
        files = [file for file in unit.files if may_hold(filters, file.name)]
        for first in range(0, len(files), _FILES_A_TASK):
            some = tuple(files[first : first + _FILES_A_TASK])
            waiting.append((unit.place, some))
            count += len(some)
            if count >= _FILES_A_TASK:
                yield _Task(tuple(waiting), tuple(filters), exact)
                waiting, count = [], 0
    if waiting:
        yield _Task(tuple(waiting), tuple(filters), exact)


@dataclass(frozen=True, slots=True)
class _Job:
    """A task, its number, and where its part goes."""

    number: int
    task: _Task
    parts: Place

    @property
    def described(self) -> str:
        """What an error calls it."""
        return self.task.described


def _work(job: _Job) -> PartName:
    """Read the files of one task, and put its part; runs in a worker, perhaps in two at once."""
    task = job.task
    rows: list[tuple[str, str, str]] = []
    problems: list[MediaProblem] = []
    for place, files in task.files:
        for found in read_rows(place, files, task.filters, exact=task.exact):
            if isinstance(found, MediaRow):
                rows.append((found.name, *encode_metadata(found.metadata)))
            else:
                problems.append(found)
    data = msgspec.msgpack.encode(_Part(rows, problems))
    counts = {"documents": len(rows), "tokens": task.num_files, "num_dropped": len(problems)}
    return put_part(job.parts, job.number, data, **counts)


def _read(parts: Place, name: PartName) -> _Part:
    return msgspec.msgpack.decode(get_part(parts, name), type=_Part)


def _drop_outdated(root: Place, folder: WorkFolder, plan: Plan) -> None:
    """Remove work for an index in whose place another is now: who put it there was killed before the end."""
    if not folder.is_there():
        return
    before = peek(folder)
    options = {} if before is None else before.options
    outdated = options.get("verb") == plan.options["verb"] and options.get("index") != plan.options["index"]
    if outdated or (before is None and root.is_local):
        with contextlib.suppress(PrepareError), open_shared(root, folder, restart=False, shared=False) as work:
            work.clear()


def _join(work: SharedWork, plan: Plan, files: _Files, sharing: Sharing) -> None:
    """Take part in the work; alone, that on other files is thrown away, where a lock says that nobody is at it."""
    before = work.plan
    is_same = before is None or (before.inputs, before.options) == (plan.inputs, plan.options)
    is_ours = before is not None and before.options.get("verb") == plan.options["verb"]
    if is_ours and not is_same and not sharing.joins and isinstance(work.folder.store, LocalStore):
        work.clear()
    join(work, plan, len(files.tasks), sharing)
    if work.plan is not None and work.plan.inputs != plan.inputs:
        what, hint = "files changed after the work began", "Throw the finished work away: restart (--restart)"
        raise PrepareError(what, path=work.output.path, hint=hint)


def _results(
    work: SharedWork,
    tasks: Sequence[_Task],
    sharing: Sharing,
    how: _How,
) -> dict[int, PartName]:
    """Task → its part, of those that are this run's; what is missing is made."""
    workers, executor, progress = how
    listed = work.listed()
    mine = [number for number in range(len(tasks)) if sharing.takes(number)]
    there = {number: listed[number][0] for number in mine if number in listed}
    jobs = [_Job(number, tasks[number], work.parts) for number in mine if number not in there]
    total = sum(tasks[number].num_files for number in mine)
    if workers is None and executor == "processes":
        workers = max(1, min(len(os.sched_getaffinity(0)), _MOST_WORKERS, total // _WORTH_A_WORKER))
    done = sum(name.tokens for name in there.values())
    seen = {"reads": [place for job in jobs for place, _ in job.task.files], "writes": [work.folder.place]}
    with make_executor(executor, workers, [__name__], alone=workers == 1, most=len(jobs), **seen) as pool:
        for job, name in zip(jobs, pool.map(_work, jobs), strict=True):
            there[job.number] = name
            done += name.tokens
            if progress is not None:
                progress(done, total)
    return there


# --- files ---------------------------------------------------------------------------------------------------------


def _stamp(file: Place) -> tuple[Stamp, str]:
    """What tells whether a file is the same still, and the version that a store without times gives it."""
    if isinstance(file.store, LocalStore):
        status = os.stat(file.store.real_path(file.path))
        return (status.st_size, status.st_mtime_ns), ""
    state = state_of(file)
    change = xxhash.xxh3_64_intdigest(state.version.encode()) >> 1 if state.version else -1
    return (state.size_bytes, change), state.version


def _newest(units: Sequence[_Unit]) -> str:
    """When the newest file was changed, as sqlite writes it: the same for the same data."""
    newest_ns = max((unit.mtime_ns for unit in units), default=-1)
    return _EPOCH if newest_ns < 0 else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest_ns // 10**9))


def _copy(index: Place, new: Place) -> None:
    store = index.store
    try:
        with open(new.path, "wb") as file:
            if isinstance(store, LocalStore):
                with open_regular(store.real_path(index.path)) as source:
                    shutil.copyfileobj(source, file, _BLOCK_BYTES)
            else:
                file.write(store.get(index.path))
    except OSError as error:
        raise named(error, new.path) from None

"""Media metadata: what the headers of images, sounds and films say, kept in `.nv-meta/index.sqlite`.

For a folder of files, and for the members of prepared tars, whose samples stay as they are. A run reads new and changed
files alone: a side file knows size and time of those that were looked at. Rows are those of all filters that ever ran,
and rows of files that are gone go. The new index is made beside the old one and takes its place at once, so a run that
is killed leaves the old one; the next run goes on with the rows that it has, in parts of shared work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock._secrets import redacted_repr
from penstock.codec.av_header import MediaDepth
from penstock.engine.options import RunOptions
from penstock.engine.parts import PartName
from penstock.engine.plan import Plan, PlannedInput
from penstock.engine.shared import OF_METADATA, SharedWork, open_shared, work_folder
from penstock.engine.sharing import plain_errors
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.executors import AnyExecutor, make_executor
from penstock.formats.samples.folder.files import INDEX
from penstock.formats.samples.media_index import MediaFilter
from penstock.formats.samples.webdataset.nvmeta import INFO_JSON, INFO_YAML, meta_path
from penstock.prepare.media.index import MediaIndex, content_digest, make_index, publish, read_index
from penstock.prepare.media.rows import MediaProblem, may_hold, media_depth, media_filter
from penstock.prepare.media.seen import Seen
from penstock.prepare.media.share import drop_outdated, take_part
from penstock.prepare.media.tasks import FILES_A_TASK, Job, Part, Task, cut_tasks, measure_job, read_part, run_job
from penstock.prepare.media.units import Unit, folder_units, newest, tar_units
from penstock.store.local import LocalStore
from penstock.store.outputs import claimed
from penstock.store.place import Given, Place, dataset_at
from penstock.store.writable import require_writable

Progress = Callable[[int, int], None]
"""Called with how many files are done, and of how many."""

BeforeCounting = Callable[[int, int], None]
"""Called before files are read, with the number and bytes of those whose packets must be counted."""

_WORTH_A_WORKER = 2000
_MOST_WORKERS = 16


@redacted_repr
@dataclass(frozen=True, slots=True)
class MediaSummary:
    """Result of `prepare_media`.

    Attributes:
        path: directory of the dataset.
        num_files: number of files, or members of tars, that match the filter.
        num_read: number of files read in this run; the others were already indexed.
        num_rows: number of rows in the index now.
        problems: files read in this run that are unreadable or seem to be truncated.
        part: `(i, n)` if this was part i of a distributed job, which doesn't write the index.
        missing: parts that aren't done, with `no_work`.
        traits: property → number of images read that decoders may treat differently: 16 bits per channel, an EXIF
            orientation, or an alpha channel.
    """

    path: str
    num_files: int
    num_read: int
    num_rows: int
    problems: tuple[MediaProblem, ...]
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()
    traits: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])


def prepare_media(
    path: Given,
    *,
    by: str = "extension",
    patterns: str | Iterable[str] | None = None,
    workers: int | None = None,
    executor: AnyExecutor = "processes",
    exact: bool = False,
    headers_only: bool = False,
    follow_links: bool = False,
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    restart: bool = False,
    progress: Progress | None = None,
    before_counting: BeforeCounting | None = None,
) -> MediaSummary:
    """Write or update the media index of a directory of files, or of a prepared WebDataset.

    Memory: about 500 bytes per file.

    Args:
        path: the directory.
        by: how media files are recognized: `"extension"`, `"glob"` or `"header"`.
        patterns: patterns for `"glob"`, such as `"*.jpg,*.png"`.
        workers: number of processes; by default one per 2,000 files, up to the number of cores.
        executor: `"processes"`, `"inline"` (this process), `"ray"`, another name, or an executor; see
            `penstock.executors`.
        exact: decode images, video and audio, and count, instead of trusting headers.
        headers_only: omit durations and counts that headers don't state reliably. By default such files are read once,
            and their packets counted without decoding.
        follow_links: allow links that lead out of the dataset's directory.
        part, finish, no_work, restart: distributed job, see `penstock.engine.options.RunOptions`; a part consists of
            runs of 500 files.
        progress: called with what is done.
        before_counting: called before files are read, with the number and total bytes of files whose packets will be
            counted, if there are any; files named as audio or video are opened for it.

    Returns:
        A summary with the number of files indexed.

    Raises:
        NotFound: the directory doesn't exist, or a WebDataset has no index of its samples.
        ConfigError: the filter is invalid or matches no file.
        PrepareError: a worker was killed, or another writer holds this dataset.

    Examples:
        >>> import penstock as ps
        >>> summary = ps.prepare_media("pictures", executor="inline")
        >>> ps.open("pictures").get_media_metadata("002.png").width
        8
    """
    chosen, depth = media_filter(by, patterns), media_depth(exact=exact, headers_only=headers_only)
    root = dataset_at(path, follow_links=follow_links).bare()
    require_writable(root.store, root.path)
    if not root.is_folder():
        what = "a file instead of a folder" if root.is_file() else "no such folder"
        raise NotFound(what, path=root.path, hint="Pass a folder of media files, or of prepared tar shards")
    is_tars = any(root.store.exists(meta_path(root.path, name)) for name in (INFO_JSON, INFO_YAML))
    index = root.child(INDEX)
    if is_tars and not index.exists():
        raise NotFound(
            "there is no sample index", path=index.path, hint=f"Create it with `penstock prepare {root.path}`"
        )
    sharing = RunOptions(part=part, finish=finish, no_work=no_work, restart=restart)
    return _prepare(root, chosen, sharing, _How(depth, workers, executor, progress, before_counting), is_tars=is_tars)


@dataclass(frozen=True, slots=True)
class _How:
    """How files are read, and by whom; as of `prepare_media`."""

    depth: MediaDepth
    workers: int | None
    executor: AnyExecutor
    progress: Progress | None
    before_counting: BeforeCounting | None


def _prepare(root: Place, chosen: MediaFilter, sharing: RunOptions, how: _How, *, is_tars: bool) -> MediaSummary:
    folder = work_folder(root, inside=True, name=OF_METADATA)
    with plain_errors(root, folder), claimed(root.store, root.path, shared=sharing.is_distributed):
        files = _look(root, chosen, how.depth, is_tars=is_tars)
        if sharing.is_distributed:
            drop_outdated(root, folder, files.plan())
        if sharing.is_distributed and not files.tasks and files.is_made():
            return files.summary((), part=sharing.part)
        with open_shared(root, folder, restart=sharing.restart, shared=sharing.is_distributed) as work:
            take_part(work, files.plan(), len(files.tasks), sharing)
            if not (sharing.is_distributed and files.is_outdated()):
                return _take_part(files, work, sharing, how)
            work.clear()  # others have ended it meanwhile, and nobody would end this
    return _prepare(root, chosen, replace(sharing, restart=False), how, is_tars=is_tars)


def _take_part(files: _Files, work: SharedWork, sharing: RunOptions, how: _How) -> MediaSummary:
    if sharing.no_work and (missing := work.missing()):
        return files.summary((), missing=work.shares_of(missing))
    names = _results(work, files.tasks, sharing, how)
    if sharing.part is not None:
        return files.summary(names.values(), part=sharing.part)
    summary = _finish(files, work, names)
    with contextlib.suppress(OSError, PenstockError):
        work.clear()  # what can't be removed now is removed by the next run
    return summary


@dataclass(frozen=True, slots=True)
class _Files:
    """What there is to look at.

    Attributes:
        root: the dataset's folder.
        old: the index that is there.
        chosen: the filter of this run; `filters` are those of all before, too.
        depth: how much of each is read.
        is_tars: they are members of tars.
        units: all files, or tars.
        known: those that an earlier run looked at in the same way, and that are the same since.
        counts: unit → its files that a filter chooses.
        tasks: runs of those that are not known.
    """

    root: Place
    old: MediaIndex
    chosen: MediaFilter
    filters: tuple[MediaFilter, ...]
    depth: MediaDepth
    is_tars: bool
    units: Sequence[Unit]
    known: frozenset[str]
    counts: Mapping[str, int]
    tasks: Sequence[Task]

    def is_made(self) -> bool:
        """Whether the index that is there is by this filter too."""
        return any(one == self.chosen for one, _ in self.old.filters)

    def is_outdated(self) -> bool:
        """Whether another index has taken the place of the one that was there."""
        place = self.root.child(INDEX)
        return (content_digest(place) if place.exists() else None) != self.old.binding

    def plan(self) -> Plan:
        """What is new, by size, and time of change or version; and the index that is to be replaced."""
        options = {
            "verb": "prepare-media",
            "--media": [[one.strategy, one.patterns] for one in self.filters],
            "--exact": self.depth == "exact",
            "--headers-only": self.depth == "headers",
            "--overwrite": True,
            "index": self.old.binding,
        }
        new = (unit for unit in self.units if unit.name not in self.known)
        inputs = [PlannedInput(unit.name, unit.stamp[0], unit.version, max(0, unit.mtime_ns)) for unit in new]
        return Plan(options, tuple(inputs), FILES_A_TASK, "")

    def summary(
        self,
        done: Iterable[PartName],
        *,
        part: tuple[int, int] | None = None,
        missing: tuple[int, ...] = (),
    ) -> MediaSummary:
        """What there is to say where no index is made."""
        names = list(done)
        num_read, num_rows = sum(name.tokens for name in names), sum(name.documents for name in names)
        return MediaSummary(self.root.path, sum(self.counts.values()), num_read, num_rows, (), part, missing)


def _look(root: Place, chosen: MediaFilter, depth: MediaDepth, *, is_tars: bool) -> _Files:
    """What there is to look at; raises `ConfigError` where no file could be media."""
    old = read_index(root)
    filters = tuple(dict.fromkeys((*(one for one, _ in old.filters), chosen)))
    units = tar_units(root) if is_tars else folder_units(root)
    known = old.unchanged(units, filters, depth=depth)
    counts = {unit.name: sum(may_hold(filters, file.name) for file in unit.files) for unit in units}
    if not sum(counts.values()):
        found = f"{len(units)} files checked"
        hint = "Choose files by content with --media-by-header, or by name with --media-by-glob '*.jpg,*.png' (media=)"
        raise ConfigError("no media files", path=root.path, found=found, hint=hint)
    tasks = list(cut_tasks((unit for unit in units if unit.name not in known), filters, depth))
    return _Files(root, old, chosen, filters, depth, is_tars, units, known, counts, tasks)


def _results(work: SharedWork, tasks: Sequence[Task], sharing: RunOptions, how: _How) -> dict[int, PartName]:
    """Task → its part, of those that are this run's; what is missing is made."""
    workers, executor, progress = how.workers, how.executor, how.progress
    listed = work.listed()
    mine = [number for number in range(len(tasks)) if sharing.takes(number)]
    there = {number: listed[number][0] for number in mine if number in listed}
    jobs = [Job(number, tasks[number], work.parts) for number in mine if number not in there]
    total = sum(tasks[number].num_files for number in mine)
    if workers is None and executor == "processes":
        workers = max(1, min(len(os.sched_getaffinity(0)), _MOST_WORKERS, total // _WORTH_A_WORKER))
    done = sum(name.tokens for name in there.values())
    seen = {"reads": [place for job in jobs for place, _ in job.task.files], "writes": [work.folder.place]}
    with make_executor(executor, workers, [run_job.__module__], alone=workers == 1, most=len(jobs), **seen) as pool:
        if how.before_counting is not None and how.depth == "counts":
            sizes = list(pool.map(measure_job, jobs))
            if num_files := sum(count for count, _ in sizes):
                how.before_counting(num_files, sum(size_bytes for _, size_bytes in sizes))
        for job, name in zip(jobs, pool.map(run_job, jobs), strict=True):
            there[job.number] = name
            done += name.tokens
            if progress is not None:
                progress(done, total)
    return there


def _finish(files: _Files, work: SharedWork, names: Mapping[int, PartName]) -> MediaSummary:
    """Make the new index of what was read and what is known, and put it in place."""
    units, known, old = files.units, files.known, files.old
    kept = {file.name for unit in units if unit.name in known for file in unit.files}
    filters = (*old.filters, (files.chosen, newest(units)))
    traits: Counter[str] = Counter()

    def read(number: int) -> Part:
        part = read_part(work.parts, names[number])
        traits.update(part.traits)
        return part

    parts = map(read, range(len(files.tasks)))
    with tempfile.TemporaryDirectory() as scratch:
        new = Place(LocalStore(), scratch).child("index.sqlite")
        num_rows, problems = make_index(old, new, kept, filters, parts, is_tars=files.is_tars)
        publish(old, new, Seen({unit.name: unit.stamp for unit in units}, files.filters, files.depth))
    num_read = sum(count for name, count in files.counts.items() if name not in known)
    return MediaSummary(
        files.root.path, sum(files.counts.values()), num_read, num_rows, problems, traits=dict(sorted(traits.items()))
    )

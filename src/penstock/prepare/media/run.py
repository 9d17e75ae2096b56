"""The job of `penstock prepare-media`: write metadata of images, audio and video to `.nv-meta/index.sqlite`.

It indexes a directory of files, or the members of prepared tars, whose samples stay as they are. Only new and changed
files are read: a side file records size and time of the files that earlier runs read. The index has the rows of all
filters that ever ran; rows of deleted files are removed. The new index replaces the old one at once, so a killed run
leaves the old one. Its rows are kept as parts in the work folder, and the next run continues with them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock._secrets import redacted_repr
from penstock.abc import Executor
from penstock.codec.av_header import MediaDepth
from penstock.engine.folder import WorkFolder
from penstock.engine.options import NumberCounter, RunOptions
from penstock.engine.parts import PartName, get_part, made_of, put_part
from penstock.engine.plan import Plan, PlannedInput
from penstock.engine.run import Job, run
from penstock.engine.work import Work, open_work, peek, work_folder
from penstock.errors import ConfigError, NotFound, PrepareError
from penstock.executors import AnyExecutor
from penstock.formats.samples.folder.files import INDEX
from penstock.formats.samples.media_index import MediaFilter, MediaRow, encode_metadata
from penstock.formats.samples.webdataset.nvmeta import INFO_JSON, INFO_YAML, meta_path
from penstock.prepare.media.index import (
    MediaIndex,
    Part,
    Unit,
    content_digest,
    folder_units,
    make_index,
    newest,
    publish,
    read_index,
    tar_units,
)
from penstock.prepare.media.rows import (
    MediaFile,
    MediaProblem,
    may_hold,
    measure_packets,
    media_depth,
    media_filter,
    read_rows,
)
from penstock.store.local import LocalStore
from penstock.store.names import METADATA_WORK
from penstock.store.outputs import claimed
from penstock.store.place import Given, Place, dataset_at
from penstock.store.put import require_writable

Progress = Callable[[int, int], None]
"""Called with the number of files done, and their total number."""

BeforeCounting = Callable[[int, int], None]
"""Called before files are read, with the number and bytes of those whose packets must be counted."""

FILES_A_TASK = 500
_VERB = "prepare-media"
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
        part: `(i, n)`: do part i (from 0) of n parts of a distributed job. A part consists of runs of 500 files.
        finish: finalize the distributed job, doing missing work first.
        no_work: with `finish`, only commit if nothing is missing.
        restart: discard existing work.
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
    options = RunOptions(executor, workers, part, finish, no_work, restart, overwrite=True, progress=progress)
    return run(MediaJob(root, options, chosen, depth, is_tars, before_counting))


@dataclass(frozen=True, slots=True)
class MediaTask:
    """Ranges of one or several files: `(file, its members)`."""

    number: int
    files: tuple[tuple[Place, tuple[MediaFile, ...]], ...]
    filters: tuple[MediaFilter, ...]
    depth: MediaDepth

    @property
    def described(self) -> str:
        first, last = self.files[0], self.files[-1]
        return f"{first[0].shown}, {first[1][0].name} to {last[1][-1].name}"

    @property
    def num_samples(self) -> int:
        return sum(len(members) for _, members in self.files)


def _cut_tasks(units: Iterable[Unit], filters: Sequence[MediaFilter], depth: MediaDepth) -> Iterator[MediaTask]:
    """Cut the files that a filter may choose into tasks of about 500 files."""
    waiting: list[tuple[Place, tuple[MediaFile, ...]]] = []
    number = count = 0
    for unit in units:
        files = [file for file in unit.files if may_hold(filters, file.name)]
        for first in range(0, len(files), FILES_A_TASK):
            some = tuple(files[first : first + FILES_A_TASK])
            waiting.append((unit.place, some))
            count += len(some)
            if count >= FILES_A_TASK:
                yield MediaTask(number, tuple(waiting), tuple(filters), depth)
                waiting, count, number = [], 0, number + 1
    if waiting:
        yield MediaTask(number, tuple(waiting), tuple(filters), depth)


def run_task(parts: Place, task: MediaTask) -> PartName:
    """Read the files of a task and write its part; runs in a worker, possibly in two workers at once."""
    rows: list[tuple[str, str, str]] = []
    problems: list[MediaProblem] = []
    traits: collections.Counter[str] = collections.Counter()
    for place, files in task.files:
        for found in read_rows(place, files, task.filters, depth=task.depth):
            if isinstance(found, MediaRow):
                rows.append((found.name, *encode_metadata(found.metadata)))
                traits.update(found.traits)
            else:
                problems.append(found)
    data = msgspec.msgpack.encode(Part(rows, problems, dict(traits)))
    counts = {"documents": len(rows), "tokens": task.num_samples, "num_dropped": len(problems)}
    return put_part(parts, task.number, data, **counts)


def _measure_task(task: MediaTask) -> tuple[int, int]:
    """Return number and bytes of the files of a task that `run_task` reads whole to count packets."""
    sizes = [measure_packets(place, files, task.filters) for place, files in task.files]
    return sum(num_files for num_files, _ in sizes), sum(size_bytes for _, size_bytes in sizes)


@dataclass(frozen=True, slots=True)
class _Contents:
    """The current index, the filters of all runs, and the files or tars of a dataset.

    Attributes:
        known: names of units that an earlier run read in the same way, and that didn't change since.
        counts: unit → number of its files that a filter chooses.
        tasks: files of all units that aren't known.
    """

    old: MediaIndex
    filters: tuple[MediaFilter, ...]
    units: Sequence[Unit]
    known: frozenset[str]
    counts: Mapping[str, int]
    tasks: Sequence[MediaTask]


@dataclass
class MediaJob(Job[MediaSummary]):
    """Writes or updates the media index of a dataset. `chosen` is the filter of this run."""

    preload = (run_task.__module__,)

    output: Place
    options: RunOptions
    chosen: MediaFilter
    depth: MediaDepth
    is_tars: bool
    before_counting: BeforeCounting | None

    @functools.cached_property
    def contents(self) -> _Contents:
        root, depth = self.output, self.depth
        old = read_index(root)
        filters = tuple(dict.fromkeys((*(one for one, _ in old.filters), self.chosen)))
        units = tar_units(root) if self.is_tars else folder_units(root)
        known = old.unchanged(units, filters, depth=depth)
        counts = {unit.name: sum(may_hold(filters, file.name) for file in unit.files) for unit in units}
        if not sum(counts.values()):
            found = f"{len(units)} files checked"
            hint = (
                "Choose files by content with --media-by-header, or by name with --media-by-glob '*.jpg,*.png' (media=)"
            )
            raise ConfigError("no media files", path=root.path, found=found, hint=hint)
        tasks = tuple(_cut_tasks((unit for unit in units if unit.name not in known), filters, depth))
        return _Contents(old, filters, units, known, counts, tasks)

    @property
    def folder(self) -> WorkFolder:
        return work_folder(self.output, inside=True, name=METADATA_WORK)

    @property
    def tasks(self) -> Sequence[MediaTask]:
        return self.contents.tasks

    @property
    def opened(self) -> Sequence[Place]:
        return [place for task in self.tasks for place, _ in task.files]

    @property
    def most_workers(self) -> int:
        options, mine = self.options, [task for task in self.tasks if self.options.takes(task.number)]
        if options.workers is None and options.executor == "processes":
            return min(len(mine), _MOST_WORKERS, sum(task.num_samples for task in mine) // _WORTH_A_WORKER)
        return min(len(mine), options.workers or len(mine))

    def plan(self) -> Plan:
        contents = self.contents
        options = {
            "verb": _VERB,
            "--media": [[one.strategy, one.patterns] for one in contents.filters],
            "--exact": self.depth == "exact",
            "--headers-only": self.depth == "headers",
            "--overwrite": True,
            "index": contents.old.binding,
        }
        new = (unit for unit in contents.units if unit.name not in contents.known)
        inputs = [PlannedInput(unit.name, unit.stamp[0], unit.version, max(0, unit.mtime_ns)) for unit in new]
        return Plan(options, tuple(inputs), FILES_A_TASK, "")

    def finished(self) -> MediaSummary | None:
        # Holding the dataset removes the lock of a killed run. If another run holds it alone, this one fails later.
        with contextlib.suppress(PrepareError), self.hold():
            vars(self).pop("contents", None)  # look again
            self._drop_outdated()
            if not self.tasks and any(one == self.chosen for one, _ in self.contents.old.filters):
                return self._summary((), part=self.options.part)
        return None

    def hold(self) -> contextlib.AbstractContextManager[object]:
        return claimed(self.output.store, self.output.path, shared=self.options.is_distributed)

    def adopt(self, work: Work) -> bool:
        """Discard work on other files, if a lock proves that no other run is at it."""
        before, plan = work.plan, self.plan()
        is_same = before is None or (before.inputs, before.options) == (plan.inputs, plan.options)
        is_ours = before is not None and before.options.get("verb") == _VERB
        if is_ours and not is_same and not self.options.is_distributed and work.folder.store.is_local:
            work.clear()
        return False

    def is_current(self, work: Work) -> bool:
        plan = self.plan()
        if work.plan is not None and work.plan.inputs != plan.inputs:
            known = set(work.plan.inputs)
            changed = next((one.name for one in plan.inputs if one not in known), work.plan.inputs[0].name)
            what = f"the input {changed} changed after the job started"
            raise PrepareError(what, path=self.output.path, hint="Discard the finished parts: restart (--restart)")
        if not self.options.is_distributed:
            return True
        index, binding = self.output.child(INDEX), self.contents.old.binding
        is_current = (content_digest(index) if index.exists() else None) == binding
        if not is_current:
            vars(self).pop("contents", None)  # look again
        return is_current

    def start(self, work: Work, pool: Executor) -> None:
        self.counter = NumberCounter(sum(task.num_samples for task in self.tasks), self.options.progress)
        if self.before_counting is None or self.depth != "counts":
            return
        listed, takes = work.listed(), self.options.takes
        tasks = [one for one in self.tasks if takes(one.number) and one.number not in listed]
        sizes = list(pool.map(_measure_task, tasks))
        if num_files := sum(count for count, _ in sizes):
            self.before_counting(num_files, sum(size_bytes for _, size_bytes in sizes))

    def part_fn(self, work: Work) -> Callable[[MediaTask], PartName]:
        return functools.partial(run_task, work.parts)

    def commit(self, work: Work, wave: Any) -> MediaSummary:
        """Make the new index from the parts and the rows of unchanged files, and put it in place."""
        contents = self.contents
        units, known, old = contents.units, contents.known, contents.old
        kept = {file.name for unit in units if unit.name in known for file in unit.files}
        filters = (*old.filters, (self.chosen, newest(units)))
        traits: collections.Counter[str] = collections.Counter()
        listed = work.listed()

        def read(task: MediaTask) -> Part:
            name = made_of(listed, task.number, work.parts)[0]
            part = msgspec.msgpack.decode(get_part(work.parts, name), type=Part)
            traits.update(part.traits)
            return part

        parts = map(read, contents.tasks)
        with tempfile.TemporaryDirectory() as scratch:
            new = Place(LocalStore(), scratch).child("index.sqlite")
            num_rows, problems = make_index(old, new, kept, filters, parts, is_tars=self.is_tars)
            publish(old, new, contents.filters, self.depth, units)
        num_files = sum(contents.counts.values())
        num_read = sum(count for name, count in contents.counts.items() if name not in known)
        traits_found = dict(sorted(traits.items()))
        return MediaSummary(self.output.path, num_files, num_read, num_rows, problems, traits=traits_found)

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> MediaSummary:
        if missing:
            return self._summary((), missing=missing)
        mine = (names[0] for task, names in work.listed().items() if self.options.takes(task))
        return self._summary(mine, part=self.options.part)

    def _drop_outdated(self) -> None:
        """Remove work that a killed run left after its commit: for an index that was replaced, or without any tasks."""
        root, folder, plan = self.output, self.folder, self.plan()
        if not folder.is_there():
            return
        before = peek(folder)
        options = {} if before is None else before.options
        is_ours = options.get("verb") == _VERB
        # Indexes of one size may have the same edges.
        is_done = options == plan.options and not plan.inputs
        if is_done or (is_ours and options.get("index") != plan.options["index"]) or (before is None and root.is_local):
            with contextlib.suppress(PrepareError), open_work(root, folder, restart=False, shared=False) as work:
                work.clear()

    def _summary(
        self, done: Iterable[PartName], *, part: tuple[int, int] | None = None, missing: tuple[int, ...] = ()
    ) -> MediaSummary:
        names, num_files = list(done), sum(self.contents.counts.values())
        num_read, num_rows = sum(name.tokens for name in names), sum(name.documents for name in names)
        return MediaSummary(self.output.path, num_files, num_read, num_rows, (), part, missing)

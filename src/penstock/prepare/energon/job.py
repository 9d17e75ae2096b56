"""The job of `penstock prepare` for tar shards: write the metadata of Energon.

A task scans one shard by its headers, and makes a part of its table. When all parts exist, the indexes are made in the
work folder. The commit makes them visible in this order: each `.tar.idx`, `index.sqlite` and `index.uuid`, `split.yaml`
and `dataset.yaml`, and last the list of shards, `.info.json`. Until then the old dataset loads. Shards are only read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from penstock._digest import digest
from penstock.abc import Executor, Staged
from penstock.engine.folder import WorkFolder
from penstock.engine.options import Counter, NumberCounter, RunOptions
from penstock.engine.parts import PartName, made_of
from penstock.engine.plan import Plan
from penstock.engine.run import Job
from penstock.engine.work import SCRATCH, Work, is_complete, scratch
from penstock.errors import ConfigError, NotFound, PenstockError, PrepareError
from penstock.formats.samples.webdataset.find import are_as_indexed, require_random_access
from penstock.formats.samples.webdataset.nvmeta import (
    DONE,
    ENERGON_VERSION,
    INFO_JSON,
    INFO_YAML,
    MEMBERS,
    SQLITE,
    UUID,
    Info,
    encode_info,
    encode_info_yaml,
    meta_path,
    read_info,
)
from penstock.prepare.energon.index import Indexes, make_indexes, run_task
from penstock.prepare.energon.plan import (
    COMPRESSED_HINT,
    MADE,
    DatasetOptions,
    EnergonPlan,
    MetaFiles,
    plan_in,
    plan_meta,
)
from penstock.prepare.energon.request import MetadataOptions, PrepareSummary, Request
from penstock.prepare.energon.scan import ShardTask, scan_task
from penstock.prepare.energon.work import done_mark, folder_of, forget, plan_of, take_over
from penstock.store.outputs import claimed
from penstock.store.place import Place
from penstock.store.state import states_of
from penstock.store.unfinished import Once

_INLINE_BYTES = 256 << 20
_MOST_WORKERS = 16


class PrepareJob(Job[PrepareSummary]):
    """Writes the metadata of a directory of tar shards.

    Args:
        dataset: the directory.
        metadata: what to write.
        options: how to run it. `overwrite` is set if only the indexes of shards are written.
    """

    preload = (scan_task.__module__, run_task.__module__)
    commits_with_workers = True

    def __init__(self, dataset: Place, metadata: MetadataOptions, options: RunOptions) -> None:
        self.output = dataset
        self.options = options
        self.counter = Counter(0, None)
        self._metadata = metadata
        self._num_reused = 0
        self._pool: Executor | None = None

    # --- what to write: looked up once, and again after another run may have changed it

    @functools.cached_property
    def source(self) -> EnergonPlan:
        """The shards; raises `NotFound` if there are none."""
        if self.before is not None:
            return _known_plan(self.output, self.before)
        return plan_in(self.output, self._metadata.exclude)

    @functools.cached_property
    def before(self) -> Info | None:
        """The existing list of shards, if only their indexes are written."""
        return read_info(self.output.store, self.output.path) if self._metadata.tar_index_only else None

    @functools.cached_property
    def request(self) -> Request:
        """What to write; raises `ConfigError` for splits or files that can't be."""
        metadata, options = self._metadata, self.options
        if self.before is not None:
            return Request(self.source, MetaFiles({}), self.before, metadata, options, None)
        splits = (metadata.split_ratio, metadata.split_parts, metadata.dataset or DatasetOptions())
        meta = plan_meta(self.source, *splits, shuffle_tars=metadata.shuffle_tars, overwrite=options.overwrite)
        return Request(self.source, meta, None, metadata, options, self._once())

    @functools.cached_property
    def _plan(self) -> Plan:
        return plan_of(self.request)

    def _look_again(self) -> None:
        for name in ("source", "before", "request", "_plan"):
            vars(self).pop(name, None)

    # --- the job

    @property
    def folder(self) -> WorkFolder:
        return folder_of(self.output)

    @property
    def tasks(self) -> Sequence[ShardTask]:
        source, media = self.source, self._metadata.media
        return [ShardTask(number, source.dataset, shard, media) for number, shard in enumerate(source.shards)]

    @property
    def opened(self) -> Sequence[Place]:
        return [self.output.child(name) for name in self.source.shards]

    @property
    def most_workers(self) -> int:
        options, source = self.options, self.source
        if options.workers is None and options.executor == "processes":
            is_small = sum(source.sizes) < _INLINE_BYTES and self._metadata.media is None
            return 1 if is_small else min(len(source.shards), _MOST_WORKERS)
        return min(len(source.shards), options.workers or len(source.shards))

    def plan(self) -> Plan:
        return self._plan

    def first_files(self) -> Sequence[Place]:
        return ()

    @property
    def may_be_finished(self) -> bool:
        return True

    def finished(self) -> PrepareSummary | None:
        self._look_again()
        source, is_distributed = self.source, self.options.is_distributed
        if self.options.overwrite:
            return self._written_by_others() if is_distributed and source.is_prepared else None
        report = self._once().made()
        may_be_complete = is_distributed or self.folder.is_there()
        if report is not None or not may_be_complete or not source.is_prepared:
            return report
        request = self.request
        counts = read_info(request.store, request.path).counts
        files = {name: request.meta_file(name) for name in (*request.meta.files, UUID)}
        if list(counts) != list(source.shards) or not all(file.exists() for file in files.values()):
            return None
        contents = {name: request.store.get(file.path) for name, file in files.items()}
        is_same = all(contents[name] == content for name, content in request.meta.files.items())
        if not is_same or request.meta_file(SQLITE).exists() != self._metadata.sqlite:
            return None
        if not are_as_indexed(request.store, request.path, counts):  # a tar was replaced
            return None
        with contextlib.suppress(PrepareError):  # another run is about to end
            forget(self.output)
        return self._complete()

    def require_free(self) -> None:
        source = self.source
        if source.is_prepared and not self.options.overwrite:
            forget(self.output)
            what, hint = "this dataset is already prepared", "Pass overwrite (--overwrite) to prepare it again"
            raise ConfigError(what, path=source.path, hint=hint)
        _ = self.request  # raises what is wrong with the options, before anything is written

    def hold(self) -> contextlib.AbstractContextManager[object]:
        return claimed(self.output.store, self.output.path, shared=self.options.is_distributed)

    def adopt(self, work: Work) -> bool:
        # A damaged shard may be repaired or excluded then: the parts of the others can still be used.
        keeps = work.plan is not None
        if not self.options.is_distributed:
            take_over(work, self.plan())
        return keeps

    def is_current(self, work: Work) -> bool:
        if not self.options.is_distributed or self.options.restart:
            return True
        if self.options.overwrite:
            return not self._is_done()
        return not any(self.request.meta_file(name).exists() for name in (INFO_JSON, INFO_YAML))

    def start(self, work: Work, pool: Executor) -> None:
        self._pool = pool
        self.counter = NumberCounter(len(self.source.shards), self.options.progress)
        listed, tasks = work.listed(), [task for task in self.tasks if self.options.takes(task.number)]
        self._num_reused = sum(task.number in listed for task in tasks)
        now = self.plan().inputs
        planned = now if work.plan is None else work.plan.inputs
        touched = [one for one in tasks if one.number in listed and planned[one.number] != now[one.number]]
        for task, name in zip(touched, pool.map(self.part_fn(work), touched), strict=True):
            if listed[task.number][0] != name:
                what, hint = "a shard changed after it was scanned", "Discard the finished work: restart (--restart)"
                raise PrepareError(what, path=self.output.child(task.shard).path, hint=hint)

    def sent(self, number: int, task: ShardTask, parts: Sequence[PartName]) -> ShardTask | None:
        return None if is_complete(parts) else task

    def part_fn(self, work: Work) -> Callable[[ShardTask], PartName]:
        return functools.partial(scan_task, work.parts)

    def commit(self, work: Work, wave: Any) -> PrepareSummary:
        if self._pool is None:
            raise ValueError("the job hasn't started")
        request, listed = self.request, work.listed()
        names = {number: made_of(listed, number, work.parts)[0] for number in range(len(self.source.shards))}
        with scratch(work.place.child(SCRATCH)) as folder:
            indexes = make_indexes(request, work, list(names.values()), folder, self._pool)
            return _commit(request, self.plan(), self._summary(names), indexes)

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> PrepareSummary:
        listed = {} if missing else work.listed()
        summary = self._summary({task: names[0] for task, names in listed.items() if self.options.takes(task)})
        return dataclasses.replace(summary, missing=missing)

    # --- what is there

    def _once(self) -> Once[PrepareSummary]:
        """Identify this run, so that a re-run recognizes its list of shards and the uuid of its index."""
        source, store = self.source, self.output.store

        def published(recorded: Any) -> PrepareSummary | None:
            try:
                summary = msgspec.convert(recorded, PrepareSummary)
                counts = read_info(store, source.path).counts
                uuid = store.get(meta_path(source.path, UUID)).decode(errors="replace")
            except (PenstockError, OSError, msgspec.ValidationError):
                return None
            if uuid != summary.uuid or list(counts) != list(source.shards):
                return None
            forget(source.dataset)
            return dataclasses.replace(summary, shard_counts=counts)

        recorded, shards = self._metadata.recorded(), digest(source.shards, source.sizes)
        what = {"command": "prepare", "asked": recorded, "shards": shards}
        files = [meta_path(source.path, name) for name in MADE]
        return Once(store, meta_path(source.path, INFO_JSON), what, files, published)

    def _is_done(self) -> bool:
        """Return whether a distributed job of this plan, with `overwrite`, wrote the files that exist."""
        mark = self.request.meta_file(DONE)
        with contextlib.suppress(NotFound):
            return mark.exists() and mark.store.get(mark.path) == done_mark(self.request, self.plan(), {}, {})
        return False

    def _written_by_others(self) -> PrepareSummary | None:
        """Report on the files that another run of this plan, with `overwrite`, wrote."""
        if not self._is_done():
            return None
        request = self.request
        with contextlib.suppress(PrepareError):  # another run is about to end
            if request.once is not None:
                request.once.made()  # removes the mark of a killed run
                request.store.stage(request.meta_file(INFO_JSON).path, overwrite=True).abort()  # and its staged files
            forget(self.output, self.plan())
        return self._complete()

    def _complete(self) -> PrepareSummary:
        """Report on a dataset that was already prepared in this way."""
        request = self.request
        counts, uuid = read_info(request.store, request.path).counts, request.meta_file(UUID)
        return dataclasses.replace(
            self._summary({}),
            shard_counts=counts,
            num_samples=sum(counts.values()),
            splits=_split_sizes(request.meta, counts),
            uuid=uuid.store.get(uuid.path).decode(errors="replace"),
            was_complete=True,
        )

    def _summary(self, names: Mapping[int, PartName]) -> PrepareSummary:
        """Report on these shards, without files."""
        source = self.source
        return PrepareSummary(
            source.path,
            {source.shards[number]: name.documents for number, name in names.items()},
            sum(name.documents for name in names.values()),
            sum(name.tokens for name in names.values()),
            sum(source.states[number].size_bytes for number in names),
            {},
            self._num_reused if names else 0,
            "",
            (),
            (),
            part=self.options.part,
        )


def _known_plan(dataset: Place, info: Info) -> EnergonPlan:
    """Return the shards of an existing list; raises `NotFound` if one is missing."""
    require_random_access(dataset.path, list(info.counts), COMPRESSED_HINT)
    files = [dataset.child(name) for name in info.counts]
    for file in files:
        if not file.exists():
            raise NotFound("a listed shard is missing", path=file.path, hint="Prepare the dataset again")
    return EnergonPlan(dataset, tuple(info.counts), tuple(states_of(files)), True, True, True)


# --- the commit ---------------------------------------------------------------------------------------------------


def _commit(request: Request, plan: Plan, summary: PrepareSummary, indexes: Indexes) -> PrepareSummary:
    """Make the files visible, the list of shards last."""
    staged: list[Staged] = []
    wrote, counts = list(indexes.wrote), summary.shard_counts
    try:
        staged += _stage_meta(request, plan, counts, indexes, wrote)
        index = request.meta_file(SQLITE)
        if not request.metadata.sqlite and index.exists():
            request.store.delete(index.path)
        members = request.meta_file(MEMBERS)
        if MEMBERS not in indexes.files and members.exists():
            request.store.delete(members.path)
        splits, warnings = _split_sizes(request.meta, counts), (*_warnings(request, counts), *indexes.warnings)
        summary = dataclasses.replace(summary, splits=splits, uuid=indexes.uuid, wrote=tuple(wrote), warnings=warnings)

        def commit() -> PrepareSummary:
            request.store.commit(staged)
            return summary

        if request.once is None:
            return commit()
        # The mark leaves out what grows with the number of shards, and is in the list.
        recorded = dataclasses.replace(summary, shard_counts={}, wrote=(), num_reused=len(counts))
        return request.once.commit(commit, told=msgspec.to_builtins(recorded))
    except BaseException:
        for one in staged:
            one.abort()
        raise


def _stage_meta(
    request: Request, plan: Plan, counts: dict[str, int], indexes: Indexes, wrote: list[str]
) -> Iterator[Staged]:
    """Stage the files of `.nv-meta` in the order in which they become visible."""
    store = request.store
    for name, made in indexes.files.items():
        staged = store.stage(request.meta_file(name).path, overwrite=True)
        yield staged
        staged.append_file(made.path)
        wrote.append(name)
    files: dict[str, bytes] = {UUID: indexes.uuid.encode(), **request.meta.files, **_info_files(request, counts)}
    if request.run.is_distributed and request.run.overwrite:
        files = {DONE: done_mark(request, plan, indexes.files, files), **files}
    for name, content in files.items():
        path = request.meta_file(name).path
        if name != INFO_JSON and store.exists(path) and store.get(path) == content:
            continue
        staged = store.stage(path, overwrite=True)
        yield staged
        staged.write(content)
        wrote.append(name)


def _info_files(request: Request, counts: dict[str, int]) -> dict[str, bytes]:
    if request.before is None:
        version: str | None = ENERGON_VERSION
    elif request.before.counts == counts and request.before.name == INFO_JSON:
        return {}
    else:
        version = request.before.version
    files = {INFO_JSON: encode_info(counts, version)}
    if request.meta_file(INFO_YAML).exists():
        files = {INFO_YAML: encode_info_yaml(counts, version), **files}
    return files


def _split_sizes(meta: MetaFiles, counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    parts = {} if meta.assignment is None else meta.assignment.parts
    return {split: (len(shards), sum(counts[name] for name in shards)) for split, shards in parts.items()}


def _warnings(request: Request, counts: Mapping[str, int]) -> list[str]:
    found = [*request.source.warnings, *request.meta.warnings]
    if request.before is not None:
        changed = [name for name, count in request.before.counts.items() if counts[name] != count]
        if changed:
            found.append(f"{len(changed)} shards had a different number of samples than the list, which is now updated")
    return found

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
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock._digest import digest
from penstock._printable import recordable
from penstock._secrets import redacted_repr
from penstock.abc import Executor, Staged
from penstock.engine.folder import WorkFolder
from penstock.engine.options import NumberCounter, RunOptions
from penstock.engine.parts import PartName, made_of
from penstock.engine.plan import Plan, PlannedInput
from penstock.engine.run import Job
from penstock.engine.work import HEAD_NAME, SCRATCH, Work, open_work, scratch, work_folder
from penstock.errors import ConfigError, NotFound, PenstockError, PrepareError
from penstock.formats.samples.webdataset.find import are_as_indexed, require_random_access
from penstock.formats.samples.webdataset.key_index import KEYS
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
from penstock.prepare.energon.index import Indexes, ShardTask, make_indexes, run_task, scan_task
from penstock.prepare.energon.plan import (
    COMPRESSED_HINT,
    MADE,
    EnergonPlan,
    MetadataOptions,
    MetaFiles,
    plan_in,
    plan_meta,
)
from penstock.store.fingerprint import states_of
from penstock.store.names import METADATA_WORK
from penstock.store.outputs import claimed
from penstock.store.place import Place
from penstock.store.put import put_new
from penstock.store.side_file import EDGE_BYTES, edge_binding, file_binding
from penstock.store.unfinished import Once

_INLINE_BYTES = 256 << 20
_MOST_WORKERS = 16
_VERB = "verb"

Progress = Callable[[int, int], None]
"""Called with the number of finished shards, and the number of all."""


@redacted_repr
@dataclass(frozen=True, slots=True)
class PrepareSummary:
    """Result of `prepare` for tar shards.

    Attributes:
        path: directory of the dataset.
        shard_counts: shard → number of samples.
        num_samples: total number of samples, with `num_parts` parts.
        size_bytes: size of all shards.
        splits: split → numbers of shards and samples, if splits were made.
        num_reused: shards already finished by an earlier run or another worker.
        uuid: content of `index.uuid`.
        wrote: new or changed files, by their paths in the directory.
        warnings: warnings about the data.
        part: `(i, n)` if this was part i of a distributed job.
        missing: parts that aren't done, with `no_work`.
        was_complete: the dataset was already prepared in this way.
    """

    path: str
    shard_counts: dict[str, int]
    num_samples: int
    num_parts: int
    size_bytes: int
    splits: dict[str, tuple[int, int]]
    num_reused: int
    uuid: str
    wrote: tuple[str, ...]
    warnings: tuple[str, ...]
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()
    was_complete: bool = False


@dataclass
class PrepareJob(Job[PrepareSummary]):
    """Writes the metadata of a directory of tar shards. `overwrite` is set if only their indexes are written."""

    preload = (scan_task.__module__, run_task.__module__)
    commits_with_workers = True

    output: Place
    metadata: MetadataOptions
    options: RunOptions
    _num_reused: int = 0
    _pool: Executor = field(init=False)

    # --- what to write: looked up once, and again after another run may have changed it

    @functools.cached_property
    def source(self) -> EnergonPlan:
        dataset, before = self.output, self.before
        if before is None:
            return plan_in(dataset, self.metadata.exclude)
        require_random_access(dataset.path, list(before.counts), COMPRESSED_HINT)
        files = [dataset.child(name) for name in before.counts]
        for file in files:
            if not file.exists():
                raise NotFound("a listed shard is missing", path=file.path, hint="Prepare the dataset again")
        return EnergonPlan(dataset, tuple(before.counts), tuple(states_of(files)), True, True, True)

    @functools.cached_property
    def before(self) -> Info | None:
        """The existing list of shards, if only their indexes are written."""
        return read_info(self.output.store, self.output.path) if self.metadata.tar_index_only else None

    @functools.cached_property
    def meta(self) -> MetaFiles:
        """The files of `.nv-meta` that a user may edit; raises `ConfigError` if they can't be written."""
        if self.before is not None:
            return MetaFiles({})
        return plan_meta(self.source, self.metadata, overwrite=self.options.overwrite)

    @functools.cached_property
    def _plan(self) -> Plan:
        """The plan, with one task per shard. A file is identified by its version, or its first and last 4 KiB."""
        _ = self.meta  # raises if options are invalid
        inputs: list[PlannedInput] = []
        for name, state in zip(self.source.shards, self.source.states, strict=True):
            file = self.output.child(name)
            binding = state.version or file_binding(file.store, file.path)
            inputs.append(PlannedInput(recordable(name), state.size_bytes, binding, state.mtime_ns))
        options = {_VERB: "prepare", **self.metadata.recorded(), "--overwrite": self.options.overwrite}
        return Plan(options, tuple(inputs), 1, "")

    # --- the job

    @property
    def folder(self) -> WorkFolder:
        return folder_of(self.output)

    @property
    def tasks(self) -> Sequence[ShardTask]:
        source, media = self.source, self.metadata.media
        return [ShardTask(number, source.dataset, shard, media) for number, shard in enumerate(source.shards)]

    @property
    def opened(self) -> Sequence[Place]:
        return [self.output.child(name) for name in self.source.shards]

    @property
    def most_workers(self) -> int:
        options, source = self.options, self.source
        if options.workers is None and options.executor == "processes":
            is_small = sum(source.sizes) < _INLINE_BYTES and self.metadata.media is None
            return 1 if is_small else min(len(source.shards), _MOST_WORKERS)
        return min(len(source.shards), options.workers or len(source.shards))

    def plan(self) -> Plan:
        return self._plan

    @property
    def may_be_finished(self) -> bool:
        return True

    def finished(self) -> PrepareSummary | None:
        for name in ("source", "before", "meta", "_plan"):  # look again
            vars(self).pop(name, None)
        source, is_distributed = self.source, self.options.is_distributed
        if self.options.overwrite:
            return self._written_by_others() if is_distributed and source.is_prepared else None
        report = self._once().made()
        may_be_complete = is_distributed or self.folder.is_there()
        if report is not None or not may_be_complete or not source.is_prepared:
            return report
        store, path, meta_files = self.output.store, self.output.path, self.meta.files
        counts = read_info(store, path).counts
        files = {name: source.meta_file(name) for name in (*meta_files, UUID)}
        if list(counts) != list(source.shards) or not all(file.exists() for file in files.values()):
            return None
        contents = {name: store.get(file.path) for name, file in files.items()}
        is_same = all(contents[name] == content for name, content in meta_files.items())
        if not is_same or source.meta_file(SQLITE).exists() != self.metadata.sqlite:
            return None
        if not are_as_indexed(store, path, counts):  # a tar was replaced
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
        _ = self.meta  # raises if options are invalid, before anything is written

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
        return not any(self.source.meta_file(name).exists() for name in (INFO_JSON, INFO_YAML))

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

    def part_fn(self, work: Work) -> Callable[[ShardTask], PartName]:
        return functools.partial(scan_task, work.parts)

    def commit(self, work: Work, wave: Any) -> PrepareSummary:
        listed = work.listed()
        names = {number: made_of(listed, number, work.parts)[0] for number in range(len(self.source.shards))}
        with scratch(work.place.child(SCRATCH)) as folder:
            indexes = make_indexes(self.source, self.metadata, work, list(names.values()), folder, self._pool)
            return self._commit(self._summary(names), indexes)

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> PrepareSummary:
        listed = {} if missing else work.listed()
        summary = self._summary({task: names[0] for task, names in listed.items() if self.options.takes(task)})
        return dataclasses.replace(summary, missing=missing)

    # --- finished work

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

        recorded, shards = self.metadata.recorded(), digest(source.shards, source.sizes)
        what = {"command": "prepare", "asked": recorded, "shards": shards}
        files = [meta_path(source.path, name) for name in MADE]
        return Once(store, meta_path(source.path, INFO_JSON), what, files, published)

    def _is_done(self) -> bool:
        """Return whether a distributed job of this plan, with `overwrite`, wrote the files that exist."""
        mark = self.source.meta_file(DONE)
        with contextlib.suppress(NotFound):
            return mark.exists() and mark.store.get(mark.path) == self._done_mark({}, {})
        return False

    def _written_by_others(self) -> PrepareSummary | None:
        """Report on the files that another run of this plan, with `overwrite`, wrote."""
        if not self._is_done():
            return None
        with contextlib.suppress(PrepareError):  # another run is about to end
            if self.before is None:
                self._once().made()  # removes the mark of a killed run
                staged = self.output.store.stage(self.source.meta_file(INFO_JSON).path, overwrite=True)
                staged.abort()  # and its staged files
            forget(self.output, self.plan())
        return self._complete()

    def _complete(self) -> PrepareSummary:
        counts, uuid = read_info(self.output.store, self.output.path).counts, self.source.meta_file(UUID)
        return dataclasses.replace(
            self._summary({}),
            shard_counts=counts,
            num_samples=sum(counts.values()),
            splits=_split_sizes(self.meta, counts),
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

    # --- the commit

    def _commit(self, summary: PrepareSummary, indexes: Indexes) -> PrepareSummary:
        """Make the files visible, the list of shards last."""
        source, store = self.source, self.output.store
        staged: list[Staged] = []
        wrote, counts = list(indexes.wrote), summary.shard_counts
        try:
            staged += self._stage_meta(counts, indexes, wrote)
            index = source.meta_file(SQLITE)
            if not self.metadata.sqlite and index.exists():
                store.delete(index.path)
            members = source.meta_file(MEMBERS)
            if MEMBERS not in indexes.files and members.exists():
                store.delete(members.path)
            splits, warnings = _split_sizes(self.meta, counts), (*self._warnings(counts), *indexes.warnings)
            summary = dataclasses.replace(
                summary, splits=splits, uuid=indexes.uuid, wrote=tuple(wrote), warnings=warnings
            )

            def commit() -> PrepareSummary:
                store.commit(staged)
                return summary

            if self.before is not None:
                return commit()
            # The mark leaves out what grows with the number of shards, and is in the list.
            recorded = dataclasses.replace(summary, shard_counts={}, wrote=(), num_reused=len(counts))
            return self._once().commit(commit, told=msgspec.to_builtins(recorded))
        except BaseException:
            for one in staged:
                one.abort()
            raise

    def _stage_meta(self, counts: dict[str, int], indexes: Indexes, wrote: list[str]) -> Iterator[Staged]:
        """Stage the files of `.nv-meta` in the order in which they become visible."""
        store = self.output.store
        for name, made in indexes.files.items():
            staged = store.stage(self.source.meta_file(name).path, overwrite=True)
            yield staged
            staged.append_file(made.path)
            wrote.append(name)
        files: dict[str, bytes] = {UUID: indexes.uuid.encode(), **self.meta.files, **self._info_files(counts)}
        if self.options.is_distributed and self.options.overwrite:
            files = {DONE: self._done_mark(indexes.files, files), **files}
        for name, content in files.items():
            path = self.source.meta_file(name).path
            if name != INFO_JSON and store.exists(path) and store.get(path) == content:
                continue
            staged = store.stage(path, overwrite=True)
            yield staged
            staged.write(content)
            wrote.append(name)

    def _info_files(self, counts: dict[str, int]) -> dict[str, bytes]:
        if self.before is None:
            version: str | None = ENERGON_VERSION
        elif self.before.counts == counts and self.before.name == INFO_JSON:
            return {}
        else:
            version = self.before.version
        files = {INFO_JSON: encode_info(counts, version)}
        if self.source.meta_file(INFO_YAML).exists():
            files = {INFO_YAML: encode_info_yaml(counts, version), **files}
        return files

    def _warnings(self, counts: Mapping[str, int]) -> list[str]:
        found = [*self.source.warnings, *self.meta.warnings]
        if self.before is not None:
            changed = [name for name, count in self.before.counts.items() if counts[name] != count]
            if changed:
                found.append(
                    f"{len(changed)} shards had a different number of samples than the list, which is now updated"
                )
        return found

    def _done_mark(self, made: Mapping[str, Place], contents: Mapping[str, bytes]) -> bytes:
        """Return the content of `DONE` after a distributed job with `overwrite`: a digest of its plan and its files.

        Args:
            made: new files of `.nv-meta` that are not in place yet.
            contents: contents of other new files. Files in neither stay as they are.

        Raises:
            NotFound: a file doesn't exist.
        """

        def binding(name: str) -> str:
            if name in contents:
                data = contents[name]
                return edge_binding(len(data), data[:EDGE_BYTES], data[-EDGE_BYTES:])
            file = made.get(name, self.source.meta_file(name))
            return file_binding(file.store, file.path)

        names = [KEYS, UUID, INFO_JSON, *self.meta.files, *([SQLITE] if self.metadata.sqlite else [])]
        times = [one.mtime_ns for one in self.plan().inputs]
        return digest(self.plan().digest(), times, {name: binding(name) for name in names}).encode()


def _split_sizes(meta: MetaFiles, counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    parts = {} if meta.assignment is None else meta.assignment.parts
    return {split: (len(shards), sum(counts[name] for name in shards)) for split, shards in parts.items()}


# --- unfinished work -------------------------------------------------------------------------------------------------


def folder_of(dataset: Place) -> WorkFolder:
    return work_folder(dataset, inside=True, name=METADATA_WORK)


def forget(dataset: Place, done: Plan | None = None) -> None:
    """Remove the work folder and lock of a run that was killed after its commit.

    Args:
        dataset: directory of the dataset.
        done: a plan that is known to be done.

    Raises:
        PrepareError: another run is preparing the dataset.
    """
    folder = folder_of(dataset)
    with claimed(dataset.store, dataset.path):
        if not folder.is_there():
            return
        with open_work(dataset, folder, restart=False, shared=False) as work:
            # In an object store, other runs that replace files may still be working.
            is_live = not dataset.is_local and work.plan is not None and work.plan.options.get("--overwrite")
            is_ours = work.plan is not None and work.plan.options.get(_VERB) == "prepare"
            is_done = done is not None and work.head is not None and work.head.digest == done.digest()
            if work.plan is None or is_done or (is_ours and not is_live):
                work.clear()


def take_over(work: Work, plan: Plan) -> None:
    """Take over parts of unchanged shards from unfinished work with other options or shards.

    Only if the lock of a local folder proves that no other run is at it. Other work stays as it is.
    """
    before = work.plan
    is_same = before is None or (before.inputs, before.options) == (plan.inputs, plan.options)
    if before is None or is_same or not work.folder.store.is_local:
        return
    if (before.version, before.options.get(_VERB)) != (plan.version, plan.options[_VERB]):
        return
    listed, old = work.listed(), work.parts
    numbers = {one: number for number, one in enumerate(before.inputs)}
    if before.digest() == plan.digest():
        # Only times of change differ: those shards are scanned again.
        for number, one in enumerate(plan.inputs):
            for name in () if one in numbers else listed.get(number, ()):
                work.folder.store.delete(old.child(name.path).path)
        return
    old_plan = work.place
    work.folder.store.delete(work.folder.file(HEAD_NAME).path)
    work.head = work.plan = None
    work.begin(plan, len(plan.inputs))
    if before.options.get("--media-metadata") == plan.options["--media-metadata"]:
        for number, one in enumerate(plan.inputs):
            for name in listed.get(numbers.get(one, -1), ()):
                part = work.parts.child(dataclasses.replace(name, task=number).path)
                put_new(part.store, part.path, part.store.get(old.child(name.path).path))
    work.folder.store.remove_tree(old_plan.path)

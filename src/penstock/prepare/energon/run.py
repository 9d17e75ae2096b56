"""`penstock prepare`: the metadata of Energon for a folder of tar shards.

Shards are scanned by their headers, a task a shard, by this run or by many that share the work; what is finished is
kept in a work folder, so a run that was killed goes on. Then everything is made beside what is there, and becomes
visible in this order: each `.tar.idx`, `index.sqlite` and `index.uuid`, `split.yaml` and `dataset.yaml`, and last the
list of shards, `.info.json`. So until then the old dataset loads. Shards are only read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from penstock._digest import digest
from penstock.abc import Executor, Staged
from penstock.engine.options import RunOptions
from penstock.engine.parts import PartName
from penstock.engine.plan import Plan
from penstock.engine.shared import SCRATCH, SharedWork, open_shared, scratch
from penstock.engine.sharing import join, plain_errors
from penstock.errors import ConfigError, NotFound, PenstockError, PrepareError
from penstock.executors import AnyExecutor, make_executor
from penstock.formats.samples.media_index import MediaFilter
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
from penstock.formats.samples.webdataset.splits import parse_ratio
from penstock.prepare.energon.index import Indexes, make_indexes, run_task
from penstock.prepare.energon.plan import (
    COMPRESSED_HINT,
    MADE,
    DatasetOptions,
    EnergonPlan,
    MetaFiles,
    peek_webdataset,
    plan_in,
    plan_meta,
    plan_webdataset,
    require_room,
)
from penstock.prepare.energon.request import Asked, How, PrepareSummary, Progress, Request
from penstock.prepare.energon.scan import MediaReader, ShardTask, scan_task
from penstock.prepare.energon.share import done_mark, folder_of, forget, is_done, plan_of, take_over
from penstock.prepare.raw import IndexReport, build_index
from penstock.store.outputs import claimed
from penstock.store.place import Given, Place, dataset_at
from penstock.store.state import states_of
from penstock.store.unfinished import Once
from penstock.store.writable import require_writable

_INLINE_BYTES = 256 << 20
_MOST_WORKERS = 16
_KEPT_S = 60
"""A run that fails because of its input keeps its finished parts only if it ran longer than this."""


def prepare_webdataset(
    path: Given,
    *,
    split_ratio: Mapping[str, float] | Sequence[float] | str | None = None,
    split_parts: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    exclude: str | None = None,
    workers: int | None = None,
    tar_index_only: bool = False,
    shuffle_tars: bool = False,
    overwrite: bool = False,
    dataset: DatasetOptions | None = None,
    sqlite: bool = True,
    media: MediaReader | None = None,
    executor: AnyExecutor = "processes",
    follow_links: bool = False,
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    restart: bool = False,
    progress: Progress | None = None,
) -> PrepareSummary:
    """Prepare a folder of tar shards for Energon, and for ourselves.

    Memory: a few times what the largest shard's names take, and about 100 MiB; at any number of samples.

    Args:
        path: the folder.
        split_ratio: shares of train, val and test, such as `[8, 1, 1]` or `"8,1,1"`, or split → share. If this and
            `split_parts` are omitted, an existing `split.yaml` stays.
        split_parts: split → regular expression for the names of its shards.
        exclude: leave out shards in whose path this regular expression is found.
        workers: processes; by default one a core, one for little data.
        tar_index_only: make the indexes of the shards in the list again, and nothing else.
        shuffle_tars: mix the shards before a ratio cuts them.
        overwrite: prepare again what is prepared, and replace the files that are asked for.
        dataset: what `dataset.yaml` shall say; without it the one that is there stays.
        sqlite: make `index.sqlite`, in which Energon finds samples and parts by name; `index.keys` is made all the
            same.
        media: reads metadata of media; without it those of unchanged shards stay.
        executor: `"processes"`, `"inline"` for none, another name, or an executor; see `penstock.executors`.
        follow_links: read files through links that lead out of the dataset's folder.
        part, finish, no_work, restart: see `penstock.engine.options.RunOptions`; a share is of the shards.
        progress: called with the number of finished shards, and of all.

    Raises:
        NotFound: no such folder, or no shards in it.
        ConfigError: it is prepared already, an option can't be, or a user's file is in the way.
        FormatError: a shard is damaged, empty, or compressed, or has a key that comes twice.
        PrepareError: another run is at work, or a process was killed.
    """
    run = RunOptions(part=part, finish=finish, no_work=no_work, restart=restart)
    how = How(sqlite, media, workers, executor, progress, run)
    ratio = parse_ratio(split_ratio) if isinstance(split_ratio, str) else split_ratio
    asked = Asked(ratio, split_parts, exclude, dataset, shuffle_tars=shuffle_tars, overwrite=overwrite)
    folder = dataset_at(path, follow_links=follow_links).bare()
    require_writable(folder.store, folder.path)
    require_room(folder)
    return _prepare_again(folder, asked, how) if tar_index_only else _prepare_anew(folder, asked, how)


def _prepare_again(folder: Place, asked: Asked, how: How) -> PrepareSummary:
    """Make the indexes of the shards in the list."""
    if (asked.exclude, asked.split_ratio, asked.split_parts, asked.dataset) != (None, None, None, None):
        raise ConfigError("tar_index_only doesn't change the list of shards", hint="Omit exclude, splits and dataset")
    before = read_info(folder.store, folder.path)
    recorded = {"--tar-index-only": True, "--overwrite": True, **how.recorded()}
    request = Request(_known_plan(folder, before), MetaFiles({}), before, how, recorded, None)
    try:
        return _done_by_others(request) or _prepare(request)
    except (PenstockError, OSError):
        made = _done_by_others(request)
        if made is None:
            raise
        return made


def _prepare_anew(folder: Place, asked: Asked, how: How) -> PrepareSummary:
    plan = plan_in(folder, asked.exclude)
    made = _known_again(plan, asked, how)
    if made is not None:
        return made
    _require_new(plan, overwrite=asked.overwrite)
    try:
        return _prepare(_request(plan, asked, how))
    except (PenstockError, OSError):
        # Another finisher of the same plan may have been first.
        made = _known_again(plan_in(folder, asked.exclude), asked, how) if how.sharing.is_distributed else None
        if made is None:
            raise
        return made


def _request(plan: EnergonPlan, asked: Asked, how: How) -> Request:
    given = (asked.split_ratio, asked.split_parts, asked.dataset or DatasetOptions())
    meta = plan_meta(plan, *given, shuffle_tars=asked.shuffle_tars, overwrite=asked.overwrite)
    recorded = asked.recorded(how)
    return Request(plan, meta, None, how, {**recorded, "--overwrite": asked.overwrite}, _once(plan, recorded))


def _known_again(plan: EnergonPlan, asked: Asked, how: How) -> PrepareSummary | None:
    """What a killed run of the same had finished, or other workers of the same plan have."""
    if how.sharing.restart:
        return None
    if asked.overwrite:
        return _done_by_others(_request(plan, asked, how)) if plan.is_prepared and how.sharing.is_distributed else None
    made = _once(plan, asked.recorded(how)).made()
    may_be_late = how.sharing.is_distributed or folder_of(plan.dataset).is_there()
    if made is not None or not may_be_late or not plan.is_prepared:
        return made
    request = _request(plan, asked, how)
    counts = read_info(request.store, plan.path).counts
    there = {name: request.meta_file(name) for name in (*request.meta.files, UUID)}
    if list(counts) != list(plan.shards) or not all(file.exists() for file in there.values()):
        return None
    contents = {name: request.store.get(file.path) for name, file in there.items()}
    is_same = all(contents[name] == content for name, content in request.meta.files.items())
    if not is_same or request.meta_file(SQLITE).exists() != how.sqlite:
        return None
    if not are_as_indexed(request.store, plan.path, counts):  # a tar is another one since
        return None
    with contextlib.suppress(PrepareError):  # others are still about to end
        forget(plan.dataset)
    return _complete(request)


def _done_by_others(request: Request) -> PrepareSummary | None:
    """What workers of the same plan have put in the place of what was there."""
    sharing = request.how.sharing
    if not sharing.is_distributed or sharing.restart or not is_done(request):
        return None
    with contextlib.suppress(PrepareError):  # others are still about to end
        if request.once is not None:
            request.once.made()  # the mark of one that was killed goes
            request.store.stage(request.meta_file(INFO_JSON).path, overwrite=True).abort()  # and what it had staged
        forget(request.plan.dataset, plan_of(request))
    return _complete(request)


def _complete(request: Request) -> PrepareSummary:
    """What there is to say where all was there."""
    counts, uuid = read_info(request.store, request.plan.path).counts, request.meta_file(UUID)
    return dataclasses.replace(
        _unfinished(request, {}, ()),
        shard_counts=counts,
        num_samples=sum(counts.values()),
        splits=_split_sizes(request.meta, counts),
        uuid=uuid.store.get(uuid.path).decode(errors="replace"),
        was_complete=True,
    )


def prepare_jsonl(path: Given, *, workers: int | None = None, overwrite: bool = False) -> IndexReport:
    """Prepare a JSONL file: its index `<path>.idx`, as Energon has it; see `penstock.prepare.raw.build_index`.

    Raises:
        NotFound: no such file.
        Corrupt: a line that is no object.
        ConfigError: the index exists and `overwrite` is false.
    """
    return build_index(path, flavor="energon", workers=workers, overwrite=overwrite)


def _prepare(request: Request) -> PrepareSummary:
    dataset, sharing = request.plan.dataset, request.how.sharing
    folder = folder_of(dataset)
    with plain_errors(dataset, folder), claimed(dataset.store, dataset.path, shared=sharing.is_distributed):
        started_s = time.monotonic()
        with open_shared(dataset, folder, restart=sharing.restart, shared=sharing.is_distributed) as work:
            is_new = work.plan is None
            try:
                return _run(request, work)
            except (OSError, PrepareError):
                raise
            except Exception:
                if is_new and not sharing.is_distributed and time.monotonic() - started_s < _KEPT_S:
                    work.clear()
                raise


def _require_new(plan: EnergonPlan, *, overwrite: bool) -> None:
    """That a folder is not prepared, or shall be prepared again."""
    if plan.is_prepared and not overwrite:
        forget(plan.dataset)
        raise ConfigError(
            "this dataset is already prepared", path=plan.path, hint="Pass overwrite (--overwrite) to prepare it again"
        )


def _once(plan: EnergonPlan, asked: Any) -> Once[PrepareSummary]:
    """The work that prepares a folder, known again by its list of shards and the uuid of its index."""
    store = plan.dataset.store

    def published(told: Any) -> PrepareSummary | None:
        try:
            summary = msgspec.convert(told, PrepareSummary)
            counts = read_info(store, plan.path).counts
            uuid = store.get(meta_path(plan.path, UUID)).decode(errors="replace")
        except (PenstockError, OSError, msgspec.ValidationError):
            return None
        if uuid != summary.uuid or list(counts) != list(plan.shards):
            return None
        forget(plan.dataset)
        return dataclasses.replace(summary, shard_counts=counts)

    what = {"command": "prepare", "asked": asked, "shards": digest(plan.shards, plan.sizes)}
    files = [meta_path(plan.path, name) for name in MADE]
    return Once(store, meta_path(plan.path, INFO_JSON), what, files, published)


def _known_plan(dataset: Place, info: Info) -> EnergonPlan:
    """The plan for the shards that the list has."""
    require_random_access(dataset.path, list(info.counts), COMPRESSED_HINT)
    files = [dataset.child(name) for name in info.counts]
    for file in files:
        if not file.exists():
            raise NotFound("a listed shard is missing", path=file.path, hint="Prepare the dataset again")
    return EnergonPlan(dataset, tuple(info.counts), tuple(states_of(files)), True, True, True)


# --- the run -----------------------------------------------------------------------------------------------------


def _run(request: Request, work: SharedWork) -> PrepareSummary:
    sharing, plan = request.how.sharing, plan_of(request)
    if not sharing.is_distributed:
        take_over(work, plan)
    join(work, plan, len(plan.inputs), sharing)
    _require_unmade(request, work)
    if sharing.no_work and (missing := work.missing()):
        return _unfinished(request, {}, work.shares_of(missing))
    with _executor(request, work) as pool:
        known = work.listed()
        names = _scan(request, work, plan, known, pool)
        if sharing.part is not None:
            return _unfinished(request, names, (), sum(number in known for number in names))
        with scratch(work.place.child(SCRATCH)) as here:
            indexes = make_indexes(request, work, [names[number] for number in range(len(names))], here, pool)
            return _commit(request, work, plan, names, indexes, len(known))


def _require_unmade(request: Request, work: SharedWork) -> None:
    """That other workers have not ended this work since it was looked for: else it would be begun anew here.

    Raises:
        PrepareError: they have.
    """
    if not request.how.sharing.is_distributed or request.how.sharing.restart:
        return
    replaces = request.options["--overwrite"]
    if is_done(request) if replaces else any(map(Place.exists, map(request.meta_file, (INFO_JSON, INFO_YAML)))):
        work.clear()
        raise PrepareError("another run prepared this dataset in the meantime", path=request.plan.path)


def _scan(
    request: Request, work: SharedWork, plan: Plan, known: Mapping[int, Sequence[PartName]], pool: Executor
) -> dict[int, PartName]:
    """Shard → its part, of those that are this run's; what is missing, or was touched since it was scanned, is made."""
    found, how = request.plan, request.how
    planned = plan.inputs if work.plan is None else work.plan.inputs
    mine = [number for number in range(len(found.shards)) if how.sharing.takes(number)]
    there = {number: known[number][0] for number in mine if number in known and planned[number] == plan.inputs[number]}
    tasks = [
        ShardTask(number, found.dataset, found.shards[number], work.parts, how.media)
        for number in mine
        if number not in there
    ]
    for task, name in zip(tasks, pool.map(scan_task, tasks), strict=True):
        if task.number in known and known[task.number][0] != name:
            what, hint = "a shard changed after it was scanned", "Discard the finished work: restart (--restart)"
            raise PrepareError(what, path=found.dataset.child(task.shard).path, hint=hint)
        there[task.number] = name
        if how.progress is not None:
            how.progress(len(there), len(mine))
    return {number: there[number] for number in mine}


def _unfinished(
    request: Request, names: Mapping[int, PartName], missing: tuple[int, ...], reused: int = 0
) -> PrepareSummary:
    """What there is to say where nothing is committed: of a share, about that share."""
    found = request.plan
    return PrepareSummary(
        found.path,
        {found.shards[number]: name.documents for number, name in names.items()},
        sum(name.documents for name in names.values()),
        sum(name.tokens for name in names.values()),
        sum(found.states[number].size_bytes for number in names),
        {},
        reused,
        "",
        (),
        (),
        part=request.how.sharing.part,
        missing=missing,
    )


def _commit(
    request: Request, work: SharedWork, plan: Plan, names: Mapping[int, PartName], indexes: Indexes, reused: int
) -> PrepareSummary:
    """Make it visible; the list of shards last."""
    staged: list[Staged] = []
    wrote = list(indexes.wrote)
    told = _unfinished(request, names, (), reused)
    counts = told.shard_counts
    try:
        staged += _stage_meta(request, plan, counts, indexes, wrote)
        index = request.meta_file(SQLITE)
        if not request.how.sqlite and index.exists():
            request.store.delete(index.path)
        members = request.meta_file(MEMBERS)
        if MEMBERS not in indexes.files and members.exists():
            request.store.delete(members.path)
        splits, warnings = _split_sizes(request.meta, counts), (*_warnings(request, counts), *indexes.warnings)
        summary = dataclasses.replace(told, splits=splits, uuid=indexes.uuid, wrote=tuple(wrote), warnings=warnings)

        def commit() -> PrepareSummary:
            request.store.commit(staged)
            with contextlib.suppress(OSError, PenstockError):
                work.clear()  # what can't be removed now is removed by the next run
            return summary

        if request.once is None:
            return commit()
        # A line a shard would be too much for the mark, and is in the list.
        told = dataclasses.replace(summary, shard_counts={}, wrote=(), num_reused=len(counts))
        return request.once.commit(commit, told=msgspec.to_builtins(told))
    except BaseException:
        for one in staged:
            one.abort()
        raise


def _executor(request: Request, work: SharedWork) -> AbstractContextManager[Executor]:
    plan, how, workers = request.plan, request.how, request.how.workers
    if workers is None and how.executor == "processes":
        workers = min(len(os.sched_getaffinity(0)), len(plan.shards), _MOST_WORKERS)
        if sum(plan.sizes) < _INLINE_BYTES and how.media is None:
            workers = 1
    reads = [plan.dataset.child(name) for name in plan.shards]
    return make_executor(
        how.executor,
        workers,
        preload=[scan_task.__module__, run_task.__module__],
        alone=workers == 1,
        most=len(plan.shards),
        reads=reads,
        writes=[work.folder.place],
    )


def _stage_meta(
    request: Request, plan: Plan, counts: dict[str, int], indexes: Indexes, wrote: list[str]
) -> Iterator[Staged]:
    """The files of `.nv-meta` in the order in which they become visible."""
    store = request.store
    for name, made in indexes.files.items():
        staged = store.stage(request.meta_file(name).path, overwrite=True)
        yield staged
        staged.append_file(made.path)
        wrote.append(name)
    files: dict[str, bytes] = {UUID: indexes.uuid.encode(), **request.meta.files, **_info_files(request, counts)}
    if request.how.sharing.is_distributed and request.options["--overwrite"]:
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
    found = [*request.plan.warnings, *request.meta.warnings]
    if request.before is not None:
        changed = [name for name, count in request.before.counts.items() if counts[name] != count]
        if changed:
            found.append(f"{len(changed)} shards had a different number of samples than the list, which is now updated")
    return found


__all__ = [
    "DatasetOptions",
    "EnergonPlan",
    "MediaFilter",
    "MediaReader",
    "PrepareSummary",
    "peek_webdataset",
    "plan_webdataset",
    "prepare_jsonl",
    "prepare_webdataset",
]

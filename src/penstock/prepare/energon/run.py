"""`penstock prepare`: the metadata of Energon for a folder of tar shards.

Shards are scanned by their headers, a process a shard; what is finished is kept in a work folder, so a run that was
killed goes on. Then everything is made beside what is there, and becomes visible in this order: each `.tar.idx`,
`index.sqlite` and `index.uuid`, `split.yaml` and `dataset.yaml`, and last the list of shards, `.info.json`. So until
then the old dataset loads. Shards are only read.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from penstock._digest import digest
from penstock.abc import Executor, Staged
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.executors import AnyExecutor, make_executor
from penstock.formats.samples.media_index import MediaFilter
from penstock.formats.samples.webdataset.key_index import KEYS
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    ENERGON_VERSION,
    INFO_JSON,
    INFO_YAML,
    SPLIT_YAML,
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
    DatasetOptions,
    EnergonPlan,
    MetaFiles,
    peek_webdataset,
    plan_in,
    plan_meta,
    plan_webdataset,
    require_random_access,
)
from penstock.prepare.energon.request import Asked, How, PrepareSummary, Progress, Request
from penstock.prepare.energon.scan import MediaReader, ShardDone, ShardTask, scan_task
from penstock.prepare.raw import IndexReport, build_index
from penstock.store.outputs import claimed_data
from penstock.store.place import Given, Place, dataset_at
from penstock.store.unfinished import Once
from penstock.work.energon import Work, forget_work, open_work

_INLINE_BYTES = 256 << 20
_MOST_WORKERS = 16
_MOST_PROBLEMS = 100
_KEPT_S = 60
"""What a run did that fails after this time is kept for the next one; after less it leaves nothing behind."""


def prepare_webdataset(
    path: Given,
    *,
    split_ratio: Mapping[str, float] | Sequence[float] | None = None,
    split_parts: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    exclude: str | None = None,
    workers: int | None = None,
    tar_index_only: bool = False,
    shuffle_tars: bool = False,
    overwrite: bool = False,
    dataset: DatasetOptions | None = None,
    sqlite: bool = True,
    media: MediaReader | None = None,
    executor: AnyExecutor | None = None,
    follow_links: bool = False,
    progress: Progress | None = None,
) -> PrepareSummary:
    """Prepare a folder of tar shards for Energon, and for ourselves.

    Memory: a few times what the largest shard's names take, and about 100 MiB; at any number of samples.

    Args:
        path: the folder.
        split_ratio: shares of train, val and test, or split → share. Without it and without `split_parts` a
            `split.yaml` that is there stays.
        split_parts: split → regular expression for the names of its shards.
        exclude: leave out shards in whose path this regular expression is found.
        workers: processes; by default one a core, one for little data.
        tar_index_only: make the indexes of the shards in the list again, and nothing else.
        shuffle_tars: mix the shards before a ratio cuts them.
        overwrite: prepare again what is prepared, and replace the files that are asked for.
        dataset: what `dataset.yaml` shall say; without it the one that is there stays.
        sqlite: make `index.sqlite`, in which Energon finds samples and parts by name; `index.keys` is made all the
            same.
        media: reads metadata of media; without it those that are there stay.
        executor: `"processes"`, `"inline"` for none, another name, or an executor; see `penstock.executors`.
        follow_links: read files through links that lead out of the dataset's folder.
        progress: called with the number of finished shards, and of all.

    Raises:
        NotFound: no such folder, or no shards in it.
        ConfigError: it is prepared already, an option can't be, or a user's file is in the way.
        FormatError: a shard is damaged, empty, or compressed, or has a key that comes twice.
        PrepareError: another run is at work, or a process was killed.
    """
    folder = dataset_at(path, follow_links=follow_links).bare()
    how = How(sqlite, media, workers, executor, progress)
    if not tar_index_only:
        options = dataset or DatasetOptions()
        asked = Asked(split_ratio, split_parts, exclude, options, shuffle_tars=shuffle_tars, overwrite=overwrite)
        return _prepare_anew(folder, asked, how)
    if exclude is not None or split_ratio is not None or split_parts is not None or dataset is not None:
        raise ConfigError(
            "with tar_index_only the list of shards stays as it is", hint="Leave out exclude, splits and dataset"
        )
    before = read_info(folder.store, folder.path)
    return _prepare(Request(_known_plan(folder, before), MetaFiles({}), before, how, None))


def _prepare_anew(folder: Place, asked: Asked, how: How) -> PrepareSummary:
    plan = plan_in(folder, asked.exclude)
    once = _once(plan, msgspec.to_builtins(asked.recorded(how)))
    made = None if asked.overwrite else once.made()
    if made is not None:
        return made
    _require_new(plan, overwrite=asked.overwrite)
    meta = plan_meta(
        plan,
        asked.split_ratio,
        asked.split_parts,
        asked.dataset,
        shuffle_tars=asked.shuffle_tars,
        overwrite=asked.overwrite,
    )
    return _prepare(Request(plan, meta, None, how, once))


def prepare_jsonl(path: Given, *, workers: int | None = None, overwrite: bool = False) -> IndexReport:
    """Prepare a JSONL file: its index `<path>.idx`, as Energon has it; see `penstock.prepare.raw.build_index`.

    Raises:
        NotFound: no such file.
        Corrupt: a line that is no object.
        ConfigError: the index exists and `overwrite` is false.
    """
    return build_index(path, flavor="energon", workers=workers, overwrite=overwrite)


def _prepare(request: Request) -> PrepareSummary:
    dataset = request.plan.dataset
    with claimed_data(dataset.store, dataset.path):
        started_s = time.monotonic()
        with open_work(dataset) as work:
            try:
                return _run(request, work)
            except Exception:
                if time.monotonic() - started_s < _KEPT_S:
                    work.clear()
                raise


def _require_new(plan: EnergonPlan, *, overwrite: bool) -> None:
    """That a folder is not prepared, or shall be prepared again."""
    if plan.is_prepared and not overwrite:
        _forget(plan.dataset)
        raise ConfigError(
            "this dataset is prepared already", path=plan.path, hint="Pass overwrite (--overwrite) to prepare it again"
        )


def _forget(dataset: Place) -> None:
    """Remove what a killed run left of its own."""
    with claimed_data(dataset.store, dataset.path):
        forget_work(dataset)


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
        _forget(plan.dataset)
        return dataclasses.replace(summary, shard_counts=counts)

    what = {"command": "prepare", "asked": asked, "shards": digest(plan.shards, plan.sizes)}
    files = [
        meta_path(plan.path, name) for name in (SQLITE, KEYS, UUID, SPLIT_YAML, DATASET_YAML, INFO_YAML, INFO_JSON)
    ]
    return Once(store, meta_path(plan.path, INFO_JSON), what, files, published)


def _known_plan(dataset: Place, info: Info) -> EnergonPlan:
    """The plan for the shards that the list has."""
    require_random_access(dataset, list(info.counts))
    files = [dataset.child(name) for name in info.counts]
    for file in files:
        if not file.exists():
            raise NotFound("a shard of the list is not there", path=file.path, hint="Prepare the dataset again")
    sizes = tuple(file.store.size(file.path) for file in files)
    return EnergonPlan(dataset, tuple(info.counts), sizes, True, True, True)


# --- the run -----------------------------------------------------------------------------------------------------


def _run(request: Request, work: Work) -> PrepareSummary:
    plan = request.plan
    with _executor(request, work) as pool:
        done = list(_scan(request, work, pool))
        counts = {one.shard: one.num_samples for one in done}
        indexes = make_indexes(request, work, counts, pool)
    staged: list[Staged] = []
    wrote = list(indexes.wrote)
    try:
        staged += _stage_meta(request, counts, indexes, wrote)
        index = request.meta_file(SQLITE)
        if not request.how.sqlite and index.exists():
            request.store.delete(index.path)
        summary = PrepareSummary(
            plan.path,
            counts,
            sum(counts.values()),
            sum(one.num_parts for one in done),
            sum(one.size_bytes for one in done),
            _split_sizes(request.meta, counts),
            sum(one.reused for one in done),
            indexes.uuid,
            tuple(wrote),
            (*_warnings(request, done), *indexes.warnings),
        )

        def commit() -> PrepareSummary:
            request.store.commit(staged)
            work.clear()
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


def _executor(request: Request, work: Work) -> AbstractContextManager[Executor]:
    plan, how, workers = request.plan, request.how, request.how.workers
    executor = "processes" if how.executor is None else how.executor
    if workers is None and executor == "processes":
        workers = min(len(os.sched_getaffinity(0)), len(plan.shards), _MOST_WORKERS)
        if sum(plan.sizes) < _INLINE_BYTES and how.media is None:
            workers = 1
    reads = [plan.dataset.child(name) for name in plan.shards]
    return make_executor(
        executor,
        workers,
        preload=[scan_task.__module__, run_task.__module__],
        alone=workers == 1,
        most=len(plan.shards),
        reads=reads,
        writes=[work.folder.place],
    )


def _scan(request: Request, work: Work, pool: Executor) -> Iterator[ShardDone]:
    plan, how = request.plan, request.how
    tasks = [ShardTask(plan.dataset, name, work.folder, how.media) for name in plan.shards]
    for number, one in enumerate(pool.map(scan_task, tasks), 1):
        if how.progress is not None:
            how.progress(number, len(tasks))
        yield one


def _stage_meta(request: Request, counts: dict[str, int], indexes: Indexes, wrote: list[str]) -> Iterator[Staged]:
    """The files of `.nv-meta` in the order in which they become visible."""
    store = request.store
    for name, made in indexes.files.items():
        staged = store.stage(request.meta_file(name).path, overwrite=True)
        yield staged
        staged.append_file(made.path)
        wrote.append(name)
    files: dict[str, bytes] = {UUID: indexes.uuid.encode(), **request.meta.files, **_info_files(request, counts)}
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


def _warnings(request: Request, done: Sequence[ShardDone]) -> list[str]:
    found = [*request.plan.warnings, *request.meta.warnings]
    unsafe = [one for one in done if one.unsafe_name is not None]
    if unsafe:
        found.append(
            f"names that leave the folder, such as {unsafe[0].unsafe_name!r} in {unsafe[0].shard}: they are keys like "
            "any other here, and refused where files are made of them"
        )
    problems = [text for one in done for text in one.problems]
    found += [f"media without metadata, or damaged: {text}" for text in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        found.append(f"{len(problems) - _MOST_PROBLEMS} more media like these")
    if request.before is not None:
        counts = {one.shard: one.num_samples for one in done}
        changed = [name for name, count in request.before.counts.items() if counts[name] != count]
        if changed:
            found.append(f"{len(changed)} shards hold other numbers of samples than the list said, which is new now")
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

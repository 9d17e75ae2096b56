"""`penstock prepare`: the metadata of Energon for a folder of tar shards.

Shards are scanned by their headers, a process a shard; what is finished is kept in a work folder, so a run that was
killed goes on. Then everything is made beside what is there, and becomes visible in this order: each `.tar.idx`,
`index.sqlite` and `index.uuid`, `split.yaml` and `dataset.yaml`, and last the list of shards, `.info.json`. So until
then the old dataset loads. Shards are only read.
"""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock._digest import digest
from penstock._secrets import redacted_repr
from penstock.abc import Staged, Store
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.executors import make_executor
from penstock.formats.samples import media_index
from penstock.formats.samples.media_index import MediaFilter
from penstock.formats.samples.sqlite import connect, system_errors
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
from penstock.formats.samples.webdataset.shards import encode_index, index_path
from penstock.formats.samples.webdataset.sqlite_index import IndexDigest, SqliteBuilder, decode_table
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
from penstock.prepare.energon.work import (
    MediaReader,
    ShardDone,
    ShardTask,
    Work,
    forget_work,
    open_work,
    scan_task,
)
from penstock.prepare.raw import IndexReport, build_index
from penstock.store.local import LocalStore
from penstock.store.outputs import claimed_data
from penstock.store.put import put
from penstock.store.resolve import resolve_dataset
from penstock.store.unfinished import Once

Progress = Callable[[int, int], None]
"""Told how many shards are done, and of how many."""

_INLINE_BYTES = 256 << 20
_MOST_WORKERS = 16
_MOST_PROBLEMS = 100
_KEPT_S = 60
"""What a run did that fails after this time is kept for the next one; after less it leaves nothing behind."""


@redacted_repr
@dataclass(frozen=True, slots=True)
class PrepareSummary:
    """What a preparation did.

    Attributes:
        path: the dataset's folder.
        shard_counts: shard → its samples.
        num_samples: samples in all, and `num_parts` parts.
        size_bytes: of all shards.
        splits: split → its shards and its samples, where splits were made.
        num_reused: shards that an earlier run had finished.
        uuid: what stands in `index.uuid`.
        wrote: files that are new or other than before, by their paths in the folder.
        warnings: what is odd.
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


@dataclass(frozen=True, slots=True)
class _Request:
    """What one run is to do, all of it checked."""

    store: Store
    plan: EnergonPlan
    meta: MetaFiles
    before: Info | None
    sqlite: bool
    media: MediaReader | None
    progress: Progress | None
    once: Once[PrepareSummary] | None


def prepare_webdataset(
    path: str | os.PathLike[str],
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
    executor: str | None = None,
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
        sqlite: make `index.sqlite`, which finds samples and parts by name.
        media: reads metadata of media; without it those that are there stay.
        executor: `"inline"` or `"processes"`.
        follow_links: read files through links that lead out of the dataset's folder.
        progress: told of finished shards.

    Raises:
        NotFound: no such folder, or no shards in it.
        ConfigError: it is prepared already, an option can't be, or a user's file is in the way.
        FormatError: a shard is damaged, empty, or compressed, or has a key that comes twice.
        PrepareError: another run is at work, or a process was killed.
    """
    store, root = resolve_dataset(path, follow_links=follow_links)
    root = root.rstrip("/") or root
    before: Info | None = None
    if tar_index_only:
        if exclude is not None or split_ratio is not None or split_parts is not None or dataset is not None:
            raise ConfigError(
                "with tar_index_only the list of shards stays as it is", hint="Leave out exclude, splits and dataset"
            )
        before = read_info(store, root)
        plan, meta, once = _known_plan(store, root, before), MetaFiles({}), None
    else:
        plan = plan_in(store, root, exclude)
        options = dataset or DatasetOptions()
        asked: list[Any] = [split_ratio, split_parts, exclude, shuffle_tars, options, sqlite]
        asked.append(None if media is None else [media.filter, media.exact])
        once = _once(store, plan, msgspec.to_builtins(asked))
        made = None if overwrite else once.made()
        if made is not None:
            return made
        _require_new(store, plan, overwrite=overwrite)
        meta = plan_meta(store, plan, split_ratio, split_parts, options, shuffle_tars=shuffle_tars, overwrite=overwrite)
    with claimed_data(store, root):
        return _prepare(_Request(store, plan, meta, before, sqlite, media, progress, once), workers, executor)


def prepare_jsonl(path: str | os.PathLike[str], *, workers: int | None = None, overwrite: bool = False) -> IndexReport:
    """Prepare a JSONL file: its index `<path>.idx`, as Energon has it; see `penstock.prepare.raw.build_index`.

    Raises:
        NotFound: no such file.
        Corrupt: a line that is no object.
        ConfigError: the index exists and `overwrite` is false.
    """
    return build_index(path, flavor="energon", workers=workers, overwrite=overwrite)


def _prepare(request: _Request, workers: int | None, executor: str | None) -> PrepareSummary:
    started_s = time.monotonic()
    with open_work(request.store, request.plan.path) as work:
        try:
            return _run(request, work, workers, executor)
        except Exception:
            if time.monotonic() - started_s < _KEPT_S:
                work.clear()
            raise


def _require_new(store: Store, plan: EnergonPlan, *, overwrite: bool) -> None:
    """That a folder is not prepared, or shall be prepared again."""
    if plan.is_prepared and not overwrite:
        _forget(store, plan.path)
        raise ConfigError(
            "this dataset is prepared already", path=plan.path, hint="Pass overwrite (--overwrite) to prepare it again"
        )


def _forget(store: Store, root: str) -> None:
    """Remove what a killed run left of its own."""
    with claimed_data(store, root):
        forget_work(store, root)


def _once(store: Store, plan: EnergonPlan, asked: Any) -> Once[PrepareSummary]:
    """The work that prepares a folder, known again by its list of shards and the uuid of its index."""

    def published(told: Any) -> PrepareSummary | None:
        try:
            summary = msgspec.convert(told, PrepareSummary)
            counts = read_info(store, plan.path).counts
            uuid = store.get(meta_path(plan.path, UUID)).decode(errors="replace")
        except (PenstockError, OSError, msgspec.ValidationError):
            return None
        if uuid != summary.uuid or list(counts) != list(plan.shards):
            return None
        _forget(store, plan.path)
        return dataclasses.replace(summary, shard_counts=counts)

    what = {"command": "prepare", "asked": asked, "shards": digest(plan.shards, plan.sizes)}
    files = [meta_path(plan.path, name) for name in (SQLITE, UUID, SPLIT_YAML, DATASET_YAML, INFO_YAML, INFO_JSON)]
    return Once(store, meta_path(plan.path, INFO_JSON), what, files, published)


def _known_plan(store: Store, root: str, info: Info) -> EnergonPlan:
    """The plan for the shards that the list has."""
    shards = tuple(info.counts)
    require_random_access(root, shards)
    for name in shards:
        if not store.exists(f"{root}/{name}"):
            raise NotFound("a shard of the list is not there", path=f"{root}/{name}", hint="Prepare the dataset again")
    return EnergonPlan(root, shards, tuple(store.size(f"{root}/{name}") for name in shards), True, True, True)


# --- the run -----------------------------------------------------------------------------------------------------


def _run(request: _Request, work: Work, workers: int | None, executor: str | None) -> PrepareSummary:
    plan = request.plan
    done = list(_scan(request, work, workers, executor))
    counts = {one.shard: one.num_samples for one in done}
    staged: list[Staged] = []
    wrote: list[str] = []
    try:
        local_index = work.scratch(SQLITE)
        uuid = _make_index(request, work, local_index, wrote)
        staged += _stage_meta(request, counts, uuid, local_index, wrote)
        if not request.sqlite and request.store.exists(meta_path(plan.path, SQLITE)):
            request.store.delete(meta_path(plan.path, SQLITE))
        summary = PrepareSummary(
            plan.path,
            counts,
            sum(counts.values()),
            sum(one.num_parts for one in done),
            sum(one.size_bytes for one in done),
            _split_sizes(request.meta, counts),
            sum(one.reused for one in done),
            uuid,
            tuple(wrote),
            tuple(_warnings(request, done)),
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


def _scan(request: _Request, work: Work, workers: int | None, executor: str | None) -> Iterator[ShardDone]:
    plan = request.plan
    if workers is None:
        workers = min(len(os.sched_getaffinity(0)), len(plan.shards), _MOST_WORKERS)
        if sum(plan.sizes) < _INLINE_BYTES and request.media is None:
            workers = 1
    kind = executor or ("inline" if workers == 1 else "processes")
    tasks = [ShardTask(request.store, plan.path, name, work.folder, request.media) for name in plan.shards]
    with make_executor(kind, workers, preload=[scan_task.__module__]) as pool:
        for number, one in enumerate(pool.map(scan_task, tasks), 1):
            if request.progress is not None:
                request.progress(number, len(tasks))
            yield one


def _make_index(request: _Request, work: Work, local_index: str, wrote: list[str]) -> str:
    """Make `index.sqlite` at `local_index`, then the indexes of the shards; returns the uuid."""
    digest = IndexDigest()
    shards = [f"{request.plan.path}/{name}" for name in request.plan.shards]
    if request.sqlite:
        with SqliteBuilder(local_index) as builder:
            for number, name in enumerate(request.plan.shards):
                data, rows = work.read(name)
                builder.add(number, decode_table(data, name))
                if request.media is not None:
                    media_index.create_tables(builder.connection)
                    media_index.put_rows(builder.connection, rows)
            if request.media is not None:
                media_index.add_filters(builder.connection, [(request.media.filter, _newest(request))])
            else:
                _keep_media(request, builder)
            builder.finish(shards)
    for name, shard in zip(request.plan.shards, shards, strict=True):
        data, _ = work.read(name)
        digest.add(name, data)
        if _put(request.store, index_path(shard), encode_index(decode_table(data, name).offsets)):
            wrote.append(index_path(name))
        _share(request.store, index_path(shard), shard)
    return digest.uuid()


def _keep_media(request: _Request, builder: SqliteBuilder) -> None:
    """Media metadata that are there outlive a new index."""
    path = meta_path(request.plan.path, SQLITE)
    if not request.store.exists(path):
        return
    try:
        with system_errors(path), closing(connect(request.store, path)) as before:
            if not media_index.has_table(before, media_index.METADATA):
                return
    except sqlite3.DatabaseError:
        return  # what is there is no database: nothing to keep
    with closing(connect(request.store, path)) as before:
        media_index.create_tables(builder.connection)
        media_index.put_rows(builder.connection, media_index.read_rows(before, path=path))
        media_index.add_filters(builder.connection, media_index.read_filters(before, path=path))


def _newest(request: _Request) -> str:
    """When the newest shard was changed, as sqlite writes it: the same for the same data."""
    if not isinstance(request.store, LocalStore):
        return "1970-01-01 00:00:00"
    newest_s = max(os.stat(f"{request.plan.path}/{name}").st_mtime for name in request.plan.shards)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest_s))


def _share(store: Store, path: str, shard: str) -> None:
    """Who may read a shard may read its index."""
    if not isinstance(store, LocalStore):
        return
    mode = stat.S_IMODE(os.stat(shard).st_mode) | 0o600
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)


def _put(store: Store, path: str, content: bytes) -> bool:
    """Make a file hold `content`; whether it did not."""
    if store.exists(path) and store.size(path) == len(content) and store.get(path) == content:
        return False
    put(store, path, content)
    return True


def _stage_meta(
    request: _Request, counts: dict[str, int], uuid: str, local_index: str, wrote: list[str]
) -> Iterator[Staged]:
    """The files of `.nv-meta` in the order in which they become visible."""
    store, root = request.store, request.plan.path
    if request.sqlite:
        staged = store.stage(meta_path(root, SQLITE), overwrite=True)
        yield staged
        staged.append_file(local_index)
        wrote.append(SQLITE)
    files: dict[str, bytes] = {UUID: uuid.encode(), **request.meta.files, **_info_files(request, counts)}
    for name, content in files.items():
        path = meta_path(root, name)
        if name != INFO_JSON and store.exists(path) and store.get(path) == content:
            continue
        staged = store.stage(path, overwrite=True)
        yield staged
        staged.write(content)
        wrote.append(name)


def _info_files(request: _Request, counts: dict[str, int]) -> dict[str, bytes]:
    store, root = request.store, request.plan.path
    if request.before is None:
        version: str | None = ENERGON_VERSION
    elif request.before.counts == counts and request.before.name == INFO_JSON:
        return {}
    else:
        version = request.before.version
    files = {INFO_JSON: encode_info(counts, version)}
    if store.exists(meta_path(root, INFO_YAML)):
        files = {INFO_YAML: encode_info_yaml(counts, version), **files}
    return files


def _split_sizes(meta: MetaFiles, counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    parts = {} if meta.assignment is None else meta.assignment.parts
    return {split: (len(shards), sum(counts[name] for name in shards)) for split, shards in parts.items()}


def _warnings(request: _Request, done: Sequence[ShardDone]) -> list[str]:
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

"""The indexes of a preparation: runs of groups of shards, made in parallel from finished tables, then merged.

A group is consecutive shards of at most `_GROUP_SAMPLES` samples, or one shard. Of each a worker makes the rows of
`index.sqlite`, in a database of its own, and a sorted run of `index.keys`; rows are then copied by sqlite itself, and
sorted runs are merged a range of hashes at a time. So what one process does for a sample is a copy.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np

from penstock._secrets import logger
from penstock.abc import Executor
from penstock.formats.samples import media_index
from penstock.formats.samples.sqlite import connect, system_errors
from penstock.formats.samples.webdataset.key_index import KEYS, entries_of, read_run, sorted_entries, write_keys
from penstock.formats.samples.webdataset.nvmeta import SQLITE
from penstock.formats.samples.webdataset.shards import encode_index, index_path
from penstock.formats.samples.webdataset.sqlite_index import (
    IndexDigest,
    SqliteBuilder,
    decode_table,
    table_digest,
)
from penstock.prepare.energon.request import Request
from penstock.store.place import Place
from penstock.store.put import aborting, put
from penstock.work.energon import Work
from penstock.work.folder import WorkFolder, local_store

_log = logger()
_GROUP_SAMPLES, _GROUP_SHARDS = 1 << 17, 256
LARGE_BYTES = 10 << 30
"""From this size on, `index.sqlite` is announced before it is made."""


@dataclass(frozen=True, slots=True)
class Group:
    """Some consecutive shards: numbers `[first, first + len(shards))`."""

    dataset: Place
    work: WorkFolder
    number: int
    first: int
    shards: tuple[str, ...]
    sqlite: bool

    def run(self, name: str) -> Place:
        """Its run of an index, a file in the work folder."""
        return self.work.file(f"{name}.run-{self.number:06d}")


@dataclass(frozen=True, slots=True)
class GroupRun:
    """What was made of a group: the digests of its tables, and the bytes of its rows."""

    group: Group
    digests: tuple[bytes, ...]
    sqlite_bytes: int


@dataclass(frozen=True, slots=True)
class Indexes:
    """The indexes of all shards, in the work folder.

    Attributes:
        uuid: for `index.uuid`.
        files: name in `.nv-meta` → where it is.
        wrote: indexes of shards that are new or other than before.
        warnings: what is odd.
    """

    uuid: str
    files: dict[str, Place]
    wrote: list[str]
    warnings: list[str]


def make_indexes(request: Request, work: Work, counts: Mapping[str, int], pool: Executor) -> Indexes:
    """Make `index.sqlite` and `index.keys`, then the indexes of the shards, which are visible at once.

    Raises:
        Corrupt: a key comes in two shards.
    """
    groups = list(_groups(request, work, counts))
    runs = list(pool.map(run_task, groups))
    digest = IndexDigest()
    for run in runs:
        for shard, one in zip(run.group.shards, run.digests, strict=True):
            digest.add(shard, one)
    files: dict[str, Place] = {}
    warnings: list[str] = []
    if request.how.sqlite:
        warnings += _announce(request, runs)
        files[SQLITE] = work.scratch(SQLITE)
        _merge_sqlite(request, work, files[SQLITE], groups)
    files[KEYS] = work.scratch(KEYS)
    warnings += _merge_keys(files[KEYS], digest.uuid(), groups)
    wrote = [name for names in pool.map(publish_task, groups) for name in names]
    return Indexes(digest.uuid(), files, wrote, warnings)


# --- what workers do ---------------------------------------------------------------------------------------------


def run_task(group: Group) -> GroupRun:
    """Make the runs of a group from finished tables; in a worker, perhaps in two at once."""
    keys = [entries_of([])]
    digests: list[bytes] = []
    size_bytes = 0
    with ExitStack() as stack:
        staged, builder = None, None
        if group.sqlite:
            staged = stack.enter_context(
                aborting(local_store(group.work.place).stage(group.run(SQLITE).path, overwrite=True))
            )
            builder = stack.enter_context(SqliteBuilder(staged.hidden_path))
        for number, shard in enumerate(group.shards, group.first):
            data, _ = Work(group.work).read(shard)
            table = decode_table(data, shard)
            keys.append(entries_of([(number, table)]))
            digests.append(table_digest(data))
            if builder is not None:
                builder.add(number, table)
        if staged is not None and builder is not None:
            builder.end_run()
            staged.commit()
            size_bytes = group.work.store.size(group.run(SQLITE).path)
    group.work.put(group.run(KEYS).name, sorted_entries(np.concatenate(keys)).tobytes())
    return GroupRun(group, tuple(digests), size_bytes)


def publish_task(group: Group) -> list[str]:
    """Write the indexes of the shards of a group; those that were not there, or were others. Runs in a worker."""
    work = Work(group.work)
    wrote: list[str] = []
    for name in group.shards:
        data, _ = work.read(name)
        shard = group.dataset.child(name)
        index = Place(shard.store, index_path(shard.path))
        if _put(index, encode_index(decode_table(data, name).offsets)):
            wrote.append(index_path(name))
        _share(index, shard)
    return wrote


def _share(index: Place, shard: Place) -> None:
    """Who may read a shard may read its index."""
    if not shard.is_local:
        return
    mode = stat.S_IMODE(os.stat(shard.path).st_mode) | 0o600
    if stat.S_IMODE(os.stat(index.path).st_mode) != mode:
        os.chmod(index.path, mode)


def _put(file: Place, content: bytes) -> bool:
    """Make a file hold `content`; whether it did not."""
    store, path = file.store, file.path
    if store.exists(path) and store.size(path) == len(content) and store.get(path) == content:
        return False
    put(store, path, content)
    return True


# --- what one process does ---------------------------------------------------------------------------------------


def _groups(request: Request, work: Work, counts: Mapping[str, int]) -> Iterator[Group]:
    dataset, shards = request.plan.dataset, request.plan.shards
    first = number = samples = 0
    for stop, name in enumerate(shards):
        full = samples + counts[name] > _GROUP_SAMPLES or stop - first == _GROUP_SHARDS
        if full and stop > first:
            yield Group(dataset, work.folder, number, first, shards[first:stop], request.how.sqlite)
            first, number, samples = stop, number + 1, 0
        samples += counts[name]
    yield Group(dataset, work.folder, number, first, shards[first:], request.how.sqlite)


def _announce(request: Request, runs: Sequence[GroupRun]) -> list[str]:
    """What to say of an index that will be large; it is said before it is made, too."""
    # Its own indexes hold all again, and the names of parts once more.
    size_bytes = 3 * sum(run.sqlite_bytes for run in runs)
    if size_bytes < LARGE_BYTES:
        return []
    told = (
        f"index.sqlite takes about {size_bytes / 1e9:.0f} GB, and as much again in the folder for temporary files "
        "while it is sorted; without it (--no-sqlite) keys are found in index.keys, by Penstock alone"
    )
    _log.warning("%s: %s", request.plan.path, told)
    return [told]


def _merge_sqlite(request: Request, work: Work, target: Place, groups: Sequence[Group]) -> None:
    media = request.how.media
    with SqliteBuilder(target.path) as builder:
        for group in groups:
            builder.merge(group.run(SQLITE).path)
            group.work.store.delete(group.run(SQLITE).path)
        if media is None:
            _keep_media(request, builder)
        else:
            media_index.create_tables(builder.connection)
            for name in request.plan.shards:
                media_index.put_rows(builder.connection, work.read(name)[1])
            media_index.add_filters(builder.connection, [(media.filter, _newest(request))])
        builder.finish([request.plan.dataset.child(name).path for name in request.plan.shards])


def _merge_keys(target: Place, uuid: str, groups: Sequence[Group]) -> list[str]:
    """Make the index of keys; what to say of keys that repeat, which `index.sqlite` would have refused."""
    with aborting(local_store(target).stage(target.path, overwrite=True)) as staged:
        repeated = write_keys(staged.write, uuid, [read_run(group.run(KEYS).path) for group in groups])
        staged.commit()
    return [f"{repeated:,} samples have a key that others have: such a key names none"] if repeated else []


def _keep_media(request: Request, builder: SqliteBuilder) -> None:
    """Media metadata that are there outlive a new index."""
    index = request.meta_file(SQLITE)
    store, path = index.store, index.path
    if not index.exists():
        return
    try:
        with system_errors(path), closing(connect(store, path)) as before:
            if not media_index.has_table(before, media_index.METADATA):
                return
    except sqlite3.DatabaseError:
        return  # what is there is no database: nothing to keep
    with closing(connect(store, path)) as before:
        media_index.create_tables(builder.connection)
        media_index.put_rows(builder.connection, media_index.read_rows(before, path=path))
        media_index.add_filters(builder.connection, media_index.read_filters(before, path=path))


def _newest(request: Request) -> str:
    """When the newest shard was changed, as sqlite writes it: the same for the same data."""
    if not request.plan.dataset.is_local:
        return "1970-01-01 00:00:00"
    newest_s = max(os.stat(request.plan.dataset.child(name).path).st_mtime for name in request.plan.shards)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest_s))

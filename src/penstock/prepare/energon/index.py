"""The indexes of a preparation: runs of groups of shards, made in parallel from parts, then merged.

A group is consecutive shards of at most `_GROUP_SAMPLES` samples, or one shard. Of each a worker makes the rows of
`index.sqlite`, in a database of its own, and a sorted run of `index.keys`; rows are then copied by sqlite itself, and
sorted runs are merged a range of hashes at a time. So what one process does for a sample is a copy.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np

from penstock._secrets import logger
from penstock.abc import Executor
from penstock.codec.upright import PIXELS
from penstock.engine.folder import local_copy
from penstock.engine.parts import PartName
from penstock.engine.work import SCRATCH, Work, scratch
from penstock.formats.samples import media_index
from penstock.formats.samples.sqlite import connect, system_errors
from penstock.formats.samples.webdataset.key_index import KEYS, entries_of, read_run, sorted_entries, write_keys
from penstock.formats.samples.webdataset.members import Rows, encode_members
from penstock.formats.samples.webdataset.nvmeta import MEMBERS, SQLITE, UUID
from penstock.formats.samples.webdataset.shards import encode_index, index_path
from penstock.formats.samples.webdataset.sqlite_index import (
    IndexDigest,
    SqliteBuilder,
    decode_table,
    table_digest,
)
from penstock.prepare.energon.request import Request
from penstock.prepare.energon.scan import read_shard
from penstock.store.place import Place, place_of
from penstock.store.put import aborting, put, put_local_file, put_new

_log = logger()
_GROUP_SAMPLES, _GROUP_SHARDS = 1 << 17, 256
_MOST_PROBLEMS = 100
LARGE_BYTES = 10 << 30
"""From this size on, `index.sqlite` is announced before it is made."""


@dataclass(frozen=True, slots=True)
class Group:
    """Some consecutive shards: numbers `[first, first + len(shards))`.

    Attributes:
        dataset: where they are.
        parts: where their parts are, by `names`.
        scratch: where its runs go, for whoever merges them.
    """

    dataset: Place
    parts: Place
    scratch: Place
    number: int
    first: int
    shards: tuple[str, ...]
    names: tuple[PartName, ...]
    sqlite: bool

    def run(self, name: str) -> Place:
        """Its run of an index."""
        return self.scratch.child(f"{name}.run-{self.number:06d}")


@dataclass(frozen=True, slots=True)
class GroupRun:
    """What was made of a group: the digests of its tables, the bytes of its rows, and what is odd in it."""

    group: Group
    digests: tuple[bytes, ...]
    sqlite_bytes: int
    unsafe: str | None
    problems: tuple[str, ...]
    linked: Mapping[str, Rows]
    ignored: tuple[Mapping[str, int], ...]
    traits: Mapping[str, int]
    endings: Mapping[str, tuple[str, ...]]
    """What is wrong with the end of shards → their names."""


@dataclass(frozen=True, slots=True)
class Indexes:
    """The indexes of all shards, in a scratch folder.

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


def make_indexes(request: Request, work: Work, names: Sequence[PartName], here: str, pool: Executor) -> Indexes:
    """Make `index.sqlite` and `index.keys`, then the indexes of the shards, which are visible at once.

    Args:
        request: what is asked for.
        work: where the parts are.
        names: the parts of the shards, in their order.
        here: a scratch folder, where the indexes are made.
        pool: does what can be done side by side.

    Raises:
        Corrupt: a key comes in two shards.
    """
    groups = list(_groups(request, work.parts, work.place.child(f"{SCRATCH}/{secrets.token_hex(8)}"), names))
    runs = list(pool.map(run_task, groups))
    digest = IndexDigest()
    for run in runs:
        for shard, one in zip(run.group.shards, run.digests, strict=True):
            digest.add(shard, one)
    folder = place_of(here)
    files: dict[str, Place] = {}
    warnings = [*_oddities(runs), *_about_ends(request, runs)]
    if request.metadata.sqlite:
        warnings += _announce(request, runs)
        files[SQLITE] = folder.child(SQLITE)
        warnings += _merge_sqlite(request, files[SQLITE], groups, digest.uuid())
    files[KEYS] = folder.child(KEYS)
    warnings += _merge_keys(files[KEYS], digest.uuid(), groups)
    linked = {shard: rows for run in runs for shard, rows in run.linked.items()}
    members = encode_members(digest.uuid(), (one for run in runs for one in run.ignored), linked)
    if members is not None:
        files[MEMBERS] = folder.child(MEMBERS)
        put(files[MEMBERS].store, files[MEMBERS].path, members)
        warnings += _about_members(runs)
    wrote = [name for names in pool.map(publish_task, groups) for name in names]
    return Indexes(digest.uuid(), files, wrote, warnings)


# --- what workers do ---------------------------------------------------------------------------------------------


def run_task(group: Group) -> GroupRun:
    """Make the runs of a group from its parts; in a worker, perhaps in two at once."""
    keys = [entries_of([])]
    digests: list[bytes] = []
    problems: list[str] = []
    linked: dict[str, Rows] = {}
    ignored: list[Mapping[str, int]] = []
    traits: Counter[str] = Counter()
    endings: dict[str, tuple[str, ...]] = {}
    size_bytes, unsafe = 0, None
    with scratch(group.scratch.folder()) as here, ExitStack() as stack:
        path = f"{here}/{SQLITE}"
        builder = stack.enter_context(SqliteBuilder(path)) if group.sqlite else None
        for number, (shard, name) in enumerate(zip(group.shards, group.names, strict=True), group.first):
            part = read_shard(group.parts, name)
            table = decode_table(part.table, shard)
            keys.append(entries_of([(number, table)]))
            digests.append(table_digest(part.table))
            problems += part.problems
            linked[shard] = part.linked
            ignored.append(part.ignored)
            traits.update(part.traits)
            if part.ending is not None:
                endings[part.ending] = (*endings.get(part.ending, ()), shard)
            odd = next((key for key in table.keys if key.startswith("/") or ".." in key.split("/")), None)
            unsafe = unsafe or (None if odd is None else f"{odd!r} in {shard}")
            if builder is not None:
                builder.add(number, table)
        put_new(group.scratch.store, group.run(KEYS).path, sorted_entries(np.concatenate(keys)).tobytes())
        if builder is not None:
            builder.end_run()
            size_bytes = place_of(path).store.size(path)
            put_local_file(group.scratch.store, path, group.run(SQLITE).path)
    more = (tuple(problems), linked, tuple(ignored), dict(traits), endings)
    return GroupRun(group, tuple(digests), size_bytes, unsafe, *more)


def publish_task(group: Group) -> list[str]:
    """Write the indexes of the shards of a group; those that were not there, or were others. Runs in a worker."""
    wrote: list[str] = []
    for shard_name, name in zip(group.shards, group.names, strict=True):
        shard = group.dataset.child(shard_name)
        index = Place(shard.store, index_path(shard.path))
        table = decode_table(read_shard(group.parts, name).table, shard_name)
        if _put(index, encode_index(table.offsets)):
            wrote.append(index_path(shard_name))
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


def _groups(request: Request, parts: Place, above: Place, names: Sequence[PartName]) -> Iterator[Group]:
    dataset, shards, sqlite = request.source.dataset, request.source.shards, request.metadata.sqlite
    first = number = samples = 0
    for stop, name in enumerate(names):
        full = samples + name.documents > _GROUP_SAMPLES or stop - first == _GROUP_SHARDS
        if full and stop > first:
            some = slice(first, stop)
            yield Group(dataset, parts, above, number, first, shards[some], tuple(names[some]), sqlite)
            first, number, samples = stop, number + 1, 0
        samples += name.documents
    yield Group(dataset, parts, above, number, first, shards[first:], tuple(names[first:]), sqlite)


def _oddities(runs: Sequence[GroupRun]) -> list[str]:
    """What to say of odd keys, and of media that are damaged."""
    found: list[str] = []
    unsafe = next((run.unsafe for run in runs if run.unsafe is not None), None)
    if unsafe is not None:
        found.append(
            f"names that point outside the folder, such as {unsafe}: "
            "they work as keys, but these samples can't be extracted to files"
        )
    traits: Counter[str] = Counter()
    for run in runs:
        traits.update(run.traits)
    found += [f'{count:,} images have {trait}: decode="uint8" {PIXELS[trait]}' for trait, count in traits.items()]
    problems = [text for run in runs for text in run.problems]
    found += [f"media without metadata, or damaged: {text}" for text in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        found.append(f"{len(problems) - _MOST_PROBLEMS} more such media")
    return found


def _about_ends(request: Request, runs: Sequence[GroupRun]) -> list[str]:
    """Warnings about shards that don't end as tars do; logged too."""
    shards: dict[str, list[str]] = {}
    for run in runs:
        for what, names in run.endings.items():
            shards.setdefault(what, []).extend(names)
    lines = [f"{what}: {_named(names)}" for what, names in shards.items()]
    for line in lines:
        _log.warning("%s: %s", request.source.path, line)
    return lines


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names):,} shards, such as {names[0]}"


def _about_members(runs: Sequence[GroupRun]) -> list[str]:
    """What to say of members that aren't regular files, and of leftovers."""
    ignored: Counter[str] = Counter()
    for run in runs:
        for one in run.ignored:
            ignored.update(one)
    count = sum(len(rows) for run in runs for rows in run.linked.values())
    found = [f"{number:,} {kind}: they belong to no sample" for kind, number in sorted(ignored.items())]
    if count:
        found.append(
            f"{count:,} parts are links within a shard: Penstock reads them, Energon doesn't. "
            "`tar --hard-dereference` stores them as files"
        )
    return found


def _announce(request: Request, runs: Sequence[GroupRun]) -> list[str]:
    """What to say of an index that will be large; it is said before it is made, too."""
    # Its own indexes hold all again, and the names of parts once more.
    size_bytes = 3 * sum(run.sqlite_bytes for run in runs)
    if size_bytes < LARGE_BYTES:
        return []
    told = (
        f"index.sqlite takes about {size_bytes / 1e9:.0f} GB, and the same again in the temporary folder while it is "
        "sorted. Without it (--no-sqlite), keys are found in index.keys, which only Penstock reads"
    )
    _log.warning("%s: %s", request.source.path, told)
    return [told]


def _merge_sqlite(request: Request, target: Place, groups: Sequence[Group], uuid: str) -> list[str]:
    """Make `index.sqlite`; what to say of media metadata that don't belong to these shards."""
    media, warnings = request.metadata.media, list[str]()
    with SqliteBuilder(target.path) as builder:
        for group in groups:
            run = group.run(SQLITE)
            with scratch(target.folder()) as here:
                builder.merge(local_copy(run, place_of(here)).path)
            run.store.delete(run.path)
        if media is None:
            warnings += _keep_media(request, builder, uuid)
        else:
            media_index.create_tables(builder.connection)
            for group in groups:
                for name in group.names:
                    media_index.put_rows(builder.connection, read_shard(group.parts, name).rows())
            media_index.add_filters(builder.connection, [(media.filter, _newest(request))])
        builder.finish([request.source.dataset.child(name).path for name in request.source.shards])
    return warnings


def _merge_keys(target: Place, uuid: str, groups: Sequence[Group]) -> list[str]:
    """Make the index of keys; what to say of keys that repeat, which `index.sqlite` would have refused."""
    runs = (local_copy(group.run(KEYS), target.folder()).path for group in groups)
    with aborting(target.store.stage(target.path)) as staged:
        repeated = write_keys(staged.write, uuid, list(map(read_run, runs)))
        staged.commit()
    return [f"{repeated:,} samples share a key with others and can't be looked up by it"] if repeated else []


def _keep_media(request: Request, builder: SqliteBuilder, uuid: str) -> list[str]:
    """Copy the media metadata of the old index if it is of the same shards; what to say if it isn't."""
    index = request.meta_file(SQLITE)
    store, path = index.store, index.path
    if not index.exists():
        return []
    try:
        with system_errors(path), closing(connect(store, path)) as before:
            if not media_index.has_table(before, media_index.METADATA):
                return []
    except sqlite3.DatabaseError:
        return []  # what is there is no database: nothing to keep
    old = request.meta_file(UUID)
    if not old.exists() or old.store.get(old.path) != uuid.encode():
        return ["the media metadata of the old index is dropped because the shards changed: `penstock prepare-media`"]
    with closing(connect(store, path)) as before:
        media_index.create_tables(builder.connection)
        media_index.put_rows(builder.connection, media_index.read_rows(before, path=path))
        media_index.add_filters(builder.connection, media_index.read_filters(before, path=path))
    return []


def _newest(request: Request) -> str:
    """When the newest shard was changed, as sqlite writes it: the same for the same data."""
    if not request.source.dataset.is_local:
        return "1970-01-01 00:00:00"
    newest_s = max(os.stat(request.source.dataset.child(name).path).st_mtime for name in request.source.shards)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest_s))

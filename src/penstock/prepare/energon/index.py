"""Scan shards into parts, and make the indexes of a dataset from the parts.

Parts are indexed in groups of consecutive shards of at most `_GROUP_SAMPLES` samples, or one shard. For each group, a
worker makes the rows of `index.sqlite` in a database of its own, and a sorted run of `index.keys`. Then one process
copies the rows within sqlite, and merges the sorted runs by ranges of hashes.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import msgspec
import numpy as np

from penstock._secrets import logger
from penstock.abc import Executor
from penstock.codec.upright import PIXELS
from penstock.engine.folder import local_copy
from penstock.engine.parts import PartName, get_part, put_part
from penstock.engine.work import SCRATCH, Work, scratch
from penstock.errors import Corrupt, PrepareError
from penstock.formats.samples import media_index
from penstock.formats.samples.media_index import MediaRow, decode_metadata, encode_metadata
from penstock.formats.samples.sqlite import connect, system_errors
from penstock.formats.samples.webdataset.key_index import KEYS, entries_of, read_run, sorted_entries, write_keys
from penstock.formats.samples.webdataset.members import Rows, encode_members, linked_rows
from penstock.formats.samples.webdataset.nvmeta import MEMBERS, SQLITE, UUID
from penstock.formats.samples.webdataset.shards import (
    encode_index,
    index_path,
    require_content,
    require_distinct,
    require_ended,
    require_text,
    scan_shard,
)
from penstock.formats.samples.webdataset.sqlite_index import (
    IndexDigest,
    SqliteBuilder,
    decode_table,
    encode_table,
    table_digest,
)
from penstock.prepare.energon.plan import EnergonPlan, MetadataOptions
from penstock.prepare.media.rows import MediaProblem, ShardMedia
from penstock.store.fingerprint import state_of
from penstock.store.place import Place, place_of
from penstock.store.put import aborting, put, put_local_file, put_new

_log = logger()
_GROUP_SAMPLES, _GROUP_SHARDS = 1 << 17, 256
_MOST_PROBLEMS = 100
LARGE_BYTES = 10 << 30
"""From this size on, `index.sqlite` is announced in the log."""


# --- shards ----------------------------------------------------------------------------------------------------------


class ShardPart(msgspec.Struct, array_like=True):
    """The part of a shard. Its name has the numbers of samples and parts of the shard, and of problems.

    Attributes:
        table: encoded by `encode_table`.
        media: rows of media, as name, kind and JSON.
        problems: problems of media.
        linked, ignored: members that aren't in the index.
        traits: property → number of images that have it.
        ending: problem of the end of the shard.
    """

    table: bytes
    media: list[tuple[str, str, str]]
    problems: list[str]
    linked: Rows = []
    ignored: dict[str, int] = {}
    traits: dict[str, int] = {}
    ending: str | None = None


@dataclass(frozen=True, slots=True)
class ShardTask:
    number: int
    dataset: Place
    shard: str
    media: ShardMedia | None = None

    @property
    def described(self) -> str:
        return self.dataset.child(self.shard).shown

    @property
    def num_samples(self) -> int:
        return 1  # progress is counted in shards


def scan_task(parts: Place, task: ShardTask) -> PartName:
    """Scan a shard and write its part; runs in a worker, possibly in two workers at once.

    Raises:
        FormatError: the shard is damaged or empty, repeats a key, or has data after its end.
        PrepareError: the shard changed meanwhile.
    """
    file = task.dataset.child(task.shard)
    before = state_of(file)
    table = scan_shard(file.store, file.path)
    if table.num_samples == 0:
        require_content(table, file.path)
        raise Corrupt(
            "a shard without samples", path=file.path, found="no member with a name like <key>.<part>",
            hint="Remove it, or skip it with exclude (--exclude)",
        )  # fmt: skip
    require_distinct(table, file.path)
    require_content(table, file.path)
    require_text(table, file.path)
    ending = require_ended(file.store, file.path, table)
    found = [] if task.media is None else list(task.media(file.store, file.path, table))
    rows = [(row.name, *encode_metadata(row.metadata)) for row in found if isinstance(row, MediaRow)]
    problems = [f"{task.shard}: {one.name}: {one.what}" for one in found if isinstance(one, MediaProblem)]
    if state_of(file) != before:
        raise PrepareError(
            "a shard changed while it was being read", path=file.path, hint="Prepare it when it is complete"
        )
    traits = Counter(trait for row in found if isinstance(row, MediaRow) for trait in row.traits)
    linked = linked_rows(table.linked)
    about_end = None if ending is None else ending.what
    part = ShardPart(encode_table(table), rows, problems, linked, dict(table.ignored), dict(traits), about_end)
    data = msgspec.msgpack.encode(part)
    counts = {"documents": table.num_samples, "tokens": len(table.part_names), "num_dropped": len(problems)}
    return put_part(parts, task.number, data, **counts)


def read_shard(parts: Place, name: PartName) -> ShardPart:
    return msgspec.msgpack.decode(get_part(parts, name), type=ShardPart)


# --- groups ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive shards: numbers `[first, first + len(shards))`.

    Attributes:
        dataset: directory of the shards.
        parts: directory of their parts.
        scratch: directory for the runs.
        number: number of the group.
        names: names of the parts.
        sqlite: make `index.sqlite`.
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
        return self.scratch.child(f"{name}.run-{self.number:06d}")


@dataclass(slots=True)
class GroupRun:
    """Digests of the tables of a group, the size of its rows, and its parts without tables and media.

    `unsafe` is a key that leads out of the directory.
    """

    group: Group
    digests: list[bytes]
    sqlite_bytes: int
    unsafe: str | None
    parts: list[ShardPart]


@dataclass(frozen=True, slots=True)
class Indexes:
    """The indexes of all shards, in a scratch folder.

    Attributes:
        uuid: content of `index.uuid`.
        files: name in `.nv-meta` → file.
        wrote: new or changed indexes of shards.
        warnings: warnings about the data.
    """

    uuid: str
    files: dict[str, Place]
    wrote: list[str]
    warnings: list[str]


def make_indexes(
    source: EnergonPlan, metadata: MetadataOptions, work: Work, names: Sequence[PartName], here: str, pool: Executor
) -> Indexes:
    """Make `index.sqlite` and `index.keys`, then the indexes of the shards, which are visible at once.

    Args:
        source: the shards.
        metadata: options of the metadata.
        work: the work folder with the parts.
        names: the parts of the shards, in their order.
        here: directory for the indexes.
        pool: runs the tasks of groups.

    Raises:
        Corrupt: two shards have the same key.
    """
    groups = list(
        _groups(source, metadata.sqlite, work.parts, work.place.child(f"{SCRATCH}/{secrets.token_hex(8)}"), names)
    )
    runs = list(pool.map(run_task, groups))
    index_digest = IndexDigest()
    for shard, one in zip(source.shards, (one for run in runs for one in run.digests), strict=True):
        index_digest.add(shard, one)
    uuid, folder = index_digest.uuid(), place_of(here)
    files: dict[str, Place] = {}
    parts = dict(zip(source.shards, (part for run in runs for part in run.parts), strict=True))
    warnings = [*_oddities(runs, parts), *_about_ends(source, parts)]
    if metadata.sqlite:
        warnings += _announce(source, runs)
        files[SQLITE] = folder.child(SQLITE)
        warnings += _merge_sqlite(source, metadata.media, files[SQLITE], groups, uuid)
    files[KEYS] = folder.child(KEYS)
    runs_of_keys = (local_copy(group.run(KEYS), folder).path for group in groups)
    with aborting(folder.store.stage(files[KEYS].path)) as staged:
        repeated = write_keys(staged.write, uuid, list(map(read_run, runs_of_keys)))
        staged.commit()
    if repeated:  # which index.sqlite doesn't allow
        warnings.append(f"{repeated:,} samples share a key with others and can't be looked up by it")
    linked = {shard: part.linked for shard, part in parts.items()}
    members = encode_members(uuid, (part.ignored for part in parts.values()), linked)
    if members is not None:
        files[MEMBERS] = folder.child(MEMBERS)
        put(files[MEMBERS].store, files[MEMBERS].path, members)
        warnings += _about_members(parts.values())
    wrote = [name for names in pool.map(publish_task, groups) for name in names]
    return Indexes(uuid, files, wrote, warnings)


def run_task(group: Group) -> GroupRun:
    """Make the runs of a group from its parts; runs in a worker, possibly in two workers at once."""
    keys, done = [entries_of([])], GroupRun(group, [], 0, None, [])
    with scratch(group.scratch.folder()) as here, ExitStack() as stack:
        path = f"{here}/{SQLITE}"
        builder = stack.enter_context(SqliteBuilder(path)) if group.sqlite else None
        for number, (shard, name) in enumerate(zip(group.shards, group.names, strict=True), group.first):
            part = read_shard(group.parts, name)
            table = decode_table(part.table, shard)
            keys.append(entries_of([(number, table)]))
            done.digests.append(table_digest(part.table))
            odd = next((key for key in table.keys if key.startswith("/") or ".." in key.split("/")), None)
            done.unsafe = done.unsafe or (None if odd is None else f"{odd!r} in {shard}")
            part.table, part.media = b"", []
            done.parts.append(part)
            if builder is not None:
                builder.add(number, table)
        put_new(group.scratch.store, group.run(KEYS).path, sorted_entries(np.concatenate(keys)).tobytes())
        if builder is not None:
            builder.end_run()
            done.sqlite_bytes = place_of(path).store.size(path)
            put_local_file(group.scratch.store, path, group.run(SQLITE).path)
    return done


def publish_task(group: Group) -> list[str]:
    """Write the indexes of the shards of a group, and return the new and changed ones; runs in a worker."""
    wrote: list[str] = []
    for shard_name, name in zip(group.shards, group.names, strict=True):
        shard = group.dataset.child(shard_name)
        index = Place(shard.store, index_path(shard.path))
        table = decode_table(read_shard(group.parts, name).table, shard_name)
        content = encode_index(table.offsets)
        if not (
            index.exists() and index.store.size(index.path) == len(content) and index.store.get(index.path) == content
        ):
            put(index.store, index.path, content)
            wrote.append(index_path(shard_name))
        _share(index, shard)
    return wrote


def _share(index: Place, shard: Place) -> None:
    if not shard.is_local:
        return
    mode = stat.S_IMODE(os.stat(shard.path).st_mode) | 0o600
    if stat.S_IMODE(os.stat(index.path).st_mode) != mode:
        os.chmod(index.path, mode)


def _groups(
    source: EnergonPlan, sqlite: bool, parts: Place, above: Place, names: Sequence[PartName]
) -> Iterator[Group]:
    dataset, shards = source.dataset, source.shards
    first = number = samples = 0
    for stop, name in enumerate(names):
        full = samples + name.documents > _GROUP_SAMPLES or stop - first == _GROUP_SHARDS
        if full and stop > first:
            some = slice(first, stop)
            yield Group(dataset, parts, above, number, first, shards[some], tuple(names[some]), sqlite)
            first, number, samples = stop, number + 1, 0
        samples += name.documents
    yield Group(dataset, parts, above, number, first, shards[first:], tuple(names[first:]), sqlite)


def _oddities(runs: Sequence[GroupRun], parts: Mapping[str, ShardPart]) -> list[str]:
    found: list[str] = []
    unsafe = next((run.unsafe for run in runs if run.unsafe is not None), None)
    if unsafe is not None:
        found.append(
            f"names that point outside the folder, such as {unsafe}: "
            "they work as keys, but these samples can't be extracted to files"
        )
    traits: Counter[str] = Counter()
    for part in parts.values():
        traits.update(part.traits)
    found += [f'{count:,} images have {trait}: decode="uint8" {PIXELS[trait]}' for trait, count in traits.items()]
    problems = [text for part in parts.values() for text in part.problems]
    found += [f"media without metadata, or damaged: {text}" for text in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        found.append(f"{len(problems) - _MOST_PROBLEMS} more such media")
    return found


def _about_ends(source: EnergonPlan, parts: Mapping[str, ShardPart]) -> list[str]:
    """Return and log warnings about shards that don't end like tars."""
    shards: dict[str, list[str]] = {}
    for shard, part in parts.items():
        if part.ending is not None:
            shards.setdefault(part.ending, []).append(shard)
    lines = [
        f"{what}: {names[0]}" if len(names) == 1 else f"{what}: {len(names):,} shards, such as {names[0]}"
        for what, names in shards.items()
    ]
    for line in lines:
        _log.warning("%s: %s", source.path, line)
    return lines


def _about_members(parts: Iterable[ShardPart]) -> list[str]:
    ignored: Counter[str] = Counter()
    count = 0
    for part in parts:
        ignored.update(part.ignored)
        count += len(part.linked)
    found = [f"{number:,} {kind}: they belong to no sample" for kind, number in sorted(ignored.items())]
    if count:
        found.append(
            f"{count:,} parts are links within a shard: Penstock reads them, Energon doesn't. "
            "`tar --hard-dereference` stores them as files"
        )
    return found


def _announce(source: EnergonPlan, runs: Sequence[GroupRun]) -> list[str]:
    # Its own indexes have all columns again, and the names of parts once more.
    size_bytes = 3 * sum(run.sqlite_bytes for run in runs)
    if size_bytes < LARGE_BYTES:
        return []
    warning = (
        f"index.sqlite takes about {size_bytes / 1e9:.0f} GB, and the same again in the temporary folder while it is "
        "sorted. Without it (--no-sqlite), keys are found in index.keys, which only Penstock reads"
    )
    _log.warning("%s: %s", source.path, warning)
    return [warning]


def _merge_sqlite(
    source: EnergonPlan, media: ShardMedia | None, target: Place, groups: Sequence[Group], uuid: str
) -> list[str]:
    """Make `index.sqlite`, and return warnings about media metadata of other shards."""
    warnings: list[str] = []
    with SqliteBuilder(target.path) as builder:
        for group in groups:
            run = group.run(SQLITE)
            with scratch(target.folder()) as here:
                builder.merge(local_copy(run, place_of(here)).path)
            run.store.delete(run.path)
        if media is None:
            warnings += _keep_media(source, builder, uuid)
        else:
            media_index.create_tables(builder.connection)
            for group in groups:
                for name in group.names:
                    stored = read_shard(group.parts, name).media
                    rows = (MediaRow(row, decode_metadata(kind, text)) for row, kind, text in stored)
                    media_index.put_rows(builder.connection, rows)
            media_index.add_filters(builder.connection, [(media.filter, _newest(source))])
        builder.finish([source.dataset.child(name).path for name in source.shards])
    return warnings


def _keep_media(source: EnergonPlan, builder: SqliteBuilder, uuid: str) -> list[str]:
    """Copy the media metadata of the old index if it is of the same shards, else return a warning."""
    index = source.meta_file(SQLITE)
    store, path = index.store, index.path
    if not index.exists():
        return []
    try:
        with system_errors(path), closing(connect(store, path)) as before:
            if not media_index.has_table(before, media_index.METADATA):
                return []
    except sqlite3.DatabaseError:
        return []  # not a database
    old = source.meta_file(UUID)
    if not old.exists() or old.store.get(old.path) != uuid.encode():
        return ["the media metadata of the old index is dropped because the shards changed: `penstock prepare-media`"]
    with closing(connect(store, path)) as before:
        media_index.create_tables(builder.connection)
        media_index.put_rows(builder.connection, media_index.read_rows(before, path=path))
        media_index.add_filters(builder.connection, media_index.read_filters(before, path=path))
    return []


def _newest(source: EnergonPlan) -> str:
    """Return when the newest shard was changed, in the format of sqlite."""
    if not source.dataset.is_local:
        return "1970-01-01 00:00:00"
    newest_s = max(os.stat(source.dataset.child(name).path).st_mtime for name in source.shards)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest_s))

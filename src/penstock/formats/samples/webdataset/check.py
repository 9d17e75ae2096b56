"""Checking a prepared WebDataset: never writes, never raises for what is on disk.

Quick: the files of `.nv-meta`, the whole index of each shard, the tables of `index.sqlite`, and the side file. Sample:
some samples, and the counts and keys in `index.sqlite`. Full: every header to the end of each shard, checked against
both indexes; JSON parts; and the digests of the side file.
"""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._secrets import redact
from penstock.abc import Store
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, PenstockError, UnsafeData, Unsupported
from penstock.formats._findings import Problem, Run
from penstock.formats._manifest import file_digests
from penstock.formats._side_checks import RESTORE, check_bytes, check_names, check_side_file
from penstock.formats.samples.sqlite import connect, damage, system_errors
from penstock.formats.samples.webdataset.check_keys import check_keys_of, check_stored_keys
from penstock.formats.samples.webdataset.check_media import check_media
from penstock.formats.samples.webdataset.dataset_yaml import read_dataset_yaml
from penstock.formats.samples.webdataset.ends import end_problem
from penstock.formats.samples.webdataset.find import find_tars
from penstock.formats.samples.webdataset.lookup import SqliteIndex
from penstock.formats.samples.webdataset.manifest import missing_file, missing_files, side_path, webdataset_facts
from penstock.formats.samples.webdataset.members import Members, read_members
from penstock.formats.samples.webdataset.nvmeta import (
    DATASET_YAML,
    INFO_JSON,
    INFO_YAML,
    MEMBERS,
    SPLIT_YAML,
    SQLITE,
    Info,
    Splits,
    document,
    meta_path,
    prepare_command,
    read_info,
    read_splits,
    split_shards,
    unmatched_shards,
    unmatched_text,
)
from penstock.formats.samples.webdataset.open_shards import OpenShards
from penstock.formats.samples.webdataset.samples import parse
from penstock.formats.samples.webdataset.shards import ShardTable, index_path, scan_shard
from penstock.formats.samples.webdataset.source import unmatched_exclusions
from penstock.types import Depth, Finding, OpenOptions

_FETCH = "Download or pack this shard again, then prepare the dataset again"
_SAMPLES = 32
_MOST_SAID = 20
_JSON_PARTS = (".json", ".jsn")
_MOST_JSON_BYTES = 1 << 26


def check_webdataset(store: Store, path: str, options: OpenOptions, depth: Depth, run: Run = map) -> list[Finding]:
    """Findings of a dataset; see `penstock.abc.Format.check`.

    Raises:
        NotFound: nothing is there.
        ConfigError: there is no split `options.split`.
    """
    root = path.rstrip("/") or path
    # A server of plain files knows no folders.
    if not any(map(store.exists, (root, meta_path(root, INFO_JSON), meta_path(root, INFO_YAML)))):
        raise NotFound("no such file or folder", path=root, hint="Check the path")
    if options.split is not None:
        _require_split(store, root, options.split)
    return [problem.finding() for problem in _problems(store, root, depth, run)]


def _require_split(store: Store, root: str, split: str) -> None:
    """Raise `ConfigError` if the dataset has no such split. An unreadable list of splits is a finding instead."""
    try:
        read_info(store, root)
        splits = read_splits(store, root)
    except PenstockError:
        return
    if split not in splits.parts:
        path, known = meta_path(root, splits.name or SPLIT_YAML), ", ".join(splits.parts)
        raise ConfigError("unknown split", path=path, found=repr(split), expected=known or "none")


def _remake(root: str) -> str:
    return f"`penstock repair {root} --write`, or {prepare_command(root, '--tar-index-only')}"


def _prepare(root: str) -> str:
    return f"Prepare it again: {prepare_command(root, '--overwrite')}"


def _problems(store: Store, root: str, depth: Depth, run: Run) -> Iterator[Problem]:
    try:
        info = read_info(store, root)
    except PenstockError as error:
        yield _of_error("info", error, _prepare(root))
        return
    splits = yield from _check_splits(store, root, info, depth)
    yield from _check_dataset(store, root)
    yield from _limited(_check_list(store, root, info))
    whole = True
    for problem in _limited(_check_indexes(store, root, info)):
        whole = False
        yield problem
    yield from _check_sqlite(store, root, info, depth)
    yield from check_stored_keys(store, root, info.counts, depth)
    yield from _check_side_file(store, root, info, depth, run)
    if depth != "full":
        yield from _check_members(store, root)
    if depth == "quick":
        return
    if depth == "sample":
        if whole and splits is not None:
            yield from _check_samples(store, root, info)
        return
    counts = enumerate(info.counts.items())
    tasks = (_TarTask(store, root, replace(info, counts={name: count}), number) for number, (name, count) in counts)
    for problems in run(_problems_of, tasks):
        yield from problems
    if not store.exists(meta_path(root, SQLITE)):
        yield from _check_keys(store, root, info)


@dataclass(frozen=True, slots=True)
class _TarTask:
    """One shard to be checked; `info` lists no other."""

    store: Store
    root: str
    info: Info
    number: int

    @property
    def described(self) -> str:
        """What an error calls it."""
        return redact(f"{self.root}/{next(iter(self.info.counts))}")


def _problems_of(task: _TarTask) -> list[Problem]:
    """What is wrong with a shard; runs where the executor has it."""
    name = next(iter(task.info.counts))
    return list(_limited(_check_shard(task.store, task.root, task.info, task.number, name)))


# --- the lists ---------------------------------------------------------------------------------------------------


def _check_splits(store: Store, root: str, info: Info, depth: Depth) -> Iterator[Problem]:
    path = meta_path(root, SPLIT_YAML)
    try:
        splits = read_splits(store, root)
    except PenstockError as error:
        yield _of_error("splits", error, "Fix the file")
        return None
    if splits.name is None:
        what = "no splits: all shards are read together"
        yield Problem("webdataset.splits", Corrupt, path, what, f"Create splits: {_prepare(root)}", severity="warning")
    elif (empty := _empty_value(document(store, meta_path(root, splits.name)))) is not None:
        what = f"`{empty}:` has no value, which Energon can't read"
        fix = "Write [] or restore the missing value"
        yield Problem("webdataset.splits", Corrupt, meta_path(root, splits.name), what, fix)
    yield from _check_each_split(root, info, splits)
    yield from _check_exclude(store, root, info, splits, depth)
    return splits


def _empty_value(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "split_parts"
    parts = value.get("split_parts")
    named = {**value, **(parts if isinstance(parts, dict) else {})}
    return next((name for name, one in named.items() if one is None), None)


def _check_each_split(root: str, info: Info, splits: Splits) -> Iterator[Problem]:
    used: set[str] = set()
    for split in splits.parts:
        try:
            shards, _ = split_shards(info, splits, split, root)
        except PenstockError as error:
            yield _of_error("splits", error, "Fix the list")
            continue
        used.update(shards)
    unused = [name for name in info.counts if name not in used]
    if splits.name is not None and unused and not splits.exclude:
        what = f"{len(unused)} shards are in no split"
        path = meta_path(root, splits.name)
        yield Problem("webdataset.unused", Corrupt, path, what, "Add them", found=unused[0], severity="warning")


def _check_exclude(store: Store, root: str, info: Info, splits: Splits, depth: Depth) -> Iterator[Problem]:
    """Warn of entries that match nothing; keys are looked up only beyond `quick`."""
    try:
        names = unmatched_shards(splits, info, root)
        names = names if depth == "quick" else unmatched_exclusions(store, root, splits, info)
    except PenstockError:  # found by the other checks
        return
    if names:
        path, fix = meta_path(root, splits.name or SPLIT_YAML), "Write <shard> or <shard>/<key>, or remove the entry"
        yield Problem("webdataset.exclude", Corrupt, path, unmatched_text(names), fix, severity="warning")


def _check_dataset(store: Store, root: str) -> Iterator[Problem]:
    if not store.exists(meta_path(root, DATASET_YAML)):
        return
    try:
        read_dataset_yaml(store, root)
    except PenstockError as error:
        yield _of_error("dataset", error, "Fix the file, or open with raw")


def _check_list(store: Store, root: str, info: Info) -> Iterator[Problem]:
    """Shards that the list has and the folder has not, and the other way round."""
    try:
        there = set(find_tars(store, root))
    except (NotFound, Unsupported):
        there = set[str]()  # a server of plain files does not list them
    path = meta_path(root, info.name)
    for name in info.counts:
        if name not in there and not store.exists(f"{root}/{name}"):
            what = "a listed shard is missing"
            yield Problem(
                "webdataset.missing-shard", NotFound, f"{root}/{name}", what, f"Download it. {_prepare(root)}"
            )
    new = [name for name in there if name not in info.counts]
    if new:
        what = f"{len(new)} tar files that aren't in the list"
        yield Problem(
            "webdataset.unlisted-shard", Corrupt, path, what, _prepare(root), found=min(new), severity="warning"
        )


def _check_indexes(store: Store, root: str, info: Info) -> Iterator[Problem]:
    shards = OpenShards(store, root, info.counts, "pread")
    there = [name for name in info.counts if store.exists(f"{root}/{name}")]
    has_index = {name: store.exists(index_path(f"{root}/{name}")) for name in there}
    missing = [name for name in there if not has_index[name]]
    if missing:
        what = f"{len(missing)} of {len(there)} shards have no index, which Energon needs"
        yield Problem("webdataset.index", NotFound, index_path(f"{root}/{missing[0]}"), what, _remake(root))
    for name in filter(has_index.__getitem__, there):
        count, path = info.counts[name], index_path(f"{root}/{name}")
        try:
            shard = shards.get(name)
        except PenstockError as error:
            yield _of_error("index", error, _remake(root))
            continue
        falls = np.flatnonzero(np.diff(np.asarray(shard.offsets)) < 1)
        if len(falls):
            what = "the offsets in the index of a shard don't increase"
            yield Problem("webdataset.index", Corrupt, path, what, _remake(root), int(falls[0] + 1) * 8)
        elif len(shard.offsets) and not 0 <= int(shard.offsets[0]) <= int(shard.offsets[-1]) <= store.size(shard.path):
            what = "the index of a shard has offsets beyond its end"
            found, expected = f"byte {int(shard.offsets[-1])}", f"{store.size(shard.path)} bytes"
            yield Problem("webdataset.index", Corrupt, path, what, _remake(root), count * 8, found, expected)


# --- samples -----------------------------------------------------------------------------------------------------


def _check_samples(store: Store, root: str, info: Info) -> Iterator[Problem]:
    """Some samples, evenly spread."""
    shards = OpenShards(store, root, info.counts, "pread")
    names = list(info.counts)
    starts = np.cumsum([0, *info.counts.values()])
    total = int(starts[-1])
    for place in np.unique(np.linspace(0, max(0, total - 1), min(_SAMPLES, total), dtype=np.int64)).tolist():
        number = int(np.searchsorted(starts, place, "right")) - 1
        try:
            parse(shards.read_range(names[number], place - int(starts[number])))
        except PenstockError as error:
            yield _of_error("sample", error, _FETCH)


def codes_by_headers(store: Store, root: str, info: Info) -> set[str]:
    """Codes of what `index.sqlite`, the list and the indexes of shards say otherwise than all headers do."""
    found = {one.code for one in _check_sqlite(store, root, info, "full")}
    found |= {one.code for one in check_stored_keys(store, root, info.counts, "full")}
    for number, name in enumerate(info.counts):
        found |= {one.code for one in _check_shard(store, root, info, number, name, contents=False)}
    return found


def _check_shard(
    store: Store, root: str, info: Info, number: int, name: str, *, contents: bool = True
) -> Iterator[Problem]:
    """Every header of a shard, and what the indexes say of it; JSON parts too with `contents`."""
    path = f"{root}/{name}"
    if not store.exists(path):
        return
    try:
        table = scan_shard(store, path)
    except PenstockError as error:
        yield _of_error("shard", error, _FETCH)
        return
    if table.num_samples != info.counts[name]:
        what = "a shard has a different number of samples than the list"
        found, expected = str(table.num_samples), str(info.counts[name])
        yield Problem("webdataset.count", Corrupt, path, what, _prepare(root), None, found, expected)
    else:
        yield from _check_index(store, root, path, table)
    yield from _check_rows(store, root, number, path, table)
    yield from check_keys_of(store, root, info.counts, number, path, table)
    yield from _check_names(path, table)
    yield from _check_links(store, root, name, table)
    if contents:
        ending = end_problem(store, path, table)
        if ending is not None:
            yield ending
        yield from _check_json(store, path, table)
        yield from check_media(store, root, path, table)


def _check_members(store: Store, root: str) -> Iterator[Problem]:
    """Members that no sample has, as `prepare` counted them."""
    try:
        ignored = read_members(store, root).ignored_text
    except PenstockError as error:
        yield _of_error("members", error, _prepare(root))
        return
    if ignored is not None:
        yield _ignored(meta_path(root, MEMBERS), ignored)


def _ignored(path: str, ignored: str) -> Problem:
    what = f"members that belong to no sample: {ignored}"
    fix = "If they are parts of samples, pack them again as regular files"
    return Problem("webdataset.ignored", Corrupt, path, what, fix, severity="warning")


def _check_links(store: Store, root: str, name: str, table: ShardTable) -> Iterator[Problem]:
    """Links and ignored members of a shard."""
    path = f"{root}/{name}"
    if table.only_links is not None:
        what = f"samples that consist only of links are ignored, such as {table.only_links!r}"
        fix = "Pack the shard again with `tar --hard-dereference`"
        yield Problem("webdataset.only-links", Corrupt, path, what, fix, severity="warning")
    try:
        recorded = read_members(store, root).linked.get(name, {})
    except PenstockError as error:
        yield _of_error("members", error, _prepare(root))
        return
    ignored = Members(table.ignored).ignored_text
    if ignored is not None:
        yield _ignored(path, ignored)
    if recorded != table.linked:
        parts = [(place, part) for place, parts in table.linked.items() for part in parts]
        place, part = parts[0] if parts else (0, None)
        what = f"{len(parts)} parts are links that {MEMBERS} doesn't list, so they are ignored"
        found = None if part is None else f"the part {part.part!r} of {table.keys[place]!r}"
        fix = f"Add them: {prepare_command(root, '--tar-index-only')}"
        yield Problem("webdataset.links", Corrupt, path, what, fix, found=found)


def _check_index(store: Store, root: str, path: str, table: ShardTable) -> Iterator[Problem]:
    index = index_path(path)
    try:
        stored = np.frombuffer(store.get(index), "<i8")
    except (PenstockError, ValueError):
        return  # said already
    if len(stored) == len(table.offsets):
        wrong = np.flatnonzero(stored != table.offsets)
        if len(wrong):
            place = int(wrong[0])
            what = f"the index of a shard has {len(wrong)} wrong offsets"
            found, expected = f"byte {int(stored[place])}", f"byte {int(table.offsets[place])}"
            yield Problem("webdataset.index", Corrupt, index, what, _remake(root), place * 8, found, expected)


def _check_rows(store: Store, root: str, number: int, path: str, table: ShardTable) -> Iterator[Problem]:
    """What `index.sqlite` says of a shard; what is wrong with the file itself is said elsewhere."""
    index = meta_path(root, SQLITE)
    if not store.exists(index):
        return
    lengths = np.diff(table.offsets).tolist()
    samples = list(zip(table.keys, range(table.num_samples), table.offsets[:-1].tolist(), lengths, strict=True))
    of_sample = np.repeat(np.arange(table.num_samples), np.diff(table.part_starts)).tolist()
    parts = zip(of_sample, table.part_names, table.contents.tolist(), table.sizes.tolist(), strict=True)
    try:
        with system_errors(index), closing(connect(store, index)) as connection:
            tables = SqliteIndex(store, index).tables
            if "samples" not in tables:
                return
            query = (
                "SELECT sample_key, sample_index, byte_offset, byte_size FROM samples "
                "WHERE tar_file_id = ? ORDER BY sample_index"
            )
            good = connection.execute(query, (number,)).fetchall() == samples
            if good and "sample_parts" in tables:
                query = (
                    "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts "
                    "WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset, content_byte_size"
                )
                rows = connection.execute(query, (number,)).fetchall()
                good = rows == sorted(parts, key=lambda row: (row[0], row[2], row[3]))
    except (sqlite3.Error, UnicodeDecodeError, PenstockError):
        return
    if not good:
        what = "the rows of index.sqlite differ from the shard"
        yield Problem("webdataset.sqlite", Corrupt, index, what, _remake(root), found=path)


def _check_names(path: str, table: ShardTable) -> Iterator[Problem]:
    for repeat in table.repeats:
        first, again = int(table.offsets[repeat.first]), int(table.offsets[repeat.again])
        what = f"the key {repeat.key!r} is repeated, first at byte {first}; older versions of Energon allow it"
        yield Problem(
            "webdataset.repeated-key", Corrupt, path, what, "Read samples by index, or pack the shard again", again,
            severity="warning",
        )  # fmt: skip
    for place, key in enumerate(table.keys):
        if key.startswith("/") or ".." in key.split("/"):
            what = f"a name that points outside the folder: {key!r}"
            fix = "Nothing, unless the samples are extracted to files"
            offset_bytes = int(table.offsets[place])
            yield Problem("webdataset.name", UnsafeData, path, what, fix, offset_bytes, severity="warning")
    counts = np.diff(table.part_starts)
    for place in np.flatnonzero(counts > 1).tolist():
        names = table.part_names[int(table.part_starts[place]) : int(table.part_starts[place + 1])]
        if len(set(names)) < len(names):
            what = f"a part of {table.keys[place]!r} is repeated; the last one is used"
            offset_bytes = int(table.offsets[place])
            fix = "Pack the shard again"
            yield Problem("webdataset.repeated-part", Corrupt, path, what, fix, offset_bytes, severity="warning")


def _check_keys(store: Store, root: str, info: Info) -> Iterator[Problem]:
    """A key that comes in two shards, where no index can be asked. Memory: 16 bytes a sample."""
    shards = list(info.counts)
    digests = [_key_digests(store, f"{root}/{name}") for name in shards]
    starts = np.cumsum([0, *map(len, digests)])
    every = np.concatenate([np.empty(0, np.uint64), *digests])
    order = np.argsort(every, kind="stable")
    again = order[1:][every[order[1:]] == every[order[:-1]]]
    if not len(again):
        return
    place = int(again.min())
    before = int(np.flatnonzero(every == every[place])[0])
    first, second = (f"{root}/{shards[int(np.searchsorted(starts, at, 'right')) - 1]}" for at in (before, place))
    table = scan_shard(store, second)
    sample = next(at for at, key in enumerate(table.keys) if _key_digest(key) == every[place])
    what = f"the key {table.keys[sample]!r} is also in {first}; {len(again)} such keys"
    fix = "Read samples by index, or pack the shards again"
    offset_bytes = int(table.offsets[sample])
    yield Problem("webdataset.repeated-key", Corrupt, second, what, fix, offset_bytes, severity="warning")


def _key_digests(store: Store, path: str) -> NDArray[np.uint64]:
    try:
        keys = set(scan_shard(store, path).keys)
    except PenstockError:
        keys = set[str]()  # said already
    return np.fromiter(map(_key_digest, keys), np.uint64, len(keys))


def _key_digest(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))


def _check_json(store: Store, path: str, table: ShardTable) -> Iterator[Problem]:
    for place, part in enumerate(table.part_names):
        if not f".{part}".endswith(_JSON_PARTS) or int(table.sizes[place]) > _MOST_JSON_BYTES:
            continue
        start = int(table.contents[place])
        try:
            json.loads(store.get(path, start, int(table.sizes[place])))
        except (ValueError, RecursionError) as error:
            sample = int(np.searchsorted(table.part_starts, place, "right")) - 1
            what = f"the part {part!r} of {table.keys[sample]!r} is not valid JSON"
            yield Problem("webdataset.json", FormatError, path, what, "Fix the data", start, str(error))


# --- index.sqlite and the side file ------------------------------------------------------------------------------


def _check_sqlite(store: Store, root: str, info: Info, depth: Depth) -> Iterator[Problem]:
    path = meta_path(root, SQLITE)
    if not store.exists(path):
        return
    try:
        tables = SqliteIndex(store, path).tables
        if "samples" not in tables:
            yield Problem("webdataset.sqlite", Corrupt, path, "no table of samples", _remake(root))
            return
        if depth == "quick":
            return
        with system_errors(path), closing(connect(store, path)) as connection:
            query = "SELECT tar_file_id, COUNT(*) FROM samples GROUP BY tar_file_id"
            counted = dict(connection.execute(query).fetchall())
            query = "SELECT sample_key FROM samples GROUP BY sample_key HAVING COUNT(*) > 1 LIMIT 1"
            repeated = connection.execute(query).fetchone()
            wrong = damage(connection) if depth == "full" else None
            if wrong is not None:
                raise sqlite3.DatabaseError(wrong)
    except (sqlite3.Error, UnicodeDecodeError, PenstockError) as error:
        what = "not an index database"
        yield Problem("webdataset.sqlite", Corrupt, path, what, _remake(root), found=str(error))
        return
    if counted != {number: count for number, count in enumerate(info.counts.values()) if count}:
        what = f"the table of samples doesn't match {INFO_JSON}"
        found, expected = f"{sum(counted.values())} samples", f"{sum(info.counts.values())}"
        yield Problem("webdataset.sqlite", Corrupt, path, what, _remake(root), None, found, expected)
    if repeated is not None:
        what = f"the key {repeated[0]!r} is in several samples; older versions of Energon allow it"
        fix = "Read samples by index, or pack the shards again"
        yield Problem("webdataset.repeated-key", Corrupt, path, what, fix, severity="warning")


def _check_side_file(store: Store, root: str, info: Info, depth: Depth, run: Run) -> Iterator[Problem]:
    facts = functools.partial(webdataset_facts, store, root, info.counts)
    try:
        manifest, findings = check_side_file("webdataset", store, root, side_path(root), facts)
    except NotFound:
        return  # a shard is not there, which is said already
    known: dict[str, tuple[str, ...]] = {}
    if manifest is not None:
        findings += [missing_file(root, name) for name in missing_files(store, root, manifest)]
    if depth == "full" and manifest is not None:
        known = {f"{root}/{name}": stated for name, stated in manifest.block_digests.items() if name in info.counts}
        findings += check_names("webdataset", side_path(root), manifest, info.counts)
    there = [path for path in known if store.exists(path)]
    if manifest is not None and len(there) == len(info.counts) > 0:
        findings += check_bytes("webdataset", root, manifest, sum(map(store.size, there)))
    for one in findings:
        fix = one.fix or RESTORE
        yield Problem(one.code, Corrupt, one.path, one.found or "", fix, None, None, one.expected, one.severity)
    for path, found in zip(there, run(functools.partial(file_digests, store), there), strict=True):
        expected = known[path]
        if found != tuple(expected):
            pairs = enumerate(zip(found, expected, strict=False))
            block = next((n for n, pair in pairs if pair[0] != pair[1]), min(len(found), len(expected)))
            what = f"block {block} differs from its digest"
            yield Problem("webdataset.changed", Corrupt, path, what, RESTORE, block << 26)


def _limited(problems: Iterator[Problem]) -> Iterator[Problem]:
    """The first problems of each kind."""
    said: dict[str, int] = {}
    for problem in problems:
        said[problem.code] = said.get(problem.code, 0) + 1
        if said[problem.code] <= _MOST_SAID:
            yield problem


def _of_error(what: str, error: PenstockError, fix: str) -> Problem:
    found = None if error.found is None else str(error.found)
    expected = None if error.expected is None else str(error.expected)
    path = "" if error.path is None else str(error.path)
    return Problem(
        f"webdataset.{what}", type(error), path, error.what, error.hint or fix, error.offset_bytes, found, expected
    )

"""Check a prepared WebDataset. Never writes, and never raises an error because of bad data.

Quick: the files of `.nv-meta`, the index of each shard, the tables of `index.sqlite`, and the side file. Sample: also
some samples, and the counts and keys in `index.sqlite`. Full: also every header of each shard against all indexes, JSON
parts, and the digests of the side file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._secrets import redact
from penstock.codec.hashes import BLOCK_BYTES
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, PenstockError, Unsupported
from penstock.formats._findings import Check, Problem, Run, limited, run_checks
from penstock.formats._manifest import file_digests
from penstock.formats._side_checks import RESTORE, check_bytes, check_names, check_side_file, differing_block
from penstock.formats.samples.webdataset.check_index import (
    KEYS_CODE,
    PreparedDataset,
    check_keys,
    check_keys_of_shard,
    check_media,
    check_sqlite,
    check_sqlite_rows,
    check_tar_index,
    check_tar_indexes,
)
from penstock.formats.samples.webdataset.dataset_yaml import read_dataset_yaml
from penstock.formats.samples.webdataset.find import find_tars
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
from penstock.formats.samples.webdataset.shards import ShardTable, end_problem, scan_shard
from penstock.formats.samples.webdataset.source import unmatched_exclusions
from penstock.store.base import Store
from penstock.types import Depth, Finding, OpenOptions

_FETCH = "Download or pack this shard again, then prepare the dataset again"
_SAMPLES = 32
_JSON_PARTS = (".json", ".jsn")
_MOST_JSON_BYTES = 1 << 26


def check_webdataset(store: Store, path: str, options: OpenOptions, depth: Depth, run: Run = map) -> list[Finding]:
    """Return the findings of a dataset; see `penstock.abc.Format.check`.

    Raises:
        NotFound: the dataset doesn't exist.
        ConfigError: the split `options.split` doesn't exist.
    """
    root = path.rstrip("/") or path
    # Web servers have no folders.
    if not any(map(store.exists, (root, meta_path(root, INFO_JSON), meta_path(root, INFO_YAML)))):
        raise NotFound("no such file or folder", path=root, hint="Check the path")
    if options.split is not None:
        _require_split(store, root, options.split)
    try:
        info = read_info(store, root)
    except PenstockError as error:
        fix = f"Prepare it again: {prepare_command(root, '--overwrite')}"
        return [Problem.of_error("webdataset.info", error, fix).finding()]
    return list(run_checks(_CHECKS, PreparedDataset(store, root, info, depth, run), depth))


def _require_split(store: Store, root: str, split: str) -> None:
    try:
        read_info(store, root)
        splits = read_splits(store, root)
    except PenstockError:
        return
    if split not in splits.parts:
        path, known = meta_path(root, splits.name or SPLIT_YAML), ", ".join(splits.parts)
        raise ConfigError("unknown split", path=path, found=repr(split), expected=known or "none")


@dataclass(frozen=True, slots=True)
class _TarTask:
    """One shard to check; the list of `data` has only this shard."""

    data: PreparedDataset
    number: int

    @property
    def described(self) -> str:
        return redact(f"{self.data.root}/{next(iter(self.data.info.counts))}")


def _check_shards(data: PreparedDataset) -> Iterator[Finding]:
    tasks = (
        _TarTask(replace(data, info=replace(data.info, counts={name: count}), run=map), number)
        for number, (name, count) in enumerate(data.info.counts.items())
    )
    for found in data.run(_check_task, tasks):
        yield from found


def _check_task(task: _TarTask) -> list[Finding]:
    name = next(iter(task.data.info.counts))
    return list(limited(_check_shard(task.data, task.number, name), count_rest=False))


def _check_splits(data: PreparedDataset) -> Iterator[Problem]:
    store, root, info = data.store, data.root, data.info
    splits = read_splits(store, root)
    if splits.name is None:
        what, fix = "no splits: all shards are read together", f"Create splits: {data.prepare}"
        yield Problem.warning("webdataset.splits", meta_path(root, SPLIT_YAML), what, fix)
    elif (empty := _empty_value(document(store, meta_path(root, splits.name)))) is not None:
        what = f"`{empty}:` has no value, which Energon can't read"
        fix = "Write [] or restore the missing value"
        yield Problem("webdataset.splits", Corrupt, meta_path(root, splits.name), what, fix)
    yield from _check_each_split(root, info, splits)
    try:  # keys are only looked up beyond `quick`
        unmatched = unmatched_shards(splits, info, root)
        unmatched = unmatched if data.depth == "quick" else unmatched_exclusions(store, root, splits, info)
    except PenstockError:  # reported by the other checks
        return
    if unmatched:
        path, fix = meta_path(root, splits.name or SPLIT_YAML), "Write <shard> or <shard>/<key>, or remove the entry"
        yield Problem.warning("webdataset.exclude", path, unmatched_text(unmatched), fix)


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
            yield Problem.of_error("webdataset.splits", error, "Fix the list")
            continue
        used.update(shards)
    unused = [name for name in info.counts if name not in used]
    if splits.name is not None and unused and not splits.exclude:
        what, path = f"{len(unused)} shards are in no split", meta_path(root, splits.name)
        yield Problem.warning("webdataset.unused", path, what, "Add them", found=unused[0])


def _check_dataset(data: PreparedDataset) -> tuple[()]:
    if data.store.exists(meta_path(data.root, DATASET_YAML)):
        read_dataset_yaml(data.store, data.root)
    return ()


def _check_list(data: PreparedDataset) -> Iterator[Problem]:
    store, root, counts = data.store, data.root, data.info.counts
    try:
        there = set(find_tars(store, root))
    except (NotFound, Unsupported):
        there = set[str]()  # web servers can't list them
    for name in counts:
        if name not in there and not store.exists(f"{root}/{name}"):
            what, fix = "a listed shard is missing", f"Download it. {data.prepare}"
            yield Problem("webdataset.missing-shard", NotFound, f"{root}/{name}", what, fix)
    new = [name for name in there if name not in counts]
    if new:
        what, path = f"{len(new)} tar files that aren't in the list", meta_path(root, data.info.name)
        yield Problem.warning("webdataset.unlisted-shard", path, what, data.prepare, found=min(new))


def _check_samples(data: PreparedDataset) -> Iterator[Problem]:
    counts = data.info.counts
    try:
        read_splits(data.store, data.root)
    except PenstockError:
        return  # reported by `_check_splits`
    shards = OpenShards(data.store, data.root, counts, "pread")
    names, starts = list(counts), np.cumsum([0, *counts.values()])
    total = int(starts[-1])
    for place in np.unique(np.linspace(0, max(0, total - 1), min(_SAMPLES, total), dtype=np.int64)).tolist():
        number = int(np.searchsorted(starts, place, "right")) - 1
        try:
            parse(shards.read_range(names[number], place - int(starts[number])))
        except PenstockError as error:
            yield Problem.of_error("webdataset.sample", error, _FETCH)


def codes_by_headers(store: Store, root: str, info: Info) -> set[str]:
    """Return the codes of all contradictions between headers and indexes, `index.sqlite` or the list."""
    data = PreparedDataset(store, root, info, "full")
    problems = [*check_sqlite(data), *check_keys(data)]
    for number, name in enumerate(info.counts):
        problems += _check_shard(data, number, name, contents=False)
    return {one.code for one in problems}


def _check_shard(data: PreparedDataset, number: int, name: str, *, contents: bool = True) -> Iterator[Problem]:
    """Check every header of a shard, and the indexes against them; JSON parts and media too with `contents`."""
    store, path, counts = data.store, f"{data.root}/{name}", data.info.counts
    if not store.exists(path):
        return
    try:
        table = scan_shard(store, path)
    except PenstockError as error:
        yield Problem.of_error("webdataset.shard", error, _FETCH)
        return
    if table.num_samples != counts[name]:
        what = "a shard has a different number of samples than the list"
        found, expected = str(table.num_samples), str(counts[name])
        yield Problem("webdataset.count", Corrupt, path, what, data.prepare, None, found, expected)
    else:
        yield from check_tar_index(data, path, table)
    yield from check_sqlite_rows(data, number, path, table)
    yield from check_keys_of_shard(data, number, path, table)
    yield from _check_names(path, table)
    yield from _check_links(data, name, table)
    if contents:
        ending = end_problem(store, path, table)
        if ending is not None:
            yield ending
        yield from _check_json(store, path, table)
        yield from check_media(data, path, table)


def _check_members(data: PreparedDataset) -> Iterator[Problem]:
    try:
        yield from _ignored(meta_path(data.root, MEMBERS), read_members(data.store, data.root).ignored_text)
    except PenstockError as error:
        yield Problem.of_error("webdataset.members", error, data.prepare)


def _ignored(path: str, ignored: str | None) -> Iterator[Problem]:
    if ignored is not None:
        fix = "If they are parts of samples, pack them again as regular files"
        yield Problem.warning("webdataset.ignored", path, f"members that belong to no sample: {ignored}", fix)


def _check_links(data: PreparedDataset, name: str, table: ShardTable) -> Iterator[Problem]:
    path = f"{data.root}/{name}"
    if table.only_links is not None:
        what = f"samples that consist only of links are ignored, such as {table.only_links!r}"
        fix = "Pack the shard again with `tar --hard-dereference`"
        yield Problem.warning("webdataset.only-links", path, what, fix)
    try:
        recorded = read_members(data.store, data.root).linked.get(name, {})
    except PenstockError as error:
        yield Problem.of_error("webdataset.members", error, data.prepare)
        return
    yield from _ignored(path, Members(table.ignored).ignored_text)
    if recorded != table.linked:
        parts = [(place, part) for place, parts in table.linked.items() for part in parts]
        place, part = parts[0] if parts else (0, None)
        what = f"{len(parts)} parts are links that {MEMBERS} doesn't list, so they are ignored"
        found = None if part is None else f"the part {part.part!r} of {table.keys[place]!r}"
        yield Problem("webdataset.links", Corrupt, path, what, f"Add them: {data.remake_keys}", found=found)


def _check_names(path: str, table: ShardTable) -> Iterator[Problem]:
    for repeat in table.repeats:
        first, again = int(table.offsets[repeat.first]), int(table.offsets[repeat.again])
        what = f"the key {repeat.key!r} is repeated, first at byte {first}; older versions of Energon allow it"
        fix = "Read samples by index, or pack the shard again"
        yield Problem.warning("webdataset.repeated-key", path, what, fix, again)
    for place, key in enumerate(table.keys):
        if key.startswith("/") or ".." in key.split("/"):
            what = f"a name that points outside the folder: {key!r}"
            fix = "Nothing, unless the samples are extracted to files"
            yield Problem.warning("webdataset.name", path, what, fix, int(table.offsets[place]))
    counts = np.diff(table.part_starts)
    for place in np.flatnonzero(counts > 1).tolist():
        names = table.part_names[int(table.part_starts[place]) : int(table.part_starts[place + 1])]
        if len(set(names)) < len(names):
            what = f"a part of {table.keys[place]!r} is repeated; the last one is used"
            fix, offset_bytes = "Pack the shard again", int(table.offsets[place])
            yield Problem.warning("webdataset.repeated-part", path, what, fix, offset_bytes)


def _check_repeated_keys(data: PreparedDataset) -> Iterator[Problem]:
    """Find a key that is in two shards, without an index. Memory: 16 bytes per sample."""
    store, root, shards = data.store, data.root, list(data.info.counts)
    if store.exists(meta_path(root, SQLITE)):
        return  # `check_sqlite` finds them
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
    yield Problem.warning("webdataset.repeated-key", second, what, fix, int(table.offsets[sample]))


def _key_digests(store: Store, path: str) -> NDArray[np.uint64]:
    try:
        keys = set(scan_shard(store, path).keys)
    except PenstockError:
        keys = set[str]()  # reported by `_check_shard`
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


def _check_side_file(data: PreparedDataset) -> Iterator[Finding]:
    store, root, counts = data.store, data.root, data.info.counts
    try:
        facts = functools.partial(webdataset_facts, store, root, counts)
        manifest, findings = check_side_file("webdataset", store, root, side_path(root), facts)
    except NotFound:
        return  # a shard is missing, which `_check_list` reports
    known: dict[str, tuple[str, ...]] = {}
    if manifest is not None:
        findings += [missing_file(root, name) for name in missing_files(store, root, manifest)]
    if data.depth == "full" and manifest is not None:
        known = {f"{root}/{name}": stated for name, stated in manifest.block_digests.items() if name in counts}
        findings += check_names("webdataset", side_path(root), manifest, counts)
    there = [path for path in known if store.exists(path)]
    if manifest is not None and len(there) == len(counts) > 0:
        findings += check_bytes("webdataset", root, manifest, sum(map(store.size, there)))
    yield from (replace(one, fix=one.fix or RESTORE, found=one.found or "", offset_bytes=None) for one in findings)
    for path, found in zip(there, data.run(functools.partial(file_digests, store), there), strict=True):
        block = differing_block(found, known[path])
        if block is not None:
            what = f"block {block} differs from its digest"
            yield Finding("webdataset.changed", "error", path, block * BLOCK_BYTES, what, None, RESTORE)


_CHECKS = (
    Check(_check_splits, "webdataset.splits", "Fix the file"),
    Check(_check_dataset, "webdataset.dataset", "Fix the file, or open with raw"),
    Check(_check_list, is_limited=True),
    Check(check_tar_indexes, "webdataset.index", is_limited=True),
    Check(check_sqlite, "webdataset.sqlite"),
    Check(check_keys, KEYS_CODE),
    Check(_check_side_file),
    Check(_check_members, depths=("quick", "sample")),
    Check(_check_samples, depths=("sample",), unless="webdataset.index"),
    Check(_check_shards, depths=("full",)),
    Check(_check_repeated_keys, depths=("full",)),
)
"""The steps, in the order of their findings."""

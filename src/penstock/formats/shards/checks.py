"""Check a folder of shards: its index, the files, and the samples. Never writes, and runs no code from the data."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._secrets import redact
from penstock.abc import SupportsMmap
from penstock.codec.fields import mds_encodings, mds_field
from penstock.codec.hashes import ALGORITHMS, hex_digest
from penstock.errors import FormatError, MissingExtra, NotFound, PenstockError, UnsafeData
from penstock.formats._findings import Problem, Run, limited
from penstock.formats._side_checks import RESTORE, check_block_digests, check_bytes, check_names, check_side_file
from penstock.formats._sources import way_to_read
from penstock.formats.shards.files import Folder, OpenShard, RowCodec, WholeShard, open_shard, read_whole
from penstock.formats.shards.find_index import folder_of, read_index, shards_in, split_folders, unlisted_shards
from penstock.formats.shards.index_json import INDEX_NAME, Index, Layout, Shard, ShardFile
from penstock.formats.shards.side import SIDE_NAME, shards_facts
from penstock.formats.shards.source import codec_of
from penstock.store.base import Store
from penstock.store.object_folder import GO_ON, UNFINISHED, is_unfinished
from penstock.types import Depth, Finding, OpenOptions

_SAMPLED_SHARDS = 64
_SAMPLED_ROWS = 4
_ROWS_AT_ONCE = 1024
_BYTES_AT_ONCE = 1 << 24
_WRITERS_OWN = ("compression", "hashes", "size_limit")

_REBUILD = "`penstock repair` rebuilds the index from the shards"
_NO_SPLIT = "Finish writing or copying the split, or remove its folder"
_RESTORE = "Download or copy the file again; `penstock repair` can't restore missing data"


@dataclass(frozen=True, slots=True)
class _Check:
    """A folder to check and its index; compressed shards are never written out."""

    folder: Folder
    index: Index
    options: OpenOptions
    depth: Depth


def check_shards(store: Store, path: str, options: OpenOptions, depth: Depth, run: Run = map) -> list[Finding]:
    """Return the findings in the order of the shards, of all splits if none is named.

    `quick` checks the index, the sizes of files, and the offsets of local uncompressed shards. `sample` also checks
    sample counts, embedded options and a few samples (in 64 of compressed or remote shards). `full` decodes every
    sample, except pickles, and checks every hash. Memory: one shard, unless it can be mapped.

    Raises:
        NotFound: there is neither an index nor a shard.
        MissingExtra: columns or compressions need a package that isn't installed.
    """
    root = folder_of(path)
    folders = dataset_folders(store, root, options.split)
    is_split = options.split is None and folders != [root]
    checked = (_check_folder(store, folder, options, depth, run, is_split=is_split) for folder in folders)
    return [finding for problems in checked for finding in limited(problems)]


def dataset_folders(store: Store, root: str, split: str | None) -> list[str]:
    """Return the folders with an index: one, or each split."""
    if split is not None:
        return [f"{root}/{split}"]
    if store.exists(f"{root}/{INDEX_NAME}"):
        return [root]
    return split_folders(store, root) or [root]


def _check_folder(
    store: Store, path: str, options: OpenOptions, depth: Depth, run: Run, *, is_split: bool
) -> Iterator[Problem | Finding]:
    where = f"{path}/{INDEX_NAME}"
    try:
        index = read_index(store, path)
    except NotFound:
        if is_unfinished(store, where):
            yield Problem("shards.unfinished", NotFound, where, UNFINISHED, GO_ON)
            return
        if not shards_in(store, path):
            if not is_split:
                raise
            yield Problem("shards.missing-split", NotFound, where, "a split without shards or index", _NO_SPLIT)
            return
        yield Problem("shards.no-index", NotFound, where, "there are shards but no index", _REBUILD)
        return
    except PenstockError as error:
        yield Problem.of_error("shards.index", error, _REBUILD, where)
        return
    check = _Check(Folder(store, path, way_to_read(store, path, options.read) == "mmap"), index, options, depth)
    if not index.shards:
        yield Problem.warning("shards.empty", where, "the index lists no shards", "Nothing, if it is meant to be empty")
    yield from _unlisted(check)
    sampled = set(np.linspace(0, len(index.shards) - 1, _SAMPLED_SHARDS, dtype=np.int64).tolist())
    tasks = (_ShardTask(number, shard, path, number in sampled) for number, shard in enumerate(index.shards))
    # Tasks don't need the whole index.
    small = replace(check, index=Index((), np.zeros(1, np.int64)))
    for problems in run(functools.partial(_problems_of, small), tasks):
        yield from problems
    yield from _check_side_file(check, run)


@dataclass(frozen=True, slots=True)
class _ShardTask:
    """One shard to check; its samples are checked at depth `sample` if `sampled`."""

    number: int
    shard: Shard
    folder: str
    sampled: bool

    @property
    def described(self) -> str:
        return f"shard {self.number} of {redact(self.folder)}"


def _problems_of(check: _Check, task: _ShardTask) -> list[Problem]:
    """Return the problems of a shard; runs in a worker."""
    problems = list(_check_files(check, task.number, task.shard))
    if any(one.severity == "error" for one in problems):
        return problems
    cheap = task.shard.zip_data is None and isinstance(check.folder.store, SupportsMmap)
    if check.depth == "full" or cheap or (check.depth == "sample" and task.sampled):
        problems += _check_shard(check, task.number, task.shard)
    return problems


def _check_files(check: _Check, number: int, shard: Shard) -> Iterator[Problem]:
    where, store = f"{check.folder.path}/{INDEX_NAME}", check.folder.store
    for raw, zipped in ((shard.raw_data, shard.zip_data), (shard.raw_meta, shard.zip_meta)):
        if raw is None:
            continue
        there = 0
        for file in (zipped, raw) if zipped else (raw,):
            try:
                size_bytes = store.size(store.real_path(check.folder.place(file)))
            except NotFound:
                continue
            except PenstockError as error:
                yield Problem.of_error("shards.link", error, "Pass --follow-links if the link is intended", where)
                return
            there += 1
            if size_bytes != file.size_bytes:
                what = f"shard {number}: the file has a different size than its index records"
                fix = _RESTORE if size_bytes < file.size_bytes else f"{_RESTORE}; if it is complete: {_REBUILD}"
                sizes = min(size_bytes, file.size_bytes), f"{size_bytes} bytes", f"{file.size_bytes} bytes"
                yield Problem("shards.size", PenstockError, check.folder.place(file), what, fix, *sizes)
        if not there:
            name = check.folder.place(zipped or raw)
            yield Problem("shards.missing", NotFound, name, f"shard {number}: the file is missing", _RESTORE)
    named = set(shard.layout.hashes).union(*(file.hashes for file in shard.files()))
    unknown = sorted(named - set(ALGORITHMS))
    if unknown:
        what = f"shard {number}: an unknown hash algorithm: {unknown[0]}"
        yield Problem.warning("shards.unknown-hash", where, what, "Nothing: these digests can't be checked")


def _unlisted(check: _Check) -> Iterator[Problem]:
    """Find shards at any level that no index lists: a writer was killed, or the index is old."""
    known = {file.basename for shard in check.index.shards for file in shard.files()}
    for file in unlisted_shards(check.folder.store, check.folder.path, known):
        fix = f"Delete it, or, if it belongs here: {_REBUILD}"
        yield Problem.warning("shards.unlisted", file, "a shard that no index lists", fix)


def _check_shard(check: _Check, number: int, shard: Shard) -> Iterator[Problem]:
    folder = check.folder
    stored = _stored_path(folder, shard)
    if check.depth == "full":
        broken = list(_check_hashes(folder, number, shard))
        yield from broken
        if broken and folder.store.keeps_copies:
            return  # the store never returns bytes that contradict their hashes
    try:
        opened = open_shard(folder, number, shard, _checking_codec(shard.layout, check.options))
    except MissingExtra:
        raise
    except PenstockError as error:
        yield Problem.of_error("shards.shard", error, _RESTORE, stored)
        return
    if check.depth == "quick":
        return
    yield from _check_config(folder, number, shard, opened, stored)
    places = range(shard.samples)
    if check.depth != "full" and shard.samples > _SAMPLED_ROWS:
        places = np.linspace(0, shard.samples - 1, _SAMPLED_ROWS, dtype=np.int64).tolist()
    for error in _undecodable(opened, places, shard.raw_data.size_bytes):
        packed = "" if stored == error.path else " (an offset in the decompressed data)"
        problem = Problem.of_error("shards.sample", error, _RESTORE, stored)
        yield replace(problem, path=stored, what=error.what + packed)


def _stored_path(folder: Folder, shard: Shard) -> str:
    """Return the file with the samples: the compressed one if only that exists."""
    raw = folder.place(shard.raw_data)
    return folder.place(shard.zip_data) if shard.zip_data is not None and not folder.store.exists(raw) else raw


def _checking_codec(layout: Layout, options: OpenOptions) -> RowCodec:
    """Return a codec that decodes only columns that run no code; the sizes of all columns are checked."""
    safe = tuple(
        name
        for name, encoding in zip(layout.column_names, layout.column_encodings, strict=True)
        if encoding.partition(":")[0] not in mds_encodings() or not mds_field(encoding).unsafe
    )
    columns = None if len(safe) == len(layout.column_names) else safe
    return codec_of(layout, replace(options, columns=columns, trust=False))


def _undecodable(shard: OpenShard, places: Sequence[int], size_bytes: int) -> Iterator[PenstockError]:
    """Yield the errors of samples that can't be decoded; many are decoded at once, except images, which grow."""
    grow = any(field.kind in ("image", "images") for field in shard.codec.fields)
    step = 1 if grow else max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * len(places) // max(1, size_bytes)))
    for first in range(0, len(places), step):
        block = places[first : first + step]
        if step > 1:
            try:
                shard.codec.decode_rows(shard.rows(list(block)))
                continue
            except MissingExtra:
                raise
            except Exception:  # decoding the samples one by one identifies the damaged sample
                pass
        for place in block:
            try:
                shard.sample(place)
            except MissingExtra:
                raise
            except PenstockError as error:
                yield error


def _check_hashes(folder: Folder, number: int, shard: Shard) -> Iterator[Problem]:
    for raw, zipped in ((shard.raw_data, shard.zip_data), (shard.raw_meta, shard.zip_meta)):
        if raw is None:
            continue
        if zipped is not None and folder.store.exists(folder.place(zipped)):
            yield from _digests(number, folder.place(zipped), zipped, _bytes_of(folder, zipped))
        try:
            data, _ = read_whole(folder, shard, raw, zipped)
        except MissingExtra:
            raise
        except PenstockError as error:
            if zipped is None and folder.store.keeps_copies:
                yield Problem.of_error("shards.hash", error, _RESTORE, folder.place(raw))
            continue  # reported when the shard is opened
        yield from _digests(number, folder.place(raw), raw, data)


def _bytes_of(folder: Folder, file: ShardFile) -> NDArray[np.uint8]:
    path = folder.place(file)
    if isinstance(folder.store, SupportsMmap) and folder.mapped:
        return folder.store.mmap(path)
    return np.frombuffer(folder.store.get(path), np.uint8)


def _digests(number: int, path: str, file: ShardFile, data: NDArray[np.uint8]) -> Iterator[Problem]:
    for algorithm, expected in file.hashes.items():
        if algorithm in ALGORITHMS and (found := hex_digest(algorithm, data)) != expected:
            what = f"shard {number}: the {algorithm} digest differs"
            yield Problem("shards.hash", PenstockError, path, what, _RESTORE, 0, found, expected)


def _check_config(folder: Folder, number: int, shard: Shard, opened: OpenShard, stored: str) -> Iterator[Problem]:
    offset_bytes = 4 * (shard.samples + 2)
    try:
        if shard.raw_meta is not None:
            data = read_whole(folder, shard, shard.raw_meta, shard.zip_meta)[0][offset_bytes:].tobytes()
            path = folder.place(shard.raw_meta)
        else:
            data, path = _head_of(folder, shard, opened, offset_bytes), stored
        found = json.loads(data) if data else None
    except FormatError as error:
        yield Problem.of_error("shards.shard", error, _RESTORE, stored)
        return
    except (ValueError, RecursionError) as error:
        what = f"shard {number}: the options embedded in it are damaged"
        yield Problem("shards.config", PenstockError, path, what, _RESTORE, offset_bytes, str(error))  # pyright: ignore
        return
    if found is None:
        what = f"shard {number}: no options are embedded in it"
        yield Problem.warning("shards.no-config", path, what, "Nothing: readers use the index", offset_bytes)
        return
    expected = shard.layout.config()
    wrong = [
        key for key in sorted({*expected, *(found if isinstance(found, dict) else ())}) if _differ(found, expected, key)
    ]
    if wrong:
        meant = set(wrong) <= set(_WRITERS_OWN)
        what = f"shard {number}: the {', '.join(wrong)} embedded in it differ from the index"
        fix = "Find out which dataset the shard and the index belong to"
        fix = "Nothing, if only writer options differ" if meant else fix
        values = str(found.get(wrong[0]) if isinstance(found, dict) else found)[:80], str(expected.get(wrong[0]))[:80]
        severity = "warning" if meant else "error"
        yield Problem("shards.config", PenstockError, path, what, fix, offset_bytes, *values, severity)


def _differ(found: Any, expected: dict[str, Any], key: str) -> bool:
    return not isinstance(found, dict) or key not in found or key not in expected or found[key] != expected[key]


def _head_of(folder: Folder, shard: Shard, opened: OpenShard, start: int) -> bytes:
    if isinstance(opened, WholeShard):
        return opened.array[start : int(opened.table[0])].tobytes()
    path = folder.place(shard.raw_data)
    stop = int.from_bytes(folder.store.get(path, 4, 4), "little")
    return folder.store.get(path, start, max(0, stop - start))


def _check_side_file(check: _Check, run: Run) -> Iterator[Finding]:
    store, path = check.folder.store, check.folder.path
    facts = functools.partial(shards_facts, store, path, int(check.index.starts[-1]))
    where, side_path = f"{path}/{INDEX_NAME}", f"{path}/{SIDE_NAME}"
    manifest, findings = check_side_file("shards", store, where, side_path, facts)
    if check.depth == "full" and manifest is not None:
        files = {file.basename: file for shard in check.index.shards for file in shard.files()}
        findings += check_names("shards", side_path, manifest, files)
        known, sizes = [file for name, file in files.items() if name in manifest.block_digests], [store.size(where)]
        for file in known:
            # Files outside this folder and copies that contradict their hashes are findings already.
            with contextlib.suppress(UnsafeData, NotFound, FormatError):
                place, digests = check.folder.place(file), manifest.block_digests[file.basename]
                sizes.append(store.size(place))
                findings += check_block_digests(store, place, "shards", digests, RESTORE, run)
        if len(sizes) == len(manifest.block_digests) + 1:
            findings += check_bytes("shards", where, manifest, sum(sizes))
    yield from findings

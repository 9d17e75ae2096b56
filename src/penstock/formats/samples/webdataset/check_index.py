"""Check the indexes of a WebDataset: `.tar.idx` of each shard, `index.sqlite` with its media, and `index.keys`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from penstock.codec.media_bytes import stored_media
from penstock.errors import Corrupt, NotFound, PenstockError
from penstock.formats._findings import Problem, Run
from penstock.formats.samples.media_index import other_header, read_metadata
from penstock.formats.samples.sqlite import connect, damage, system_errors
from penstock.formats.samples.webdataset.key_index import KEYS, KeyPlace, stored_keys
from penstock.formats.samples.webdataset.lookup import SqliteIndex
from penstock.formats.samples.webdataset.nvmeta import INFO_JSON, SQLITE, Info, meta_path, prepare_command
from penstock.formats.samples.webdataset.open_shards import OpenShards
from penstock.formats.samples.webdataset.shards import ShardTable, index_path
from penstock.store.base import Store
from penstock.types import Depth

KEYS_CODE = "webdataset.keys"
_LOOKED_UP = 8
"""Number of keys per shard to look up."""

_UNREADABLE = (sqlite3.Error, UnicodeDecodeError, PenstockError)


@dataclass(frozen=True, slots=True)
class PreparedDataset:
    """A prepared dataset to check, and its list of shards."""

    store: Store
    root: str
    info: Info
    depth: Depth
    run: Run = map

    @property
    def remake(self) -> str:
        return f"`penstock repair {self.root} --write`, or {self.remake_keys}"

    @property
    def remake_keys(self) -> str:
        return prepare_command(self.root, "--tar-index-only")

    @property
    def prepare(self) -> str:
        return f"Prepare it again: {prepare_command(self.root, '--overwrite')}"


def check_tar_indexes(data: PreparedDataset) -> Iterator[Problem]:
    """Check that each shard has an index, with increasing offsets inside the shard."""
    store, root, counts, fix = data.store, data.root, data.info.counts, data.remake
    shards = OpenShards(store, root, counts, "pread")
    there = [name for name in counts if store.exists(f"{root}/{name}")]
    has_index = {name: store.exists(index_path(f"{root}/{name}")) for name in there}
    missing = [name for name in there if not has_index[name]]
    if missing:
        what = f"{len(missing)} of {len(there)} shards have no index, which Energon needs"
        yield Problem("webdataset.index", NotFound, index_path(f"{root}/{missing[0]}"), what, fix)
    for name in filter(has_index.__getitem__, there):
        path = index_path(f"{root}/{name}")
        try:
            shard = shards.get(name)
        except PenstockError as error:
            yield Problem.of_error("webdataset.index", error, fix)
            continue
        falls = np.flatnonzero(np.diff(np.asarray(shard.offsets)) < 1)
        if len(falls):
            what = "the offsets in the index of a shard don't increase"
            yield Problem("webdataset.index", Corrupt, path, what, fix, int(falls[0] + 1) * 8)
        elif len(shard.offsets) and not 0 <= int(shard.offsets[0]) <= int(shard.offsets[-1]) <= store.size(shard.path):
            what = "the index of a shard has offsets beyond its end"
            found, expected = f"byte {int(shard.offsets[-1])}", f"{store.size(shard.path)} bytes"
            yield Problem("webdataset.index", Corrupt, path, what, fix, counts[name] * 8, found, expected)


def check_tar_index(data: PreparedDataset, path: str, table: ShardTable) -> Iterator[Problem]:
    index = index_path(path)
    try:
        stored = np.frombuffer(data.store.get(index), "<i8")
    except (PenstockError, ValueError):
        return  # reported by `check_tar_indexes`
    if len(stored) == len(table.offsets) and len(wrong := np.flatnonzero(stored != table.offsets)):
        place = int(wrong[0])
        what = f"the index of a shard has {len(wrong)} wrong offsets"
        found, expected = f"byte {int(stored[place])}", f"byte {int(table.offsets[place])}"
        yield Problem("webdataset.index", Corrupt, index, what, data.remake, place * 8, found, expected)


def check_sqlite(data: PreparedDataset) -> Iterator[Problem]:
    """Check the tables of `index.sqlite`; beyond `quick` also its counts and keys."""
    path = meta_path(data.root, SQLITE)
    if not data.store.exists(path):
        return
    try:
        if "samples" not in SqliteIndex(data.store, path).tables:
            yield Problem("webdataset.sqlite", Corrupt, path, "no table of samples", data.remake)
            return
        if data.depth == "quick":
            return
        with system_errors(path), closing(connect(data.store, path)) as connection:
            query = "SELECT tar_file_id, COUNT(*) FROM samples GROUP BY tar_file_id"
            counted = dict(connection.execute(query).fetchall())
            query = "SELECT sample_key FROM samples GROUP BY sample_key HAVING COUNT(*) > 1 LIMIT 1"
            repeated = connection.execute(query).fetchone()
            wrong = damage(connection) if data.depth == "full" else None
            if wrong is not None:
                raise sqlite3.DatabaseError(wrong)
    except _UNREADABLE as error:
        what = "not an index database"
        yield Problem("webdataset.sqlite", Corrupt, path, what, data.remake, found=str(error))
        return
    counts = data.info.counts.values()
    if counted != {number: count for number, count in enumerate(counts) if count}:
        what = f"the table of samples doesn't match {INFO_JSON}"
        found, expected = f"{sum(counted.values())} samples", f"{sum(counts)}"
        yield Problem("webdataset.sqlite", Corrupt, path, what, data.remake, None, found, expected)
    if repeated is not None:
        what = f"the key {repeated[0]!r} is in several samples; older versions of Energon allow it"
        yield Problem.warning("webdataset.repeated-key", path, what, "Read samples by index, or pack the shards again")


def check_sqlite_rows(data: PreparedDataset, number: int, path: str, table: ShardTable) -> Iterator[Problem]:
    index = meta_path(data.root, SQLITE)
    if not data.store.exists(index):
        return
    lengths = np.diff(table.offsets).tolist()
    samples = list(zip(table.keys, range(table.num_samples), table.offsets[:-1].tolist(), lengths, strict=True))
    of_sample = np.repeat(np.arange(table.num_samples), np.diff(table.part_starts)).tolist()
    parts = zip(of_sample, table.part_names, table.contents.tolist(), table.sizes.tolist(), strict=True)
    try:
        with system_errors(index), closing(connect(data.store, index)) as connection:
            tables = SqliteIndex(data.store, index).tables
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
    except _UNREADABLE:
        return  # reported by `check_sqlite`
    if not good:
        what = "the rows of index.sqlite differ from the shard"
        yield Problem("webdataset.sqlite", Corrupt, index, what, data.remake, found=path)


def check_keys(data: PreparedDataset) -> Iterator[Problem]:
    """Check the header and size of `index.keys`, and its digest at depth `full`."""
    path, fix = meta_path(data.root, KEYS), f"Rebuild it: {data.remake_keys}"
    if not data.store.exists(path):
        return
    try:
        index = stored_keys(data.store, data.root, data.info.counts)
        if index is None:
            yield Problem.warning(KEYS_CODE, path, "this key index belongs to other data and isn't used", fix)
            return
        size_bytes, expected = data.store.size(path), index.size_bytes
        whole = data.depth != "full" or size_bytes != expected or index.is_whole()
    except PenstockError as error:
        yield Problem(KEYS_CODE, Corrupt, path, "not a key index", fix, found=str(error))
        return
    if not whole:
        yield Problem(KEYS_CODE, Corrupt, path, "the key index differs from its digest", fix)
    if size_bytes != expected:
        found, wanted = f"{size_bytes} bytes", f"{expected} bytes"
        yield Problem(KEYS_CODE, Corrupt, path, "the key index has the wrong size", fix, None, found, wanted)


def check_keys_of_shard(data: PreparedDataset, number: int, path: str, table: ShardTable) -> Iterator[Problem]:
    index_path = meta_path(data.root, KEYS)
    if not data.store.exists(index_path):
        return
    fix = f"Rebuild it: {data.remake_keys}"
    try:
        index = stored_keys(data.store, data.root, data.info.counts)
        if index is None:
            return
        for place in np.unique(np.linspace(0, table.num_samples - 1, min(_LOOKED_UP, table.num_samples), dtype=int)):
            start, stop = table.offsets[place : place + 2].tolist()
            if KeyPlace(number, int(place), start, stop) not in index.find(table.keys[place]):
                found = f"{table.keys[place]!r} of {path}"
                yield Problem(KEYS_CODE, Corrupt, index.path, "the key index contradicts the shard", fix, found=found)
                return
    except PenstockError as error:
        yield Problem(KEYS_CODE, Corrupt, index_path, "not a key index", fix, found=str(error))


def check_media(data: PreparedDataset, path: str, table: ShardTable) -> Iterator[Problem]:
    index = meta_path(data.root, SQLITE)
    if not data.store.exists(index):
        return
    of_sample = np.repeat(np.arange(table.num_samples), np.diff(table.part_starts)).tolist()
    try:
        with closing(connect(data.store, index)) as connection:
            for place, (sample, part) in enumerate(zip(of_sample, table.part_names, strict=True)):
                name = f"{table.keys[sample]}.{part}"
                metadata = read_metadata(connection, name, path=index)
                if metadata is None:
                    continue
                start_bytes = int(table.contents[place])
                found = other_header(stored_media(data.store, path, start_bytes, int(table.sizes[place])), metadata)
                if found is not None:
                    what = f"the media metadata of {name!r} differs from the header of the file"
                    fix, stated = "Read it again: `penstock prepare-media`", str(metadata)
                    yield Problem("webdataset.media-differs", Corrupt, path, what, fix, start_bytes, found, stated,
                                  severity="warning")  # fmt: skip
    except sqlite3.Error:
        return  # reported by `check_sqlite`
    except PenstockError as error:
        fix = "Rebuild it: `penstock prepare-media`"
        yield Problem("webdataset.media-index", Corrupt, index, "not a valid media index", fix, found=str(error))

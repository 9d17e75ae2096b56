"""Rebuild the metadata of a WebDataset from its shards: their indexes, `index.sqlite`, `index.keys`, and the list."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial

from penstock.errors import Corrupt, PenstockError
from penstock.formats._manifest import file_digests
from penstock.formats._repairs import Damaged, Repair, Rewrite, as_folder, repaired_by
from penstock.formats.samples import media_index
from penstock.formats.samples.sqlite import connect, system_errors
from penstock.formats.samples.webdataset.check import codes_by_headers
from penstock.formats.samples.webdataset.check_index import KEYS_CODE as _KEYS
from penstock.formats.samples.webdataset.find import find_shards
from penstock.formats.samples.webdataset.key_index import KEYS, KeyRuns
from penstock.formats.samples.webdataset.nvmeta import (
    INFO_JSON,
    SPLIT_YAML,
    SQLITE,
    UUID,
    encode_info,
    meta_path,
    read_info,
    read_uuid,
)
from penstock.formats.samples.webdataset.shards import (
    ShardTable,
    encode_index,
    index_path,
    require_text,
    scan_shard,
)
from penstock.formats.samples.webdataset.sqlite_index import IndexDigest, SqliteBuilder, encode_table, table_digest
from penstock.store._files import naming
from penstock.store.base import Store
from penstock.store.local import LocalStore
from penstock.store.put import aborting, put, put_file

_INDEX, _SQLITE, _COUNT = "webdataset.index", "webdataset.sqlite", "webdataset.count"
_INFO = "webdataset.info"
_KNOWN = {_INDEX, _SQLITE, _KEYS, _COUNT, _INFO}


def _plan(damaged: Damaged) -> Iterator[Rewrite]:
    """Yield damaged or outdated metadata, made from the shards.

    If a shard is damaged, only the indexes of the others are rebuilt. Reads the headers of all shards.
    """
    store, root, write = damaged.store, damaged.path, damaged.write
    wrong = {one.code for one in damaged.findings if one.severity == "error" or one.code == _KEYS}
    counts = _listed(store, root, lost=_INFO in wrong)
    if not wrong:
        wrong = codes_by_headers(store, root, read_info(store, root)) & (_KNOWN - {_INFO})
    if not wrong or not counts:
        return
    digest = IndexDigest()
    found: dict[str, int] = {}
    with (
        naming(tempfile.gettempdir()),  # errors don't name the temporary folder
        tempfile.TemporaryDirectory(prefix="penstock-") as scratch,
        SqliteBuilder(f"{scratch}/{SQLITE}") as builder,
        KeyRuns() as runs,
    ):
        for number, name in enumerate(counts):
            table = _table(store, f"{root}/{name}")
            if table is None:
                continue
            if write:
                builder.add(number, table)
            digest.add(name, table_digest(encode_table(table)))
            found[name] = table.num_samples
            runs.add(table)
            path, content = index_path(f"{root}/{name}"), encode_index(table.offsets)
            if not store.exists(path) or store.get(path) != content:
                what = f"rebuild the index of {table.num_samples} samples"
                yield Rewrite(_INDEX, path, what, partial(put, store, path, content))
        if len(found) < len(counts):
            return
        if store.exists(meta_path(root, SQLITE)):
            yield from _plan_sqlite(store, root, builder, digest.uuid(), list(counts), write=write)
        if store.exists(meta_path(root, KEYS)):
            yield from _plan_keys(store, root, runs, digest.uuid(), scratch, write=write)
    if found != counts:
        what = f"write the sample counts of the shards: {sum(found.values())} in all"
        code = _INFO if _INFO in wrong else _COUNT
        path = meta_path(root, INFO_JSON)
        yield Rewrite(code, path, what, partial(put, store, path, encode_info(found)))


repair_webdataset = repaired_by(Repair(_plan, _KNOWN, always=True), at=as_folder)


def _listed(store: Store, root: str, *, lost: bool) -> dict[str, int]:
    """Return the number of samples of each shard in the list; if it is lost, -1 for each shard in the folder."""
    if not lost:
        return read_info(store, root).counts
    if not store.exists(meta_path(root, SPLIT_YAML)) and not store.exists(meta_path(root, SQLITE)):
        return {}  # never prepared
    return dict.fromkeys(find_shards(store, root), -1)


def _table(store: Store, shard: str) -> ShardTable | None:
    try:
        table = scan_shard(store, shard)
        require_text(table, shard)
    except PenstockError:
        return None
    return table


def _plan_sqlite(
    store: Store, root: str, builder: SqliteBuilder, uuid: str, shards: list[str], *, write: bool
) -> Iterator[Rewrite]:
    path = meta_path(root, SQLITE)
    if write:
        _keep_media(store, path, builder)
        try:
            builder.finish([f"{root}/{name}" for name in shards])
        except Corrupt:
            return  # a key is repeated, which `index.sqlite` can't hold

    def make() -> None:
        put(store, meta_path(root, UUID), uuid.encode())  # first: if killed here, the next run finds the damage again
        put_file(store, path, builder.path)

    what = "rebuild the index of samples and parts, keeping media metadata that can be read"
    yield Rewrite(_SQLITE, path, what, make)


def _plan_keys(store: Store, root: str, runs: KeyRuns, uuid: str, scratch: str, *, write: bool) -> Iterator[Rewrite]:
    path, rebuilt = meta_path(root, KEYS), f"{scratch}/{KEYS}"
    if write:
        if not store.exists(meta_path(root, UUID)):
            put(store, meta_path(root, UUID), uuid.encode())
        with aborting(LocalStore().stage(rebuilt)) as staged:
            runs.write(staged.write, read_uuid(store, root))
            staged.commit()
        if file_digests(store, path) == file_digests(LocalStore(), rebuilt):
            return  # it is right, or was made by a killed repair
    yield Rewrite(_KEYS, path, "rebuild the key index", partial(put_file, store, path, rebuilt))


def _keep_media(store: Store, path: str, builder: SqliteBuilder) -> None:
    try:
        with system_errors(path), closing(connect(store, path)) as before:
            if not media_index.has_table(before, media_index.METADATA):
                return
            rows = list(media_index.read_rows(before, path=path))
            filters = media_index.read_filters(before, path=path)
    except (sqlite3.Error, PenstockError):
        return  # not a database: nothing to keep
    with system_errors(builder.path):
        media_index.create_tables(builder.connection)
        media_index.put_rows(builder.connection, rows)
        media_index.add_filters(builder.connection, filters)

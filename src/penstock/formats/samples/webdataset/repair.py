"""Making the metadata of a WebDataset again from its shards: their indexes, `index.sqlite`, and the list of shards."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing

from penstock.abc import Store
from penstock.errors import Corrupt, PenstockError
from penstock.formats.samples import media_index
from penstock.formats.samples.sqlite import connect, system_errors
from penstock.formats.samples.webdataset.check import codes_by_headers
from penstock.formats.samples.webdataset.check_keys import CODE as _KEYS
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
from penstock.store.local import LocalStore
from penstock.store.put import aborting, back_up, put
from penstock.types import Action, Finding

_INDEX, _SQLITE, _COUNT = "webdataset.index", "webdataset.sqlite", "webdataset.count"
_INFO = "webdataset.info"
_STEP_BYTES = 1 << 20


def repair_webdataset(store: Store, path: str, findings: Sequence[Finding], *, write: bool) -> list[Action]:
    """Make again what is wrong and can be made from the shards; the old files are kept as `<file>.bak`.

    Where a shard is damaged, only the indexes of the others are made. Reads the headers of all shards.
    """
    root = path.rstrip("/") or path
    known = {_INDEX, _SQLITE, _KEYS, _COUNT, _INFO}
    wrong = {one.code for one in findings if one.severity == "error" or one.code == _KEYS} & known
    counts = _listed(store, root, lost=_INFO in wrong)
    if not wrong:
        wrong = codes_by_headers(store, root, read_info(store, root)) & (known - {_INFO})
    if not wrong or not counts:
        return []
    actions: list[Action] = []
    digest = IndexDigest()
    found: dict[str, int] = {}
    with (
        naming(tempfile.gettempdir()),  # what is made there has no name for a user
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
            actions += _mend_index(store, f"{root}/{name}", table, write=write)
        if len(found) < len(counts):
            return actions
        if store.exists(meta_path(root, SQLITE)):
            actions += _mend_sqlite(store, root, builder, digest.uuid(), list(counts), write=write)
        if store.exists(meta_path(root, KEYS)):
            actions += _mend_keys(store, root, runs, digest.uuid(), scratch, write=write)
    if found != counts:
        what = f"write the sample counts of the shards: {sum(found.values())} in all"
        code = _INFO if _INFO in wrong else _COUNT
        actions.append(_replace(store, meta_path(root, INFO_JSON), encode_info(found), code, what, write=write))
    return actions


def _listed(store: Store, root: str, *, lost: bool) -> dict[str, int]:
    """Shard → its samples by the list; where the list is lost, the shards of the folder, with no right number."""
    if not lost:
        return read_info(store, root).counts
    if not store.exists(meta_path(root, SPLIT_YAML)) and not store.exists(meta_path(root, SQLITE)):
        return {}  # never prepared
    return dict.fromkeys(find_shards(store, root), -1)


def _table(store: Store, shard: str) -> ShardTable | None:
    """What a shard holds; None where it is damaged, so that nothing can be made from it."""
    try:
        table = scan_shard(store, shard)
        require_text(table, shard)
    except PenstockError:
        return None
    return table


def _mend_index(store: Store, shard: str, table: ShardTable, *, write: bool) -> list[Action]:
    path, content = index_path(shard), encode_index(table.offsets)
    if store.exists(path) and store.get(path) == content:
        return []
    return [_replace(store, path, content, _INDEX, f"rebuild the index of {table.num_samples} samples", write=write)]


def _mend_sqlite(
    store: Store, root: str, builder: SqliteBuilder, uuid: str, shards: list[str], *, write: bool
) -> list[Action]:
    path = meta_path(root, SQLITE)
    what = "rebuild the index of samples and parts, keeping media metadata that can be read"
    if not write:
        return [Action(_SQLITE, path, what)]
    _keep_media(store, path, builder)
    try:
        builder.finish([f"{root}/{name}" for name in shards])
    except Corrupt:
        return []  # a key comes twice, which no index of ours holds
    backup = back_up(store, path)
    put(store, meta_path(root, UUID), uuid.encode())  # first: a run that is killed here finds the damage again
    with aborting(store.stage(path, overwrite=True)) as staged:
        staged.append_file(builder.path)
        staged.commit()
    return [Action(_SQLITE, path, f"{what}; the old one is kept as {backup}", done=True)]


def _mend_keys(store: Store, root: str, runs: KeyRuns, uuid: str, scratch: str, *, write: bool) -> list[Action]:
    path, what = meta_path(root, KEYS), "rebuild the key index"
    if not write:
        return [Action(_KEYS, path, what)]
    if not store.exists(meta_path(root, UUID)):
        put(store, meta_path(root, UUID), uuid.encode())
    named = read_uuid(store, root)
    here = LocalStore()
    made = f"{scratch}/{KEYS}"
    with aborting(here.stage(made)) as staged:
        runs.write(staged.write, named)
        staged.commit()
    if _is_same(store, path, here, made):
        return []  # nothing is wrong with it, or a repair that was killed made it
    backup = back_up(store, path)
    with aborting(store.stage(path, overwrite=True)) as staged:
        staged.append_file(made)
        staged.commit()
    return [Action(_KEYS, path, f"{what}; the old one is kept as {backup}", done=True)]


def _is_same(store: Store, path: str, other: Store, made: str) -> bool:
    """Whether two files hold the same."""
    size_bytes = store.size(path)
    starts = range(0, size_bytes, _STEP_BYTES)
    return size_bytes == other.size(made) and all(
        store.get(path, start, _STEP_BYTES) == other.get(made, start, _STEP_BYTES) for start in starts
    )


def _keep_media(store: Store, path: str, builder: SqliteBuilder) -> None:
    try:
        with system_errors(path), closing(connect(store, path)) as before:
            if not media_index.has_table(before, media_index.METADATA):
                return
            rows = list(media_index.read_rows(before, path=path))
            filters = media_index.read_filters(before, path=path)
    except (sqlite3.Error, PenstockError):
        return  # no database: nothing to keep
    with system_errors(builder.path):
        media_index.create_tables(builder.connection)
        media_index.put_rows(builder.connection, rows)
        media_index.add_filters(builder.connection, filters)


def _replace(store: Store, path: str, content: bytes, code: str, what: str, *, write: bool) -> Action:
    if not write:
        return Action(code, path, what)
    kept = f"; the old one is kept as {back_up(store, path)}" if store.exists(path) else ""
    put(store, path, content)
    return Action(code, path, what + kept, done=True)

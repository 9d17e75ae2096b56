"""Check a folder of files, its media index and its side file; drop rows of deleted files from the media index."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from penstock.codec.hashes import BLOCK_BYTES
from penstock.codec.media_bytes import stored_media
from penstock.errors import NotFound, PenstockError
from penstock.formats._findings import limited
from penstock.formats._manifest import file_digests
from penstock.formats._proof import require_none, require_size
from penstock.formats._repairs import Damaged, Repair, Rewrite, as_folder, repaired_by
from penstock.formats._side_checks import RESTORE, check_bytes, check_side_file, differing_block
from penstock.formats.samples.folder.files import INDEX, SIDE_SUFFIX, is_text, list_files
from penstock.formats.samples.media_index import MediaRow, other_header, read_rows
from penstock.formats.samples.sqlite import connect, connect_to_write, damage, system_errors
from penstock.store.base import Store
from penstock.store.put import put_file
from penstock.store.side_file import Facts, load_manifest
from penstock.types import Depth, Finding, Manifest, OpenOptions

STALE = "folder.media-stale"
_SAMPLE_FILES = 256
_OTHER_FILES = 100


def require_as_recorded(store: Store, root: str, names: Sequence[str]) -> None:
    """Raise `Corrupt` if the files, in number or size, aren't those of the folder's side file."""
    manifest = load_manifest(store, f"{root}/{SIDE_SUFFIX}")
    if manifest is None or manifest.format != "folder":
        return
    if store.keeps_copies:
        store.survey(root, 2 * len(names) + _OTHER_FILES)  # one listing returns all sizes
    require_none(_check_side_file(store, root, names, "quick"))
    require_size("folder", store, root, manifest, names)


def check_folder(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Return the findings. Memory: the list of files, and 64 MiB.

    `quick` compares the names in the side file and the media index with those of the files. `sample` also checks the
    digests of 256 files and the headers of 256 media, `full` all of them.

    Raises:
        NotFound: the folder doesn't exist.
    """
    root = path.rstrip("/") or path
    names = list_files(store, root)
    findings = [*_check_side_file(store, root, names, depth), *_check_media(store, root, set(names), depth)]
    if not names:
        findings.append(Finding("folder.empty", "warning", path, None, "no file", None, "Check what was written"))
    return findings


def _some(names: Sequence[str], depth: Depth) -> Sequence[str]:
    if depth == "quick":
        return ()
    return names if depth == "full" else names[:: max(1, len(names) // _SAMPLE_FILES)]


def _check_side_file(store: Store, root: str, names: Sequence[str], depth: Depth) -> Iterator[Finding]:
    manifest, findings = check_side_file("folder", store, root, f"{root}/{SIDE_SUFFIX}", lambda: Facts("folder"))
    yield from findings
    if manifest is None or findings:
        return
    known, there = manifest.block_digests, set(names)
    missing = [name for name in known if name not in there]
    added = [name for name in names if name not in known and is_text(name)]
    found = (Finding("folder.missing", "error", f"{root}/{name}", None, "no such file", None, RESTORE)
             for name in missing)  # fmt: skip
    yield from limited(found, root)
    what = "a file that isn't recorded in the side file"
    found = (Finding("folder.added", "error", f"{root}/{name}", None, what, None, RESTORE) for name in added)
    yield from limited(found, root)
    if not missing and not added and manifest.num_samples != len(names):
        told = f"{manifest.num_samples}, as recorded in the side file"
        yield Finding("folder.changed", "error", root, None, f"{len(names)} files", told, RESTORE)
    if depth == "full" and not missing and not added:
        yield from check_bytes("folder", root, manifest, sum(store.size(f"{root}/{name}") for name in names))
    chosen = [name for name in _some(names, depth) if name in known]
    yield from limited(_changed(store, root, chosen, manifest), root)


def _changed(store: Store, root: str, names: Iterable[str], manifest: Manifest) -> Iterator[Finding]:
    for name in names:
        path = f"{root}/{name}"
        block = differing_block(file_digests(store, path), manifest.block_digests[name])
        if block is not None:
            what = "content that differs from its digest"
            yield Finding("folder.changed", "error", path, block * BLOCK_BYTES, what, None, RESTORE)


def _check_media(store: Store, root: str, there: set[str], depth: Depth) -> Iterator[Finding]:
    path = f"{root}/{INDEX}"
    if not store.exists(path):
        return
    try:
        with system_errors(path), closing(connect(store, path)) as connection:
            wrong = damage(connection) if depth == "full" else None
            if wrong is not None:
                raise sqlite3.DatabaseError(wrong)
            rows = list(read_rows(connection, path=path))
    except (sqlite3.Error, PenstockError) as error:
        what = error.what if isinstance(error, PenstockError) else str(error)
        fix = f"Rebuild it: `penstock prepare-media {root}`"
        yield Finding("folder.media-index", "error", path, None, what, "the tables of a media index", fix)
        return
    drop = f"`penstock repair {root} --write` drops it, and so does `penstock prepare-media {root}`"
    stale = (Finding(STALE, "warning", path, None, f"a row for {row.name!r}, which doesn't exist", None, drop)
             for row in rows if row.name not in there)  # fmt: skip
    yield from limited(stale, root)
    known = {row.name: row for row in rows if row.name in there}
    chosen = _some(sorted(known), depth)
    yield from limited(_differing(store, root, [known[name] for name in chosen]), root)


def _differing(store: Store, root: str, rows: Iterable[MediaRow]) -> Iterator[Finding]:
    for row in rows:
        path = f"{root}/{row.name}"
        found = other_header(stored_media(store, path, 0, store.size(path)), row.metadata)
        if found is not None:
            fix = f"Read it again: `penstock prepare-media {root}`"
            yield Finding("folder.media-differs", "warning", path, None, found, str(row.metadata), fix)


def _plan_media_index(damaged: Damaged) -> Iterator[Rewrite]:
    if damaged.store.is_local:
        index = f"{damaged.path}/{INDEX}"
        what = "rows of deleted files are dropped; the old index is kept next to it"
        yield Rewrite(STALE, index, what, functools.partial(_drop_rows, damaged.store, damaged.path, index), old=None)


def _drop_rows(store: Store, root: str, index: str) -> None:
    """Drop rows of deleted files from a media index."""
    there = set(list_files(store, root))
    with tempfile.TemporaryDirectory() as scratch:
        local = os.path.join(scratch, "index.sqlite")
        shutil.copyfile(store.real_path(index), local)
        with system_errors(local), closing(connect_to_write(local)) as connection:
            connection.execute("BEGIN")
            rows = connection.execute("SELECT entry_key FROM media_metadata").fetchall()
            gone = [row for row in rows if row[0] not in there]
            connection.executemany("DELETE FROM media_metadata WHERE entry_key = ?", gone)
            connection.execute("COMMIT")
        put_file(store, index, local)


repair_folder = repaired_by(Repair(_plan_media_index, (STALE,)), at=as_folder)


def require_folder(store: Store, path: str) -> str:
    root = path.rstrip("/") or path
    if not store.is_folder(root):
        raise NotFound("no such folder", path=path, hint="Check the path")
    return root

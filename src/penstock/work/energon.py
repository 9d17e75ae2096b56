"""The work folder of a preparation: the table of each shard that is done, so that no shard is scanned twice.

`.nv-meta.work` in the dataset's folder holds one file for each finished shard, the lock, and the index that is being
made. A finished shard counts as long as its size, its time of change, and its first and last 4 KiB are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Generator
from dataclasses import dataclass

import msgspec

from penstock.abc import Store
from penstock.errors import Corrupt, NotFound, PrepareError
from penstock.formats.samples.media_index import MediaRow, decode_metadata
from penstock.formats.samples.webdataset.nvmeta import SQLITE
from penstock.formats.samples.webdataset.sqlite_index import remove_if_there
from penstock.store.derived import cache_folder
from penstock.store.local import LocalStore
from penstock.store.resolve import absolute
from penstock.store.side_file import file_binding
from penstock.work.folder import drop_work, empty_work, hold_work, is_real_folder

WORK_FOLDER = ".nv-meta.work"
VERSION = 2
_SUFFIX = ".shard"
_SHARD = re.compile(rf"^[0-9a-f]{{32}}{re.escape(_SUFFIX)}$")

StoredRow = tuple[str, str, str]
"""Name of a file, kind of its metadata, and their JSON."""

Stamp = tuple[int, int, str]
"""Size in bytes, time of the last change in nanoseconds (0 where there is none), and binding of a shard."""


class Done(msgspec.Struct, array_like=True):
    """A finished shard: what it was when it was read, its table, and the rows of its media by what was asked for."""

    version: int
    shard: str
    size_bytes: int
    mtime_ns: int
    binding: str
    table: bytes
    media: tuple[str, list[StoredRow]] | None
    problems: list[str]


@dataclass(slots=True)
class Work:
    """The work folder of a dataset, locked; see `open_work`."""

    store: LocalStore
    folder: str

    def read(self, shard: str) -> tuple[bytes, list[MediaRow]]:
        """The table of a finished shard, as `encode_table` gives it, and the rows of its media."""
        path = _file_of(self.folder, shard)
        done = _decode(self.store, path)
        if done is None or done.shard != shard:
            raise Corrupt("the table of a finished shard is damaged", path=path, hint="Remove this folder, and go on")
        rows = [] if done.media is None else done.media[1]
        return done.table, [MediaRow(name, decode_metadata(kind, text)) for name, kind, text in rows]

    def scratch(self, name: str) -> str:
        """Path of a file in the folder that does not exist yet."""
        path = os.path.join(self.folder, name)
        remove_if_there(path)
        return path

    def clear(self) -> None:
        """Remove everything."""
        empty_work(self.store, self.folder, _is_ours)
        drop_work(self.store, self.folder)


def work_folder(store: Store, root: str) -> str:
    """Where the work on a dataset is kept: in its folder, for one that is not local in the cache folder."""
    if isinstance(store, LocalStore):
        return os.path.join(absolute(root), WORK_FOLDER)
    return os.path.join(cache_folder(), "prepare", hashlib.blake2b(root.encode(), digest_size=16).hexdigest())


@contextlib.contextmanager
def open_work(store: Store, root: str) -> Generator[Work]:
    """The locked work folder of a dataset. What is finished stays there until `Work.clear`.

    Raises:
        PrepareError: another run prepares this dataset.
    """
    folder = work_folder(store, root)
    local = store if isinstance(store, LocalStore) else LocalStore()
    if local is store:
        local.require_target(folder)
    with hold_work(folder) as had:
        if not had:
            raise PrepareError("another run is preparing this dataset", path=root, hint="Wait for it")
        work = Work(local, folder)
        try:
            yield work
        finally:
            with contextlib.suppress(OSError):
                if not any(map(_is_ours, os.listdir(folder))):
                    drop_work(local, folder)


def forget_work(store: Store, root: str) -> None:
    """Remove what a run left that was killed after the dataset was complete."""
    if is_real_folder(work_folder(store, root)):
        with open_work(store, root) as work:
            work.clear()


def stamp_of(store: Store, path: str) -> Stamp:
    """By what a shard is known again."""
    mtime_ns = os.stat(path).st_mtime_ns if isinstance(store, LocalStore) else 0
    return store.size(path), mtime_ns, file_binding(store, path)


def _file_of(folder: str, shard: str) -> str:
    name = hashlib.blake2b(shard.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return os.path.join(folder, name + _SUFFIX)


def _is_ours(name: str) -> bool:
    return _SHARD.match(name) is not None or name.startswith(SQLITE)


def find_done(store: LocalStore, folder: str, shard: str, stamp: Stamp) -> Done | None:
    """A finished shard, where it is what it was."""
    done = _decode(store, _file_of(folder, shard))
    if done is None or (done.shard, done.size_bytes, done.mtime_ns, done.binding) != (shard, *stamp):
        return None
    return done


def _decode(store: LocalStore, path: str) -> Done | None:
    try:
        done = msgspec.msgpack.decode(store.get(path), type=Done)
    except (NotFound, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return done if done.version == VERSION else None


def save_done(store: LocalStore, folder: str, done: Done) -> None:
    """Note durably that a shard is finished."""
    staged = store.stage(_file_of(folder, done.shard), overwrite=True)
    try:
        staged.write(msgspec.msgpack.encode(done))
        staged.commit()
    except BaseException:
        staged.abort()
        raise

"""The work folder of a preparation: the table of each shard that is done, so that no shard is scanned twice.

`.nv-meta.work` in the dataset's folder holds one file for each finished shard, the lock, and the index that is being
made. A finished shard counts as long as its size, its time of change, and its first and last 4 KiB are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
from collections.abc import Generator
from dataclasses import dataclass

import msgspec

from penstock.errors import Corrupt, NotFound, PrepareError
from penstock.formats.samples.media_index import MediaRow, decode_metadata
from penstock.formats.samples.webdataset.key_index import KEYS
from penstock.formats.samples.webdataset.nvmeta import SQLITE
from penstock.formats.samples.webdataset.sqlite_index import remove_if_there
from penstock.store.derived import cache_folder
from penstock.store.local import LocalStore
from penstock.store.place import Place
from penstock.store.side_file import file_binding
from penstock.work.folder import WorkFolder, local_store

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

    folder: WorkFolder

    def read(self, shard: str) -> tuple[bytes, list[MediaRow]]:
        """The table of a finished shard, as `encode_table` gives it, and the rows of its media."""
        done = _decode(self.folder, shard)
        if done is None or done.shard != shard:
            path = self.folder.file(_name(shard)).path
            raise Corrupt("the table of a finished shard is damaged", path=path, hint="Remove this folder, and go on")
        rows = [] if done.media is None else done.media[1]
        return done.table, [MediaRow(name, decode_metadata(kind, text)) for name, kind, text in rows]

    def scratch(self, name: str) -> Place:
        """A file in the folder that does not exist yet."""
        place = self.folder.file(name)
        remove_if_there(place.path)
        return place

    def clear(self) -> None:
        """Remove everything."""
        self.folder.clear()
        self.folder.drop()


def work_of(dataset: Place) -> WorkFolder:
    """Where the work on a dataset is kept: in its folder, for one that is not local in the cache folder."""
    if dataset.is_local:
        above, name = dataclasses.replace(dataset, path=dataset.absolute), WORK_FOLDER
    else:
        name = hashlib.blake2b(dataset.path.encode(), digest_size=16).hexdigest()
        above = Place(LocalStore(), cache_folder()).child("prepare")
    return WorkFolder(local_store(above), above.child(name).path, _is_ours)


@contextlib.contextmanager
def open_work(dataset: Place) -> Generator[Work]:
    """The locked work folder of a dataset. What is finished stays there until `Work.clear`.

    Raises:
        PrepareError: another run prepares this dataset.
    """
    folder = work_of(dataset)
    local_store(dataset).require_target(folder.path)
    with folder.held(PrepareError("another run is preparing this dataset", path=dataset.path, hint="Wait for it")):
        try:
            yield Work(folder)
        finally:
            with contextlib.suppress(OSError):
                if not folder.has_ours():
                    folder.drop()


def forget_work(dataset: Place) -> None:
    """Remove what a run left that was killed after the dataset was complete."""
    if work_of(dataset).is_there():
        with open_work(dataset) as work:
            work.clear()


def stamp_of(file: Place) -> Stamp:
    """By what a shard is known again."""
    mtime_ns = os.stat(file.path).st_mtime_ns if file.is_local else 0
    return file.store.size(file.path), mtime_ns, file_binding(file.store, file.path)


def find_done(folder: WorkFolder, shard: str, stamp: Stamp) -> Done | None:
    """A finished shard, where it is what it was."""
    done = _decode(folder, shard)
    if done is None or (done.shard, done.size_bytes, done.mtime_ns, done.binding) != (shard, *stamp):
        return None
    return done


def save_done(folder: WorkFolder, done: Done) -> None:
    """Note durably that a shard is finished."""
    folder.put(_name(done.shard), msgspec.msgpack.encode(done))


def _name(shard: str) -> str:
    return hashlib.blake2b(shard.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest() + _SUFFIX


def _is_ours(name: str) -> bool:
    return _SHARD.match(name) is not None or name.startswith((SQLITE, KEYS))


def _decode(folder: WorkFolder, shard: str) -> Done | None:
    try:
        done = msgspec.msgpack.decode(folder.store.get(folder.file(_name(shard)).path), type=Done)
    except (NotFound, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return done if done.version == VERSION else None

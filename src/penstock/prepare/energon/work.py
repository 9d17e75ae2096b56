"""The work folder of a preparation: the table of each shard that is done, so that no shard is scanned twice.

`.nv-meta.work` in the dataset's folder holds one file for each finished shard, the lock, and the index that is being
made. A finished shard counts as long as its size, its time of change, and its first and last 4 KiB are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from penstock.abc import Store
from penstock.errors import Corrupt, NotFound, PrepareError
from penstock.formats.samples.media_index import MediaFilter, MediaRow, decode_metadata, encode_metadata
from penstock.formats.samples.webdataset.nvmeta import SQLITE
from penstock.formats.samples.webdataset.shards import ShardTable, require_distinct, require_text, scan_shard
from penstock.formats.samples.webdataset.sqlite_index import decode_table, encode_table, remove_if_there
from penstock.prepare.media.rows import MediaProblem
from penstock.store._work import drop_work, empty_work, hold_work, is_real_folder
from penstock.store.derived import cache_folder
from penstock.store.local import LocalStore
from penstock.store.put import put
from penstock.store.resolve import absolute
from penstock.store.side_file import file_binding

WORK_FOLDER = ".nv-meta.work"
_VERSION = 2
_SUFFIX = ".shard"
_SHARD = re.compile(rf"^[0-9a-f]{{32}}{re.escape(_SUFFIX)}$")

StoredRow = tuple[str, str, str]
"""Name of a file, kind of its metadata, and their JSON."""


class MediaReader(Protocol):
    """Reads metadata of the media in a shard; picklable."""

    @property
    def filter(self) -> MediaFilter:
        """Which files it looks at."""
        ...

    @property
    def exact(self) -> bool:
        """Whether it decodes them; what headers say is another answer."""
        ...

    def __call__(self, store: Store, path: str, table: ShardTable, /) -> Iterable[MediaRow | MediaProblem]:
        """Rows of the shard at `path`, by the full names of its parts, and what is wrong with its media."""
        ...


class _Done(msgspec.Struct, array_like=True):
    """A finished shard: what it was when it was read, its table, and the rows of its media by what was asked for."""

    version: int
    shard: str
    size_bytes: int
    mtime_ns: int
    binding: str
    table: bytes
    media: tuple[str, list[StoredRow]] | None
    problems: list[str]


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to be scanned, and where its table goes."""

    store: Store
    root: str
    shard: str
    folder: str
    media: MediaReader | None = None


@dataclass(frozen=True, slots=True)
class ShardDone:
    """What is told of a finished shard: how much it holds, whether that was known, odd things and bad media in it."""

    shard: str
    num_samples: int
    num_parts: int
    size_bytes: int
    reused: bool
    unsafe_name: str | None = None
    problems: tuple[str, ...] = ()


def scan_task(task: ShardTask) -> ShardDone:
    """Scan a shard and keep its table, unless that is there; runs in a worker.

    Raises:
        FormatError: the shard is damaged, empty, or has a key twice.
    """
    path = f"{task.root}/{task.shard}"
    stamp = _stamp(task.store, path)
    before = _read(task, stamp)
    if before is not None:
        table, media, problems = decode_table(before.table, path), before.media, before.problems
    else:
        table, media, problems = scan_shard(task.store, path), None, list[str]()
        _require_good(table, path)
    reused = before is not None
    if task.media is not None and (media is None or media[0] != _key_of(task.media)):
        found = list(task.media(task.store, path, table))
        rows = [(row.name, *encode_metadata(row.metadata)) for row in found if isinstance(row, MediaRow)]
        problems = [f"{task.shard}: {one.name}: {one.what}" for one in found if isinstance(one, MediaProblem)]
        media, reused = (_key_of(task.media), rows), False
    if not reused:
        if _stamp(task.store, path) != stamp:
            raise PrepareError("a shard changed while it was read", path=path, hint="Prepare it when it is complete")
        _write(task, _Done(_VERSION, task.shard, *stamp, encode_table(table), media, problems))
    unsafe = next((key for key in table.keys if key.startswith("/") or ".." in key.split("/")), None)
    told = tuple(problems) if task.media is not None else ()
    return ShardDone(task.shard, table.num_samples, len(table.part_names), stamp[0], before is not None, unsafe, told)


def _key_of(media: MediaReader) -> str:
    return f"{media.filter.strategy} {media.filter.patterns}" + (" exact" if media.exact else "")


def _require_good(table: ShardTable, path: str) -> None:
    if table.num_samples == 0:
        raise Corrupt(
            "a shard without samples", path=path, found="no member of the name <key>.<part>",
            hint="Remove it, or leave it out with exclude (--exclude)",
        )  # fmt: skip
    require_distinct(table, path)
    require_text(table, path)


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


def _stamp(store: Store, path: str) -> tuple[int, int, str]:
    mtime_ns = os.stat(path).st_mtime_ns if isinstance(store, LocalStore) else 0
    return store.size(path), mtime_ns, file_binding(store, path)


def _file_of(folder: str, shard: str) -> str:
    name = hashlib.blake2b(shard.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return os.path.join(folder, name + _SUFFIX)


def _is_ours(name: str) -> bool:
    return _SHARD.match(name) is not None or name.startswith(SQLITE)


def _local(task: ShardTask) -> LocalStore:
    return task.store if isinstance(task.store, LocalStore) else LocalStore()


def _read(task: ShardTask, stamp: tuple[int, int, str]) -> _Done | None:
    done = _decode(_local(task), _file_of(task.folder, task.shard))
    if done is None or (done.shard, done.size_bytes, done.mtime_ns, done.binding) != (task.shard, *stamp):
        return None
    return done


def _decode(store: LocalStore, path: str) -> _Done | None:
    try:
        done = msgspec.msgpack.decode(store.get(path), type=_Done)
    except (NotFound, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return done if done.version == _VERSION else None


def _write(task: ShardTask, done: _Done) -> None:
    put(_local(task), _file_of(task.folder, task.shard), msgspec.msgpack.encode(done))

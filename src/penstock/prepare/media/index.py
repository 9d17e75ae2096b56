"""The media index of a dataset, and the files that it describes.

`index.sqlite.penstock` next to the index is a MessagePack map of the files that earlier runs read. It is valid for the
index that was written with it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias, get_args

import msgspec
import xxhash

from penstock._regular import open_regular
from penstock.codec.av_header import MediaDepth
from penstock.errors import NotFound
from penstock.formats.samples import media_index
from penstock.formats.samples.folder.files import INDEX, is_text, list_files
from penstock.formats.samples.media_index import MediaFilter, MediaRow, decode_metadata
from penstock.formats.samples.sqlite import connect, connect_to_write, system_errors
from penstock.formats.samples.webdataset.nvmeta import read_info
from penstock.prepare.media.rows import MediaFile, MediaProblem
from penstock.store._files import named
from penstock.store.fingerprint import state_of
from penstock.store.place import Place

Stamp: TypeAlias = tuple[int, int]
"""Size, and time of change in ns or a digest of the store's version; -1 without either."""

_DEPTHS: tuple[MediaDepth, ...] = get_args(MediaDepth)
_BLOCK_BYTES = 1 << 22
_VERSION = 2  # the rows of version 1 may have counts that no header stated
_MOST_BYTES = 1 << 31
_EPOCH = "1970-01-01 00:00:00"
_MEMBERS = (
    "SELECT p.tar_file_id, s.sample_key || '.' || p.part_name, p.content_byte_offset, p.content_byte_size "
    "FROM sample_parts p JOIN samples s ON s.tar_file_id = p.tar_file_id AND s.sample_index = p.sample_index "
    "ORDER BY p.tar_file_id, p.content_byte_offset"
)


# --- files and tars --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unit:
    """A file of a directory, or a tar, which changes as a whole.

    Attributes:
        name: path in the dataset.
        place: the file.
        stamp: differs if the file has changed.
        version: version of the file in a store without times; else empty.
        files: the media file, or the members of the tar.
    """

    name: str
    place: Place
    stamp: Stamp
    version: str
    files: tuple[MediaFile, ...]

    @property
    def mtime_ns(self) -> int:
        return -1 if self.version else self.stamp[1]


def folder_units(root: Place) -> list[Unit]:
    units: list[Unit] = []
    for name in list_files(root.store, root.path):
        if is_text(name):
            place = root.child(name)
            stamp, version = _stamp(place)
            units.append(Unit(name, place, stamp, version, (MediaFile(name, 0, stamp[0]),)))
    return units


def tar_units(root: Place) -> list[Unit]:
    """Return each tar with its members by the sample index; raises `NotFound` if that has none."""
    index, names = root.child(INDEX), list(read_info(root.store, root.path).counts)
    members: list[list[MediaFile]] = [[] for _ in names]
    try:
        with system_errors(index.path), closing(connect(index.store, index.path)) as old:
            for number, name, start_bytes, size_bytes in old.execute(_MEMBERS):
                members[number].append(MediaFile(name, start_bytes, size_bytes))
    except (sqlite3.Error, IndexError, TypeError) as error:
        hint = f"Rebuild it: `penstock prepare --tar-index-only {root.path}`"
        raise NotFound("there is no index of sample parts", path=index.path, found=str(error), hint=hint) from None
    units: list[Unit] = []
    for name, files in zip(names, members, strict=True):
        place = root.child(name)
        stamp, version = _stamp(place)
        inside = (file for file in files if file.start_bytes + file.size_bytes <= stamp[0])
        units.append(Unit(name, place, stamp, version, tuple(inside)))
    return units


def newest(units: Sequence[Unit]) -> str:
    """Return when the newest of them was changed, in the format of sqlite."""
    newest_ns = max((unit.mtime_ns for unit in units), default=-1)
    return _EPOCH if newest_ns < 0 else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest_ns // 10**9))


def _stamp(file: Place) -> tuple[Stamp, str]:
    """Return the stamp of a file, and its version in a store without times."""
    if file.store.is_local:
        status = os.stat(file.store.real_path(file.path))
        return (status.st_size, status.st_mtime_ns), ""
    state = state_of(file)
    change = xxhash.xxh3_64_intdigest(state.version.encode()) >> 1 if state.version else -1
    return (state.size_bytes, change), state.version


# --- the current index -----------------------------------------------------------------------------------------------


class ReadFiles(msgspec.Struct):
    """The side file: files, or tars, that earlier runs read, and how they were read.

    Attributes:
        binding: digest of the index that was written with it.
        filters, depth: options of the runs.
        stamps: stamps of the files, by name.
    """

    version: int
    binding: str
    filters: tuple[MediaFilter, ...]
    depth: MediaDepth
    stamps: dict[str, Stamp]


def _read_side_file(index: Place, binding: str) -> ReadFiles:
    """Return the side file of the index with this digest; an empty one if it belongs to another one."""
    store, path = index.store, f"{index.path}.penstock"
    try:
        found = msgspec.msgpack.decode(store.get(path), type=ReadFiles) if store.size(path) < _MOST_BYTES else None
    except (NotFound, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if found is None or found.version != _VERSION or found.binding != binding:
        return ReadFiles(_VERSION, binding, (), "headers", {})
    found.stamps = {name: stamp for name, stamp in found.stamps.items() if stamp[1] >= 0}
    return found


@dataclass(frozen=True, slots=True)
class MediaIndex:
    """The current index of a dataset.

    Attributes:
        place: the index, which may not exist.
        binding: digest of its file; None if it doesn't exist.
        filters: the filters of its rows, each with the time of its newest file.
        read_files: the files that were read for it.
    """

    place: Place
    binding: str | None
    filters: tuple[tuple[MediaFilter, str], ...]
    read_files: ReadFiles

    def unchanged(self, units: Sequence[Unit], filters: Iterable[MediaFilter], *, depth: MediaDepth) -> frozenset[str]:
        """Return names of units that an earlier run read in the same way, and that didn't change since."""
        before = self.read_files
        if not set(filters) <= set(before.filters) or _DEPTHS.index(depth) > _DEPTHS.index(before.depth):
            return frozenset()
        return frozenset(unit.name for unit in units if before.stamps.get(unit.name) == unit.stamp)


def read_index(root: Place) -> MediaIndex:
    place = root.child(INDEX)
    if not place.exists():
        return MediaIndex(place, None, (), ReadFiles(_VERSION, "", (), "headers", {}))
    with closing(media_index.connect_media(place.store, place.path)) as old:
        filters = tuple(media_index.read_filters(old, path=place.path))
    binding = content_digest(place)
    return MediaIndex(place, binding, filters, _read_side_file(place, binding))


def content_digest(index: Place) -> str:
    """Return the digest of all bytes: indexes with other rows may have the same size and edges."""
    hasher, size_bytes = xxhash.xxh3_128(), index.store.size(index.path)
    for start_bytes in range(0, size_bytes, _BLOCK_BYTES):
        hasher.update(index.store.get(index.path, start_bytes, min(_BLOCK_BYTES, size_bytes - start_bytes)))
    return hasher.hexdigest()


# --- a new index -----------------------------------------------------------------------------------------------------


class Part(msgspec.Struct, array_like=True):
    """The part of a task.

    Attributes:
        stored: the rows, as name, kind and JSON.
        problems: files that are unreadable or seem to be truncated.
        traits: property → number of images that have it; see `upright.pixel_traits`.
    """

    stored: list[tuple[str, str, str]]
    problems: list[MediaProblem]
    traits: dict[str, int] = {}


def make_index(
    old: MediaIndex,
    new: Place,
    kept: Set[str],
    filters: Iterable[tuple[MediaFilter, str]],
    parts: Iterable[Part],
    *,
    is_tars: bool,
) -> tuple[int, tuple[MediaProblem, ...]]:
    """Make a new index from the parts and the rows of unchanged files.

    Args:
        old: the current index.
        new: local path of the new one.
        kept: files whose rows in the old index are still valid.
        filters: the filters of all runs.
        parts: the parts in order.
        is_tars: the old index also has the samples, and is copied.

    Returns:
        The number of rows, and the problems of files that were read.
    """
    problems: list[MediaProblem] = []
    if is_tars:
        _copy(old.place, new)
    with system_errors(new.path), closing(connect_to_write(new.path)) as made:
        # An old index may be in WAL mode: leaving it first makes a plain file.
        for pragma in ("journal_mode=DELETE", "journal_mode=OFF", "synchronous=OFF"):
            made.execute(f"PRAGMA {pragma}").fetchall()
        made.execute("BEGIN")
        media_index.create_tables(made)
        if is_tars:
            rows: list[tuple[str]] = made.execute("SELECT entry_key FROM media_metadata").fetchall()
            others = [row for row in rows if row[0] not in kept]
            made.executemany("DELETE FROM media_metadata WHERE entry_key = ?", others)
        elif old.binding is not None:
            path = old.place.path
            with closing(media_index.connect_media(old.place.store, path)) as before:
                known = (row for row in media_index.read_rows(before, path=path) if row.name in kept)
                media_index.put_rows(made, known)
        for part in parts:
            media_index.put_rows(
                made, (MediaRow(name, decode_metadata(kind, text)) for name, kind, text in part.stored)
            )
            problems += part.problems
        media_index.add_filters(made, list(filters))
        num_rows = int(made.execute("SELECT COUNT(entry_key) FROM media_metadata").fetchone()[0])
        made.execute("COMMIT")
    return num_rows, tuple(problems)


def publish(
    old: MediaIndex, new: Place, filters: tuple[MediaFilter, ...], depth: MediaDepth, units: Sequence[Unit]
) -> None:
    store, path = old.place.store, old.place.path
    record = ReadFiles(_VERSION, content_digest(new), filters, depth, {unit.name: unit.stamp for unit in units})
    index = store.stage(path, overwrite=True)
    side = None
    try:
        index.append_file(new.path)
        side = store.stage(f"{path}.penstock", overwrite=True)
        side.write(msgspec.msgpack.encode(record))
        # The index first: without its side file the next run only reads more files than necessary.
        store.commit([index, side])
    except BaseException:
        index.abort()
        if side is not None:
            side.abort()
        raise


def _copy(index: Place, new: Place) -> None:
    store = index.store
    try:
        with open(new.path, "wb") as file:
            if store.is_local:
                with open_regular(store.real_path(index.path)) as source:
                    shutil.copyfileobj(source, file, _BLOCK_BYTES)
            else:
                file.write(store.get(index.path))
    except OSError as error:
        raise named(error, new.path) from None

"""What changes as a whole between two runs: a file of a folder, or a tar with its members."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import xxhash

from penstock.errors import NotFound
from penstock.formats.samples.folder.files import INDEX, is_text, list_files
from penstock.formats.samples.sqlite import connect, system_errors
from penstock.formats.samples.webdataset.nvmeta import read_info
from penstock.prepare.media.rows import MediaFile
from penstock.prepare.media.seen import Stamp
from penstock.store.local import LocalStore
from penstock.store.place import Place
from penstock.store.state import state_of

_EPOCH = "1970-01-01 00:00:00"
_MEMBERS = (
    "SELECT p.tar_file_id, s.sample_key || '.' || p.part_name, p.content_byte_offset, p.content_byte_size "
    "FROM sample_parts p JOIN samples s ON s.tar_file_id = p.tar_file_id AND s.sample_index = p.sample_index "
    "ORDER BY p.tar_file_id, p.content_byte_offset"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A file of a folder, or a tar.

    Attributes:
        name: from the dataset's folder.
        place: where it is.
        stamp: what tells whether it is the same still.
        version: that a store without times gives it; else empty.
        files: that are looked at in it.
    """

    name: str
    place: Place
    stamp: Stamp
    version: str
    files: tuple[MediaFile, ...]

    @property
    def mtime_ns(self) -> int:
        """When it was changed; -1 where its store tells versions only."""
        return -1 if self.version else self.stamp[1]


def folder_units(root: Place) -> list[Unit]:
    """Each file of a folder as one."""
    units: list[Unit] = []
    for name in list_files(root.store, root.path):
        if is_text(name):
            place = root.child(name)
            stamp, version = _stamp(place)
            units.append(Unit(name, place, stamp, version, (MediaFile(name, 0, stamp[0]),)))
    return units


def tar_units(root: Place) -> list[Unit]:
    """Each tar as one, with its members by the index of its samples; raises `NotFound` where that lists none."""
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
    """When the newest of them was changed, as sqlite writes it: the same for the same data."""
    newest_ns = max((unit.mtime_ns for unit in units), default=-1)
    return _EPOCH if newest_ns < 0 else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest_ns // 10**9))


def _stamp(file: Place) -> tuple[Stamp, str]:
    """What tells whether a file is the same still, and the version that a store without times gives it."""
    if isinstance(file.store, LocalStore):
        status = os.stat(file.store.real_path(file.path))
        return (status.st_size, status.st_mtime_ns), ""
    state = state_of(file)
    change = xxhash.xxh3_64_intdigest(state.version.encode()) >> 1 if state.version else -1
    return (state.size_bytes, change), state.version

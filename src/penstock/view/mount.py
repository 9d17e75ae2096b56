"""Mount of a WebDataset through FUSE, read-only: parts of samples as files of a directory.

| layout | where part `<part>` of the sample `<key>` is |
|---|---|
| flat | `<key>.<part>`; slashes in keys are directories |
| by sample | `<key>/<part>` |

`build_tree` and `Files` are the whole logic and need no FUSE; `mount` connects them to it. If a part repeats in
its sample, the first one is mounted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from penstock._access import excluded_of
from penstock._access import place_of as places_of
from penstock._optional import require
from penstock.errors import ConfigError, Corrupt, NotFound, UnsafeData
from penstock.formats import get_format
from penstock.formats._excluded import load_side_file_of_list, require_list_not_recorded
from penstock.formats._exclusions import stored
from penstock.formats._opening import open_at
from penstock.formats.samples.sqlite import connect, raise_system_error
from penstock.formats.samples.webdataset.nvmeta import SQLITE, meta_path, read_info
from penstock.formats.samples.webdataset.shards import scan_shard
from penstock.store.exclude_list import NO_LIST, OURS, read_list
from penstock.store.place import Given, Place, dataset_at, local_path, place_of
from penstock.types import OpenOptions

_QUERY = (
    "SELECT p.tar_file_id, s.sample_key, p.part_name, p.content_byte_offset, p.content_byte_size "
    "FROM sample_parts p JOIN samples s ON s.tar_file_id = p.tar_file_id AND s.sample_index = p.sample_index "
    "ORDER BY p.tar_file_id, p.sample_index, p.content_byte_offset"
)
_FILE_MODE, _FOLDER_MODE = stat.S_IFREG | 0o444, stat.S_IFDIR | 0o555
_MOST_NAME_BYTES = 255
_MOUNTED = b"mounted"
_AFTER_MOUNTING = (7, 8)
"""Statuses of libfuse 3 for an end other than by unmounting, such as a signal, after which it is unmounted too."""

Row = tuple[int, str, str, int, int]
"""Shard number, key, part, first byte of the content in the shard, its size."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Files and directories, by their paths relative to the root, `""`.

    Attributes:
        files: path → shard number, first byte, size in bytes.
        folders: path → the names in it.
    """

    files: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    folders: dict[str, dict[str, None]] = field(default_factory=lambda: {"": {}})


def build_tree(rows: Iterator[Row], *, by_sample: bool = False, of: Place | None = None) -> Tree:
    """Return the tree of all parts. Memory: about 500 bytes per part.

    Raises:
        UnsafeData: a key leads out of the directory.
        ConfigError: a name is invalid for files, or names both a file and a directory.
    """
    tree = Tree()
    for shard, key, part, start, size in rows:
        pieces = _pieces(key, part, by_sample, of)
        name = "/".join(pieces)
        if name in tree.files:
            continue
        for depth in range(len(pieces)):
            folder = "/".join(pieces[:depth])
            if folder in tree.files:
                raise _both(folder, of)
            tree.folders.setdefault(folder, {})[pieces[depth]] = None
        if name in tree.folders:
            raise _both(name, of)
        tree.files[name] = (shard, start, size)
    return tree


def dataset_rows(dataset: Place) -> Iterator[Row]:
    """Yield the parts of a prepared WebDataset from its index, or else from the shards' headers.

    Raises:
        FormatError: the dataset wasn't prepared, or is damaged.
    """
    store = dataset.store
    names = list(read_info(store, dataset.path).counts)
    index = replace(dataset, path=meta_path(dataset.path, SQLITE))
    if index.exists():
        with contextlib.ExitStack() as opened:
            try:
                rows = opened.enter_context(closing(connect(store, index.path))).execute(_QUERY)
            except sqlite3.DatabaseError as error:
                raise_system_error(error, index.path)
                rows = None  # written by a version without a table of parts
            if rows is not None:
                yield from _checked(rows, len(names), index)
                return
    for number, name in enumerate(names):
        table = scan_shard(store, dataset.child(name).path)
        contents, sizes, borders = table.contents.tolist(), table.sizes.tolist(), table.part_starts.tolist()
        for sample, key in enumerate(table.keys):
            for place in range(borders[sample], borders[sample + 1]):
                yield number, key, table.part_names[place], contents[place], sizes[place]


class Files:
    """FUSE operations by paths in the mounted directory; see `mfusepy.Operations`."""

    def __init__(self, tree: Tree, shards: list[Place], time_s: float) -> None:
        self._tree = tree
        self._shards = shards
        self._times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), time_s)
        self._owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}

    def getattr(self, inner: str) -> dict[str, Any]:
        """Return the attributes of a file or directory; raise `OSError` with ENOENT."""
        name = inner.strip("/")
        if name in self._tree.files:
            size = self._tree.files[name][2]
            return {"st_mode": _FILE_MODE, "st_nlink": 1, "st_size": size, **self._times, **self._owner}
        folder = self._folder(name)
        size = sum(self._tree.files.get(f"{name}/{one}" if name else one, (0, 0, 0))[2] for one in folder)
        return {"st_mode": _FOLDER_MODE, "st_nlink": 2, "st_size": size, **self._times, **self._owner}

    def readdir(self, inner: str) -> list[str]:
        """Return the names in a directory; raise `OSError` with ENOENT."""
        return [".", "..", *self._folder(inner.strip("/"))]

    def open(self, inner: str, flags: int) -> int:
        """Check that a file can be opened; raise `OSError`: ENOENT, or EROFS unless read-only."""
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), inner)
        self._file(inner)
        return 0

    def read(self, inner: str, size: int, offset: int) -> bytes:
        """Return up to `size` bytes of a file from `offset` on: only these are read from the shard."""
        shard, start, size_bytes = self._file(inner)
        length = max(0, min(size, size_bytes - offset))
        held = self._shards[shard]
        return bytes(held.store.get(held.path, start + offset, length)) if length else b""

    def _file(self, inner: str) -> tuple[int, int, int]:
        name = inner.strip("/")
        if name not in self._tree.files:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), inner)
        return self._tree.files[name]

    def _folder(self, name: str) -> dict[str, None]:
        if name not in self._tree.folders:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._tree.folders[name]


def open_files(
    path: str | os.PathLike[str],
    *,
    by_sample: bool = False,
    follow_links: bool = False,
    excludes: Given | Literal[False] | None = None,
) -> Files:
    """Return the files of a prepared WebDataset, without those of excluded samples.

    Raises:
        NotFound: the given exclude list doesn't exist.
        Corrupt: an exclude list can't be read, or belongs to other data.
        FormatError: the dataset wasn't prepared, or is damaged.
        UnsafeData, ConfigError: names are invalid for files; see `build_tree`.
    """
    place = dataset_at(path, follow_links=follow_links).bare()
    named = None if excludes is None or excludes is False else place_of(excludes)
    gone = set[str]() if excludes is False else _taken_out(place, named, follow_links=follow_links)
    # FUSE changes the working directory before it reads.
    folder = replace(place, path=place.absolute)
    shards = [folder.child(name) for name in read_info(place.store, place.path).counts]
    time_s = os.stat(place.path).st_mtime if place.is_local else 0.0
    rows = (row for row in dataset_rows(place) if row[1] not in gone)
    tree = build_tree(rows, by_sample=by_sample, of=place)
    return Files(tree, shards, time_s)


def _taken_out(place: Place, named: Place | None, *, follow_links: bool) -> set[str]:
    """Return the keys excluded by a dataset's list, of any split: the given list, else the one next to it."""
    beside = place.child(OURS[0])
    named = named or (beside if place.is_local and beside.exists() else None)
    if named is None:
        require_list_not_recorded(beside.path, load_side_file_of_list(place.store, beside.path))
    listed = NO_LIST if named is None else read_list(named.store, named.path)
    keys = set[str]()
    for split in {one.split for one in listed.entries}:
        options = OpenOptions(split=split, raw=True, follow_links=follow_links, excludes=listed)
        source: Any = open_at(get_format("webdataset"), place.store, place.path, options)
        found = excluded_of(source)
        keys |= {str(places_of(stored(source), index).key) for index in ([] if found is None else found.tolist())}
    return keys


def mount(
    path: str | os.PathLike[str],
    mountpoint: str,
    *,
    by_sample: bool = False,
    detach: bool = False,
    follow_links: bool = False,
    excludes: Given | Literal[False] | None = None,
    ready: Callable[[], None] | None = None,
) -> None:
    """Mount a WebDataset at an empty directory until it is unmounted; with `detach` in the background.

    Raises:
        MissingExtra: mfusepy is not installed.
        NotFound: the mount point doesn't exist, or this system doesn't have FUSE.
        ConfigError: the directory isn't empty, or is already mounted.
    """
    mountpoint = local_path(mountpoint, "the mount point")
    if not os.path.isdir(mountpoint):
        raise NotFound("the mount point doesn't exist", path=mountpoint, hint=f"Create it: mkdir {mountpoint}")
    if os.path.ismount(mountpoint) or os.listdir(mountpoint):
        raise ConfigError("the mount point is not empty", path=mountpoint, hint="Choose an empty folder")
    files = open_files(path, by_sample=by_sample, follow_links=follow_links, excludes=excludes)
    try:
        fuse = require("mfusepy", extra="mount")
    except OSError as error:
        hint = "Install it: `apt install fuse3`, `dnf install fuse-libs`; or use `penstock view`"
        raise NotFound("FUSE is not installed", found=str(error), hint=hint) from None
    if not os.path.exists("/dev/fuse"):
        raise NotFound("FUSE isn't available", path="/dev/fuse", hint="In a container, pass the device through")
    if ready is not None:
        ready()
    if detach:
        _serve_detached(fuse, files, mountpoint)
    else:
        _serve(fuse, files, mountpoint, lambda: None)


def _serve(fuse: Any, files: Files, mountpoint: str, started: Callable[[], None]) -> None:
    """Serve until it is unmounted, or a signal ends it; `started` is called once it is mounted."""
    mounted = False

    def on_start() -> None:
        nonlocal mounted
        mounted = True
        started()

    operations = _operations(fuse, files, on_start)
    try:
        fuse.FUSE(operations, mountpoint, foreground=True, nothreads=True, ro=True, fsname="penstock")
    except RuntimeError as error:
        if not (mounted and error.args[0] in _AFTER_MOUNTING):
            raise ConfigError("FUSE could not mount", path=mountpoint, found=f"status {error}") from None


def _serve_detached(fuse: Any, files: Files, mountpoint: str) -> None:
    """Serve in a separate process; return once it is mounted.

    FUSE's own daemon mode is a fork that Python doesn't notice: an interpreter with threads would wait for them forever
    at
    its end.
    """
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with open(reading, "rb") as file:
            answer = file.read()
        if answer != _MOUNTED:
            found = answer.decode(errors="replace") or "no answer"
            raise ConfigError("FUSE could not mount", path=mountpoint, found=found)
        return
    status = 1
    try:
        os.close(reading)
        os.setsid()
        answering = open(writing, "wb", buffering=0)  # noqa: SIM115 (closed once it is mounted)

        def started() -> None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(nowhere, number)
            answering.write(_MOUNTED)
            answering.close()

        try:
            _serve(fuse, files, mountpoint, started)
            status = 0
        except ConfigError as error:
            if not answering.closed:
                answering.write(str(error.found).encode(errors="replace"))
    finally:
        os._exit(status)


def _operations(fuse: Any, files: Files, started: Callable[[], None]) -> Any:
    """Return `files` with the signatures that the library calls; `started` is called once they are mounted."""

    class Operations(fuse.Operations):  # it finds methods by name, and reads options from the class
        def init(self, path: str) -> None:
            started()

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            return files.getattr(path)

        def readdir(self, path: str, fh: int) -> list[str]:
            return files.readdir(path)

        def open(self, path: str, flags: int) -> int:
            return files.open(path, flags)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return files.read(path, size, offset)

    return Operations()


def _pieces(key: str, part: str, by_sample: bool, of: Place | None) -> list[str]:
    pieces = [one for one in key.split("/") if one not in ("", ".")]
    if by_sample or key.endswith("/"):
        pieces.append(part)
    elif pieces:
        pieces[-1] += f".{part}"
    if key.startswith("/") or ".." in key.split("/") or ".." in pieces:
        raise UnsafeData(
            "a key points outside the folder: it gets no file", path=of and of.path,
            found=repr(f"{key}.{part}"[:200]), hint="Pack the shards again with other keys",
        )  # fmt: skip
    too_long = any(len(one.encode("utf-8", "surrogateescape")) > _MOST_NAME_BYTES for one in pieces)
    if not pieces or "" in pieces or too_long or any("\0" in one for one in pieces):
        raise ConfigError("not a valid file name", path=of and of.path, found=repr(f"{key}.{part}"[:200]))
    return pieces


def _checked(rows: Any, num_shards: int, index: Place) -> Iterator[Row]:
    try:
        for number, key, part, start, size in rows:
            ok = type(number) is type(start) is type(size) is int and type(key) is type(part) is str
            if not ok or not 0 <= number < num_shards or start < 0 or size < 0:
                raise Corrupt(
                    "invalid row in the index", path=index.path, found=f"{(number, key, part, start, size)}"[:200]
                )
            yield number, key, part, start, size
    except sqlite3.DatabaseError as error:
        raise_system_error(error, index.path)
        raise Corrupt("the index is damaged", path=index.path, found=str(error)) from None


def _both(name: str, of: Place | None) -> ConfigError:
    return ConfigError(
        "a name is both a file and a folder",
        path=of and of.path,
        found=repr(name[:200]),
        hint="Mount it by samples (--sample-folders)",
    )

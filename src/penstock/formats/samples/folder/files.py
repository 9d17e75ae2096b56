"""List the files of a folder dataset, and handle their names."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from penstock._threads import Pool
from penstock.codec.parts import AV_SUFFIXES, IMAGE_SUFFIXES
from penstock.errors import ConfigError, NotFound, UnsafeData
from penstock.formats.samples.leftovers import is_leftover
from penstock.store._links import walk_files
from penstock.store.base import Store
from penstock.store.exclude_list import OURS as LISTS
from penstock.store.names import METADATA_WORK, NEXT, is_staged_name

NV_META = ".nv-meta"
INDEX = f"{NV_META}/index.sqlite"
SIDE_SUFFIX = ".penstock"
MEDIA = tuple(f".{name}" for name in sorted(IMAGE_SUFFIXES | AV_SUFFIXES | {"aac", "m4a", "m4v", "ogg"}))
"""Suffixes of media files."""
_AT_ONCE = 16

T = TypeVar("T")
R = TypeVar("R")


def read_each(store: Store, read: Callable[[T], R], files: Sequence[T]) -> list[R]:
    """Return `read(file)` for each file, in order; files of remote stores are read concurrently."""
    if store.is_local or len(files) < 2:
        return list(map(read, files))
    with Pool(min(_AT_ONCE, len(files)), "penstock-files") as pool:
        return list(pool.map(read, files))


def list_files(store: Store, root: str) -> list[str]:
    """Return the paths of all files below a folder, in byte order; follows links. Memory: about 100 bytes per file.

    Metadata of Energon and Penstock is skipped: `.nv-meta`, side files, and staged files.

    Raises:
        NotFound: the folder doesn't exist, or a link is broken.
        UnsafeData: a link leads out of the folder.
    """
    if not store.is_folder(root):
        raise NotFound("no such folder", path=root, hint="Check the path")
    names = walk_files(root, store.guard) if store.is_local else _stored(store, root)
    return sorted((name for name in names if not _is_ours(name)), key=os.fsencode)


def path_of(root: str, name: str) -> str:
    """Return the path of a file by its name in the dataset, or by an absolute path that leads into it.

    Raises:
        UnsafeData: the name leaves the folder.
    """
    return f"{root}/{name_in(root, name)}"


def name_in(root: str, name: str) -> str:
    """Return the name of a file in a folder, without `.` and `..`; for errors, see `path_of`."""
    inner = name.removeprefix(f"{root}/") if name.startswith("/") else name
    if "/." in f"/{inner}" or "//" in inner:
        inner = posixpath.normpath(inner)
    if inner.startswith("/") or inner == ".." or inner.startswith("../") or "\0" in inner:
        hint = "Use paths relative to the folder"
        raise UnsafeData("the file name points outside the folder", path=root, found=repr(name[:200]), hint=hint)
    return inner


def require_name(name: str, root: str) -> str:
    """Return `name` if it is valid for a file of a dataset; raise `ConfigError` otherwise."""
    pieces = name.split("/")
    if (
        not name
        or any(piece in ("", ".", "..") for piece in pieces)
        or "\0" in name
        or not is_text(name)
        or max(map(len, map(os.fsencode, pieces))) > 255
        or _is_ours(name)
    ):
        raise ConfigError("invalid file name", path=root, found=repr(name[:200]), expected="such as a/b.png")
    return name


def part_of(name: str) -> str:
    """Return the part name of a file, by the rule of tars: all after the first dot of its last component."""
    return name.rpartition("/")[2].partition(".")[2]


def sample_of(name: str) -> str:
    """Return the sample key of a file, by the rule of tars: its path up to the first dot of its last component."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition('.')[0]}"


def is_part(name: str) -> bool:
    """Return true if a file is a part of a sample by the rule of tars: not hidden, with an extension, no leftover."""
    return part_of(name) != "" and sample_of(name)[-1:] not in ("", "/") and not is_leftover(name)


def is_text(name: str) -> bool:
    """Return true if a name is valid UTF-8, so that metadata files can hold it."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_ours(name: str) -> bool:
    return (
        name.startswith((f"{NV_META}/", f"{METADATA_WORK}/"))
        or name.endswith((SIDE_SUFFIX, SIDE_SUFFIX + NEXT, *LISTS))
        or any(is_staged_name(piece) for piece in name.split("/"))
    )


def _stored(store: Store, root: str) -> Iterator[str]:
    start = len(root.rstrip("/")) + 1
    return (path[start:] for path in store.list(root))

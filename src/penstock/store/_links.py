"""Rejection of links out of a dataset's folder: the author of a dataset must not choose which other files are read.

A store that is bound to a dataset (`LocalStore.within`) checks the real path of an opened file by one `readlink` of the
open descriptor, when the file is first opened. So the checked file is the file that is read, even if links change
meanwhile, and files that are never read cost no system call. Always allowed are the dataset's own path, links that stay
in the folder, and Hugging Face's cache, where `snapshots/<revision>/…` leads to `blobs/` of the same repository. Hard
links can't be distinguished from files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.errors import UnsafeData
from penstock.store._files import is_folder, leads_somewhere, not_found

HINT = "Pass follow_links=True (--follow-links) to allow links out of the folder"

_MOST_CHECKED = 1 << 16  # paths remembered, at about 200 bytes each
_PAIRS = (".idx", ".bin")  # a dataset that is named by the common start of its two file names


class LinkGuard:
    """Paths that a dataset may be read from and written to. Thread-safe, picklable.

    Args:
        path: path of the dataset: a folder, a main file, or the common start of the names of two files.
    """

    __slots__ = ("_checked", "_given", "_path", "_roots")

    def __init__(self, path: str) -> None:
        self._given = path.rstrip("/") or path
        self._path = os.path.abspath(path)
        self._checked: set[str] = set()
        self._roots: tuple[str, tuple[str, ...], tuple[str, ...]] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (LinkGuard, (self._given,))

    def check_open(self, path: str, fd: int) -> None:
        """Raise `UnsafeData` if an open file of the dataset is outside its folder."""
        if path in self._checked:
            return
        self._require(path, _place_of(fd, path))
        if len(self._checked) >= _MOST_CHECKED:
            self._checked.clear()
        self._checked.add(path)

    def require(self, path: str) -> str:
        """Return the real path of a file or folder that is opened by name, or raise `UnsafeData`."""
        real = os.path.realpath(path)
        self._require(path, real)
        return real

    def require_target(self, path: str) -> None:
        """Raise `UnsafeData` if the folder of a file to make or remove at `path` is outside the dataset's folder."""
        folder, name = os.path.split(os.path.abspath(path))
        self._require(path, os.path.join(os.path.realpath(folder), name))

    def _require(self, path: str, real: str) -> None:
        place = os.path.abspath(path)
        if place == self._path or real == place:
            return
        for fresh in (False, True):  # a folder that was moved meanwhile has a new real path
            if fresh or self._roots is None:
                self._roots = _roots_of(self._path)
            folder, inside, beside = self._roots
            is_inside = place.startswith(self._path + "/") or path.startswith(self._given + "/")  # also by ..
            roots = inside if is_inside else beside if place.startswith(folder) else ()
            if not roots or f"{real}/".startswith(roots):
                return
        raise UnsafeData("a file of the dataset is a link out of its folder", path=path, found=real, hint=HINT)


def _roots_of(path: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the prefix of names next to a dataset, and the allowed roots inside and next to it; all end in `/`."""
    real = os.path.realpath(path)
    if is_folder(path):
        # Next to a folder, only files that begin with its name belong to it, such as `group.zarr.penstock`.
        inside = _with_blobs(real)
        return path + ".", inside, _with_blobs(os.path.dirname(os.path.abspath(path)), os.path.dirname(real))
    folder = os.path.dirname(path)
    suffixes = ("",) if leads_somewhere(path) else _PAIRS
    theirs = {os.path.dirname(os.path.realpath(path + suffix)) for suffix in suffixes}
    roots = _with_blobs(os.path.realpath(folder), *(theirs if len(theirs) == 1 else ()))
    return folder.rstrip("/") + "/", roots, roots


def _with_blobs(*folders: str) -> tuple[str, ...]:
    """Return folders, and the targets of their links in Hugging Face's cache."""
    found: list[str] = []
    for folder in folders:
        found.append(folder.rstrip("/") + "/")
        above, name, _ = f"{folder}/".rpartition("/snapshots/")
        found += [f"{above}/blobs/"] if name else []
    return tuple(found)


def _place_of(fd: int, path: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # a system without it: use the current target of the path
        return os.path.realpath(path)


def walk_files(root: str, guard: LinkGuard | None, *, hidden: bool = True) -> Iterator[str]:
    """Yield the relative paths of the files below a folder, unordered; links are followed, but not in circles.

    Args:
        root: the folder.
        guard: rejects links; None follows all.
        hidden: include names that begin with a dot.

    Raises:
        NotFound: a broken link.
        UnsafeData: a link leads out of the folder.
    """
    # Each entry includes the folders above it, so that a link to one of them doesn't lead in circles.
    waiting: list[tuple[str, frozenset[str]]] = [("", frozenset((os.path.realpath(root),)))]
    while waiting:
        folder, above = waiting.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                if not hidden and entry.name.startswith("."):
                    continue
                name = f"{folder}/{entry.name}" if folder else entry.name
                path = f"{root}/{name}"
                real = path
                if entry.is_symlink():
                    real = os.path.realpath(path) if guard is None else guard.require(path)
                    if not leads_somewhere(real):
                        raise not_found(path)
                if entry.is_file():
                    yield name
                elif entry.is_dir() and real not in above:
                    waiting.append((name, above | {real}))

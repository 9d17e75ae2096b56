"""Which files a path, a folder or a glob means, here or in a store far away."""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
import re
import stat
from collections.abc import Iterator, Sequence

from penstock.abc import Store
from penstock.errors import ConfigError, NotFound
from penstock.store._files import status_of
from penstock.store._links import LinkGuard
from penstock.store.place import place_of
from penstock.store.remote import base_of
from penstock.store.resolve import absolute, is_url, local_path


def find_files(
    given: str,
    kinds: Sequence[Sequence[str]],
    what: str,
    *,
    follow_links: bool = False,
    statuses: dict[str, os.stat_result] | None = None,
) -> Iterator[str]:
    """The files that a path or URL means: itself, or those of a folder or a glob.

    Folders are searched at any depth for names that end in one of the first of `kinds` of which there is a file;
    hidden names are left out. Links out of such a folder are refused without `follow_links`.

    Args:
        given: path, folder, glob or URL.
        kinds: suffixes of names, one kind after the other.
        what: is looked for, for errors.
        follow_links: take files through links that lead out of a folder.
        statuses: takes those of the files of a folder that are no links, by their paths.

    Raises:
        NotFound: nothing is there, or nothing fits.
        ConfigError: a link leads back to a folder above it.
        UnsafeData: a link leads out of a folder that is searched.
    """
    if is_url(given) and not given.lower().startswith("file://"):
        yield from _far(given, kinds, what)
        return
    path = local_path(given, "what is read")
    status = status_of(os.stat, path)
    if status is not None and stat.S_ISDIR(status.st_mode):
        above, guard = (os.path.realpath(path),), None if follow_links else LinkGuard(path)
        found = next(filter(None, (list(_walk(path, above, tuple(kind), guard, statuses)) for kind in kinds)), None)
        if found is None:
            raise NotFound(f"no {what} file in this folder", path=given, expected=", ".join(kinds[0]))
        yield from found
    elif status is not None:
        yield path
    elif glob.has_magic(path):
        root = "/" if path.startswith("/") else ""
        matches = list(_matches(root, path.lstrip("/").split("/")))
        if not matches:
            raise NotFound("no file fits this pattern", path=given, hint="Check the path")
        expanded = (
            find_files(one, kinds, what, follow_links=follow_links, statuses=statuses) if os.path.isdir(one) else [one]
            for one in matches
        )
        # A pattern may fit a folder and what is in it.
        yield from dict.fromkeys(map(absolute, itertools.chain.from_iterable(expanded)))
    else:
        raise NotFound("no such file or folder", path=given, hint="Check the path")


def one_store(paths: Sequence[str]) -> Store:
    """The store of all of these paths; raises `ConfigError` for several."""
    places = [place_of(path) for path in paths]
    if len({(type(one.store), base_of(one.path) if is_url(one.path) else "") for one in places}) > 1:
        raise ConfigError("paths of several stores", hint="Open each by itself, and join them: ps.Concat")
    return places[0].store


def files_of_all(paths: Sequence[str], suffixes: Sequence[str], what: str, *, follow_links: bool) -> list[str]:
    """The files of several files, folders and patterns, in byte order of their paths; raises as `find_files`.

    Raises:
        ConfigError: a file is named twice.
    """
    found = (file for path in paths for file in find_files(path, [suffixes], what, follow_links=follow_links))
    files = sorted(found, key=lambda file: os.fsencode(absolute(file)))
    for first, second in itertools.pairwise(files):
        if absolute(first) == absolute(second):
            raise ConfigError("a file is named twice", path=first, hint="Name each file once, or its folder")
    return files


def _far(given: str, kinds: Sequence[Sequence[str]], what: str) -> Iterator[str]:
    """The files of a URL: itself, what lies under it, or what fits it as a pattern; one listing."""
    place = place_of(given)
    if glob.has_magic(place.path):
        root = place.path[: re.search(r"[*?[]", place.path).start()].rpartition("/")[0]  # type: ignore[union-attr]
        found = [path for path in place.store.list(root) if fnmatch.fnmatchcase(path, place.path)]
        if not found:
            raise NotFound("no file fits this pattern", path=given, hint="Check the URL")
        yield from found
        return
    if place.exists() and not place.is_folder():
        yield place.path
        return
    names = [path for path in place.store.list(place.path) if not path.rpartition("/")[2].startswith(".")]
    found = next(filter(None, ([path for path in names if path.endswith(tuple(kind))] for kind in kinds)), None)
    if found is None:
        raise NotFound(f"no {what} file under this URL", path=given, expected=", ".join(kinds[0]))
    yield from found


def _matches(folder: str, parts: Sequence[str], above: tuple[str, ...] = ()) -> Iterator[str]:
    """What fits a pattern, as `glob` has it, in a folder; but one that can't be searched is an error, not empty."""
    if not parts:
        yield folder
        return
    part, rest = parts[0], parts[1:]
    if not glob.has_magic(part):
        path = os.path.join(folder, part)
        status = status_of(os.stat if rest else os.lstat, path)
        if status is not None and (not rest or stat.S_ISDIR(status.st_mode)):
            yield from _matches(path, rest)
        return
    is_deep = part == "**"
    if is_deep:
        real = os.path.realpath(folder)
        if real in above:
            raise ConfigError("a link leads back to a folder above it", path=folder)
        above = (*above, real)
        yield from _matches(folder, rest)
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.name.startswith(".") and not part.startswith("."):
                continue
            if is_deep and entry.is_dir():
                yield from _matches(path, parts, above)
            elif (is_deep and not rest) or (not is_deep and fnmatch.fnmatchcase(entry.name, part)):
                yield from _matches(path, rest) if not rest or entry.is_dir() else ()


def _walk(
    folder: str,
    above: tuple[str, ...],
    suffixes: tuple[str, ...],
    guard: LinkGuard | None,
    statuses: dict[str, os.stat_result] | None,
) -> Iterator[str]:
    # Unlike with os.walk, an unreadable folder is an error: its documents would be missing without a word.
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            is_folder = _is_folder(entry)
            if guard is not None and entry.is_symlink() and (is_folder or entry.name.endswith(suffixes)):
                guard.require(entry.path)
            if not is_folder:
                if entry.name.endswith(suffixes):
                    if statuses is not None and not entry.is_symlink():
                        statuses[entry.path] = entry.stat(follow_symlinks=False)
                    yield entry.path
                continue
            real = os.path.realpath(entry.path)
            if real in above:
                raise ConfigError("a link leads back to a folder above it", path=entry.path)
            yield from _walk(entry.path, (*above, real), suffixes, guard, statuses)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False

"""Expansion of paths, folders and globs to files, local or remote."""

from __future__ import annotations

import errno
import fnmatch
import functools
import glob
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence

from penstock._secrets import logger
from penstock.errors import ConfigError, NotFound
from penstock.store._files import is_folder, is_there, status_of
from penstock.store._links import LinkGuard
from penstock.store.base import Store
from penstock.store.derived import require_long_work
from penstock.store.exclude_list import BESIDE as LIST
from penstock.store.exclude_list import OURS as LISTS
from penstock.store.exclude_list import SIDE
from penstock.store.fingerprint import by_store, folder_above, is_worth_a_listing, most_listed
from penstock.store.patterns import alternatives, require_no_lists
from penstock.store.place import Place, absolute, is_url, local_path, place_of
from penstock.store.progress import counted
from penstock.store.remote import base_of

_log = logger()
_MANY_FILES = 20_000
"""Number of files whose listing takes too long for a page of the viewer."""


def find_files(
    given: str,
    kinds: Sequence[Sequence[str]],
    what: str,
    *,
    follow_links: bool = False,
    statuses: dict[str, os.stat_result] | None = None,
    folders: tuple[str, ...] = (),
) -> Iterator[str]:
    """Yield the files of a path or URL: itself, or those of a folder or a glob.

    Folders are searched at any depth for files of the first of `kinds` that has any; hidden files are skipped. Links
    out of such a folder are an error without `follow_links`.

    Args:
        given: path, folder, glob or URL.
        kinds: suffixes of names for each kind, in order of preference.
        what: name of the files for errors.
        follow_links: allow links out of a folder.
        statuses: filled with path → status of a folder's files that aren't links, and of exclude lists.
        folders: suffixes of folders that count as one file.

    Raises:
        NotFound: nothing exists, or nothing matches.
        ConfigError: a link leads back to a folder above it.
        UnsafeData: a link leads out of a searched folder.
    """
    if is_url(given) and not given.lower().startswith("file://"):
        for one in alternatives(given):
            yield from _far(one, kinds, what, folders)
        return
    path = local_path(given, "what is read")
    status = status_of(os.stat, path)
    if status is not None and stat.S_ISDIR(status.st_mode) and not (folders and path.rstrip("/").endswith(folders)):
        above, guard = (os.path.realpath(path),), None if follow_links else LinkGuard(path)
        others = [tuple(itertools.chain(*kinds[at + 1 :])) for at in range(len(kinds))]
        left_out: list[str] = []
        walks = (
            list(_listed(_walk(path, above, tuple(kind), guard, statuses, folders, other, left_out)))
            for kind, other in zip(kinds, others, strict=True)
        )
        found = next(filter(None, walks), None)
        if found is None:
            raise NotFound(f"no {what} file in this folder", path=given, expected=", ".join(kinds[0]))
        if found[0].endswith(tuple(kinds[0])):
            _warn_of_others(left_out, what)
        _warn_of_copies(found)
        yield from found
    elif status is not None:
        yield path
    elif len(several := alternatives(path)) > 1:
        for one in several:
            yield from find_files(one, kinds, what, follow_links=follow_links, statuses=statuses, folders=folders)
    elif glob.has_magic(path):
        root = "/" if path.startswith("/") else ""
        matches = list(_listed(_matches(root, path.lstrip("/").split("/"))))
        if not matches:
            raise NotFound("no file matches this pattern", path=given, hint="Check the path")
        _warn_of_copies(matches)
        expanded = (
            find_files(one, kinds, what, follow_links=follow_links, statuses=statuses, folders=folders)
            if is_folder(one)
            else [one]
            for one in matches
        )
        # A pattern may match a folder and its contents.
        yield from dict.fromkeys(map(absolute, itertools.chain.from_iterable(expanded)))
    else:
        raise NotFound("no such file or folder", path=given, hint="Check the path")


def one_store(paths: Sequence[str]) -> Store:
    places = [place_of(path) for path in paths]
    if len({(type(one.store), base_of(one.path) if is_url(one.path) else "") for one in places}) > 1:
        raise ConfigError("paths in different stores", hint="Open each one separately and join them with ps.Concat")
    return places[0].store


def survey(store: Store, files: Sequence[str]) -> None:
    """List remote files that will all be read, instead of requesting each size and version."""
    if store.keeps_copies and is_worth_a_listing(files):
        store.survey(folder_above(files), most_listed(files))


def survey_all(places: Sequence[Place]) -> None:
    """Do the same for files of several stores."""
    for some in by_store(places).values():
        survey(some[0].store, [place.path for place in some])


def files_of_all(paths: Sequence[str], suffixes: Sequence[str], what: str, *, follow_links: bool) -> list[str]:
    """Return the files of several paths in byte order; raise `ConfigError` if a file is named twice."""
    require_no_lists(paths)
    warn_of_links(paths)
    found = (file for path in paths for file in find_files(path, [suffixes], what, follow_links=follow_links))
    files = sorted((os.fsencode(absolute(file)), file) for file in found)
    for (first, path), (second, _) in itertools.pairwise(files):
        if first == second:
            raise ConfigError("a file is listed twice", path=path, hint="List each file once, or pass its folder")
    return [file for _, file in files]


def select_files(paths: Iterable[str], suffixes: Sequence[str]) -> list[str]:
    """Return the paths that end in one of `suffixes`; warn about copies, and about skipped files of samples."""
    suffixes, selected = tuple(suffixes), list[str]()
    for path in paths:
        if path.endswith(suffixes):
            selected.append(path)
        else:
            _warn_if_unread(path, suffixes)
    _warn_of_copies(selected)
    return selected


def peek_names(store: Store, root: str, most: int, folders: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield names of the first `most` entries of a folder and its subfolders; a remote store gets one request.

    Hidden names are skipped; `folders` as in `find_files`.
    """
    if not store.is_local:
        names = store.first_names(root)
        yield from (name for name in _as_files(names[:most], folders) if not _is_hidden(name))
        return
    left, waiting = most, [""]
    while waiting and left > 0:
        above = waiting.pop(0)
        with os.scandir(os.path.join(root, above)) as entries:
            for entry in entries:
                left -= 1
                name = os.path.join(above, entry.name)
                if left < 0 or entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False) and not (folders and entry.name.endswith(folders)):
                    waiting.append(name)
                else:
                    yield name


def _listed(paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths and report their number; raise `NotAtHand` for many paths in a block of `at_hand_only`."""
    for count, path in enumerate(counted("files listed", paths)):
        if count == _MANY_FILES:
            require_long_work(path)
        yield path


def _as_files(names: Iterable[str], folders: tuple[str, ...]) -> Iterator[str]:
    """Yield names of files; a folder that counts as one file replaces the files in it."""
    if not folders:
        yield from names
        return
    last = None
    for name in names:
        parts = name.split("/")
        end = next((place + 1 for place, part in enumerate(parts[:-1]) if part.endswith(folders)), len(parts))
        one = "/".join(parts[:end])
        if one != last:
            yield one
        last = one


def _is_hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".") or name.endswith(LISTS)


def _far(given: str, kinds: Sequence[Sequence[str]], what: str, folders: tuple[str, ...]) -> Iterator[str]:
    """Yield the files of a URL: itself, the files under it, or matches of a pattern; by one listing."""
    place = place_of(given)
    if glob.has_magic(place.path):
        root = place.path[: re.search(r"[*?[]", place.path).start()].rpartition("/")[0]  # type: ignore[union-attr]
        fitting = (one for one in _as_files(_listed(place.store.list(root)), folders) if not one.endswith(LISTS))
        found = [path for path in fitting if fnmatch.fnmatchcase(path, place.path)]
        if not found:
            raise NotFound("no file matches this pattern", path=given, hint="Check the URL")
        _warn_of_copies(found)
        yield from found
        return
    if place.path.startswith("http") and place.path.endswith(tuple(itertools.chain(folders, *kinds))):
        yield place.path  # a web server has no listings: assume a file; a missing one is an error when it is read
        return
    taken_whole = folders and place.path.rstrip("/").endswith(folders)
    if place.exists() and (taken_whole or not place.is_folder()):
        yield place.path
        return
    names = [path for path in _as_files(_listed(place.store.list(place.path)), folders) if not _is_hidden(path)]
    found = next(filter(None, (select_files(names, kind) for kind in kinds)), None)
    if found is None:
        raise NotFound(f"no {what} file under this URL", path=given, expected=", ".join(kinds[0]))
    if found[0].endswith(tuple(kinds[0])):
        later = tuple(itertools.chain(*kinds[1:]))
        _warn_of_others([name for name in names if later and name.endswith(later)], what)
    yield from found


def _matches(folder: str, parts: Sequence[str], above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield matches of a pattern in a folder, as `glob` does; a folder that can't be searched is an error."""
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
            raise ConfigError("a link points to a folder above it", path=folder)
        above = (*above, real)
        yield from _matches(folder, rest)
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.name.endswith(LISTS) or (entry.name.startswith(".") and not part.startswith(".")):
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
    folders: tuple[str, ...],
    others: tuple[str, ...],
    left_out: list[str],
) -> Iterator[str]:
    # Unlike with os.walk, an unreadable folder is an error, because its documents would be missing silently.
    with os.scandir(folder) as entries:
        for entry in entries:
            if statuses is not None and entry.name.endswith((LIST, SIDE)):
                statuses[entry.path] = entry.stat(follow_symlinks=False)
            if _is_hidden(entry.name):
                continue
            is_folder = _is_folder(entry)
            if entry.is_symlink() and (is_folder or entry.name.endswith(suffixes)):
                if guard is not None:
                    guard.require(entry.path)
                _warn_if_read_twice(entry.path, above[0], () if is_folder else suffixes)
            if not is_folder or (folders and entry.name.endswith(folders)):
                if entry.name.endswith(suffixes):
                    if statuses is not None and not entry.is_symlink():
                        statuses[entry.path] = entry.stat(follow_symlinks=False)
                    yield entry.path
                elif others and entry.name.endswith(others):
                    left_out.append(entry.path)
                else:
                    _warn_if_unread(entry.path, suffixes)
                continue
            real = os.path.realpath(entry.path)
            if real in above:
                raise ConfigError("a link points to a folder above it", path=entry.path)
            yield from _walk(entry.path, (*above, real), suffixes, guard, statuses, folders, others, left_out)


def _warn_of_others(left_out: Sequence[str], what: str) -> None:
    """Warn about files of a directory that are ignored because it has files of a preferred kind."""
    if left_out:
        more = f" and {len(left_out) - 1:,} more" if len(left_out) > 1 else ""
        why = f"not read as part of the directory, which contains {what} files. To read it, pass it as another input"
        _warn(f"{min(left_out)}{more}: {why}")


_METADATA = ("index.json", "_info.json", "state.json", "_dict.json", "config.json", ".certificate.json")
"""Suffixes of JSON files next to JSONL files that don't contain samples."""

_PACKED = re.compile(r"\.(gz|zst|bz2|xz|lz4|zip)$")
_LEFTOVER = re.compile(r"(\.(part|partial|tmp|temp|crdownload|download|incomplete|bak|old|orig|\d+)|~)$")
"""Last suffix of unfinished downloads, rotated files and backups."""


def _warn_if_unread(path: str, suffixes: tuple[str, ...]) -> None:
    """Warn about a file of a directory that is skipped because of its suffix, if it probably contains samples."""
    name = path.rpartition("/")[2].lower()
    is_jsonl = ".jsonl" in suffixes
    whole, unpacked = _LEFTOVER.sub("", name), _PACKED.sub("", name)
    if name.endswith(suffixes):
        reason = "rename it with a lower-case suffix"
    elif whole != name and whole.endswith(suffixes):
        reason = "it looks like an unfinished download or an old copy. Rename it if it is complete, or remove it"
    elif unpacked != name and unpacked.endswith((*suffixes, ".json") if is_jsonl else suffixes):
        reason = "decompress it" + (" (.gz and .zst are supported)" if is_jsonl else "")
    elif is_jsonl and name.endswith(".json") and not name.endswith(_METADATA):
        reason = "rename it to .jsonl if each line is an object; `jq -c '.[]' IN > OUT.jsonl` turns a list into lines"
    else:
        return
    _warn(f"{path}: this file is ignored: {reason}")


_SUFFIX = re.compile(
    r"(\.jsonl|\.ndjson|\.csv|\.tsv|\.txt|\.parquet|\.pq|(\.packed)?\.bin|\.pbin|\.npy|\.ds)(\.gz|\.zst|\.bz2|\.xz)?$",
    re.IGNORECASE,
)
"""Suffix of a file of samples or tokens, with that of its compression."""


def _warn_of_copies(paths: Iterable[str]) -> None:
    """Warn about files whose names differ only in their suffix, such as `a.jsonl` and `a.jsonl.gz`."""
    first: dict[str, str] = {}
    for path in paths:
        stem, count = _SUFFIX.subn("", path)
        other = first.setdefault(stem, path) if count else path
        if other != path:
            one, two = sorted((other, path))
            _warn(f"{two}: it may contain the same samples as {one}, which are then read twice. If so, remove one")


def _warn_if_read_twice(link: str, root: str, suffixes: tuple[str, ...]) -> None:
    """Warn about a link to a file or folder below the searched folder `root`, whose target is found twice."""
    real = os.path.realpath(link)
    below = real.removeprefix(root.rstrip("/") + "/")
    is_searched = below != real and not any(part.startswith(".") for part in below.split("/"))
    if is_searched and (not suffixes or real.endswith(suffixes)):
        _warn(
            f"{link}: this is a link to {real}, so its samples are read twice. Remove the link if that isn't intended"
        )


def warn_of_links(named: Sequence[str]) -> None:
    """Warn about explicitly named local paths that lead to the same file or folder."""
    first: dict[str, str] = {}
    for path in named if len(named) > 1 else ():
        if not is_url(path) and is_there(path):
            other = first.setdefault(os.path.realpath(path), path)
            if other != path:
                _warn(f"{path}: this is the same file or folder as {other}, so its samples are read twice")


@functools.lru_cache(maxsize=1024)
def _warn(message: str) -> None:
    """Log a warning once per process, because opening a directory lists it several times."""
    _log.warning("%s", message)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:  # ELOOP: a link to itself; after other errors, files would be missing silently
            raise
        return False

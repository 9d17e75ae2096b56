"""Datasets below a directory, from a look at the index of each."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from penstock._secrets import redact
from penstock._threads import Pool
from penstock.check.summary import manifest_of
from penstock.engine.folder import name_beside
from penstock.errors import NotFound, PenstockError
from penstock.formats import SUFFIXES, sniff
from penstock.formats._exclusions import stored
from penstock.formats._unrecognised import looks_like_recipe
from penstock.formats.samples.folder.files import MEDIA
from penstock.store.derived import NotAtHand, at_hand_only
from penstock.store.find import peek_names
from penstock.store.names import METADATA_WORK, NEXT, WORK
from penstock.store.place import Given, Place, place_of
from penstock.view.facts.bounds import Figure
from penstock.view.facts.dataset import Split, samples_of, side_file_of, splits_of, tokens_of
from penstock.view.facts.disk import MOST_FILES, disk_of
from penstock.view.facts.opening import RECIPES, Opened, open_target

MOST_DEEP = 4
MOST_NAMES = 2000
"""Limit on the names of one directory that are examined."""

MOST_DATASETS = 200
MOST_FAR_FOLDERS = 64
"""Limit on the directories of a remote store that are listed."""

MOST_FOLDERS = 4096
"""Limit on the directories of this machine that are listed."""

_AT_ONCE = 16
_PARTS = (".idx", ".penstock", ".jsonl.idx", ".tar.idx", ".exclude.jsonl", ".certificate.json", NEXT)
_SUFFIXES = (".pbin", *SUFFIXES["jsonl"], ".parquet", ".arrow", ".bin", ".ds", ".zarr", ".npy")
_OTHERS = ("index.json", ".nv-meta", "state.json", "dataset_dict.json", ".zgroup", "zarr.json")
_MARKS = (*_OTHERS, ".penstock", WORK, METADATA_WORK)
_HEAD_BYTES = 4096

NOT_READ = "the index is read when the dataset is opened"
NO_SIDE_FILE = "no side file"
"""Warning for datasets without a side file; its meaning is explained once per page."""


@dataclass(frozen=True, slots=True)
class OnShelf:
    """A dataset below a directory.

    Attributes:
        format: format of the dataset; `"recipe"` for a file that describes a run; None if it can't be opened.
        samples, tokens, size_bytes: None if not immediately known.
        splits: its splits, if its format has any.
        warnings: problems: it is unfinished, has no side file, can't be opened.
    """

    path: str
    format: str | None
    samples: int | None = None
    tokens: int | None = None
    size_bytes: int | None = None
    splits: tuple[Split, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Those of the warnings that are normal: nothing is broken."""
        return tuple(one for one in self.warnings if one in (NO_SIDE_FILE, NOT_READ, "empty"))


@dataclass(frozen=True, slots=True)
class Shelf:
    """Datasets below a directory."""

    name: str
    datasets: tuple[OnShelf, ...]
    is_cut: bool


def shelf(folder: Given) -> Shelf:
    """Return the datasets below a directory, at most four levels deep; links are not followed.

    On a remote store, at most 64 directories are listed, and each dataset is opened.

    Raises:
        NotFound: the directory doesn't exist.
    """
    root = place_of(folder)
    if not root.is_folder():
        raise NotFound("no such folder", path=root.path, hint="Check the path")
    walk = _Walk()
    found = list(islice(walk.below(root, "", MOST_DEEP), MOST_DATASETS + 1))
    walk.is_cut |= len(found) > MOST_DATASETS
    described: list[OnShelf | None] = []
    with Pool(1 if root.is_local else _AT_ONCE, "penstock-shelf") as pool:
        described += pool.map(lambda one: _described(*one), found[:MOST_DATASETS])
    known = [one for one in described if one is not None]
    return Shelf(root.shown, tuple(sorted(known, key=lambda one: os.fsencode(one.path))), walk.is_cut)


class _Walk:
    def __init__(self) -> None:
        self.is_cut = False
        self._listed = 0

    def below(
        self, folder: Place, above: str, deep: int, known: tuple[set[str], set[str] | None] | None = None
    ) -> Iterator[tuple[Place, str]]:
        """Yield locations of datasets, and their paths; `known`: the `_names` of a directory that was already listed.

        Unprepared tars and media files are one dataset: their directory, unless it is the root.
        """
        there, folders = self._names(folder) if known is None else known
        if above and any(name.lower().endswith((".tar", *MEDIA)) for name in there):
            yield folder, above.rstrip("/")
        names = sorted(there | {one for one in map(_made_by, there) if one is not None})
        if len(names) > MOST_NAMES:
            self.is_cut = True
        for name in islice(names, MOST_NAMES):
            if name.startswith(".") or name.endswith(_PARTS):
                continue
            child, below = folder.child(name), f"{above}{name}"
            if child.is_link():
                continue
            if name not in there:
                yield child, below  # it contains only unfinished work
                continue
            if not (child.is_folder() if folders is None else name in folders):
                if name.endswith((*_SUFFIXES, *RECIPES)):
                    yield child, below
                continue
            inside = None if child.is_local else self._names(child)
            if any(child.child(mark).exists() if inside is None else mark in inside[0] for mark in _MARKS):
                yield child, below
            elif deep > 1:
                yield from self.below(child, f"{below}/", deep - 1, inside)
            else:
                self.is_cut = True

    def _names(self, folder: Place) -> tuple[set[str], set[str] | None]:
        """Return the names in a directory, and those of its subdirectories; None if each has to be checked."""
        self._listed += 1
        if not folder.store.lists_levels:
            if self._listed > MOST_FOLDERS:
                self.is_cut = True
                return set(), None
            return set(folder.names()), None
        if self._listed > MOST_FAR_FOLDERS:
            self.is_cut = True
            return set(), set()
        folders, files = folder.store.level(folder.path)
        return {*folders, *files}, set(folders)


def _described(place: Place, name: str) -> OnShelf | None:
    """Return the description of a dataset; None for a file that is named like a recipe but isn't one."""
    shown = redact(name)
    if place.path.endswith(RECIPES):
        return OnShelf(shown, "recipe") if _may_be_recipe(place) else None
    warnings: list[str] = []
    if any(one.exists() for one in (place.child(WORK), place.child(METADATA_WORK), name_beside(place, WORK))):
        warnings.append(f"unfinished: `penstock status {shlex.quote(place.shown)}`")
    format: str | None = None
    try:
        format = sniff(place.store, place.path, to_read=True).name
        if format == "folder" and not _is_small(place):
            return OnShelf(shown, format, warnings=(*warnings, NOT_READ))
        with at_hand_only():
            opened = open_target(place.path, format=format)
            manifest = manifest_of(opened.source)
        size_bytes = manifest.size_bytes if manifest is not None else _size(place, opened)
        samples: Figure = samples_of(opened, size_bytes)
        if size_bytes == 0:
            return OnShelf(shown, format, 0, None, 0, (), (*warnings, "empty"))
        if side_file_of(opened) is None:
            warnings.append(NO_SIDE_FILE)
        tokens = tokens_of(opened, size_bytes).value if opened.is_tokens else None
        return OnShelf(shown, format, samples.value, tokens, size_bytes, splits_of(opened), tuple(warnings))
    except NotAtHand:
        return OnShelf(shown, format, warnings=(*warnings, NOT_READ))
    except (PenstockError, OSError, ImportError) as error:
        why = redact(str(getattr(error, "what", error)))[:300]
        return OnShelf(shown, None, warnings=tuple(warnings) or (why,))


def _may_be_recipe(place: Place) -> bool:
    try:
        return looks_like_recipe(place.store.get(place.path, 0, min(_HEAD_BYTES, place.store.size(place.path))))
    except (PenstockError, OSError):  # its page shows the error
        return True


def _is_small(place: Place) -> bool:
    """Return whether a directory of files is fast to list."""
    return (
        place.is_local and len(list(islice(peek_names(place.store, place.path, MOST_FILES), MOST_FILES))) < MOST_FILES
    )


def _made_by(name: str) -> str | None:
    """Return the name of the output of a staging directory; None for other names."""
    is_work = name.startswith(".") and name.endswith(WORK) and len(name) > len("." + WORK)
    return name[1 : -len(WORK)] if is_work and name != METADATA_WORK else None


def _size(place: Place, opened: Opened) -> int | None:
    """Return the size of a dataset, from its index, or from its files if they are few."""
    if not place.is_folder():
        return place.store.size(place.path)
    told = getattr(stored(opened.source), "size_bytes", None) if opened.text_files is None else None
    if told is not None or not place.is_local:
        return told
    if not _is_small(place):
        return None
    return disk_of(place, opened.format, opened.source, None).size_bytes.value  # as in an overview

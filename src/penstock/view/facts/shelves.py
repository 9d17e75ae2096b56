"""The datasets below a folder: what each is, at the price of a look at its index."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from penstock._secrets import redact
from penstock.check.summary import manifest_of
from penstock.errors import NotFound, PenstockError
from penstock.formats import sniff
from penstock.store.place import Given, Place, place_of
from penstock.view.facts.dataset import Split, samples_of, splits_of, tokens_of
from penstock.view.facts.figures import Figure
from penstock.view.facts.opening import RECIPES, open_target
from penstock.work.folder import name_beside
from penstock.work.shared import INSIDE, OF_METADATA

MOST_DEEP = 4
MOST_NAMES = 2000
"""Names of one folder that are looked at."""

MOST_DATASETS = 200
_PARTS = (".idx", ".penstock", ".jsonl.idx", ".tar.idx", ".exclude.jsonl", ".certificate.json", ".next")
_SUFFIXES = (".pbin", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow", ".bin", ".ds", ".zarr", ".npy", ".tar")
_MARKS = ("index.json", ".nv-meta", "state.json", "dataset_dict.json", ".zgroup", "zarr.json", INSIDE, OF_METADATA)
_WORK = "work"

NO_SIDE_FILE = "no side file"
"""Said of each dataset that has none; what that means is said once for a shelf."""


@dataclass(frozen=True, slots=True)
class OnShelf:
    """A dataset below a folder.

    Attributes:
        path: from the folder.
        format: of it; `"recipe"` for a file that describes a run; None for what can't be opened.
        samples, tokens, size_bytes: None where that is not known at once.
        splits: of it, where its format has splits.
        warnings: what is wrong: it is unfinished, has no side file, can't be opened.
    """

    path: str
    format: str | None
    samples: int | None = None
    tokens: int | None = None
    size_bytes: int | None = None
    splits: tuple[Split, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shelf:
    """The datasets below a folder.

    Attributes:
        name: of the folder, without secrets.
        datasets: in byte order of their paths; at most 200.
        is_cut: whether there may be more: too many, too deep, or too many names in a folder.
    """

    name: str
    datasets: tuple[OnShelf, ...]
    is_cut: bool


def shelf(folder: Given) -> Shelf:
    """The datasets below a folder, at most four folders deep; links are not followed.

    Raises:
        NotFound: no such folder.
    """
    root = place_of(folder)
    if not root.is_folder():
        raise NotFound("no such folder", path=root.path, hint="Check the path")
    found: list[OnShelf] = []
    walk = _Walk()
    for place, path in walk.below(root, "", MOST_DEEP):
        if len(found) == MOST_DATASETS:
            walk.is_cut = True
            break
        found.append(_described(place, path))
    return Shelf(root.shown, tuple(sorted(found, key=lambda one: os.fsencode(one.path))), walk.is_cut)


class _Walk:
    def __init__(self) -> None:
        self.is_cut = False

    def below(self, folder: Place, above: str, deep: int) -> Iterator[tuple[Place, str]]:
        """Places of datasets, and their paths."""
        there = set(folder.names())
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
                yield child, below  # only the work on it is there
            elif not child.is_folder():
                if name.endswith((*_SUFFIXES, *RECIPES)):
                    yield child, below
            elif any(child.child(mark).exists() for mark in _MARKS):
                yield child, below
            elif deep > 1:
                yield from self.below(child, f"{below}/", deep - 1)
            else:
                self.is_cut = True


def _described(place: Place, name: str) -> OnShelf:
    shown = redact(name)
    if place.path.endswith(RECIPES):
        return OnShelf(shown, "recipe")
    warnings: list[str] = []
    if any(one.exists() for one in (place.child(INSIDE), place.child(OF_METADATA), name_beside(place, _WORK))):
        warnings.append(f"unfinished: `penstock status {shlex.quote(place.shown)}`")
    try:
        format = sniff(place.store, place.path).name
        opened = open_target(place.path, format=format)
        manifest = manifest_of(opened.source)
        size_bytes = manifest.size_bytes if manifest is not None else _size(place)
        samples: Figure = samples_of(opened, size_bytes)
        if manifest is None:
            warnings.append(NO_SIDE_FILE)
        tokens = tokens_of(opened, size_bytes).value if opened.is_tokens else None
        return OnShelf(shown, format, samples.value, tokens, size_bytes, splits_of(opened), tuple(warnings))
    except (PenstockError, OSError, ImportError) as error:
        why = redact(str(getattr(error, "what", error)))[:300]
        return OnShelf(shown, None, warnings=tuple(warnings) or (why,))


def _made_by(name: str) -> str | None:
    """The name of the output that a work folder beside it is for; None for any other name."""
    is_work = name.startswith(".") and name.endswith(f".{_WORK}") and len(name) > len(f"..{_WORK}")
    return name[1 : -len(f".{_WORK}")] if is_work and name != OF_METADATA else None


def _size(place: Place) -> int | None:
    return None if place.is_folder() else place.store.size(place.path)

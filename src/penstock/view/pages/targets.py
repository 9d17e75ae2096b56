"""What a server shows: the datasets and runs that it was given, opened when somebody looks at them.

Pages name them by short names of their own, never by a path. A dataset whose files change while it is looked at is
opened again.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.errors import ConfigError, FormatError, NotFound, PenstockError, Unsupported
from penstock.store.place import Place, place_of
from penstock.view.facts.opening import Opened, OpenedRun, is_recipe, open_run, open_target
from penstock.view.facts.shelves import OnShelf, Shelf, shelf
from penstock.view.pages.patience import Patience

Kind = Literal["dataset", "run"]

MOST_OPEN = 32
"""Datasets that are open at once; those that nobody looked at for the longest time are closed."""

_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 48


@dataclass(frozen=True, slots=True)
class Settings:
    """How everything is opened: the options of the command."""

    split: str | None = None
    tokenizer: str | None = None
    trust: bool = False
    follow_links: bool = False
    format: str | None = None
    layout: str | None = None
    eos_id: int | None = None
    excludes: str | None = None

    def of_one(self) -> dict[str, Any]:
        """Those that say how one dataset is to be read, as far as they were given."""
        given = {"format": self.format, "layout": self.layout, "eos_id": self.eos_id, "excludes": self.excludes}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A dataset or a run.

    Attributes:
        name: in paths of pages.
        place: where it is; its path is handed to commands, and shown only without secrets.
        title: what people call it: the last part of its path, or more where it lies on a shelf.
        kind: what it is.
        patience: the threads that work for its pages.
    """

    name: str
    place: Place
    title: str
    kind: Kind
    patience: Patience = field(repr=False)


class Targets:
    """Everything that a server shows.

    Args:
        given: paths and URLs.
        settings: how they are opened.

    Raises:
        NotFound: nothing is at one of them.
        ConfigError: options that say how one dataset is read, and not one dataset.
    """

    def __init__(self, given: tuple[str, ...], settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._targets: dict[str, Target] = {}
        self.shelves: list[Shelf] = []  # the folders of several datasets among what was given
        self._on_shelf: dict[str, OnShelf] = {}
        self._opened: dict[tuple[str, str | None], tuple[Any, object]] = {}
        self._require_one(is_one=len(given) == 1)
        for one in map(place_of, given):
            self._add(one)
        self._require_one(is_one=self.is_one() and next(iter(self)).kind == "dataset")

    def __iter__(self) -> Any:
        return iter(list(self._targets.values()))

    def __len__(self) -> int:
        return len(self._targets)

    def _require_one(self, *, is_one: bool) -> None:
        of_one = self.settings.of_one()
        if of_one and not is_one:
            what = "these say how one dataset is read"
            raise ConfigError(what, found=", ".join(of_one), hint="Give one dataset, or leave them out")

    def described(self) -> Mapping[str, OnShelf]:
        """Name → what a shelf tells of it."""
        return self._on_shelf

    def is_one(self) -> bool:
        """Whether there is one dataset or run, and no shelf."""
        return len(self._targets) == 1 and not self.shelves

    def named(self, name: str) -> Target:
        """The target of a name; raises `NotFound`."""
        found = self._targets.get(name)
        if found is None:
            raise NotFound("no such dataset on this server", found=name[:_MOST_NAME])
        return found

    def dataset(self, target: Target, split: str | None = None) -> Opened:
        """A dataset, open. Raises as `penstock.open`."""
        asked = self.settings.split if split is None else split
        return self._open(target, split, lambda: self._open_dataset(target.place, asked))

    def run(self, target: Target) -> OpenedRun:
        """A run, open. Raises as `penstock.open_recipe`."""
        split: dict[str, Any] = {} if self.settings.split is None else {"split": self.settings.split}
        more: dict[str, Any] = {"trust": self.settings.trust, "follow_links": self.settings.follow_links}
        more["tokenizer"] = self.settings.tokenizer
        return self._open(target, None, lambda: open_run(target.place.path, **split, **more))

    def _open_dataset(self, place: Place, split: str | None) -> Opened:
        how: dict[str, Any] = {
            "trust": self.settings.trust,
            "follow_links": self.settings.follow_links,
            "read": "pread",
            **self.settings.of_one(),
        }
        return open_target(place.path, split=split, tokenizer=self.settings.tokenizer, **how)

    def _open(self, target: Target, split: str | None, opening: Any) -> Any:
        mark = _mark(target.place)
        key = (target.name, split)
        with self._lock:
            known = self._opened.pop(key, None)
            if known is not None and known[1] == mark:
                self._opened[key] = known  # the last one is the one that was looked at last
                return known[0]
        made = opening()
        with self._lock:
            self._opened[key] = (made, mark)
            while len(self._opened) > MOST_OPEN:
                del self._opened[next(iter(self._opened))]
        return made

    def _add(self, place: Place) -> None:
        if is_recipe(place.path) and not place.is_folder():
            if not place.exists():
                raise NotFound("no such file", path=place.path, hint="Check the path")
            self._put(place, place.name, "run")
            return
        if place.is_local and place.is_folder() and not self._is_dataset(place):
            found = shelf(place)
            if found.datasets:
                self._add_shelf(place, found)
                return
        name = self._put(place, place.name or place.shown, "dataset")
        try:
            self.dataset(self._targets[name])
        except (NotFound, Unsupported):
            raise
        except (FormatError, OSError):  # what is damaged, or far away and silent, is told on its page
            pass

    def _add_shelf(self, place: Place, found: Shelf) -> None:
        for one in found.datasets:
            kind: Kind = "run" if one.format == "recipe" else "dataset"
            name = self._put(place.child(one.path), one.path, kind)
            self._on_shelf[name] = one
        self.shelves.append(found)

    def _is_dataset(self, place: Place) -> bool:
        """Whether a folder is one dataset; one that is damaged is one too."""
        try:
            self._open_dataset(place, self.settings.split)
        except (Unsupported, NotFound):
            return False
        except (PenstockError, OSError):
            return True
        return True

    def _put(self, place: Place, title: str, kind: Kind) -> str:
        plain = _NAME.sub("-", title).strip("-.")[:_MOST_NAME] or "data"
        name, number = plain, 1
        while name in self._targets:
            number += 1
            name = f"{plain}-{number}"
        self._targets[name] = Target(name, place, title, kind, Patience(f"penstock-view-{name[:12]}"))
        return name


def _mark(place: Place) -> object:
    """What changes with the files of a dataset on this machine: of a folder, what lies at its top."""
    if not place.is_local:
        return None
    try:
        status = os.stat(place.path)
    except OSError:
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns)

"""Datasets and runs of a server, opened on demand.

Pages use short names chosen by the server, never paths. A dataset is opened again when its files change. Opening that
takes long, because of a large new index or a slow store, runs in the background, and its pages show the progress.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from penstock._keywords import were_given
from penstock.errors import ConfigError, FormatError, NotFound, Unsupported
from penstock.store.derived import NotAtHand, at_hand_only, require_long_work
from penstock.store.place import Place, place_of
from penstock.store.progress import reporting_to
from penstock.view.facts.opening import Opened, OpenedRun, first_files_of, is_recipe, open_run, open_target
from penstock.view.facts.panel import TOKEN_FIELDS
from penstock.view.facts.shelves import OnShelf, Shelf, shelf
from penstock.view.pages.patience import SOON_SECONDS, WAIT_SECONDS, Late, Patience

Kind = Literal["dataset", "run"]

START_SECONDS = 2.0
"""Seconds a server waits for its data before it reports its address."""

MOST_AT_ONCE = 1000
"""Limit on the requests for file sizes while a page waits."""

MOST_OPEN = 32
"""Limit on open datasets; the least recently used ones are closed."""

_GONE, _CHANGED = "no longer there", "changed since the viewer started"
_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 48


@dataclass(frozen=True, slots=True)
class Settings:
    """Options for opening: those of the command."""

    split: str | None = None
    tokenizer: str | None = None
    trust: bool = False
    follow_links: bool = False
    format: str | None = None
    layout: str | None = None
    eos_id: int | None = None
    excludes: str | Literal[False] | None = None
    flavor: str | None = None
    planes: str | None = "auto"
    global_batch: int | None = None
    state: str | None = None

    def of_one(self) -> dict[str, Any]:
        """Return the explicitly set options for a single dataset."""
        given: dict[str, Any] = {"format": self.format, "layout": self.layout, "eos_id": self.eos_id}
        given |= {"excludes": self.excludes, "flavor": self.flavor, "planes": self.planes}
        return were_given(given)


@dataclass(slots=True, eq=False)
class Target:
    """A dataset or a run.

    Attributes:
        place: its location; passed to commands, and shown without secrets.
        title: displayed name: the last part of its path, or more in a catalog.
        kind: dataset or run.
        patience: threads for its pages.
        aside: threads for use while all of these wait for it to be opened.
        has_tokens: whether its samples may be tokens; assumed until it is opened.
    """

    name: str
    place: Place
    title: str
    kind: Kind
    patience: Patience = field(repr=False)
    aside: Patience = field(repr=False)
    has_tokens: bool = True


@dataclass(slots=True)
class _Opening:
    """A dataset that is being opened, with its progress in `told`."""

    patience: Patience
    made: Future[Any] = field(default_factory=Future[Any])
    began: float = field(default_factory=time.monotonic)
    told: dict[str, tuple[int, int | None]] = field(default_factory=dict[str, tuple[int, int | None]])

    def hear(self, what: str, done: int, total: int | None) -> None:
        """Record progress; repeated work doesn't decrease it."""
        self.told[what] = (max(done, self.told.get(what, (0, None))[0]), total)
        if time.monotonic() - self.began > SOON_SECONDS:
            self.patience.is_long = True


class Targets:
    """All datasets and runs of a server.

    Raises:
        NotFound: one of them doesn't exist.
        ConfigError: there are options for a single dataset, but several datasets.
    """

    def __init__(self, given: tuple[str, ...], settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._targets: dict[str, Target] = {}
        self.shelves: list[Shelf] = []  # the directories of several datasets
        self._on_shelf: dict[str, OnShelf] = {}
        self._marks: dict[str, object] = {}
        self._opened: dict[tuple[str, str | None], tuple[Any, object]] = {}
        self._opening: dict[tuple[str, str | None], _Opening] = {}
        self._beginnings: dict[str, Opened | None] = {}
        self._require_one(is_one=len(given) == 1)
        for one in map(place_of, given):
            self._add(one)
        self._require_run()
        self._require_one(is_one=self.is_one() and next(iter(self)).kind == "dataset")

    def __iter__(self) -> Any:
        return iter(list(self._targets.values()))

    def __len__(self) -> int:
        return len(self._targets)

    def _require_one(self, *, is_one: bool) -> None:
        of_one = self.settings.of_one()
        if of_one and not is_one:
            what = "these options only apply to a single dataset"
            raise ConfigError(what, found=", ".join(of_one), hint="Pass one dataset, or omit them")

    def described(self) -> Mapping[str, OnShelf]:
        """Name → catalog entry of a dataset, with its current state."""
        with self._lock:
            return {name: self._now(name, told) for name, told in self._on_shelf.items()}

    def _now(self, name: str, told: OnShelf) -> OnShelf:
        mark = self._marks.get(name)
        if mark is None or (now := _mark(self._targets[name].place)) == mark:
            return told
        if now is None:
            return OnShelf(told.path, told.format, warnings=(_GONE,))
        return replace(told, warnings=(*told.warnings, _CHANGED))

    def is_one(self) -> bool:
        """Whether there is one dataset or run, and no catalog."""
        return len(self._targets) == 1 and not self.shelves

    def named(self, name: str) -> Target:
        """Return the target of a name; raise `NotFound`."""
        found = self._targets.get(name)
        if found is None:
            raise NotFound("unknown dataset", found=name[:_MOST_NAME])
        return found

    def dataset(self, target: Target, split: str | None = None) -> Opened:
        """Return an open dataset. Raises as `penstock.open`, and `Late` while it is being opened."""
        asked = self.settings.split if split is None else split
        opened = self._open(target, split, lambda: self._open_dataset(target.place, asked))
        schema = opened.source.schema
        target.has_tokens = opened.is_tokens or schema.open or any(one.name in TOKEN_FIELDS for one in schema.fields)
        return opened

    def far(self, target: Target, split: str | None) -> dict[str, tuple[int, int | None]] | None:
        """Return activity → (amount, total) of a dataset that is being opened; None if it isn't."""
        with self._lock:
            going = self._opening.get((target.name, split))
            return None if going is None else dict(going.told)

    def beginning(self, target: Target) -> Opened | None:
        """Return the first files of a directory that is being opened, if any."""
        if self.settings.format not in (None, "jsonl-files"):
            return None
        with self._lock:
            if target.name not in self._beginnings and len(self._beginnings) >= MOST_OPEN:
                self._beginnings.clear()
        if target.name not in self._beginnings:
            self._beginnings[target.name] = first_files_of(target.place)
        return self._beginnings[target.name]

    def run(self, target: Target) -> OpenedRun:
        """Return an open run. Raises as `penstock.open_recipe`."""
        split: dict[str, Any] = {} if self.settings.split is None else {"split": self.settings.split}
        more: dict[str, Any] = {"trust": self.settings.trust, "follow_links": self.settings.follow_links}
        more["tokenizer"] = self.settings.tokenizer
        more |= {"global_batch": self.settings.global_batch, "state": self.settings.state}
        return self._open(target, None, lambda: open_run(target.place.path, **split, **more))

    def _open_dataset(self, place: Place, split: str | None) -> Opened:
        how: dict[str, Any] = {
            "trust": self.settings.trust,
            "follow_links": self.settings.follow_links,
            "read": "pread",
            **self.settings.of_one(),
        }
        opened = open_target(place.path, split=split, tokenizer=self.settings.tokenizer, **how)
        if opened.text_files is not None and len(opened.text_files[1]) > MOST_AT_ONCE:
            require_long_work(opened.name)
            _ = opened.text_stops  # computed while progress is shown, so that no page waits for it later
        return opened

    def _open(self, target: Target, split: str | None, opening: Any) -> Any:
        mark = _mark(target.place)
        key = (target.name, split)
        with self._lock:
            known = self._opened.pop(key, None)
            if known is not None and known[1] == mark:
                self._opened[key] = known  # moved to the end: most recently used
                return known[0]
            going = self._opening.get(key)
            own = self._opening.setdefault(key, _Opening(target.patience))
        if going is not None:
            try:
                return going.made.result(SOON_SECONDS if target.patience.is_long else WAIT_SECONDS)
            except NotAtHand:
                raise Late from None
            except TimeoutError:
                if not going.made.done():
                    raise Late from None
                return going.made.result()  # opened just now; or a store's own error
        try:
            with reporting_to(own.hear):
                made = opening()
        except BaseException as error:
            own.made.set_exception(error)
            raise
        else:
            with self._lock:
                self._opened[key] = (made, mark)
                while len(self._opened) > MOST_OPEN:
                    del self._opened[next(iter(self._opened))]
            own.made.set_result(made)
            return made
        finally:
            with self._lock:
                del self._opening[key]
                target.patience.is_long = False

    def _require_run(self) -> None:
        """Raise `ConfigError` for options of runs without a recipe."""
        given = were_given({"--global-batch": self.settings.global_batch, "--state": self.settings.state})
        if given and all(one.kind != "run" for one in self):
            raise ConfigError("there is no recipe to apply this to", found=", ".join(given), hint="Leave it out")

    def _add(self, place: Place) -> None:
        if is_recipe(place.path) and not place.is_folder():
            if not place.exists():
                raise NotFound("no such file", path=place.path, hint="Check the path")
            self._put(place, place.name, "run")
            return
        name = self._put(place, place.name or place.shown, "dataset")
        error = self._begun(name)
        if name not in self._targets:
            return  # it is a catalog
        if isinstance(error, NotFound | Unsupported) or not isinstance(error, FormatError | OSError | None):
            raise error  # errors of damaged or slow remote data are shown on their pages

    def _turn_to_shelf(self, target: Target, *, must_open: bool = False, itself: OnShelf | None = None) -> bool:
        """Treat a directory as a catalog if it contains datasets; `must_open`: at least one of a known format.

        `itself`: entry of the directory itself in the catalog.
        """
        place = target.place
        if not place.is_folder():
            return False
        try:
            found = shelf(place)
        except (Unsupported, NotFound):  # a web server has no listing
            return False
        known = [one for one in found.datasets if one.format not in (None, "recipe", "folder")]
        if not (known if must_open else found.datasets):
            return False
        with self._lock:
            if itself is None:
                del self._targets[target.name]
            else:
                self._on_shelf[target.name] = itself
            self._add_shelf(place, found)
        return True

    def _begun(self, name: str) -> BaseException | None:
        """Start opening a dataset and return its error; None if it is open, or takes long and continues."""
        target = self._targets[name]
        is_known = threading.Event()

        def ask() -> object:
            try:
                with at_hand_only():
                    return self._open(target, None, opening)
            except NotAtHand:
                target.patience.is_long = True
                is_known.set()
                return self._open(target, None, opening)

        def opening() -> Opened:
            try:
                found = self._open_dataset(target.place, self.settings.split)
            except (Unsupported, NotFound):  # a waiting page sees this, and then the catalog
                self._turn_to_shelf(target)
                raise
            except ConfigError:  # directories that look like splits of one dataset, without the usual one
                if self.settings.split is None:
                    self._turn_to_shelf(target, must_open=True)
                raise
            if found.format == "folder" and self.settings.format is None:  # any directory with a picture in it
                itself = OnShelf(target.title, found.format)
                self._turn_to_shelf(target, must_open=True, itself=itself)
            return found

        made = target.patience.begin(("open", None), ask)
        made.add_done_callback(lambda _: is_known.set())
        if not is_known.wait(START_SECONDS):
            with self._lock:
                target.patience.is_long = (name, None) in self._opening
        return made.exception() if made.done() else None

    def _add_shelf(self, place: Place, found: Shelf) -> None:
        for one in found.datasets:
            kind: Kind = "run" if one.format == "recipe" else "dataset"
            name = self._put(place.child(one.path), one.path, kind)
            self._on_shelf[name] = one
            self._marks[name] = _mark(place.child(one.path))
        self.shelves.append(found)

    def _put(self, place: Place, title: str, kind: Kind) -> str:
        plain = _NAME.sub("-", title).strip("-.")[:_MOST_NAME] or "data"
        name, number = plain, 1
        while name in self._targets:
            number += 1
            name = f"{plain}-{number}"
        pages, aside = (Patience(f"penstock-view-{name[:12]}{more}") for more in ("", "-aside"))
        self._targets[name] = Target(name, place, title, kind, pages, aside)
        return name


def _mark(place: Place) -> object:
    """Return a value that changes with the local files of a dataset: for a directory, its top-level entries."""
    if not place.is_local:
        return None
    try:
        status = os.stat(place.path)
    except OSError:
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns)

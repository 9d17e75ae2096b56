"""The output of a conversion: what is there of it, how it becomes visible, and what goes when it is right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock._planes import planes_of
from penstock.abc import Writer
from penstock.convert.rows import Dataset
from penstock.errors import NotFound
from penstock.formats import files_at, finish_planes, get_format
from penstock.formats._planed_writer import create_planed
from penstock.store.outputs import claimed, sweep_killed
from penstock.store.place import Place
from penstock.store.unfinished import has_mark, remove_mark, set_mark
from penstock.types import Manifest

Advance = Callable[[int, str], None]
"""Called with the number of samples done so far, and a text to show."""


@dataclass(frozen=True, slots=True)
class Written:
    """Dataset that was written.

    Attributes:
        digest: digest of the documents or rows, from before they were written; None if it is unknown yet.
        manifest: content of the side file; None if an earlier run published the output.
        samples: number of rows; None for documents.
        groups: number of groups; None if one writer wrote everything.
        reused: number of groups finished by an earlier run.
        missing: parts of the job that aren't done.
        was_complete: an earlier run had finished the output.
    """

    digest: str | None
    manifest: Manifest | None
    samples: int | None = None
    groups: int | None = None
    reused: int = 0
    missing: tuple[int, ...] = ()
    was_complete: bool = False


@dataclass(frozen=True, slots=True)
class ReadBack:
    """An output that was found right.

    Attributes:
        samples: documents, lines or samples in it.
        digest: of them, the same as that of the source.
        size_bytes: of its data.
        tokens: in it; None for other data.
        token_bytes: width of its ids.
        parts: names of the fields of its samples.
    """

    samples: int
    digest: str | None
    size_bytes: int
    tokens: int | None = None
    token_bytes: int | None = None
    parts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Output:
    """What a conversion makes.

    Attributes:
        dataset: where it will be, its format, and the options for reading it back.
        options: of its writer.
        overwrite: replace what is there.
        what: all that decides its bytes, as plain JSON; None where that can't be known again.
        split: the part of it that is written alone: others may be written at the same time.
        planes: name → dtype of the planes that its documents have.
    """

    dataset: Dataset
    options: Mapping[str, Any]
    overwrite: bool
    what: dict[str, Any] | None
    split: str | None = None
    planes: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def place(self) -> Place:
        """Where it will be."""
        return self.dataset.place

    @contextlib.contextmanager
    def held(self) -> Generator[Output]:
        """Hold it from its start to the end; gives it with the store whose writers join in.

        Raises:
            PrepareError: another run writes it.
        """
        part = self.place.beside(f".{self.split}") if self.split else self.place
        with claimed(part.store, part.path) as store:
            yield replace(self, dataset=replace(self.dataset, place=replace(self.place, store=store)))

    def is_made(self) -> bool:
        """Whether a run of the same work had made it visible when it was killed; sweeps what else that run left."""
        replaces = self.overwrite and not self.planes  # what has planes came in the place of what has none
        if replaces or self.what is None or not has_mark(self.place.store, self.place.path, self.what):
            return False
        try:
            source = self.dataset.open()
        except NotFound:
            return False
        if self.overwrite and not planes_of(source):
            return False
        finish_planes(self.dataset.format, self.place.store, self.place.path)
        sweep_killed(self.place.store, files_at(self.dataset.format, self.place.path))
        return True

    def create(self) -> Writer:
        """The one writer of it."""
        chosen = get_format(self.dataset.format)
        if self.planes:
            finish_planes(chosen.name, self.place.store, self.place.path)
            args = (self.place.store, self.place.path, self.options, self.planes)
            return create_planed(chosen, *args, overwrite=self.overwrite)
        return chosen.create(self.place.store, self.place.path, self.options, overwrite=self.overwrite)

    def publish(self, commit: Callable[[], Manifest]) -> Manifest:
        """Make it visible, with a mark beside it until `finish`."""
        if self.what is None:
            return commit()
        set_mark(self.place.store, self.place.path, self.what)
        try:
            return commit()
        except BaseException:
            remove_mark(self.place.store, self.place.path)
            raise

    def finish(self) -> None:
        """It is there and was found right."""
        if self.place.is_local or self.what is not None:
            remove_mark(self.place.store, self.place.path)

"""Jobs whose outputs are datasets: complete ones are recognised, and several are committed one by one."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock._digest import digest
from penstock.engine.folder import WorkFolder, work_beside
from penstock.engine.options import Counter, RunOptions
from penstock.engine.parts import PartName
from penstock.engine.run import Job, end_made, sweep_made
from penstock.engine.work import Work, work_folder
from penstock.errors import ConfigError
from penstock.formats._last_files import last_file
from penstock.reshape.outputs import Output, Written, once_parts
from penstock.reshape.sidecars import Sidecars
from penstock.store.derived import upload_folder
from penstock.store.local import Kept, LocalStore
from penstock.store.object_folder import take_back
from penstock.store.place import Place
from penstock.store.unfinished import Once, remove_mark
from penstock.types import Manifest

TASK_BYTES = 1 << 26
"""A task reads about this much."""


def sweep_unfinished(output: Place) -> None:
    """Remove the pieces of a killed run of version 0.2, unless another run uses them.

    Raises `ConfigError` if a distributed job is unfinished, which an inline run can't continue.
    """
    if work_folder(output.bare(), inside=False).is_there():
        raise ConfigError(
            "a distributed job for this output is unfinished",
            path=output.path,
            hint="Finish it with the command that started it, or discard it: --finish --no-work --restart",
        )
    folder = _pieces(output)
    if folder.is_there():
        with folder.tried() as had:
            if had:
                folder.clear()
                folder.drop()


def _pieces(output: Place) -> WorkFolder:
    if output.is_local:
        return work_beside(output.bare(), "pieces", _is_piece)
    place = Place(LocalStore(), upload_folder()).child(f".{digest(output.path)}.pieces")
    return WorkFolder(LocalStore(), place.path, _is_piece)


def _is_piece(name: str) -> bool:
    return name.endswith(".piece")


def goes_on(along: Sidecars, part: Once[Manifest], overwrite: bool) -> bool:
    """Return whether to replace one of several outputs, which an earlier run of the same job may have made."""
    own = part.published(None) is not None
    last = last_file(along.format, part.store, part.path)
    if own and last is not None and not part.store.stages_folders:
        take_back(part.store, last)  # it can't be replaced in one step there
        return overwrite
    return overwrite or own


@contextlib.contextmanager
def holding(kept: Kept) -> Generator[None]:
    """Leave staged files for the next run of the same command if the block, inside their writers, is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        kept.hold = True
        raise


@dataclass(frozen=True, kw_only=True)
class DatasetJob(Job[tuple[Written, ...]]):
    """A command that makes one or more datasets.

    Attributes:
        output: the dataset; if there are several, the common name next to them.
        outputs: the datasets.
        options: how to run it.
        counter: counts finished samples.
        announced: called before the first task that isn't done.
    """

    output: Place
    outputs: Sequence[Output]
    options: RunOptions
    counter: Counter
    announced: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if self.options.restart and self.options.is_inline:
            raise ConfigError("restart (--restart) only applies to distributed jobs", hint="Add finish (--finish)")

    @property
    @abstractmethod
    def num_excluded(self) -> int: ...

    @abstractmethod
    def once(self, output: Output) -> Once[Manifest]:
        """Return the work that makes an output, by which a run that was killed is known again."""

    @abstractmethod
    def published(self, output: Output) -> Manifest | None:
        """Return the side file of an output if it exists and is exactly this job's."""

    @abstractmethod
    def require_free_place(self, output: Output) -> None:
        """Raise `ConfigError` if something exists in the place of an output."""

    @abstractmethod
    def count_parts(self, group: int, names: Sequence[PartName]) -> Written:
        """Return a report on the given parts of an output."""

    def parts_done(self, work: Work) -> list[PartName]:
        return [name for task, names in work.listed().items() if self.options.takes(task) for name in names]

    def settle(self, output: Output, made: Manifest) -> None:
        """Complete the row map, exclude list and planes of an output that a killed run made visible."""

    def continued(self, output: Output, kept: Kept) -> Output:
        """Return an output in a store that continues the staged files of a killed run."""
        place = output.place
        if not isinstance(place.store, LocalStore):
            return output
        return replace(output, place=Place(place.store.keeping(kept), place.path))

    def announce(self) -> None:
        if self.announced is not None:
            self.announced()

    def first_files(self) -> list[Place]:
        return [Place(output.place.store, self.once(output).files[0]) for output in self.outputs]

    def finished(self) -> tuple[Written, ...] | None:
        made = [one for one in map(self.published, self.outputs) if one is not None]
        if len(made) < len(self.outputs):
            return None
        for output, one in zip(self.outputs, made, strict=True):
            self._sweep(output, one)
        remove_mark(self.output.store, self.output.path)
        self.discard_work()
        found = (
            Written.of(output.place, one, self.num_excluded) for output, one in zip(self.outputs, made, strict=True)
        )
        return tuple(replace(one, was_complete=True, part=self.options.part) for one in found)

    def end_killed_commit(self, work: Work) -> None:
        for output in self.outputs:
            made = self.published(output)
            if made is not None:
                end_made(output.place, made.format, self.plan().digest())

    def require_free(self) -> None:
        may_be_ours = self.options.is_distributed or self.folder.is_there()
        for output in self.outputs:
            if not self.options.overwrite and not (may_be_ours and self.published(output) is not None):
                self.require_free_place(output)

    def commit(self, work: Work, wave: Any) -> tuple[Written, ...]:
        parts = [self.once(output) for output in self.outputs]

        def commit_one(group: int) -> Manifest:
            output = self.outputs[group]
            made = None if self.options.overwrite else self.published(output)
            if made is None:
                return wave.commit(group, parts[group])
            self._sweep(output, made)
            return made

        if len(parts) == 1:
            made = (commit_one(0),)
        else:
            once = once_parts(self.output, {"plan": self.plan().digest()}, parts)
            made = once.commit(lambda: tuple(map(commit_one, range(len(parts)))), goes_on=True)
        pairs = zip(self.outputs, made, strict=True)
        return tuple(Written.of(output.place, one, self.num_excluded) for output, one in pairs)

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> tuple[Written, ...]:
        mine = self.parts_done(work)
        found = (self.count_parts(at, [one for one in mine if one.piece == at]) for at in range(len(self.outputs)))
        return tuple(replace(one, part=self.options.part, missing=missing) for one in found)

    def _sweep(self, output: Output, made: Manifest) -> None:
        """Remove temporary files of a killed run next to an output that it made visible."""
        sweep_made(output.place, made.format)
        remove_mark(output.place.store, output.place.path)
        self.settle(output, made)

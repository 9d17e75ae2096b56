"""Jobs whose outputs are datasets: complete ones are recognised, and several are committed one by one."""

from __future__ import annotations

import contextlib
import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock._digest import digest
from penstock.abc import Writer
from penstock.engine.folder import WorkFolder, work_beside
from penstock.engine.options import Counter, RunOptions
from penstock.engine.parts import PartName
from penstock.engine.plan import inputs_digest
from penstock.engine.run import Job, end_made, sweep_made
from penstock.engine.work import Work, work_folder
from penstock.errors import ConfigError
from penstock.formats import finish_replacement
from penstock.formats._folders import last_file
from penstock.reshape.outputs import Output, RowlessWriter, Written, once_parts, require_fitting_suffix
from penstock.reshape.sidecars import RowNumbers, Sidecars, all_rows
from penstock.store.derived import upload_folder
from penstock.store.local import Kept, LocalStore
from penstock.store.names import PIECES, hidden_name
from penstock.store.object_folder import take_back
from penstock.store.place import Place
from penstock.store.unfinished import INPUTS, Once, remove_mark
from penstock.types import IntArray, Manifest

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
        return work_beside(output.bare(), PIECES, _is_piece)
    place = Place(LocalStore(), upload_folder()).child(hidden_name(digest(output.path), PIECES))
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


def _each(found: Sequence[range | IntArray]) -> Iterator[IntArray]:
    for one in found:
        if isinstance(one, range):
            yield from all_rows(one.start, one.stop)
        else:
            yield one


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
        for output in self.outputs:
            if output.to is None:
                require_fitting_suffix(output.place, self.along(output).format)

    @property
    @abstractmethod
    def num_excluded(self) -> int: ...

    @abstractmethod
    def once(self, output: Output) -> Once[Manifest]:
        """Return the work that makes an output, by which a run that was killed is known again."""

    @abstractmethod
    def published_output(self, output: Output) -> Manifest | None:
        """Return the side file of an output if it exists and is exactly this job's."""

    @abstractmethod
    def require_free_place(self, output: Output) -> None:
        """Raise `ConfigError` if something exists in the place of an output."""

    @abstractmethod
    def count_parts(self, group: int, names: Sequence[PartName]) -> Written:
        """Return a report on the given parts of an output."""

    def parts_done(self, work: Work) -> list[PartName]:
        return [name for task, names in work.listed().items() if self.options.takes(task) for name in names]

    def settle_output(self, output: Output, made: Manifest) -> None:
        """Complete the row map, exclude list and planes of an output that a killed run made visible."""

    # --- in this process

    @property
    def what_of_all(self) -> dict[str, Any]:
        """Everything that determines several outputs, as plain JSON."""
        return {}

    @abstractmethod
    def along(self, output: Output, rows: RowNumbers | None = None) -> Sidecars:
        """Return the row map, exclude list and planes of an output. `rows` gives row numbers once it is written."""

    @abstractmethod
    def open_writer(self, output: Output, *, overwrite: bool) -> Writer: ...

    @abstractmethod
    def fill(self, writers: Sequence[Writer], numbers: Sequence[list[range | IntArray]]) -> None:
        """Write all rows, and note the number of each row in all sources if something goes along."""

    def write(self) -> tuple[Written, ...]:
        numbers: list[list[range | IntArray]] = [[] for _ in self.outputs]
        along = [
            self.along(one, functools.partial(_each, some)) for one, some in zip(self.outputs, numbers, strict=True)
        ]
        for one in along:
            one.require_possible()
        sweep_unfinished(self.output)
        known, state = self._marked()
        several, overwrites = len(known) > 1, self.options.overwrite
        once: Once[Any] = once_parts(self.output, self.what_of_all | state, known) if several else known[0]
        there = [self.published_output(output) if once.is_current() else None for output in self.outputs]
        if overwrites:
            there = [
                made if made is not None and one.is_of(made) else None for one, made in zip(along, there, strict=True)
            ]
        manifests = None
        if all(there) and (along[0].has_list or along[0].has_planes or not overwrites):
            for one, made in zip(along, there, strict=True):
                one.stands()
                if overwrites:
                    finish_replacement(one.format, one.place.store, one.place.path)
                if made is not None:
                    one.settled(made)
            manifests = once.made()
        if manifests is None:
            for one, made in zip(along, there, strict=True):
                _ = one.stands() if made is None else one.waits_again()
            if overwrites or not several or along[0].has_list or along[0].has_planes:
                there = [None] * len(known)  # data is written again
            replaces = [overwrites] * len(known)
            if several and once.is_begun():
                replaces = [
                    made is None and goes_on(one, part, overwrites)
                    for one, part, made in zip(along, known, there, strict=True)
                ]
            for output, made in zip(self.outputs, there, strict=True):
                if made is not None:
                    sweep_made(output.place, made.format)  # the run may have been killed right after its commit
            manifests = self._write(once, known, along, numbers, replaces, there)
        pairs = zip(self.outputs, manifests if several else (manifests,), strict=True)
        return tuple(Written.of(output.place, made, self.num_excluded) for output, made in pairs)

    def _write(
        self,
        once: Once[Any],
        known: Sequence[Once[Manifest]],
        along: Sequence[Sidecars],
        numbers: list[list[range | IntArray]],
        replaces: Sequence[bool],
        there: Sequence[Manifest | None],
    ) -> Any:
        kept = Kept()
        with contextlib.ExitStack() as stack:
            # All writers begin first: an output that exists is refused before anything is written.
            writers = [
                RowlessWriter(lambda made=made: made)
                if made is not None
                else stack.enter_context(self.open_writer(self.continued(output, kept), overwrite=one))
                for output, one, made in zip(self.outputs, replaces, there, strict=True)
            ]
            try:
                self.announce()
                self.fill(writers, numbers)
            except KeyboardInterrupt:
                kept.hold = True  # staged files stay for the next run of the same command
                raise
            if len(writers) == 1:
                return along[0].commit(once, writers[0].commit)
            for one, part in zip(along, known, strict=True):
                stack.enter_context(one.written(part.published))
            pairs = list(zip(along, writers, strict=True))
            return once.commit(lambda: tuple(one.settled(writer.commit()) for one, writer in pairs), goes_on=True)

    def continued(self, output: Output, kept: Kept) -> Output:
        """Return an output in a store that continues the staged files of a killed run."""
        place = output.place
        return replace(output, place=Place(place.store.keeping(kept), place.path))

    def announce(self) -> None:
        if self.announced is not None:
            self.announced()

    def first_files(self) -> list[Place]:
        return [Place(output.place.store, self.once(output).files[0]) for output in self.outputs]

    def published(self) -> Sequence[Manifest] | None:
        made = [one for one in map(self.published_output, self.outputs) if one is not None]
        return made if len(made) == len(self.outputs) else None

    def settle(self, made: Sequence[Manifest]) -> None:
        for output, one in zip(self.outputs, made, strict=True):
            self._sweep(output, one)
        remove_mark(self.output.store, self.output.path)

    def report_complete(self, made: Sequence[Manifest]) -> tuple[Written, ...]:
        found = (
            Written.of(output.place, one, self.num_excluded) for output, one in zip(self.outputs, made, strict=True)
        )
        return tuple(replace(one, was_complete=True, part=self.options.part) for one in found)

    def end_killed_commit(self, work: Work) -> None:
        for output in self.outputs:
            made = self.published_output(output)
            if made is not None:
                end_made(output.place, made.format, self.plan().digest())

    def _marked(self) -> tuple[list[Once[Manifest]], dict[str, Any]]:
        """Return how each output is recognised after a kill, and the state of the inputs, which is part of it."""
        state = {INPUTS: inputs_digest(self.reads)}
        made = map(self.once, self.outputs)
        return [replace(one, what=one.what | state) for one in made], state

    def require_free(self) -> None:
        may_be_ours = self.options.is_distributed or self.folder.is_there()
        for output in self.outputs:
            if not self.options.overwrite and not (may_be_ours and self.published_output(output) is not None):
                self.require_free_place(output)

    def commit(self, work: Work, wave: Any) -> tuple[Written, ...]:
        parts, _ = self._marked()

        def commit_one(group: int) -> Manifest:
            output = self.outputs[group]
            made = None if self.options.overwrite else self.published_output(output)
            if made is None:
                return self.commit_output(work, wave, group, parts[group])
            self._sweep(output, made)
            return made

        if len(parts) == 1:
            made = (commit_one(0),)
        else:
            once = once_parts(self.output, {"plan": self.plan().digest()}, parts)
            made = once.commit(lambda: tuple(map(commit_one, range(len(parts)))), goes_on=True)
        pairs = zip(self.outputs, made, strict=True)
        return tuple(Written.of(output.place, one, self.num_excluded) for output, one in pairs)

    @abstractmethod
    def commit_output(self, work: Work, wave: Any, number: int, once: Once[Manifest]) -> Manifest:
        """Make one of the outputs visible."""

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> tuple[Written, ...]:
        mine = self.parts_done(work)
        found = (self.count_parts(at, [one for one in mine if one.piece == at]) for at in range(len(self.outputs)))
        return tuple(replace(one, part=self.options.part, missing=missing) for one in found)

    def _sweep(self, output: Output, made: Manifest) -> None:
        """Remove temporary files of a killed run next to an output that it made visible."""
        sweep_made(output.place, made.format)
        remove_mark(output.place.store, output.place.path)
        self.settle_output(output, made)

"""The verbs as shared work: workers of many machines make parts of the output, which then become it.

The plan is what decides the output. A task gives a part for each output; when all parts are there, a second wave of
tasks does what depends on them: digests of blocks, shards, tars. Then one process gives all of that to the writers that
always write these formats: what they put out is, byte for byte, what one process writes that does it all.

`share_rows` says what of it the verbs do on rows, `share_copies` on whole shards, `share_tars` on tars.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from penstock.abc import Executor
from penstock.codec.hashes import BLOCK_BYTES
from penstock.engine.ended import end_made, sweep_made
from penstock.engine.folder import WorkFolder
from penstock.engine.parts import PartName
from penstock.engine.plan import Plan
from penstock.engine.shared import HEAD_NAME, SharedWork, is_complete, open_shared, work_folder
from penstock.engine.sharing import Sharing, join, kept_or_not, plain_errors, wait_for_another
from penstock.errors import ConfigError, PenstockError, PrepareError
from penstock.executors import make_executor
from penstock.reshape.once import once_parts
from penstock.reshape.pieces import Workers
from penstock.reshape.rewrite import Counter, Output, Written
from penstock.store.place import Place
from penstock.store.unfinished import Once, remove_mark
from penstock.types import Manifest

_PRELOAD = ("penstock.reshape.share_tasks", "penstock.reshape.share_shards")


@dataclass(frozen=True, slots=True)
class How:
    """How a verb is asked for.

    Attributes:
        sharing: what this run does of the work.
        workers: who works.
        counter: told of rows.
        announce: called before the first task is done.
    """

    sharing: Sharing
    workers: Workers
    counter: Counter
    announce: Callable[[], None] | None = None

    @property
    def by_parts(self) -> bool:
        """Whether others are at work too: of an array, or workers of this run."""
        return self.sharing.joins or not self.workers.are_alone


class Task(Protocol):
    """What a worker does in the first wave, as it is known before."""

    @property
    def num_samples(self) -> int:
        """Samples that it reads."""
        ...


class Wave(Protocol):
    """What is done when all parts are there: tasks that have a `number`."""

    tasks: list[Any]
    fn: Callable[[Any], object]

    def done(self) -> Mapping[int, object]:
        """What is done, by number."""
        ...

    def commit(self, group: int, once: Once[Manifest], /) -> Manifest:
        """Make an output visible."""
        ...


class Asked(Protocol):
    """A verb that is asked for as shared work."""

    @property
    def beside(self) -> Place:
        """What the work is for: the output, or where split puts its parts."""
        ...

    @property
    def outputs(self) -> Sequence[Output]:
        """What is made."""
        ...

    @property
    def how(self) -> How:
        """How it is asked for."""
        ...

    @property
    def reads(self) -> Sequence[Place]:
        """What workers open."""
        ...

    @property
    def tasks(self) -> Sequence[Task]:
        """The first wave, in order."""
        ...

    @property
    def excluded(self) -> int:
        """Samples that exclude lists leave out."""
        ...

    def plan(self) -> Plan:
        """All that decides the outputs; raises `ConfigError` or `Unsupported` for what one process refuses too."""
        ...

    def once(self, output: Output, /) -> Once[Manifest]:
        """The work that makes an output, to be known again."""
        ...

    def published(self, output: Output, /) -> Manifest | None:
        """The side file of an output that is there, and is what was asked for."""
        ...

    def settle(self, group: int, made: Manifest, /) -> None:
        """End what a killed run had left to do for what goes along with an output that is there."""
        ...

    def require_free(self, output: Output, /) -> None:
        """That nothing stands in its place; raises `ConfigError`."""
        ...

    def require_beginning(self, *, left: bool) -> None:
        """That nothing lies where files of new work would go; `left`: but what was thrown away."""
        ...

    def sent(self, number: int, task: Any, /) -> Any:
        """What a worker is given of a task."""
        ...

    def part_fn(self, work: SharedWork, /) -> Callable[[Any], object]:
        """What does a task, as it is sent, and puts its parts."""
        ...

    def wave(self, work: SharedWork, /) -> Wave:
        """The second wave."""
        ...

    def told(self, work: SharedWork, group: int, names: Sequence[PartName], /) -> Written:
        """What there is to say of these parts of an output."""
        ...


def share(asked: Asked) -> tuple[Written, ...]:
    """Do what is asked for of the work: a share, the end, or by workers of this run alone all of it.

    Raises:
        ConfigError: an output that exists, or what one process refuses too; or unfinished work that was asked for
            otherwise.
        PrepareError: a share is missing, or another run writes the output.
    """
    folder, plan, sharing = work_folder(asked.beside, inside=False), asked.plan(), asked.how.sharing
    done = _complete(asked, folder, plan)
    while done is None:
        try:
            _require_free(asked, folder)
            with plain_errors(asked.beside, folder):
                return _run(asked, folder, plan)
        except (PenstockError, OSError) as error:
            # Another finisher of the same plan may have been first.
            done = _complete(asked, folder, plan) if sharing.joins else None
            waited = isinstance(error, PrepareError) and any(
                wait_for_another(Place(output.place.store, asked.once(output).files[0]), folder, sharing)
                for output in asked.outputs
            )
            if done is None and not waited:
                raise
            done = done or _complete(asked, folder, plan)
    return done


def is_shared(sharing: Sharing, workers: Workers, *, dry_run: bool = False) -> bool:
    """Whether the work is asked for as shares; raises `ConfigError` for what makes no sense."""
    sharing.require_sense(dry_run=dry_run)
    if sharing.restart and not sharing.joins and workers.are_alone:
        raise ConfigError("restart (--restart) only applies to distributed jobs", hint="Add finish (--finish)")
    return sharing.joins


# --- what is there ---------------------------------------------------------------------------------------------------


def _complete(asked: Asked, folder: WorkFolder, plan: Plan) -> tuple[Written, ...] | None:
    """What there is to say where all outputs are there already; then what is left of the work goes."""
    sharing = asked.how.sharing
    if sharing.restart or not (sharing.joins or (folder.is_there() and not asked.outputs[0].overwrite)):
        return None
    found = [asked.published(output) for output in asked.outputs]
    manifests = [one for one in found if one is not None]
    if len(manifests) < len(found):
        return None
    for group, (output, one) in enumerate(zip(asked.outputs, manifests, strict=True)):
        _sweep(output, one)
        asked.settle(group, one)
    remove_mark(asked.beside.store, asked.beside.path)
    if folder.is_there():
        # others may be at work on their shares still
        with (
            contextlib.suppress(PrepareError),
            open_shared(asked.beside, folder, restart=False, shared=False) as work,
        ):
            if work.head is None or work.head.digest == plan.digest():
                for output, one in zip(asked.outputs, manifests, strict=True):
                    end_made(output.place, one.format, plan.digest())
                work.clear()
    told = (Written.of(output.place, one, asked.excluded) for output, one in zip(asked.outputs, manifests, strict=True))
    return tuple(replace(one, was_complete=True, part=sharing.part) for one in told)


def _sweep(output: Output, made: Manifest) -> None:
    """Remove what a killed run left beside an output that it had made visible."""
    sweep_made(output.place, made.format)
    remove_mark(output.place.store, output.place.path)


def _require_free(asked: Asked, folder: WorkFolder) -> None:
    """That nothing stands in an output's place but what may be replaced, or this work has made."""
    is_ours = asked.how.sharing.joins or folder.is_there()
    for output in asked.outputs:
        if not output.overwrite and not (is_ours and asked.published(output) is not None):
            asked.require_free(output)


# --- one run ---------------------------------------------------------------------------------------------------------


def _run(asked: Asked, folder: WorkFolder, plan: Plan) -> tuple[Written, ...]:
    how, tasks = asked.how, asked.tasks
    sharing = how.sharing
    with contextlib.ExitStack() as stack:
        had = sharing.restart and folder.file(HEAD_NAME).exists()
        work = stack.enter_context(open_shared(asked.beside, folder, restart=sharing.restart, shared=sharing.joins))
        if work.head is None:
            asked.require_beginning(left=had)
        join(work, plan, len(tasks), sharing, asked.reads)
        stack.enter_context(kept_or_not(work, joins=sharing.joins))
        if sharing.no_work and (missing := work.missing()):
            return _told(asked, work, work.shares_of(missing))
        alone = how.workers.are_alone or sharing.no_work
        executor = "inline" if alone else how.workers.executor or "processes"
        most = max(len(tasks), 1 + sum(one.size_bytes for one in plan.inputs) // BLOCK_BYTES)
        known: dict[str, Any] = {"most": most, "reads": asked.reads, "writes": [folder.place]}
        pool = stack.enter_context(make_executor(executor, None if alone else how.workers.workers, _PRELOAD, **known))
        _make_parts(asked, work, pool)
        work.require_unchanged_inputs()
        if sharing.part is not None and work.missing():
            return _told(asked, work)
        wave = asked.wave(work)
        missing = _second(wave, sharing, pool)
        work.require_unchanged_inputs()
        if sharing.part is not None or missing:
            return _told(asked, work, work.shares_of(missing))
        return _commit(asked, work, wave, plan)


def _make_parts(asked: Asked, work: SharedWork, pool: Executor) -> None:
    """Do the tasks that are missing, of a share or of all."""
    how, tasks = asked.how, asked.tasks
    there = {task for task, names in work.listed().items() if is_complete(names)}
    how.counter.add(sum(tasks[task].num_samples for task in there))
    missing = [one for one in enumerate(tasks) if one[0] not in there and how.sharing.takes(one[0])]
    if missing and how.announce is not None:
        how.announce()
    sent = itertools.starmap(asked.sent, missing)
    for (_, task), _ in zip(missing, pool.map(asked.part_fn(work), sent), strict=True):
        how.counter.add(task.num_samples)


def _second(wave: Wave, sharing: Sharing, pool: Executor) -> list[int]:
    """Do what is missing when all parts are there, of a share or of all; the tasks that are missing still."""
    done = wave.done()
    missing = [task for task in wave.tasks if task.number not in done]
    if sharing.no_work:
        return [task.number for task in missing]
    for _ in pool.map(wave.fn, (task for task in missing if sharing.takes(task.number))):
        pass
    return []


def _commit(asked: Asked, work: SharedWork, wave: Wave, plan: Plan) -> tuple[Written, ...]:
    """Make the outputs visible."""
    parts = [asked.once(output) for output in asked.outputs]

    def commit_one(group: int) -> Manifest:
        output = asked.outputs[group]
        made = None if output.overwrite else asked.published(output)
        if made is None:
            return wave.commit(group, parts[group])
        _sweep(output, made)
        asked.settle(group, made)
        return made

    if len(parts) == 1:
        manifests = (commit_one(0),)
    else:
        manifests = once_parts(asked.beside, {"plan": plan.digest()}, parts).commit(
            lambda: tuple(map(commit_one, range(len(parts)))), goes_on=True
        )
    with contextlib.suppress(OSError, PenstockError):
        work.clear()  # the outputs are complete: what can't be removed now is removed by the next run
    pairs = zip(asked.outputs, manifests, strict=True)
    return tuple(Written.of(output.place, one, asked.excluded) for output, one in pairs)


def _told(asked: Asked, work: SharedWork, missing: Sequence[int] = ()) -> tuple[Written, ...]:
    """What there is to say of a share, or of work that is not all there."""
    sharing = asked.how.sharing
    mine = [name for task, names in work.listed().items() if sharing.takes(task) for name in names]
    by_group = (
        asked.told(work, group, [one for one in mine if one.piece == group]) for group in range(len(asked.outputs))
    )
    return tuple(replace(one, part=sharing.part, missing=tuple(missing)) for one in by_group)

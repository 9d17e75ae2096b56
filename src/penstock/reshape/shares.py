"""The verbs as shared work: workers of many machines make parts of the output, which its store then joins.

The plan is what decides the output. A task is a range of rows, and gives a part for each output; where rows lie in a
file of the output's own store as its writer stores them, they need none. When all parts are there, blocks of the output
are digested, by the same workers. Then one process gives all of that to the writers that always write these formats:
what they put out is, byte for byte, what one process writes that does it all.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from penstock._kinds import JoinsRows
from penstock.abc import Executor
from penstock.codec.hashes import BLOCK_BYTES
from penstock.errors import ConfigError, PenstockError, PrepareError, Unsupported
from penstock.executors import make_executor
from penstock.formats import files_at, get_format
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.formats.tokens.joined import JoinedTokens, JoinsTokens
from penstock.reshape.in_place import InPlace
from penstock.reshape.once import once_parts
from penstock.reshape.pieces import PIECE_BYTES, Job, Make, Range, Workers
from penstock.reshape.rewrite import (
    Counter,
    Output,
    Written,
    excluded_in,
    format_for,
    lineage,
    once_of,
    open_writer,
    writer_options,
)
from penstock.reshape.rows import AnyRows, LineRows, RowsAt, TokenRows, total_units
from penstock.reshape.samples import SampleRows
from penstock.reshape.share_shards import (
    ShardJob,
    ShardPlan,
    bare,
    commit_shards,
    groups_there,
    plan_shards,
    write_shards,
)
from penstock.reshape.share_tasks import PartJob, make_parts
from penstock.store.joining import joining
from penstock.store.local import output_exists
from penstock.store.place import Place, distinct_names
from penstock.store.unfinished import Once
from penstock.types import Manifest
from penstock.work.folder import WorkFolder
from penstock.work.groups import is_free_place, require_no_object
from penstock.work.parts import PartName
from penstock.work.plan import Plan, PlannedInput
from penstock.work.shared import HEAD_NAME, SharedWork, is_complete, open_shared, work_folder
from penstock.work.sharing import Sharing, join, plain_errors, wait_for_another
from penstock.work.tokens.blocks import BlockJob, BlockMark, digest_block
from penstock.work.tokens.layout import Layout, marks_in

_PRELOAD = ("penstock.reshape.share_tasks", "penstock.reshape.share_shards")
_ALONE = "Leave --part and --finish (part=, finish=) out: one process then writes it, and --executor reads for it"


@dataclass(frozen=True, slots=True)
class Asked:
    """A verb that is asked for as shared work.

    Attributes:
        beside: what the work is for: the output, or where split puts its parts.
        outputs: what is made.
        sources: what is read, and `at` what workers open.
        made_by: verb and options, for the side files.
        make: what is done with a range.
        laid: all rows of the sources in the order of the output: ranges for workers, and files that need none.
        sharing: what this run does of it.
        workers: who works.
        counter: told of rows.
        digest: gives the document digest, where it is known without a look at tokens.
        announce: called before the first range is done.
    """

    beside: Place
    outputs: Sequence[Output]
    sources: Sequence[AnyRows]
    at: Sequence[RowsAt]
    made_by: Mapping[str, Any]
    make: Make
    laid: Sequence[Range | InPlace]
    sharing: Sharing
    workers: Workers
    counter: Counter
    digest: Callable[[], str] | None = None
    announce: Callable[[], None] | None = None

    @property
    def tasks(self) -> list[Range]:
        """What workers do."""
        return [one for one in self.laid if isinstance(one, Range)]

    @property
    def unit_bytes(self) -> int:
        """Width of the tokens of the outputs; 1 for bytes."""
        return self.outputs[0].token_bytes or self.sources[0].dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """The same; 0 for outputs that hold no tokens."""
        return self.unit_bytes if isinstance(self.sources[0], TokenRows) else 0

    @property
    def holds_samples(self) -> bool:
        """Whether the outputs are folders of shards."""
        return isinstance(self.sources[0], SampleRows)


def refuse_excluded(sources: Sequence[AnyRows]) -> None:
    """That nothing is excluded: a list that changes between two shares would change their rows."""
    if excluded_in(sources):
        what, hint = "a dataset with an exclude list is not shared by processes of an array", "Purge it: penstock purge"
        raise ConfigError(what, path=sources[0].place.path, hint=f"{hint}; or leave --part and --finish out")


def share(asked: Asked) -> tuple[Written, ...]:
    """Do what is asked for of the work: a share, or the end.

    Raises:
        ConfigError: an output that exists, or what one process refuses too; or unfinished work that was asked for
            otherwise.
        Unsupported: an output that can't be made of parts.
        PrepareError: a share is missing, or another run writes the output.
    """
    refuse_excluded(asked.sources)
    for output in asked.outputs:
        _require_shareable(asked, output)
    folder, plan = work_folder(asked.beside, inside=False), _plan(asked)
    done = _complete(asked, folder, plan)
    while done is None:
        try:
            _require_free(asked)
            with plain_errors(asked.beside, folder):
                return _run(asked, folder, plan)
        except (PenstockError, OSError) as error:
            # Another finisher of the same plan may have been first.
            done = _complete(asked, folder, plan)
            waited = isinstance(error, PrepareError) and any(
                wait_for_another(output.place, folder, asked.sharing) for output in asked.outputs
            )
            if done is None and not waited:
                raise
            done = done or _complete(asked, folder, plan)
    return done


def _require_shareable(asked: Asked, output: Output) -> None:
    """Refuse an output that can't be made of parts; raises as `share`."""
    options = writer_options(output, asked.sources, asked.made_by)
    to = get_format(format_for(output, asked.sources))
    if isinstance(asked.sources[0], LineRows):
        return
    if asked.holds_samples:
        if output.overwrite and not output.place.is_local:
            what, hint = "a dataset in this store can't be replaced in one step", "Write it beside it"
            raise ConfigError(what, path=output.place.path, hint=hint)
        return
    if isinstance(to, JoinsTokens):
        head_of(to, options, 0, asked.unit_bytes, output.place)
        return
    hint = f"Name pbin, megatron or JSONL, and convert that; or: {_ALONE}"
    raise Unsupported(f"many workers can't share the writing of {to.name}", path=output.place.path, hint=hint)


def head_of(to: JoinsTokens, options: Mapping[str, Any], num_tokens: int, token_bytes: int, place: Place) -> bytes:
    """What stands before so many tokens; raises `Unsupported` where they are stored in another width."""
    frame = to.join(options, JoinedTokens(list, 0, num_tokens, -1, (), token_bytes), place.path)
    if frame is None:
        raise Unsupported("tokens are stored here in another width than the sources have", path=place.path, hint=_ALONE)
    return frame.head


def is_shared(sharing: Sharing, *, dry_run: bool = False) -> bool:
    """Whether the work is asked for as shares; raises `ConfigError` for what makes no sense."""
    sharing.require_sense()
    if sharing.joins and dry_run:
        raise ConfigError("a dry run is one of all the work", hint="Leave part and finish (--part, --finish) out")
    if sharing.restart and not sharing.joins:
        raise ConfigError("restart (--restart) throws away shared work", hint="Add finish (--finish)")
    return sharing.joins


def refuse_tars(place: Place, sharing: Sharing) -> None:
    """Raise `Unsupported` where tars are to be resharded by shares."""
    if sharing.joins:
        raise Unsupported("many workers can't share the writing of tars", path=place.path, hint=_ALONE)


# --- what is there ---------------------------------------------------------------------------------------------------


def _known(asked: Asked, output: Output) -> Once[Manifest]:
    return once_of(output, asked.sources, asked.made_by)


def _published(asked: Asked, output: Output) -> Manifest | None:
    """The side file of an output that is there, and is what was asked for."""
    known = _known(asked, output).published(None)
    inputs = lineage(asked.sources, asked.made_by)["inputs"]
    return known if known is not None and dict(known.inputs) == inputs else None


def _complete(asked: Asked, folder: WorkFolder, plan: Plan) -> tuple[Written, ...] | None:
    """What there is to say where all outputs are there already; then what is left of the work goes."""
    found = [_published(asked, output) for output in asked.outputs]
    manifests = [one for one in found if one is not None]
    if asked.sharing.restart or len(manifests) < len(found):
        return None
    with contextlib.suppress(PrepareError):  # others may be at work on their shares still
        for output in asked.outputs:
            _known(asked, output).swept(None)
        if folder.is_there():
            with open_shared(asked.beside, folder, restart=False, shared=False) as work:
                if work.head is None or work.head.digest == plan.digest():
                    work.clear()
    told = (Written.of(output.place, one) for output, one in zip(asked.outputs, manifests, strict=True))
    return tuple(replace(one, was_complete=True, part=asked.sharing.part) for one in told)


def _require_free(asked: Asked) -> None:
    """That nothing stands in an output's place but what may be replaced, or this work has made."""
    for output in asked.outputs:
        if output.overwrite or _published(asked, output) is not None:
            continue
        place, to = output.place, format_for(output, asked.sources)
        last = place.child(INDEX_NAME).path if asked.holds_samples else files_at(to, place.path)[-1]
        if not is_free_place(place) if asked.holds_samples else place.store.exists(last):
            raise output_exists(last)


# --- one run ---------------------------------------------------------------------------------------------------------


def _plan(asked: Asked) -> Plan:
    """All that decides the outputs."""
    options = {f"--{name}": value for name, value in asked.made_by.items()}
    options["--to"] = format_for(asked.outputs[0], asked.sources)
    options["--token-bytes"] = asked.unit_bytes
    options["--overwrite"] = asked.outputs[0].overwrite
    options["outputs"] = [output.place.name for output in asked.outputs]
    options |= {f"--{name}": value for name, value in asked.outputs[0].what.items() if f"--{name}" not in options}
    names = distinct_names([rows.place for rows in asked.sources])
    if len(set(names)) < len(names):  # a source may be given twice
        names = [f"{number}: {name}" for number, name in enumerate(names)]
    fingerprints = [str(rows.source.fingerprint) if rows.source is not None else "" for rows in asked.sources]
    sizes = [total_units(rows) * rows.dtype.itemsize for rows in asked.sources]
    inputs = map(PlannedInput, names, sizes, fingerprints)
    return Plan(options, tuple(inputs), PIECE_BYTES, "")


def _run(asked: Asked, folder: WorkFolder, plan: Plan) -> tuple[Written, ...]:
    sharing, tasks = asked.sharing, asked.tasks
    with contextlib.ExitStack() as stack:
        had = sharing.restart and folder.file(HEAD_NAME).exists()
        work = stack.enter_context(open_shared(asked.beside, folder, restart=sharing.restart, shared=True))
        if work.head is None and asked.holds_samples:
            for output in asked.outputs:
                require_no_object(output.place, left=had)
        join(work, plan, len(tasks), sharing)
        if sharing.no_work and (missing := work.missing()):
            return _told(asked, work, work.shares_of(missing))
        alone = asked.workers.are_alone or sharing.no_work
        reads = [rows.place for rows in asked.sources]
        executor = "inline" if alone else asked.workers.executor or "processes"
        most = max(len(tasks), 1 + sum(one.size_bytes for one in plan.inputs) // BLOCK_BYTES)
        known: dict[str, Any] = {"most": most, "reads": reads, "writes": [folder.place]}
        pool = stack.enter_context(make_executor(executor, asked.workers.workers, _PRELOAD, **known))
        run = _Run(asked, work, plan, pool)
        run.make_parts()
        if sharing.part is not None and work.missing():
            return _told(asked, work)
        missing = run.second_wave()
        if sharing.part is not None or missing:
            return _told(asked, work, work.shares_of(missing))
        return run.commit()


def _told(asked: Asked, work: SharedWork, missing: Sequence[int] = ()) -> tuple[Written, ...]:
    """What there is to say of a share, or of work that is not all there."""
    listed, sharing = work.listed(), asked.sharing
    mine = [name for task, names in listed.items() if sharing.takes(task) for name in names]
    told: list[Written] = []
    for group, output in enumerate(asked.outputs):
        names = [name for name in mine if name.piece == group]
        units, rows = sum(name.tokens for name in names), sum(name.documents for name in names)
        tokens, size_bytes = (units if asked.token_bytes else None), units * asked.unit_bytes
        to = format_for(output, asked.sources)
        told.append(Written(output.place.path, to, rows, tokens, size_bytes, sharing.part, tuple(missing)))
    return tuple(told)


@dataclass(slots=True)
class _Run:
    """A run whose plan is there."""

    asked: Asked
    work: SharedWork
    plan: Plan
    pool: Executor
    _wave: _Wave = field(init=False)

    def make_parts(self) -> None:
        """Do the ranges that are missing, of a share or of all."""
        asked, work, tasks = self.asked, self.work, self.asked.tasks
        there = {task for task, names in work.listed().items() if is_complete(names)}
        asked.counter.add(sum(tasks[task].stop - tasks[task].first for task in there))
        missing = [one for one in enumerate(tasks) if one[0] not in there and asked.sharing.takes(one[0])]
        if missing and asked.announce is not None:
            asked.announce()
        job = PartJob(Job(tuple(asked.at), asked.make, asked.unit_bytes), len(asked.outputs), work.parts)
        made = self.pool.map(functools.partial(make_parts, job), iter(missing))
        for (_, task), _ in zip(missing, made, strict=True):
            asked.counter.add(task.stop - task.first)

    def second_wave(self) -> list[int]:
        """Do what is missing when all parts are there, of a share or of all; the tasks that are missing still."""
        wave: _Wave = _Shards(self.asked, self.work) if self.asked.holds_samples else _Blocks(self.asked, self.work)
        self._wave = wave
        done = wave.done()
        missing = [task for task in wave.tasks if task.number not in done]
        if self.asked.sharing.no_work:
            return [task.number for task in missing]
        mine = (task for task in missing if self.asked.sharing.takes(task.number))
        for _ in self.pool.map(wave.fn, mine):
            pass
        return []

    def commit(self) -> tuple[Written, ...]:
        """Make the outputs visible."""
        asked = self.asked
        parts = [_known(asked, output) for output in asked.outputs]
        if len(parts) == 1:
            manifests = (self._commit_one(0, parts[0]),)
        else:
            what = {"plan": self.plan.digest()}
            manifests = once_parts(asked.beside, what, parts).commit(
                lambda: tuple(self._commit_one(group, one) for group, one in enumerate(parts)), goes_on=True
            )
        with contextlib.suppress(OSError, PenstockError):
            self.work.clear()  # the outputs are complete: what can't be removed now is removed by the next run
        return tuple(Written.of(output.place, one) for output, one in zip(asked.outputs, manifests, strict=True))

    def _commit_one(self, group: int, once: Once[Manifest]) -> Manifest:
        output = self.asked.outputs[group]
        made = None if output.overwrite else _published(self.asked, output)
        return self._wave.commit(group, once) if made is None else made


def _laid(asked: Asked, listed: Mapping[int, Sequence[PartName]], group: int) -> Iterator[PartName | InPlace]:
    """What an output holds, in order."""
    task = 0
    for one in asked.laid:
        if isinstance(one, InPlace):
            yield one
        else:
            yield listed[task][group]
            task += 1


class _Wave(Protocol):
    """What is done when all parts are there: tasks that have a `number`."""

    tasks: list[Any]
    fn: Callable[[Any], object]

    def done(self) -> Mapping[int, object]:
        """What is done, by number."""
        ...

    def commit(self, group: int, once: Once[Manifest], /) -> Manifest:
        """Make an output visible."""
        ...


class _Blocks:
    """Outputs of one file, whose blocks are digested; see `work/tokens/layout.py`."""

    def __init__(self, asked: Asked, work: SharedWork) -> None:
        self._asked = asked
        self._marks = work.place.child("files")
        self._layouts: list[Layout] = []
        self.tasks: list[Any] = []
        listed = work.listed()
        for group, output in enumerate(asked.outputs):
            laid, head_of = _laid(asked, listed, group), functools.partial(_head, asked, output)
            first = len(self.tasks)
            layout = Layout.of(laid, work.parts, asked.unit_bytes, asked.token_bytes, first, head_of)
            self._layouts.append(layout)
            self.tasks += layout.blocks()
        job = BlockJob(self._layouts[0].stores, self._marks, asked.token_bytes)
        self.fn: Callable[[Any], object] = functools.partial(digest_block, job)

    def done(self) -> Mapping[int, BlockMark]:
        """What is done, by number."""
        return marks_in(self._marks)

    def commit(self, group: int, once: Once[Manifest]) -> Manifest:
        """Make an output visible, by its writer, which gets all that is known."""
        asked, output = self._asked, self._asked.outputs[group]
        joined = replace(output, place=Place(joining(output.place.store), output.place.path))
        rows = self._layouts[group].joined(self.done(), asked.digest)
        with open_writer(joined, asked.sources, asked.made_by) as writer:
            if not isinstance(writer, JoinsRows):
                raise Unsupported("this format can't be made of parts", path=output.place.path, hint=_ALONE)
            writer.write_joined(rows)
            return once.commit(writer.commit)


class _Shards:
    """Outputs of shards, which are written side by side; see `share_shards`."""

    def __init__(self, asked: Asked, work: SharedWork) -> None:
        self._asked = asked
        outputs = tuple(bare(output.place) for output in asked.outputs)
        options = tuple(writer_options(output, asked.sources, asked.made_by) for output in asked.outputs)
        self._job = ShardJob(format_for(asked.outputs[0], asked.sources), outputs, options, work.place)
        self._plans: list[ShardPlan] = []
        self.tasks: list[Any] = []
        listed = work.listed()
        for group in range(len(outputs)):
            parts = [one for one in _laid(asked, listed, group) if isinstance(one, PartName)]
            self._plans.append(plan_shards(self._job, group, parts, len(self.tasks)))
            self.tasks += self._plans[-1].runs
        self.fn: Callable[[Any], object] = functools.partial(write_shards, self._job)

    def done(self) -> Mapping[int, PartName]:
        """What is done, by number."""
        return groups_there(self._job.marks)

    def commit(self, group: int, once: Once[Manifest]) -> Manifest:
        """Make an output visible."""
        output, done = self._asked.outputs[group], self.done()
        told = (self._job, group, self._plans[group], done, output.place)
        return once.commit(functools.partial(commit_shards, *told, overwrite=output.overwrite))


def _head(asked: Asked, output: Output, rows_bytes: int) -> bytes:
    """What stands before rows of so many bytes."""
    to = get_format(format_for(output, asked.sources))
    if not isinstance(to, JoinsTokens) or not asked.token_bytes:
        return b""
    options = writer_options(output, asked.sources, asked.made_by)
    return head_of(to, options, rows_bytes // asked.token_bytes, asked.token_bytes, output.place)

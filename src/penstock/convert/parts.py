"""Documents of tokens in parts, by many workers: shared work, of which a run of documents is a task.

Where runs end follows from the source alone. A worker leaves the documents of one as a part, in the width of the
target, with digests by which parts are joined. One dataset takes all parts in their order, by its one writer, so its
bytes are those of a conversion that nobody shares. Token files of a folder are made side by side, as `pack` makes them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import xxhash

from penstock._buffers import byte_view
from penstock._kinds import JoinsRows
from penstock.abc import Executor
from penstock.codec.tokens import check_ids, dtype_for
from penstock.convert.documents import runs_of
from penstock.convert.eos import EosRule
from penstock.convert.output import Advance, Written
from penstock.convert.plan import TokenPlan
from penstock.convert.planes import planes_along, settle_again
from penstock.convert.rows import Dataset
from penstock.engine.folder import WorkFolder
from penstock.engine.parts import PartMeta, PartName, encode_end
from penstock.engine.run import open_pool
from penstock.engine.shared import SCRATCH, SharedWork, open_shared, work_folder
from penstock.engine.sharing import join, kept_or_not, plain_errors, wait_for_another
from penstock.engine.tokens.assemble import FileJob, append_range, as_parts
from penstock.engine.tokens.files import TokenFiles, end_killed_commit, held_folder, sweep_killed_tokens
from penstock.engine.tokens.join import PartRange
from penstock.engine.tokens.one import joined_file
from penstock.engine.tokens.runs import DocumentRuns
from penstock.errors import ConfigError, PenstockError, PrepareError, Unsupported
from penstock.formats import files_at
from penstock.formats._manifest import Provenance
from penstock.formats._proof import DocumentsProof
from penstock.formats._token_column import ColumnTokens
from penstock.formats.tokens.folder.files import read_index, read_index_bytes
from penstock.formats.tokens.folder.side import read_manifest
from penstock.store.local import LocalStore, output_exists
from penstock.store.object_folder import require_no_writer
from penstock.store.place import Place
from penstock.store.put import aborting, commit_as
from penstock.types import IntArray, Manifest

_PRELOAD = ("penstock.convert.parts",)


def write_parts(plan: TokenPlan, advance: Advance, verify: Callable[[Written], None]) -> Written:
    """Do this run's share of the work, and make the output visible where it has all of it.

    Args:
        plan: what is written.
        advance: told of documents.
        verify: reads the output back, before the work is thrown away.

    Raises:
        ConfigError: the output exists, or unfinished work was asked for otherwise.
        PrepareError: another run writes it.
        Unsupported: its format takes no parts.
    """
    plan = _plain(plan)
    if not plan.token_bytes:
        hint = "Omit workers and distributed options"
        raise Unsupported(f"the format {plan.to!r} can't be written in parts", path=plan.output.place.path, hint=hint)
    while True:
        made = None if plan.how.restart else _made(plan)
        if made is not None:
            return _known_again(plan, made, verify)
        try:
            return _write(plan, advance, verify)
        except (PenstockError, OSError) as error:
            # Another finisher of the same plan may have been first, and then there is nothing left to do.
            if plan.how.is_distributed and _made(plan) is not None:
                continue
            if not (isinstance(error, PrepareError) and _waited(plan)):
                raise


def _plain(plan: TokenPlan) -> TokenPlan:
    """Without the store that finds again what a writer of one stream had written when it was killed: parts are that."""
    dataset = plan.output.dataset
    if not dataset.place.is_local:
        return plan
    place = replace(dataset.place, store=LocalStore())
    return replace(plan, output=replace(plan.output, dataset=replace(dataset, place=place)))


def _write(plan: TokenPlan, advance: Advance, verify: Callable[[Written], None]) -> Written:
    place, sharing, folder = plan.output.place, plan.how, _folder(plan)
    _require_free(plan)
    held: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if plan.file_tokens:
        held = held_folder(place, overwrite=plan.output.overwrite, shared=sharing.is_distributed)
    opened = open_shared(place, folder, restart=sharing.restart, shared=sharing.is_distributed)
    with plain_errors(place, folder), held, opened as work:
        tasks = cut_documents(plan)
        join(work, plan.shared, len(tasks), sharing, [plan.dataset.place])
        with kept_or_not(work, joins=sharing.is_distributed), _executor(plan, len(tasks)) as pool:
            written = _Pass(plan, work, tasks, advance, pool).run()
            if written.manifest is not None:
                verify(written)
                with contextlib.suppress(OSError, PenstockError):
                    work.clear()  # the output is complete: what can't be removed now is removed by the next run
            return written


# --- what is there ---------------------------------------------------------------------------------------------------


def _folder(plan: TokenPlan) -> WorkFolder:
    return work_folder(plan.output.place, inside=plan.file_tokens is not None)


def _require_free(plan: TokenPlan) -> None:
    """That no dataset is there that is not to be replaced: said before the work, and not when it is done."""
    place = plan.output.place
    if plan.file_tokens or plan.output.overwrite or plan.output.split is not None:
        return  # whoever holds the folder looks; and a split joins what is there
    if not place.is_local and place.is_folder():
        return  # in an object store a killed writer may have left some of it, and goes on
    if any(place.store.exists(path) for path in files_at(plan.output.dataset.format, place.path)[-1:]):
        raise output_exists(place.path)


def _made(plan: TokenPlan) -> Manifest | None:
    """The side file of the output, where that is what was asked for, and somebody may come late for it, or again."""
    if not (plan.how.is_distributed or (_folder(plan).is_there() and not plan.output.overwrite)):
        return None
    place, asked = plan.output.place, plan.output.options
    with contextlib.suppress(PenstockError, OSError):
        if plan.file_tokens:
            index = read_index_bytes(place.store, place.path)
            found = read_manifest(place.store, place.path, index, read_index(place.store, place.path))
        else:
            found = getattr(plan.output.dataset.open(), "manifest", None)
        if not isinstance(found, Manifest) or dict(found.inputs) != asked["inputs"]:
            return None
        known = (found.eos_id, found.tokenizer_digest, dict(found.options))
        return found if known == (asked["eos_id"], asked["tokenizer_digest"], _recorded(plan)) else None
    return None


def _known_again(plan: TokenPlan, made: Manifest, verify: Callable[[Written], None]) -> Written:
    """Say that the output is there; who has it alone reads it back, and sweeps what a killed run left."""
    place, folder = plan.output.place, _folder(plan)
    written = Written(made.digest, made, made.num_samples, was_complete=True)
    sweep_killed_tokens(place, plan.output.dataset.format, is_folder=plan.file_tokens is not None)
    settle_again(plan)
    if not plan.how.is_distributed:
        verify(written)
    if folder.is_there():
        with contextlib.suppress(PrepareError), open_shared(place, folder, restart=False, shared=False) as work:
            if work.head is None or work.head.digest == plan.shared.digest():
                end_killed_commit(work, plan.output.dataset.format, is_folder=plan.file_tokens is not None)
                work.clear()
    return written


def _waited(plan: TokenPlan) -> bool:
    """Whether another finisher of the same plan wrote the output meanwhile; token files are made side by side."""
    place = plan.output.place
    first = Place(place.store, files_at(plan.output.dataset.format, place.path)[0])
    return not plan.file_tokens and wait_for_another(first, _folder(plan), plan.how)


# --- tasks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents `[first, stop)` of the source: a task."""

    number: int
    first: int
    stop: int

    @property
    def described(self) -> str:
        """What an error calls it."""
        return f"documents {self.first} to {self.stop}"


def cut_documents(plan: TokenPlan) -> list[Documents]:
    """The tasks: each ends at the first border at or after a multiple of so many tokens, or has so many documents."""
    source, task_tokens = plan.source, plan.shared.task_bytes
    if isinstance(source, ColumnTokens) and source.is_row_by_row:
        stops = _equal_stops(source, task_tokens)
    else:
        starts = source.doc_starts
        stops = np.unique(np.searchsorted(starts, np.arange(task_tokens, int(starts[-1]), task_tokens)))
    borders = [0, *(stop for stop in stops.tolist() if 0 < stop < len(source)), len(source)]
    pairs = itertools.pairwise(borders)
    return [Documents(number, *pair) for number, pair in enumerate(pairs) if pair[0] < pair[1]]


def _equal_stops(source: ColumnTokens, task_tokens: int) -> IntArray:
    """Where lengths would have to be read for it: runs of equally many documents, by what the first of them have."""
    first = min(len(source), 256)
    tokens = sum(int(lengths.sum()) for _, lengths in source.runs(0, first))
    step = max(1, task_tokens * max(1, first) // max(1, tokens))
    return np.arange(step, len(source), step, dtype=np.int64)


@dataclass(slots=True)
class PartJob:
    """What every worker gets.

    Attributes:
        source: where the documents are.
        rule: for EOS tokens.
        shown: the source as errors name it.
        target: the output as errors name it.
        folder: where parts go.
        token_bytes: width of their tokens.
        limit: ids must be below it.
    """

    source: Dataset
    rule: EosRule
    shown: str
    target: str
    folder: Place
    token_bytes: int
    limit: int
    _opened: tuple[Any, DocumentsProof] | None = field(default=None, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        about = (self.source, self.rule, self.shown, self.target, self.folder, self.token_bytes, self.limit)
        return (PartJob, about)

    def opened(self) -> tuple[Any, DocumentsProof]:
        """The documents and their proof: one of both a process, as a digest may be of more than a task."""
        if self._opened is None:
            source = self.source.open()
            self._opened = (source, DocumentsProof(source))
        return self._opened


def write_part(job: PartJob, task: Documents) -> PartName:
    """Leave the documents of a task as a part; one that is there by now stays. Memory: a run of 2^22 tokens."""
    source, proof = job.opened()
    dtype, content, documents = dtype_for(job.token_bytes, "<"), xxhash.xxh3_64(), DocumentRuns()
    found: list[IntArray] = [np.empty(0, np.int64)]
    temporary = job.folder.child(f"{task.number % 256:02x}/{task.number:08d}-000000")
    with aborting(temporary.store.stage(temporary.path)) as staged:
        first = task.first
        for tokens, lengths in runs_of(source, job.rule, job.shown, task.first, task.stop, proof=proof):
            check_ids(tokens, lengths, job.limit, first_doc=first, path=job.target)
            stored = np.ascontiguousarray(tokens, dtype)
            staged.write(stored)
            content.update(byte_view(stored))
            documents.add(stored, lengths)
            found.append(lengths)
            first += len(lengths)
        runs, all_lengths = documents.finish(), np.concatenate(found)
        highest = max((run.max_token_id for run in runs), default=-1)
        meta = PartMeta((), len(all_lengths), int(all_lengths.sum()), highest, (), runs)
        end = encode_end(all_lengths, meta)
        content.update(end)
        staged.write(end)
        name = PartName(task.number, 0, True, meta.documents, meta.tokens, 0, content.hexdigest())
        commit_as(staged, job.folder.child(name.path).path)
    return name


# --- one run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pass:
    """A run whose plan is there."""

    plan: TokenPlan
    work: SharedWork
    tasks: Sequence[Documents]
    advance: Advance
    pool: Executor

    def run(self) -> Written:
        """Do what is to be done; see `write_parts`."""
        plan, work, sharing = self.plan, self.work, self.plan.how
        listed = {task: parts[0] for task, parts in work.listed().items()}
        if plan.file_tokens:
            require_no_writer(plan.output.place.store, plan.output.place.child("index.json").path)
        missing = [task.number for task in self.tasks if task.number not in listed]
        if sharing.no_work and missing:
            return self._told([], listed, missing)
        if plan.file_tokens:
            return self._into_files(listed)
        output = plan.output
        about = (dict(output.options), plan.token_bytes, work, self.pool, sharing.takes)
        to = (plan.to, output.place)
        joined = None if output.split is not None else joined_file(*to, *about, overwrite=output.overwrite)
        if sharing.part is not None:
            names = list(self._parts(listed))
            there = work.listed()
            if joined is not None and len(there) == len(self.tasks):
                joined.digest([there[task][0] for task in sorted(there)])
            return self._told(names, listed)
        if joined is not None:
            output = replace(output, dataset=replace(output.dataset, place=joined.output))
        with replace(output, planes={}).create() as writer:
            names = list[PartName]()
            for name in self._parts(listed):
                if joined is None:
                    append_range(as_parts(writer), work.parts, PartRange(name, 0, name.documents), plan.token_bytes)
                names.append(name)
            if joined is not None and isinstance(writer, JoinsRows):
                joined.write(writer, names)
            with planes_along(plan):
                manifest = writer.commit()
        return replace(self._told(names, listed), digest=manifest.digest, manifest=manifest)

    def _parts(self, listed: dict[int, PartName]) -> Iterator[PartName]:
        """The parts of a share, or of all, in order, once they are there."""
        plan, mine = self.plan, [task for task in self.tasks if self.plan.how.takes(task.number)]
        limit = min(1 << 8 * plan.token_bytes, plan.output.options.get("vocab_size") or 1 << 32)
        about = (plan.dataset, plan.rule, plan.shown, plan.output.place.path)
        job = PartJob(*about, self.work.parts, plan.token_bytes, limit)
        made = iter(
            self.pool.map(functools.partial(write_part, job), (one for one in mine if one.number not in listed))
        )
        done = 0
        for task in mine:
            name = listed[task.number] if task.number in listed else next(made)
            done += name.documents
            self.advance(done, f"of {len(plan.source):,}")
            yield name
        self.work.listed()  # raises where a task ran twice, and two things came out
        self.work.require_unchanged_inputs()

    def _into_files(self, listed: dict[int, PartName]) -> Written:
        """Token files side by side, where all parts are there; then the index, which makes them one dataset."""
        plan, sharing, files = self.plan, self.plan.how, self._files()
        if sharing.no_work:
            missing = files.missing_shares([listed[task] for task in sorted(listed)])
            if missing:
                return replace(self._told([], listed), missing=missing)
        mine = list(self._parts(listed))
        # Another finisher may sweep by now: what was there is not missing.
        there = {name.task: name for name in mine} | {task: parts[0] for task, parts in self.work.listed().items()}
        names = [there[task] for task in sorted(there)]
        if len(names) < len(self.tasks):
            return self._told(mine, listed)
        files.make(names, sharing.part)
        if sharing.part is not None:
            return self._told(mine, listed)
        if not names:
            raise ConfigError(
                "the source has no documents", path=plan.shown, hint="A folder needs at least one token file"
            )
        with planes_along(plan):
            manifest = files.commit(names)
        return replace(self._told(names, listed), digest=manifest.digest, manifest=manifest)

    def _files(self) -> TokenFiles:
        plan, options, work = self.plan, dict(self.plan.output.options), self.work
        said = {name: options[name] for name in ("eos_id", "tokenizer", "tokenizer_digest", "inputs")}
        given = Provenance(**said, options=_recorded(plan))
        options["inputs"] = {}  # the folder's own side file names them
        scratch = work.place.child(SCRATCH)
        job = FileJob(plan.output.place, work.parts, scratch, plan.to, plan.token_bytes, options)
        overwrite = plan.output.overwrite
        return TokenFiles(job, plan.file_tokens or 1, overwrite, given, work, self.pool)

    def _told(self, names: Sequence[PartName], listed: dict[int, PartName], missing: Sequence[int] = ()) -> Written:
        """What there is to say of a share, or of work that is not all there."""
        reused = sum(name.task in listed for name in names)
        samples = sum(name.documents for name in names)
        return Written(None, None, samples, len(names), reused, missing=self.work.shares_of(missing) if missing else ())


def _recorded(plan: TokenPlan) -> dict[str, Any]:
    """What the side file of the output says of the options: of a folder also how it is cut."""
    plain = msgspec.json.decode(msgspec.json.encode(dict(plan.recorded), enc_hook=str))
    return {**plain, "file_tokens": plan.file_tokens, "to": plan.to} if plan.file_tokens else plain


def _executor(plan: TokenPlan, count: int) -> contextlib.AbstractContextManager[Executor]:
    reads, writes = [plan.dataset.place], [plan.output.place]
    return open_pool(plan.how, _PRELOAD, most=count, reads=reads, writes=writes)

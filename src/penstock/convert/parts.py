"""Documents of tokens in parts, by many workers: shared work, of which a run of documents is a task.

Where runs end follows from the source alone. A worker leaves the documents of one as a part, in the width of the
target, with digests by which parts are joined. One dataset takes all parts in their order, by its one writer, so its
bytes are those of a conversion that nobody shares. Token files of a folder are made side by side, as `pack` makes them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
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
from penstock.convert.output import Written
from penstock.convert.plan import TokenPlan
from penstock.convert.planes import planes_along, settle_again
from penstock.convert.rows import Dataset
from penstock.engine.folder import WorkFolder
from penstock.engine.options import Counter, RunOptions
from penstock.engine.parts import DocumentRuns, PartMeta, PartName, encode_end, made_of
from penstock.engine.plan import Plan
from penstock.engine.run import Job, Wave
from penstock.engine.token_blocks import BlockWave, OneFile, joined_file
from penstock.engine.token_files import (
    FileJob,
    FileWave,
    PartRange,
    TokenFiles,
    append_range,
    as_parts,
    end_killed_commit,
    held_folder,
    sweep_killed_tokens,
)
from penstock.engine.work import SCRATCH, Work, is_complete, open_work, work_folder
from penstock.errors import ConfigError, PenstockError, PrepareError, Unsupported
from penstock.formats import files_at, get_format
from penstock.formats._manifest import Provenance
from penstock.formats._planed_writer import require_place_for_planes
from penstock.formats._proof import DocumentsProof
from penstock.formats._token_column import ColumnTokens
from penstock.formats.tokens.folder.files import read_index, read_index_bytes
from penstock.formats.tokens.folder.side import read_manifest
from penstock.store.local import LocalStore, output_exists
from penstock.store.object_folder import require_no_writer
from penstock.store.place import Place
from penstock.store.put import aborting, commit_as
from penstock.types import IntArray, Manifest


@dataclass(kw_only=True)
class TokenJob(Job[Written]):
    """A conversion of documents in parts.

    Attributes:
        conversion: what is written.
        output: the dataset.
        options: how to run it.
        counter: counts documents.
        verify: reads the output back, before the work is discarded.
        pool: runs tasks; known once they start.
    """

    conversion: TokenPlan
    output: Place
    options: RunOptions
    counter: Counter
    verify: Callable[[Written], object]
    pool: Executor = field(init=False)
    preload = (__name__,)

    @classmethod
    def of(cls, plan: TokenPlan, verify: Callable[[Written], object]) -> TokenJob:
        """Return the job of a conversion; raises `Unsupported` if the format takes no parts, or no planes."""
        dataset = plan.output.dataset
        if dataset.place.is_local:
            # Without the store that continues the staged file of a killed writer: parts are continued instead.
            place = replace(dataset.place, store=LocalStore())
            plan = replace(plan, output=replace(plan.output, dataset=replace(dataset, place=place)))
        output, how = plan.output.place, plan.how
        if not plan.token_bytes:
            hint = "Omit workers and distributed options"
            raise Unsupported(f"the format {plan.to!r} can't be written in parts", path=output.path, hint=hint)
        if planes := plan.output.planes:
            chosen = get_format(plan.output.dataset.format)
            require_place_for_planes(chosen, output.store, output.path, plan.output.options, planes)
        counter = Counter(len(plan.source), how.progress)
        return cls(conversion=plan, output=output, options=how, counter=counter, verify=verify)

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder of token files, which are made side by side."""
        return self.conversion.file_tokens is not None

    @property
    def folder(self) -> WorkFolder:
        return work_folder(self.output, inside=self.is_folder)

    @property
    def reads(self) -> list[Place]:
        return [self.conversion.dataset.place]

    @functools.cached_property
    def _tasks(self) -> list[Documents]:
        return cut_documents(self.conversion)

    @property
    def tasks(self) -> list[Documents]:
        return self._tasks

    def plan(self) -> Plan:
        return self.conversion.shared

    def first_files(self) -> list[Place]:
        files = files_at(self.conversion.output.dataset.format, self.output.path)
        return [] if self.is_folder else [Place(self.output.store, files[0])]

    def hold(self) -> contextlib.AbstractContextManager[object]:
        if not self.is_folder:
            return contextlib.nullcontext()
        return held_folder(self.output, overwrite=self.options.overwrite, shared=self.options.is_distributed)

    def finished(self) -> Written | None:
        plan, made, format = self.conversion, self._published(), self.conversion.output.dataset.format
        if made is None:
            return None
        written = Written(made.digest, made, made.num_samples, was_complete=True)
        sweep_killed_tokens(self.output, format, is_folder=self.is_folder)
        settle_again(plan)
        if not self.options.is_distributed:
            self.verify(written)
        if self.folder.is_there():
            opened = open_work(self.output, self.folder, restart=False, shared=False)
            with contextlib.suppress(PrepareError), opened as work:
                if work.head is None or work.head.digest == plan.shared.digest():
                    end_killed_commit(work, format, is_folder=self.is_folder)
                    work.clear()
        return written

    def _published(self) -> Manifest | None:
        """Return the side file of the output if it exists and is exactly this job's."""
        plan, place, asked = self.conversion, self.output, self.conversion.output.options
        with contextlib.suppress(PenstockError, OSError):
            if self.is_folder:
                index = read_index_bytes(place.store, place.path)
                found = read_manifest(place.store, place.path, index, read_index(place.store, place.path))
            else:
                found = getattr(plan.output.dataset.open(), "manifest", None)
            if not isinstance(found, Manifest) or dict(found.inputs) != asked["inputs"]:
                return None
            known = (found.eos_id, found.tokenizer_digest, dict(found.options))
            return found if known == (asked["eos_id"], asked["tokenizer_digest"], _recorded(plan)) else None
        return None

    def require_free(self) -> None:
        output, place = self.conversion.output, self.output
        if self.is_folder or self.options.overwrite or output.split is not None:
            return  # whoever holds the folder looks; and a split joins what is there
        if not place.is_local and place.is_folder():
            return  # in an object store a killed writer may have left some of it, and goes on
        if any(place.store.exists(path) for path in files_at(output.dataset.format, place.path)[-1:]):
            raise output_exists(place.path)

    def start(self, work: Work, pool: Executor) -> None:
        self.pool = pool
        if self.is_folder:
            require_no_writer(self.output.store, self.output.child("index.json").path)

    def sent(self, number: int, task: Documents, parts: Sequence[PartName]) -> Documents | None:
        return None if is_complete(parts) else task

    def part_fn(self, work: Work) -> Callable[[Any], object]:
        plan = self.conversion
        limit = min(1 << 8 * plan.token_bytes, plan.output.options.get("vocab_size") or 1 << 32)
        about = (plan.dataset, plan.rule, plan.shown, self.output.path)
        return functools.partial(write_part, PartJob(*about, work.parts, plan.token_bytes, limit))

    def wave(self, work: Work) -> Wave:
        if self.is_folder:
            return FileWave(self._files(work), self._parts(work))
        joined = self._joined(work)
        # With no_work, the digests that are missing are still computed, by the commit.
        return Wave() if joined is None or self.options.no_work else BlockWave(joined, self._parts(work))

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> Written:
        listed = {} if missing else work.listed()
        names = [parts[0] for task, parts in listed.items() if self.options.takes(task)]
        return Written(None, None, sum(one.documents for one in names), len(names), work.reused, missing=missing)

    def commit(self, work: Work, wave: Any) -> Written:
        plan, names = self.conversion, self._parts(work)
        if not self.is_folder:
            made = self._publish(work, wave, names)
        elif names:
            with planes_along(plan):
                made = self._files(work).commit(names)
        else:
            hint = "A folder needs at least one token file"
            raise ConfigError("the source has no documents", path=plan.shown, hint=hint)
        written = Written(made.digest, made, sum(one.documents for one in names), len(names), work.reused)
        self.verify(written)
        return written

    def _publish(self, work: Work, wave: Any, names: Sequence[PartName]) -> Manifest:
        """Make one dataset of all parts visible."""
        plan, joined, output = self.conversion, self._joined(work), self.conversion.output
        if joined is not None:
            output = replace(output, dataset=replace(output.dataset, place=joined.output))
        with replace(output, planes={}).create() as writer:
            if joined is not None and isinstance(writer, JoinsRows):
                _ = wave.write(writer) if isinstance(wave, BlockWave) else joined.write(writer, names)
            else:
                for name in names:
                    append_range(as_parts(writer), work.parts, PartRange(name, 0, name.documents), plan.token_bytes)
            with planes_along(plan):
                return writer.commit()

    def _parts(self, work: Work) -> list[PartName]:
        """Return all parts in order."""
        listed = work.listed()
        return [made_of(listed, task.number, self.output)[0] for task in self.tasks]

    def _joined(self, work: Work) -> OneFile | None:
        plan, output = self.conversion, self.conversion.output
        if output.split is not None:
            return None
        about = (dict(output.options), plan.token_bytes, work, self.pool, self.options.takes)
        return joined_file(plan.to, self.output, *about, overwrite=self.options.overwrite)

    def _files(self, work: Work) -> TokenFiles:
        plan, options = self.conversion, dict(self.conversion.output.options)
        said = {name: options[name] for name in ("eos_id", "tokenizer", "tokenizer_digest", "inputs")}
        given = Provenance(**said, options=_recorded(plan))
        options["inputs"] = {}  # the folder's own side file names them
        job = FileJob(self.output, work.parts, work.place.child(SCRATCH), plan.to, plan.token_bytes, options)
        return TokenFiles(job, plan.file_tokens or 1, self.options.overwrite, given, work, self.pool)


def _recorded(plan: TokenPlan) -> dict[str, Any]:
    """Return what the side file records of the options; of a folder also how it is cut."""
    plain = msgspec.json.decode(msgspec.json.encode(dict(plan.recorded), enc_hook=str))
    return {**plain, "file_tokens": plan.file_tokens, "to": plan.to} if plan.file_tokens else plain


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

    @property
    def num_samples(self) -> int:
        """Number of documents."""
        return self.stop - self.first


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

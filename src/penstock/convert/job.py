"""A conversion as a job: what conversions of tokens and of samples have in common.

A conversion is written in parts, which workers and other runs can make, or by one writer. Either way the output is read
back and compared with the source. If it differs, it is removed, and the dataset that it replaced is restored.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock._secrets import redacted_repr
from penstock._tokens import planes_of
from penstock.abc import Source, Writer
from penstock.convert.request import Request
from penstock.convert.rows import FolderRows, SourceRows
from penstock.convert.tables import TABLE, TableOptions, TableRows
from penstock.engine.options import Counter, RunOptions
from penstock.engine.plan import Plan, inputs_digest
from penstock.engine.rows import Rows
from penstock.engine.run import Job
from penstock.engine.work import Work
from penstock.errors import NotFound
from penstock.executors import HERE
from penstock.formats import create_dry, files_at, finish_planes, get_format
from penstock.formats._excluded import put_waiting, require_list_named, settle_waiting, waiting_list
from penstock.formats._exclusions import kept
from penstock.formats._opening import open_at
from penstock.formats._planed_writer import create_planed
from penstock.formats._proof import require_as_recorded
from penstock.store.dry import dry_place
from penstock.store.exclude_list import Entry, ExcludeList
from penstock.store.outputs import claimed
from penstock.store.place import Place
from penstock.store.unfinished import INPUTS, Once, Replaced, keeping, remove_mark, restoring
from penstock.types import Manifest, OpenOptions, Sample


@redacted_repr
@dataclass(frozen=True, slots=True)
class ConvertReport:
    """Result of `convert`.

    Attributes:
        to: format of the target.
        samples: number of documents, lines or samples in it.
        tokens: number of tokens in it; None for other data.
        token_bytes: width of its token ids in bytes.
        size_bytes: bytes of its data.
        eos: what was done with EOS tokens, such as `"keep"` or `"strip 0"`.
        lost: properties of the source that the target can't store.
        kept_bytes: bytes that an interrupted run had already written.
        digest: digest of the documents or samples, equal for source and target.
        copy_seconds: time to read, write and publish.
        verify_seconds: time to read the target back.
        groups: number of pieces written by several processes; None if one writer wrote everything.
        reused_groups: pieces that an interrupted run or other hosts had finished.
        part: `(i, n)` if this was part i of a distributed job; `samples` and `groups` are then those of the part.
        missing: parts that aren't done, with `no_work`; nothing was committed then.
        was_complete: the target was already complete.
        excluded: samples of the source skipped because of its exclude list.
        skipped: samples that lack a column, with `missing="skip"`.
        field_map: for tars, column of images → its parts in a `field_map` of `dataset.yaml`.

    Examples:
        >>> import penstock as ps
        >>> report = ps.convert("corpus.pbin", "corpus.bin", to="megatron")
        >>> report.samples, report.tokens, report.token_bytes, report.eos
        (6, 45, 2, 'keep')
    """

    to: str
    samples: int
    tokens: int | None
    token_bytes: int | None
    size_bytes: int
    eos: str
    lost: tuple[str, ...]
    kept_bytes: int
    digest: str | None
    copy_seconds: float
    verify_seconds: float
    groups: int | None = None
    reused_groups: int = 0
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()
    was_complete: bool = False
    excluded: int = 0
    skipped: int = 0
    field_map: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Written:
    """An output, or a part of it, that was written.

    Attributes:
        digest: digest of the documents or rows, from before they were written; None if it is unknown yet.
        manifest: content of the side file; None if an earlier run published the output.
        samples: number of rows; None for documents written by one writer.
        groups: number of parts; None if one writer wrote everything.
        reused: number of parts finished by earlier runs.
        missing: parts of a distributed job that aren't done.
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
    """The content of an output; the attributes are those of `ConvertReport`."""

    samples: int
    digest: str | None
    size_bytes: int
    tokens: int | None = None
    token_bytes: int | None = None
    field_map: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset of rows or documents; picklable, so that each process opens it by itself.

    Attributes:
        place: its place.
        format: its format; `"table"` for CSV and TSV files.
        options: opening options.
        table: how to read a text table.
        prefix_keys: put the name of the shard before each key.
        every_file: of a folder, also read the files that tars can't store; see `FolderRows`.
    """

    place: Place
    format: str
    options: OpenOptions
    table: TableOptions = field(default_factory=TableOptions)
    prefix_keys: bool = False
    every_file: bool = False

    def open(self) -> Source[Sample]:
        """Open it without excluded samples."""
        return kept(self.open_all())

    def open_all(self) -> Source[Sample]:
        """Open it; reading an excluded sample raises an error."""
        chosen, store, path = get_format(self.format), self.place.store, self.place.path
        source = open_at(chosen, store, path, self.options)
        require_list_named(chosen, store, path, self.options, source)
        return source

    def require_as_recorded(self, source: Source[Sample]) -> None:
        """Raise `Corrupt` if a quick look at this source, as returned by `open_all`, contradicts its side file."""
        require_as_recorded(get_format(self.format), self.place.store, self.place.path, self.options, source)

    def with_excludes(self, excludes: ExcludeList) -> Dataset:
        """Return the same dataset with another exclude list."""
        return replace(self, options=replace(self.options, excludes=excludes))

    def rows(self) -> Rows:
        """Open its rows."""
        if self.format == TABLE:
            return TableRows(self.place, self.table)
        if self.format == "folder":
            return FolderRows(self.place, self.open_all(), every_file=self.every_file)
        return SourceRows(self.open(), prefix_keys=self.prefix_keys)


@dataclass(kw_only=True)
class ConvertJob(Job[ConvertReport]):
    """A conversion.

    Attributes:
        request: its arguments.
        target: the dataset to write, with the options for reading it back.
        writer_options: options of its writer.
        identity: everything that determines its bytes, as plain JSON; None for samples that can be read only once.
        shared: the plan that other runs of the same conversion follow.
        in_parts: whether it is written in parts; otherwise one writer writes everything.
        lost: properties of the source that the target can't store.
        excluded: number of samples skipped because of the source's exclude list.
        carried: exclude list entries of samples that are copied although they are excluded.
        skipped: number of samples skipped because they lack a column.
        split: the split to write; other runs can write the others at the same time.
        planes: name → dtype of the planes of its documents.
    """

    request: Request
    target: Dataset
    writer_options: Mapping[str, Any]
    identity: dict[str, Any] | None
    shared: Plan
    in_parts: bool
    lost: tuple[str, ...]
    excluded: int
    carried: Sequence[Entry]
    skipped: int = 0
    split: str | None = None
    planes: Mapping[str, str] = field(default_factory=dict[str, str])
    options: RunOptions = field(init=False)
    output: Place = field(init=False)
    counter: Counter = field(init=False)
    _replaced: Replaced = field(init=False)
    _started: float = field(default_factory=time.monotonic, init=False)
    _copied: float = field(init=False)
    _inputs: str = field(init=False)

    def __post_init__(self) -> None:
        self._copied = self._started
        self.options, self.output = self.request.run_options, self.target.place
        self.counter = Counter(self.num_samples, self.options.progress)
        self._inputs = "" if self.in_parts else inputs_digest(self.reads)  # the record of parts has them too

    @property
    @abstractmethod
    def num_samples(self) -> int | None:
        """Number of samples; None for samples that can be read only once."""

    @property
    def claims_output(self) -> bool:
        """Whether other writers of the output are kept out from the start."""
        return not self.options.is_distributed

    @property
    def token_bytes(self) -> int | None:
        """Width of the token ids of the output; None for other data."""
        return None

    @abstractmethod
    def expect(self) -> ReadBack:
        """Return the expected output for a dry run; its size is estimated."""

    @abstractmethod
    def write_alone(self) -> ConvertReport:
        """Write the output with one writer, and verify it."""

    @abstractmethod
    def check(self, written: Written) -> ReadBack:
        """Read the output back and compare it with the source; raise `Corrupt` if it differs."""

    def plan(self) -> Plan:
        return self.shared

    # --- the run

    def rehearse(self) -> ConvertReport:
        with self.dry_writer():
            return self.make_report(Written(None, None), self.expect())

    @contextlib.contextmanager
    def dry_writer(self) -> Generator[Writer | None]:
        """Open the output in a store that writes nothing."""
        dry, overwrite = dry_place(self.output), self.options.overwrite
        writer = create_dry(self.target.format, dry.store, dry.path, self.writer_options, overwrite=overwrite)
        try:
            yield writer
        finally:
            if writer is not None:
                writer.abort()

    def write_in_parts(self) -> ConvertReport:
        replaces = self.options.overwrite and not self.options.is_distributed
        path = self.output.path if self.split is None else f"{self.output.path}/{self.split}"
        with contextlib.ExitStack() as stack:
            if self.claims_output:
                part = self.output.beside(f".{self.split}") if self.split else self.output
                store = stack.enter_context(claimed(part.store, part.path))  # our writers join the claim through it
                self.output = replace(self.output, store=store)
                self.target = replace(self.target, place=self.output)
            files = files_at(self.target.format, path)
            self._replaced = stack.enter_context(keeping(self.output, files, replaces=replaces))
            stack.enter_context(self._waiting_list())
            self._started = time.monotonic()
            if self.in_parts:
                return super().write_in_parts()
            return self.write_alone()

    @contextlib.contextmanager
    def _waiting_list(self) -> Generator[None]:
        """Write the exclude list of the output, which becomes valid once the output is verified."""
        place, chosen = self.output, get_format(self.target.format)
        if self.carried and not place.exists():  # otherwise this conversion made it, or an error follows
            put_waiting(chosen, place, self.carried)
        try:
            yield
        except BaseException:
            if self.carried and not place.exists():
                place.store.delete(waiting_list(chosen.name, place.path))
            raise

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> ConvertReport:
        listed = {} if missing else work.listed()
        names = [parts[0] for task, parts in listed.items() if self.options.takes(task)]
        num_samples = sum(one.documents for one in names)
        return self.report(Written(None, None, num_samples, len(names), work.reused, missing=missing))

    # --- the report

    def report(self, written: Written) -> ConvertReport:
        """Verify the output and report on it. The parts of distributed jobs are already verified."""
        self._copied, known = time.monotonic(), written.manifest
        if self.options.is_distributed:
            size_bytes, tokens = (0, None) if known is None else (known.size_bytes, known.num_tokens)
            width = None if known is None else self.token_bytes
            found = ReadBack(written.samples or 0, written.digest, size_bytes, tokens, width)
            return self.make_report(written, found)
        with restoring(self._replaced, drop=written.was_complete or known is None):
            found = self.check(written)
        if self.carried:  # before the work is discarded: a killed run is recognised by it
            settle_waiting(get_format(self.target.format), self.output, self.target.options.split)
        return self.make_report(written, found)

    def make_report(self, written: Written, found: ReadBack) -> ConvertReport:
        """Return the report of an output with this content."""
        request = self.request
        return ConvertReport(
            to=request.to.name,
            samples=found.samples,
            tokens=found.tokens,
            token_bytes=found.token_bytes,
            size_bytes=found.size_bytes,
            eos=" ".join(str(word) for word in (request.rule.action, request.rule.eos_id) if word is not None),
            lost=self.lost,
            kept_bytes=request.kept.bytes,
            digest=found.digest,
            copy_seconds=self._copied - self._started,
            verify_seconds=time.monotonic() - self._copied,
            groups=written.groups,
            reused_groups=written.reused,
            part=self.options.part,
            missing=written.missing,
            was_complete=written.was_complete,
            excluded=self.excluded,
            skipped=self.skipped,
            field_map=found.field_map,
        )

    # --- one writer

    @property
    def once(self) -> Once[Any] | None:
        """This conversion, by which a run that was killed before it had verified the output is recognised."""
        if self.identity is None:
            return None
        files = files_at(self.target.format, self.output.path)
        what = self.identity | {INPUTS: self._inputs}
        return Once(self.output.store, self.output.path, what, files, self._published_source)

    def _published_source(self, _told: Any) -> Source[Sample] | None:
        if self.options.overwrite and not self.planes:
            return None  # it may be the data to replace
        try:
            source = self.target.open()
        except NotFound:
            return None
        if self.options.overwrite and not planes_of(source):
            return None  # an output with planes replaced one without them
        finish_planes(self.target.format, self.output.store, self.output.path)
        return source

    def is_made(self) -> bool:
        """Return whether a killed run of the same conversion published the output; remove its other files."""
        return self.once is not None and self.once.is_current() and self.once.swept(None) is not None

    def create(self) -> Writer:
        """Return the writer of the output."""
        chosen, place, overwrite = get_format(self.target.format), self.output, self.options.overwrite
        if self.planes:
            finish_planes(chosen.name, place.store, place.path)
            return create_planed(chosen, place.store, place.path, self.writer_options, self.planes, overwrite=overwrite)
        return chosen.create(place.store, place.path, self.writer_options, overwrite=overwrite)

    def publish(self, commit: Callable[[], Written]) -> ConvertReport:
        """Make the output visible, with a mark next to it until it is verified."""
        if self.once is not None:
            return self.once.commit(lambda: self.report(commit()))
        if self.output.is_local:
            remove_mark(self.output.store, self.output.path)  # of a killed run of another conversion
        return self.report(commit())


def runs_elsewhere(options: RunOptions) -> bool:
    """Return whether several workers or runs do the work, or it is to be restarted."""
    here = isinstance(options.executor, str) and options.executor in HERE
    return options.is_distributed or options.restart or (options.workers or 1) > 1 or not here

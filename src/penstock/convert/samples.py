"""Conversion of samples: by one writer, or in groups, which workers of this machine or of others write.

The borders of groups depend only on the source and the options. So the bytes are the same for any number of workers,
and a killed run continues with the finished groups. A group is a dataset of its own in the work folder. All groups
together become the output: on this machine by second names, in an object store by copies that workers make; the index
is written last. `penstock.engine.sample_groups` does the same for tars and folders of files.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast, runtime_checkable

import msgspec
import numpy as np

from penstock._kinds import is_token_source
from penstock._tokens import require_no_planes
from penstock.abc import Source, Writer
from penstock.convert.columns import GROUPED, PART_FORMATS, TEXT_FORMATS, Column, RowMaker, choose_columns
from penstock.convert.job import ConvertJob, ConvertReport, Dataset, ReadBack, Written, runs_elsewhere
from penstock.convert.request import Request, can_be_shared
from penstock.convert.rows import (
    KEY,
    STORED,
    FolderRows,
    SelectedRows,
    SourceRows,
    digest_number,
    sample_digest,
    shown_digest,
)
from penstock.convert.tables import TABLE, TableRows
from penstock.convert.values import field_map_of
from penstock.engine.folder import bare
from penstock.engine.groups import (
    Assembly,
    GroupFormat,
    GroupWave,
    is_free_place,
    make_group,
    read_group,
    require_no_object,
)
from penstock.engine.parts import PartName
from penstock.engine.plan import Plan, require_same
from penstock.engine.rows import Rows
from penstock.engine.run import open_pool, sweep_made
from penstock.engine.sample_groups import group_format
from penstock.engine.work import Work, peek, refuse_old, work_folder
from penstock.errors import ConfigError, Corrupt, PenstockError, Unsupported
from penstock.formats import BUILT_IN
from penstock.formats._exclusions import carried_list, excluded_list, kept, left_out, stored, whole_of
from penstock.formats._manifest import Provenance
from penstock.formats._proof import require_provable_as_recorded
from penstock.formats.samples.webdataset.source import WebdatasetSource
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.formats.shards.merge import common_layout
from penstock.formats.shards.side import SIDE_NAME
from penstock.formats.shards.source import ShardSource
from penstock.formats.shards.writer import SIZE_LIMIT_BYTES, parse_size
from penstock.store.exclude_list import NO_LIST, Entry, ExcludeList
from penstock.store.fingerprint import sample_fingerprint
from penstock.store.local import output_exists
from penstock.store.outputs import sweep_killed
from penstock.store.place import Place, distinct_names, place_of
from penstock.store.side_file import load_manifest
from penstock.types import Manifest, OpenOptions, Sample

TARGETS = (*GROUPED, *PART_FORMATS, "jsonl")
FIRST_SAMPLES = 1000
"""Number of samples from which columns are determined if there is no schema."""

_RECORDED_VERSION = 2
"""Version of the plan whose digest side files hold; not that of unfinished work."""

_FIRST_BYTES = 1 << 26
_GROUP_SHARDS = 4
_LEAST_GROUP_BYTES = 1 << 16
_BATCH_BYTES = 1 << 23
_MOST_BATCH = 1024
_VERIFY_BYTES = 1 << 27
_THREADS = 32
_NUMBERED = re.compile(r"^sample \d+: ")


@runtime_checkable
class _Notes(Protocol):
    """A writer whose side file can record provenance."""

    def note(self, given: Provenance) -> None: ...


@dataclass(frozen=True, slots=True)
class Group:
    """A task: rows `[start, stop)` of the source, with its samples if they can be read only once."""

    number: int
    start: int
    stop: int
    samples: list[Sample] | None = None

    @property
    def described(self) -> str:
        """Name in errors."""
        return f"samples {self.start} to {self.stop}"

    @property
    def num_samples(self) -> int:
        """Number of rows."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Input:
    """The source: rows, or samples that can be read only once.

    Attributes:
        shown: name of the source in errors.
        open_rows: opens its rows in any process; None for an iterable.
        rows: its rows; None for an iterable.
        place: its place; None for an opened source or an iterable.
        samples: samples of an iterable, including those that were already read.
        inputs: name and digest of the source for the side file.
        left_out: fields of the side file on the exclude list.
        carried: entries of excluded samples that are among the rows.
        skipped: number of samples that lack a column, and aren't among the rows.
        unread: columns that are neither read nor written.
    """

    shown: str
    open_rows: Callable[[], Rows] | None = None
    rows: Rows | None = None
    place: Place | None = None
    samples: Iterable[Sample] = ()
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: Mapping[str, Any] = field(default_factory=dict[str, Any])
    carried: Sequence[Entry] = ()
    skipped: int = 0
    unread: Sequence[str] = ()

    @property
    def source(self) -> Any:
        """The opened source; None for tables and iterables."""
        return None if self.rows is None else self.rows.source


@dataclass(kw_only=True)
class SampleJob(ConvertJob):
    """A conversion of samples.

    Attributes:
        input: the source.
        maker: makes rows of the target.
        mean_bytes: estimated size of a row.
        group_rows: number of rows in a group.
        recorded: fields of the side file that describe the source and the options.
    """

    input: Input
    maker: RowMaker
    mean_bytes: int
    group_rows: int
    recorded: Mapping[str, Any]
    preload = (__name__,)

    @property
    def num_samples(self) -> int | None:
        return None if self.input.rows is None else len(self.input.rows)

    @property
    def batch_rows(self) -> int:
        """Number of rows that are read at once."""
        return max(1, min(_MOST_BATCH, _BATCH_BYTES // max(1, self.mean_bytes)))

    def expect(self) -> ReadBack:
        num_samples = self.num_samples or 0
        return ReadBack(num_samples, None, num_samples * self.mean_bytes)

    def rehearse(self) -> ConvertReport:
        rows = self.input.rows
        if rows is None:
            raise ConfigError("a dry run would consume samples from an iterator", hint="Save them as a dataset")
        if self.in_parts:
            self.require_free()
            before = None if self.options.restart else peek(self.folder)
            if before is None:
                refuse_old(self.output)
                self.require_beginning(left=False)
            require_same(before, self.shared, self.output.path)
            if not len(rows) and self.last == INDEX_NAME:
                raise self._no_sample()
        with self.dry_writer() as writer:
            first = rows.samples(0, min(FIRST_SAMPLES, len(rows)))
            write_rows(enumerate(first), self.maker, writer, self.target.format)
            return self.make_report(Written(None, None), self.expect())

    # --- one writer

    def write_alone(self) -> ConvertReport:
        made = self.is_made() and self.input.rows is not None
        groups = (_read(group, self.input.rows, self.batch_rows) for group in self.tasks)
        samples = self._counted(itertools.chain.from_iterable(groups))
        with contextlib.nullcontext() if made else self.create() as writer:
            count, total = write_rows(samples, self.maker, writer, self.target.format)
            digest = shown_digest(total)
            if isinstance(writer, _Notes):
                options = {**self.recorded["options"], "digest": digest, "samples": count}
                writer.note(Provenance(inputs=self.recorded["inputs"], options=options))
            return self.publish(lambda: Written(digest, None if writer is None else writer.commit(), count))

    def _counted(self, samples: Iterable[tuple[int, Sample]]) -> Iterator[tuple[int, Sample]]:
        """Report the progress after each batch."""
        progress, batch_rows = self.options.progress, self.batch_rows
        for count, sample in enumerate(samples, 1):
            yield sample
            if progress is not None and count % batch_rows == 0:
                progress(count, "")

    def check(self, written: Written) -> ReadBack:
        rows = self.target.rows()
        step = max(1, _VERIFY_BYTES // max(1, self.mean_bytes))
        ranges = [(start, min(len(rows), start + step)) for start in range(0, len(rows), step)]
        digest_range = functools.partial(_digest_of_range, self.target, self.batch_rows)
        total, names = 0, set[str]()
        with open_pool(self.options, self.preload, most=len(ranges), reads=[self.output]) as pool:
            for (_, stop), (part, fields) in zip(ranges, pool.map(digest_range, ranges), strict=True):
                total += part
                names |= fields
                if self.options.progress is not None:
                    self.options.progress(stop, f"of {len(rows):,} read back")
        digest = shown_digest(total)
        for what, found, expected in (
            ("the converted dataset has a different number of samples", len(rows), written.samples),
            ("the converted dataset differs from the source when read back", digest, written.digest),
        ):
            if found != expected:
                raise Corrupt(what, path=self.output.path, found=found, expected=expected)
        size_bytes = 0 if written.manifest is None else written.manifest.size_bytes
        # Fields and their parts, as in `dataset.yaml`, for columns whose parts depend on the content of each sample.
        stems = [one.name for one in self.maker.columns if one.spreads and one.read not in ("files", "numbered")]
        field_map = field_map_of(stems, sorted(names)) if self.target.format == "webdataset" else {}
        return ReadBack(len(rows), digest, size_bytes, field_map=field_map)

    # --- in groups

    @property
    def kind(self) -> GroupFormat:
        """How groups become the output."""
        return group_format(self.target.format)

    @property
    def last(self) -> str:
        """The file that makes the output visible."""
        return self.kind.last

    @property
    def reads(self) -> Sequence[Place]:
        return [] if self.input.place is None else [self.input.place]

    @property
    def num_tasks(self) -> int | None:
        return None if self.num_samples is None else -(-self.num_samples // self.group_rows)

    @property
    def tasks(self) -> Iterator[Group]:
        num_samples, step = self.num_samples, self.group_rows
        if num_samples is not None:
            for number, start in enumerate(range(0, num_samples, step)):
                yield Group(number, start, min(num_samples, start + step))
            return
        samples = iter(self.input.samples)
        for number in itertools.count():
            group = list(itertools.islice(samples, step))
            if not group:
                return
            yield Group(number, number * step, number * step + len(group), group)

    def first_files(self) -> list[Place]:
        return [self.output]

    def published(self) -> Manifest | None:
        if not self.output.child(self.last).exists():
            return None
        manifest = load_manifest(self.output.store, self.output.child(SIDE_NAME).path)
        is_ours = manifest is not None and manifest.options.get("plan") == self.recorded["options"]["plan"]
        return manifest if is_ours else None

    def settle(self, made: Manifest) -> None:
        if self.options.is_distributed:
            sweep_made(self.output, self.target.format)
        else:
            sweep_killed(self.output.store, [self.output.path])

    def report_complete(self, made: Manifest) -> ConvertReport:
        samples = made.options.get("samples", made.num_samples)  # of a folder, which counts files
        count = -(-samples // self.group_rows)
        digest = str(made.options.get("digest"))
        return self.report(Written(digest, made, samples, count, count, was_complete=True))

    def require_free(self) -> None:
        if not self.options.overwrite and not is_free_place(self.output, self.last):
            raise output_exists(self.output.path)

    def require_beginning(self, *, left: bool) -> None:
        require_no_object(self.output, self.last, left=left)

    def sent(self, number: int, task: Group, parts: Sequence[PartName]) -> tuple[Group, PartName | None] | None:
        # Samples that can be read only once are compared with those of the existing group.
        known = parts[0] if parts else None
        return (task, known) if known is None or task.samples is not None else None

    def part_fn(self, work: Work) -> Callable[[Any], object]:
        return functools.partial(write_group, self.group_job(work))

    def wave(self, work: Work) -> GroupWave:
        listed = work.all_parts()
        return GroupWave(self.kind, work, [self.assembly(work)], [[listed[task][0] for task in sorted(listed)]])

    def commit(self, work: Work, wave: GroupWave) -> ConvertReport:
        [ordered], rows = wave.names, self.input.rows
        samples = sum(name.documents for name in ordered)
        if not ordered and self.last == INDEX_NAME:
            raise self._no_sample()
        if rows is not None and samples != len(rows):
            raise Corrupt("the source changed while it was being read", path=self.input.shown)
        groups = wave.groups(0)
        digest = shown_digest(sum(int(group.part.digest) for group in groups))
        options = {**self.recorded["options"], "digest": digest}
        if self.target.format in PART_FORMATS:
            noted = Provenance(inputs=self.recorded["inputs"], options=options | {"samples": samples})
        else:
            noted = replace(Provenance(**self.recorded), options=options)
        manifest = wave.end(0, groups, noted, overwrite=self.options.overwrite)
        return self.report(Written(digest, manifest, samples, len(ordered), work.reused))

    def assembly(self, work: Work) -> Assembly:
        return Assembly(self.target.format, self.output, work.place, self.writer_options)

    def group_job(self, work: Work) -> GroupJob:
        """Return the job of the workers."""
        assembly = replace(self.assembly(work), target=bare(self.output))
        about = (self.input.open_rows, self.maker, self.target.options, self.batch_rows)
        return GroupJob(*about, assembly, self.options.is_distributed)

    def _no_sample(self) -> ConfigError:
        hint = "The index would have no columns"
        return ConfigError("the source has no samples", path=self.input.shown, hint=hint)


# --- workers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupJob:
    """The job of every worker.

    Attributes:
        open_rows: opens the rows; None if they come with the tasks.
        maker: makes rows of the target.
        reading: options for reading the output back.
        batch_rows: number of rows to read at once.
        assembly: the output, in a store without a cache.
        read_back: compare each group with its rows, because the whole output isn't read back.
    """

    open_rows: Callable[[], Rows] | None
    maker: RowMaker
    reading: OpenOptions
    batch_rows: int
    assembly: Assembly
    read_back: bool


def write_group(job: GroupJob, task: tuple[Group, PartName | None]) -> PartName:
    """Write a group as a dataset of its own, and its part; or compare samples that can be read only once with it."""
    group, known = task
    format, work = job.assembly.to, job.assembly.work
    rows = None if job.open_rows is None or group.samples is not None else job.open_rows()
    samples = _read(group, rows, job.batch_rows)
    if known is not None:
        if str(write_rows(samples, job.maker, None, format)[1]) != read_group(known, work).part.digest:
            hint = "Use the same samples as before, or discard the finished work: restart (--restart)"
            what = f"group {group.number} of the unfinished work has different samples"
            raise ConfigError(what, path=work.path, hint=hint)
        return known

    def check(place: Place, total: int) -> None:
        written = Dataset(place, format, job.reading, every_file=True).rows()
        pairs = written.numbered(0, len(written), job.batch_rows)
        if sum(sample_digest(digest_number(format, group.start + index), row) for index, row in pairs) != total:
            raise Corrupt(f"group {group.number} differs from the source when read back", path=place.path)

    fill = functools.partial(write_rows, samples, job.maker, format=format)
    name = (group.number, 0, True)
    return make_group(group_format(format), job.assembly, name, fill, check if job.read_back else None)


def write_rows(
    samples: Iterable[tuple[int, Sample]], maker: RowMaker, writer: Writer | None, format: str
) -> tuple[int, int]:
    """Make rows of samples, and write them if there is a writer; return their number and the sum of their digests."""
    count, total = 0, 0
    for index, sample in samples:
        row = maker(sample, index)
        if writer is not None:
            try:
                writer.write(row)
            except PenstockError as error:
                error.what = f"sample {index}: {_NUMBERED.sub('', error.what)}"  # a writer counts its own
                raise
        total += sample_digest(digest_number(format, index), row)
        count += 1
    return count, total


def _read(group: Group, rows: Rows | None, batch_rows: int) -> Iterator[tuple[int, Sample]]:
    """Read the samples of a group with their numbers."""
    if group.samples is not None:
        return enumerate(group.samples, group.start)
    if rows is None:
        raise ConfigError("a group without samples", found=group.number)
    return rows.numbered(group.start, group.stop, batch_rows)


def _digest_of_range(dataset: Dataset, step: int, borders: tuple[int, int]) -> tuple[int, set[str]]:
    """Return the sum of digests of a range of rows, and the names of their fields."""
    total, names = 0, set[str]()
    for index, row in dataset.rows().numbered(*borders, step):
        total += sample_digest(digest_number(dataset.format, index), row)
        names.update(row)
    return total, names


# --- the plan --------------------------------------------------------------------------------------------------------


def make_sample_job(request: Request) -> SampleJob:
    """Open the source and plan the conversion of its samples.

    Raises:
        NotFound: the source doesn't exist.
        Unsupported: the target's format can't store these samples; the message says why.
        ConfigError: options contradict each other or the data.
    """
    to, options = request.to.name, request.run_options
    _require_possible(request)
    given, first = _open_input(request)
    recorded: dict[str, Any] = {"eos_id": request.source_options.get("eos_id"), **_recorded_tokens(given.source)}
    format = request.source_format if given.place is not None and request.source_format != TABLE else "value"
    encodings = _encodings(given) if format in ("mds", *TEXT_FORMATS) else {}
    if isinstance(given.rows, TableRows) and not first:
        first = [dict.fromkeys(given.rows.names, "")]  # a header without rows names columns of text
    columns, lost = choose_columns(to, format, encodings, first, request.columns, given.shown, request.missing)
    if isinstance(request.columns, Mapping):
        lost = [*(f"column {name!r}" for name in given.unread), *lost]
    excluded = 0 if given.rows is None else given.rows.num_excluded
    if request.missing == "skip":
        given, first = _without_incomplete(given, first, columns)
    if isinstance(given.rows, FolderRows) and given.rows.num_ignored:
        which = "without an extension, hidden, or created by the operating system"
        name, ignored = given.rows.first_ignored, given.rows.num_ignored
        lost.append(f"file {name!r} ({which})" if ignored == 1 else f"{ignored:,} files, such as {name!r} ({which})")
    tars = stored(given.source)
    if isinstance(tars, WebdatasetSource) and tars.ignored is not None:
        lost.append(f"tar members that belong to no sample: {tars.ignored}")
    rest = "copy" if to in PART_FORMATS and format in PART_FORMATS else "error"
    rest = "ignore" if request.columns is not None else rest
    maker = RowMaker(columns, to in PART_FORMATS and KEY not in [one.name for one in columns], given.shown, rest)
    mean_bytes = _mean_bytes([maker(sample, index) for index, sample in enumerate(first)])
    writer_options = dict(request.target_options)
    if to in GROUPED:
        writer_options["columns"] = {one.name: one.write.partition(":")[2] for one in columns}
    group_rows = request.group_rows or _group_rows(writer_options, mean_bytes, once=given.rows is None)
    encoded = [[one.source, one.name, one.read, one.write, one.missing] for one in columns]
    if given.skipped:
        encoded.append(["missing", "skip"])
    identity = {"to": to, "source": None if given.rows is None else given.rows.fingerprint, "columns": encoded}
    identity |= {"options": writer_options, "group_rows": group_rows, "version": 1}
    shared = _shared_plan(identity)
    known_by = replace(shared, version=_RECORDED_VERSION).digest()
    recorded["options"] = {"command": "convert", "group_rows": group_rows, "plan": known_by, **given.left_out}
    recorded["inputs"] = given.inputs
    in_parts = can_be_shared(to, request.target)
    if to in PART_FORMATS:  # by one writer unless several do it
        in_parts = in_parts and (runs_elsewhere(options) or work_folder(request.target, inside=False).is_there())
    split = request.target_options.get("split") if to == "webdataset" else None
    reading = OpenOptions(split=split, raw=to in STORED, read="pread", excludes=NO_LIST)
    return SampleJob(
        request=request, target=Dataset(request.target, to, reading, every_file=True), writer_options=writer_options,
        identity=None if given.rows is None else identity,
        shared=replace(shared, options={**shared.options, "--overwrite": options.overwrite}), in_parts=in_parts,
        lost=tuple(lost), excluded=excluded, carried=given.carried, skipped=given.skipped,
        input=given, maker=maker, mean_bytes=mean_bytes, group_rows=group_rows, recorded=recorded,
    )  # fmt: skip


def _require_possible(request: Request) -> None:
    path = request.target.path
    if request.rule.action != "keep":
        raise ConfigError("EOS can only be added or stripped between token formats", path=path)
    if request.to.name not in TARGETS and (request.to.name in BUILT_IN or request.to.traits.tokens):
        raise Unsupported(f"{request.to.name} can't hold these samples", path=path, expected=", ".join(TARGETS))
    if request.group_rows is not None and request.group_rows < 1:
        raise ConfigError("a group needs at least one sample", found=request.group_rows)
    if request.target_options.get("split_ratio") is not None:
        hint = "Convert without it, then run `penstock prepare --ratio …`"
        raise ConfigError("split_ratio isn't supported in a conversion", path=path, hint=hint)


def _shared_plan(identity: Mapping[str, Any]) -> Plan:
    """Return the plan that other runs follow, by the names of options that errors show."""
    options = {f"--{name.replace('_', '-')}": value for name, value in identity["options"].items()}
    if "size_limit" in identity["options"]:
        options["--size-limit"] = parse_size(identity["options"]["size_limit"])  # "1kb" and 1024 are one plan
    options |= {"--to": identity["to"], "the source": identity["source"], "--group-rows": identity["group_rows"]}
    try:
        plain = msgspec.json.decode(msgspec.json.encode({**options, "--columns": identity["columns"]}))
    except (UnicodeEncodeError, OverflowError):  # not UTF-8, or more than 64 bits, which `json` can encode
        plain = {"what is asked for": json.dumps(identity, sort_keys=True)}
    return Plan(options=plain, inputs=(), task_bytes=0, engine="convert")


def _group_rows(options: Mapping[str, Any], mean_bytes: int, *, once: bool) -> int:
    limit_bytes = parse_size(options.get("size_limit", SIZE_LIMIT_BYTES)) or SIZE_LIMIT_BYTES
    group_bytes = max(_LEAST_GROUP_BYTES, limit_bytes * (1 if once else _GROUP_SHARDS))
    return max(1, group_bytes // max(1, mean_bytes))


def _mean_bytes(samples: Sequence[Sample]) -> int:
    return sum(map(_size, samples)) // max(1, len(samples))


def _size(sample: Sample) -> int:
    """Estimate the bytes of a sample."""
    total = 16
    for value in sample.values():
        if isinstance(value, str | bytes):
            total += len(value)
        elif isinstance(value, int):
            total += len(str(value))
        else:
            total += getattr(value, "nbytes", 0) or len(json.dumps(value, default=str))
    return total


# --- the source ------------------------------------------------------------------------------------------------------


def _open_input(request: Request) -> tuple[Input, list[Sample]]:
    """Return the source and its first samples."""
    source = request.source
    carried: Sequence[Entry] = ()
    unread: Sequence[str] = ()
    if isinstance(source, Place):
        is_table, shown = request.source_format == TABLE, source.path
        raw = {"raw": True} if request.source_format in STORED else {}
        options: dict[str, Any] = {} if is_table else {"read": "pread", **request.source_options} | raw
        dataset = Dataset(
            source, request.source_format, OpenOptions(**options), request.table, request.prefix_keys,
            every_file=request.to.name == "folder",
        )  # fmt: skip
        if not is_table:  # all workers use the list that exists now
            whole, keeps = dataset.open_all(), request.run_options.keep_excluded
            dataset.require_as_recorded(whole)
            dataset, unread = _with_wanted_columns(dataset, whole, request)
            carried = carried_list(whole).entries if keeps else ()
            dataset = dataset.with_excludes(NO_LIST if keeps else excluded_list(whole))
        if carried and request.source_format == "folder":
            what, hint = "files of a folder become parts of samples with different indices", "Omit --keep-excluded"
            raise ConfigError(what, path=shown, hint=hint)
        open_rows: Callable[[], Rows] = dataset.rows
    elif hasattr(source, "__getitem__") and hasattr(source, "fingerprint"):
        opened, shown = cast(Source[Sample], source), repr(source)[:80]
        require_provable_as_recorded(opened)
        open_rows = functools.partial(SourceRows, kept(opened))
    else:
        samples = map(_own_copy, cast(Iterable[Sample], source))  # a generator may yield one dict again and again
        first = list(itertools.islice(samples, FIRST_SAMPLES))
        for index, sample in enumerate(first):
            if not isinstance(sample, dict):
                found = type(sample).__name__
                raise ConfigError(f"sample {index} is not a dict", found=found, expected="{name: value, …}")
        return Input("samples", samples=itertools.chain(first, samples)), first
    rows = open_rows()
    require_no_planes(rows.source, "a conversion to samples", shown)
    place = source if isinstance(source, Place) else None
    list_options = {"keep_excluded": [ExcludeList(tuple(carried)).digest]} if carried else left_out(rows.source)
    about: dict[str, Any] = {"inputs": _inputs(source, rows), "left_out": list_options}
    return Input(shown, open_rows, rows, place, carried=carried, unread=unread, **about), _first_samples(rows)


def _own_copy(value: Any) -> Any:
    """Return a copy that doesn't change if the caller reuses its dicts, lists and buffers."""
    if isinstance(value, dict):
        return {name: _own_copy(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_own_copy(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, np.ndarray):
        return value.copy()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _with_wanted_columns(dataset: Dataset, source: Source[Sample], request: Request) -> tuple[Dataset, Sequence[str]]:
    """Return the dataset with only the columns to write, and the names of the others, which may be unreadable."""
    columns = request.columns
    if not columns or dataset.format in (*STORED, *TEXT_FORMATS) or is_token_source(source):
        return dataset, ()
    try:
        schema = source.schema
    except Unsupported:  # files of tables may differ in other columns
        return replace(dataset, options=replace(dataset.options, columns=tuple(columns))), ()
    names = [one.name for one in schema.fields]
    if schema.open or not all(name in names for name in columns):
        return dataset, ()
    wanted = [name for name in names if name in columns or (name == KEY and request.to.name in PART_FORMATS)]
    options = replace(dataset.options, columns=tuple(wanted))
    return replace(dataset, options=options), [name for name in names if name not in wanted]


def _without_incomplete(given: Input, first: list[Sample], columns: Sequence[Column]) -> tuple[Input, list[Sample]]:
    """Keep only samples that have all columns; read all samples once. Raise `ConfigError` if none has."""

    def is_complete(sample: Sample) -> bool:
        return all(column.is_in(sample) for column in columns if column.source != KEY)

    first = list(filter(is_complete, first))
    rows, open_rows = given.rows, given.open_rows
    if rows is None or open_rows is None:
        return replace(given, samples=filter(is_complete, given.samples)), first
    pairs = rows.numbered(0, len(rows), _MOST_BATCH)
    indices = np.array([index for index, sample in pairs if is_complete(sample)], np.int64)
    if not len(indices):
        names = ", ".join(column.source for column in columns)
        hint = "Select fewer columns with --columns (columns=)"
        raise ConfigError("no sample has all columns", path=given.shown, found=names, hint=hint)
    selected = SelectedRows(rows, indices)
    open_selected = functools.partial(_select_rows, open_rows, indices)
    given = replace(given, open_rows=open_selected, rows=selected, skipped=len(rows) - len(indices))
    return given, first or selected.samples(0, 1)


def _select_rows(open_rows: Callable[[], Rows], indices: Any) -> Rows:
    return SelectedRows(open_rows(), indices)


def _inputs(source: Any, rows: Rows) -> dict[str, str]:
    """Return the name and digest of a source that has a path; see `penstock lineage`."""
    if not isinstance(source, Place):
        recipe = source.recipe() if hasattr(source, "recipe") else {}
        if not isinstance(recipe.get("path"), str) or source.children():
            return {}
        source = place_of(recipe["path"])
    if isinstance(rows, TableRows):
        prints = (sample_fingerprint(one.store, "input", b"", [("", one.path)]) for one in rows.places)
        return {name: f"sample:{one}" for name, one in zip(distinct_names(rows.places), prints, strict=True)}
    return {distinct_names([source])[0]: whole_of(rows.source).fingerprint}


def _first_samples(rows: Rows) -> list[Sample]:
    """Read the first samples, up to 1000 in about 64 MiB."""
    found: list[Sample] = []
    size_bytes = 0
    n_rows = len(rows)
    while len(found) < min(n_rows, FIRST_SAMPLES) and size_bytes < _FIRST_BYTES:
        stop = min(n_rows, FIRST_SAMPLES, max(1, 2 * len(found)))
        more = rows.samples(len(found), stop)
        size_bytes += sum(map(_size, more))
        found += more
    return found


def _encodings(given: Input) -> dict[str, str]:
    source = stored(whole_of(given.source))
    if not isinstance(source, ShardSource) or not source.shards:
        return {}
    layout = common_layout(source.shards, given.shown)
    return dict(zip(layout.column_names, layout.column_encodings, strict=True))


def _recorded_tokens(source: Any) -> dict[str, Any]:
    """Return the fields of the side file with which tokens can be converted back."""
    if not is_token_source(source):
        return {}
    manifest = getattr(source, "manifest", None)
    if not isinstance(manifest, Manifest):
        return {"eos_id": source.eos_id}
    return {
        "eos_id": source.eos_id, "tokenizer": manifest.tokenizer, "tokenizer_digest": manifest.tokenizer_digest,
    }  # fmt: skip

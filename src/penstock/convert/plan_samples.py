"""What a conversion of samples does: what is read, what its columns become, and how it is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec
import numpy as np

from penstock._kinds import is_token_source
from penstock._planes import require_no_planes
from penstock.abc import Source
from penstock.convert.asked import Asked, can_be_shared
from penstock.convert.columns import GROUPED, PART_FORMATS, TEXT_FORMATS, Column, RowMaker, choose_columns
from penstock.convert.output import Output
from penstock.convert.rows import (
    KEY,
    STORED,
    Dataset,
    FolderRows,
    Input,
    Opened,
    Rows,
    Selected,
    SelectedRows,
    SourceRows,
    batches,
    own_copy,
)
from penstock.convert.tables import TABLE, TableRows
from penstock.convert.values import field_map_of
from penstock.engine.options import RunOptions
from penstock.engine.plan import Plan
from penstock.engine.work import work_folder
from penstock.errors import ConfigError, Unsupported
from penstock.executors import HERE
from penstock.formats import BUILT_IN
from penstock.formats._excluding import stored
from penstock.formats._kept import carried_list, left_out, whole_of
from penstock.formats._proof import require_provable_as_recorded
from penstock.formats.samples.webdataset.source import WebdatasetSource
from penstock.formats.shards.merge import common_layout
from penstock.formats.shards.source import ShardSource
from penstock.formats.shards.writer import SIZE_LIMIT_BYTES, parse_size
from penstock.store.exclude_list import NO_LIST, Entry, ExcludeList
from penstock.store.fingerprint import sample_fingerprint
from penstock.store.place import Place, distinct_names, place_of
from penstock.types import Manifest, OpenOptions, Sample

TARGETS = (*GROUPED, *PART_FORMATS, "jsonl")
FIRST_SAMPLES = 1000
"""Samples that tell what columns are, where no schema does."""

_RECORDED_VERSION = 2
"""Version of the plan whose digest side files hold; not that of unfinished work."""

_FIRST_BYTES = 1 << 26
_GROUP_SHARDS = 4
_LEAST_GROUP_BYTES = 1 << 16
_BATCH_BYTES = 1 << 23
_MOST_BATCH = 1024


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """A conversion of samples that makes sense.

    Attributes:
        given: what is read.
        maker: of the rows that are written.
        mean_bytes: of a row, about.
        group_rows: rows of a group.
        output: what is written.
        recorded: fields of the side file that tell of the source.
        lost: what the source holds and the target has no place for.
        how: how to run it.
        shared: that work, as others know it.
    """

    given: Input
    maker: RowMaker
    mean_bytes: int
    group_rows: int
    output: Output
    recorded: Mapping[str, Any]
    lost: tuple[str, ...]
    how: RunOptions
    shared: Plan

    @property
    def batch_rows(self) -> int:
        """Rows that are read at once."""
        return max(1, min(_MOST_BATCH, _BATCH_BYTES // max(1, self.mean_bytes)))

    def field_map(self, parts: Iterable[str]) -> dict[str, str]:
        """Field → its parts, as in `dataset.yaml`, for columns whose parts depend on the content of each sample."""
        stems = [one.name for one in self.maker.columns if one.spreads and one.read not in ("files", "numbered")]
        return field_map_of(stems, sorted(parts)) if self.output.dataset.format == "webdataset" else {}

    @property
    def is_grouped(self) -> bool:
        """Whether many processes write it in groups: shards always, tars and files where that is asked for."""
        to, place, sharing = self.output.dataset.format, self.output.place, self.how
        if to not in PART_FORMATS or not can_be_shared(to, place):
            return can_be_shared(to, place)
        here = isinstance(self.how.executor, str) and self.how.executor in HERE
        asked = sharing.is_distributed or sharing.restart or (self.how.workers or 1) > 1 or not here
        return asked or work_folder(place, inside=False).is_there()


def plan_samples(asked: Asked) -> SamplePlan:
    """What is read, what is written, and what gets lost.

    Raises:
        NotFound: no source.
        Unsupported: the target's format can't hold these samples; the message says why.
        ConfigError: options that make no sense.
    """
    to = asked.to.name
    _require_sense(asked)
    given, first = _input(asked)
    recorded, dataset = {"eos_id": asked.of_source.get("eos_id"), **_recorded(given.rows)}, _target(asked)
    format = asked.source_format if isinstance(given.dataset, Dataset) and asked.source_format != TABLE else "value"
    encodings = _encodings(given) if format in ("mds", *TEXT_FORMATS) else {}
    if isinstance(given.rows, TableRows) and not first:
        first = [dict.fromkeys(given.rows.names, "")]  # a header without rows names columns of text
    columns, lost = choose_columns(to, format, encodings, first, asked.columns, given.shown, asked.missing)
    if isinstance(asked.columns, Mapping):
        lost = [*(f"column {name!r}" for name in given.unread), *lost]
    if asked.missing == "skip":
        given, first = _complete(given, first, columns)
    if isinstance(given.rows, FolderRows) and given.rows.left_out:
        lost.append(f"{given.rows.left_out} files (without an extension, hidden, or created by the operating system)")
    tars = stored(_source_of(given.rows))
    if isinstance(tars, WebdatasetSource) and tars.ignored is not None:
        lost.append(f"tar members that belong to no sample: {tars.ignored}")
    rest = "copy" if to in PART_FORMATS and format in PART_FORMATS else "error"
    rest = "ignore" if asked.columns is not None else rest
    maker = RowMaker(columns, to in PART_FORMATS and KEY not in [one.name for one in columns], given.shown, rest)
    mean_bytes = _mean_bytes([maker(sample, index) for index, sample in enumerate(first)])
    options = dict(asked.of_target)
    if to in GROUPED:
        options["columns"] = {one.name: one.write.partition(":")[2] for one in columns}
    group_rows = asked.group_rows or _group_rows(options, mean_bytes, once=given.rows is None)
    written = [[one.source, one.name, one.read, one.write, one.missing] for one in columns]
    if given.skipped:
        written.append(["missing", "skip"])
    source = None if given.rows is None else given.rows.fingerprint
    what = {"to": to, "source": source, "columns": written, "options": options, "group_rows": group_rows, "version": 1}
    output = Output(dataset, options, asked.how.overwrite, None if given.rows is None else what)
    shared = _shared(what)
    known_by = replace(shared, version=_RECORDED_VERSION).digest()
    recorded["options"] = {"command": "convert", "group_rows": group_rows, "plan": known_by, **given.left_out}
    recorded["inputs"] = given.inputs
    shared = replace(shared, options={**shared.options, "--overwrite": asked.how.overwrite})
    shape = (given, maker, mean_bytes, group_rows, output, recorded, tuple(lost))
    return SamplePlan(*shape, asked.how, shared)


def _complete(given: Input, first: list[Sample], columns: Sequence[Column]) -> tuple[Input, list[Sample]]:
    """Only the samples that have all columns; reads all samples once.

    Raises:
        ConfigError: no sample has all of them.
    """

    def is_complete(sample: Sample) -> bool:
        return all(column.is_in(sample) for column in columns if column.source != KEY)

    first = list(filter(is_complete, first))
    if given.rows is None or given.dataset is None or isinstance(given.dataset, Selected):
        return replace(given, samples=filter(is_complete, given.samples)), first
    found = enumerate(itertools.chain.from_iterable(batches(given.rows, 0, len(given.rows), _MOST_BATCH)))
    indices = np.array([index for index, sample in found if is_complete(sample)], np.int64)
    if not len(indices):
        names = ", ".join(column.source for column in columns)
        hint = "Select fewer columns with --columns (columns=)"
        raise ConfigError("no sample has all columns", path=given.shown, found=names, hint=hint)
    rows, dataset = given.rows, Selected(given.dataset, indices)
    skipped = len(rows) - len(indices)
    first = first or SelectedRows(rows, indices).read(0, 1)
    return replace(given, dataset=dataset, rows=SelectedRows(rows, indices), skipped=skipped), first


def _shared(what: Mapping[str, Any]) -> Plan:
    """All that decides the bytes, as a plan that others join, or are told in what they differ."""
    options = {f"--{name.replace('_', '-')}": value for name, value in what["options"].items()}
    if "size_limit" in what["options"]:
        options["--size-limit"] = parse_size(what["options"]["size_limit"])  # "1kb" and 1024 are one plan
    told = {"--to": what["to"], "the source": what["source"], "--group-rows": what["group_rows"]}
    try:
        plain = msgspec.json.decode(msgspec.json.encode({**options, **told, "--columns": what["columns"]}))
    except (UnicodeEncodeError, OverflowError):  # no UTF-8, or more than 64 bits: what JSON holds all the same
        plain = {"what is asked for": json.dumps(what, sort_keys=True)}
    return Plan(options=plain, inputs=(), task_bytes=0, engine="convert")


def _require_sense(asked: Asked) -> None:
    path = asked.target.path
    if asked.rule.action != "keep":
        raise ConfigError("EOS can only be added or stripped between token formats", path=path)
    if asked.to.name not in TARGETS and (asked.to.name in BUILT_IN or asked.to.traits.tokens):
        raise Unsupported(f"{asked.to.name} can't hold these samples", path=path, expected=", ".join(TARGETS))
    if asked.group_rows is not None and asked.group_rows < 1:
        raise ConfigError("a group needs at least one sample", found=asked.group_rows)
    if asked.of_target.get("split_ratio") is not None:
        hint = "Convert without it, then run `penstock prepare --ratio …`"
        raise ConfigError("split_ratio isn't supported in a conversion", path=path, hint=hint)


# --- the source ----------------------------------------------------------------------------------------------------


def _input(asked: Asked) -> tuple[Input, list[Sample]]:
    """What is read, and the first samples."""
    source = asked.source
    if isinstance(source, Place):
        raw = {"raw": True} if asked.source_format in STORED else {}
        options: dict[str, Any] = {} if asked.source_format == TABLE else {"read": "pread", **asked.of_source} | raw
        dataset: Dataset | Opened = Dataset(
            source, asked.source_format, OpenOptions(**options), asked.table, asked.prefix_keys,
            every_file=asked.to.name == "folder",
        )  # fmt: skip
        shown = source.path
        carried: Sequence[Entry] = ()
        unread: Sequence[str] = ()
        if asked.source_format != TABLE:  # all workers go by the list that is there now
            seen = dataset.opened()
            dataset.require_as_recorded(seen)
            dataset, unread = _with_wanted_columns(dataset, seen, asked)
            carried = carried_list(seen).entries if asked.how.keep_excluded else ()
            dataset = dataset.whole() if asked.how.keep_excluded else dataset.settled(seen)
        if carried and asked.source_format == "folder":
            what, hint = "files of a folder become parts of samples with different indices", "Omit --keep-excluded"
            raise ConfigError(what, path=shown, hint=hint)
    elif hasattr(source, "__getitem__") and hasattr(source, "fingerprint"):
        carried, unread = (), ()
        dataset, shown = Opened(cast(Source[Sample], source)), repr(source)[:80]
        require_provable_as_recorded(source)
    else:
        run = map(own_copy, cast(Iterable[Sample], source))  # a generator may yield one dict again and again
        first = list(itertools.islice(run, FIRST_SAMPLES))
        _require_samples(first)
        return Input("samples", None, None, itertools.chain(first, run)), first
    rows = dataset.rows()
    require_no_planes(_source_of(rows), "a conversion to samples", shown)
    kept_list = {"keep_excluded": [ExcludeList(tuple(carried)).digest]} if carried else left_out(_source_of(rows))
    about = (_excluded(rows), _inputs(source, rows), kept_list, carried)
    return Input(shown, dataset, rows, (), *about, unread=unread), _first(rows)


def _with_wanted_columns(dataset: Dataset, source: Source[Sample], asked: Asked) -> tuple[Dataset, list[str]]:
    """Return the dataset with only the columns to write, and the names of the others, which may be unreadable."""
    by_name = dataset.format not in (*STORED, *TEXT_FORMATS) and not is_token_source(source)
    if not asked.columns or not by_name:
        return dataset, []
    try:
        schema = source.schema
    except Unsupported:  # files of tables may differ in other columns
        return replace(dataset, options=replace(dataset.options, columns=tuple(asked.columns))), []
    if schema.open:
        return dataset, []
    names = [one.name for one in schema.fields]
    wanted = [name for name in names if name in asked.columns or (name == KEY and asked.to.name in PART_FORMATS)]
    if not all(name in names for name in asked.columns):
        return dataset, []
    options = replace(dataset.options, columns=tuple(wanted))
    return replace(dataset, options=options), [name for name in names if name not in wanted]


def _inputs(source: Any, rows: Rows) -> dict[str, str]:
    """Name and digest of a source that is at a place; see `penstock lineage`."""
    if not isinstance(source, Place):
        recipe = source.recipe() if hasattr(source, "recipe") else {}
        if not isinstance(recipe.get("path"), str) or source.children():
            return {}
        source = place_of(recipe["path"])
    opened = _source_of(rows)
    if isinstance(rows, TableRows):
        prints = (sample_fingerprint(one.store, "input", b"", [("", one.path)]) for one in rows.places)
        return {name: f"sample:{one}" for name, one in zip(distinct_names(rows.places), prints, strict=True)}
    return {distinct_names([source])[0]: whole_of(opened).fingerprint}


def _source_of(rows: Rows | None) -> Any:
    return getattr(rows, "source", None)


def _excluded(rows: Rows) -> int:
    """Samples that the source's exclude list leaves out."""
    return rows.excluded if isinstance(rows, SourceRows | FolderRows) else 0


def _first(rows: Rows) -> list[Sample]:
    """The first samples, up to 1000 in about 64 MiB."""
    found: list[Sample] = []
    size_bytes = 0
    n_rows = len(rows)
    while len(found) < min(n_rows, FIRST_SAMPLES) and size_bytes < _FIRST_BYTES:
        stop = min(n_rows, FIRST_SAMPLES, max(1, 2 * len(found)))
        more = rows.read(len(found), stop)
        size_bytes += sum(map(_size, more))
        found += more
    return found


def _require_samples(samples: Sequence[Any]) -> None:
    for index, sample in enumerate(samples):
        if not isinstance(sample, dict):
            found = type(sample).__name__
            raise ConfigError(f"sample {index} is not a dict", found=found, expected="{name: value, …}")


def _encodings(given: Input) -> dict[str, str]:
    source: Any = getattr(given.rows, "source", None)
    source = stored(getattr(source, "whole", source))
    if not isinstance(source, ShardSource) or not source.shards:
        return {}
    layout = common_layout(source.shards, given.shown)
    return dict(zip(layout.column_names, layout.column_encodings, strict=True))


# --- the target ----------------------------------------------------------------------------------------------------


def _target(asked: Asked) -> Dataset:
    """The target, with the options for reading back what was stored."""
    to = asked.to.name
    split = asked.of_target.get("split") if to == "webdataset" else None
    options = OpenOptions(split=split, raw=to in STORED, read="pread", excludes=NO_LIST)
    return Dataset(asked.target, to, options, every_file=True)


def _recorded(rows: Rows | None) -> dict[str, Any]:
    """What the side file says of the source: of tokens what the way back needs."""
    found: dict[str, Any] = {}
    source = _source_of(rows)
    if is_token_source(source):
        manifest = getattr(source, "manifest", None)
        found["eos_id"] = source.eos_id
        if isinstance(manifest, Manifest):
            found |= {"tokenizer": manifest.tokenizer, "tokenizer_digest": manifest.tokenizer_digest}
    return found


def _group_rows(options: Mapping[str, Any], mean_bytes: int, *, once: bool) -> int:
    limit_bytes = parse_size(options.get("size_limit", SIZE_LIMIT_BYTES)) or SIZE_LIMIT_BYTES
    group_bytes = max(_LEAST_GROUP_BYTES, limit_bytes * (1 if once else _GROUP_SHARDS))
    return max(1, group_bytes // max(1, mean_bytes))


def _mean_bytes(samples: Sequence[Sample]) -> int:
    return sum(map(_size, samples)) // max(1, len(samples))


def _size(sample: Sample) -> int:
    """About how many bytes a sample takes."""
    total = 16
    for value in sample.values():
        if isinstance(value, str | bytes):
            total += len(value)
        elif isinstance(value, int):
            total += len(str(value))  # as JSON has it
        else:
            total += getattr(value, "nbytes", 0) or len(json.dumps(value, default=str))
    return total

"""What a conversion of samples does: what is read, what its columns become, and how it is cut."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from penstock._kinds import is_token_source
from penstock.abc import Source, Store
from penstock.convert.columns import PART_FORMATS, TEXT_FORMATS, choose_columns, find_columns
from penstock.convert.rows import STORED, FolderRows, Place, Rows, SourceRows, TableRows
from penstock.convert.samples import GROUPED, Input, RowMaker, Target
from penstock.errors import ConfigError, Unsupported
from penstock.formats import BUILT_IN, files_at, get_format, sniff
from penstock.formats.shards.merge import common_layout
from penstock.formats.shards.source import ShardSource
from penstock.formats.shards.writer import SIZE_LIMIT_BYTES, parse_size
from penstock.store.local import LocalStore
from penstock.store.outputs import require_other
from penstock.store.resolve import absolute, resolve, resolve_dataset
from penstock.types import Manifest, OpenOptions, Sample

TABLES = (".csv", ".tsv")
TARGETS = (*GROUPED, *PART_FORMATS, "jsonl")
FIRST_SAMPLES = 1000
"""Samples that tell what columns are, where no schema does."""

_FIRST_BYTES = 1 << 26
_GROUP_SHARDS = 4
_LEAST_GROUP_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A source that is open already; picklable as it is."""

    source: Source[Sample]

    def open(self) -> Rows:
        """Its rows."""
        return SourceRows(self.source)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller of `convert` said of a conversion of samples.

    Attributes:
        to: format of the target.
        format: of the source, None for whatever it is.
        columns: of the target: name → encoding; or names alone.
        group_rows: rows of a group, None for as many as make some shards.
        overwrite: replace the target.
        of_source: options of the source.
        of_target: options of the target's writer.
    """

    to: str
    format: str | None
    columns: Mapping[str, str] | Sequence[str] | None
    group_rows: int | None
    overwrite: bool
    of_source: Mapping[str, Any]
    of_target: Mapping[str, Any]


def plan_samples(source: Any, store: Store, target: str, asked: Asked) -> tuple[Input, Target, tuple[str, ...]]:
    """What is read, what is written, and what gets lost.

    Raises:
        NotFound: no source.
        Unsupported: the target's format can't hold these samples; the reason is told.
        ConfigError: options that make no sense.
    """
    if asked.to not in TARGETS and (asked.to in BUILT_IN or get_format(asked.to).traits.tokens):
        raise Unsupported(f"{asked.to} can't hold these samples", path=target, expected=", ".join(TARGETS))
    if asked.group_rows is not None and asked.group_rows < 1:
        raise ConfigError("a group needs a sample", found=asked.group_rows)
    if asked.of_target.get("split_ratio") is not None:
        hint = "Convert without, then `penstock prepare --split-ratio …`"
        raise ConfigError("split_ratio can't be checked in a conversion", path=target, hint=hint)
    given, format, first = _input(source, asked)
    if given.place is not None and isinstance(source, str | os.PathLike):
        files = [given.path] if format == "value" else files_at(format, given.path)
        require_other(files, target, *files_at(asked.to, target))
    encodings = _encodings(given.rows, given.path) if format in ("mds", *TEXT_FORMATS) else {}
    found = find_columns(format, encodings, first)
    wanted, names = _wanted(asked.columns)
    if names is not None:
        found = [one for one in found if one.name in names]
        missing = sorted(set(names) - {one.name for one in found})
        if missing:
            raise ConfigError(f"no column {missing[0]!r}", path=given.path)
    columns, lost = choose_columns(asked.to, found, wanted, given.path)
    if isinstance(given.rows, FolderRows) and given.rows.left_out:
        lost.append(f"{given.rows.left_out} files without an extension, or hidden")
    maker = RowMaker(columns, asked.to, given.path)
    mean_bytes = _mean_bytes([maker(sample, index) for index, sample in enumerate(first)])
    options = dict(asked.of_target)
    if asked.to in GROUPED:
        options["columns"] = {one.name: one.write.partition(":")[2] for one in columns}
    place = Place(store, target, asked.to, _read_back(asked.to, options))
    group_rows = asked.group_rows or _group_rows(options, mean_bytes, once=given.rows is None)
    recorded = _recorded(given.rows, group_rows)
    return given, Target(place, tuple(columns), options, asked.overwrite, mean_bytes, group_rows, recorded), tuple(lost)


def is_table(source: Any, format: str | None) -> bool:
    """Whether a source is a file of comma- or tab-separated values, which is no dataset of ours."""
    if format not in (None, "table") or not str(source).endswith(TABLES):
        return False
    store, path = resolve(source)
    return isinstance(store, LocalStore) and os.path.isfile(path)


# --- the source ----------------------------------------------------------------------------------------------------


def _input(source: Any, asked: Asked) -> tuple[Input, str, list[Sample]]:
    """What is read, the format that tells how values stand, and the first samples."""
    if not isinstance(source, str | os.PathLike):
        if hasattr(source, "__getitem__") and hasattr(source, "fingerprint"):
            opened = cast(Source[Sample], source)
            rows: Rows = SourceRows(opened)
            place: Any = SourcePlace(opened)
            return Input(repr(source)[:80], place, rows), "value", _first(rows)
        run = iter(cast(Iterable[Sample], source))
        first = list(itertools.islice(run, FIRST_SAMPLES))
        _require_samples(first)
        return Input("samples", None, None, itertools.chain(first, run)), "value", first
    if is_table(source, asked.format):
        path = absolute(resolve(source)[1])
        place = Place(LocalStore(), path, "table", OpenOptions())
        return Input(path, place, place.open()), "value", _first(TableRows(path))
    follow_links = asked.of_source.get("follow_links", False)
    store, path = resolve_dataset(cast(str, source), follow_links=follow_links)
    format = asked.format or sniff(store, path).name
    options: dict[str, Any] = {"read": "pread", **asked.of_source} | ({"raw": True} if format in STORED else {})
    place = Place(store, path, get_format(format).name, OpenOptions(**options))
    rows = place.open()
    return Input(path, place, rows), format, _first(rows)


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
            raise ConfigError(f"sample {index} is no dict", found=found, expected="{name: value, …}")


def _encodings(rows: Rows | None, path: str) -> dict[str, str]:
    source = getattr(rows, "source", None)
    if not isinstance(source, ShardSource) or not source.shards:
        return {}
    layout = common_layout(source.shards, path)
    return dict(zip(layout.column_names, layout.column_encodings, strict=True))


def _wanted(columns: Any) -> tuple[dict[str, str] | None, list[str] | None]:
    if columns is None:
        return None, None
    if isinstance(columns, Mapping):
        return {str(name): str(one) for name, one in cast(Mapping[Any, Any], columns).items()}, None
    return None, [str(one) for one in columns]


# --- the target ----------------------------------------------------------------------------------------------------


def _read_back(to: str, options: Mapping[str, Any]) -> OpenOptions:
    split = options.get("split") if to == "webdataset" else None
    return OpenOptions(split=split, raw=to in STORED, read="pread")


def _recorded(rows: Rows | None, group_rows: int) -> dict[str, Any]:
    """What the side file says of the source; of tokens what the way back needs."""
    found: dict[str, Any] = {"options": {"command": "convert", "group_rows": group_rows}}
    source = getattr(rows, "source", None)
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
        else:
            total += getattr(value, "nbytes", 0) or len(json.dumps(value, default=str))
    return total

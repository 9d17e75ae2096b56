"""Steps of a run: the batch as the model gets it, sample by sample with its origin, and two batches side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._kinds import is_lane_stream, is_stream, is_token_source
from penstock._printable import recordable
from penstock._secrets import redact
from penstock.errors import ConfigError, TooLarge
from penstock.load.explain import explain_step
from penstock.load.history import stretch_of
from penstock.order import Sequential
from penstock.view.facts.bounds import IN_LIST, MOST_JSON_BYTES, Bounds, is_of_the_disk, most_sample_bytes
from penstock.view.facts.opening import OpenedRun
from penstock.view.facts.panel import Panels, describe_error, panels
from penstock.view.facts.token_run import MOST_TOKENS, TokenRun, tokens

MOST_SAMPLES = 64
"""Limit on the samples of a batch that are read and shown."""

MOST_ROWS = 1 << 16
"""Limit on the samples of a step with known origins."""


_ON_THE_FLY = "samples that are packed on the fly are unknown until the run reads them"


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a sample of a batch.

    Attributes:
        position: position in the run, over all ranks; `rank`: the reading rank.
        source: path of stage names to its source, separated by slashes.
        epoch, index: pass over that source, and the sample's index in it; None if packed on the fly.
        key: key of the sample, if it has one.
        documents: for token windows: document, and the range of its own tokens.
        made_of: input rows of such documents, if recorded; or the inputs of samples packed on the fly.
        path, offset_bytes, length_bytes: its first file range, if known.
        instead_of: index of the excluded sample that it replaces.
    """

    position: int
    rank: int
    source: str
    epoch: int | None
    index: int | None
    key: str | None
    documents: tuple[tuple[int, int, int], ...]
    made_of: tuple[str | None, ...]
    path: str | None
    offset_bytes: int | None
    length_bytes: int | None
    instead_of: int | None


@dataclass(frozen=True, slots=True)
class BatchField:
    """Column of a batch: name, kind, dtype, and shape, with None for dimensions that differ."""

    name: str
    kind: str
    dtype: str | None
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class BatchSample:
    origin: Origin
    sample: Panels


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """Step of a run, of one rank or of all.

    Attributes:
        step, rank, world: the step and its ranks; `rank` None for all.
        global_batch: samples per step over all ranks.
        fields: columns of the model's input.
        samples: the shown samples; `of`: number of samples in the batch.
        shares: source → its samples in the batch.
        error: why the samples can't be shown, if they can't; origins are always included.
    """

    step: int
    rank: int | None
    world: int
    global_batch: int
    fields: tuple[BatchField, ...]
    samples: tuple[BatchSample, ...]
    of: int
    shares: tuple[tuple[str, int], ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BatchComparison:
    """Two batches side by side."""

    a: BatchFacts
    b: BatchFacts
    rows: tuple[tuple[str, int, int], ...]
    common: int
    only_in_a: int
    only_in_b: int


def batch(
    run: OpenedRun,
    step: int,
    rank: int | None = None,
    world: int | None = None,
    *,
    most: int = MOST_SAMPLES,
    start: int = 0,
    show_all: bool = False,
    bounds: Bounds = IN_LIST,
    strict: bool = False,
) -> BatchFacts:
    """Return the batch of a step as the model gets it.

    Reads the shown samples, and the indexes of the others. Samples stored in more than 64 MiB (16 MiB if the run reads
    JSON) aren't read and show an error. Columns are derived from the first samples, at most 8 samples and 16 MiB.

    Raises:
        ConfigError: the step or rank doesn't exist, the batch size is unknown, or the step has more than 65,536
            samples.
    """
    rows, found = _rows(run, step, rank, world or run.world)
    origins = [_origin(row, found["world"]) for row in rows]
    counts: dict[str, int] = {}
    for one in origins:
        counts[one.source] = counts.get(one.source, 0) + 1
    shown = origins[max(0, start) : max(0, start) + min(most, MOST_SAMPLES)]
    samples, error = _samples(run, shown, show_all, bounds, strict=strict)
    fields = _fields(run, shown, len(origins)) if error is None else ()
    return BatchFacts(
        step=step,
        rank=rank,
        world=found["world"],
        global_batch=found["global_batch"],
        fields=fields,
        samples=samples,
        of=len(origins),
        shares=tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))),
        error=error,
    )


def origins_of(run: OpenedRun, step: int, rank: int | None = None, world: int | None = None) -> tuple[Origin, ...]:
    """Return the origin of each sample of a step; raises as `batch`."""
    rows, found = _rows(run, step, rank, world or run.world)
    return tuple(_origin(row, found["world"]) for row in rows)


def compare_batches(
    a: OpenedRun,
    step_a: int,
    b: OpenedRun,
    step_b: int,
    rank_a: int | None = None,
    rank_b: int | None = None,
    **how: Any,
) -> BatchComparison:
    """Compare two steps, two ranks, or two runs; further arguments and errors as of `batch`."""
    one, other = batch(a, step_a, rank_a, **how), batch(b, step_b, rank_b, **how)
    ids_a, ids_b = (_ids(*which) for which in ((a, step_a, rank_a), (b, step_b, rank_b)))
    counts_a, counts_b = dict(one.shares), dict(other.shares)
    names = dict.fromkeys((*counts_a, *counts_b))
    rows = tuple((name, counts_a.get(name, 0), counts_b.get(name, 0)) for name in names)
    return BatchComparison(one, other, rows, len(ids_a & ids_b), len(ids_a - ids_b), len(ids_b - ids_a))


def _ids(run: OpenedRun, step: int, rank: int | None) -> set[tuple[str, int | None, str | None]]:
    return {(one.source, one.index, one.key) for one in origins_of(run, step, rank)}


def _rows(
    run: OpenedRun, step: int, rank: int | None, world: int | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    shape = run.shape()
    size = stretch_of(shape.history, step).global_batch
    if size > MOST_ROWS:
        raise ConfigError("the batch is too large to list", found=size, expected=f"at most {MOST_ROWS:,}")
    found = explain_step(shape, step, rank, world)
    return found["samples"], found


def _origin(row: dict[str, Any], world: int) -> Origin:
    inputs = row.get("inputs")
    first = row if inputs is None else inputs[0] if inputs else {}
    extent: Any = (first.get("extents") or [[None, None, None]])[0]
    if inputs is None:
        made_of = tuple(row.get("origins") or ())
    else:
        made_of = tuple(one["key"] or f"{'/'.join(one['path'])} {one['index']:,}".strip() for one in inputs)
    key = row.get("key")
    return Origin(
        position=row["position"],
        rank=row["position"] % world,
        source=redact(recordable("/".join(first.get("path", ())))) or "source",
        epoch=row.get("epoch"),
        index=row.get("index"),
        key=None if key is None else recordable(str(key)),
        documents=tuple((one[0], one[1], one[2]) for one in row.get("documents") or ()),
        made_of=tuple(None if one is None else redact(recordable(one)) for one in made_of),
        path=None if extent[0] is None else redact(recordable(extent[0])),
        offset_bytes=extent[1],
        length_bytes=extent[2],
        instead_of=row.get("instead_of"),
    )


def _samples(
    run: OpenedRun, origins: list[Origin], show_all: bool, bounds: Bounds, *, strict: bool
) -> tuple[tuple[BatchSample, ...], str | None]:
    made: list[BatchSample] = []
    for one in origins:
        if is_lane_stream(run.data):
            return tuple(BatchSample(one, Panels(one.index, one.key, (), 0)) for one in origins), _ON_THE_FLY
        try:
            shown = panels(sample_of(run, one.position), index=one.index, show_all=show_all, decode=run.decode,
                           bounds=bounds)  # fmt: skip
        except Exception as error:  # a function that may not run, or an unreadable sample: the others are shown
            if strict and is_of_the_disk(error):
                raise
            shown = Panels(one.index, one.key, (), 0, error=describe_error(error))
        made.append(BatchSample(one, shown))
    return tuple(made), None


def _stream_of(data: Any) -> Any:
    return data if is_stream(data) else Sequential(data)


def _stored_bytes(stream: Any, position: int) -> int:
    """Return the stored bytes of a sample, as far as known."""
    return sum(one.length_bytes for one in stream.locate(position).extents or ())


def sample_of(run: OpenedRun, position: int) -> Mapping[str, Any]:
    """Return the sample at a position of a run, as the model gets it.

    Raises:
        TooLarge: it is stored in more than 64 MiB, or 16 MiB if the run reads JSON.
        ConfigError: it is packed on the fly.
        Exception: any error of reading it.
    """
    stream: Any = _stream_of(run.data)
    if is_lane_stream(run.data):
        raise ConfigError(_ON_THE_FLY)
    stored_bytes = _stored_bytes(stream, position)
    if stored_bytes > MOST_JSON_BYTES and stored_bytes > (most_bytes := most_sample_bytes(_formats(run.data))):
        found = f"{stored_bytes:,} bytes at position {position:,}"
        raise TooLarge("a sample is too large to read at once", found=found, expected=f"at most {most_bytes:,}")
    return stream[position]


def window_tokens(
    run: OpenedRun, position: int, sample: Mapping[str, Any], *, start: int = 0, most: int = MOST_TOKENS
) -> TokenRun:
    """Return the tokens of `sample`, at `position` of a run, with the borders of its documents.

    Raises:
        ConfigError: the sample has no tokens.
    """
    documents = _stream_of(run.data).locate(position).documents
    how: dict[str, Any] = {"texts": run.vocabulary, "eos_id": eos_id_of(run.data), "documents": documents}
    return tokens(sample, **how, start=start, most=most)


def eos_id_of(node: Any) -> int | None:
    """Return the common EOS id of all token sources of a run; None if they have several, or none."""
    found = _eos_ids(node)
    return found.pop() if len(found) == 1 else None


def _eos_ids(node: Any) -> set[int | None]:
    if is_token_source(node):
        return {node.eos_id}
    return {one for child in node.children().values() for one in _eos_ids(child)}


def _formats(node: Any) -> set[str]:
    children = node.children()
    if not children:
        return {str(node.recipe().get("format", ""))}
    return {one for child in children.values() for one in _formats(child)}


def _small_ones(stream: Any, origins: list[Origin]) -> list[int]:
    """Return the positions of samples that may be read together."""
    found, left_bytes = list[int](), MOST_JSON_BYTES
    for one in origins:
        stored_bytes = _stored_bytes(stream, one.position)
        if stored_bytes <= left_bytes:
            found.append(one.position)
            left_bytes -= stored_bytes
    return found


def _fields(run: OpenedRun, origins: list[Origin], count: int) -> tuple[BatchField, ...]:
    """Return the columns, derived from the first shown samples, as far as they are small enough."""
    stream = _stream_of(run.data)
    try:
        columns = stream.get_batch(np.array(_small_ones(stream, origins[:8]), np.int64))
    except Exception:  # each sample reports its own error
        return ()
    made: list[BatchField] = []
    for name, column in columns.items():
        dtype = getattr(column, "dtype", None)
        is_array = dtype is not None and hasattr(column, "shape")
        shape = (count, *(int(size) for size in column.shape[1:])) if is_array else (count, None)
        kind = "array" if is_array else type(column[0]).__name__ if len(column) else "list"
        if not is_array and len(column):  # arrays of different lengths, such as cu_seqlens
            dtype = getattr(column[0], "dtype", None)
        made.append(BatchField(recordable(str(name)), kind, None if dtype is None else str(dtype), shape))
    return tuple(made)

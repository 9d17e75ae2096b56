"""`filter`: the documents or lines of a dataset that fit, in their order."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._limits import EXPRESSION_SECONDS
from penstock._secrets import redacted_repr
from penstock.abc import Store, Writer
from penstock.codec.hashes import hex_digest
from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError
from penstock.formats.jsonl.scan import fault_of
from penstock.formats.jsonl.source import decode_line
from penstock.reshape.expression import compile_expression, compile_pattern
from penstock.reshape.field_names import names_in, require_fields
from penstock.reshape.reorder import grouped
from penstock.reshape.rewrite import Counter, Output, Progress, Written, write_output, write_rows
from penstock.reshape.rows import AnyRows, LineRows, SampleRows, TokenRows, open_rows, read_run, runs
from penstock.reshape.time_limit import Clock, TookTooLong, each_at_most
from penstock.store.place import Given, Place, place_of
from penstock.types import IntArray

Keep = Callable[[int, int, NDArray[Any], IntArray], NDArray[np.bool_]]
"""(first, stop, rows back to back, lengths) → bool[stop - first]: which rows fit."""

Fits = Callable[[Mapping[str, Any]], bool]
"""Fields of a line → whether it fits."""

_VALUE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError)


@redacted_repr
@dataclass(frozen=True, slots=True)
class FilterReport:
    """What `filter` did.

    Attributes:
        output: what was written.
        dropped: documents or lines left out.
    """

    output: Written
    dropped: int


def filter(
    source: Given,
    target: Given,
    *,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    match: str | None = None,
    field: str = "text",
    where: str | None = None,
    indices: Sequence[int] | IntArray | Given | None = None,
    invert: bool = False,
    to: str | None = None,
    format: str | None = None,
    token_bytes: int | None = None,
    overwrite: bool = False,
    store: Store | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> FilterReport:
    """Write the documents, or the lines, that fit all conditions; their order is kept.

    Memory: some 50 MB, 64 MiB, 8 bytes a document, and 1 byte a document where indices are given.

    Args:
        source: dataset of documents, or a JSONL file.
        target: dataset to make.
        min_tokens: least length of a document, its EOS token counted; token sources only.
        max_tokens: greatest length; token sources only.
        match: regular expression that is searched in `field`; what has no text there does not fit. Lines and samples.
        field: key, or keys joined by dots.
        where: expression on the fields; see `penstock.reshape.expression`. Lines and samples.
        indices: those to keep, from 0, in any order; or a file with one a line, or a `.npy` file of integers.
        invert: keep what does not fit instead.
        to: format of the target; by default that of its suffix, else that of the source.
        format: format of the source; found by sniffing where it is None.
        token_bytes: width of the ids, where it is to be wider than that of the source.
        overwrite: replace the target.
        store: where all files are.
        progress: called after each run.
        options: what `penstock.open` takes for the source.

    Raises:
        ConfigError: no condition, one that can't be, a field that no sample has, or an output that exists.
        PrepareError: the expression fails on a line; it names the line.
        FormatError: the source is damaged.
    """
    rows, place = open_rows(source, format=format, store=store, **options), place_of(target, store).bare()
    chosen = None if indices is None else _chosen(indices)
    given: dict[str, Any] = {"min_tokens": min_tokens, "max_tokens": max_tokens, "match": match, "where": where}
    conditions: list[Keep] = []
    if min_tokens is not None or max_tokens is not None:
        conditions.append(_by_length(rows, min_tokens, max_tokens))
    if match is not None or where is not None:
        conditions.append(_by_content(rows, match, field, where))
    conditions += [] if chosen is None else [_by_index(rows, chosen)]
    if not conditions:
        raise ConfigError("nothing to filter by", hint="Give lengths, a pattern, an expression or indices")
    made_by = {name: value for name, value in given.items() if value is not None} | {"invert": invert}
    output = _known_by(Output(place, to, overwrite, token_bytes), chosen, {**given, "field": field})
    return write_kept(rows, _all_of(conditions, invert), output, {"command": "filter"} | made_by, progress)


def _all_of(conditions: Sequence[Keep], invert: bool) -> Keep:
    def keep(first: int, stop: int, data: NDArray[Any], lengths: IntArray) -> NDArray[np.bool_]:
        fits = np.logical_and.reduce([condition(first, stop, data, lengths) for condition in conditions])
        return ~fits if invert else fits

    return keep


def write_kept(
    rows: AnyRows,
    keep: Keep,
    output: Output,
    made_by: Mapping[str, Any],
    progress: Progress | None = None,
) -> FilterReport:
    """Write the rows that `keep` says."""
    counter = Counter(len(rows), progress)

    def fill(writer: Writer) -> None:
        for first, stop in runs(rows):
            data, lengths = read_run(rows, first, stop)
            groups = keep(first, stop, data, lengths).astype(np.int64) - 1
            for _, some, some_lengths in grouped(data, lengths, groups):
                write_rows(writer, rows, some, some_lengths)
            counter.add(stop - first)

    manifest = write_output(output, [rows], made_by, fill)
    return FilterReport(Written.of(output.place, manifest), len(rows) - manifest.num_samples)


# --- conditions ----------------------------------------------------------------------------------------------------


def _by_length(rows: AnyRows, least: int | None, most: int | None) -> Keep:
    if not isinstance(rows, TokenRows):
        raise ConfigError(
            "lines have no tokens", path=rows.place.path, hint="Filter by an expression: --where 'len(text) > 200'"
        )
    low = 0 if least is None else least
    high = np.iinfo(np.int64).max if most is None else most
    return lambda first, stop, data, lengths: (lengths >= low) & (lengths <= high)


def _by_content(rows: AnyRows, match: str | None, field: str, where: str | None) -> Keep:
    if isinstance(rows, TokenRows):
        raise ConfigError(
            "documents of tokens have no fields",
            path=rows.place.path,
            hint="Filter the JSONL file, or by --min-tokens, --max-tokens or --indices",
        )
    conditions: list[Fits] = []
    names: set[tuple[str, ...]] = set()
    if match is not None:
        keys = tuple(field.split("."))
        conditions.append(_field_matches(compile_pattern(match), keys))
        names.add(keys)
    if where is not None:
        conditions.append(compile_expression(where))
        names |= names_in(where)
    has_regex = match is not None or "match" in (where or "")
    require_fields(
        names,
        lambda row: _fields_at(rows, read_run(rows, row, row + 1)[0].data, row),
        len(rows),
        rows.place,
        columns=rows.layout.column_names if isinstance(rows, SampleRows) and rows.layout.format != "json" else None,
    )

    def keep(first: int, stop: int, data: NDArray[Any], lengths: IntArray) -> NDArray[np.bool_]:
        view = data.data
        fits = np.empty(len(lengths), np.bool_)
        start = 0
        with each_at_most(EXPRESSION_SECONDS) if has_regex else contextlib.nullcontext(Clock()) as clock:
            for row, end in enumerate(np.cumsum(lengths).tolist()):
                clock.row = row
                fields = _fields_at(rows, view[start:end], first + row)
                fits[row] = all(_holds(condition, fields, rows.place, first + row) for condition in conditions)
                start = end
        return fits

    return keep


def _field_matches(pattern: re.Pattern[str], keys: tuple[str, ...]) -> Fits:
    def fits(fields: Mapping[str, Any]) -> bool:
        value: Any = fields
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return isinstance(value, str) and pattern.search(value) is not None

    return fits


def _fields_at(rows: LineRows | SampleRows, row: memoryview, index: int) -> Mapping[str, Any]:
    return _fields_of(bytes(row[:-1]), rows.place, index) if isinstance(rows, LineRows) else rows.decode(row)


def _fields_of(line: bytes, place: Place, index: int) -> Mapping[str, Any]:
    try:
        value = decode_line(line)
    except (ValueError, RecursionError):
        found = fault_of(line)
        raise Corrupt(
            f"the line at index {index} is not valid JSON", path=place.path, found=found, hint="Mend it"
        ) from None
    return value if isinstance(value, dict) else {"value": value}


def _holds(condition: Fits, fields: Mapping[str, Any], place: Place, index: int) -> bool:
    try:
        return bool(condition(fields))
    except TookTooLong as error:
        raise PrepareError(
            f"the expression takes {error} for the sample at index {index}",
            path=place.path,
            hint="Its regex goes back too often: write it without repeats inside of repeats, or leave that sample out",
        ) from None
    except _VALUE_ERRORS as error:
        raise PrepareError(
            f"the expression fails on the line at index {index}: {error}",
            path=place.path,
            hint="Ask for the field first: text != None and len(text) > 200",
        ) from None


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Indices of samples to keep, and the file that they stand in."""

    indices: NDArray[Any]
    file: Place | None


def _chosen(given: Sequence[int] | IntArray | Given) -> _Chosen:
    if not isinstance(given, str | os.PathLike | Place):
        return _Chosen(np.asarray(given), None)
    file = place_of(given)
    return _Chosen(_read_indices(file), file)


def _known_by(output: Output, chosen: _Chosen | None, what: dict[str, Any]) -> Output:
    """The output with what decides its rows, and the file that is read for that."""
    if chosen is None:
        return replace(output, what=what)
    digest = hex_digest("xxh3_128", chosen.indices.astype(np.int64))
    return replace(output, reads=[chosen.file] if chosen.file else [], what=what | {"indices": digest})


def _by_index(rows: AnyRows, chosen: _Chosen) -> Keep:
    indices, where = chosen.indices, None if chosen.file is None else chosen.file.path
    if indices.ndim != 1 or (indices.dtype.kind not in "iu" and indices.size):
        raise ConfigError("not a list of indices", path=where, found=f"{indices.dtype} of shape {list(indices.shape)}")
    wrong = indices[(indices < 0) | (indices >= len(rows))]
    if len(wrong):
        raise ConfigError(
            "no such document or line",
            path=where or rows.place.path,
            found=int(wrong[0]),
            expected=f"0 to {len(rows) - 1}",
        )
    wanted = np.zeros(len(rows), np.bool_)
    wanted[indices.astype(np.int64)] = True
    return lambda first, stop, data, lengths: wanted[first:stop]


def _read_indices(file: Place) -> NDArray[Any]:
    path = file.path
    try:
        data = file.store.get(path)
        if path.endswith(".npy"):
            return np.load(io.BytesIO(data), allow_pickle=False)
        return np.array([int(line) for line in data.split()], np.int64)
    except NotFound:
        raise NotFound("no such file of indices", path=path, hint="Check the path") from None
    except (ValueError, OverflowError, EOFError) as error:
        raise ConfigError(f"not a list of indices: {error}", path=path, expected="one integer a line") from None

"""`filter`: the documents or lines of a dataset that fit, in their order."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from penstock._keywords import Opening
from penstock._limits import EXPRESSION_SECONDS
from penstock._secrets import redacted_repr
from penstock.codec.hashes import hex_digest
from penstock.engine.options import Counter, Progress, RunOptions
from penstock.engine.rows import StoredRows
from penstock.engine.run import run
from penstock.errors import ConfigError, NotFound, PrepareError
from penstock.executors import AnyExecutor
from penstock.formats._excluded import files_of_lines
from penstock.formats._exclusions import stored
from penstock.reshape.expression import (
    Clock,
    TookTooLong,
    compile_expression,
    compile_pattern,
    each_at_most,
    names_in,
    require_fields,
)
from penstock.reshape.outputs import Output, Written
from penstock.reshape.row_job import Deal, RowJob, RowRange, Run, ranges_of
from penstock.reshape.rows import SampleRows, TokenRows, open_rows
from penstock.store.base import Store
from penstock.store.derived import keeping_nothing
from penstock.store.place import Data, Given, Place, place_of
from penstock.types import IntArray

Fits = Callable[[Mapping[str, Any]], bool]
"""Fields of a line → whether it fits."""

_VALUE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError)


@redacted_repr
@dataclass(frozen=True, slots=True)
class FilterReport:
    """Result of `filter`.

    Attributes:
        output: the dataset written.
        dropped: number of documents or lines left out.
    """

    output: Written
    dropped: int


def filter(
    source: Data, target: Given, *, min_tokens: int | None = None, max_tokens: int | None = None,
    match: str | None = None, field: str = "text", where: str | None = None,
    indices: Sequence[int] | IntArray | Given | None = None, invert: bool = False, to: str | None = None,
    format: str | None = None, token_bytes: int | None = None, overwrite: bool = False, dry_run: bool = False,
    keep_map: bool = False, keep_excluded: bool = False,
    store: Store | None = None, progress: Progress | None = None,
    executor: AnyExecutor | None = None, workers: int | None = None,
    part: tuple[int, int] | None = None, finish: bool = False, no_work: bool = False, restart: bool = False,
    **options: Unpack[Opening],
) -> FilterReport:  # fmt: skip
    """Write the documents, lines or samples that match all conditions, in their original order.

    Memory: about 120 MB, and 8 bytes per document (9 with `indices`).

    Args:
        source: dataset of token documents, JSONL file or shards.
        target: path of the dataset to write.
        min_tokens: minimum length of a document, including its EOS token; token sources only.
        max_tokens: maximum length of a document, likewise.
        match: regular expression to search in `field`. Samples without text there don't match. Lines and samples only.
        field: the field; dots separate nested keys.
        where: expression on the fields; see `penstock.reshape.expression`. Lines and samples only.
        indices: numbers of the samples to keep, from 0, in any order; or a file with one per line, or a `.npy` file.
        invert: keep the samples that don't match instead.
        to: format of the target. By default that of its suffix, else that of the source.
        format: format of the source; detected by default.
        token_bytes: bytes per token id, if wider than in the source.
        overwrite: replace an existing target.
        dry_run: check everything and count what would be written, without writing.
        keep_map: write a row map next to the target, 8 bytes per row.
        keep_excluded: also copy excluded samples, with their entries: they are excluded in the target.
        store: store of all files.
        progress: called after each batch of rows.
        executor: how to run the work, as in `penstock.pack`. By default this process. Doesn't affect the output.
        workers: number of workers, as in `penstock.pack`.
        part: `(i, n)`: do part i (from 0) of n parts of a distributed job, as in `penstock.pack`.
        finish: finalize the distributed job, doing missing work first.
        no_work: with `finish`, only commit if nothing is missing.
        restart: discard existing work.
        options: options of `penstock.open` for the source.

    Returns:
        A report on the dataset written.

    Raises:
        ConfigError: there is no condition, one is invalid, no sample has the field, or the output exists.
        PrepareError: the expression fails on a line; the message names it.
        FormatError: the source is damaged.

    Examples:
        >>> import penstock as ps
        >>> report = ps.filter("docs.jsonl", "english.jsonl", where="lang == 'en'")
        >>> len(ps.open("english.jsonl"))
        4
        >>> report = ps.filter("corpus.pbin", "long.pbin", min_tokens=8)
        >>> len(ps.open("long.pbin"))
        3
    """
    cast(dict[str, Any], options)["keep_excluded"] = keep_excluded
    how = RunOptions(
        executor, workers, part, finish, no_work, restart, dry_run, overwrite, keep_map, keep_excluded, progress
    )
    with keeping_nothing(dry_run):
        rows, place = open_rows(source, format=format, store=store, **options), place_of(target, store).bare()
    chosen = _chosen(indices)
    given: dict[str, Any] = {"min_tokens": min_tokens, "max_tokens": max_tokens, "match": match, "where": where}
    conditions = Conditions(**given, field=field, invert=invert)
    if chosen is None and not conditions.by_length and not conditions.by_content:
        hint = "Pass lengths, a pattern, an expression (--where) or indices (--indices)"
        raise ConfigError("no filter condition", hint=hint)
    conditions.require_possible(rows)
    command = {"command": "filter"} | {name: value for name, value in given.items() if value is not None}
    output = _known_by(Output(place, to, token_bytes), chosen, {**given, "field": field})
    wanted = None if chosen is None else _wanted(rows, chosen)
    job = RowJob(
        output=place,
        outputs=[output],
        options=how,
        counter=Counter(len(rows), progress),
        sources=[rows],
        opened_with=options,
        command=command | conditions.more_of(chosen),
        make=Deal(conditions),
        laid=list(_tasks(rows, wanted)),
    )
    (written,) = run(job)
    mine = sum(one.num_samples for number, one in enumerate(job.tasks) if how.takes(number) or written.was_complete)
    return FilterReport(written, 0 if written.missing else mine - written.samples)


# --- conditions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of `filter`; picklable."""

    min_tokens: int | None
    max_tokens: int | None
    match: str | None
    field: str
    where: str | None
    invert: bool

    def more_of(self, chosen: _Chosen | None) -> dict[str, Any]:
        found: dict[str, Any] = {"invert": self.invert} | ({"field": self.field} if self.match is not None else {})
        return found if chosen is None else found | {"indices": chosen.digest, "num_indices": len(chosen.indices)}

    @property
    def by_length(self) -> bool:
        return self.min_tokens is not None or self.max_tokens is not None

    @property
    def by_content(self) -> bool:
        return self.match is not None or self.where is not None

    def require_possible(self, rows: StoredRows) -> None:
        """Raise `ConfigError` for conditions that don't apply to such rows."""
        if self.by_length and not isinstance(rows, TokenRows):
            raise ConfigError(
                "lines have no tokens", path=rows.place.path, hint="Filter by an expression: --where 'len(text) > 200'"
            )
        if not self.by_content:
            return
        if isinstance(rows, TokenRows):
            raise ConfigError(
                "token documents have no fields",
                path=rows.place.path,
                hint="Filter the JSONL file instead, or use --min-tokens, --max-tokens or --indices",
            )
        self.fits()
        fields = self._fields()
        names = {path[0] for path in fields}
        require_fields(
            fields,
            lambda row: rows.samples(row, row + 1, names)[0],
            len(rows),
            rows.place,
            columns=rows.layout.column_names if isinstance(rows, SampleRows) and rows.layout.format != "json" else None,
        )

    def _fields(self) -> set[tuple[str, ...]]:
        names = names_in(self.where) if self.where is not None else set[tuple[str, ...]]()
        return names | ({tuple(self.field.split("."))} if self.match is not None else set())

    def fits(self) -> list[Fits]:
        """Return the conditions on fields; raises `ConfigError` for invalid ones."""
        made = [] if self.match is None else [_field_matches(compile_pattern(self.match), tuple(self.field.split(".")))]
        return made if self.where is None else [*made, compile_expression(self.where)]

    def assign(self, rows: StoredRows, task: RowRange, run: Run) -> IntArray:
        """Return 0 for each row that fits, else -1; see `Assign`."""
        fits = np.ones(run.stop - run.first, np.bool_)
        if task.bits:
            bits = np.unpackbits(np.frombuffer(task.bits, np.uint8), count=task.stop - task.first)
            fits = bits[run.first - task.first : run.stop - task.first].astype(np.bool_)
        if self.by_length:
            low = 0 if self.min_tokens is None else self.min_tokens
            high = np.iinfo(np.int64).max if self.max_tokens is None else self.max_tokens
            fits = fits & (run.lengths >= low) & (run.lengths <= high)
        if self.by_content and not isinstance(rows, TokenRows):
            fits = fits & self._by_content(rows, run.first, run.data, run.lengths, self.fits())
        return (~fits if self.invert else fits).astype(np.int64) - 1

    def _by_content(
        self, rows: StoredRows, first: int, data: NDArray[Any], lengths: IntArray, conditions: list[Fits]
    ) -> NDArray[np.bool_]:
        view = data.data
        source = None if rows.num_excluded else rows.source
        fits = np.empty(len(lengths), np.bool_)
        decode = rows.decoder({path[0] for path in self._fields()})
        start = 0
        has_regex = self.match is not None or "match" in (self.where or "")
        with each_at_most(EXPRESSION_SECONDS) if has_regex else contextlib.nullcontext(Clock()) as clock:
            for row, end in enumerate(np.cumsum(lengths).tolist()):
                clock.row = row
                fields = decode(view[start:end], first + row)
                fits[row] = all(holds(condition, fields, rows.place, first + row, source) for condition in conditions)
                start = end
        return fits


def _tasks(rows: StoredRows, wanted: NDArray[np.bool_] | None) -> Iterator[RowRange]:
    for task in ranges_of(0, rows):
        yield task if wanted is None else replace(task, bits=np.packbits(wanted[task.first : task.stop]).tobytes())


def _field_matches(pattern: re.Pattern[str], keys: tuple[str, ...]) -> Fits:
    def fits(fields: Mapping[str, Any]) -> bool:
        value: Any = fields
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return isinstance(value, str) and pattern.search(value) is not None

    return fits


def holds(condition: Fits, fields: Mapping[str, Any], place: Place, index: int, source: Any = None) -> bool:
    """Return whether a sample matches; raises `PrepareError` with its index if the condition fails.

    If `source` is several files, the message names the line of a file instead.
    """
    try:
        return bool(condition(fields))
    except TookTooLong as error:
        raise PrepareError(
            f"the expression takes {error} for the sample at index {index}",
            path=place.path,
            hint="The regular expression backtracks too much. Remove nested repeats, or exclude that sample",
        ) from None
    except _VALUE_ERRORS as error:
        path, line = place.path, f"the line at index {index}"
        for file, first, stop in files_of_lines(stored(source)):
            if first <= index < stop:
                path, line = file, f"line {index - first + 1}"
        raise PrepareError(f"the expression fails on {line}: {error}", path=path, hint=_advice(error)) from None


def _advice(error: Exception) -> str:
    if isinstance(error, ArithmeticError):
        return "Check the value first: n != 0 and 1 / n > 2"
    if isinstance(error, TypeError) and not str(error).startswith("None "):
        return "Convert numbers with str(…), and text with int(…) or float(…): len(str(n)) > 2"
    if isinstance(error, ValueError):
        return "Check the text first: match(text, '^[0-9]+$') and int(text) > 2"
    return "Check that the field exists first: text != None and len(text) > 200"


@dataclass(frozen=True, slots=True)
class _Chosen:
    indices: NDArray[Any]
    file: Place | None

    @property
    def digest(self) -> str:
        return hex_digest("xxh3_128", np.ascontiguousarray(self.indices, np.int64))


def read_indices(given: Sequence[int] | IntArray | Given) -> IntArray:
    """Return int64[k]: indices in any form that `filter` takes.

    Raises `ConfigError` if they aren't indices, `NotFound` if the file doesn't exist.
    """
    chosen = _chosen(given)
    if chosen is None:
        return np.empty(0, np.int64)
    _require_list(chosen)
    return chosen.indices.astype(np.int64)


def _chosen(given: Sequence[int] | IntArray | Given | None) -> _Chosen | None:
    if given is None:
        return None
    file = place_of(given) if isinstance(given, str | os.PathLike | Place) else None
    return _Chosen(np.asarray(given) if file is None else _read_indices(file), file)


def _known_by(output: Output, chosen: _Chosen | None, what: dict[str, Any]) -> Output:
    """Return the output with what else determines its rows, and the file of indices."""
    if chosen is None:
        return replace(output, what=what)
    return replace(output, reads=[chosen.file] if chosen.file else [], what=what)


def _require_list(chosen: _Chosen) -> None:
    indices, where = chosen.indices, None if chosen.file is None else chosen.file.path
    if indices.ndim != 1 or (indices.dtype.kind not in "iu" and indices.size):
        raise ConfigError("not a list of indices", path=where, found=f"{indices.dtype} of shape {list(indices.shape)}")


def _wanted(rows: StoredRows, chosen: _Chosen) -> NDArray[np.bool_]:
    """Return bool[n]: which rows are chosen."""
    _require_list(chosen)
    indices, where = chosen.indices, None if chosen.file is None else chosen.file.path
    total = len(rows) + len(rows.excluded)  # indices are those of the dataset, as `find` tells them
    wrong = indices[(indices < 0) | (indices >= total)]
    if len(wrong):
        raise ConfigError(
            "index out of range",
            path=where or rows.place.path,
            found=int(wrong[0]),
            expected=f"0 to {total - 1}",
        )
    wanted = np.zeros(total, np.bool_)
    wanted[indices.astype(np.int64)] = True
    return wanted if rows.excluded.indices is None else np.delete(wanted, rows.excluded.indices)


def _read_indices(file: Place) -> NDArray[Any]:
    path = file.path
    try:
        data = file.store.get(path)
        if path.endswith(".npy"):
            return np.load(io.BytesIO(data), allow_pickle=False)
        return np.array([int(line) for line in data.split()], np.int64)
    except NotFound:
        raise NotFound(
            "the file of indices doesn't exist", path=path, hint="Check the path. The file needs one index per line"
        ) from None
    except (ValueError, OverflowError, EOFError) as error:
        found = "" if isinstance(error, EOFError) else str(error).rpartition(": ")[2]
        raise ConfigError("not a list of indices", path=path, found=found, expected="one integer per line") from None

"""Checking a JSONL file, its index and its side file. Never writes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from penstock.abc import Store
from penstock.errors import FormatError, PenstockError, UnsafeData, Unsupported
from penstock.formats._findings import MOST_FINDINGS, Problem
from penstock.formats._manifest import DATA, side_path
from penstock.formats._side_checks import check_files, check_side_file
from penstock.formats.jsonl.build import RANGE_BYTES, current_index, cut, index_path_for, require_separate_lines
from penstock.formats.jsonl.decompress import reader_of
from penstock.formats.jsonl.index import (
    decode_index,
    is_megatrons,
    lines_behind,
    misfits,
    outside,
    problem,
    remake,
    spread,
)
from penstock.formats.jsonl.scan import Fault, LineRange, fault_of, scan_lines
from penstock.formats.jsonl.source import require_flavor
from penstock.formats.jsonl.text import compression_of, scan_compressed
from penstock.formats.kit import finding_of
from penstock.store.place import Place
from penstock.store.side_file import file_facts
from penstock.types import Depth, Finding, IntArray, OpenOptions

NO_INDEX = "jsonl.no-index"
_SAMPLE_LINES = 1024


def check_jsonl(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Findings, in the order of their places. Memory: 64 bytes a line of the index, and a few times the longest line.

    `quick` looks at the structure of the index and at the borders of 1,024 of its lines, `sample` also parses these,
    `full` holds every line against JSON's rules and against the index.

    Raises:
        NotFound: no such file.
        ConfigError: no such flavor.
    """
    require_flavor(path, options.flavor)
    size_bytes = store.size(path)
    try:
        _require_separate(store, path, size_bytes)
    except Unsupported as error:
        return [finding_of("jsonl", error)]
    lines, problems = _check_index(store, path, size_bytes)
    findings = _listed(problems)
    if depth == "full":
        findings += _listed(_check_every_line(store, path, size_bytes, lines))
    elif depth == "sample":
        findings += _listed(_check_some_lines(store, path, size_bytes, lines))
    count = None if lines is None else len(lines)
    facts = functools.partial(file_facts, store, path, "jsonl", num_samples=count)
    manifest, side_findings = check_side_file("jsonl", store, path, side_path(path), facts)
    findings += side_findings
    if depth == "full" and manifest is not None:
        findings += check_files(store, "jsonl", side_path(path), manifest, {DATA: path})
    return sorted(findings, key=lambda one: -1 if one.offset_bytes is None else one.offset_bytes)


_SMALL_BYTES = 1 << 20
"""A compressed file of this size is read whole at depth `sample`."""


def check_file(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Return what `check_jsonl` finds; a compressed file is read whole at `full`, and a small one at `sample`.

    Else only its first bytes are read.

    Raises:
        NotFound: no such file.
        ConfigError: no such flavor.
    """
    compression = compression_of(path)
    if compression is None:
        return check_jsonl(store, path, options, depth)
    require_flavor(path, options.flavor)
    size_bytes = store.size(path)
    try:
        if depth == "full" or (depth == "sample" and size_bytes <= _SMALL_BYTES):
            scan_compressed(Place(store, path), compression)
        else:
            next(reader_of(Place(store, path), compression), None)
    except FormatError as error:
        return [finding_of("jsonl", error)]
    return []


def _require_separate(store: Store, path: str, size_bytes: int) -> None:
    """Raise `Unsupported` if the file is one JSON document; reads the first line."""
    first = scan_lines(LineRange(store, path, 0, min(size_bytes, 1), size_bytes))
    one_line = not first.num_faults and int(first.pairs.sum()) + 1 >= size_bytes
    if size_bytes and (first.num_faults or one_line):
        require_separate_lines(store, path, one_line=one_line)


def _listed(problems: Iterable[Problem]) -> list[Finding]:
    """The first problems of each kind one by one, the others as a count."""
    findings: list[Finding] = []
    counts: Counter[Problem] = Counter()
    for one in problems:
        kind = replace(one, what="", offset_bytes=None, found=None, expected=None)
        counts[kind] += 1
        if counts[kind] <= MOST_FINDINGS:
            findings.append(one.finding())
    for kind, count in counts.items():
        if count > MOST_FINDINGS:
            findings.append(replace(kind, what=f"{count - MOST_FINDINGS} more of these").finding())
    return findings


# --- the index ---------------------------------------------------------------------------------------------------


def _check_index(store: Store, path: str, size_bytes: int) -> tuple[IntArray | None, Iterable[Problem]]:
    """The entries in the order of their places, None where they can't be used, and what is wrong with them."""
    index_path = current_index(store, path, index_path_for(path))
    if not store.exists(index_path) or is_megatrons(store, index_path):
        if size_bytes == 0:
            return None, [problem("empty", "the file is empty, so it can't have an index", path, fix="Delete it")]
        fix = f"`penstock index {path}` creates it. Without one, each host scans the file once and caches the result"
        return None, [
            problem(NO_INDEX.removeprefix("jsonl."), "there is no index", index_path, fix=fix, severity="warning")
        ]
    try:
        lines = decode_index(store, index_path)
    except UnsafeData as error:
        return None, [_unreadable("unsafe-index", error, index_path, path)]
    except FormatError as error:
        return None, [_unreadable("index", error, index_path, path)]
    if any(True for _ in outside(path, lines, size_bytes)):
        return None, outside(path, lines, size_bytes)
    order: list[Problem] = []
    if (lines[1:, 0] < lines[:-1, 0]).any():
        what = "the entries aren't in the order of their lines"
        order.append(problem("order", what, index_path, fix=remake(path), severity="warning"))
        lines = lines[np.argsort(lines[:, 0], kind="stable")]
    misfit = list(misfits(store, path, spread(lines, _SAMPLE_LINES), size_bytes))
    behind = () if misfit else lines_behind(store, path, int(lines.sum(1).max(initial=0)), size_bytes)
    return (None if misfit else lines), chain(order, _overlaps(path, lines), misfit, behind)


def _unreadable(code: str, error: PenstockError, index_path: str, path: str) -> Problem:
    found, expected = (None if value is None else str(value) for value in (error.found, error.expected))
    return problem(code, error.what, index_path, error.offset_bytes, found, remake(path), expected)


def _overlaps(path: str, lines: IntArray) -> Iterator[Problem]:
    """Entries, in the order of their places, that begin inside the one before."""
    for entry in (np.flatnonzero(lines[1:, 0] <= lines[:-1].sum(1)) + 1).tolist():
        start, before = int(lines[entry, 0]), lines[entry - 1].tolist()
        what = "an index entry overlaps or repeats another one"
        yield problem("index-overlap", what, path, start, f"{before[1]} bytes at byte {before[0]}", remake(path))


# --- the lines ---------------------------------------------------------------------------------------------------


def _check_some_lines(store: Store, path: str, size_bytes: int, lines: IntArray | None) -> Iterator[Problem]:
    """Whether lines are JSON: 1,024 of the index, or where there is none the first ones of the file."""
    if lines is None:
        work = LineRange(store, path, 0, min(size_bytes, RANGE_BYTES), size_bytes)
        yield from (_invalid(path, fault) for fault in scan_lines(work).faults)
    else:
        yield from _faulty_entries(store, path, spread(lines, _SAMPLE_LINES))


def _check_every_line(store: Store, path: str, size_bytes: int, lines: IntArray | None) -> Iterator[Problem]:
    """Every line of the file against JSON's rules, and every entry of the index against the lines."""
    num_left_out, first_left_out = 0, 0
    for work in cut(LineRange(store, path, 0, size_bytes, size_bytes)):
        found = scan_lines(work)
        if lines is None:
            yield from (_invalid(path, fault) for fault in found.faults)
            continue
        first, stop = np.searchsorted(lines[:, 0], [work.start_bytes, work.stop_bytes]).tolist()
        entries = lines[first:stop]
        wrong = entries[~_among(entries, found.pairs)]
        misfit = list(misfits(store, path, wrong, size_bytes))
        yield from misfit or _faulty_entries(store, path, wrong)
        left_out = found.pairs[~np.isin(found.pairs[:, 0], entries[:, 0]), 0]
        if len(left_out) and not misfit:
            first_left_out = first_left_out if num_left_out else int(left_out[0])
            num_left_out += len(left_out)
    if num_left_out:
        fix = f"Nothing, if they are omitted on purpose. {remake(path)}"
        what = f"the index omits {num_left_out} valid lines"
        yield problem("left-out", what, path, first_left_out, fix=fix, severity="warning")


def _among(entries: IntArray, others: IntArray) -> NDArray[np.bool_]:
    """bool[k]: whether each of int64[k, 2] is in int64[n, 2], which is in order and without repeats."""
    places = np.minimum(np.searchsorted(others[:, 0], entries[:, 0]), max(0, len(others) - 1))
    return (others[places] == entries).all(1) if len(others) else np.zeros(len(entries), np.bool_)


def _faulty_entries(store: Store, path: str, lines: IntArray) -> Iterator[Problem]:
    for start, length in lines.tolist():
        line = store.get(path, start, length)
        reason = "a line end inside the entry" if b"\n" in line else fault_of(line)
        if reason is not None:
            yield _invalid(path, Fault(0, start, length, reason))


def _invalid(path: str, fault: Fault) -> Problem:
    fix = f"Fix it, or skip invalid lines: `penstock index {path} --on-error skip --overwrite`"
    return problem("invalid-line", "a line that is not valid JSON", path, fault.offset_bytes, fault.reason, fix)

"""Check a JSONL file, its index and its side file. Never writes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FormatError, UnsafeData, Unsupported
from penstock.formats._findings import Problem, by_place, limited
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
from penstock.store.base import Store
from penstock.store.place import Place
from penstock.store.side_file import file_facts
from penstock.types import Depth, Finding, IntArray, OpenOptions

NO_INDEX = "jsonl.no-index"
_SAMPLE_LINES = 1024


def check_jsonl(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Return the findings by place. Memory: 64 bytes per line of the index, and a few times the longest line.

    `quick` checks the structure of the index and the borders of 1,024 of its lines, `sample` also parses these lines,
    `full` parses every line and compares it with the index.

    Raises:
        NotFound: there is no such file.
        ConfigError: there is no such flavor.
    """
    require_flavor(path, options.flavor)
    size_bytes = store.size(path)
    try:
        _require_separate(store, path, size_bytes)
    except Unsupported as error:
        return [finding_of("jsonl", error)]
    lines, problems = _check_index(store, path, size_bytes)
    findings = list(limited(problems, path))
    if depth != "quick":
        check_lines = _check_every_line if depth == "full" else _check_some_lines
        findings += limited(check_lines(store, path, size_bytes, lines), path)
    count = None if lines is None else len(lines)
    facts = functools.partial(file_facts, store, path, "jsonl", num_samples=count)
    manifest, side_findings = check_side_file("jsonl", store, path, side_path(path), facts)
    findings += side_findings
    if depth == "full" and manifest is not None:
        findings += check_files(store, "jsonl", side_path(path), manifest, {DATA: path})
    return by_place(findings)


_SMALL_BYTES = 1 << 20
"""A compressed file of this size is read whole at depth `sample`."""


def check_file(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Return the findings of a file. A compressed file is read whole at `full`, and at `sample` if it is small.

    Otherwise only its first bytes are read.

    Raises:
        NotFound: there is no such file.
        ConfigError: there is no such flavor.
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


def _check_index(store: Store, path: str, size_bytes: int) -> tuple[IntArray | None, Iterable[Problem]]:
    """Return the entries by place, None if they can't be used, and the problems of the index."""
    index_path = current_index(store, path, index_path_for(path))
    if not store.exists(index_path) or is_megatrons(store, index_path):
        if size_bytes == 0:
            return None, [problem("empty", "the file is empty, so it can't have an index", path, fix="Delete it")]
        fix = f"`penstock index {path}` creates it. Without one, each host scans the file once and caches the result"
        return None, [Problem.warning(NO_INDEX, index_path, "there is no index", fix)]
    try:
        lines = decode_index(store, index_path)
    except (UnsafeData, FormatError) as error:
        code = "jsonl.unsafe-index" if isinstance(error, UnsafeData) else "jsonl.index"
        return None, [replace(Problem.of_error(code, error), path=index_path, fix=remake(path))]
    if any(True for _ in outside(path, lines, size_bytes)):
        return None, outside(path, lines, size_bytes)
    order: list[Problem] = []
    if (lines[1:, 0] < lines[:-1, 0]).any():
        what = "the entries aren't in the order of their lines"
        order.append(Problem.warning("jsonl.order", index_path, what, remake(path)))
        lines = lines[np.argsort(lines[:, 0], kind="stable")]
    misfit = list(misfits(store, path, spread(lines, _SAMPLE_LINES), size_bytes))
    behind = () if misfit else lines_behind(store, path, int(lines.sum(1).max(initial=0)), size_bytes)
    return (None if misfit else lines), chain(order, _overlaps(path, lines), misfit, behind)


def _overlaps(path: str, lines: IntArray) -> Iterator[Problem]:
    """Yield problems of entries, sorted by place, that begin inside the one before."""
    for entry in (np.flatnonzero(lines[1:, 0] <= lines[:-1].sum(1)) + 1).tolist():
        start, before = int(lines[entry, 0]), lines[entry - 1].tolist()
        what = "an index entry overlaps or repeats another one"
        yield problem("index-overlap", what, path, start, f"{before[1]} bytes at byte {before[0]}", remake(path))


def _check_some_lines(store: Store, path: str, size_bytes: int, lines: IntArray | None) -> Iterator[Problem]:
    """Parse 1,024 lines of the index, or without one the first lines of the file."""
    if lines is None:
        work = LineRange(store, path, 0, min(size_bytes, RANGE_BYTES), size_bytes)
        yield from (_invalid(path, fault) for fault in scan_lines(work).faults)
    else:
        yield from _faulty_entries(store, path, spread(lines, _SAMPLE_LINES))


def _check_every_line(store: Store, path: str, size_bytes: int, lines: IntArray | None) -> Iterator[Problem]:
    """Parse every line of the file, and compare it with the index."""
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
        yield Problem.warning("jsonl.left-out", path, what, fix, first_left_out)


def _among(entries: IntArray, others: IntArray) -> NDArray[np.bool_]:
    """Return bool[k]: which of int64[k, 2] are in int64[n, 2], which is sorted and without repeats."""
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

"""Check a JSONL file, its index and its side file; repair the index, and write side files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock.errors import FormatError, UnsafeData, Unsupported
from penstock.formats._findings import Problem, by_place, limited
from penstock.formats._manifest import DATA, file_digests, side_path
from penstock.formats._repairs import Damaged, Repair, Rewrite
from penstock.formats.jsonl.build import (
    RANGE_BYTES,
    IndexedLines,
    current_index,
    cut,
    encode_lines,
    index_path_for,
    require_separate_lines,
    write_index,
)
from penstock.formats.jsonl.decompress import reader_of
from penstock.formats.jsonl.energon import INDEX_CODE, check_energon_index, energon_index_path, plan_energon_index
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
from penstock.formats.jsonl.source import open_jsonl, require_flavor
from penstock.formats.jsonl.text import compression_of, scan_compressed
from penstock.formats.kit import check_side, finding_of
from penstock.store.base import Store
from penstock.store.place import Place
from penstock.store.put import put
from penstock.store.side_file import file_binding, file_facts, is_next, replace_side_file, sweep_next
from penstock.types import Action, Depth, Finding, IntArray, Manifest, OpenOptions

NO_INDEX = "jsonl.no-index"
_SAMPLE_LINES = 1024


def check_jsonl(store: Store, path: str, options: OpenOptions, depth: Depth) -> list[Finding]:
    """Return the findings by place. Memory: 64 bytes per line of the index, and a few times the longest line.

    `quick` checks the structure of the index and the borders of 1,024 of its lines, `sample` also parses these lines,
    `full` parses every line and compares it with the index. A compressed file is read whole at `full`, and at `sample`
    if it is small; otherwise only its first bytes are read.

    Raises:
        NotFound: the file doesn't exist.
        ConfigError: the flavor is unknown.
    """
    require_flavor(path, options.flavor)
    compression, size_bytes = compression_of(path), store.size(path)
    if compression is not None:
        return _check_compressed(Place(store, path), compression, size_bytes, depth)
    lines: IntArray | None = None
    if options.flavor == "energon":
        findings = check_energon_index(store, path, depth)
    else:
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
    return by_place([*findings, *check_side(store, path, "jsonl", count, depth)])


_SMALL_BYTES = 1 << 20
"""Size up to which a compressed file is read completely at depth `sample`."""


def _check_compressed(file: Place, compression: str, size_bytes: int, depth: Depth) -> list[Finding]:
    try:
        if depth == "full" or (depth == "sample" and size_bytes <= _SMALL_BYTES):
            scan_compressed(file, compression)
        else:
            next(reader_of(file, compression), None)
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


_CHARACTERS = "jsonl.index-counts-characters"


def _plan_index(damaged: Damaged) -> Iterator[Rewrite]:
    """Yield a new index in place of a wrong one. Invalid lines are skipped and counted.

    If the only fault is lengths in characters, the entries are kept in their order, and extended to the ends of their
    lines. Memory: 32 bytes per line.
    """
    store, path = damaged.store, damaged.path
    wrong = [one.code for one in damaged.findings if one.code.startswith(("jsonl.index", "jsonl.unsafe-index"))]
    if not wrong:
        return
    index_path = index_path_for(path)
    longer = _to_line_ends(store, path, index_path) if set(wrong) == {_CHARACTERS} else None
    if longer is not None:
        what = f"convert lengths from characters to bytes: extend {len(longer)} entries to the ends of their lines"

        def extend() -> None:
            put(store, index_path, b"".join(encode_lines([longer])))

        yield Rewrite(_CHARACTERS, index_path, what, extend)
        return

    def rebuild() -> str:
        lines = IndexedLines(store, path, store.size(path), skip_faulty=True)
        write_index(lines, store, index_path, overwrite=True)
        what = f"rebuilt the index: {lines.num_lines} lines"
        if lines.num_dropped:
            what += f", {lines.num_dropped} invalid lines skipped (first: line {lines.dropped[0].line})"
        return what

    yield Rewrite(wrong[0], index_path, "rebuild the index from the lines of the file", rebuild)


def _settle(damaged: Damaged) -> list[Action]:
    store, path = damaged.store, damaged.path
    side, for_energon = side_path(path), damaged.options.flavor == "energon"
    index_path = energon_index_path(path) if for_energon else index_path_for(path)
    belongs = is_next(store, side, lambda: file_facts(store, path, "jsonl"))
    return sweep_next(store, "jsonl.next", [index_path, side], belongs, write=damaged.write)


REPAIRS = (Repair(_settle, always=True), Repair(_plan_index), Repair(plan_energon_index, (INDEX_CODE,)))


def _to_line_ends(store: Store, path: str, index_path: str) -> IntArray | None:
    """Return int64[k, 2], the entries of an index as whole lines; None if one doesn't begin a line."""
    starts = decode_index(store, index_path)[:, 0]
    lines = np.concatenate([*IndexedLines(store, path, store.size(path), validate=False)])
    places = np.minimum(np.searchsorted(lines[:, 0], starts), len(lines) - 1)
    return lines[places] if np.array_equal(lines[places, 0], starts) else None


def write_jsonl_manifest(store: Store, path: str, options: OpenOptions, *, replace: bool = False) -> str:
    """Count and digest a JSONL file, and write its side file; return the path of that.

    Raises:
        FormatError: the index doesn't fit, or can't be made; or the existing side file differs, and `replace` is false.
    """
    size_bytes = store.size(path)
    manifest = Manifest(
        format="jsonl",
        num_samples=len(open_jsonl(store, path, options)),
        size_bytes=size_bytes,
        block_digests={DATA: file_digests(store, path)},
        binding=file_binding(store, path),
        tool=f"penstock {penstock.__version__}",
    )
    replace_side_file(store, side_path(path), manifest, replace=replace)
    return side_path(path)

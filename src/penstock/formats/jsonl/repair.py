"""Repair the index of a JSONL file, and write the side file of another tool's JSONL file."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

import penstock
from penstock.codec.pickles import PairListEncoder
from penstock.formats._manifest import DATA, file_digests, side_path
from penstock.formats._side_checks import repaired
from penstock.formats.jsonl.build import IndexedLines, index_path_for, write_index
from penstock.formats.jsonl.index import decode_index
from penstock.formats.jsonl.source import open_jsonl
from penstock.store.base import Store
from penstock.store.put import aborting
from penstock.store.side_file import file_binding, file_facts, is_next, replace_side_file, sweep_next
from penstock.types import Action, Finding, IntArray, Manifest, OpenOptions

_INDEX_CODES = ("jsonl.index", "jsonl.unsafe-index")
_CHARACTERS = "jsonl.index-counts-characters"


def repair_jsonl(store: Store, path: str, findings: Sequence[Finding], *, write: bool) -> list[Action]:
    """Rebuild a wrong index; the old one is kept as `<index>.bak`. Invalid lines are skipped and counted.

    If the only fault is lengths in characters, the entries are kept in their order, and extended to the ends of their
    lines. Memory: 32 bytes per line.
    """
    wrong = [one.code for one in findings if one.severity == "error" and one.code.startswith(_INDEX_CODES)]
    if not wrong:
        return []
    index_path = index_path_for(path)
    longer = _to_line_ends(store, path, index_path) if set(wrong) == {_CHARACTERS} else None
    if longer is not None:
        what = f"convert lengths from characters to bytes: extend {len(longer)} entries to the ends of their lines"
        make = functools.partial(_write_pairs, store, longer, index_path)
        return [repaired(store, _CHARACTERS, index_path, what, make, write=write)]

    def rebuild() -> str:
        lines = IndexedLines(store, path, store.size(path), skip_faulty=True)
        write_index(lines, store, index_path, overwrite=True)
        what = f"rebuilt the index: {lines.num_lines} lines"
        if lines.num_dropped:
            what += f", {lines.num_dropped} invalid lines skipped (first: line {lines.dropped[0].line})"
        return what

    what = "rebuild the index from the lines of the file"
    return [repaired(store, wrong[0], index_path, what, rebuild, write=write)]


def sweep_jsonl(store: Store, path: str, index_path: str, *, write: bool) -> list[Action]:
    """Complete or remove what a writer left that was killed while it replaced a file."""
    side = side_path(path)
    belongs = is_next(store, side, lambda: file_facts(store, path, "jsonl"))
    return sweep_next(store, "jsonl.next", [index_path, side], belongs, write=write)


def _to_line_ends(store: Store, path: str, index_path: str) -> IntArray | None:
    """Return int64[k, 2], the entries of an index as whole lines; None if one doesn't begin a line."""
    starts = decode_index(store, index_path)[:, 0]
    lines = np.concatenate([*IndexedLines(store, path, store.size(path), validate=False)])
    places = np.minimum(np.searchsorted(lines[:, 0], starts), len(lines) - 1)
    return lines[places] if np.array_equal(lines[places, 0], starts) else None


def _write_pairs(store: Store, pairs: IntArray, index_path: str) -> None:
    encoder = PairListEncoder()
    with aborting(store.stage(index_path, overwrite=True)) as staged:
        staged.write(encoder.encode(pairs))
        staged.write(encoder.finish())
        staged.commit()


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

"""Making a wrong index again, mending one that counts characters, and the side file of another tool's JSONL file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import penstock
from penstock.abc import Store
from penstock.codec.pickles import PairListEncoder
from penstock.formats._manifest import DATA, file_digests, side_path
from penstock.formats.jsonl.build import IndexedLines, index_path_for, write_index
from penstock.formats.jsonl.index import decode_index
from penstock.formats.jsonl.source import open_jsonl
from penstock.store.put import aborting, back_up
from penstock.store.side_file import file_binding, file_facts, is_next, replace_side_file, sweep_next
from penstock.types import Action, Finding, IntArray, Manifest, OpenOptions

_INDEX_CODES = ("jsonl.index", "jsonl.unsafe-index")
_CHARACTERS = "jsonl.index-counts-characters"


def repair_jsonl(store: Store, path: str, findings: Sequence[Finding], *, write: bool) -> list[Action]:
    """Make a wrong index again; the old one is kept as `<index>.bak`. Faulty lines are left out, and counted.

    Where nothing is wrong but lengths in characters, entries stay as they are chosen and ordered, and reach to the ends
    of their lines. Memory: 32 bytes a line.
    """
    wrong = [one.code for one in findings if one.severity == "error" and one.code.startswith(_INDEX_CODES)]
    if not wrong:
        return []
    index_path = index_path_for(path)
    longer = _to_line_ends(store, path, index_path) if set(wrong) == {_CHARACTERS} else None
    if longer is not None:
        what = f"convert lengths from characters to bytes: extend {len(longer)} entries to the ends of their lines"
        if not write:
            return [Action(_CHARACTERS, index_path, what)]
        backup = back_up(store, index_path)
        _write_pairs(store, longer, index_path)
        return [Action(_CHARACTERS, index_path, f"{what}; the old one is kept as {backup}", done=True)]
    if not write:
        return [Action(wrong[0], index_path, "rebuild the index from the lines of the file")]
    backup = back_up(store, index_path)
    lines = IndexedLines(store, path, store.size(path), skip_faulty=True)
    write_index(lines, store, index_path, overwrite=True)
    what = f"rebuilt the index: {lines.num_lines} lines"
    if lines.num_dropped:
        what += f", {lines.num_dropped} invalid lines skipped (first: line {lines.dropped[0].line})"
    return [Action(wrong[0], index_path, f"{what}; the old one is kept as {backup}", done=True)]


def sweep_jsonl(store: Store, path: str, index_path: str, *, write: bool) -> list[Action]:
    """Final names for what a writer left that was killed while it replaced a file, or away with it."""
    side = side_path(path)
    belongs = is_next(store, side, lambda: file_facts(store, path, "jsonl"))
    return sweep_next(store, "jsonl.next", [index_path, side], belongs, write=write)


def _to_line_ends(store: Store, path: str, index_path: str) -> IntArray | None:
    """int64[k, 2]: the entries of an index, whole lines each; None where one does not begin at a line."""
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
    """Count and digest a JSONL file, and write what is found beside it; returns the side file's path.

    Raises:
        FormatError: the index does not fit, or can't be made; or the side file that is there says otherwise, and
            `replace` is false.
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

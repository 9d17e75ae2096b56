"""Making an index that is wrong again, and the side file of a JSONL file that another tool wrote."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import penstock
from penstock.abc import Store
from penstock.codec.hashes import BLOCK_BYTES, BlockHasher
from penstock.formats._tokens import DATA, side_path
from penstock.formats.jsonl.build import IndexedLines, index_path_for, write_index
from penstock.formats.jsonl.source import open_jsonl
from penstock.store.side_file import encode_manifest, file_binding
from penstock.types import Action, Finding, Manifest, OpenOptions

_INDEX_CODES = ("jsonl.index", "jsonl.unsafe-index")


def repair_jsonl(store: Store, path: str, findings: Sequence[Finding], *, write: bool) -> list[Action]:
    """Make a wrong index again; the old one is kept as `<index>.bak`. Faulty lines are left out, and counted."""
    wrong = [one.code for one in findings if one.severity == "error" and one.code.startswith(_INDEX_CODES)]
    if not wrong:
        return []
    index_path = index_path_for(path)
    if not write:
        return [Action(wrong[0], index_path, "make the index again from the lines of the file")]
    backup = _back_up(store, index_path)
    lines = IndexedLines(store, path, store.size(path), skip_faulty=True)
    write_index(lines, index_path, overwrite=True)
    what = f"made the index again: {lines.num_lines} lines"
    if lines.num_dropped:
        what += f", {lines.num_dropped} faulty ones left out, the first is line {lines.dropped[0].line}"
    return [Action(wrong[0], index_path, f"{what}; the old one is kept as {backup}", done=True)]


def write_jsonl_manifest(store: Store, path: str, options: OpenOptions) -> str:
    """Count and digest a JSONL file, and write what is found beside it; returns the side file's path.

    Raises:
        FormatError: the index does not fit, or can't be made.
    """
    size_bytes = store.size(path)
    hasher = BlockHasher()
    for start_bytes in range(0, size_bytes, BLOCK_BYTES):
        hasher.update(store.get(path, start_bytes, BLOCK_BYTES))
    manifest = Manifest(
        format="jsonl",
        num_samples=len(open_jsonl(store, path, options)),
        size_bytes=size_bytes,
        block_digests={DATA: hasher.finish()},
        binding=file_binding(store, path),
        tool=f"penstock {penstock.__version__}",
    )
    side = store.stage(side_path(path), overwrite=True)
    try:
        side.write(encode_manifest(manifest))
        side.commit()
    except BaseException:
        side.abort()
        raise
    return side.path


def _back_up(store: Store, path: str) -> str:
    """A copy of a file under a new name, which is returned."""
    names = (f"{path}.bak{number or ''}" for number in itertools.count())
    copy = store.stage(next(name for name in names if not store.exists(name)))
    try:
        copy.append_file(path)
        copy.commit()
    except BaseException:
        copy.abort()
        raise
    return copy.path

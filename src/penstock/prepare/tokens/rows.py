"""The row map of what was packed: which line of which input each document was, as its parts remember it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np

from penstock.abc import Format
from penstock.engine.parts import PartName, read_part
from penstock.engine.shared import SharedWork
from penstock.errors import ConfigError, NotFound
from penstock.formats import get_format
from penstock.formats._excluded import put_waiting, settle_waiting, waiting_list
from penstock.formats.tokens.folder.side import NAME as FOLDER
from penstock.prepare.tokens.understand import Material, Request, recorded_of_output
from penstock.store.exclude_list import Entry
from penstock.store.row_map import require_own_row_map, row_map_path, settle_row_map, write_row_map
from penstock.store.side_file import NEXT
from penstock.types import IntArray, Manifest


@contextlib.contextmanager
def kept_rows(request: Request, material: Material, work: SharedWork, parts: Sequence[PartName]) -> Generator[None]:
    """Write the row map of an output that the block makes visible, where one is asked for.

    The end of each part is read once more. Memory: 8 bytes a document of a part.
    """
    if not keeps_rows(request, material):
        yield
        return
    output, path, rows = request.output, row_map_path(request.output.path), Counter[str]()
    path += NEXT if output.exists() or output.store.exists(path) else ""
    runs, inputs = _runs(material, work, parts, rows), [(one.name, one.digest) for one in material.inputs]
    recorded, tokens = recorded_of_output(request, material), sum(part.tokens for part in parts)
    if request.options.keep_map:
        write_row_map(output.store, path, runs, inputs, rows, recorded, tokens)
    was_there, chosen = output.exists(), _format_of(request)
    entries = list(_entries(material, work, parts))
    put_waiting(chosen, output, entries)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, NotFound):
            if request.options.keep_map and not path.endswith(NEXT) and not output.exists():
                output.store.delete(path)  # else it counts with its data
            if entries and output.exists() == was_there:
                output.store.delete(waiting_list(chosen.name, output.path))
        raise


def settle_rows(request: Request, manifest: Manifest) -> None:
    """Keep the row map of what is visible now, and no other."""
    if request.options.keep_map or request.options.overwrite or request.output.is_local:
        settle_row_map(request.output, manifest)
    if request.options.keep_excluded:
        settle_waiting(_format_of(request), request.output)


def keeps_rows(request: Request, material: Material) -> bool:
    """Whether it is to be known which line each document was; raises `ConfigError` where nobody could be told."""
    if request.options.keep_map:
        require_own_row_map(request.output)
    carries = any(one.carried for one in material.inputs)
    if carries and not request.output.is_local:
        what, hint = "exclude lists next to remote data aren't read", "Pack locally and copy the result"
        raise ConfigError(what, path=request.output.path, hint=f"{hint}, or omit --keep-excluded (keep_excluded=)")
    return request.options.keep_map or carries


def _format_of(request: Request) -> Format:
    return get_format(FOLDER if request.is_folder else request.to)


def _entries(material: Material, work: SharedWork, parts: Sequence[PartName]) -> Iterator[Entry]:
    """The entries of the output's list: of the documents that lines were made into."""
    if not any(one.carried for one in material.inputs):
        return
    rows = Counter[str]()
    found = np.concatenate([np.empty(0, np.int64), *_runs(material, work, parts, rows)])
    first = 0
    for one in material.inputs:
        carried = {first + entry.index: entry for entry in one.carried}
        for at in np.flatnonzero(np.isin(found, list(carried))).tolist():
            yield replace(carried[int(found[at])], index=at)
        first += rows[one.name]


def _runs(material: Material, work: SharedWork, parts: Sequence[PartName], rows: Counter[str]) -> Iterator[IntArray]:
    """int64[k] of each part; counts the rows of inputs as it goes."""
    first, before = 0, -1
    for part in parts:
        meta, _ = read_part(work.parts.child(part.path), material.spec.token_bytes)
        for piece in meta.pieces:
            if piece.file != before:
                first, before = sum(rows.values()), piece.file
            start = first + rows[material.inputs[piece.file].name]
            kept = np.ones(piece.lines, bool)
            kept[np.frombuffer(piece.gaps, "<u4")] = False
            rows[material.inputs[piece.file].name] += piece.lines
            yield start + np.flatnonzero(kept).astype(np.int64)

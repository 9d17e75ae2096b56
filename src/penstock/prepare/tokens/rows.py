"""The row map of what was packed: which line of which input each document was, as its parts remember it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Iterator, Sequence

import numpy as np

from penstock.prepare.tokens.understand import Material, Request, recorded_of_output
from penstock.store.row_map import row_map_path, settle_row_map, write_row_map
from penstock.store.side_file import NEXT
from penstock.types import IntArray, Manifest
from penstock.work.parts import PartName, read_part
from penstock.work.shared import SharedWork


@contextlib.contextmanager
def kept_rows(request: Request, material: Material, work: SharedWork, parts: Sequence[PartName]) -> Generator[None]:
    """Write the row map of an output that the block makes visible, where one is asked for.

    The end of each part is read once more. Memory: 8 bytes a document of a part.
    """
    if not request.keep_map:
        yield
        return
    path = row_map_path(request.output.path)
    path += NEXT if request.output.exists() or request.output.store.exists(path) else ""
    rows: Counter[str] = Counter()
    runs, inputs = _runs(material, work, parts, rows), [(one.name, one.digest) for one in material.inputs]
    recorded, tokens = recorded_of_output(request, material), sum(part.tokens for part in parts)
    write_row_map(request.output.store, path, runs, inputs, rows, recorded, tokens)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if not path.endswith(NEXT) and not request.output.exists():  # else it counts only with its data
                request.output.store.delete(path)
        raise


def settle_rows(request: Request, manifest: Manifest) -> None:
    """Keep the row map of what is visible now, and no other."""
    if request.keep_map or request.overwrite or request.output.is_local:
        settle_row_map(request.output, manifest)


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

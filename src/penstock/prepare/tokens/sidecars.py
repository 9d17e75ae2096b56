"""The loss mask of conversations, a plane beside the tokens that are packed: as parts remember it, in their order.

The row map of what was packed: which line of which input each document was, as its parts remember it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock._planes import LOSS_MASK
from penstock.abc import Format
from penstock.codec.tokens import dtype_for
from penstock.engine.parts import PartMeta, PartName, read_part
from penstock.engine.token_shuffle import in_order
from penstock.engine.work import Work
from penstock.errors import NotFound, PrepareError, Unsupported
from penstock.formats import get_format
from penstock.formats._excluded import put_waiting, settle_waiting, waiting_list
from penstock.formats._planed_writer import planes_beside, settle_planes
from penstock.formats._planes import EDGE_TOKENS, base_at
from penstock.formats.tokens.folder.side import NAME as FOLDER
from penstock.prepare.tokens.encode import Counts
from penstock.prepare.tokens.report import Dropped
from penstock.prepare.tokens.request import Material, Request, keeps_rows, recorded_of_output
from penstock.store.exclude_list import Entry
from penstock.store.outputs import output_path
from penstock.store.place import Place
from penstock.store.row_map import row_map_path, settle_row_map, write_row_map
from penstock.store.side_file import NEXT
from penstock.types import IntArray, Manifest

_SHUFFLED = "shuffled"
_PLANES = {LOSS_MASK: "bool"}
_MOST_UNMASKED = 100  # one of so many conversations may have no token that is generated
_LISTED = 5


def shuffled_place(request: Request, work: Work) -> Place:
    """Return the folder of the parts of which the output consists."""
    return work.parts if request.shuffle is None else work.place.child(_SHUFFLED)


def require_place_of_mask(request: Request) -> str:
    """What makes the output visible, beside which its loss mask lies; raises `Unsupported` where that has no place."""
    format = FOLDER if request.is_folder else request.to
    output = request.output
    base = base_at(format, output.store, output_path(output.store, output.path))
    if base is None:
        what, expected = f"the format {request.to!r} can't store a loss mask", "pbin, megatron or flat-tokens"
        raise Unsupported(what, path=output.path, expected=expected, hint="Choose another one: to= (--to)")
    return base


@contextlib.contextmanager
def kept_mask(
    request: Request, material: Material, work: Work, parts: Sequence[PartName], counts: Counts
) -> Generator[None]:
    """Write the loss mask of an output that the block makes visible: it is there before, and counts with the tokens.

    The end of each part is read once more. Memory: a byte a token of a part.

    Raises:
        PrepareError: of more than 1 % of the conversations no token is generated.
    """
    if material.selection.chat is None:
        yield
        return
    require_place_of_mask(request)
    settle_mask(request)
    tally, joins = _Tally(material, counts), request.options.is_distributed and request.is_folder
    with planes_beside(_masked(request), request.output.store, request.output.path, _PLANES, joins=joins) as files:
        for part in parts:
            mask = tally.mask_of(work, part)
            if request.shuffle is None:
                files.write({LOSS_MASK: mask})
        _require_masks(request, work, counts, sum(part.documents for part in parts))
        folder, width = shuffled_place(request, work), material.spec.token_bytes
        made = parts if request.shuffle is None else in_order(folder)
        for part in made if request.shuffle is not None else ():
            files.write({LOSS_MASK: _bits(read_part(folder.child(part.path), width)[0])})
        files.publish(sum(part.tokens for part in made), *_edges(folder, made, width))
        yield


def settle_mask(request: Request) -> None:
    """Let the loss mask of an output that is there count, where its writer was killed before it could."""
    if request.chat and request.output.store.exists(require_place_of_mask(request)):
        settle_planes(_masked(request), request.output.store, request.output.path)


def _masked(request: Request) -> Format:
    """The format of the tokens beside which the loss mask lies."""
    return get_format(FOLDER if request.is_folder else request.to)


@dataclass(slots=True)
class _Tally:
    """Reads masks of parts in their order, and notes conversations of which no token is generated."""

    material: Material
    counts: Counts
    file: int = -1
    lines: int = 0

    def mask_of(self, work: Work, part: PartName) -> NDArray[np.bool_]:
        """bool[n_tokens] of a part."""
        meta, _ = read_part(work.parts.child(part.path), self.material.spec.token_bytes)
        for piece in meta.pieces:
            if piece.file != self.file:
                self.file, self.lines = piece.file, 0
            name = self.material.inputs[piece.file].name
            counts = self.counts
            counts.num_unmasked += piece.num_unmasked
            counts.num_endless += piece.num_endless
            counts.null_fields.update(piece.null_fields)
            for listed, noted in ((counts.unmasked, piece.unmasked), (counts.endless, piece.endless)):
                room = _LISTED - len(listed)
                listed += (Dropped(name, self.lines + one.line + 1, one.reason) for one in noted[:room])
            self.lines += piece.lines
        return _bits(meta)


def _bits(meta: PartMeta) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(meta.loss_mask, np.uint8), count=meta.tokens, bitorder="little")
    return bits.view(np.bool_)


def _require_masks(request: Request, work: Work, counts: Counts, documents: int) -> None:
    if counts.num_unmasked * _MOST_UNMASKED <= documents:
        return
    work.clear()  # whoever mends inputs or template begins anew
    first = "; ".join(f"{one.file} line {one.line}" for one in counts.unmasked)
    more = ", …" if counts.num_unmasked > len(counts.unmasked) else ""
    raise PrepareError(
        f"no token is generated in {counts.num_unmasked} of {documents} conversations (the limit is 1 %)",
        path=request.output.path,
        found=first + more,
        hint="Add an assistant message to each, or check which text the chat template marks: {% generation %}",
    )


def _edges(folder: Place, parts: Sequence[PartName], token_bytes: int) -> tuple[NDArray[np.uint32], ...]:
    """The first and the last ids of all parts: as many as tell of which tokens planes are."""
    first, last = np.empty(0, np.uint32), np.empty(0, np.uint32)
    for part in parts:
        if len(first) >= EDGE_TOKENS:
            break
        first = np.concatenate([first, _ids(folder, part, 0, EDGE_TOKENS - len(first), token_bytes)])
    for part in reversed(parts):
        if len(last) >= EDGE_TOKENS:
            break
        last = np.concatenate(
            [_ids(folder, part, part.tokens - EDGE_TOKENS + len(last), part.tokens, token_bytes), last]
        )
    return first, last


def _ids(folder: Place, part: PartName, first: int, stop: int, token_bytes: int) -> NDArray[np.uint32]:
    """Ids `[first, stop)` of a part, as far as it has them."""
    place, start = folder.child(part.path), max(0, first)
    count = min(stop, part.tokens) - start
    data = place.store.get(place.path, start * token_bytes, count * token_bytes) if count > 0 else b""
    return np.frombuffer(data, dtype_for(token_bytes, "<")).astype(np.uint32)


@contextlib.contextmanager
def kept_rows(request: Request, material: Material, work: Work, parts: Sequence[PartName]) -> Generator[None]:
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


def _format_of(request: Request) -> Format:
    return get_format(FOLDER if request.is_folder else request.to)


def _entries(material: Material, work: Work, parts: Sequence[PartName]) -> Iterator[Entry]:
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


def _runs(material: Material, work: Work, parts: Sequence[PartName], rows: Counter[str]) -> Iterator[IntArray]:
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

"""What `pack` writes next to its tokens: the row map, the exclude list, and the loss mask of conversations.

Parts record which lines became documents and which tokens are trained on. It is collected from them in their order.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock._tokens import LOSS_MASK
from penstock.codec.tokens import dtype_for
from penstock.engine.parts import PartMeta, PartName
from penstock.engine.token_shuffle import in_order
from penstock.engine.work import Work
from penstock.errors import NotFound, PrepareError, Unsupported
from penstock.formats import get_format
from penstock.formats._excluded import put_waiting, settle_waiting, waiting_list
from penstock.formats._planed_writer import planes_beside, settle_planes
from penstock.formats._planes import EDGE_TOKENS, base_at
from penstock.prepare.tokens.encode import Dropped, Encoding
from penstock.prepare.tokens.request import Request
from penstock.store.exclude_list import Entry
from penstock.store.names import NEXT
from penstock.store.outputs import output_path
from penstock.store.place import Place
from penstock.store.row_map import row_map_path, settle_row_map, write_row_map
from penstock.types import IntArray, Manifest

_SHUFFLED = "shuffled"
_PLANES = {LOSS_MASK: "bool"}
_MOST_UNMASKED = 100  # one conversation in this many may have no generated token
_LISTED = 5


# --- row map and exclude list


@contextlib.contextmanager
def kept_rows(encoding: Encoding, parts: Sequence[PartName]) -> Generator[None]:
    """Write the row map and the exclude list, if requested, of an output that the block makes visible.

    The end of each part is read once more. Memory: 8 bytes per document of a part.
    """
    material, request = encoding.material, encoding.material.request
    if not material.keeps_rows:
        yield
        return
    output, path, rows = request.output, row_map_path(request.output.path), Counter[str]()
    path += NEXT if output.exists() or output.store.exists(path) else ""
    runs, inputs = _runs(encoding, parts, rows), [(one.name, one.digest) for one in material.inputs]
    recorded, tokens = material.recorded(whole=True), sum(part.tokens for part in parts)
    if request.options.keep_map:
        write_row_map(output.store, path, runs, inputs, rows, recorded, tokens)
    existed, chosen = output.exists(), get_format(request.format)
    entries = list(_entries(encoding, parts))
    put_waiting(chosen, output, entries)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, NotFound):
            if request.options.keep_map and not path.endswith(NEXT) and not output.exists():
                output.store.delete(path)  # otherwise it is valid with its data
            if entries and output.exists() == existed:
                output.store.delete(waiting_list(chosen.name, output.path))
        raise


def settle_rows(request: Request, manifest: Manifest) -> None:
    """Keep the row map and the exclude list of the visible output, and no others."""
    if request.options.keep_map or request.options.overwrite or request.output.is_local:
        settle_row_map(request.output, manifest)
    if request.options.keep_excluded:
        settle_waiting(get_format(request.format), request.output)


def _entries(encoding: Encoding, parts: Sequence[PartName]) -> Iterator[Entry]:
    """Yield the entries of the output's exclude list: for documents made of excluded lines."""
    inputs = encoding.material.inputs
    if not any(one.carried for one in inputs):
        return
    rows = Counter[str]()
    lines = np.concatenate([np.empty(0, np.int64), *_runs(encoding, parts, rows)])
    first = 0
    for one in inputs:
        carried = {first + entry.index: entry for entry in one.carried}
        for at in np.flatnonzero(np.isin(lines, list(carried))).tolist():
            yield replace(carried[int(lines[at])], index=at)
        first += rows[one.name]


def _runs(encoding: Encoding, parts: Sequence[PartName], rows: Counter[str]) -> Iterator[IntArray]:
    """Yield int64[k] for each piece of a part: the lines of its documents. `rows` counts the lines of inputs."""
    inputs, first, before = encoding.material.inputs, 0, -1
    for part in parts:
        for piece in encoding.meta(part).pieces:
            if piece.file != before:
                first, before = sum(rows.values()), piece.file
            start = first + rows[inputs[piece.file].name]
            kept = np.ones(piece.lines, bool)
            kept[np.frombuffer(piece.gaps, "<u4")] = False
            rows[inputs[piece.file].name] += piece.lines
            yield start + np.flatnonzero(kept).astype(np.int64)


# --- loss mask


def shuffled_place(request: Request, work: Work) -> Place:
    return work.parts if request.shuffle is None else work.place.child(_SHUFFLED)


def require_place_of_mask(request: Request) -> str:
    """Return the file that makes the output visible. Raise `Unsupported` if its format can't have a loss mask."""
    output = request.output
    base = base_at(request.format, output.store, output_path(output.store, output.path))
    if base is None:
        what, expected = f"the format {request.to!r} can't store a loss mask", "pbin, megatron or flat-tokens"
        raise Unsupported(what, path=output.path, expected=expected, hint="Choose another one: to= (--to)")
    return base


@contextlib.contextmanager
def kept_mask(encoding: Encoding, parts: Sequence[PartName]) -> Generator[None]:
    """Write the loss mask of an output that the block makes visible. It exists first, and is valid with the tokens.

    The end of each part is read once more. Memory: a byte per token of a part.

    Raises:
        PrepareError: more than 1 % of the conversations have no generated token.
    """
    material, request, work = encoding.material, encoding.material.request, encoding.work
    if material.selection.chat is None:
        yield
        return
    require_place_of_mask(request)
    settle_mask(request)
    joins, output = request.options.is_distributed and request.is_folder, request.output
    with planes_beside(get_format(request.format), output.store, output.path, _PLANES, joins=joins) as files:
        for mask in _masks(encoding, parts):
            if request.shuffle is None:
                files.write({LOSS_MASK: mask})
        _require_masks(encoding, sum(part.documents for part in parts))
        folder = shuffled_place(request, work)
        made = parts if request.shuffle is None else in_order(folder)
        for part in made if request.shuffle is not None else ():
            files.write({LOSS_MASK: _bits(encoding.meta(part, folder))})
        files.publish(sum(part.tokens for part in made), *_edges(folder, made, material.spec.token_bytes))
        yield


def settle_mask(request: Request) -> None:
    """Make the loss mask of an existing output valid, if its writer was killed before it could."""
    if request.chat and request.output.store.exists(require_place_of_mask(request)):
        settle_planes(get_format(request.format), request.output.store, request.output.path)


def _masks(encoding: Encoding, parts: Sequence[PartName]) -> Iterator[NDArray[np.bool_]]:
    """Yield bool[n_tokens] of each part, and count conversations without a generated token or without an end."""
    counts, file, lines = encoding.counts, -1, 0
    for part in parts:
        meta = encoding.meta(part)
        for piece in meta.pieces:
            if piece.file != file:
                file, lines = piece.file, 0
            name = encoding.material.inputs[file].name
            counts.num_unmasked += piece.num_unmasked
            counts.num_endless += piece.num_endless
            counts.null_fields.update(piece.null_fields)
            for listed, noted in ((counts.unmasked, piece.unmasked), (counts.endless, piece.endless)):
                room = _LISTED - len(listed)
                listed += [Dropped(name, lines + one.line + 1, one.reason) for one in noted[:room]]
            lines += piece.lines
        yield _bits(meta)


def _bits(meta: PartMeta) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(meta.loss_mask, np.uint8), count=meta.tokens, bitorder="little")
    return bits.view(np.bool_)


def _require_masks(encoding: Encoding, documents: int) -> None:
    counts = encoding.counts
    if counts.num_unmasked * _MOST_UNMASKED <= documents:
        return
    encoding.work.clear()  # inputs or template must be changed, so that this work is of no use
    first = "; ".join(f"{one.file} line {one.line}" for one in counts.unmasked)
    more = ", …" if counts.num_unmasked > len(counts.unmasked) else ""
    raise PrepareError(
        f"no token is generated in {counts.num_unmasked} of {documents} conversations (the limit is 1 %)",
        path=encoding.material.request.output.path,
        found=first + more,
        hint="Add an assistant message to each, or check which text the chat template marks: {% generation %}",
    )


def _edges(folder: Place, parts: Sequence[PartName], token_bytes: int) -> tuple[NDArray[np.uint32], ...]:
    """Return the first and the last ids of all parts, by which planes recognize their tokens."""
    first, last = np.empty(0, np.uint32), np.empty(0, np.uint32)
    for part in parts:
        if len(first) >= EDGE_TOKENS:
            break
        first = np.concatenate([first, _ids(folder, part, 0, EDGE_TOKENS - len(first), token_bytes)])
    for part in reversed(parts):
        if len(last) >= EDGE_TOKENS:
            break
        start = part.tokens - EDGE_TOKENS + len(last)
        last = np.concatenate([_ids(folder, part, start, part.tokens, token_bytes), last])
    return first, last


def _ids(folder: Place, part: PartName, first: int, stop: int, token_bytes: int) -> NDArray[np.uint32]:
    """Return ids `[first, stop)` of a part, as far as it has them."""
    place, start = folder.child(part.path), max(0, first)
    count = min(stop, part.tokens) - start
    data = place.store.get(place.path, start * token_bytes, count * token_bytes) if count > 0 else b""
    return np.frombuffer(data, dtype_for(token_bytes, "<")).astype(np.uint32)

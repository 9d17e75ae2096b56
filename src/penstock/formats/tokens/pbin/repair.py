"""Repair a packed file: wrong offsets of a merge, an unfinished header, a lost index.

The repaired file is written in the current layout. The old one is kept as `<file>.bak`.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.codec.tokens import TOKEN_BYTES, dtype_for
from penstock.errors import PenstockError
from penstock.formats._findings import Problem
from penstock.formats._manifest import DATA, Provenance, side_path
from penstock.formats._repairs import Damaged, Recorded, Repair, Rewrite, not_repaired, repaired_by
from penstock.formats._side_checks import begins_otherwise
from penstock.formats.tokens.checks import are_others, document_ends
from penstock.formats.tokens.common import TokenFile
from penstock.formats.tokens.pbin.index import index_problems, is_merged, read_index
from penstock.formats.tokens.pbin.layout import (
    HEADER_BYTES,
    Geometry,
    data_length,
    find_layout,
    layout_named,
    likely_layout,
    width_field,
)
from penstock.formats.tokens.pbin.source import pbin_facts
from penstock.formats.tokens.pbin.writer import PbinWriter
from penstock.store.base import Store
from penstock.store.side_file import is_next, load_manifest, sweep_next
from penstock.types import Action, IntArray, Manifest, OpenOptions

RUN_TOKENS = 1 << 22
_MOST_PLACES = 16  # where an index may begin: tokens may look like it
_INDEX_START = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\](?:\x94|q\x00)(?:\(|K\x00)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Content of a repaired file.

    Attributes:
        code: of the finding that is repaired.
        what: what is done.
        file: the existing tokens.
        doc_lengths: int64[n_docs], in tokens, of the documents to keep, starting at the first token.
        eos_id: id that ends them all, if known.
    """

    code: str
    what: str
    file: TokenFile
    doc_lengths: IntArray
    eos_id: int | None


def _plan_file(damaged: Damaged) -> Iterator[Rewrite | Action]:
    """Yield the new file. Memory: 8 bytes per document and 64 MiB.

    - Offsets of `merge_packed_data` become the sums of the lengths.
    - An unfinished header gets its length if the index exists.
    - An index that is truncated, damaged or missing is rebuilt from the EOS tokens if `options.eos_id` or a side file
      names them. Tokens after the last EOS of a truncated file are dropped.
    """
    store, path, options = damaged.store, damaged.path, damaged.options
    known = load_manifest(store, side_path(path), to_write=True)  # even if the damaged file differs from it
    if known is not None and known.format != "pbin":
        known = None
    eos_id = options.eos_id if options.eos_id is not None or known is None else known.eos_id
    plan = _plan(store, path, options, eos_id)
    if plan is None:
        return
    runs = ((plan.file.tokens(start, stop), lengths) for start, stop, lengths in document_runs(plan.doc_lengths))
    num_tokens = int(plan.doc_lengths.sum())
    # The first block holds the header, which may be what is damaged.
    digests = () if known is None else known.block_digests.get(DATA, ())
    if are_others(known, num_tokens, runs) or begins_otherwise(store, path, digests, 1):
        yield not_repaired("pbin.changed", path, side_path(path))
        return
    recorded = Recorded(side_path(path), known, "documents", len(plan.doc_lengths), num_tokens)
    make = functools.partial(_write, store, path, plan, known)
    yield Rewrite(plan.code, path, plan.what, make, "the old file", recorded)


def document_runs(doc_lengths: IntArray) -> Iterator[tuple[int, int, IntArray]]:
    """Yield `(start, stop, doc_lengths)` of runs of whole documents, of about 4 million tokens or one long document."""
    ends = np.cumsum(doc_lengths)
    first, start = 0, 0
    while first < len(ends):
        stop_doc = max(first + 1, int(np.searchsorted(ends, start + RUN_TOKENS, side="right")))
        stop = int(ends[stop_doc - 1])
        yield start, stop, doc_lengths[first:stop_doc]
        first, start = stop_doc, stop


def _settle(damaged: Damaged) -> list[Action]:
    store, path = damaged.store, damaged.path
    side = side_path(path)
    geometry = find_layout(store, path, damaged.options.layout)
    belongs = isinstance(geometry, Geometry) and is_next(
        store, side, functools.partial(pbin_facts, store, path, geometry)
    )
    return sweep_next(store, "pbin.next", [side], belongs, write=damaged.write)


repair_pbin = repaired_by(Repair(_settle, always=True), Repair(_plan_file))


def _plan(store: Store, path: str, options: OpenOptions, eos_id: int | None) -> _Plan | None:
    geometry = find_layout(store, path, options.layout)
    if isinstance(geometry, Geometry):
        return _plan_index(store, path, geometry, eos_id)
    if geometry.code == "pbin.unfinished":
        return _plan_unfinished(store, path, options, eos_id)
    if geometry.code in ("pbin.truncated", "pbin.truncated-index", "pbin.no-index"):
        return _plan_cut(store, path, options, geometry, eos_id)
    return None


def _plan_index(store: Store, path: str, geometry: Geometry, eos_id: int | None) -> _Plan | None:
    """Plan for complete tokens with an index that may be wrong."""
    file = _tokens(store, path, geometry)
    try:
        pairs = read_index(store, path, geometry)
    except PenstockError:
        pairs = None
    if pairs is not None:
        if is_merged(pairs, geometry) and not (pairs[:, 1] % geometry.token_bytes).any():
            what = f"set the offsets of {len(pairs)} documents to the sums of their lengths"
            return _Plan("pbin.merged-offsets", what, file, pairs[:, 1] // geometry.token_bytes, eos_id)
        if not any(True for _ in index_problems(pairs, geometry)):
            return None
    found = None if pairs is not None else _plan_found("pbin.index", store, path, geometry, eos_id)
    return found or _plan_rebuilt("pbin.index", path, file, eos_id, keep_rest=True)


def _plan_unfinished(store: Store, path: str, options: OpenOptions, eos_id: int | None) -> _Plan | None:
    """Plan for a header without a length, which follows from the index if it exists."""
    geometry = _as_far_as_there(store, path, options)
    if geometry is None:
        return None
    found = _plan_found("pbin.unfinished", store, path, geometry, eos_id)
    if found is not None:
        return found
    geometry = next(iter(_index_places(store, path, geometry)), geometry)
    return _plan_rebuilt("pbin.unfinished", path, _tokens(store, path, geometry), eos_id, keep_rest=False)


def _plan_cut(store: Store, path: str, options: OpenOptions, problem: Problem, eos_id: int | None) -> _Plan | None:
    """Plan for a file that is truncated or has no complete index: keep the complete documents."""
    geometry = _as_far_as_there(store, path, options)
    if geometry is None:
        return None
    found = _plan_found(problem.code, store, path, geometry, eos_id)  # a wrong length is no cut
    if found is not None:
        return found
    keep_rest = problem.code != "pbin.truncated"
    return _plan_rebuilt(problem.code, path, _tokens(store, path, geometry), eos_id, keep_rest=keep_rest)


def _plan_rebuilt(code: str, path: str, file: TokenFile, eos_id: int | None, *, keep_rest: bool) -> _Plan | None:
    if eos_id is None:
        return None
    ends = document_ends(file, file.num_tokens, eos_id)
    rest = file.num_tokens - (int(ends[-1]) if len(ends) else 0)
    if not len(ends):
        return None
    what = f"rebuild the index from the EOS id {eos_id}: {len(ends)} documents"
    if rest and keep_rest:
        what += f", plus one of the last {rest} tokens, which don't end with EOS"
        return _Plan(code, what, file, np.diff(ends, prepend=0, append=file.num_tokens), None)
    if rest:
        what += f"; drop the last {rest} tokens, which don't end with EOS"
    return _Plan(code, what, file, np.diff(ends, prepend=0), eos_id)


def _as_far_as_there(store: Store, path: str, options: OpenOptions) -> Geometry | None:
    """Return the header's geometry, with the length of the existing data; a length of 0 means all of it."""
    size_bytes = store.size(path)
    header = store.get(path, 0, HEADER_BYTES)
    layout = likely_layout(store, path, size_bytes, header) if options.layout is None else layout_named(options.layout)
    token_bytes = width_field(header, layout)
    if len(header) < layout.header_bytes or token_bytes not in TOKEN_BYTES:
        return None
    there_bytes = size_bytes - layout.header_bytes
    data_bytes = min(data_length(header, layout) or there_bytes, there_bytes)
    data_bytes -= data_bytes % token_bytes
    return Geometry(layout, size_bytes, data_bytes, token_bytes, layout.first_offsets[0])


def _plan_found(code: str, store: Store, path: str, geometry: Geometry, eos_id: int | None) -> _Plan | None:
    """Search for a complete index after the tokens, and plan with its length; None if there is none."""
    for there in _index_places(store, path, geometry):
        pairs = _whole_index(store, path, there)
        if pairs is not None:
            what = f"set the data length to {there.data_bytes} bytes, as in the index of {len(pairs)} documents"
            lengths = pairs[:, 1] // there.token_bytes
            return _Plan(code, what, _tokens(store, path, there), lengths, eos_id)
    return None


def _index_places(store: Store, path: str, geometry: Geometry) -> list[Geometry]:
    """Return the places after the tokens where pickled indexes may begin: the last ones, the last one first."""
    view = _bytes_of(store, path)
    header_bytes = geometry.layout.header_bytes
    matches = _INDEX_START.finditer(view.data if len(view) else b"", header_bytes)
    lengths = (match.start() - header_bytes for match in matches)
    kept = deque((one for one in lengths if one % geometry.token_bytes == 0), _MOST_PLACES)
    return [replace(geometry, data_bytes=one) for one in reversed(kept)]


def _whole_index(store: Store, path: str, geometry: Geometry) -> IntArray | None:
    """Return the pairs of an index without a fault, else None."""
    try:
        pairs = read_index(store, path, geometry)
    except PenstockError:
        return None
    return None if any(True for _ in index_problems(pairs, geometry)) else pairs


def _bytes_of(store: Store, path: str) -> NDArray[np.uint8]:
    return store.view(path)


def _tokens(store: Store, path: str, geometry: Geometry) -> TokenFile:
    stored = dtype_for(geometry.token_bytes, geometry.layout.byte_order)
    return TokenFile(store, path, geometry.layout.header_bytes, geometry.num_tokens, stored)


def _write(store: Store, path: str, plan: _Plan, known: Manifest | None) -> None:
    """Write the new file and its side file."""
    width = plan.file.dtype.itemsize
    given = Provenance(eos_id=plan.eos_id)
    if known is not None:
        given = Provenance(plan.eos_id, known.tokenizer, known.tokenizer_digest, known.inputs, known.options)
    with PbinWriter(store, path, width, None, given, overwrite=True) as writer:
        for start, stop, doc_lengths in document_runs(plan.doc_lengths):
            writer.write_run(plan.file.tokens(start, stop), doc_lengths)

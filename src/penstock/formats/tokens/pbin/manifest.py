"""Side files of packed files written by other tools."""

from __future__ import annotations

import numpy as np

from penstock.codec.hashes import BLOCK_BYTES, BlockHasher
from penstock.codec.pickles import MARKED_PAIRS
from penstock.formats._manifest import DATA, Provenance, side_path
from penstock.formats.tokens.joined import RunDigests, as_before
from penstock.formats.tokens.pbin.index import doc_starts, read_marked
from penstock.formats.tokens.pbin.layout import TODAY
from penstock.formats.tokens.pbin.repair import document_runs
from penstock.formats.tokens.pbin.source import open_pbin
from penstock.formats.tokens.pbin.starts import encode_starts
from penstock.formats.tokens.writer import TokenTally, token_manifest
from penstock.store.base import Store
from penstock.store.side_file import file_binding, replace_side_file
from penstock.types import OpenOptions


def write_pbin_manifest(store: Store, path: str, options: OpenOptions, *, replace: bool = False) -> str:
    """Count and digest a packed file, and write its side file; return the side file's path.

    Tokenizer, inputs and options of a side file that fits are kept. Every byte is read twice. Memory: 8 bytes per
    document and 64 MiB.

    Raises:
        FormatError: the file is damaged, or contradicts the existing side file and `replace` is false.
    """
    source = open_pbin(store, path, options)
    known = source.manifest
    given = Provenance(eos_id=source.eos_id)
    if known is not None:
        given = Provenance(source.eos_id, known.tokenizer, known.tokenizer_digest, known.inputs, known.options)
    tally, documents = TokenTally(), RunDigests()
    geometry = source.geometry
    plain = geometry.layout is TODAY and not geometry.offset_base_bytes
    pairs, marks = read_marked(store, path, geometry)
    starts = doc_starts(pairs, geometry, path)
    for start, stop, doc_lengths in document_runs(np.diff(starts)):
        tokens = source.tokens(start, stop)
        tally.add(tokens, doc_lengths, int(tokens.max(initial=0)) if len(tokens) else -1)
        documents.update(tokens, doc_lengths)
    size_bytes = store.size(path)
    hasher = BlockHasher()
    for start_bytes in range(0, size_bytes, BLOCK_BYTES):
        hasher.update(store.get(path, start_bytes, BLOCK_BYTES))
    manifest = token_manifest(
        "pbin",
        tally,
        given,
        {"token_bytes": source.dtype.itemsize},
        size_bytes=size_bytes,
        block_digests={DATA: hasher.finish()},
        binding=file_binding(store, path),
        starts=encode_starts(marks, starts[:-1:MARKED_PAIRS], tally.num_docs) if marks is not None and plain else None,
    )
    manifest = as_before(manifest, known, documents)
    replace_side_file(store, side_path(path), manifest, replace=replace)
    return side_path(path)

"""The side file of a dataset that another tool wrote."""

from __future__ import annotations

from penstock.codec.hashes import BLOCK_BYTES, BlockHasher
from penstock.formats._manifest import DATA, Provenance
from penstock.formats.tokens.common import document_runs
from penstock.formats.tokens.joined import RunDigests, as_before
from penstock.formats.tokens.megatron.kept import prefix_of, reading_commit
from penstock.formats.tokens.megatron.layout import bin_path, idx_path
from penstock.formats.tokens.megatron.manifest import INDEX, joint_binding, side_file_path
from penstock.formats.tokens.megatron.source import open_megatron
from penstock.formats.tokens.writer import TokenTally, token_manifest
from penstock.store.base import Store
from penstock.store.side_file import file_binding, replace_side_file
from penstock.types import Manifest, OpenOptions


def write_megatron_manifest(
    store: Store, path: str, options: OpenOptions, known: Manifest | None = None, *, replace: bool = False
) -> str:
    """Count and digest a dataset, and write its side file; return the side file's path.

    Tokenizer, inputs and options in `known`, else in a side file that fits, are kept. Every byte is read twice. Memory:
    16 bytes per sequence and 64 MiB.

    Raises:
        FormatError: the files are damaged, or contradict the existing side file and `replace` is false.
    """
    committed = reading_commit(store, path)
    prefix = prefix_of(committed, path)
    source = open_megatron(store, path, options, may_trail=replace)
    known = known or source.manifest
    given = Provenance(eos_id=source.eos_id)
    if known is not None:
        given = Provenance(source.eos_id, known.tokenizer, known.tokenizer_digest, known.inputs, known.options)
    tally, documents = TokenTally(keep_lengths=False), RunDigests()
    for tokens, doc_lengths in document_runs(source):
        tally.add(tokens, doc_lengths, int(tokens.max()) if len(tokens) else -1)
        documents.update(tokens, doc_lengths)
    files = {DATA: bin_path(prefix), INDEX: idx_path(prefix)}
    manifest = token_manifest(
        "megatron",
        tally,
        given,
        {"dtype": source.header.kind.name},
        size_bytes=source.size_bytes,
        block_digests={name: _block_digests(committed, file) for name, file in files.items()},
        binding=joint_binding(*(file_binding(committed, file) for file in files.values())),
    )
    manifest = as_before(manifest, known, documents)
    replace_side_file(store, side_file_path(prefix), manifest, replace=replace)
    return side_file_path(prefix)


def _block_digests(store: Store, path: str) -> tuple[str, ...]:
    hasher = BlockHasher()
    for start_bytes in range(0, store.size(path), BLOCK_BYTES):
        hasher.update(store.get(path, start_bytes, BLOCK_BYTES))
    return hasher.finish()

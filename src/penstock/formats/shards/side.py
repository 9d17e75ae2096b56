"""Side file of a folder of shards: its binding to the index, and its creation for existing data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import xxhash

import penstock
from penstock.formats._manifest import file_digests
from penstock.formats.shards.index_json import INDEX_NAME, Shard, ShardFile, parse_index
from penstock.formats.shards.index_table import Facts, facts_of
from penstock.store import side_file
from penstock.store.base import Readable, Store
from penstock.store.fingerprint import sample_fingerprint
from penstock.store.side_file import file_binding, fitting_manifest, replace_side_file
from penstock.types import Manifest

SIDE_NAME = ".penstock"
FINGERPRINTED_AS = "shards"
"""Prefix of the fingerprints of all shard formats."""


def sampled_files(
    facts: Facts, shards: Sequence[Shard], is_there: Callable[[str], bool]
) -> list[tuple[str, ShardFile]]:
    """Return `(name, file)` of the files that a fingerprint samples: compressed ones if `is_there`, else raw ones."""
    found: list[tuple[str, ShardFile]] = []
    for name, number, is_meta in facts.first_files:
        shard = shards[number]
        raw, zipped = (shard.raw_meta, shard.zip_meta) if is_meta else (shard.raw_data, shard.zip_data)
        raw = raw or shard.raw_data
        found.append((name, raw if zipped is None or not is_there(zipped.basename) else zipped))
    return found


def with_fingerprint(
    manifest: Manifest, files: Readable, index: bytes, shards: Sequence[Shard], folder: str = ""
) -> Manifest:
    """Add the fingerprint of the data to a manifest.

    Args:
        manifest: with a digest of each existing file; returned unchanged if a sampled file has none.
        files: the store of the files, with staged files by their names.
        index: content of the index.
        shards: entries of the index.
        folder: folder of the files, with `/`.
    """
    names = sampled_files(facts_of(shards), shards, manifest.block_digests.__contains__)
    if not all(file.basename in manifest.block_digests for _, file in names):
        return manifest
    found = sample_fingerprint(files, FINGERPRINTED_AS, index, [(name, folder + file.basename) for name, file in names])
    return dataclasses.replace(manifest, fingerprints={xxhash.xxh3_128_hexdigest(index): found})


def shards_facts(store: Store, folder: str, num_samples: int) -> side_file.Facts:
    """Return the properties to compare with a side file: the edges of the index, and the number of samples."""
    binding = file_binding(store, f"{folder}/{INDEX_NAME}")
    return side_file.Facts(binding=binding, num_samples=num_samples)


def write_shards_manifest(store: Store, folder: str, format_name: str, *, replace: bool) -> str:
    """Digest all files that an index lists, and write the side file; return its path.

    Tokenizer, inputs and options from an existing side file are kept if it belongs to the data. Memory: 64 MiB.

    Raises:
        FormatError: the index is damaged; or the existing side file differs, and `replace` is false.
    """
    where, side = f"{folder}/{INDEX_NAME}", f"{folder}/{SIDE_NAME}"
    data = store.get(where)
    index = parse_index(data, where)
    shards, num_samples = index.shards, int(index.starts[-1])
    known = fitting_manifest(store, side, lambda: shards_facts(store, folder, num_samples))
    names = [file.basename for shard in shards for file in shard.files() if store.exists(f"{folder}/{file.basename}")]
    manifest = dataclasses.replace(
        known or Manifest(format=format_name, num_samples=0, size_bytes=0),
        num_samples=num_samples,
        size_bytes=sum(store.size(f"{folder}/{name}") for name in (*names, INDEX_NAME)),
        block_digests={name: file_digests(store, f"{folder}/{name}") for name in names},
        binding=file_binding(store, where),
        tool=f"penstock {penstock.__version__}",
    )
    manifest = with_fingerprint(manifest, store, data, shards, f"{folder}/")
    replace_side_file(store, side, manifest, replace=replace)
    return side

"""The side file of a folder of shards: what binds it to its index, and how it is made for data that are there."""

from __future__ import annotations

import dataclasses

import penstock
from penstock.abc import Store
from penstock.codec.hashes import BLOCK_BYTES, BlockHasher
from penstock.formats.shards.index_json import INDEX_NAME, parse_index
from penstock.store.side_file import Facts, file_binding, fitting_manifest, replace_side_file
from penstock.types import Manifest

SIDE_NAME = ".penstock"


def shards_facts(store: Store, folder: str, num_samples: int) -> Facts:
    """What a folder of shards says of itself, to hold a side file against: the edges of its index, and its samples."""
    binding = file_binding(store, f"{folder}/{INDEX_NAME}")
    return Facts(binding=binding, num_samples=num_samples)


def write_shards_manifest(store: Store, folder: str, format_name: str, *, replace: bool) -> str:
    """Digest all files that an index names, and write what is found beside it; returns the side file's path.

    What a side file that fits already says of tokenizer, inputs and options is kept. Memory: 64 MiB.

    Raises:
        FormatError: the index is damaged; or the side file that is there says otherwise, and `replace` is false.
    """
    where, side = f"{folder}/{INDEX_NAME}", f"{folder}/{SIDE_NAME}"
    index = parse_index(store.get(where), where)
    shards, num_samples = index.shards, int(index.starts[-1])
    known = fitting_manifest(store, side, lambda: shards_facts(store, folder, num_samples))
    names = [file.basename for shard in shards for file in shard.files() if store.exists(f"{folder}/{file.basename}")]
    manifest = dataclasses.replace(
        known or Manifest(format=format_name, num_samples=0, size_bytes=0),
        num_samples=num_samples,
        size_bytes=sum(store.size(f"{folder}/{name}") for name in (*names, INDEX_NAME)),
        block_digests={name: digests_of(store, f"{folder}/{name}") for name in names},
        binding=file_binding(store, where),
        tool=f"penstock {penstock.__version__}",
    )
    replace_side_file(store, side, manifest, replace=replace)
    return side


def digests_of(store: Store, path: str) -> tuple[str, ...]:
    """xxh3-128 of each 64 MiB block of a file."""
    hasher = BlockHasher()
    for start_bytes in range(0, store.size(path), BLOCK_BYTES):
        hasher.update(store.get(path, start_bytes, BLOCK_BYTES))
    return hasher.finish()

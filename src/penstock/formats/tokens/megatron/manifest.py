"""Side file of a dataset: its binding to both files, and its creation for data of another tool."""

from __future__ import annotations

import xxhash

from penstock.formats._manifest import side_path
from penstock.formats.tokens.megatron.layout import bin_path, final_prefix, idx_path
from penstock.store.base import Store
from penstock.store.side_file import DATA, Facts, blocks_of, file_binding, fitting_manifest
from penstock.types import Manifest

INDEX = "index"
"""Name of the `.idx` in a side file's block digests; that of the `.bin` is `data`."""


def side_file_path(prefix: str) -> str:
    """Return the path of the side file."""
    return side_path(idx_path(final_prefix(prefix)))


def joint_binding(data_binding: str, index_binding: str) -> str:
    """Return one binding of both files."""
    return xxhash.xxh3_128_hexdigest(f"{data_binding}\n{index_binding}".encode())


def read_manifest(store: Store, prefix: str, num_docs: int) -> Manifest | None:
    """Return the side file of these files, whose index has this number of documents; None if there is none."""
    return fitting_manifest(store, side_file_path(prefix), lambda: megatron_facts(store, prefix, num_docs))


def megatron_facts(store: Store, prefix: str, num_docs: int, num_tokens: int | None = None) -> Facts:
    """Return the facts of a dataset to compare with a side file: sizes, and the first and last 4 KiB of both files.

    The tokens are those of all sequences, if they were counted.
    """
    paths = (bin_path(prefix), idx_path(prefix))
    binding = joint_binding(*(file_binding(store, path) for path in paths))
    digest = blocks_of(store, dict(zip((DATA, INDEX), paths, strict=True)))
    return Facts("megatron", binding, sum(map(store.size, paths)), num_docs, num_tokens, block_digest=digest)

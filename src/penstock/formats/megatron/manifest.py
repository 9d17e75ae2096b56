"""The side file of a dataset: what binds it to both files, and how it is made for data of another tool."""

from __future__ import annotations

import xxhash

from penstock.abc import Store
from penstock.errors import NotFound
from penstock.formats._tokens import side_path
from penstock.formats.megatron.layout import bin_path, idx_path
from penstock.store.side_file import file_binding, load_manifest
from penstock.types import Manifest

INDEX = "index"
"""Name of the `.idx` in a side file's block digests; that of the `.bin` is `data`."""


def side_file_path(prefix: str) -> str:
    """Path of the side file."""
    return side_path(idx_path(prefix))


def joint_binding(data_binding: str, index_binding: str) -> str:
    """One binding of both files."""
    return xxhash.xxh3_128_hexdigest(f"{data_binding}\n{index_binding}".encode())


def read_manifest(store: Store, prefix: str) -> Manifest | None:
    """The side file of these very files; None where there is none."""
    manifest = load_manifest(store, side_file_path(prefix))
    return manifest if manifest is not None and is_bound(store, prefix, manifest) else None


def is_bound(store: Store, prefix: str, manifest: Manifest) -> bool:
    """Whether a side file was made for these files: their sizes, and the first and last 4 KiB of both."""
    try:
        found = joint_binding(file_binding(store, bin_path(prefix)), file_binding(store, idx_path(prefix)))
    except NotFound:
        return False
    return manifest.format == "megatron" and manifest.binding == found

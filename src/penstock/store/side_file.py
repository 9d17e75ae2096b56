"""The side file: what a writer of ours knows about its data and the format has no room for.

`<file>.penstock` beside a file, `.penstock` in a folder, `<group>.penstock` beside a zarr group: one JSON document,
a `Manifest`. It is never needed to open data, and it counts only while its `binding` fits the data beside it.
"""

from __future__ import annotations

import msgspec
import xxhash

from penstock._secrets import redact
from penstock.abc import Store
from penstock.errors import NotFound
from penstock.types import Manifest

EDGE_BYTES = 4096
_MOST_BYTES = 1 << 28


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a side file."""
    data = msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1) + b"\n"
    return redact(data.decode()).encode() if b"://" in data else data


def decode_manifest(data: bytes) -> Manifest | None:
    """The manifest in a side file; None where it is not one."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return manifest if all(map(_can_be, (manifest, *manifest.parts.values()))) else None


def _can_be(manifest: Manifest) -> bool:
    counts = (manifest.num_samples, manifest.size_bytes, manifest.num_tokens, manifest.max_token_id, manifest.eos_id)
    return all(count is None or 0 <= count < 1 << 63 for count in counts)


def file_binding(store: Store, path: str) -> str:
    """Short digest of a file's size and its first and last 4 KiB: three cheap reads at any size."""
    size_bytes = store.size(path)
    tail_start_bytes = max(0, size_bytes - EDGE_BYTES)
    return edge_binding(size_bytes, store.get(path, 0, EDGE_BYTES), store.get(path, tail_start_bytes, EDGE_BYTES))


def edge_binding(size_bytes: int, head: bytes | bytearray, tail: bytes | bytearray) -> str:
    """`file_binding` of a file that is not visible yet, from its first and last `EDGE_BYTES`."""
    hasher = xxhash.xxh3_128(size_bytes.to_bytes(8, "little"))
    hasher.update(head)
    hasher.update(tail)
    return hasher.hexdigest()


def load_manifest(store: Store, side_path: str) -> Manifest | None:
    """The manifest in a side file, whatever it belongs to; None where there is none that can be read."""
    try:
        return None if store.size(side_path) > _MOST_BYTES else decode_manifest(store.get(side_path))
    except (NotFound, PermissionError):
        return None


def read_side_file(store: Store, side_path: str, data_path: str) -> Manifest | None:
    """The manifest beside a data file; None where there is none, or where it does not belong to these data."""
    manifest = load_manifest(store, side_path)
    if manifest is None:
        return None
    try:
        return manifest if manifest.binding == file_binding(store, data_path) else None
    except NotFound:
        return None

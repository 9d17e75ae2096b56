"""flat-tokens: a zarr group with all tokens of a dataset in one array, and the starts of its sequences in another.

| name | content |
|---|---|
| `encoded_tokens` | uint32[T]: `2·id + 1` for the first token of a sequence, `2·id` for every other |
| `seq_starts` | uint64[S + 1]: index of each sequence's first token, not falling, and T at the end |
| attribute `max_token_id` | JSON integer from 0 to 2^31 - 1: no id is larger |

A dataset is a group with two such groups, `train` and `validation`. Padding, BOS and EOS aren't used. An empty sequence
repeats an entry of `seq_starts` and has no start bit. Read: zarr versions 2 and 3, with and without shards, raw, blosc,
zstd, lz4, gzip and zlib chunks, delta filters, both byte orders; everything else through zarr-python. Written: version
2 or 3, by default version 2 with raw chunks of 2^20 tokens.

Limits: ids up to 2^31 - 1. Checked against zarr 2.18.7 and 3.1.6, and seqax's own writer.

Files: `encode` the bytes of a chunk · `group` the content of a group · `source` · `chunk_writer`, `writer` · `check` ·
`repair`. Arrays are read by `penstock.formats.tokens.zarr`.
"""

from __future__ import annotations

from penstock.formats.tokens.flat_tokens.check import check_flat_tokens
from penstock.formats.tokens.flat_tokens.group import holds_array, holds_group, opened_zip, own_files, splits_in
from penstock.formats.tokens.flat_tokens.repair import repair_flat_tokens
from penstock.formats.tokens.flat_tokens.source import FlatTokensSource, open_flat_tokens
from penstock.formats.tokens.flat_tokens.writer import create_flat_tokens, write_flat_manifest
from penstock.formats.tokens.zarr.meta import ARRAY_FILE, is_array
from penstock.store.base import Store
from penstock.types import Depth, Finding, OpenOptions, Sniff, Traits

_SNIFF_BYTES = 1 << 16


class _FlatTokens:
    name = "flat-tokens"
    traits = Traits(
        remote=True,
        write=True,
        tokens=True,
        splits=True,
        verify=True,
        repair=True,
        packs_eos=False,
        suffixes=(".zarr",),
        made_by="seqax",
    )

    def sniff(self, store: Store, path: str, /) -> Sniff:
        """Detect the format by the names in the folder: its arrays, or its splits."""
        path = path.rstrip("/") or path
        store = opened_zip(store, path)
        if not store.is_folder(path):
            return Sniff(False, "no folder")
        if holds_array(store, path):
            return Sniff(True, "a zarr group with `encoded_tokens`")
        splits = splits_in(store, path)
        if any(holds_array(store, f"{path}/{split}") for split in splits):
            return Sniff(True, f"a zarr group with {' and '.join(splits)}")
        if any(store.exists(f"{path}/seq_starts/{name}") for name in ARRAY_FILE.values()):
            return Sniff(True, "a zarr group with `seq_starts`")
        if store.exists(f"{path}/.zarray") or is_array(_head(store, f"{path}/zarr.json"), 3):
            # Damaged data is accepted here, because `open` describes the damage.
            return Sniff(True, "a zarr array instead of a group")
        if holds_group(store, path):
            return Sniff(False, "a zarr group, but not flat-tokens: no `encoded_tokens`")
        return Sniff(False, "not a zarr group")

    def open(self, store: Store, path: str, options: OpenOptions, /) -> FlatTokensSource:
        """Open a group; see `source.open_flat_tokens`."""
        return open_flat_tokens(opened_zip(store, path.rstrip("/")), path, options)

    create = staticmethod(create_flat_tokens)
    own_files = staticmethod(own_files)

    def check(self, store: Store, path: str, options: OpenOptions, depth: Depth, /) -> list[Finding]:
        """Check a group; see `check.check_flat_tokens`."""
        return check_flat_tokens(opened_zip(store, path.rstrip("/")), path, options, depth)

    repair = staticmethod(repair_flat_tokens)

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /, *, replace: bool = False) -> str:
        """Write the side file of a foreign group; see `writer.write_flat_manifest`."""
        return write_flat_manifest(opened_zip(store, path.rstrip("/")), path, options, replace=replace)


def _head(store: Store, path: str) -> bytes:
    return store.get(path, 0, _SNIFF_BYTES) if store.exists(path) else b""


FORMAT = _FlatTokens()

"""Checking and making again `index.keys`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from penstock.abc import Store
from penstock.errors import Corrupt, PenstockError
from penstock.formats._findings import Problem
from penstock.formats.samples.webdataset.key_index import KEYS, KeyPlace, stored_keys
from penstock.formats.samples.webdataset.nvmeta import meta_path, prepare_command
from penstock.formats.samples.webdataset.shards import ShardTable
from penstock.types import Depth

CODE = "webdataset.keys"
_LOOKED_UP = 8
"""Keys of a shard that are looked up."""


def _fix(root: str) -> str:
    return f"Rebuild it: {prepare_command(root, '--tar-index-only')}"


def check_stored_keys(store: Store, root: str, counts: Mapping[str, int], depth: Depth) -> Iterator[Problem]:
    """What is wrong with the file as a whole, each byte of it at full depth."""
    path, fix = meta_path(root, KEYS), _fix(root)
    if not store.exists(path):
        return
    try:
        index = stored_keys(store, root, counts)
        if index is None:
            what = "this key index belongs to other data and isn't used"
            yield Problem(CODE, Corrupt, path, what, fix, severity="warning")
            return
        size_bytes, expected = store.size(path), index.size_bytes
        whole = depth != "full" or size_bytes != expected or index.is_whole()
    except PenstockError as error:
        yield Problem(CODE, Corrupt, path, "not a key index", fix, found=str(error))
        return
    if not whole:
        yield Problem(CODE, Corrupt, path, "the key index differs from its digest", fix)
    if size_bytes != expected:
        found, wanted = f"{size_bytes} bytes", f"{expected} bytes"
        yield Problem(CODE, Corrupt, path, "the key index has the wrong size", fix, None, found, wanted)


def check_keys_of(
    store: Store, root: str, counts: Mapping[str, int], number: int, path: str, table: ShardTable
) -> Iterator[Problem]:
    """What it says of some samples of a shard; what is wrong with the file itself is said elsewhere."""
    if not store.exists(meta_path(root, KEYS)):
        return
    fix = _fix(root)
    try:
        index = stored_keys(store, root, counts)
        if index is None:
            return
        for place in np.unique(np.linspace(0, table.num_samples - 1, min(_LOOKED_UP, table.num_samples), dtype=int)):
            start, stop = table.offsets[place : place + 2].tolist()
            if KeyPlace(number, int(place), start, stop) not in index.find(table.keys[place]):
                what = "the key index contradicts the shard"
                yield Problem(CODE, Corrupt, index.path, what, fix, found=f"{table.keys[place]!r} of {path}")
                return
    except PenstockError as error:
        yield Problem(CODE, Corrupt, meta_path(root, KEYS), "not a key index", fix, found=str(error))

"""Side file of a folder of token files, `.penstock` in it: its binding to the index, and its content."""

from __future__ import annotations

import functools

import penstock
from penstock.codec.joined_digest import is_joinable, join_digests
from penstock.formats._manifest import Provenance
from penstock.formats.tokens.folder.files import SIDE_NAME
from penstock.formats.tokens.folder.index import TokenFileIndex
from penstock.store.base import Store
from penstock.store.side_file import EDGE_BYTES, Facts, edge_binding, fitting_manifest
from penstock.types import Manifest

NAME = "token-files"


def folder_facts(data: bytes, index: TokenFileIndex) -> Facts:
    """Return the facts of a folder to compare with a side file: the edges of its index, and its counts."""
    return Facts(
        format=NAME,
        binding=edge_binding(len(data), data[:EDGE_BYTES], data[-EDGE_BYTES:]),
        num_samples=sum(one.documents for one in index.files),
        num_tokens=sum(one.tokens for one in index.files),
    )


def folder_manifest(data: bytes, index: TokenFileIndex, size_bytes: int, given: Provenance) -> Manifest:
    """Return the side file of a folder.

    Args:
        data: content of `index.json`.
        index: the same, decoded.
        size_bytes: size of all token files.
        given: provenance of the data.
    """
    facts = folder_facts(data, index)
    return Manifest(
        format=NAME,
        num_samples=facts.num_samples or 0,
        size_bytes=size_bytes,
        num_tokens=facts.num_tokens,
        max_token_id=max((one.max_token_id for one in index.files if one.tokens), default=None),
        eos_id=given.eos_id,
        tokenizer=given.tokenizer,
        tokenizer_digest=given.tokenizer_digest,
        digest=folder_digest(index),
        inputs=dict(given.inputs),
        options=dict(given.options),
        binding=facts.binding,
        tool=f"penstock {penstock.__version__}",
    )


def folder_digest(index: TokenFileIndex) -> str | None:
    """Return the document digest of all files together; None if that of one file can't be joined."""
    digests = [one.digest for one in index.files]
    return join_digests(digests) if all(map(is_joinable, digests)) else None


def read_manifest(store: Store, root: str, data: bytes, index: TokenFileIndex) -> Manifest | None:
    """Return the side file of a folder; None if there is none, or if it doesn't belong to this index."""
    return fitting_manifest(store, f"{root}/{SIDE_NAME}", functools.partial(folder_facts, data, index))

"""Directories of token files for tests, as written by `penstock pack … -o FOLDER/`, in one process."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.codec.joined_digest import documents_digest_v2
from penstock.formats import get_format
from penstock.formats._manifest import Provenance
from penstock.formats.tokens.folder.files import SIDE_NAME, data_names, side_name
from penstock.formats.tokens.folder.index import (
    INDEX_NAME,
    SUFFIXES,
    TokenFileEntry,
    TokenFileIndex,
    encode_index,
    token_file_name,
)
from penstock.formats.tokens.folder.side import folder_manifest
from penstock.store.local import LocalStore
from penstock.store.side_file import decode_manifest, encode_manifest


def write_token_files(
    folder: Path,
    files: Sequence[Sequence[Sequence[int]]],
    format: str = "pbin",
    *,
    options: Mapping[str, Any] | None = None,
    joined: bool = True,
    side: bool = True,
    recorded: bool = True,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    given: dict[str, Any] = {**({} if format == "flat-tokens" else {"token_bytes": 2}), **(options or {})}
    make = functools.partial(_write_file, folder, format=format, options=given, joined=joined, recorded=recorded)
    entries = [make(number, documents) for number, documents in enumerate(files)]
    index = TokenFileIndex(format, tuple(entries))
    data = encode_index(format, entries)
    files_there = (path for path in folder.rglob("*") if path.is_file() and path.suffix != SIDE_NAME)
    size_bytes = sum(path.stat().st_size for path in files_there)
    if side:
        kept = {name: given[name] for name in ("eos_id", "tokenizer", "tokenizer_digest") if name in given}
        (folder / SIDE_NAME).write_bytes(encode_manifest(folder_manifest(data, index, size_bytes, Provenance(**kept))))
    (folder / INDEX_NAME).write_bytes(data)
    return folder


def _write_file(
    folder: Path,
    number: int,
    documents: Sequence[Sequence[int]],
    *,
    format: str,
    options: Mapping[str, Any],
    joined: bool,
    recorded: bool,
) -> TokenFileEntry:
    unnamed = f"unnamed.{SUFFIXES[format]}"
    tokens = np.array([token for document in documents for token in document], np.uint32)
    lengths = np.array([len(document) for document in documents], np.int64)
    place = str(folder / unnamed)
    place = place.removesuffix(".bin") if format == "megatron" else place
    with get_format(format).create(LocalStore(), place, options, overwrite=False) as writer:
        writer.write_batch({"tokens": np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else []})
    side = folder / side_name(format, unnamed)
    manifest = decode_manifest(side.read_bytes())
    assert manifest is not None
    digest = documents_digest_v2(tokens, lengths) if joined else str(manifest.digest)
    if recorded:
        side.write_bytes(encode_manifest(dataclasses.replace(manifest, digest=digest)))
    name = token_file_name(number, digest, SUFFIXES[format])
    old, new = ([*data_names(format, one), side_name(format, one)] for one in (unnamed, name))
    for before, after in zip(old, new, strict=True):
        LocalStore().rename(str(folder / before), str(folder / after))
    largest = int(tokens.max()) if len(tokens) else -1
    return TokenFileEntry(name, len(tokens), len(lengths), largest, digest)

"""Side files of groups written by other tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from penstock.errors import ConfigError
from penstock.formats._manifest import Provenance, file_digest
from penstock.formats.tokens.flat_tokens.check import groups_at
from penstock.formats.tokens.flat_tokens.group import (
    STARTS,
    TOKENS,
    Group,
    edge_files,
    group_binding,
    read_group,
    require_outside_groups,
    side_part,
    side_place,
)
from penstock.formats.tokens.flat_tokens.source import FlatTokensSource, chunks_fingerprint
from penstock.formats.tokens.writer import TokenTally, token_manifest
from penstock.formats.tokens.zarr.meta import ArrayMeta
from penstock.store.base import Store
from penstock.store.side_file import file_binding, load_manifest, replace_side_file
from penstock.types import IntArray, Manifest, OpenOptions

_RUN_TOKENS = 1 << 22


def write_flat_manifest(store: Store, path: str, options: OpenOptions, *, replace: bool = False) -> str:
    """Count and digest a group, or each split of a dataset, and write its side file; return the file's path.

    Tokenizer, EOS id and inputs of an existing side file are kept. Every byte is read twice. Memory: 8 bytes per
    sequence, and one run of about 4 million tokens or the longest sequence.

    Raises:
        NotFound: there is nothing at the path.
        FormatError: the data is damaged, or contradicts the existing side file and `replace` is false.
    """
    path = path.rstrip("/") or path
    require_outside_groups(store, path)
    folders = groups_at(store, path, options.split)
    side_path = side_place(store, folders[0])[0]
    before = load_manifest(store, side_path, to_write=True)
    parts: dict[str, Manifest] = {} if before is None else dict(before.parts)
    whole: Manifest | None = None
    for folder in folders:
        manifest = _measure(store, folder, options)
        name = side_place(store, folder)[1]
        if name is None:
            whole = manifest
        else:
            parts[name] = manifest
    replace_side_file(store, side_path, whole or sum_of_parts(parts), replace=replace)
    return side_path


def sum_of_parts(parts: dict[str, Manifest]) -> Manifest:
    """Return the side file of a dataset: its counts, and one part per split."""
    if not parts:
        raise ConfigError("a dataset without splits can't have a side file")
    return Manifest(
        format="flat-tokens",
        num_samples=sum(one.num_samples for one in parts.values()),
        size_bytes=sum(one.size_bytes for one in parts.values()),
        num_tokens=sum(one.num_tokens or 0 for one in parts.values()),
        max_token_id=max((one.max_token_id or 0 for one in parts.values() if one.num_tokens), default=None),
        parts=dict(sorted(parts.items())),
        tool=next(iter(parts.values())).tool,
    )


def _measure(store: Store, folder: str, options: OpenOptions) -> Manifest:
    group = read_group(store, folder)
    tokens, starts, _ = group.require()
    source = FlatTokensSource(store, folder, None, group, dataclasses.replace(options, split=None))
    known = side_part(store, folder)
    given = Provenance(eos_id=source.eos_id)
    if known is not None:
        eos_id = source.eos_id if options.eos_id is not None else known.eos_id
        given = Provenance(eos_id, known.tokenizer, known.tokenizer_digest, known.inputs, known.options)
    tally = TokenTally(keep_lengths=False)
    for first, stop, lengths in _runs(source.doc_starts):
        ids = source.tokens(first, stop)
        tally.add(ids, lengths, int(ids.max()) if len(ids) else -1)
    digests = _digests(store, group, {TOKENS: tokens, STARTS: starts})
    bindings = [file_binding(store, f"{folder}/{group.tokens_name}/{name}") for name in edge_files(tokens)]
    manifest = token_manifest(
        "flat-tokens",
        tally,
        given,
        {},
        size_bytes=sum(store.size(name) for name in store.list(folder)),
        block_digests=digests,
        binding=group_binding(group.index, bindings),
    )
    if "" in digests[TOKENS] or "" in digests[STARTS]:  # a missing chunk
        return manifest
    prints = chunks_fingerprint(store, group.index, {group.tokens_name: tokens, STARTS: starts}, f"{folder}/")
    return dataclasses.replace(manifest, fingerprints=prints)


def _digests(store: Store, group: Group, metas: dict[str, ArrayMeta]) -> dict[str, tuple[str, ...]]:
    """Return the digest of each metadata file, and of each chunk file in order; an empty one for a missing chunk."""
    digests: dict[str, tuple[str, ...]] = {
        name: (file_digest(store, f"{group.path}/{name}"),) for name in group.metadata
    }
    for name, meta in metas.items():
        folder = f"{group.path}/{group.tokens_name if name == TOKENS else name}"
        digests[name] = tuple(file_digest(store, f"{folder}/{meta.file_name(n)}") for n in range(meta.num_files))
    return digests


def _runs(doc_starts: IntArray) -> Iterator[tuple[int, int, IntArray]]:
    """Yield `(start, stop, lengths)` of runs of whole sequences."""
    first, count = 0, len(doc_starts) - 1
    while first < count:
        stop = int(np.searchsorted(doc_starts, doc_starts[first] + _RUN_TOKENS, side="right")) - 1
        stop = min(max(stop, first + 1), count)
        run = doc_starts[first : stop + 1]
        yield int(run[0]), int(run[-1]), np.diff(run)
        first = stop

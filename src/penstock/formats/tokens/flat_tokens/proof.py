"""Comparison of a group with its side file: each chunk of its tokens, and the files with document boundaries."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.formats._manifest import file_digest
from penstock.formats._proof import Proof, ProvedRun, beside, known_manifest, require_none
from penstock.formats._side_checks import RESTORE
from penstock.formats.tokens.flat_tokens.group import STARTS, TOKENS, Group, group_facts, side_place
from penstock.formats.tokens.zarr.meta import ArrayMeta
from penstock.store.base import Store
from penstock.types import Finding, Manifest


def group_proof(store: Store, group: Group, tokens: ArrayMeta, starts: ArrayMeta) -> Proof | None:
    """Return the proof of the tokens of a group with these arrays; for errors, see `known_manifest`."""
    side, part = side_place(store, group.path)
    facts = functools.partial(group_facts, store, group)
    manifest = known_manifest("flat-tokens", store, group.path, side, facts, part)
    if manifest is None:
        return None
    arrays = {TOKENS: (group.tokens_name, tokens), STARTS: (STARTS, starts)}
    return Proof(_group_runs(store, group.path, arrays, manifest, tokens.num_items))


def _group_runs(
    store: Store, folder: str, arrays: Mapping[str, tuple[str, ArrayMeta]], manifest: Manifest, num_tokens: int
) -> Iterator[ProvedRun]:
    """Yield the files of a group that have recorded digests: those of tokens by their content."""
    for name, digests in manifest.block_digests.items():
        array = arrays.get(name)
        if array is None:
            yield from beside([_FileProof(store, f"{folder}/{name}", digest) for digest in digests], num_tokens)
            continue
        files = [f"{folder}/{array[0]}/{array[1].file_name(number)}" for number in range(len(digests))]
        checks = [_FileProof(store, *pair) for pair in zip(files, digests, strict=True)]
        if name == STARTS:
            yield from beside(checks, num_tokens)
            continue
        items = array[1].chunk_items
        for number, one in enumerate(checks):
            yield ProvedRun(number * items, (number + 1) * items, one)


@dataclass(frozen=True, slots=True)
class _FileProof:
    """File of a group; a call verifies its digest."""

    store: Store
    path: str
    digest: str

    def __call__(self) -> None:
        found = file_digest(self.store, self.path)
        if found != self.digest:
            what = "no such file" if found == "" else f"a file with the digest {found}"
            require_none([Finding("digest", "error", self.path, None, what, self.digest, RESTORE)])

"""Streaming writer of a flat-tokens array in whole chunks, and of side files for groups of other tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codec.tokens import dtype_for
from penstock.errors import ConfigError
from penstock.formats._manifest import Provenance, file_digest
from penstock.formats.tokens.common import document_runs, require_eos
from penstock.formats.tokens.flat_tokens.check import groups_at
from penstock.formats.tokens.flat_tokens.chunk_writer import ArrayWriter, ChunkWork
from penstock.formats.tokens.flat_tokens.encode import Layout, make_layout
from penstock.formats.tokens.flat_tokens.group import (
    LIMIT,
    MOST_ID,
    SPLITS,
    STARTS,
    TOKENS,
    Group,
    edge_files,
    group_binding,
    group_facts,
    holds_array,
    holds_group,
    own_files,
    read_group,
    require_outside_groups,
    side_part,
    side_place,
    splits_in,
)
from penstock.formats.tokens.flat_tokens.source import FlatTokensSource, chunks_fingerprint
from penstock.formats.tokens.joined import measured_manifest
from penstock.formats.tokens.writer import Frame, TokenWriter, token_manifest, token_options
from penstock.formats.tokens.zarr.meta import (
    CONSOLIDATED_FILE,
    GROUP_FILE,
    ArrayMeta,
    encode_array,
    encode_group,
)
from penstock.store.base import StagedFolder, Store
from penstock.store.local import output_exists
from penstock.store.names import NEXT
from penstock.store.object_folder import is_unfinished, require_finished
from penstock.store.outputs import open_folder, output_path, require_own_side_file
from penstock.store.side_file import (
    contradiction,
    file_binding,
    load_manifest,
    publish_beside,
    replace_side_file,
    stage_side_file,
)
from penstock.types import IntArray, Manifest, OpenOptions

_RUN_TOKENS = 1 << 22
_STEP_TOKENS = 1 << 14  # 64 KiB: stays in the processor's cache from one step to the next
_LAYOUT_OPTIONS = ("compressor", "chunk_tokens", "chunk_starts", "shard_tokens")
_OWN_OPTIONS = ("split", "zarr_format", *_LAYOUT_OPTIONS, "token_bytes", "vocab_size")


def create_flat_tokens(store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> FlatTokensWriter:
    """Return a writer for a single array group, or for one split of a dataset.

    Args:
        store: store of the dataset.
        path: path of the group; with `split`, that of the dataset, to which other splits can be added later.
        options: `split` (`"train"`, `"validation"`), `zarr_format` (2, 3; by default that of the dataset, else 2), and
            the fields of `encode.Layout`: `compressor, chunk_tokens, chunk_starts, shard_tokens`. `vocab_size`: ids are
            below it. `token_bytes`: width of the tokens that `write_part` takes (4), recorded as the width of their
            origin; stored ids always have 4 bytes. `eos_id, tokenizer, tokenizer_digest, inputs, options` are only
            recorded in the side file.
        overwrite: replace an existing group or split.

    Raises:
        ConfigError: an unknown or invalid option, or an existing output or other data at its path.
    """
    own, given = token_options(options, _OWN_OPTIONS, path)
    path = output_path(store, path.rstrip("/") or path)
    split = own.pop("split", None)
    if split is not None and split not in SPLITS:
        raise ConfigError("unknown split", path=path, found=repr(split), expected=" or ".join(SPLITS))
    dtype_for(own.get("token_bytes", 4))
    require_eos(path, np.dtype(np.uint32), given.eos_id)
    joined = _dataset_format(store, path) if split is not None else None
    zarr_format = own.pop("zarr_format", None) or joined or 2
    layout = make_layout(path, zarr_format, **{name: own.pop(name, None) for name in _LAYOUT_OPTIONS})
    if joined not in (None, zarr_format):
        found, expected = f"zarr version {joined}", f"zarr version {zarr_format}"
        raise ConfigError("the dataset has a different zarr version", path=path, found=found, expected=expected)
    _require_replaceable(store, path, overwrite=overwrite)
    if split is not None:
        require_finished(store, f"{path}/{GROUP_FILE[zarr_format]}")
    require_own_side_file(store, f"{path}.penstock" if split is not None else side_place(store, path)[0])
    inside = f"{split}/" if split is not None and joined is None else ""
    group = GROUP_FILE[zarr_format]
    folder = open_folder(
        store,
        path,
        partial(own_files, store),
        overwrite=overwrite,
        held=(group, inside + group) if inside else (group,),
        split=split,
        inside=joined is not None,
    )
    return FlatTokensWriter(store, path, split, layout, folder, inside, given, overwrite=overwrite, **own)


class FlatTokensWriter(TokenWriter):
    """Streaming writer of documents to a flat-tokens array.

    Whole chunks are encoded, written and synced by a few threads while the next one is filled. Memory: the chunk being
    filled of each array, and up to 64 MiB of chunks being written (at least two), for any amount of data.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        split: str | None,
        layout: Layout,
        folder: StagedFolder,
        inside: str,
        given: Provenance,
        *,
        overwrite: bool,
        token_bytes: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        limit = min(MOST_ID + 1, vocab_size or MOST_ID + 1)
        super().__init__(path, dtype_for(token_bytes or 4, "<"), limit, given, keep_lengths=False)
        self._overwrite = overwrite
        self._split = split
        self._layout = layout
        self._store = store
        self._folder = folder
        self._inside = inside
        self._came_in_bytes = token_bytes
        self._work = ChunkWork(folder)
        self._tokens = ArrayWriter(self._work, f"{inside}{TOKENS}", layout.tokens_meta(0))
        self._starts = ArrayWriter(self._work, f"{inside}{STARTS}", layout.starts_meta(0))
        with self._aborting():
            self._starts.append(np.zeros(1, np.uint64))

    def _append_run(self, tokens: NDArray[Any], lengths: IntArray) -> NDArray[Any]:
        ends = np.cumsum(lengths)
        first_token = self._tally.num_tokens
        self._append_tokens(tokens, (ends - lengths)[lengths > 0])
        self._starts.append((ends + first_token).astype(np.uint64))
        return tokens

    def _commit(self) -> Manifest:
        """Write the last chunks, metadata and side file, and make the group visible."""
        tokens, starts = self._tokens.finish(), self._starts.finish()
        self._work.finish()
        manifest = self._manifest(tokens, starts, self._write_metadata(tokens, starts))
        self._publish(manifest)
        return manifest

    def _append_tokens(self, tokens: NDArray[Any], begins: IntArray) -> None:
        """Encode ids into chunks; `begins` are the first tokens of documents that have any."""
        for start, space in self._tokens.spaces(len(tokens)):
            stop = start + len(space)
            for first in range(0, len(space), _STEP_TOKENS):
                part = space[first : first + _STEP_TOKENS]
                ids = tokens[start + first : start + first + len(part)]
                np.left_shift(ids.astype(part.dtype, copy=False), 1, out=part)
            low, high = np.searchsorted(begins, (start, stop))
            space[begins[low:high] - start] |= 1

    def _write_metadata(self, tokens: ArrayMeta, starts: ArrayMeta) -> dict[str, bytes]:
        """Return the metadata files of the group by name; those of a new dataset are written too."""
        attributes = {LIMIT: max(self._tally.max_token_id, 0)}
        files = {f"{TOKENS}/{name}": data for name, data in encode_array(tokens).items()}
        files |= {f"{STARTS}/{name}": data for name, data in encode_array(starts).items()}
        files |= encode_group(self._layout.zarr_format, attributes)
        root = encode_group(self._layout.zarr_format, {}) if self._inside else {}
        self._work.write_all({f"{self._inside}{name}": data for name, data in files.items()} | root)
        return files

    def _manifest(self, tokens: ArrayMeta, starts: ArrayMeta, metadata: Mapping[str, bytes]) -> Manifest:
        above = self._inside
        facts = {name[len(above) :]: fact for name, fact in self._work.facts.items() if name.startswith(above)}
        digests: dict[str, tuple[str, ...]] = {name: (facts[name].digest,) for name in metadata}
        for array in (self._tokens, self._starts):
            name = array.name.removeprefix(self._inside)
            digests[name] = tuple(facts[f"{name}/{array.meta.file_name(n)}"].digest for n in range(array.num_files))
        index = b"".join(f"{name}\n{len(data)}\n".encode() + data for name, data in sorted(metadata.items()))
        bindings = [facts[f"{TOKENS}/{name}"].binding for name in edge_files(tokens)]
        layout = {name: value for name, value in dataclasses.asdict(self._layout).items() if value is not None}
        if self._came_in_bytes is not None:
            layout["token_bytes"] = self._came_in_bytes
        manifest = token_manifest(
            "flat-tokens",
            self._tally,
            Frame(b"", (), None, layout, self._given),
            size_bytes=sum(fact.size_bytes for fact in facts.values()),
            block_digests=digests,
            binding=group_binding(index, bindings),
        )
        prints = chunks_fingerprint(self._folder, index, {TOKENS: tokens, STARTS: starts}, above)
        return dataclasses.replace(manifest, fingerprints=prints)

    def _publish(self, manifest: Manifest) -> None:
        """Publish the side file, then the folder, which makes everything visible."""
        # Another split of a new dataset may have been committed meanwhile: then this one joins it.
        joins = bool(self._inside) and holds_group(self._store, self._path) and not holds_array(self._store, self._path)
        target = f"{self._path}/{self._split}" if joins else self._folder.path
        whole_at_once = self._store.stages_folders  # in other stores its own chunks already exist
        if not self._overwrite and whole_at_once and _is_taken(self._store, target):
            raise output_exists(target)
        side_path, part = f"{self._path}.penstock", self._split
        if part is None:
            side_path, part = side_place(self._store, self._path)
        # A side file that records other splits is unchanged until this one exists.
        there = whole_at_once and self._store.exists(target)
        replaces = there or (part is not None and self._store.exists(side_path))
        whole = manifest if part is None else self._with_others(side_path, part, manifest)
        side = stage_side_file(self._store, side_path, whole, replaces=replaces)

        def land() -> None:
            if joins:
                self._folder.commit(self._split, target)
            else:
                self._folder.commit()

        def landed() -> bool:
            found = target if joins else f"{target}/{self._inside}".rstrip("/")
            return contradiction(manifest, group_facts(self._store, read_group(self._store, found))) is None

        publish_beside(self._store, [side], land, landed)

    def _with_others(self, side_path: str, part: str, manifest: Manifest) -> Manifest:
        """Return the side file of a group of groups: one part for each existing one, such as a split."""
        before, outer = load_manifest(self._store, side_path, to_write=True), side_path.removesuffix(".penstock")
        waiting = load_manifest(self._store, side_path + NEXT, to_write=True)
        names = [name for one in (before, waiting) if one is not None for name in one.parts]
        parts = {name: side_part(self._store, f"{outer}/{name}") for name in names}
        there = {name: one for name, one in parts.items() if one is not None and self._store.exists(f"{outer}/{name}")}
        return sum_of_parts(there | {part: manifest})

    def _close(self) -> None:
        self._work.stop()
        self._folder.abort()


# --- output path --------------------------------------------------------------------------------------------------


def _dataset_format(store: Store, path: str) -> int | None:
    """Return the zarr version of the dataset at `path` that a split can join, or None."""
    if not holds_group(store, path) or holds_array(store, path):
        return None
    zarr_format = 3 if store.exists(f"{path}/{GROUP_FILE[3]}") else 2
    root = store.get(f"{path}/{GROUP_FILE[zarr_format]}")
    if store.exists(f"{path}/{CONSOLIDATED_FILE}") or b"consolidated_metadata" in root:
        raise ConfigError(
            "the dataset has consolidated metadata, which wouldn't include the new split",
            path=path,
            hint=f"Remove it ({CONSOLIDATED_FILE}), or write another dataset",
        )
    return zarr_format


def _require_replaceable(store: Store, path: str, *, overwrite: bool) -> None:
    """Raise an error if anything but flat-tokens data would be replaced, or added to."""
    require_outside_groups(store, path)
    if not _is_taken(store, path) or holds_array(store, path) or splits_in(store, path):
        return
    folders = [path, *(f"{path}/{one}" for one in SPLITS)]
    if any(is_unfinished(store, f"{one}/{name}") for one in folders for name in GROUP_FILE.values()):
        return  # its own writer may resume
    if not overwrite and not holds_group(store, path):
        raise output_exists(path)
    raise ConfigError(
        "the existing output is not a flat-tokens group", path=path, hint="Choose another output, or remove it"
    )


def _is_taken(store: Store, path: str) -> bool:
    """Return whether anything exists at `path`; an empty folder doesn't count."""
    if not store.is_folder(path):
        return store.exists(path)
    return any(True for _ in store.list(path))


# --- side files of groups of other tools ------------------------------------------------------------------------------


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
    eos_id = source.eos_id if known is None or options.eos_id is not None else known.eos_id
    digests = _digests(store, group, {TOKENS: tokens, STARTS: starts})
    bindings = [file_binding(store, f"{folder}/{group.tokens_name}/{name}") for name in edge_files(tokens)]
    manifest = measured_manifest(
        "flat-tokens",
        document_runs(source, _RUN_TOKENS),
        None,
        Frame(b"", (), None, {}, Provenance.recorded(known, eos_id)),
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

"""Rebuild the `index.json` of a folder of shards from the headers of the shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.codec.compress import decompress
from penstock.codec.hashes import ALGORITHMS, hex_digest
from penstock.errors import Corrupt, MissingExtra, NotFound, PenstockError, Truncated
from penstock.formats._manifest import file_digests
from penstock.formats._repairs import Damaged, Recorded, Repair, Rewrite, not_repaired, repaired_by
from penstock.formats.shards.checks import dataset_folders
from penstock.formats.shards.files import offset_table
from penstock.formats.shards.find_index import folder_of, numeric_order, parse_shard_name, shards_in
from penstock.formats.shards.index_json import (
    INDEX_NAME,
    SEPARATORS,
    VERSION,
    Layout,
    Shard,
    ShardFile,
    encode_index,
    encode_merged,
    parse_index,
)
from penstock.formats.shards.side import SIDE_NAME, write_shards_manifest
from penstock.store.base import Store
from penstock.store.put import put
from penstock.store.side_file import load_manifest
from penstock.types import Action

_FIXED = {"shards.no-index", "shards.index", "shards.size", "shards.shard", "shards.config", "shards.unlisted"}
_LARGEST_BYTES = 1 << 32  # offsets are u32
_USUAL_BYTES = 1 << 28
_USUAL_RATIO = 1024


@dataclass(slots=True)
class _Found:
    """The files of one shard: data and meta, raw and compressed; values are names inside the folder."""

    stem: str
    format: str
    files: dict[tuple[bool, str | None], str] = field(default_factory=dict[tuple[bool, "str | None"], str])


def _plan_indexes(damaged: Damaged) -> Iterator[Rewrite | Action]:
    """Yield the index of each folder whose index is lost, damaged, or contradicts its shards.

    Shards below the folder are listed in numeric order of their paths. Shards are never changed; if one is damaged,
    nothing is done, and the action names it. Memory: one shard, and 1 KiB for each other one.

    Raises:
        MissingExtra: compressed shards need a package that isn't installed.
    """
    store, root = damaged.store, folder_of(damaged.path)
    for folder in dataset_folders(store, root, damaged.options.split):
        codes = [one.code for one in damaged.findings if one.path.startswith(f"{folder}/")]
        if codes:
            yield from _plan_index(store, folder, codes[0], write=damaged.write)


def _plan_index(store: Store, folder: str, code: str, *, write: bool) -> Iterator[Rewrite | Action]:
    where = f"{folder}/{INDEX_NAME}"
    try:
        shards = rebuilt_shards(store, folder)
    except MissingExtra:
        raise
    except PenstockError as error:
        yield Action(error.code, error.path or where, f"the index is not rebuilt: {error}", possible=False)
        return
    nested = any("/" in shard.raw_data.basename for shard in shards)
    data = (encode_merged if nested else encode_index)(shards)  # like `merge_index` for shards in several folders
    if store.exists(where) and store.get(where) == data:
        return
    num_samples = sum(one.samples for one in shards)
    what = f"list {len(shards)} shards with {num_samples:,} samples, according to their headers"
    side_path = f"{folder}/{SIDE_NAME}"
    known = load_manifest(store, side_path, to_write=True)
    digests = {} if known is None else known.block_digests
    names = {file.basename for shard in shards for file in shard.files()}
    for name in sorted(names & digests.keys()):
        if file_digests(store, f"{folder}/{name}") != digests[name]:
            yield not_repaired("shards.changed", f"{folder}/{name}", side_path)
            return
    gaps = list(dict.fromkeys([*_gaps(shards), *sorted(digests.keys() - names)]))
    what += f"; missing, with their samples: {', '.join(gaps[:10])}" if gaps else ""
    if write:
        parse_index(data, where)

    def make() -> None:
        put(store, where, data)
        if store.exists(side_path):
            write_shards_manifest(store, folder, shards[0].layout.format, replace=True)

    yield Rewrite(code, where, what, make, "the old index", Recorded(side_path, known, "samples", num_samples))


repair_shards = repaired_by(Repair(_plan_indexes, _FIXED))


def rebuilt_shards(store: Store, folder: str) -> list[Shard]:
    """Return the entries of all shards below a folder, in numeric order of their paths.

    Raises:
        NotFound: there are no shards.
        FormatError: one is damaged.
    """
    found: dict[str, _Found] = {}
    for basename in shards_in(store, folder):
        name = parse_shard_name(basename)
        if name is not None:
            shard = found.setdefault(name.stem, _Found(name.stem, name.format))
            shard.files[name.is_meta, name.family] = basename
    if not found:
        raise NotFound("no shards to rebuild an index from", path=folder, expected="files such as shard.00000.mds")
    return [_read_shard(store, folder, one) for one in sorted(found.values(), key=lambda one: numeric_order(one.stem))]


def _gaps(shards: Sequence[Shard]) -> list[str]:
    missing: list[str] = []
    last: dict[str, int] = {}
    for shard in shards:
        folder, _, name = shard.raw_data.basename.rpartition("/")
        _, number, form = name.split(".")
        for gone in range(last.get(f"{folder}/{form}", -1) + 1, int(number)):
            if len(missing) < 11:
                missing.append(f"{folder}/shard.{gone:05d}.{form}".lstrip("/"))
        last[f"{folder}/{form}"] = int(number)
    return missing


def _read_shard(store: Store, folder: str, found: _Found) -> Shard:
    raw, zipped = _read_file(store, folder, found, is_meta=False)
    if found.format == "mds":
        meta = meta_zip = None
        layout, samples = _header(raw.data, raw.data, raw.path, found.format)
    else:
        meta, meta_zip = _read_file(store, folder, found, is_meta=True)
        layout, samples = _header(meta.data, raw.data, meta.path, found.format)
    others = (None if one is None else one.entry(layout.hashes) for one in (zipped, meta, meta_zip))
    return Shard(layout, samples, raw.entry(layout.hashes), *others)


@dataclass(frozen=True, slots=True)
class _File:
    basename: str
    path: str
    data: NDArray[np.uint8]

    def entry(self, hashes: Sequence[str]) -> ShardFile:
        digests = {name: hex_digest(name, self.data) for name in hashes if name in ALGORITHMS}
        return ShardFile(self.basename, len(self.data), digests)


def _read_file(store: Store, folder: str, found: _Found, *, is_meta: bool) -> tuple[_File, _File | None]:
    stem = found.stem + (".meta" if is_meta else "")
    packed = [(family, name) for (meta, family), name in found.files.items() if meta is is_meta and family is not None]
    zipped = None
    if packed:
        family, name = min(packed)
        path = f"{folder}/{name}"
        zipped = _File(name, path, _bytes_of(store, path))
        limit_bytes = min(_LARGEST_BYTES, max(_USUAL_BYTES, _USUAL_RATIO * len(zipped.data)))
        raw = decompress(zipped.data, family, limit_bytes=limit_bytes, path=path)
        return _File(stem, path, np.frombuffer(raw, np.uint8)), zipped
    if (is_meta, None) not in found.files:
        raise NotFound(
            "a file of a shard is missing", path=f"{folder}/{stem}", hint="Download it, or move the shard away"
        )
    path = f"{folder}/{stem}"
    return _File(stem, path, _bytes_of(store, path)), None


def _bytes_of(store: Store, path: str) -> NDArray[np.uint8]:
    return store.view(path)


def _header(head: NDArray[np.uint8], data: NDArray[np.uint8], path: str, form: str) -> tuple[Layout, int]:
    """Return the layout and number of samples from the first bytes of an MDS file, or from a meta file."""
    if len(head) < 8:
        raise Truncated("the file has no header", path=path, offset_bytes=len(head), expected="at least 8 bytes")
    samples, first_bytes = (int(one) for one in head[:8].view("<u4"))
    start = 4 * (samples + 2)
    table = offset_table(head, samples, start if form == "mds" else 0, len(data), path)
    if int(table[-1]) != len(data):
        what = "the shard has data after its last sample"
        raise Corrupt(what, path=path, offset_bytes=int(table[-1]), found=f"{len(data)} bytes")
    text = head[start : first_bytes if form == "mds" else len(head)].tobytes()
    try:
        return _layout_of(msgspec.json.decode(text, type=_Config), form), samples
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, PenstockError) as error:
        what = "the options embedded in the shard are damaged"
        hint = "Move the shard away to rebuild the index without it"
        raise Corrupt(what, path=path, offset_bytes=start, found=str(error), hint=hint) from None


class _Config(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    format: str
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | str | None
    column_names: tuple[str, ...] = ()
    column_encodings: tuple[str, ...] = ()
    column_sizes: tuple[int | None, ...] | None = None
    columns: dict[str, str] | None = None
    newline: str | None = None
    separator: str | None = None


def _layout_of(config: _Config, form: str) -> Layout:
    if config.version != VERSION or config.format != form:
        raise Corrupt(
            "different format or version", found=f"{config.format} {config.version}", expected=f"{form} {VERSION}"
        )
    names, encodings = config.column_names, config.column_encodings
    if config.columns is not None:
        names, encodings = tuple(config.columns), tuple(config.columns.values())
    separator = SEPARATORS.get(form, config.separator)
    fixed = (config.compression, config.hashes, config.size_limit, config.newline, separator)
    return Layout(form, names, encodings, config.column_sizes, *fixed)

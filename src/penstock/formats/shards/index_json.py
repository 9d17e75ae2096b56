"""`index.json`: the list of shards of MosaicML Streaming, read strictly and written exactly.

One JSON object, `{"shards": […], "version": 2}`. Keys of a shard; none may be missing, none may be added:

| key | mds | json | csv, tsv | xsv | value |
|---|---|---|---|---|---|
| `version` | x | x | x | x | 2 |
| `format` | x | x | x | x | `"mds" "json" "csv" "tsv" "xsv"` |
| `compression` | x | x | x | x | null, or a family with its level, `"zstd:7"` |
| `hashes` | x | x | x | x | names of algorithms, sorted |
| `size_limit` | x | x | x | x | bytes, null, or text with a unit |
| `samples` | x | x | x | x | number of samples, may be 0 |
| `column_names`, `column_encodings` | x | | x | x | parallel lists, written in code point order of the names |
| `column_sizes` | x | | | | bytes of a fixed-size column, else null |
| `columns` | | x | | | object: name → encoding |
| `newline` | | x | x | x | ends a row |
| `separator` | | | | x | between columns |
| `raw_data`, `zip_data` | x | x | x | x | a file, or null |
| `raw_meta`, `zip_meta` | | x | x | x | a file, or null |

A file is `{"basename", "bytes", "hashes": {algorithm: digest}}`. Further keys next to `shards` and
`version` are accepted. Limits: fewer than 2^63 samples in all. Checked against mosaicml-streaming 0.13.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from penstock.errors import Corrupt, PenstockError, TooLarge, Truncated, UnsafeData, Unsupported
from penstock.types import IntArray

INDEX_NAME = "index.json"
VERSION = 2
FORMATS = ("mds", "csv", "tsv", "xsv", "json")
"""Format names in an index."""

SEPARATORS = {"csv": ",", "tsv": "\t"}
"""Separators implied by a format; xsv records its own."""

_COMMON = {"version", "format", "compression", "hashes", "size_limit", "samples", "raw_data", "zip_data"}
_LISTS = {"column_names", "column_encodings"}
_TEXT = {"newline", "raw_meta", "zip_meta"}
KEYS: dict[str, frozenset[str]] = {
    "mds": frozenset(_COMMON | _LISTS | {"column_sizes"}),
    "csv": frozenset(_COMMON | _LISTS | _TEXT),
    "tsv": frozenset(_COMMON | _LISTS | _TEXT),
    "xsv": frozenset(_COMMON | _LISTS | _TEXT | {"separator"}),
    "json": frozenset(_COMMON | _TEXT | {"columns"}),
}
"""Keys of a shard by its format."""

_REBUILD = "`penstock repair` rebuilds it from the shards"
_SHARD_OF_FAULT = re.compile(r" - at `\$\.shards\[(\d+)\]")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z").match
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class ShardFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One file of a shard.

    Attributes:
        basename: its path inside the dataset's folder, with `/` between parts.
        size_bytes: its size.
        hashes: algorithm → lower-case hex digest.
    """

    basename: str
    size_bytes: _Count = msgspec.field(name="bytes")
    hashes: dict[str, str]


@dataclass(frozen=True, slots=True)
class Layout:
    """Common properties of the shards of one writer. Hashable: shards of an index share equal layouts.

    Attributes:
        format: format name as in the index.
        column_names: in file order.
        column_encodings: parallel to the names.
        column_sizes: bytes of fixed-size columns, None for other columns; None if the format has no sizes.
        compression: as passed to the writer, with its level.
        hashes: names of algorithms.
        size_limit: as in the index.
        newline: end of a row; None for mds.
        separator: between columns, also if implied by the format; None for mds and json.
    """

    format: str
    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]
    column_sizes: tuple[int | None, ...] | None = None
    compression: str | None = None
    hashes: tuple[str, ...] = ()
    size_limit: int | str | None = None
    newline: str | None = None
    separator: str | None = None

    def config(self) -> dict[str, Any]:
        """Return the part of an index entry that is also embedded in every shard, or in its meta file."""
        found: dict[str, Any] = {
            "version": VERSION,
            "format": self.format,
            "compression": self.compression,
            "hashes": list(self.hashes),
            "size_limit": self.size_limit,
        }
        if self.format == "json":
            found["columns"] = dict(zip(self.column_names, self.column_encodings, strict=True))
        else:
            found["column_names"] = list(self.column_names)
            found["column_encodings"] = list(self.column_encodings)
        if self.column_sizes is not None:
            found["column_sizes"] = list(self.column_sizes)
        if self.newline is not None:
            found["newline"] = self.newline
        if self.separator is not None and self.format not in SEPARATORS:
            found["separator"] = self.separator
        return found


class Shard(msgspec.Struct, frozen=True, gc=False):
    """One shard: its layout, its number of samples, and its files.

    Attributes:
        layout: shared with other shards.
        samples: number of samples.
        raw_data: the decompressed file, which may not exist.
        zip_data: the compressed file.
        raw_meta: the decompressed meta file, in formats that have one.
        zip_meta: the compressed meta file.
    """

    layout: Layout
    samples: int
    raw_data: ShardFile
    zip_data: ShardFile | None = None
    raw_meta: ShardFile | None = None
    zip_meta: ShardFile | None = None

    def files(self) -> tuple[ShardFile, ...]:
        return tuple(file for file in (self.raw_data, self.zip_data, self.raw_meta, self.zip_meta) if file is not None)


@dataclass(frozen=True, slots=True)
class Index:
    """Parsed `index.json`.

    Attributes:
        shards: in order.
        starts: int64[n_shards + 1]: first sample of each shard, and the number of samples at the end.
    """

    shards: tuple[Shard, ...]
    starts: IntArray


# --- reading -----------------------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A shard as stored in the index; the keys required by its format are checked afterwards."""

    version: int
    format: str
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: _Count | str | None
    samples: _Count
    raw_data: ShardFile
    zip_data: ShardFile | None
    column_names: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    column_encodings: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    column_sizes: tuple[_Count | None, ...] | msgspec.UnsetType = msgspec.UNSET
    columns: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    newline: str | msgspec.UnsetType = msgspec.UNSET
    separator: str | msgspec.UnsetType = msgspec.UNSET
    raw_meta: ShardFile | msgspec.UnsetType | None = msgspec.UNSET
    zip_meta: ShardFile | msgspec.UnsetType | None = msgspec.UNSET


class _File(msgspec.Struct, gc=False):
    shards: list[_Entry]
    version: int


class _Head(msgspec.Struct):
    version: Any = None
    shards: msgspec.Raw = msgspec.Raw()
    files: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_File)
_run_decoder = msgspec.json.Decoder(list[_Entry])


def parse_index(data: bytes, path: str) -> Index:
    """Return the shards of an `index.json`.

    Args:
        data: the whole file.
        path: for messages.

    Raises:
        Unsupported: the version, or the format of a shard, is unknown.
        Truncated: the file is empty, or its JSON ends too early.
        Corrupt: the file isn't JSON, a key is missing or unknown, or a value is invalid.
        TooLarge: there are 2^63 samples or more.
        UnsafeData: a file name leaves the folder.
    """
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _fault(data, path, str(error)) from None
    if found.version != VERSION:
        raise _other_version(path, found.version)
    layouts: dict[tuple[Any, ...], Layout] = {}
    taken: set[str] = set()
    shards: list[Shard] = []
    for entry in found.shards:
        try:
            shards.append(_shard(entry, layouts, taken))
        except PenstockError as error:
            error.path = path
            error.what = f"shard {len(shards)}: {error.what}"
            raise
    return Index(tuple(shards), sample_starts(shards, path))


def parse_run(data: bytes, layouts: dict[tuple[Any, ...], Layout]) -> list[Shard]:
    """Return the shards of a JSON list, a part of an index; reuse the known `layouts` and add new ones to them.

    Raises:
        PenstockError, msgspec.DecodeError, UnicodeDecodeError, RecursionError: a shard is invalid; not which one.
    """
    taken: set[str] = set()
    return [_shard(entry, layouts, taken) for entry in _run_decoder.decode(data)]


def require_version(data: bytes) -> None:
    """Raise an error if the data isn't an index or has another version; raises the errors of `parse_run`."""
    if _decoder.decode(data).version != VERSION:
        raise _other_version("", None)


def sample_starts(shards: Sequence[Shard], path: str) -> IntArray:
    """Return int64[n_shards + 1], first sample of each shard, and the number of samples; raise `TooLarge`."""
    counts = [shard.samples for shard in shards]
    if sum(counts) >= 1 << 63:
        raise TooLarge("too many samples", path=path, found=sum(counts), expected="below 2^63")
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    starts.flags.writeable = False
    return starts


def _shard(entry: _Entry, layouts: dict[tuple[Any, ...], Layout], taken: set[str]) -> Shard:
    columns = entry.columns
    key = (
        entry.format, entry.version, entry.column_names, entry.column_encodings, entry.column_sizes,
        None if columns is msgspec.UNSET else tuple(columns.items()), entry.newline, entry.separator,
        entry.raw_meta is msgspec.UNSET, entry.zip_meta is msgspec.UNSET,
        entry.compression, entry.hashes, entry.size_limit,
    )  # fmt: skip
    layout = layouts.get(key)
    if layout is None:
        layouts[key] = layout = _layout(entry)
    raw_meta = None if entry.raw_meta is msgspec.UNSET else entry.raw_meta
    zip_meta = None if entry.zip_meta is msgspec.UNSET else entry.zip_meta
    if layout.newline is not None and raw_meta is None:
        raise Corrupt("no metadata file is listed", found="raw_meta: null", expected="a file")
    for file in (entry.raw_data, entry.zip_data, raw_meta, zip_meta):
        if file is None:
            continue
        name = file.basename
        if not _PLAIN_NAME(name):
            require_inside(name)
        if name in taken:
            raise Corrupt("the file name is used more than once", found=repr(name))
        taken.add(name)
    return Shard(layout, entry.samples, entry.raw_data, entry.zip_data, raw_meta, zip_meta)


def _layout(entry: _Entry) -> Layout:
    """Return the layout of an entry, which is validated once for all shards that share it."""
    if entry.version != VERSION:
        raise Unsupported("unknown version", found=entry.version, expected=VERSION)
    if entry.format not in KEYS:
        raise Unsupported("unknown shard format", found=repr(entry.format), expected=" ".join(FORMATS))
    given = {name for name in entry.__struct_fields__ if getattr(entry, name) is not msgspec.UNSET}
    missing, unknown = sorted(KEYS[entry.format] - given), sorted(given - KEYS[entry.format])
    if missing or unknown:
        what = f"missing key: {missing[0]}" if missing else f"unknown key: {unknown[0]}"
        raise Corrupt(what, expected=f"the keys of a shard in format {entry.format}")
    names, encodings = _columns(entry)
    sizes = None if entry.column_sizes is msgspec.UNSET else entry.column_sizes
    for what, parallel in (("column_encodings", encodings), ("column_sizes", sizes)):
        if parallel is not None and len(parallel) != len(names):
            raise Corrupt(f"{what} doesn't match column_names", found=len(parallel), expected=len(names))
    if len(set(names)) != len(names):
        raise Corrupt("duplicate column name", found=", ".join(sorted(names)))
    newline = None if entry.newline is msgspec.UNSET else entry.newline
    separator = SEPARATORS.get(entry.format) if entry.separator is msgspec.UNSET else entry.separator
    if newline == "" or separator == "":
        raise Corrupt("empty newline or separator", expected="at least one character")
    fixed = (entry.compression, entry.hashes, entry.size_limit, newline, separator)
    return Layout(entry.format, names, encodings, sizes, *fixed)


def _columns(entry: _Entry) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if entry.columns is not msgspec.UNSET:
        return tuple(entry.columns), tuple(entry.columns.values())
    if entry.column_names is msgspec.UNSET or entry.column_encodings is msgspec.UNSET:
        raise Corrupt("missing key: column_names or column_encodings")
    return entry.column_names, entry.column_encodings


def require_inside(basename: str) -> None:
    """Raise `UnsafeData` if a path isn't that of a file below the dataset's folder."""
    parts = basename.split("/")
    if not basename or basename.startswith("/") or ".." in parts or "\0" in basename or parts[-1] in ("", "."):
        raise UnsafeData(
            "a file name points outside the folder", found=repr(basename), expected="a path inside the folder"
        )


def _fault(data: bytes, path: str, what: str) -> PenstockError:
    """Return the error for an index that can't be decoded; a wrong version first, as versions differ in keys."""
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if not data.strip():
            return Truncated("the index is empty", path=path, hint=_REBUILD)
        if "truncated" in what:
            return Truncated("the index is truncated", path=path, offset_bytes=len(data), found=what, hint=_REBUILD)
        return Corrupt("not an index", path=path, found=what, hint=_REBUILD)
    if bytes(head.files) and not bytes(head.shards):
        hint = "Open the folder without a format"
        return Unsupported(
            "an index of token files, not of shards", path=path, expected='a list of "shards"', hint=hint
        )
    if head.version is not None and head.version != VERSION:
        return _other_version(path, head.version)
    place = _SHARD_OF_FAULT.search(what)
    where = "the index is damaged" if place is None else f"shard {place[1]}: the entry is damaged"
    return Corrupt(where, path=path, found=what, hint=_REBUILD)


def _other_version(path: str, version: object) -> Unsupported:
    return Unsupported("unknown index version", path=path, found=repr(version), expected=VERSION)


# --- writing -----------------------------------------------------------------------------------------------------


def encode_config(layout: Layout) -> bytes:
    """Return the JSON text that the writer of `layout` embeds in each shard, or in its meta file."""
    return json.dumps(layout.config(), sort_keys=True).encode()


def entry_of(shard: Shard) -> dict[str, Any]:
    """Return the JSON object of one shard, its keys sorted."""
    found = shard.layout.config() | {
        "samples": shard.samples,
        "raw_data": _file_entry(shard.raw_data),
        "zip_data": _file_entry(shard.zip_data),
    }
    if shard.layout.format != "mds":
        found |= {"raw_meta": _file_entry(shard.raw_meta), "zip_meta": _file_entry(shard.zip_meta)}
    return dict(sorted(found.items()))


def encode_index(shards: Iterable[Shard]) -> bytes:
    """Return `index.json` with the same bytes as a writer of the original."""
    return json.dumps({"shards": [entry_of(shard) for shard in shards], "version": VERSION}, sort_keys=True).encode()


def encode_merged(shards: Iterable[Shard]) -> bytes:
    """Return `index.json` with the same bytes as the original's `merge_index`."""
    return json.dumps({"version": VERSION, "shards": [entry_of(shard) for shard in shards]}).encode()


def below(shard: Shard, folder: str) -> Shard:
    raw_data, zip_data, raw_meta, zip_meta = (
        None if file is None else ShardFile(f"{folder}/{file.basename}", file.size_bytes, file.hashes)
        for file in (shard.raw_data, shard.zip_data, shard.raw_meta, shard.zip_meta)
    )
    return Shard(shard.layout, shard.samples, raw_data or shard.raw_data, zip_data, raw_meta, zip_meta)


def _file_entry(file: ShardFile | None) -> dict[str, Any] | None:
    if file is None:
        return None
    return {"basename": file.basename, "bytes": file.size_bytes, "hashes": dict(sorted(file.hashes.items()))}

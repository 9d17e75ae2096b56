"""Zarr metadata of one-dimensional arrays of numbers and their groups, versions 2 and 3. No files here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
import numpy as np

from penstock.errors import Corrupt, PenstockError
from penstock.formats._findings import Problem
from penstock.types import Severity

Json: TypeAlias = dict[str, Any]
DType: TypeAlias = np.dtype[Any]

REBUILD = "`penstock repair --write` rebuilds it"
AGAIN = "Copy the group again, or recreate it"

GROUP_FILE = {2: ".zgroup", 3: "zarr.json"}
ARRAY_FILE = {2: ".zarray", 3: "zarr.json"}
ATTRIBUTES_FILE = {2: ".zattrs", 3: "zarr.json"}
CONSOLIDATED_FILE = ".zmetadata"

COMPRESSORS = ("blosc", "gzip", "lz4", "zlib", "zstd")
"""Codecs that are decoded here; whatever else an array names is left to zarr-python."""

_V3_COMPRESSORS = ("blosc", "crc32c", "gzip", "zstd")
_V2_DTYPE = re.compile(r"[<>]?(u[48])")
_DELTA_DTYPE = re.compile(r"[<>|]?[iu][1248]")


def fault(
    code: str,
    kind: type[PenstockError],
    path: str,
    what: str,
    fix: str,
    offset_bytes: int | None = None,
    found: str | None = None,
    expected: str | None = None,
    severity: Severity = "error",
) -> Problem:
    """Return a problem; `code` is the check that finds it, such as `"seq_starts.monotone"`.

    The finding is one of flat-tokens; other formats that read zarr arrays make theirs of the error.
    """
    return Problem(f"flat-tokens.{code}", kind, path, what, fix, offset_bytes, found, expected, severity)


@dataclass(frozen=True, slots=True)
class Codec:
    """Step from bytes to bytes: its name, and its options as in the metadata."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chain:
    """How the items of a chunk become bytes.

    Attributes:
        stored: dtype of the compressed items, with its byte order.
        delta: dtype of the items if `stored` holds their differences; None if it holds the items.
        codecs: steps from bytes to bytes, in the order of writing.
    """

    stored: DType
    delta: DType | None = None
    codecs: tuple[Codec, ...] = ()

    @property
    def raw(self) -> bool:
        """Whether the items are stored unchanged; a checksum may follow them."""
        return self.delta is None and all(codec.name == "crc32c" for codec in self.codecs)

    @property
    def checksum_bytes(self) -> int:
        """Size of the checksum after the items of a raw chunk."""
        return 4 * len(self.codecs)


@dataclass(frozen=True, slots=True)
class Shard:
    """Several chunks in one file, with an index of `(offset u64, length u64)`.

    Attributes:
        cell_items: items of an inner chunk.
        at_end: whether the index follows the inner chunks or comes first.
        checksum: whether a crc32c follows the index.
    """

    cell_items: int
    at_end: bool = True
    checksum: bool = True


@dataclass(frozen=True, slots=True)
class ArrayMeta:
    """A one-dimensional array.

    Attributes:
        zarr_format: 2 or 3.
        num_items: length of the array.
        chunk_items: items of a chunk, which is one file.
        dtype: dtype of the items, in the machine's byte order.
        fill: item of missing chunks; None if they may not be missing.
        chain: chain of a chunk, or of an inner chunk if there are shards.
        shard: inner chunks of a chunk.
        key_start, key_end: parts of file names before and after the number.
        foreign: the part that only zarr-python can read, in words; None if everything is read here.
    """

    zarr_format: int
    num_items: int
    chunk_items: int
    dtype: DType
    fill: int | None
    chain: Chain
    shard: Shard | None = None
    key_start: str = ""
    key_end: str = ""
    foreign: str | None = None

    @property
    def num_files(self) -> int:
        """Number of chunk files of a complete array."""
        return -(-self.num_items // self.chunk_items)

    @property
    def cell_items(self) -> int:
        """Number of items that are compressed together."""
        return self.chunk_items if self.shard is None else self.shard.cell_items

    @property
    def cells_per_file(self) -> int:
        """Number of inner chunks of a shard; 1 without shards."""
        return self.chunk_items // self.cell_items

    def file_name(self, number: int) -> str:
        """Return the name of a chunk file in the array's folder."""
        return f"{self.key_start}{number}{self.key_end}"


# --- content of files ----------------------------------------------------------------------------------------------


class _Named(msgspec.Struct):
    """Extension point of version 3."""

    name: str
    configuration: Json = {}


_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 59)]
_ChunkSize: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 59)]


class _V2(msgspec.Struct):
    zarr_format: Literal[2]
    shape: list[_Size]
    chunks: list[_ChunkSize]
    dtype: Any
    fill_value: Any
    order: Literal["C", "F"] = "C"
    compressor: Json | None = None
    filters: list[Json] | None = None


class _V3(msgspec.Struct):
    zarr_format: Literal[3]
    node_type: Literal["array"]
    shape: list[_Size]
    data_type: Any
    chunk_grid: _Named
    chunk_key_encoding: _Named
    fill_value: Any
    codecs: list[_Named]
    storage_transformers: list[Any] = []


class _Grid(msgspec.Struct):
    chunk_shape: list[_ChunkSize]


class _Keys(msgspec.Struct):
    separator: Literal["/", "."] | None = None


class _Sharding(msgspec.Struct):
    chunk_shape: list[_ChunkSize]
    codecs: list[_Named]
    index_codecs: list[_Named]
    index_location: Literal["start", "end"] = "end"


_V3_MORE = frozenset(("attributes", "dimension_names"))


def parse_json(data: bytes, path: str) -> Json | Problem:
    """Return a JSON object."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        return fault("metadata.parse", Corrupt, path, "not valid JSON", AGAIN, getattr(error, "pos", 0), str(error))
    if not isinstance(value, dict):
        return _unfit(path, "the metadata is not a JSON object", type(value).__name__, "an object")
    return cast(Json, value)


def parse_array(data: bytes, path: str, zarr_format: int, name: str, wanted: str) -> ArrayMeta | Problem:
    """Return the metadata of an array, which must have one dimension and the dtype `wanted`.

    Args:
        data: content of `.zarray` or `zarr.json`.
        path: that file.
        zarr_format: 2 or 3.
        name: what problems call the array.
        wanted: a dtype of numpy's, such as `"uint32"`.
    """
    found = parse_json(data, path)
    if isinstance(found, Problem):
        return found
    try:
        meta = _parse_v2(found, wanted) if zarr_format == 2 else _parse_v3(found, wanted)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: a lone surrogate in a text
        return _unfit(path, "the metadata doesn't describe an array", str(error), f"zarr version {zarr_format}")
    except _Unfit as error:
        what, fix = f"the {error.check} of `{name}`", f"Write it again as a one-dimensional {wanted} array"
        return fault(f"{name}.{error.check}", Corrupt, path, what, fix, None, error.found, error.expected)
    fill: object = meta.fill
    is_item = _is_item(fill, np.dtype(wanted))
    if not is_item and (fill is not None or zarr_format == 3):
        return _unfit(path, "the fill value has the wrong type", fill, wanted)
    return meta


def _is_item(value: object, dtype: DType) -> bool:
    if dtype.kind in "iu":
        return type(value) is int and int(np.iinfo(dtype).min) <= value <= int(np.iinfo(dtype).max)
    return type(value) in (bool, int, float) and value == 0


def is_array(data: bytes, zarr_format: int) -> bool:
    """Return whether a metadata file is that of an array rather than of a group."""
    found = parse_json(data, "")
    return isinstance(found, dict) and (zarr_format == 2 or found.get("node_type") == "array")


class _Unfit(Exception):
    """Array of another rank or dtype."""

    def __init__(self, check: str, found: object, expected: str) -> None:
        self.check, self.found, self.expected = check, str(found)[:200], expected


def _parse_v2(fields: Json, wanted: str) -> ArrayMeta:
    found = msgspec.convert(fields, _V2)
    matched = _V2_DTYPE.fullmatch(found.dtype) if isinstance(found.dtype, str) else None
    if matched is None or np.dtype(matched[1]).name != wanted:
        raise _Unfit("dtype", found.dtype, wanted)
    num_items, chunk_items = _only(found.shape), _only(found.chunks)
    stored = np.dtype(found.dtype)
    filters, compressor = found.filters or [], found.compressor
    delta, foreign = None, None
    if [one.get("id") for one in filters] == ["delta"]:
        delta, stored, foreign = _delta(filters[0], stored)
    elif filters:
        foreign = f"filter {filters[0].get('id')!r}"
    codecs = () if compressor is None else (Codec(str(compressor.get("id")), compressor),)
    if codecs and codecs[0].name not in COMPRESSORS:
        foreign = f"codec {codecs[0].name!r}"
    chain = Chain(stored, delta, codecs)
    return ArrayMeta(2, num_items, chunk_items, np.dtype(wanted), found.fill_value, chain, foreign=foreign)


def _parse_v3(fields: Json, wanted: str) -> ArrayMeta:
    found = msgspec.convert(fields, _V3)
    if found.data_type != wanted:
        raise _Unfit("dtype", found.data_type, wanted)
    num_items = _only(found.shape)
    dtype = np.dtype(wanted)
    extensions = [name for name in fields if name not in _V3_MORE and name not in _V3.__struct_fields__]
    needed = [name for name in extensions if not _may_be_ignored(fields[name])]
    if found.chunk_grid.name != "regular" or found.storage_transformers or needed:
        unread = f"chunk grid {found.chunk_grid.name!r}" if not needed else f"extension {needed[0]!r}"
        return ArrayMeta(3, num_items, 1, dtype, found.fill_value, Chain(dtype), foreign=unread)
    chunk_items = _only(msgspec.convert(found.chunk_grid.configuration, _Grid).chunk_shape)
    chain, shard, foreign = _v3_codecs(found.codecs, dtype, chunk_items)
    key_start, keys = "", found.chunk_key_encoding
    separator = msgspec.convert(keys.configuration, _Keys).separator
    if keys.name == "default":
        key_start = "c" + (separator or "/")
    elif keys.name != "v2":
        foreign = f"chunk keys {keys.name!r}"
    return ArrayMeta(3, num_items, chunk_items, dtype, found.fill_value, chain, shard, key_start, foreign=foreign)


def _v3_codecs(codecs: list[_Named], dtype: DType, chunk_items: int) -> tuple[Chain, Shard | None, str | None]:
    """Return chain, shards, and the unsupported part."""
    if [codec.name for codec in codecs] != ["sharding_indexed"]:
        chain, foreign = _v3_chain(codecs, dtype)
        return chain, None, foreign
    found = msgspec.convert(codecs[0].configuration, _Sharding)
    cell_items = _only(found.chunk_shape)
    index, foreign = _v3_chain(found.index_codecs, np.dtype("uint64"))
    if foreign is not None or not index.raw or index.stored.str != "<u8" or chunk_items % cell_items:
        return Chain(dtype), None, "shards with an unusual index"
    chain, foreign = _v3_chain(found.codecs, dtype)
    return chain, Shard(cell_items, found.index_location == "end", bool(index.codecs)), foreign


def _v3_chain(codecs: list[_Named], dtype: DType) -> tuple[Chain, str | None]:
    stored, delta, steps, as_bytes = dtype, None, list[Codec](), False
    for codec in codecs:
        foreign = None
        if codec.name == "bytes" and not as_bytes:
            as_bytes = True
            stored = stored.newbyteorder(">" if codec.configuration.get("endian") == "big" else "<")
        elif codec.name == "numcodecs.delta" and not as_bytes and delta is None:
            delta, stored, foreign = _delta(codec.configuration, stored)
        elif codec.name in _V3_COMPRESSORS and as_bytes:
            steps.append(Codec(codec.name, codec.configuration))
        else:
            foreign = f"codec {codec.name!r}"
        if foreign is not None:
            return Chain(dtype), foreign
    if not as_bytes or sum(step.name != "crc32c" for step in steps) > 1:
        return Chain(dtype), f"codecs {', '.join(codec.name for codec in codecs)}"
    return Chain(stored, delta, tuple(steps)), None


def _delta(options: Json, plain: DType) -> tuple[DType | None, DType, str | None]:
    """Return dtype of the items, dtype of their stored differences, and the unsupported part."""
    names = [options.get("dtype"), options.get("astype") or options.get("dtype")]
    found = [np.dtype(name) for name in names if isinstance(name, str) and _DELTA_DTYPE.fullmatch(name)]
    if len(found) != 2 or found[0].itemsize != plain.itemsize:
        return None, plain, "an unsupported kind of filter 'delta'"
    return found[0].newbyteorder("="), found[1], None


def _only(sizes: list[int]) -> int:
    if len(sizes) != 1:
        raise _Unfit("rank", len(sizes), "1")
    return sizes[0]


def _may_be_ignored(value: object) -> bool:
    return isinstance(value, dict) and cast(Json, value).get("must_understand") is False


def _unfit(path: str, what: str, found: object, expected: str) -> Problem:
    return fault("metadata.parse", Corrupt, path, what, AGAIN, 0, str(found)[:200], expected)


# --- writing -----------------------------------------------------------------------------------------------------


def encode_group(zarr_format: int, attributes: Json) -> dict[str, bytes]:
    """Return the metadata files of a group: name → content."""
    if zarr_format == 3:
        return {"zarr.json": _v3_json({"attributes": attributes, "zarr_format": 3, "node_type": "group"})}
    files = {".zattrs": _v2_json(attributes)} if attributes else {}
    return files | {".zgroup": _v2_json({"zarr_format": 2})}


def encode_array(meta: ArrayMeta) -> dict[str, bytes]:
    """Return the metadata file of an array that this package writes: name → content."""
    if meta.zarr_format == 2:
        delta = meta.chain.delta
        filters = None if delta is None else [{"astype": meta.chain.stored.str, "dtype": delta.str, "id": "delta"}]
        fields = {
            "chunks": [meta.chunk_items],
            "compressor": dict(meta.chain.codecs[0].options) if meta.chain.codecs else None,
            "dimension_separator": ".",
            "dtype": meta.dtype.newbyteorder("<").str,
            "fill_value": meta.fill,
            "filters": filters,
            "order": "C",
            "shape": [meta.num_items],
            "zarr_format": 2,
        }
        return {".zarray": _v2_json(fields)}
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs: list[Json] = [
        little,
        *({"name": codec.name, "configuration": dict(codec.options)} for codec in meta.chain.codecs),
    ]
    if meta.shard is not None:
        options = {"chunk_shape": [meta.shard.cell_items], "codecs": codecs}
        options |= {"index_codecs": [little, {"name": "crc32c"}], "index_location": "end"}
        codecs = [{"name": "sharding_indexed", "configuration": options}]
    fields = {
        "shape": [meta.num_items],
        "data_type": meta.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [meta.chunk_items]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": meta.fill,
        "codecs": codecs,
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return {"zarr.json": _v3_json(fields)}


def _v2_json(value: Json) -> bytes:
    return json.dumps(value, indent=4, sort_keys=True, separators=(",", ": ")).encode()


def _v3_json(value: Json) -> bytes:
    return json.dumps(value, indent=2).encode()

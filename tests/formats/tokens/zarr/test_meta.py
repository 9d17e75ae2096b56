"""Zarr metadata: what is read here, what is left to zarr, what is refused; and what is written reads back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from penstock.formats._findings import Problem
from penstock.formats.tokens.flat_tokens.encode import COMPRESSIONS, make_layout
from penstock.formats.tokens.zarr.meta import (
    ArrayMeta,
    encode_array,
    encode_group,
    is_array,
    parse_array,
    parse_json,
)

V2: dict[str, Any] = {
    "zarr_format": 2,
    "shape": [10],
    "chunks": [4],
    "dtype": "<u4",
    "compressor": None,
    "filters": None,
    "fill_value": 0,
    "order": "C",
}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
V3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [10],
    "data_type": "uint32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [BYTES],
    "attributes": {},
}
CRC = {"name": "crc32c"}


def parse(fields: dict[str, Any], wanted: str = "uint32") -> ArrayMeta | Problem:
    return parse_array(json.dumps(fields).encode(), "g/a/x", fields["zarr_format"], "encoded_tokens", wanted)


def sharded(**options: Any) -> dict[str, Any]:
    configuration = {"chunk_shape": [2], "codecs": [BYTES], "index_codecs": [BYTES, CRC]} | options
    return V3 | {"codecs": [{"name": "sharding_indexed", "configuration": configuration}]}


def meta(fields: dict[str, Any]) -> ArrayMeta:
    found = parse(fields)
    assert isinstance(found, ArrayMeta), found
    return found


def test_sizes_and_names() -> None:
    two, three = meta(V2), meta(V3)
    assert (two.num_items, two.chunk_items, two.num_files, two.cells_per_file) == (10, 4, 3, 1)
    assert (two.file_name(2), three.file_name(2)) == ("2", "c/2")
    dotted = V3 | {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}}
    like_two = V3 | {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}
    assert (meta(dotted).file_name(2), meta(like_two).file_name(2)) == ("c.2", "2")
    plain_keys = V3 | {"chunk_key_encoding": {"name": "default"}}
    assert meta(plain_keys).file_name(0) == "c/0"
    shards = meta(sharded())
    assert (shards.cell_items, shards.cells_per_file, shards.num_files) == (2, 2, 3)
    assert shards.shard is not None
    assert shards.shard.at_end
    start = meta(sharded(index_location="start", index_codecs=[BYTES])).shard
    assert start is not None
    assert (start.at_end, start.checksum) == (False, False)


@pytest.mark.parametrize(
    ("fields", "raw", "delta"),
    [
        (V2, True, None),
        (V2 | {"dtype": ">u4"}, True, None),
        (V2 | {"compressor": {"id": "blosc"}}, False, None),
        (V2 | {"filters": [{"id": "delta", "dtype": "<i4", "astype": "<i4"}]}, False, "int32"),
        (V2 | {"filters": [{"id": "delta", "dtype": "<u4", "astype": "<i2"}]}, False, "uint32"),
        (V3, True, None),
        (V3 | {"codecs": [BYTES, CRC]}, True, None),
        (V3 | {"codecs": [BYTES, {"name": "zstd", "configuration": {"level": 0}}, CRC]}, False, None),
        (V3 | {"codecs": [{"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}, BYTES]}, False, "int32"),
        (V3 | {"dimension_names": ["t"], "storage_transformers": []}, True, None),
        (V3 | {"more": {"must_understand": False}}, True, None),
    ],
)
def test_read_here(fields: dict[str, Any], raw: bool, delta: str | None) -> None:
    found = meta(fields)
    assert found.foreign is None
    assert found.chain.raw == raw
    assert found.chain.delta == (None if delta is None else np.dtype(delta))


@pytest.mark.parametrize(
    "fields",
    [
        V2 | {"compressor": {"id": "lzma"}},
        V2 | {"compressor": {}},
        V2 | {"filters": [{"id": "shuffle"}]},
        V2 | {"filters": [{"id": "delta", "dtype": "<i8"}]},
        V2 | {"filters": [{"id": "delta", "dtype": "<f4"}]},
        V2 | {"filters": [{"id": "delta"}, {"id": "delta"}]},
        V3 | {"codecs": [{"name": "transpose", "configuration": {"order": [0]}}, BYTES]},
        V3 | {"codecs": []},
        V3 | {"codecs": [BYTES, BYTES]},
        V3 | {"codecs": [BYTES, {"name": "zstd"}, {"name": "gzip"}]},
        V3 | {"codecs": [BYTES, {"name": "numcodecs.zlib"}]},
        V3 | {"chunk_grid": {"name": "rectilinear", "configuration": {}}},
        V3 | {"chunk_key_encoding": {"name": "other"}},
        V3 | {"storage_transformers": [{"name": "x"}]},
        V3 | {"more": {"must_understand": True}},
        V3 | {"more": 1},
        sharded(chunk_shape=[3]),
        sharded(index_codecs=[{"name": "bytes", "configuration": {"endian": "big"}}]),
        sharded(index_codecs=[BYTES, {"name": "gzip"}]),
        sharded(codecs=[{"name": "other"}]),
        V3 | {"codecs": [*sharded()["codecs"], CRC]},
    ],
)
def test_left_to_zarr(fields: dict[str, Any]) -> None:
    assert meta(fields).foreign


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (V2 | {"shape": [2, 5]}, "encoded_tokens.rank"),
        (V2 | {"shape": []}, "encoded_tokens.rank"),
        (V3 | {"shape": [2, 5]}, "encoded_tokens.rank"),
        (V2 | {"dtype": "<u8"}, "encoded_tokens.dtype"),
        (V2 | {"dtype": "<i4"}, "encoded_tokens.dtype"),
        (V2 | {"dtype": [["a", "<u4"]]}, "encoded_tokens.dtype"),
        (V2 | {"dtype": "|O"}, "encoded_tokens.dtype"),
        (V3 | {"data_type": "int32"}, "encoded_tokens.dtype"),
        (V3 | {"data_type": {"name": "uint32"}}, "encoded_tokens.dtype"),
        (V2 | {"shape": [-1]}, "metadata.parse"),
        (V2 | {"shape": [1 << 60]}, "metadata.parse"),
        (V2 | {"shape": [1.5]}, "metadata.parse"),
        (V2 | {"shape": "10"}, "metadata.parse"),
        (V2 | {"shape": [True]}, "metadata.parse"),
        (V2 | {"chunks": [0]}, "metadata.parse"),
        (V2 | {"fill_value": -1}, "metadata.parse"),
        (V2 | {"fill_value": 1 << 32}, "metadata.parse"),
        (V2 | {"fill_value": "0"}, "metadata.parse"),
        (V2 | {"compressor": 5}, "metadata.parse"),
        (V2 | {"filters": {}}, "metadata.parse"),
        (V3 | {"fill_value": None}, "metadata.parse"),
        (V3 | {"codecs": ["bytes"]}, "metadata.parse"),
        (V3 | {"node_type": "group"}, "metadata.parse"),
        (V3 | {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}}, "metadata.parse"),
        (sharded(chunk_shape=[0]), "metadata.parse"),
        (sharded(index_location="middle"), "metadata.parse"),
    ],
)
def test_refused(fields: dict[str, Any], code: str) -> None:
    found = parse(fields)
    assert isinstance(found, Problem)
    assert found.code == f"flat-tokens.{code}"
    error = found.error()
    assert error.path == "g/a/x"
    assert error.hint


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"a": 1} x', b"[" * 100_000])
def test_no_metadata(data: bytes) -> None:
    found = parse_array(data, "p", 2, "encoded_tokens", "uint32")
    assert isinstance(found, Problem)
    assert found.code == "flat-tokens.metadata.parse"
    assert not is_array(data, 3)


WRITTEN = [(compressor, version) for compressor in (None, *COMPRESSIONS) for version in (2, 3)]
WRITTEN.remove(("seqax", 3))


@pytest.mark.parametrize(("compressor", "zarr_format"), WRITTEN)
def test_what_is_written_reads_back(compressor: str | None, zarr_format: int) -> None:
    layouts = [make_layout("p", zarr_format, compressor=compressor)]
    if zarr_format == 3:
        layouts.append(make_layout("p", 3, compressor=compressor, chunk_tokens=8, shard_tokens=64))
    for layout in layouts:
        for own, wanted in ((layout.tokens_meta(5), "uint32"), (layout.starts_meta(3), "uint64")):
            ((_, data),) = encode_array(own).items()
            found = parse_array(data, "p", zarr_format, "encoded_tokens", wanted)
            assert isinstance(found, ArrayMeta)
            assert found.foreign is None
            same = ("num_items", "chunk_items", "dtype", "fill", "shard", "key_start")
            assert all(getattr(found, name) == getattr(own, name) for name in same)
            assert (found.chain.stored, found.chain.delta) == (own.chain.stored, own.chain.delta)
            assert [dict(codec.options) for codec in found.chain.codecs] == [
                dict(codec.options) for codec in own.chain.codecs
            ]


def test_groups() -> None:
    assert encode_group(2, {}) == {".zgroup": b'{\n    "zarr_format": 2\n}'}
    assert encode_group(2, {"max_token_id": 8})[".zattrs"] == b'{\n    "max_token_id": 8\n}'
    three = parse_json(encode_group(3, {"max_token_id": 8})["zarr.json"], "p")
    assert three == {"attributes": {"max_token_id": 8}, "zarr_format": 3, "node_type": "group"}

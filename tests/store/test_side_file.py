"""The side file: a manifest that counts only while it fits the data beside it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from penstock.store.memory import MemoryStore
from penstock.store.side_file import decode_manifest, edge_binding, encode_manifest, file_binding, read_side_file
from penstock.types import Manifest

FULL = Manifest(
    format="pbin",
    num_samples=3,
    size_bytes=100,
    num_tokens=12,
    max_token_id=7,
    eos_id=0,
    tokenizer="bpe",
    tokenizer_digest="ab",
    digest="cd",
    inputs={"a.jsonl": "ef"},
    block_digests={"data": ("01", "02")},
    options={"token_bytes": 2, "nested": {"x": [1, None]}},
    binding="34",
    tool="penstock 1",
)


@pytest.mark.parametrize("manifest", [FULL, Manifest("pbin", 0, 0)])
def test_round_trip(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    assert decode_manifest(data) == manifest
    assert json.loads(data)["format"] == "pbin"
    assert data == encode_manifest(dataclasses.replace(manifest))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"format": 1}', encode_manifest(FULL)[:-10]])
def test_what_is_no_manifest(data: bytes) -> None:
    assert decode_manifest(data) is None


@pytest.mark.parametrize("name", ["num_samples", "size_bytes", "num_tokens", "max_token_id", "eos_id"])
@pytest.mark.parametrize("count", [-1, 1 << 63])
def test_counts_that_can_not_be(name: str, count: int) -> None:
    assert decode_manifest(json.dumps({**json.loads(encode_manifest(FULL)), name: count}).encode()) is None


def test_parts() -> None:
    whole = dataclasses.replace(FULL, parts={"train": FULL, "validation": Manifest("pbin", 0, 0)})
    assert decode_manifest(encode_manifest(whole)) == whole
    wrong = dataclasses.replace(FULL, parts={"train": dataclasses.replace(FULL, num_tokens=-1)})
    assert decode_manifest(encode_manifest(wrong)) is None
    assert decode_manifest(b'{"parts":{"a":' * 100_000) is None


def test_fields_of_a_later_version_are_ignored() -> None:
    later = {**json.loads(encode_manifest(FULL)), "later": [1]}
    assert decode_manifest(json.dumps(later).encode()) == FULL


def test_binding_sees_size_and_edges() -> None:
    data = bytes(20_000)
    store = MemoryStore({"a": data})
    binding = file_binding(store, "a")
    assert binding == edge_binding(len(data), data[:4096], data[-4096:])
    for changed in (data + b"\0", data[:-1], b"\1" + data[1:], data[:-1] + b"\1"):
        assert file_binding(MemoryStore({"a": changed}), "a") != binding


def test_side_file_of_other_data_does_not_count() -> None:
    store = MemoryStore({"a": b"data", "b": b"other"})
    bound = dataclasses.replace(FULL, binding=file_binding(store, "a"))
    store.files["a.penstock"] = encode_manifest(bound)
    assert read_side_file(store, "a.penstock", "a") == bound
    assert read_side_file(store, "a.penstock", "b") is None
    assert read_side_file(store, "missing.penstock", "a") is None
    assert read_side_file(store, "a.penstock", "missing") is None

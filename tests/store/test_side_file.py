"""The side file: a manifest that counts only while it fits the data beside it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from penstock.errors import Corrupt
from penstock.store.memory import MemoryStore
from penstock.store.side_file import (
    Facts,
    contradiction,
    decode_manifest,
    edge_binding,
    encode_manifest,
    file_binding,
    is_damaged,
    load_manifest,
    publish_beside,
    read_side_file,
    replace_side_file,
    stage_side_file,
)
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
    bound = dataclasses.replace(FULL, binding=file_binding(store, "a"), size_bytes=4)
    store.files["a.penstock"] = encode_manifest(bound)
    assert read_side_file(store, "a.penstock", "a") == bound
    assert read_side_file(store, "a.penstock", "b") is None
    assert read_side_file(store, "missing.penstock", "a") is None
    assert read_side_file(store, "a.penstock", "missing") is None


def test_the_one_that_fits_counts_of_a_side_file_and_the_next() -> None:
    store = MemoryStore({"a": b"data"})
    fits = dataclasses.replace(FULL, binding=file_binding(store, "a"), size_bytes=4)
    other = dataclasses.replace(FULL, binding="ff", size_bytes=4)
    for here, waiting, expected in (
        (other, fits, fits),
        (fits, other, fits),
        (None, fits, fits),
        (None, other, None),
        (other, other, None),
    ):
        store.files = {"a": b"data"}
        store.files |= {} if here is None else {"a.penstock": encode_manifest(here)}
        store.files["a.penstock.next"] = encode_manifest(waiting)
        assert read_side_file(store, "a.penstock", "a") == expected


def test_a_contradiction_says_what_differs() -> None:
    facts = Facts("pbin", "34", 101, 3, 13)
    found = contradiction(FULL, facts)
    assert found is not None
    assert (found.found, found.stated) == ("101 bytes, 13 tokens", "100 bytes, 12 tokens, as recorded in the side file")
    assert contradiction(FULL, Facts("pbin", "34", 100, 3, 12)) is None
    edges = contradiction(FULL, Facts("pbin", "35", 100))
    assert edges is not None
    assert "beginning or end" in str(edges.found)
    too_many = contradiction(dataclasses.replace(FULL, num_samples=10**15), Facts(most_samples=20))
    assert too_many is not None
    assert "1000000000000000 samples" in str(too_many.stated)


def test_a_replacement_in_a_store_without_renames() -> None:
    store = MemoryStore({"a": b"old", "a.penstock": b"old"})
    seen: list[dict[str, bytes]] = []

    def publish() -> None:
        seen.append(dict(store.files))
        store.files["a"] = b"new"

    publish_beside(store, [stage_side_file(store, "a.penstock", FULL, replaces=True)], publish, lambda: True)
    assert seen == [{"a": b"old", "a.penstock": b"old", "a.penstock.next": encode_manifest(FULL)}]
    assert store.files == {"a": b"new", "a.penstock": encode_manifest(FULL)}


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("landed", [False, True])
def test_data_that_fail_take_back_what_was_beside_them_unless_they_are_there(replaces: bool, landed: bool) -> None:
    store = MemoryStore({"a.penstock": b"old"} if replaces else {})
    before = dict(store.files)

    def publish() -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        publish_beside(store, [stage_side_file(store, "a.penstock", FULL, replaces=replaces)], publish, lambda: landed)
    assert store.files == ({"a.penstock": encode_manifest(FULL)} if landed else before)


@pytest.mark.parametrize(
    "change",
    [
        {"num_samples": 4},
        {"size_bytes": 99},
        {"binding": "35"},
        {"block_digests": {"data": ("01", "03")}},
        {"block_digests": {"data": ("01",)}},
        {"block_digests": {}},
        {"format": "jsonl"},
    ],
)
def test_what_contradicts_a_side_file_is_not_blessed_without_a_word(change: dict[str, object]) -> None:
    store = MemoryStore({"a.penstock": encode_manifest(FULL)})
    found = dataclasses.replace(FULL, **change)  # type: ignore[arg-type]
    with pytest.raises(Corrupt, match="--replace-manifest"):
        replace_side_file(store, "a.penstock", found, replace=False)
    assert store.files["a.penstock"] == encode_manifest(FULL)
    replace_side_file(store, "a.penstock", found, replace=True)
    assert store.files == {"a.penstock": encode_manifest(found)}
    replace_side_file(store, "a.penstock", found, replace=False)
    store.files["a.penstock"] = b"{"
    with pytest.raises(Corrupt, match="--replace-manifest"):
        replace_side_file(store, "a.penstock", found, replace=False)


@pytest.mark.parametrize(
    ("there", "put"),
    [(b'"check": "', b'"check": "\xff'), (b"{", b'{"foreign": 1e999,')],
    ids=["no text", "out of range"],
)
def test_a_foreign_field_that_can_not_be_is_damage(there: bytes, put: bytes) -> None:
    data = encode_manifest(FULL).replace(there, put, 1)
    store = MemoryStore({"a.penstock": data})
    assert load_manifest(store, "a.penstock") is not None
    assert is_damaged(store, "a.penstock")

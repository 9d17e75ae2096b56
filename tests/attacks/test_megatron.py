"""Megatron datasets that mean harm: nothing hangs, and memory stays within a multiple of the files."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import MEGATRON_FORMAT as FORMAT
from tests.internals import decode_manifest, encode_manifest

import penstock as ps
from penstock.errors import Corrupt, PenstockError
from penstock.store import MemoryStore
from penstock.types import OpenOptions

# 8 bytes an entry in several arrays, for entries of 4 bytes; and what opening and checking cost anyway.
MOST_BYTES_A_BYTE = 60
FREE_BYTES = 1 << 20


def index(code: int, lengths: list[int], pointers: list[int], borders: list[int], tail: bytes = b"") -> bytes:
    data = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(borders))
    data += np.array(lengths, "<i4").tobytes() + np.array(pointers, "<i8").tobytes()
    return data + np.array(borders, "<i8").tobytes() + tail


def attempt(data: bytes, idx: bytes) -> PenstockError | None:
    """Read and check everything in it; gives the refusal, and fails on any other error and on too much memory."""
    store = MemoryStore({"a.bin": data, "a.idx": idx})
    refusal: PenstockError | None = None
    tracemalloc.start()
    try:
        try:
            source: Any = FORMAT.open(store, "a", OpenOptions())
            source.tokens(0, source.num_tokens)
            for index in range(len(source)):
                source[index]
            source.get_batch(range(min(len(source), 3)))
        except PenstockError as error:
            refusal = error
        findings = FORMAT.check(store, "a", OpenOptions(eos_id=0, vocab_size=5), "full")
        FORMAT.repair(store, "a", OpenOptions(eos_id=0), findings, write=False)
        FORMAT.sniff(store, "a")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= MOST_BYTES_A_BYTE * (len(data) + len(idx)) + FREE_BYTES
    assert refusal is None or any(one.severity == "error" for one in findings)
    return refusal


@pytest.mark.parametrize("count", [1 << 31, 1 << 60, (1 << 64) - 1])
def test_counts_beyond_the_file(count: int) -> None:
    for counts in ((count, 1), (0, count), (count, count)):
        idx = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, *counts) + bytes(100)
        assert attempt(bytes(100), idx) is not None


def test_a_few_bytes_that_stand_for_petabytes() -> None:
    count = 20_000
    whole = index(8, [500] * count, [0] * count, [*range(count + 1)])
    assert attempt(bytes(1000), whole) is not None
    one_document = index(8, [500] * count, [0] * count, [0, count])
    assert attempt(bytes(1000), one_document) is not None
    long = index(8, [(1 << 31) - 1] * count, [0] * count, [0, count])
    assert attempt(bytes(1000), long) is not None


@pytest.mark.parametrize(
    ("lengths", "pointers", "borders"),
    [
        ([5], [-10], [0, 1]),
        ([-5, 5], [10, 0], [0, 1, 2]),
        ([1], [(1 << 63) - 2], [0, 1]),
        ([(1 << 31) - 1], [0], [0, 1]),
        ([1], [19], [0, 1]),
        ([1, 1], [0, 2], [0, -1, 2]),
        ([1, 1], [0, 2], [0, 1 << 62, 2]),
        ([1, 1], [0, 2], [-(1 << 63), 1, 2]),
    ],
)
def test_entries_that_lead_out_of_the_file(lengths: list[int], pointers: list[int], borders: list[int]) -> None:
    assert attempt(bytes(20), index(8, lengths, pointers, borders)) is not None


@settings(deadline=None, max_examples=200)
@given(
    code=st.integers(0, 9),
    entries=st.lists(st.tuples(st.integers(-3, 12), st.integers(-3, 40)), max_size=6),
    borders=st.lists(st.integers(-1, 7), max_size=7),
    tail=st.binary(max_size=9),
    data=st.binary(max_size=48),
)
def test_any_index_is_refused_or_read(
    code: int, entries: list[tuple[int, int]], borders: list[int], tail: bytes, data: bytes
) -> None:
    attempt(data, index(code, [a for a, _ in entries], [b for _, b in entries], borders, tail))


@settings(deadline=None, max_examples=200)
@given(place=st.integers(0, 97), value=st.integers(0, 255), cut=st.integers(0, 98))
def test_any_byte_of_a_sound_index(place: int, value: int, cut: int) -> None:
    idx = bytearray(index(4, [2, 1, 0], [0, 8, 12], [0, 1, 2, 3]))
    idx[place % len(idx)] = value
    attempt(bytes(12), bytes(idx[: max(cut, place)]))


def test_a_side_file_that_calls_a_negative_number_an_id(tmp_path: Path) -> None:
    """Where a side file says the largest id nobody looks for what is none; one of int32 can't be 2^32 - 1."""
    with ps.create(tmp_path / "a", format="megatron", token_bytes=4) as writer:
        writer.write({"tokens": np.arange(5000)})
    tokens = np.fromfile(tmp_path / "a.bin", "<i4")
    tokens[2500] = -1
    tokens.tofile(tmp_path / "a.bin")
    side = tmp_path / "a.idx.penstock"
    told = decode_manifest(side.read_bytes())
    assert told is not None
    side.write_bytes(encode_manifest(replace(told, max_token_id=2**32 - 1, digest=None, block_digests={})))
    source: Any = ps.open(tmp_path / "a", format="megatron")
    with pytest.raises(Corrupt, match="not a valid id"):
        source.tokens(2000, 3000)
    assert [one.code for one in ps.verify(tmp_path / "a", format="megatron", depth="full")] == ["megatron.id"]

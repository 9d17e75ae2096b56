"""Packed files that mean harm: nothing runs, nothing hangs, and memory stays within a multiple of the file."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import PBIN_FORMAT as FORMAT

from penstock.errors import FormatError, PenstockError, UnsafeData
from penstock.store import LocalStore, MemoryStore
from penstock.types import OpenOptions

# 3 times the file while an index is decoded, 16 times for its pairs; and what opening and checking cost anyway.
MOST_BYTES_A_BYTE = 40
FREE_BYTES = 1 << 20


def header(data_bytes: int, token_bytes: int = 2) -> bytes:
    return struct.pack("<QI", data_bytes, token_bytes)


def read_everything(store: MemoryStore | LocalStore, path: str) -> None:
    source = FORMAT.open(store, path, OpenOptions())
    source.tokens(0, source.num_tokens)
    for index in range(len(source)):
        source[index]


def attempt(data: bytes) -> PenstockError | None:
    """Read and check everything in it; gives the refusal, and fails on any other error and on too much memory."""
    store = MemoryStore({"a.pbin": data})
    refusal: PenstockError | None = None
    tracemalloc.start()
    try:
        try:
            read_everything(store, "a.pbin")
        except PenstockError as error:
            refusal = error
        findings = FORMAT.check(store, "a.pbin", OpenOptions(eos_id=0, vocab_size=5), "full")
        FORMAT.repair(store, "a.pbin", OpenOptions(eos_id=0), findings, write=False)
        FORMAT.sniff(store, "a.pbin")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= MOST_BYTES_A_BYTE * len(data) + FREE_BYTES
    assert refusal is None or any(one.severity == "error" for one in findings)
    return refusal


class Runs:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("place", ["first", "inside", "instead", "behind"])
def test_a_pickle_that_would_run_code(tmp_path: Path, protocol: int, place: str) -> None:
    victim = tmp_path / "victim"
    evil = Runs(str(victim))
    index: Any = {
        "first": [evil, (0, 4)],
        "inside": [(0, 2), evil, (2, 2)],
        "instead": evil,
        "behind": [(0, 4), (4, evil)],
    }[place]
    data = header(4) + b"\1\0\2\0" + pickle.dumps(index, protocol)
    path = tmp_path / "a.pbin"
    for tail in (b"", b"e.", b"]\x94."):
        path.write_bytes(data + tail)
        with pytest.raises((FormatError, UnsafeData)):
            read_everything(LocalStore(), str(path))
        assert any(one.severity == "error" for one in FORMAT.check(LocalStore(), str(path), OpenOptions(), "full"))
        attempt(data + tail)
    assert not victim.exists()
    pickle.loads(data[16:])
    assert victim.exists()  # it would have


def test_an_index_of_a_billion_entries_in_a_hundred_bytes() -> None:
    bombs = [
        b"\x80\x04\x95" + struct.pack("<Q", 10**10) + b"]\x94(K\0K\4\x86\x94e.",
        b"\x80\x04]\x94(" + b"K\0K\4\x86\x94" + b"h\1" * 30 + b"e.",
        b"\x80\x02]q\0(" + b"K\0K\4\x86q\1" + b"j\xff\xff\xff\x7f" * 9 + b"e.",
        b"\x80\x04]\x94(K\0\x8a\xff" + b"\xff" * 60 + b"\x86\x94e.",
        b"\x80\x04]\x94(K\0\x8b" + struct.pack("<I", 1 << 30) + b"\1\x86\x94e.",
        b"\x80\x04]\x94(" + b"(" * 80 + b"e.",
        b"\x80\x04]\x94" + b"0" * 40 + b"e.",
        b"\x80\x04]\x94(K\0K\4\x86\x94" + b"2" * 60 + b"e.",
    ]
    for bomb in bombs:
        assert attempt(header(4) + b"\1\0\2\0" + bomb) is not None


@pytest.mark.parametrize(
    "pairs",
    [
        [(-4, 4)],
        [(0, -4), (0, 8)],
        [(0, 4), (2, 4)],
        [(0, 4), (0, 4)],
        [(0, 1 << 62), (1 << 62, 1 << 62)],
        [(0, (1 << 63) - 1), (4, (1 << 63) - 1)],
        [(4, (1 << 63) - 4)],
        [(1 << 63, 4)],
        [(0, 1 << 64)],
        [(0, 1 << 2000)],
        [(0, 3), (3, 5)],
        [(12, 8)] * 50,
        [(0, 1 << 63)] * 3,
        [(0, 1 << 62)] * 4,
    ],
)
@pytest.mark.parametrize("token_bytes", [1, 2, 4])
def test_extents_that_lie(pairs: list[tuple[int, int]], token_bytes: int) -> None:
    if token_bytes == 1 and pairs[0] == (0, 3):
        return
    refusal = attempt(header(8, token_bytes) + bytes(range(8)) + pickle.dumps(pairs, 4))
    assert refusal is not None
    assert refusal.path == "a.pbin"


@pytest.mark.parametrize("data_bytes", [1 << 63, (1 << 63) - 2, (1 << 64) - 2, (1 << 64) - 12, 1 << 40, 10, 6])
def test_lengths_that_lie(data_bytes: int) -> None:
    assert attempt(header(data_bytes) + bytes(8) + pickle.dumps([(0, 8)], 4)) is not None


@pytest.mark.parametrize("token_bytes", [0, 3, 5, 8, 1 << 31, (1 << 32) - 1])
def test_widths_that_lie(token_bytes: int) -> None:
    assert attempt(header(8, token_bytes) + bytes(8) + pickle.dumps([(0, 8)], 4)) is not None


def test_lengths_that_are_no_multiple_of_the_width() -> None:
    assert attempt(header(7) + bytes(7) + pickle.dumps([(0, 7)], 4)) is not None
    assert attempt(header(8, 4) + bytes(8) + pickle.dumps([(0, 6), (6, 2)], 4)) is not None


def test_many_layouts_at_once() -> None:
    index = pickle.dumps([(4, 0)], 4)
    for start in (4, 8, 12):
        attempt(bytes(start) + index)
        attempt(bytes(start) + b"\x80\x04]\x94." + index)
        attempt(b"\xff" * start + index)


SOUND = header(12) + bytes(range(12)) + pickle.dumps([(0, 4), (4, 0), (4, 8)], 4)


@given(
    edits=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, len(SOUND)),
    more=st.binary(max_size=20),
)
@settings(deadline=None, max_examples=150)
def test_damage_by_chance(edits: list[tuple[int, int]], cut: int, more: bytes) -> None:
    data = bytearray(SOUND)
    for place, value in edits:
        data[place] = value
    attempt(bytes(data))
    attempt(bytes(data[:cut]) + more)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=60)
def test_bytes_by_chance(data: bytes) -> None:
    attempt(data)
    attempt(header(len(data) & ~1) + data + pickle.dumps([(0, len(data))], 4))


def test_an_index_in_a_side_file_that_lies(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pbin")
    with FORMAT.create(LocalStore(), path, {"token_bytes": 2}, overwrite=False) as writer:
        writer.write_batch({"tokens": [[1, 2], [3]]})
    side = Path(f"{path}.penstock")
    for old, new in ((b'"num_samples": 2', b'"num_samples": 99999999999'), (b'"num_tokens": 3', b'"num_tokens": -5')):
        text = side.read_bytes()
        side.write_bytes(text.replace(old, new))
        source = FORMAT.open(LocalStore(), path, OpenOptions())
        assert source.doc_starts.tolist() == [0, 2, 3]
        assert source[1]["tokens"].tolist() == [3]
        with pytest.raises(IndexError):
            source[2]
        assert np.array_equal(source.tokens(0, 3), [1, 2, 3])
        side.write_bytes(text)

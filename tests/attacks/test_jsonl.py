"""Hostile JSONL files and indexes: refused by name, in little time and memory, and nothing runs."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import build_index, decode_pairs

import penstock as ps
from penstock.errors import Corrupt, FormatError, PenstockError, TooLarge, UnsafeData

MARKER = "PENSTOCK_ATTACK_RAN"
DATA = b'{"n": 0}\n{"n": 1}\n'


class Runs:
    """Pickles to a call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.putenv, (MARKER, "1"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(DATA)
    return path


def put(path: Path, index: bytes) -> Path:
    path.with_suffix(".idx").write_bytes(index)
    return path


def refusals(path: Path) -> list[str]:
    """Codes of what `verify` finds; opening is refused too."""
    with pytest.raises((FormatError, UnsafeData)) as caught:
        len(ps.open(path))
    assert caught.value.path is not None
    return [one.code for one in ps.verify(path, depth="full") if one.severity == "error"]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "wrap", [lambda one: one, lambda one: [one], lambda one: [(0, 8), one], lambda one: [(0, one)]]
)
def test_a_pickle_that_would_run_code(path: Path, protocol: int, wrap: Any) -> None:
    put(path, pickle.dumps(wrap(Runs()), protocol))
    assert len(refusals(path)) == 1
    assert MARKER not in os.environ


@pytest.mark.parametrize(
    "opcode", [b"cos\nsystem\n", b"\x93", b"R", b"\x81", b"b", b"ios\nsystem\n", b"\x82\x01", b"Pid\n"]
)
def test_the_refusal_says_that_it_is_unsafe(path: Path, opcode: bytes) -> None:
    put(path, b"\x80\x04]\x94(K\x00K\x08\x86\x94" + opcode + b"e.")
    assert refusals(path) == ["jsonl.unsafe-index"]


@pytest.mark.parametrize(
    "index",
    [
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"]\x94.",
        b"\x80\x04]\x94(" + b"\x8a\xff" + b"\x7f" * 20,
        b"\x80\x04]\x94(K\x00K\x08\x86\x94" + b"j\xff\xff\xff\xff" * 10 + b"e.",
        b"\x80\x04]\x94(\x8b" + struct.pack("<i", 1 << 30) + b"\x01e.",
        b"\x80\x04]\x94r\xff\xff\xff\xff.",
        b"\x80\x04" + b"]\x94(" * 30 + b".",
        b"\x80\x04]\x94(" + b"2" * 60 + b"e.",
        b"\x80\x04X\xff\xff\xff\x7f.",
        b"\x80\x04\x8e" + b"\xff" * 8 + b".",
        b"\x80\x04N\x85" * 20,
    ],
    ids=["frame", "long", "get", "long4", "put", "nest", "dup", "text", "bytes8", "tuples"],
)
def test_a_billion_entries_in_a_hundred_bytes(path: Path, index: bytes) -> None:
    put(path, index)
    tracemalloc.start()
    codes = refusals(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert codes == ["jsonl.index"]
    assert peak_bytes < 4_000_000


def test_repeats_cost_no_more_than_they_take(path: Path) -> None:
    index = b"\x80\x04]\x94(K\x00K\x08\x86\x94" + b"h\x01" * 50_000 + b"e."
    tracemalloc.start()
    pairs = decode_pairs(np.frombuffer(index, np.uint8), path="a.idx")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pairs.tolist() == [[0, 8]] * 50_001
    assert peak_bytes < 40 * len(index)


@pytest.mark.parametrize(
    ("pair", "code"),
    [
        ((-1, 8), "jsonl.index"),
        ((0, -8), "jsonl.index"),
        ((1 << 63, 8), "jsonl.index"),
        ((0, 1 << 70), "jsonl.index"),
        (((1 << 63) - 1, (1 << 63) - 1), "jsonl.index-outside"),
        ((0, (1 << 63) - 1), "jsonl.index-outside"),
        ((len(DATA), 1), "jsonl.index-outside"),
        ((1 << 40, 0), "jsonl.index-outside"),
        ((11, 3), "jsonl.index-misfit"),
    ],
)
def test_entries_that_lie(path: Path, pair: tuple[int, int], code: str) -> None:
    put(path, pickle.dumps([(0, 8), pair], 4))
    assert refusals(path) == [code]


def test_entries_that_overlap_are_found(path: Path) -> None:
    put(path, pickle.dumps([(0, 8), (0, 17), (9, 8)], 4))
    assert "jsonl.index-overlap" in [one.code for one in ps.verify(path)]
    assert ps.open(path)[0] == {"n": 0}
    with pytest.raises(Corrupt):
        ps.open(path)[1]


@pytest.mark.parametrize("bomb", [b"[" * 1_000_000, b'{"a":' * 300_000, b"9" * 1_000_000, b'["' + b"\\" * 1_000_000])
def test_json_bombs_are_faulty_lines(tmp_path: Path, bomb: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" + bomb + b"\n{}\n")
    with pytest.raises(Corrupt, match="line 2 ") as caught:
        build_index(path)
    assert len(str(caught.value)) < 1000
    assert build_index(path, on_error="skip").num_lines == 2
    build_index(path, validate=False, overwrite=True)
    source = ps.open(path)
    assert source[2] == {}
    with pytest.raises(Corrupt):
        source[1]


def test_an_endless_number_has_no_value(path: Path) -> None:
    put(path, pickle.dumps([(0, 8), (9, 8)], 4).replace(b"K\x09", b"\x8a\x09" + b"\xff" * 8 + b"\x7f"))
    with pytest.raises((TooLarge, PenstockError)):
        len(ps.open(path))


def test_a_file_of_zeros(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    with pytest.raises(Corrupt, match="line 1 "):
        build_index(path)
    assert build_index(path, validate=False).num_lines == 1

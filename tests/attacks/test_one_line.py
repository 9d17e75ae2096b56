"""Lines of JSONL that are never held: checked in pieces, as Python's JSON reader would judge the whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.internals import build_index, fault_of, fault_of_pieces, replace

from penstock.errors import Corrupt

SCRAPS = [
    *(
        b'"',
        b"\\",
        b"\\u",
        b"\\uZZ",
        b"\\ud800",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b":",
        b"0",
        b"1",
        b"-",
        b".",
        b"e",
        b"E+",
    ),
    *(
        b"E+",
        b"\x00",
        b"\x1f",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xc3",
        b" ",
        b"\t",
        b"\x0b",
        b"\xef\xbb\xbf",
        b"[[[[",
        b"]]]]",
    ),
    *(b"true", b"nul", b"NaN", b"-Infinity", b"Inf", b'"a":1', b'{"q":"w"}', b"9" * 4300, b"9" * 4301, b",]", b",}"),
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def lines(draw: Any) -> bytes:
    line = json.dumps(draw(values), ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(line)))
        stop = start + draw(st.integers(0, 3))
        line = line[:start] + draw(st.sampled_from(SCRAPS) | st.binary(max_size=2)) + line[stop:]
    return line.replace(b"\n", b"")


@settings(max_examples=150, deadline=None)
@given(lines(), st.integers(1, 40))
@example(b"", 1)
@example(b" \x0b ", 1)
@example('{"a": [1, "é😀"]}'.encode("utf-16"), 3)
@example('{"a": [1, "é😀"]}'.encode("utf-32-le"), 5)
@example(b'["\\ud83d\\ude00 \xed\xa0\x80"', 2)
@example(b"[" * 3000, 7)
@example(b"[" + b'{"":[' * 800, 7)
@example(b"[" * 800 + b"]" * 801, 11)
@example(b"1" * 4301 + b".", 13)
@example(b'{"a": 1, "a": 2 , }', 4)
def test_pieces_are_judged_as_the_whole(line: bytes, piece_bytes: int) -> None:
    told = fault_of(line)
    for size in {piece_bytes, 1, max(1, len(line) // 2)}:
        assert fault_of_pieces(line[place : place + size] for place in range(0, len(line), size)) == told


@pytest.mark.parametrize("tail", [b"", b"\n", b"\n{}", b"\n[1,\n{}\n"])
@pytest.mark.parametrize("line", [b'{"a": "%s"}', b'{"a": "%s"', b'["%s", 1, x]', b'["%s\xff"]'])
def test_long_lines_have_the_same_index_and_error(line: bytes, tail: bytes, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 0}\n' + line % (b"x" * 5000) + tail)
    found: list[Any] = []
    for block_bytes in (1 << 20, 64):
        replace(monkeypatch, "scan_block_bytes", block_bytes)
        replace(monkeypatch, "scan_piece_bytes", block_bytes)
        report = build_index(path, on_error="skip", overwrite=True)
        told = ""
        try:
            build_index(path, overwrite=True)
        except Corrupt as error:
            told = str(error)
        found.append((path.with_suffix(".idx").read_bytes(), report.num_lines, report.dropped, told))
    assert found[0] == found[1]


@pytest.mark.parametrize("fault", [b'"}', b"]"])
def test_a_line_of_200_mb_is_indexed_in_a_few_mb(fault: bytes, tmp_path: Path, confined: Callable[..., Any]) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "')
        for _ in range(200):
            file.write(b"x" * (1 << 20))
        file.write(fault + b"\n{}\n")
    found = confined(lambda: build_index(path).num_lines, 64 << 20)
    if fault == b"]":
        assert isinstance(found, Corrupt), found
        assert "Unterminated" in str(found) or "line 1 " in str(found)
    else:
        assert found == 2


@pytest.mark.parametrize("line", [b' {"a": "%s"} ', b' {"a": "%s" ', b" " * 5000, b'["%s"}', b" " * 3000 + b'{"%s":1}'])
def test_energons_index_is_the_same(line: bytes, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 0}\n' + line.replace(b"%s", b"x" * 5000) + b"\r\n{}\n")
    found: list[Any] = []
    for block_bytes in (1 << 20, 64):
        replace(monkeypatch, "energon_block_bytes", block_bytes)
        replace(monkeypatch, "scan_piece_bytes", block_bytes)
        try:
            build_index(path, flavor="energon", overwrite=True)
            found.append((tmp_path / "a.jsonl.idx").read_bytes())
        except Corrupt as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_nothing_is_taken_again_and_again() -> None:
    """Steps, counted as calls: a level of brackets more costs no more than what it holds."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    taken: list[int] = []
    for repeats in (20, 40):
        line = b"[" + (b'{"":[' * 300 + b"1" + b"]}" * 300 + b",") * repeats + b"1]"
        calls = 0
        sys.setprofile(count)
        try:
            assert fault_of_pieces([line]) is None
        finally:
            sys.setprofile(None)
        taken.append(calls)
    assert taken[1] < 2.1 * taken[0]

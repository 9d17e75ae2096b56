"""Compressed files → pieces of whole lines."""

from __future__ import annotations

import gzip
import itertools
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import Corrupt, TooLarge, Truncated
from penstock.formats.jsonl import decompress
from penstock.formats.jsonl.decompress import blocks_of, cut_stream
from penstock.store.place import Place, place_of

TEXT = b"".join(b"line %d %s\n" % (n, b"x" * (n % 90)) for n in range(4000))


def members(compression: str, *contents: bytes) -> bytes:
    if compression == "gzip":
        return b"".join(gzip.compress(one) for one in contents)
    return b"".join(zstandard.ZstdCompressor().compress(one) for one in contents)


def written(tmp_path: Path, data: bytes) -> Place:
    path = tmp_path / "packed"
    path.write_bytes(data)
    return place_of(path)


both = pytest.mark.parametrize("compression", ["gzip", "zstd"])


@both
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, len(TEXT)), max_size=4),
    piece_bytes=st.integers(1, 2 * len(TEXT)),
    end=st.sampled_from([b"", b"the last one"]),
)
def test_pieces_are_whole_lines_of_all_members(
    tmp_path: Path, compression: str, cuts: list[int], piece_bytes: int, end: bytes
) -> None:
    text = TEXT + end
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    data = members(compression, *(text[start:stop] for start, stop in itertools.pairwise(borders)))
    pieces = list(cut_stream(written(tmp_path, data), compression, piece_bytes))
    assert b"".join(piece for _, piece, _ in pieces) == text
    assert [last for _, _, last in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(text[offset : offset + len(piece)] == piece for offset, piece, _ in pieces)
    assert all(piece.endswith(b"\n") and len(piece) >= piece_bytes for _, piece, last in pieces if not last)
    assert all(len(piece) < piece_bytes + 400 for _, piece, _ in pieces)


@both
def test_an_empty_content(tmp_path: Path, compression: str) -> None:
    assert list(cut_stream(written(tmp_path, members(compression, b"")), compression, 10)) == [(0, b"", True)]


def test_zeros_after_a_gzip_member(tmp_path: Path) -> None:
    data = members("gzip", b"a\n") + bytes(5000) + members("gzip", b"b\n") + bytes(3_000_000)
    assert list(cut_stream(written(tmp_path, data), "gzip", 10)) == [(0, b"a\nb\n", True)]


@pytest.mark.parametrize("name", ["b.jsonl.gz", "b.jsonl.zst"])
@pytest.mark.parametrize("zeros", [0, 60])
def test_a_compressed_file_without_a_frame_is_not_one_of_no_lines(tmp_path: Path, name: str, zeros: int) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / name).write_bytes(bytes(zeros))
    for path in (tmp_path, tmp_path / name):
        with pytest.raises((Truncated, Corrupt)) as caught:
            list(ps.open(path))
        assert Path(str(caught.value.path)).name == name
        assert [one.severity for one in ps.verify(path, depth="full")] == ["error"]


@both
def test_a_file_that_is_cut_off(tmp_path: Path, compression: str) -> None:
    data = members(compression, TEXT, TEXT)
    for cut in (len(data) - 1, len(data) - 9, len(data) // 2 + 5, len(data) // 3, 7):
        with pytest.raises(Truncated, match="cut off"):
            list(cut_stream(written(tmp_path, data[:cut]), compression, 1 << 20))


@both
def test_a_damaged_file(tmp_path: Path, compression: str) -> None:
    data = members(compression, TEXT)
    for damaged in (data + b"garbage that is no member", data[:6] + bytes([data[6] ^ 255]) * 40 + data[46:]):
        with pytest.raises((Corrupt, Truncated)):
            list(cut_stream(written(tmp_path, damaged), compression, 1 << 20))


def test_gzip_checks_its_sum(tmp_path: Path) -> None:
    data = bytearray(members("gzip", TEXT))
    data[-6] ^= 1
    with pytest.raises(Corrupt, match="damaged"):
        list(cut_stream(written(tmp_path, bytes(data)), "gzip", 1 << 20))


@both
def test_a_line_without_an_end_is_refused(tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompress, "LINE_LIMIT_BYTES", 1 << 22)
    data = members(compression, bytes(1 << 24))
    assert len(data) < 1 << 16
    with pytest.raises(TooLarge, match="without a line end"):
        list(cut_stream(written(tmp_path, data), compression, 1 << 16))


def test_a_gzip_member_of_raw_deflate_is_no_gzip(tmp_path: Path) -> None:
    with pytest.raises(Corrupt):
        list(cut_stream(written(tmp_path, b"\x1f\x8b" + zlib.compress(TEXT)), "gzip", 10))


def test_blocks_are_whole_lines() -> None:
    data = (b"x" * 700_000 + b"\n") * 5 + b"end"
    blocks = list(blocks_of(data))
    assert b"".join(blocks) == data
    assert [len(block) for block in blocks] == [1_400_002, 1_400_002, 700_004]
    assert list(blocks_of(b"")) == []

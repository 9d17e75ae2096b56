"""Bytes that expand: compressed parts and shards, frames without content, pictures made of nothing but blocks."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from tests.internals import (
    FRAMES,
    LEAST_UNPACKED_BYTES,
    UNPACKED_RATIO,
    DecodeOptions,
    FrameCount,
    MediaBytes,
    cut_stream,
    decode_image,
    decode_part,
    decompress,
    media_bytes,
    place_of,
    read_image_header,
    replace,
)

import penstock as ps
from penstock.errors import ConfigError, Corrupt, FormatError, PenstockError, TooLarge

HOW = DecodeOptions()
MIB = 1 << 20


def zeros_gz(size_bytes: int) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as file:
        for _ in range(size_bytes // MIB):
            file.write(bytes(MIB))
    return out.getvalue()


BOMB = zeros_gz(256 * MIB)


@pytest.mark.parametrize(
    ("part", "data"), [("x.gz", BOMB), ("x.json.gz.gz", gzip.compress(BOMB, mtime=0)), ("x" + ".gz" * 5000, BOMB)]
)
def test_a_part_of_a_sample(part: str, data: bytes, confined: Callable[..., Any]) -> None:
    found = confined(lambda: decode_part(part, data, HOW), 64 * MIB)
    assert isinstance(found, FormatError), found


def test_arrays_in_a_zip(confined: Callable[..., Any]) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, a=np.zeros(128 * MIB, np.uint8))
    assert isinstance(confined(lambda: decode_part("npz", file.getvalue(), HOW), 64 * MIB), TooLarge)


def test_the_multiple_of_a_part() -> None:
    assert LEAST_UNPACKED_BYTES == 16 * MIB
    assert len(decode_part("bin.gz", zeros_gz(16 * MIB), HOW)) == 16 * MIB
    with pytest.raises(TooLarge):
        decode_part("bin.gz", zeros_gz(17 * MIB), HOW)
    noise = np.random.default_rng(0).bytes(MIB)
    mixed = gzip.compress(noise + bytes(62 * MIB), 1, mtime=0)
    assert len(mixed) * UNPACKED_RATIO > 63 * MIB
    assert len(decode_part("bin.gz", mixed, HOW)) == 63 * MIB
    # Who knows better says so.
    assert len(decode_part("bin.gz", zeros_gz(17 * MIB), DecodeOptions(most_bytes=17 * MIB))) == 17 * MIB


def test_a_whole_dataset_with_such_a_part(tmp_path: Path, confined: Callable[..., Any]) -> None:
    with ps.create(tmp_path / "set", format="webdataset") as writer:
        writer.write({"__key__": "a", "json.gz": BOMB})
    found = confined(lambda: ps.open(tmp_path / "set", format="webdataset")[0])
    assert isinstance(found, PenstockError) or "json.gz" in found, found


# --- frames --------------------------------------------------------------------------------------------------------


def stated(size_bytes: int) -> bytes:
    """A zstd frame that states a size, and holds one empty block."""
    return b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + size_bytes.to_bytes(8, "little") + b"\x01\x00\x00"


def test_a_frame_that_states_3_gb(confined: Callable[..., Any]) -> None:
    found = confined(lambda: decompress(stated(3 << 30), "zstd", limit_bytes=1 << 32))
    assert isinstance(found, Corrupt), found
    assert "too many for 1 blocks" in str(found)


def test_frames_that_hold_what_they_state() -> None:
    for size_bytes in (0, 1, MIB, 40 * MIB):
        frame = zstandard.ZstdCompressor().compress(bytes(size_bytes))
        assert len(decompress(frame * 2, "zstd", limit_bytes=1 << 27)) == 2 * size_bytes


def test_memory_that_is_not_there_is_an_error_with_a_type(confined: Callable[..., Any]) -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(256 * MIB))
    found = confined(lambda: decompress(frame, "zstd", limit_bytes=1 << 32), 64 * MIB)
    assert isinstance(found, TooLarge), found


EMPTY = {
    "zstd": zstandard.ZstdCompressor().compress(b""),
    "gz": gzip.compress(b"", mtime=0),
    "bz2": bz2.compress(b""),
}


@pytest.mark.parametrize("family", EMPTY)
def test_frames_without_content_are_counted(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    real = FrameCount.begin
    replace(monkeypatch, "frame_count_begin", lambda *given: begun.append(1) or real(*given))
    with pytest.raises(Corrupt, match="frames with 0 bytes"):
        decompress(EMPTY[family] * 300_000, family, limit_bytes=1 << 20)
    assert len(begun) == FRAMES + 1
    small = {"zstd": zstandard.ZstdCompressor().compress, "gz": gzip.compress, "bz2": bz2.compress}[family](b"x" * 64)
    assert len(decompress(small * 3000, family, limit_bytes=1 << 20)) == 64 * 3000


@pytest.mark.parametrize(("compression", "family"), [("gzip", "gz"), ("zstd", "zstd")])
def test_frames_of_compressed_lines_are_counted(compression: str, family: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(EMPTY[family] * 30_000)
    with pytest.raises(Corrupt, match="frames with 0 bytes"):
        list(cut_stream(place_of(path), compression, MIB))
    line = b'{"text": "' + b"x" * 64 + b'"}\n'
    packed = gzip.compress(line) if family == "gz" else zstandard.ZstdCompressor().compress(line)
    path.write_bytes(packed * 3000)
    assert b"".join(data for _, data, _ in cut_stream(place_of(path), compression, MIB)) == line * 3000


def test_a_line_that_expands_past_the_memory(tmp_path: Path, confined: Callable[..., Any]) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(BOMB)
    for look in (lambda: len(ps.open(path)), lambda: ps.verify(path, depth="full")[0].found):
        found = confined(look, 128 * MIB)
        assert isinstance(found, TooLarge) or "too long" in str(found), found
        assert str(path) in str(found) or isinstance(found, str)


@pytest.mark.parametrize("pack", [ps.Chunk, ps.Whole, ps.BestFit, ps.MegatronBlocks])
def test_a_window_that_no_memory_holds(pack: Any) -> None:
    with pytest.raises(ConfigError, match="the window is too long: found length 8589934592"):
        pack(length=1 << 33)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_one_line_may_expand_to_a_multiple_of_its_stored_bytes(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    make = (lambda data: gzip.compress(data, 1)) if compression == "gzip" else zstandard.ZstdCompressor().compress
    path.write_bytes(make(b"x" * (65 * MIB)))
    with pytest.raises(TooLarge, match="more than 67108864 bytes"):
        list(cut_stream(place_of(path), compression, MIB))
    many = (b"y" * MIB + b"\n") * 70
    path.write_bytes(make(many))
    assert b"".join(data for _, data, _ in cut_stream(place_of(path), compression, MIB)) == many


# --- pictures ------------------------------------------------------------------------------------------------------

GIF = b"GIF89a" + b"\1\0\1\0" + b"\0\0\0"
BLOCKS = {
    "many small blocks": GIF + b"!\xfe" + b"\1x" * 5_000_000 + b"\0",
    "many comments": GIF + b"!\xfe\1x\0" * 2_000_000,
    "junk": GIF + b"\0" * 10_000_000,
    "a few of each": GIF + (b"!\xfe" + b"\1x" * 9_000 + b"\0") * 500,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_gif_of_nothing_but_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, reads = BLOCKS[name], itertools.count()

    def more(start: int, length: int) -> bytes:
        next(reads)
        return data[start : start + length]

    with pytest.raises(FormatError):
        read_image_header(MediaBytes(len(data), data[:4096], more))
    assert next(reads) < 200
    with pytest.raises(FormatError):
        decode_image(data, HOW)


def test_a_gif_with_a_long_comment() -> None:
    picture = b",\0\0\0\0\1\0\1\0\0\2\2\x44\1\0;"
    data = GIF + b"!\xfe" + (b"\xff" + b"x" * 255) * 3000 + b"\0" + picture
    found = read_image_header(media_bytes(data))
    assert found is not None
    assert (found.width, found.height, found.format) == (1, 1, "GIF")

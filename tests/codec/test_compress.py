"""Compression of whole files: every family and level, bounds, damage."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import tracemalloc

import brotli
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.compress import FAMILIES, Compression, compress, decompress, parse_compression
from penstock.errors import ConfigError, Corrupt, FormatError, TooLarge, Truncated

TEXT = b"the quick brown fox jumps over the lazy dog " * 50
LEVELS = {"br": range(12), "bz2": range(1, 10), "gz": range(10), "zstd": range(1, 23)}
EVERY = [f"{family}:{level}" for family, levels in LEVELS.items() for level in levels] + list(FAMILIES)


@pytest.mark.parametrize("text", EVERY)
def test_every_level_comes_back(text: str) -> None:
    how = parse_compression(text)
    assert how is not None
    small = compress(TEXT, how)
    assert small == compress(np.frombuffer(TEXT, np.uint8), how)
    assert decompress(small, how.family, limit_bytes=len(TEXT)) == TEXT


def test_parsing() -> None:
    assert parse_compression(None) is None
    assert parse_compression("zstd:7") == Compression("zstd", 7)
    assert parse_compression("snappy") == Compression("snappy", None)


@pytest.mark.parametrize(
    "text", ["", "lz4", "zstd:0", "zstd:23", "br:12", "bz2:0", "gz:10", "snappy:1", "gz:", "gz:-1", "gz:٣"]
)
def test_what_is_no_compression_lists_what_is(text: str) -> None:
    with pytest.raises(ConfigError, match="br:0 to br:11") as caught:
        parse_compression(text)
    assert "zstd:1 to zstd:22" in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(data=st.binary(max_size=2000))
def test_any_bytes_come_back(family: str, data: bytes) -> None:
    small = compress(data, Compression(family))
    assert decompress(memoryview(small), family, limit_bytes=len(data)) == data
    if data:
        with pytest.raises(TooLarge):
            decompress(small, family, limit_bytes=len(data) - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bomb_is_refused_without_its_memory(family: str) -> None:
    fast = None if family == "snappy" else 1
    bomb = compress(bytes(200_000_000 if family != "snappy" else 20_000_000), Compression(family, fast))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match=r"x\.mds: .*at most 1000000 bytes"):
            decompress(bomb, family, limit_bytes=1_000_000, path="x.mds")
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stop", [0, 1, 5, 30, -1])
def test_a_cut_file_is_refused(family: str, stop: int) -> None:
    small = compress(np.random.default_rng(1).bytes(1000), Compression(family))
    with pytest.raises((Truncated, Corrupt)):
        decompress(small[:stop], family, limit_bytes=1 << 20)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_follows_is_refused(family: str) -> None:
    small = compress(TEXT, Compression(family))
    with pytest.raises((Corrupt, Truncated)):
        decompress(small + b"\1something else", family, limit_bytes=1 << 20)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_is_an_error_or_other_bytes(family: str, data: st.DataObject) -> None:
    small = bytearray(compress(TEXT, Compression(family)))
    for _ in range(data.draw(st.integers(1, 3))):
        small[data.draw(st.integers(0, len(small) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormatError):
        assert len(decompress(small, family, limit_bytes=10_000)) <= 10_000


def test_several_members_and_frames() -> None:
    halves = TEXT[:700], TEXT[700:]
    for family, pack in (("gz", gzip.compress), ("bz2", bz2.compress), ("zstd", zstandard.compress)):
        both = pack(halves[0]) + pack(halves[1])
        assert decompress(both, family, limit_bytes=len(TEXT)) == TEXT
        with pytest.raises(TooLarge):
            decompress(both, family, limit_bytes=len(TEXT) - 1)
        with pytest.raises(Truncated):
            decompress(both[:-3], family, limit_bytes=len(TEXT))
    assert decompress(gzip.compress(TEXT) + bytes(512), "gz", limit_bytes=len(TEXT)) == TEXT


def test_zstd_frames_of_other_writers() -> None:
    data = np.random.default_rng(1).integers(0, 4, 3_000_000, np.uint8).tobytes()
    nameless = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(data)
    skipped = b"\x55\x2a\x4d\x18\x03\x00\x00\x00abc"
    both = nameless + skipped + zstandard.compress(b"end")
    assert decompress(both, "zstd", limit_bytes=len(data) + 3) == data + b"end"
    with pytest.raises(TooLarge):
        decompress(both, "zstd", limit_bytes=len(data) + 2)
    with pytest.raises(Corrupt):
        decompress(nameless[:-1] + bytes([nameless[-1] ^ 1]), "zstd", limit_bytes=len(data))
    frame = compress(data, Compression("zstd"))
    assert zstandard.frame_content_size(frame) == len(data)


def test_a_snappy_length_is_checked_first() -> None:
    with pytest.raises(TooLarge):
        decompress(b"\xff\xff\xff\xff\x0f\x00", "snappy", limit_bytes=1 << 20)
    with pytest.raises(Corrupt, match="too many for 6 compressed bytes"):
        decompress(b"\xff\xff\xff\xff\x0f\x00", "snappy", limit_bytes=1 << 33)
    with pytest.raises(Corrupt):
        decompress(b"\xff\xff\xff\xff\xff\x0f\x00", "snappy", limit_bytes=1 << 33)


def test_a_large_file_goes_through_in_steps() -> None:
    data = np.random.default_rng(1).integers(0, 64, 3_000_000, np.uint8).tobytes()
    for family in ("gz", "bz2", "br"):
        small = compress(data, Compression(family, 1))
        assert len(small) > 1 << 20
        assert decompress(small, family, limit_bytes=len(data)) == data
    assert brotli.decompress(compress(data, Compression("br", 0))) == data


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(ConfigError, match="br, bz2, gz"):
        decompress(b"", "lz4", limit_bytes=1)

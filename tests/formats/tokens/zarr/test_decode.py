"""The bytes of a chunk: what numcodecs writes is decoded, whole and block by block; damage is named, never crashes."""

from __future__ import annotations

import contextlib
import zlib
from typing import Any

import numcodecs
import numpy as np
import pytest
import zstandard

from penstock.formats.tokens.flat_tokens.encode import encode_chunk
from penstock.formats.tokens.zarr import decode as decoding
from penstock.formats.tokens.zarr.decode import (
    BLOSC_HEAD_BYTES,
    Damage,
    crc32c,
    decode,
    decode_blosc_block,
    decode_into,
    parse_blosc_blocks,
    parse_blosc_head,
)
from penstock.formats.tokens.zarr.meta import Chain, Codec

ITEMS = (np.random.default_rng(0).zipf(1.3, 5000) % 50_000).astype("<u4")
PLAIN = np.dtype("<u4")


def of(*names: str, stored: Any = PLAIN, delta: Any = None) -> Chain:
    return Chain(np.dtype(stored), delta, tuple(Codec(name, {}) for name in names))


ENCODERS: dict[str, Any] = {
    "blosc": numcodecs.Blosc("lz4", 5, 2),
    "zstd": numcodecs.Zstd(3),
    "lz4": numcodecs.LZ4(),
    "gzip": numcodecs.GZip(5),
    "zlib": numcodecs.Zlib(5),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_codecs(name: str) -> None:
    data = bytes(ENCODERS[name].encode(ITEMS))
    assert (decode(of(name), data, len(ITEMS)) == ITEMS).all()
    out = np.empty(len(ITEMS), np.uint32)
    decode_into(of(name), data, out)
    assert (out == ITEMS).all()
    checked = data + crc32c(data).to_bytes(4, "little")
    assert (decode(of(name, "crc32c"), checked, len(ITEMS)) == ITEMS).all()
    for wrong in (len(ITEMS) - 1, len(ITEMS) + 1, 1, 1 << 20):
        with pytest.raises(Damage):
            decode(of(name), data, wrong)


@pytest.mark.parametrize("name", ENCODERS)
def test_damage_is_named(name: str) -> None:
    data = bytearray(ENCODERS[name].encode(ITEMS))
    for size in (0, 1, 3, 10, 15, 16, 17, 40, len(data) // 2, len(data) - 1):
        with pytest.raises(Damage) as caught:
            decode(of(name), data[:size], len(ITEMS))
        assert caught.value.code == "chunk.decode"
    for place in range(0, len(data), max(1, len(data) // 60)):
        flipped = bytearray(data)
        flipped[place] ^= 0x41
        with contextlib.suppress(Damage):
            assert len(decode(of(name), flipped, len(ITEMS))) == len(ITEMS)


def test_zstd_frames_without_a_size_and_with_a_wrong_one() -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    frame = compressor.compress(ITEMS.tobytes()) + compressor.flush()
    assert (decode(of("zstd"), frame, len(ITEMS)) == ITEMS).all()
    bomb = zstandard.ZstdCompressor().compressobj()
    zeros = bomb.compress(bytes(1 << 26)) + bomb.flush()
    with pytest.raises(Damage):
        decode(of("zstd"), zeros, 1000)
    with pytest.raises(Damage, match="the wrong size"):
        decode(of("zstd"), zstandard.compress(bytes(1 << 26)), 1000)


def test_zlib_stops_at_the_size_of_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Watched:
        def __init__(self, bits: int) -> None:
            self.inner = real(bits)

        def decompress(self, data: Any, most: int) -> bytes:
            asked.append(most)
            return self.inner.decompress(data, most)

        @property
        def eof(self) -> bool:
            return self.inner.eof

    real = zlib.decompressobj
    monkeypatch.setattr(decoding.zlib, "decompressobj", Watched)
    with pytest.raises(Damage):
        decode(of("zlib"), zlib.compress(bytes(1 << 24)), 100)
    assert asked == [401]


def test_raw_and_checksums() -> None:
    raw = ITEMS.tobytes()
    assert (decode(of(), raw, len(ITEMS)) == ITEMS).all()
    assert (decode(of(stored=">u4"), ITEMS.astype(">u4").tobytes(), len(ITEMS)) == ITEMS).all()
    with pytest.raises(Damage, match="the wrong size"):
        decode(of(), raw[:-1], len(ITEMS))
    checked = raw + crc32c(raw).to_bytes(4, "little")
    assert (decode(of("crc32c"), checked, len(ITEMS)) == ITEMS).all()
    for damaged in (checked[:-1], b"\1" + checked[1:], b"abc"):
        with pytest.raises(Damage) as caught:
            decode(of("crc32c"), damaged, len(ITEMS))
        assert caught.value.code == "chunk.crc"


def test_crc32c_with_and_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {b"": 0, b"123456789": 0xE3069283, bytes(32): 0x8A9136AA}
    assert {data: crc32c(data) for data in known} == known
    monkeypatch.setitem(__import__("sys").modules, "google_crc32c", None)
    assert {data: crc32c(data) for data in known} == known


@pytest.mark.parametrize("signed", ["<i8", "<i4", ">i8"])
def test_delta_of_one_chunk(signed: str) -> None:
    starts = np.array([5, 5, 7, 1 << 30, (1 << 30) + 9, 0, 0], np.uint64)
    chain = of(stored=signed, delta=np.dtype(np.int64))
    data = encode_chunk(chain, starts)
    assert np.frombuffer(data, signed)[:3].tolist() == [5, 0, 2]
    assert decode(chain, data, len(starts)).astype(np.uint64).tolist() == starts.tolist()


# --- single blocks -----------------------------------------------------------------------------------------------


def blocks_of(frame: bytes, num_bytes: int) -> list[bytes]:
    """All blocks of a frame, each decoded alone."""
    head = parse_blosc_head(frame[:BLOSC_HEAD_BYTES], num_bytes, len(frame))
    places = parse_blosc_blocks(head, frame[: head.offsets_bytes])
    return [
        decode_blosc_block(head, block, frame[start:stop]).tobytes()
        for block, (start, stop) in enumerate(places.tolist())
    ]


@pytest.mark.parametrize("cname", ["lz4", "lz4hc", "blosclz", "zlib", "zstd"])
@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_every_block_alone_gives_the_whole(cname: str, shuffle: int) -> None:
    rng = np.random.default_rng(1)
    several = short_last = copied = 0
    for level in (0, 1, 5, 9):
        for block_bytes in (0, 512, 4096):
            for count in (1, 7, 128, 1000, 4096, 20_001):
                items = rng.choice(ITEMS, count) if level else rng.integers(0, 1 << 32, count, np.uint32)
                frame = bytes(numcodecs.Blosc(cname, level, shuffle, block_bytes).encode(items))
                found = blocks_of(frame, items.nbytes)
                assert b"".join(found) == items.tobytes()
                several += len(found) > 1
                short_last += len(found) > 1 and len(found[-1]) < len(found[0])
                copied += bool(frame[2] & 2)
    assert several > 10
    assert short_last > 5
    assert copied > 5


def test_a_damaged_frame_is_refused() -> None:
    items = np.tile(ITEMS, 16)
    frame, size = bytes(numcodecs.Blosc("lz4", 5, 2, 4096).encode(items)), items.nbytes
    for wrong in (frame[:15], frame[:-1], frame + b"\0"):
        with pytest.raises(Damage):
            parse_blosc_head(wrong[:16], size, len(wrong))
    head = parse_blosc_head(frame[:16], size, len(frame))
    table = np.frombuffer(frame[16 : head.offsets_bytes], "<i4")
    for block, value in ((0, -1), (0, 5), (1, int(table[0])), (2, len(frame)), (2, len(frame) + 1), (0, 1 << 30)):
        moved = table.copy()
        moved[block] = value
        with pytest.raises(Damage):
            parse_blosc_blocks(head, frame[:16] + moved.tobytes())
    for field, value in ((4, 0), (8, 0), (8, 1 << 31), (8, 3), (12, 0)):
        data = bytearray(frame[:16])
        data[field : field + 4] = value.to_bytes(4, "little")
        with pytest.raises(Damage):
            parse_blosc_head(data, size, len(frame))
    start, stop = parse_blosc_blocks(head, frame[: head.offsets_bytes])[0].tolist()
    with pytest.raises(Damage):
        decode_blosc_block(head, 0, bytes(stop - start))

"""Arrays by their chunk files: any range and any window, in every layout, with and without maps; bounded caches."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import strategies as st

import zarr
from penstock.errors import Corrupt, FormatError, TooLarge, Truncated
from penstock.formats.tokens.flat_tokens.source import open_array
from penstock.formats.tokens.zarr.chunks import ChunkArray
from penstock.formats.tokens.zarr.foreign import ForeignArray
from penstock.formats.tokens.zarr.meta import ARRAY_FILE, ArrayMeta, parse_array
from penstock.formats.tokens.zarr.span import PieceCache
from penstock.store import mapped
from penstock.store.local import LocalStore
from penstock.testing.counting import CountingStore
from penstock.testing.strategies import for_all
from penstock.types import ReadMode

COUNT = 1003
ITEMS = np.random.default_rng(0).integers(0, 60_000, COUNT).astype(np.uint32)
ITEMS[200:400] = 0  # a whole chunk that zarr leaves out

BLOSC = zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle", typesize=4)
TWO: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "big-endian": {"compressors": None, "dtype": ">u4"},
    "one chunk": {"compressors": None, "chunks": (COUNT,)},
    "zlib": {"compressors": numcodecs.Zlib()},
    "lz4": {"compressors": numcodecs.LZ4()},
}
THREE: dict[str, dict[str, Any]] = {
    "raw 3": {"compressors": None},
    "crc": {"compressors": [zarr.codecs.Crc32cCodec()]},
    "zstd": {"compressors": [zarr.codecs.ZstdCodec(level=1)]},
    "gzip and crc": {"compressors": [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]},
    "blosc 3": {"compressors": [BLOSC]},
    "shards": {"compressors": None, "chunks": (50,), "shards": (200,)},
    "shards of blosc": {"compressors": [BLOSC], "chunks": (50,), "shards": (200,)},
    "shards with crc": {"compressors": [zarr.codecs.Crc32cCodec()], "chunks": (50,), "shards": (200,)},
    "big-endian 3": {"compressors": None, "serializer": zarr.codecs.BytesCodec(endian="big")},
}


def make(folder: Path, name: str) -> ArrayMeta:
    """An array by zarr itself, and its metadata as we read them."""
    zarr_format, options = (2, TWO[name]) if name in TWO else (3, THREE[name])
    chosen = {"chunks": (100,), "dtype": "<u4", "fill_value": 0} | options
    array = zarr.create_array(str(folder), shape=(COUNT,), zarr_format=zarr_format, **chosen)
    array[:] = ITEMS
    meta = meta_of(folder, zarr_format)
    for number in (2, 3) if meta.chunk_items == 100 else ():
        (folder / meta.file_name(number)).unlink(missing_ok=True)
    return meta


def meta_of(folder: Path, zarr_format: int) -> ArrayMeta:
    found = parse_array(
        (folder / ARRAY_FILE[zarr_format]).read_bytes(), str(folder / "x"), zarr_format, "encoded_tokens", "uint32"
    )
    assert isinstance(found, ArrayMeta), found
    assert found.foreign is None
    return found


def check_everything(array: ChunkArray) -> None:
    bounds = st.tuples(st.integers(0, COUNT), st.integers(0, COUNT)).map(sorted)

    @for_all(bounds, examples=30)
    def ranges(pair: list[int]) -> None:
        assert (array.read(pair[0], pair[1]) == ITEMS[pair[0] : pair[1]]).all()

    for length in (1, 7, 100, 350):
        starts = np.random.default_rng(length).integers(0, COUNT - length + 1, 40)
        out = np.full((40, length), 77, np.uint32)
        array.gather(starts, length, out)
        assert (out == ITEMS[starts[:, None] + np.arange(length)]).all()
    scanned = [array.scan(n) for n in range(array.meta.num_files) if os.path.exists(array.files.path(n))]
    pieces = [piece for scan in scanned for piece in scan]
    present = np.concatenate([piece for piece in pieces if isinstance(piece, np.ndarray)])
    assert present[:200].tolist() == ITEMS[:200].tolist()
    assert len(present) in (COUNT, COUNT - 200)


@pytest.mark.parametrize("name", [*TWO, *THREE])
def test_any_range_and_window(tmp_path: Path, name: str) -> None:
    meta = make(tmp_path / "a", name)
    for read in ("mmap", "pread"):
        check_everything(ChunkArray(LocalStore(), str(tmp_path / "a"), meta, read, 1 << 20))  # type: ignore[arg-type]
    store = CountingStore(LocalStore())
    tiny = ChunkArray(store, str(tmp_path / "a"), meta, "auto", 1)  # type: ignore[arg-type]
    check_everything(tiny)
    check_everything(pickle.loads(pickle.dumps(ChunkArray(LocalStore(), str(tmp_path / "a"), meta, "auto", 1 << 20))))


@pytest.mark.parametrize("name", ["raw", "shards"])
def test_few_maps_at_once(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = make(tmp_path / "a", name)
    monkeypatch.setattr(mapped, "MOST_HELD", 2)
    array = ChunkArray(LocalStore(), str(tmp_path / "a"), meta, "mmap", 1 << 20)
    check_everything(array)
    assert len(array.files._maps) > 2
    assert sum(one.held() is not None for one in array.files._maps.values()) <= 2


def test_large_ranges_are_decoded_on_all_cores(tmp_path: Path) -> None:
    items = np.random.default_rng(0).integers(0, 9000, 3_000_000).astype(np.uint32)
    array = zarr.create_array(
        str(tmp_path / "a"), shape=items.shape, chunks=(1 << 18,), dtype="<u4", zarr_format=3, compressors=[BLOSC]
    )
    array[:] = items
    ours = ChunkArray(LocalStore(), str(tmp_path / "a"), meta_of(tmp_path / "a", 3), "auto", 1 << 20)
    assert (ours.read(5, 2_999_000) == items[5:2_999_000]).all()
    assert len(ours._cache) <= 2  # only what the ends of the range cut
    path = tmp_path / "a" / "c" / "5"
    path.unlink()
    path.write_bytes(b"damaged")
    ours = pickle.loads(pickle.dumps(ours))
    with pytest.raises(Corrupt) as caught:
        ours.read(0, 2_900_000)
    assert str(caught.value.path).endswith("c/5")
    path.unlink()
    filled = pickle.loads(pickle.dumps(ours)).read(0, 3_000_000)
    assert not filled[5 << 18 : 6 << 18].any()
    assert (filled[: 5 << 18] == items[: 5 << 18]).all()


def test_a_batch_decodes_each_piece_once(tmp_path: Path) -> None:
    meta = make(tmp_path / "a", "zstd")
    store = CountingStore(LocalStore())
    array = ChunkArray(store, str(tmp_path / "a"), meta, "auto", 1)
    starts = np.random.default_rng(3).permutation(np.repeat(np.arange(0, 190, 10), 3))
    array.gather(starts, 5, np.empty((len(starts), 5), np.uint32))
    assert store.reads == 2  # chunks 0 and 1, though not even one fits the budget


def test_one_read_for_a_window_and_one_more_only_across_chunks(tmp_path: Path) -> None:
    for name in ("raw", "raw 3", "big-endian", "shards", "crc"):
        meta = make(tmp_path / name, name)
        store = CountingStore(LocalStore())
        array = ChunkArray(store, str(tmp_path / name), meta, "auto", 1 << 20)
        array.read(0, 1)
        store.reads = store.read_bytes = 0
        array.read(10, 60)
        assert (store.reads, store.read_bytes) == (1, 200), name
        array.gather(np.array([5, 70]), 20, np.empty((2, 20), np.uint32))
        assert store.reads == 3
        array.read(660, 740)
        assert store.reads == 5, name


@pytest.mark.parametrize("read", ["mmap", "pread"])
def test_a_missing_chunk_needs_a_fill_value(tmp_path: Path, read: ReadMode) -> None:
    for fill, name in ((None, "none"), (7, "seven")):
        array = zarr.create_array(
            str(tmp_path / name),
            shape=(100,),
            chunks=(10,),
            dtype="<u4",
            zarr_format=2,
            compressors=None,
            fill_value=fill,
        )
        array[:] = np.arange(100)
        (tmp_path / name / "3").unlink()
        ours = ChunkArray(LocalStore(), str(tmp_path / name), meta_of(tmp_path / name, 2), read, 1 << 20)
        out = np.empty((1, 10), np.uint32)
        if fill is None:
            with pytest.raises(Truncated, match="/3: a chunk file is missing"):
                ours.read(25, 35)
            with pytest.raises(Truncated, match="/3: a chunk file is missing"):
                ours.gather(np.array([32]), 10, out)
        else:
            assert ours.read(25, 42).tolist() == [*range(25, 30), *([7] * 10), 40, 41]
            ours.gather(np.array([32]), 10, out)
            assert out[0].tolist() == [7] * 8 + [40, 41]


@pytest.mark.parametrize("read", ["mmap", "pread"])
@pytest.mark.parametrize("name", ["raw", "shards", "zstd", "blosc 3", "crc"])
def test_a_short_chunk_is_named(tmp_path: Path, name: str, read: ReadMode) -> None:
    meta = make(tmp_path / "a", name)
    path = tmp_path / "a" / meta.file_name(0)
    whole = path.read_bytes()
    for size in (0, 1, 17, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        array = ChunkArray(LocalStore(), str(tmp_path / "a"), meta, read, 1 << 20)
        if not (name == "crc" and read == "pread" and size >= 400):  # all items are there, without their checksum
            with pytest.raises(FormatError) as caught:
                array.read(0, 100)
            assert str(path) in str(caught.value)
        ((problem),) = [piece for piece in array.scan(0) if not isinstance(piece, np.ndarray)]
        assert problem.path == str(path)


def test_claims_of_the_metadata_take_no_memory(tmp_path: Path) -> None:
    """Gigantic shapes over no files, or over small ones, are refused before anything is allocated."""
    for chunk, compressor in ((1 << 20, None), (1, None), (1 << 58, None), (1 << 58, {"id": "zstd", "level": 1})):
        folder = tmp_path / f"{chunk}-{compressor is None}"
        folder.mkdir()
        (folder / "0").write_bytes(b"x" * 100)
        fields = f'{{"zarr_format": 2, "shape": [{1 << 58}], "chunks": [{chunk}], "dtype": "<u4", "fill_value": 0'
        compressed = "null" if compressor is None else '{"id": "zstd", "level": 1}'
        (folder / ".zarray").write_text(f'{fields}, "compressor": {compressed}, "filters": null, "order": "C"}}')
        meta = meta_of(folder, 2)
        for read in ("mmap", "pread"):
            array = ChunkArray(LocalStore(), str(folder), meta, read, 1 << 20)  # type: ignore[arg-type]
            with pytest.raises((TooLarge, Truncated, Corrupt)):
                array.read(0, 1 << 58)


def test_extents(tmp_path: Path) -> None:
    raw = ChunkArray(LocalStore(), str(tmp_path / "raw"), make(tmp_path / "raw", "raw"), "auto", 1)
    found = list(raw.extents(90, 450))
    assert [(os.path.basename(one.path), one.offset_bytes, one.length_bytes) for one in found] == [
        *(("0", 360, 40), ("1", 0, 400), ("4", 0, 200))
    ]
    data = b"".join(Path(one.path).read_bytes()[one.offset_bytes :][: one.length_bytes] for one in found)
    assert np.frombuffer(data, "<u4").tolist() == [*ITEMS[90:200].tolist(), *ITEMS[400:450].tolist()]
    packed = ChunkArray(LocalStore(), str(tmp_path / "z"), make(tmp_path / "z", "zstd"), "auto", 1)
    (one,) = packed.extents(5, 6)
    assert (one.offset_bytes, one.length_bytes) == (0, os.path.getsize(one.path))


def test_the_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    cache = PieceCache(100)
    for number in range(10):
        cache.put((number, 0), np.zeros(25, np.uint8))
        cache.get((0, 0))
    assert [number for number in range(10) if cache.get((number, 0)) is not None] == [0, 7, 8, 9]
    cache.put((99, 0), np.zeros(1000, np.uint8))
    assert len(cache) == 1
    assert cache.get((99, 0)) is not None
    assert len(pickle.loads(pickle.dumps(cache))) == 0


def test_a_fork_while_the_cache_is_held_does_not_hang() -> None:
    script = """
import os, sys, numpy as np
from penstock.formats.tokens.zarr.span import PieceCache
cache = PieceCache(100)
cache.put((0, 0), np.zeros(10, np.uint8))
with cache._held():
    pid = os.fork()
    if pid == 0:
        os._exit(0 if cache.get((0, 0)) is not None else 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


def test_unusual_codecs_are_left_to_zarr(tmp_path: Path) -> None:
    array = zarr.create_array(
        str(tmp_path / "a"),
        shape=(COUNT,),
        chunks=(100,),
        dtype="<u4",
        zarr_format=2,
        compressors=numcodecs.LZMA(),
        config={"write_empty_chunks": True},
    )
    array[:] = ITEMS
    found = parse_array((tmp_path / "a" / ".zarray").read_bytes(), str(tmp_path / "a" / "x"), 2, "t", "uint32")
    assert isinstance(found, ArrayMeta)
    assert found.foreign == "codec 'lzma'"
    ours = open_array(LocalStore(), str(tmp_path / "a"), found, "auto", 1)
    assert isinstance(ours, ForeignArray)
    ours = pickle.loads(pickle.dumps(ours))
    assert (ours.read(5, 900) == ITEMS[5:900]).all()
    out = np.empty((3, 7), np.uint32)
    ours.gather(np.array([900, 0, 95]), 7, out)
    assert (out == ITEMS[np.array([900, 0, 95])[:, None] + np.arange(7)]).all()
    assert np.concatenate([*ours.scan(0)]).tolist() == ITEMS[:100].tolist()
    assert ours.problem() is None
    (tmp_path / "a" / "10").unlink()
    with pytest.raises(Truncated, match="found 10 chunks, expected 11"):
        ForeignArray(LocalStore(), str(tmp_path / "a"), found).read(0, 10)
    (tmp_path / "a" / "0").write_bytes(b"damaged")
    with pytest.raises(Corrupt):
        ours.read(0, 10)

"""Opening groups: splits, spellings, refusals, few reads, and documents through `seq_starts`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.internals import FLAT_TOKENS_FORMAT as FORMAT
from tests.internals import make_layout, replace, sampled_files

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, TooLarge, Unsupported
from penstock.store import LocalStore, MemoryStore
from penstock.testing.counting import CountingStore
from penstock.types import OpenOptions

from .conftest import DOCUMENTS, documents_of, make, opened


def test_opening_reads_no_data(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr")
    store = CountingStore(LocalStore())
    opened = FORMAT.open(store, str(path), OpenOptions(vocab_size=10))
    assert (len(opened), opened.num_tokens, opened.max_token_id) == (6, 9, 9)
    assert store.reads == 4  # .zgroup, .zattrs and two .zarray
    assert repr(opened)
    assert store.reads == 4


def test_the_promised_reads(tmp_path: Path) -> None:
    """One for a packed window, with its labels; two for a document."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 99, rng.integers(1, 30)).tolist() for _ in range(40)]
    for name, options in {
        "two": {},
        "three": {"zarr_format": 3},
        "shards": {"zarr_format": 3, "chunk_tokens": 64, "shard_tokens": 4096},
    }.items():
        path = make(tmp_path / name, documents, **({"chunk_tokens": 4096, "chunk_starts": 64} | options))
        store = CountingStore(LocalStore())
        found = FORMAT.open(store, str(path), OpenOptions())
        if name == "shards":
            found.tokens(0, 1)  # the index of a shard is read once
        windows = ps.Chunk(50, labels="start-zero")(found)
        for work, reads in (
            (lambda windows=windows: windows[3], 1),
            (lambda windows=windows: windows.get_batch([5, 1, 2]), 3),
            (lambda found=found: found.tokens(100, 200), 1),
            (lambda found=found: found[7], 2),
        ):
            before = store.reads
            work()
            assert store.reads - before == reads, name
        assert documents_of(found) == documents


def test_splits(tmp_path: Path) -> None:
    path = tmp_path / "set.zarr"
    make(path, [[1, 2]], split="validation")
    assert opened(path).split == "validation"
    make(path, [[3]], split="train")
    assert opened(path).split == "train"
    assert documents_of(opened(path, split="validation")) == [[1, 2]]
    assert documents_of(opened(path / "train")) == [[3]]
    with pytest.raises(NotFound, match="validation"):
        opened(path, split="test")
    for wrong in ("", "..", "a/b", ".hidden"):
        with pytest.raises(ConfigError):
            opened(path, split=wrong)
    with pytest.raises(ConfigError, match="no splits"):
        opened(make(tmp_path / "single.zarr"), split="train")
    assert FORMAT.sniff(LocalStore(), str(path)).matches
    recipe = opened(path, split="validation").recipe()
    assert recipe["split"] == "validation"


def test_a_zarr_group_of_another_kind(tmp_path: Path) -> None:
    import zarr

    for zarr_format in (2, 3):
        path = tmp_path / str(zarr_format)
        group = zarr.create_group(str(path), zarr_format=zarr_format)
        group.create_array("images", shape=(4, 4), dtype="u1")
        with pytest.raises(Unsupported, match="a zarr group, but not flat-tokens: no `encoded_tokens`"):
            opened(path)
        sniffed = FORMAT.sniff(LocalStore(), str(path))
        assert (sniffed.matches, sniffed.why) == (False, "a zarr group, but not flat-tokens: no `encoded_tokens`")
        with pytest.raises(Unsupported, match="but not flat-tokens"):
            ps.open(path)
        with pytest.raises(Unsupported, match="a zarr array instead of a group"):
            opened(path / "images")
    with pytest.raises(NotFound):
        opened(tmp_path / "missing")
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(Unsupported, match="not a zarr group"):
        opened(tmp_path / "file")


def test_the_other_spelling_is_read(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr")
    (path / "encoded_tokens").rename(path / "tokens")
    assert documents_of(opened(path)) == DOCUMENTS
    assert ps.open(path).num_tokens == 9
    shutil.rmtree(path / "seq_starts")
    with pytest.raises(Corrupt, match="no `encoded_tokens`"):
        opened(path)


def test_vocabulary(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr")
    assert opened(path, vocab_size=10).num_tokens == 9
    with pytest.raises(TooLarge, match="max_token_id 9"):
        opened(path, vocab_size=9)


def test_seq_starts_that_are_no_borders(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr")
    whole = (path / "seq_starts" / "0").read_bytes()
    for values, message in (
        ([1, 2, 2, 5], "begin with 0"),
        ([0, 2, 1, 5], "entry 2 is 1, after 2"),
        ([0, 2, 2, 1 << 63], "after"),
        ([0, 2, 2, 9000], "decreases"),
    ):
        (path / "seq_starts" / "0").write_bytes(np.array(values, "<u8").tobytes())
        with pytest.raises(Corrupt, match=message):
            _ = opened(path).doc_starts
        assert opened(path).tokens(0, 9).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    (path / "seq_starts" / "0").write_bytes(np.array([0, 9001, 2, 5], "<u8").tobytes())
    for index in (0, 1):
        with pytest.raises(Corrupt, match="outside the tokens"):
            opened(path)[index]
    (path / "seq_starts" / "0").write_bytes(whole)
    last = path / "seq_starts" / "1"
    last.write_bytes(np.array([8, 8, 8, 0], "<u8").tobytes())
    with pytest.raises(Corrupt, match="does not end at the number of tokens"):
        _ = opened(path).doc_starts


def test_large_seq_starts_are_decoded_once_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "flat_tokens_derived_items", 3)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    path = make(tmp_path / "a.zarr", compressor="zstd")
    first = opened(path).doc_starts
    assert first.tolist() == [0, 2, 2, 5, 8, 8, 9]
    (kept,) = (tmp_path / "cache" / "derived").glob("*.npy")
    again = opened(path).doc_starts
    assert again.tolist() == first.tolist()
    assert [*(tmp_path / "cache" / "derived").glob("*.npy")] == [kept]
    # Other entries, as long and with the same metadata, are another thing.
    make(path, [[1, 2], [3], [4, 5], [6, 7, 8], [], [9]], compressor="zstd", overwrite=True)
    assert opened(path).doc_starts.tolist() == [0, 2, 3, 5, 8, 8, 9]


def test_one_uncompressed_chunk_of_seq_starts_is_mapped(tmp_path: Path) -> None:
    starts = opened(make(tmp_path / "a.zarr", chunk_starts=100)).doc_starts
    assert starts.tolist() == [0, 2, 2, 5, 8, 8, 9]
    assert starts.base is not None
    assert not starts.flags.owndata


def test_in_memory(tmp_path: Path) -> None:
    store = MemoryStore()
    for split in ("train", "validation"):
        with FORMAT.create(store, "d/set", {"split": split, "chunk_tokens": 3}, overwrite=False) as writer:
            writer.write_batch({"tokens": [np.array(one) for one in DOCUMENTS]})
    found = FORMAT.open(store, "d/set", OpenOptions(split="train"))
    assert documents_of(found) == DOCUMENTS
    assert sorted(name for name in store.files if "/" in name and name.count("/") == 1) == [
        "d/set.penstock",
    ]
    assert found.manifest is not None
    assert found.gather(np.array([0, 3]), 4).tolist() == [[1, 2, 3, 4], [4, 5, 6, 7]]


def test_places_of_tokens_and_documents(tmp_path: Path) -> None:
    found = opened(make(tmp_path / "a.zarr"))
    encoded = b"".join(
        Path(one.path).read_bytes()[one.offset_bytes : one.offset_bytes + one.length_bytes]
        for one in found.token_extent(2, 9)
    )
    assert (np.frombuffer(encoded, "<u4") >> 1).tolist() == [3, 4, 5, 6, 7, 8, 9]
    place = found.place_of(3)
    assert place.extents == found.token_extent(5, 8)


def test_raw_layouts_need_neither_zarr_nor_numcodecs(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", zarr_format=3, chunk_tokens=2, shard_tokens=4)
    script = f"""
import sys
for name in ("zarr", "numcodecs", "google_crc32c"):
    sys.modules[name] = None
import penstock as ps
source = ps.open({str(path)!r})
assert [source[i]["tokens"].tolist() for i in range(len(source))] == {DOCUMENTS!r}
assert ps.verify({str(path)!r}, depth="full") == []
with ps.create({str(path)!r} + "2", format="flat-tokens") as writer:
    writer.write({{"tokens": [1, 2]}})
assert ps.open({str(path)!r} + "2")[0]["tokens"].tolist() == [1, 2]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a.zarr", compressor="zstd")
    for name in ("numcodecs", "numcodecs.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install numcodecs zarr"):
        opened(path).tokens(0, 3)


def test_sampled_files_never_list_them_all() -> None:
    meta = make_layout("p", 2, chunk_tokens=1).tokens_meta(1 << 58)
    names = sampled_files(meta, b"index", 10)
    assert len(names) == 10
    assert names[0] == "0"
    assert names == sampled_files(meta, b"index", 10)
    assert names != sampled_files(meta, b"another", 10)


def test_metadata_of_a_hostile_size_are_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr")
    with (path / ".zattrs").open("r+b") as file:
        file.truncate(1 << 27)
    with pytest.raises(TooLarge):
        opened(path)
    (path / ".zattrs").write_text(json.dumps({"max_token_id": 10**30}))
    with pytest.raises(Corrupt):
        opened(path)


@pytest.mark.parametrize("read", ["mmap", "pread"])
@pytest.mark.parametrize("options", [{}, {"zarr_format": 3}, {"zarr_format": 3, "chunk_tokens": 4, "shard_tokens": 8}])
def test_a_group_that_goes_away_is_not_read_as_fill_values(tmp_path: Path, read: str, options: dict[str, int]) -> None:
    path = make(tmp_path / "a.zarr", **options)
    found = ps.open(path, read=read)
    windows = ps.Chunk(4)(found)
    shutil.move(path, tmp_path / "other.zarr")
    for work in (lambda: found[2], lambda: found.tokens(0, 9), lambda: windows[1], lambda: windows.get_batch([1, 0])):
        with pytest.raises(NotFound, match="the array disappeared"):
            work()

"""Reading packed files: what the original reads, and how little is touched."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.errors import ConfigError, Corrupt, TooLarge, Truncated
from penstock.formats.tokens.pbin import FORMAT
from penstock.formats.tokens.pbin import source as source_module
from penstock.formats.tokens.pbin.source import PbinSource
from penstock.store.derived import DerivedCache
from penstock.store.local import LocalStore
from penstock.testing import CountingStore, TokenSourceLaws
from penstock.types import Extent, OpenOptions, Sample

Build = Callable[..., bytes]
Put = Callable[..., str]
DOCS = [[300, 2, 7], [7], [], [65_535, 0, 1, 7], [5, 7]]


def opened(path: str, **options: Any) -> PbinSource:
    return FORMAT.open(LocalStore(), path, OpenOptions(**options))


def written(path: Path, docs: list[list[int]] = DOCS, **options: Any) -> PbinSource:
    with FORMAT.create(LocalStore(), str(path), {"token_bytes": 2, **options}, overwrite=False) as writer:
        for doc in docs:
            writer.write({"tokens": doc})
    return opened(str(path))


class TestForeignFile(TokenSourceLaws):
    """A file without a side file."""

    layout: ClassVar = "h12le"
    dtype: ClassVar = "uint16"
    read: ClassVar = "auto"

    @pytest.fixture
    def source(self, packed: Build, put: Put) -> PbinSource:
        return opened(put(packed(DOCS, self.layout)), read=self.read)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"tokens": np.array(doc, self.dtype)} for doc in DOCS]


class TestBigEndian(TestForeignFile):
    layout: ClassVar = "h8"
    dtype: ClassVar = "uint32"


class TestBigEndianWithoutMaps(TestBigEndian):
    read: ClassVar = "pread"


class TestWithoutMaps(TestForeignFile):
    read: ClassVar = "pread"


@pytest.mark.parametrize(
    "name", ["docs.bpe2", "docs.small1", "docs.word4", "chunk_0_of_3_seed7", "writer_t1", "writer_t4"]
)
def test_golden(golden: Path, expected: dict[str, Any], name: str) -> None:
    told = expected["pbin"][f"{name}.pbin"]
    source = opened(str(golden / "modalities" / "pbin" / f"{name}.pbin"))
    assert len(source) == told["num_docs"]
    assert source.dtype.itemsize == told["token_size"]
    assert source.num_tokens == told["data_len"] // told["token_size"]
    digest = hashlib.sha256()
    for sample in source.get_batch(range(len(source)))["tokens"]:
        digest.update(sample.astype("<i8").tobytes())
    assert digest.hexdigest() == told["docs_sha256_i64"]


class TestMergedFile:
    """The index of a merged file is wrong; its tokens are not."""

    @pytest.fixture
    def source(self, golden: Path) -> PbinSource:
        return opened(str(golden / "modalities" / "pbin" / "merged.pbin"))

    def test_tokens(self, source: PbinSource, expected: dict[str, Any]) -> None:
        flat = [token for doc in expected["merged_docs"] for token in doc]
        assert source.tokens(0, source.num_tokens).tolist() == flat
        assert source.gather(np.array([5, 2000]), 100).tolist() == [flat[5:105], flat[2000:2100]]

    def test_documents_are_refused(self, source: PbinSource) -> None:
        for read in (lambda: source[0], lambda: len(source), lambda: source.doc_starts, lambda: source.get_batch([0])):
            with pytest.raises(Corrupt, match="merge_packed_data") as caught:
                read()
            assert "penstock repair" in str(caught.value)
            assert caught.value.offset_bytes == 12 + 1246


class TestLittleIsRead:
    @pytest.fixture
    def path(self, packed: Build, put: Put) -> str:
        return put(packed([[1, 2, 3, 4]] * 5000))

    def test_open_and_tokens(self, path: str) -> None:
        store = CountingStore(LocalStore())
        source = FORMAT.open(store, path, OpenOptions())
        assert source.num_tokens == 20_000
        assert source.schema.fields[0].dtype == "uint16"
        assert store.read_bytes <= 8 * 64
        before = store.read_bytes
        source.gather(np.array([0, 7, 19_000]), 10)
        source.tokens(5, 15)
        assert store.read_bytes - before == 4 * 10 * 2

    def test_fingerprint(self, path: str) -> None:
        store = CountingStore(LocalStore())
        fingerprint = FORMAT.open(store, path, OpenOptions()).fingerprint
        assert store.reads <= 64
        assert fingerprint == opened(path).fingerprint

    def test_index_is_decoded_once_a_host(self, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        assert len(opened(path)) == 5000
        assert not (tmp_path / "cache").exists()  # a small index is decoded in less time than it is kept
        path = str(tmp_path / "many.pbin")
        with FORMAT.create(LocalStore(), path, {"token_bytes": 1}, overwrite=False) as writer:
            writer.write_run(np.ones(40_000, np.uint8), np.full(20_000, 2))
        os.unlink(path + ".penstock")
        assert len(opened(path)) == 20_000

        def refuse(*_: object) -> None:
            raise AssertionError("decoded again")

        monkeypatch.setattr(source_module, "read_index", refuse)
        monkeypatch.setattr(source_module, "feed_starts", refuse)
        source = opened(path)
        assert source.derived is not None
        assert len(source) == 20_000
        assert source.doc_starts[-1] == 40_000
        assert not source.doc_starts.flags.writeable
        assert len(os.listdir(DerivedCache().folder)) == 3  # the array, its record and its lock

    def test_side_file_tells_the_number_of_documents(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = written(tmp_path / "a.pbin", DOCS)
        monkeypatch.setattr(source_module, "read_index", None)
        assert len(source) == len(DOCS)

    def test_same_fingerprint_and_another_index(self, tmp_path: Path) -> None:
        # Two files that differ in one border, far from the sampled places, may have one fingerprint.
        for border in (1, 3):
            lengths = np.full(40_000, 2)
            lengths[20_000:20_002] = border, 4 - border
            path = str(tmp_path / str(border))
            with FORMAT.create(LocalStore(), path, {"token_bytes": 2}, overwrite=False) as writer:
                writer.write_run(np.ones(80_000, np.uint16), lengths)
            source = opened(path)
            source._fingerprint = "one-and-the-same"
            assert len(source[20_000]["tokens"]) == border


def test_views_are_read_only_and_aligned(packed: Build, put: Put) -> None:
    tokens = opened(put(packed())).tokens(0, 3)
    assert not tokens.flags.owndata
    assert tokens.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1


def test_batch_of_equal_lengths_is_one_array(packed: Build, put: Put) -> None:
    source = opened(put(packed([[1, 2], [3, 4], [5]])))
    assert source.get_batch([1, 0])["tokens"].tolist() == [[3, 4], [1, 2]]
    assert isinstance(source.get_batch([0, 2])["tokens"], list)


def test_extents(packed: Build, put: Put) -> None:
    path = put(packed())
    source = opened(path)
    assert source.place_of(3).extents == (Extent(path, 12 + 8, 8),)
    assert source.place_of(-1).extents == (Extent(path, 12 + 16, 4),)
    assert source.token_extent(1, 4) == (Extent(path, 14, 6),)
    with pytest.raises(IndexError):
        source.place_of(5)
    with pytest.raises(IndexError):
        source.token_extent(0, 100)


def test_eos_id(packed: Build, put: Put, tmp_path: Path) -> None:
    path = put(packed())
    assert opened(path).eos_id is None
    assert opened(path, eos_id=7).eos_id == 7
    with pytest.raises(ConfigError, match="EOS"):
        opened(path, eos_id=65_536)
    known = written(tmp_path / "b.pbin", eos_id=7, tokenizer="mine", tokenizer_digest="ab" * 16)
    assert known.eos_id == 7
    assert known.tokenizer_digest == "ab" * 16
    assert opened(str(tmp_path / "b.pbin"), eos_id=5).eos_id == 5


def test_vocabulary(packed: Build, put: Put, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = put(packed())
    with caplog.at_level(logging.WARNING):
        opened(path, vocab_size=65_536)
        assert not caplog.records
        opened(path, vocab_size=1000)
        assert "write-manifest" in caplog.text
    written(tmp_path / "b.pbin", [[1, 2, 999]])
    assert opened(str(tmp_path / "b.pbin"), vocab_size=1000)
    with pytest.raises(TooLarge) as caught:
        opened(str(tmp_path / "b.pbin"), vocab_size=999)
    assert caught.value.found == 999


def test_side_file_of_other_data_is_ignored(packed: Build, put: Put, tmp_path: Path) -> None:
    written(tmp_path / "a.pbin", eos_id=7)
    path = put(packed([[1, 2, 3]]))
    source = opened(path)
    assert source.manifest is None
    assert source.eos_id is None
    assert len(source) == 1


def test_shorter_than_when_it_was_opened(packed: Build, put: Put) -> None:
    path = put(packed())
    source = opened(path)
    os.truncate(path, 20)
    with pytest.raises(Truncated):
        source.tokens(0, source.num_tokens)
    with pytest.raises(Truncated):
        opened(put(packed(), "b.pbin")) and opened(path)


def test_recipe_and_text(packed: Build, put: Put) -> None:
    path = put(packed(DOCS, "h8"))
    source = opened(path, layout="h8", eos_id=7)
    assert source.recipe() == {"kind": "open", "format": "pbin", "path": path, "layout": "h8", "eos_id": 7}
    assert "uint32" in str(source)
    assert repr(source).startswith("<pbin")


def test_token_run(golden: Path) -> None:
    folder = golden / "modalities"
    path = folder / "pbin" / "docs.bpe2.pbin"
    source = opened(str(path))
    extent = source.token_run()
    stored = path.read_bytes()[extent.offset_bytes : extent.offset_bytes + extent.length_bytes]
    np.testing.assert_array_equal(np.frombuffer(stored, "<u2"), source.tokens(0, source.num_tokens))
    assert opened(str(folder / "legacy" / "hdr12_be_t2_off12.pbin")).token_run() is None


def test_a_large_index_is_decoded_with_a_word(
    packed: Build, put: Put, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.formats.tokens.pbin.source._SLOW_INDEX_BYTES", 1 << 17)
    path = put(packed([[1]] * 30_000))
    assert len(opened(path).doc_starts) == len(opened(path).doc_starts) == 30_001
    (said,) = [one.getMessage() for one in caplog.records]
    assert path in said
    assert "once on this host" in said

"""Reading: what the original reads, every dtype, sequences in any order, and how little is touched."""

from __future__ import annotations

import logging
import os
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.internals import MEGATRON_FORMAT as FORMAT
from tests.internals import MegatronSource, replace

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, TooLarge, Truncated
from penstock.store import DerivedCache, LocalStore
from penstock.testing import CountingStore, TokenSourceLaws
from penstock.types import Extent, OpenOptions, Sample

DOCS = [[300, 2, 7], [7], [], [5, 0, 1, 7]]
SMALL = [[100, 2, 7], [7], [], [5, 0, 1, 7]]
NAMES = [
    "seed_uint8_text_document",
    "seed_uint16_text_document",
    "seed_int32_text_document",
    "seed_int64_text_document",
    "two_sentence_docs_uint16",
    "with_empty_sequence_int32",
    "multimodal_int32",
]


def opened(path: str, **options: Any) -> MegatronSource:
    return FORMAT.open(LocalStore(), path, OpenOptions(**options))


def samples(docs: list[list[int]], dtype: str = "uint16") -> list[Sample]:
    return [{"tokens": np.array(doc, dtype)} for doc in docs]


class TestForeignFile(TokenSourceLaws):
    """Files without a side file."""

    read: ClassVar = "auto"

    @pytest.fixture
    def source(self, put: Any) -> MegatronSource:
        return opened(put(), read=self.read)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return samples(DOCS)


class TestWithoutMaps(TestForeignFile):
    read: ClassVar = "pread"


class TestSequencesInAnyOrder(TestForeignFile):
    """Gaps, another order, documents of several sequences and of none: the order of the index holds."""

    @pytest.fixture
    def source(self, put: Any) -> MegatronSource:
        data = np.array([9, 5, 0, 9, 9, 300, 2, 7, 7, 1, 7, 9], "<u2").tobytes()
        lengths, pointers = [2, 1, 1, 0, 2, 2], [10, 14, 16, 4, 2, 18]
        return opened(put(data=data, lengths=lengths, pointers=pointers, borders=[0, 2, 3, 3, 6]), read=self.read)


class TestSequencesInAnyOrderWithoutMaps(TestSequencesInAnyOrder):
    read: ClassVar = "pread"


class TestFloats(TestForeignFile):
    @pytest.fixture
    def source(self, put: Any) -> MegatronSource:
        return opened(put(DOCS, "float64"))

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return samples(DOCS, "uint32")


@pytest.mark.parametrize("name", NAMES)
def test_golden(golden: Path, expected: dict[str, Any], name: str) -> None:
    told = expected[name]
    source = opened(str(golden / "megatron" / name))
    sequences = [one[0] if "sequence_modes" in told else one for one in told["sequences"]]
    borders = told["document_indices"]
    documents = [[*chain.from_iterable(sequences[a:b])] for a, b in pairwise(borders)]
    assert [sample["tokens"].tolist() for sample in source] == documents
    assert source.header.kind.name == told["dtype"]
    assert source.header.kind.code == told["dtype_code"]
    assert source.sequence_lengths.tolist() == told["sequence_lengths"]
    assert source.document_indices.tolist() == borders
    assert (None if source.modes is None else source.modes.tolist()) == told.get("sequence_modes")
    assert source.tokens(0, source.num_tokens).tolist() == [*chain.from_iterable(documents)]
    assert ("modes" in source.only_here) == ("sequence_modes" in told)
    assert ps.verify(golden / "megatron" / name, depth="full") == []


def test_datatroves_own(golden: Path) -> None:
    source = opened(str(golden / "megatron" / "megatron_from_datatrove"))
    assert [sample["tokens"].tolist() for sample in source] == [[1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"])
@pytest.mark.parametrize("read", ["mmap", "pread"])
def test_every_dtype(put: Any, dtype: str, read: str) -> None:
    source = opened(put(SMALL, dtype), read=read)
    width = min(np.dtype(dtype).itemsize, 4)
    assert source.dtype == f"uint{8 * width}"
    assert [sample["tokens"].tolist() for sample in source] == SMALL
    assert source.gather(np.array([0, 4]), 3).tolist() == [[100, 2, 7], [5, 0, 1]]
    out = np.zeros((1, 3), source.dtype)
    assert source.gather(np.array([1]), 3, out) is out
    assert out.tolist() == [[2, 7, 7]]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(("int8", -1), ("int16", -300), ("int32", -(1 << 31))),
        *(("int64", -1), ("int64", 1 << 32), ("float32", 0.5), ("float32", 1 << 24)),
        *(("float64", -1.0), ("float64", float("nan")), ("float64", float("inf")), ("float64", 1e300)),
    ],
)
def test_what_is_no_id_is_refused_by_value(put: Any, dtype: str, value: float) -> None:
    prefix = put([[1, 2], [value, 3]], dtype)
    source = opened(prefix)
    assert source[0]["tokens"].tolist() == [1, 2]
    for read in (lambda: source[1], lambda: source.tokens(1, 3), lambda: source.gather(np.array([2]), 2)):
        with pytest.raises(Corrupt, match=dtype) as caught:
            read()
        assert caught.value.found == str(np.array(value, dtype)[()])
        assert caught.value.path == prefix + ".bin"
    assert [one.code for one in FORMAT.check(LocalStore(), prefix, OpenOptions(), "sample")] == ["megatron.id"]


def test_all_names_of_a_dataset(put: Any, tmp_path: Path) -> None:
    prefix = put()
    for name in (prefix, prefix + ".bin", prefix + ".idx"):
        assert ps.open(name).recipe() == {"kind": "open", "format": "megatron", "path": prefix}
    inner = put(name="b.bin")  # a prefix may itself end in .bin
    assert ps.open(inner).recipe()["path"] == inner
    assert ps.open(inner + ".bin").recipe()["path"] == inner


def test_one_of_two_files(put: Any) -> None:
    prefix = put()
    os.rename(prefix + ".bin", prefix + ".kept")
    with pytest.raises(NotFound) as caught:
        opened(prefix)
    assert caught.value.path == prefix + ".bin"
    os.rename(prefix + ".kept", prefix + ".bin")
    os.unlink(prefix + ".idx")
    with pytest.raises(NotFound) as caught:
        opened(prefix)
    assert caught.value.path == prefix + ".idx"


class TestLittleIsRead:
    @pytest.fixture
    def prefix(self, put: Any) -> str:
        return put([[1, 2, 3, 4]] * 20_000)

    def test_open_and_one_document(self, prefix: str) -> None:
        store = CountingStore(LocalStore())
        source = FORMAT.open(store, prefix, OpenOptions())
        assert len(source) == 20_000
        assert store.read_bytes <= 100
        before = store.read_bytes
        assert source[19_999]["tokens"].tolist() == [1, 2, 3, 4]
        assert store.read_bytes - before == 16 + 4 + 8 + 8

    def test_starts_are_worked_out_once_a_host(
        self, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        source = opened(prefix)
        assert source.num_tokens == 80_000
        assert source.derived is not None
        replace(monkeypatch, "megatron_sequence_starts", None)
        again = opened(prefix)
        assert again.gather_starts(np.array([0, 3]), 3).tolist() == [[True, False, False], [False, True, False]]
        assert not again.doc_starts.flags.writeable
        assert len(os.listdir(DerivedCache().folder)) == 3  # the array, its record and its lock
        assert ps.BestFit(8)(again).fill == 1

    def test_small_things_are_not_kept(self, put: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        assert opened(put()).num_tokens == 8
        assert not (tmp_path / "cache").exists()


def test_places(put: Any) -> None:
    data = np.array([9, 5, 6, 9, 7, 8], "<u2").tobytes()
    prefix = put(data=data, lengths=[2, 2, 1], pointers=[2, 8, 0], borders=[0, 2, 3])
    source = opened(prefix)
    assert [sample["tokens"].tolist() for sample in source] == [[5, 6, 7, 8], [9]]
    assert source.place_of(0).extents == (Extent(prefix + ".bin", 2, 4), Extent(prefix + ".bin", 8, 4))
    assert source.token_extent(1, 5) == (
        Extent(prefix + ".bin", 4, 2),
        Extent(prefix + ".bin", 8, 4),
        Extent(prefix + ".bin", 0, 2),
    )
    assert source.token_run() is None


def test_token_run_is_given_where_the_bytes_are_the_ids(put: Any, tmp_path: Path) -> None:
    assert opened(prefix := put()).token_run() == Extent(prefix + ".bin", 0, 16)
    assert opened(put(DOCS, "int32")).token_run() is None  # one may be negative
    assert opened(put(DOCS, "int64")).token_run() is None
    with ps.create(tmp_path / "ours", format="megatron", dtype="int32") as writer:
        writer.write({"tokens": [1, 2]})
    assert opened(str(tmp_path / "ours")).token_run() == Extent(str(tmp_path / "ours.bin"), 0, 8)


def test_labels_need_no_eos(put: Any) -> None:
    windows = ps.Chunk(4, labels="shift")(opened(put([[1, 2, 3], [4, 5, 6, 7], [8, 9]])))
    assert windows[1]["loss_mask"].tolist() == [True, True, False, True]
    assert windows[0]["segment_ids"].tolist() == [1, 1, 1, 2]


def test_options(put: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    prefix = put()
    assert opened(prefix).eos_id is None
    assert opened(prefix, eos_id=7).recipe()["eos_id"] == 7
    with pytest.raises(ConfigError, match="EOS"):
        opened(prefix, eos_id=65_536)
    with caplog.at_level(logging.WARNING):
        opened(prefix, vocab_size=1000)
    assert "write-manifest" in caplog.text
    with ps.create(tmp_path / "ours", format="megatron", vocab_size=500, eos_id=7, tokenizer_digest="ab") as writer:
        writer.write({"tokens": [499, 7]})
    ours = opened(str(tmp_path / "ours"))
    assert (ours.eos_id, ours.tokenizer_digest) == (7, "ab")
    with pytest.raises(TooLarge) as caught:
        opened(str(tmp_path / "ours"), vocab_size=499)
    assert caught.value.found == 499


@pytest.mark.parametrize("borders", [[0], [0, 2], [0, 1, 2, 3], [0, 1, 2, 3, 5]])
def test_sequences_that_no_document_has_are_no_dataset(put: Any, borders: list[int]) -> None:
    """Such an index comes of a writer that died before it ended its documents; `DOCS` has 4 sequences."""
    with pytest.raises(Corrupt, match=rf"found {borders[-1]} at entry {len(borders) - 1}, expected 4"):
        opened(put(DOCS, borders=borders))


def test_shorter_than_when_it_was_opened(put: Any) -> None:
    prefix = put()
    source = opened(prefix)
    assert source.num_tokens == 8
    os.truncate(prefix + ".bin", 4)
    with pytest.raises(Truncated):
        source.tokens(0, 8)
    empty = opened(prefix := put([], name="empty"))
    os.truncate(prefix + ".idx", 36)
    with pytest.raises(Truncated):
        len(empty.doc_starts)


def test_text(put: Any) -> None:
    source = opened(put(DOCS, "int32"))
    assert "dtype=int32" in str(source)
    assert repr(source).startswith("<megatron")

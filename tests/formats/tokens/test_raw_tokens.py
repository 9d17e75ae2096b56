"""Raw token files: three kinds of headers, none of which may be guessed, and documents by a mark."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import RAW_TOKENS_FORMAT as FORMAT

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, Truncated, Unsupported
from penstock.formats import sniff
from penstock.store import LocalStore, MemoryStore
from penstock.testing import CountingStore, TokenSourceLaws
from penstock.types import Extent, OpenOptions, Sample

DOCS = [[300, 2, 7], [7], [5, 0, 1, 7], [9, 9, 7]]


def header(count: int, magic: int = 20_240_520, version: int = 1) -> bytes:
    return struct.pack("<3i", magic, version, count) + bytes(1012)


def flat(docs: list[list[int]]) -> list[int]:
    return [token for doc in docs for token in doc]


def samples(docs: list[list[int]], dtype: str = "uint16") -> list[Sample]:
    return [{"tokens": np.array(doc, dtype)} for doc in docs]


class TestEosAtTheEnd(TokenSourceLaws):
    """nanoGPT and OLMo."""

    read: ClassVar = "auto"

    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        np.array(flat(DOCS), "<u2").tofile(tmp_path / "train.bin")
        return ps.open(tmp_path / "train.bin", format="raw-tokens", layout="uint16", eos_id=7, read=self.read)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return samples(DOCS)

    def test_prints_a_screen(self, source: Any) -> None:
        assert str(source).startswith("raw-tokens")


class TestWithoutMaps(TestEosAtTheEnd):
    read: ClassVar = "pread"


class TestMarkAtTheStart(TestEosAtTheEnd):
    """llm.c."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        tokens = [4, *flat([[7, *doc[:-1]] for doc in DOCS])]
        (tmp_path / "x.bin").write_bytes(header(len(tokens)) + np.array(tokens, "<u2").tobytes())
        return ps.open(tmp_path / "x.bin", eos_id=7, read=self.read)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return samples([[4], *([7, *doc[:-1]] for doc in DOCS)])


class TestArrayOfInt64(TestEosAtTheEnd):
    """`numpy.save` of what torch gives."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        np.save(tmp_path / "x.npy", np.array(flat(DOCS), np.int64))
        return ps.open(tmp_path / "x.npy", eos_id=7, read=self.read)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return samples(DOCS, "uint32")


@pytest.mark.parametrize(
    ("name", "eos_id", "docs"),
    [
        ("nanogpt/train.bin", 50_256, [[1, 2, 50_256], [3, 4, 5, 50_256], [6, 7, 8, 50_256]]),
        ("olmo/part-0-00000.npy", 50_256, [[1, 2, 50_256], [3, 4, 5, 50_256], [6, 7, 8, 50_256]]),
        ("llmc/gpt2_train.bin", 50_256, [[50_256, 1, 2], [50_256, 3, 4, 5], [50_256, 6, 7, 8]]),
        ("llmc/llama3_train.bin", 128_000, [[128_000, 1, 2], [128_000, 3, 4, 5], [128_000, 6, 7, 8]]),
    ],
)
def test_golden(golden: Path, name: str, eos_id: int, docs: list[list[int]]) -> None:
    path = golden / "raw-tokens" / name
    told = json.loads((golden / "raw-tokens" / "expected.json").read_text())[name]
    layout = None if name.startswith("llmc") else "uint16"
    source: Any = ps.open(path, format="raw-tokens", layout=layout, eos_id=eos_id)
    assert source.tokens(0, source.num_tokens).tolist() == told["tokens"]
    assert source.dtype == np.dtype(told["dtype"])
    assert [sample["tokens"].tolist() for sample in source] == docs
    if name.startswith("llmc"):
        assert source.eos_id is None
        assert sniff(LocalStore(), str(path)).name == "raw-tokens"
    options = {"format": "raw-tokens", "layout": layout}
    assert ps.verify(path, depth="full", vocab_size=eos_id + 1, **options) == []
    assert next(one.code for one in ps.verify(path, vocab_size=8, **options)) == "raw-tokens.token-range"


@settings(deadline=None, max_examples=60)
@given(tokens=st.lists(st.integers(0, 3), max_size=30), before=st.booleans())
def test_borders(tokens: list[int], before: bool) -> None:
    data = np.array(tokens, "<u2").tobytes()
    store = MemoryStore({"a.bin": header(len(tokens)) + data if before else data})
    source = FORMAT.open(store, "a.bin", OpenOptions(layout=None if before else "uint16", eos_id=0))
    if tokens and 0 not in tokens:
        with pytest.raises(ConfigError, match="no token has the id"):
            _ = source.doc_starts
        return
    docs: list[list[int]] = []
    for i, token in enumerate(tokens):
        if not docs or (token == 0 if before else tokens[i - 1] == 0):
            docs.append([])
        docs[-1].append(token)
    assert [sample["tokens"].tolist() for sample in source] == docs
    if tokens:
        first = np.zeros(len(tokens), bool)
        first[source.doc_starts[:-1]] = True
        assert source.gather_starts(np.arange(len(tokens)), 1)[:, 0].tolist() == first.tolist()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".npz"])
def test_compressed_tokens_are_not_read_as_ids(tmp_path: Path, suffix: str) -> None:
    """Of any file `layout=` makes ids; these bytes are none."""
    ids, path = np.array([5, 7] * 8, "<u2"), tmp_path / f"train.bin{suffix}"
    if suffix == ".npz":
        with path.open("wb") as file:
            np.savez(file, ids=ids)
    else:
        compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix]
        path.write_bytes(compress(ids.tobytes()) + bytes(len(compress(ids.tobytes())) % 2))
    with pytest.raises(Unsupported, match="the file is compressed"):
        ps.open(path, layout="uint16", eos_id=7)
    other = tmp_path / f"plain.bin{suffix}"
    other.write_bytes(ids.tobytes())
    assert [doc["tokens"].tolist() for doc in ps.open(other, layout="uint16", eos_id=7)] == [[5, 7]] * 8


def test_what_is_not_known_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    np.arange(100, dtype="<u2").tofile(path)
    with pytest.raises(Unsupported, match="raw-tokens"):
        ps.open(path)
    for layout in (None, "int16", "npy", "llm.c"):
        with pytest.raises(ConfigError, match="uint16 for nanoGPT"):
            ps.open(path, format="raw-tokens", layout=layout)
    source: Any = ps.open(path, format="raw-tokens", layout="uint16")
    for ask in (lambda: source.doc_starts, lambda: len(source), lambda: source.gather_starts(np.array([0]), 3)):
        with pytest.raises(ConfigError, match="eos_id"):
            ask()
    assert ps.Chunk(10)(source)[2]["tokens"].tolist() == [*range(20, 30)]
    with pytest.raises(NotFound):
        ps.open(tmp_path / "no.bin", format="raw-tokens", layout="uint16")


@pytest.mark.parametrize("layout", ["uint8", "uint16", "uint32", "uint64"])
def test_widths(tmp_path: Path, layout: str) -> None:
    np.array([1, 200, 3], np.dtype(layout).newbyteorder("<")).tofile(tmp_path / "a.npy")
    source: Any = ps.open(tmp_path / "a.npy", format="raw-tokens", layout=layout)
    assert source.dtype == ("uint32" if layout == "uint64" else layout)
    assert source.tokens(0, 3).tolist() == [1, 200, 3]


@pytest.mark.parametrize("dtype", ["<i2", ">i4", "<u8", "|i1", ">u2"])
def test_arrays_of_any_integers(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2, 100], dtype))
    source: Any = ps.open(tmp_path / "a.npy")
    assert source.tokens(0, 3).tolist() == [1, 2, 100]
    assert source.gather(np.array([1]), 2).tolist() == [[2, 100]]
    assert source.dtype.isnative


def test_a_header_that_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(header(1) + b"\1\0")
    assert ps.open(tmp_path / "x.bin", layout="llm.c").recipe()["layout"] == "llm.c"
    ps.open(tmp_path / "x.bin", layout="uint16")
    with pytest.raises(ConfigError, match="contradicts"):
        ps.open(tmp_path / "x.bin", layout="uint32")


@pytest.mark.parametrize(
    ("data", "kind", "code"),
    [
        (header(3) + b"\0" * 4, Truncated, "raw-tokens.size"),
        (header(1) + b"\0" * 4, Corrupt, "raw-tokens.size"),
        (header(-1), Corrupt, "raw-tokens.size"),
        (header(0, version=2), Unsupported, "raw-tokens.version"),
        (header(0, magic=20_240_522), Unsupported, "raw-tokens.version"),
        (header(5)[:20], Truncated, "raw-tokens.size"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': 'O'   ", Corrupt, "raw-tokens.header"),
        (b"\x93NUMPY\x09\x00", Corrupt, "raw-tokens.header"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65_535, Corrupt, "raw-tokens.header"),
    ],
)
def test_damaged_headers(tmp_path: Path, data: bytes, kind: type[PenstockError], code: str) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    with pytest.raises(kind):
        ps.open(path, format="raw-tokens")
    findings = ps.verify(path, format="raw-tokens")
    assert [(one.code, one.severity) for one in findings] == [(code, "error")]
    assert findings[0].fix


@pytest.mark.parametrize("array", [np.zeros((2, 3), "u2"), np.zeros(3), np.array(["a"]), np.zeros((), "u2")])
def test_other_arrays_are_refused_and_not_sniffed(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(Unsupported, match="integers"):
        ps.open(tmp_path / "a.npy", format="raw-tokens")
    with pytest.raises(Unsupported, match="no format"):
        ps.open(tmp_path / "a.npy")


def test_a_pickle_in_an_array_is_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(Unsupported):
        ps.open(tmp_path / "a.npy", format="raw-tokens")


def test_what_is_no_id(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, -1], np.int32))
    source: Any = ps.open(tmp_path / "a.npy")
    with pytest.raises(Corrupt) as caught:
        source.tokens(0, 2)
    assert caught.value.found == "-1"
    assert [one.code for one in ps.verify(tmp_path / "a.npy")] == ["raw-tokens.id"]


def test_odd_sizes(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"123")
    with pytest.raises(Corrupt, match="uint16"):
        ps.open(tmp_path / "a.bin", format="raw-tokens", layout="uint16")
    (tmp_path / "a.bin").write_bytes(b"")
    source: Any = ps.open(tmp_path / "a.bin", format="raw-tokens", layout="uint16", eos_id=0)
    assert len(source) == source.num_tokens == 0
    options = {"format": "raw-tokens", "layout": "uint16"}
    assert [one.severity for one in ps.verify(tmp_path / "a.bin", **options)] == ["warning"]


def test_borders_are_found_once_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    np.tile(np.array([1, 2, 0], "<u2"), 20_000).tofile(tmp_path / "a.bin")
    options = OpenOptions(layout="uint16", eos_id=0)
    path = str(tmp_path / "a.bin")
    assert len(FORMAT.open(CountingStore(LocalStore()), path, options)) == 20_000
    store = CountingStore(LocalStore())
    again = FORMAT.open(store, path, options)
    assert again[19_999]["tokens"].tolist() == [1, 2, 0]
    assert store.read_bytes < 40_000
    assert again.place_of(1).extents == (Extent(path, 6, 6),)
    other = FORMAT.open(LocalStore(), path, OpenOptions(layout="uint16", eos_id=1))
    assert len(other) == 20_001
    assert other.fingerprint != again.fingerprint


def test_read_only(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="read-only"):
        ps.create(tmp_path / "a.bin", format="raw-tokens")
    assert not FORMAT.traits.write


@pytest.mark.parametrize(
    ("name", "beside"),
    [("token_ids_part_0000.npy", "labels_mask_part_0000.npy"), ("input_ids.npy", "label_mask.npy")],
)
def test_a_label_mask_of_olmo_is_a_plane(tmp_path: Path, name: str, beside: str) -> None:
    path, tokens, mask = (
        tmp_path / name,
        np.array(flat(DOCS), "<u2"),
        np.arange(len(flat(DOCS))) % 2,
    )
    tokens.tofile(path)
    bare: Any = ps.open(path, layout="uint16", eos_id=7)
    mask.astype(np.bool_).tofile(tmp_path / beside)
    source: Any = ps.open(path, layout="uint16", eos_id=7)
    assert list(source.planes) == ["loss_mask"]
    assert np.concatenate([one["loss_mask"] for one in source]).tolist() == mask.astype(bool).tolist()
    assert source.fingerprint != bare.fingerprint == ps.open(path, layout="uint16", eos_id=7, planes=None).fingerprint
    ps.convert(path, tmp_path / "a.pbin", layout="uint16", eos_id=7)
    made: Any = ps.open(tmp_path / "a.pbin")
    assert np.concatenate([one["loss_mask"] for one in made]).tolist() == mask.astype(bool).tolist()
    tokens.tofile(tmp_path / "other.npy")
    assert not hasattr(ps.open(tmp_path / "other.npy", format="raw-tokens", layout="uint16", eos_id=7), "planes")
    (tmp_path / beside).write_bytes(b"1")
    with pytest.raises(Truncated, match="different lengths"):
        ps.open(path, layout="uint16", eos_id=7)
    assert [one.code for one in ps.verify(path, layout="uint16")] == ["raw-tokens.loss-mask"]

"""What token formats share for reading: runs of tokens in a file."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._tokens import flags_of_starts
from penstock.errors import Unsupported
from penstock.formats import _sources
from penstock.formats._manifest import data_fingerprint
from penstock.formats.tokens.common import TokenFile
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from penstock.testing import CountingStore
from penstock.types import Manifest

IDS = np.arange(5000, dtype=np.uint16)


@pytest.fixture(params=["<u2", ">u2", "<u4", "u1"])
def stored(request: pytest.FixtureRequest) -> np.dtype[Any]:
    return np.dtype(request.param)


@pytest.fixture(params=["mmap", "pread"])
def file(request: pytest.FixtureRequest, tmp_path: Path, stored: np.dtype[Any]) -> TokenFile:
    path = tmp_path / "a"
    path.write_bytes(b"odd" + IDS.astype(stored).tobytes() + b"after")
    return TokenFile(LocalStore(), str(path), 3, 5000, stored, request.param)


def test_what_it_gives(file: TokenFile, stored: np.dtype[Any]) -> None:
    ids = IDS.astype(stored).astype(stored.newbyteorder("="))
    assert file.dtype == ids.dtype
    assert file.num_tokens == 5000
    for start, stop in ((0, 5000), (7, 7), (4990, 5000)):
        found = file.tokens(start, stop)
        assert found.dtype == ids.dtype
        assert found.tolist() == ids[start:stop].tolist()
        assert not found.flags.writeable
    starts = np.array([4000, 0, 17])
    for length in (0, 1, 1000):
        rows = file.gather(starts, length)
        assert rows.dtype == ids.dtype
        assert rows.tolist() == [ids[start : start + length].tolist() for start in starts.tolist()]
    assert file.gather(starts.astype(np.uint32), 2).shape == (3, 2)
    copy = pickle.loads(pickle.dumps(file))
    assert copy.gather(starts, 5).tolist() == file.gather(starts, 5).tolist()


def test_into_a_given_array(file: TokenFile, stored: np.dtype[Any]) -> None:
    ids = IDS.astype(stored)
    for count in (0, 3, 600):
        starts = np.arange(count) * 8
        wide = np.zeros((count, 5), np.int64)
        assert file.gather(starts, 5, wide) is wide
        assert wide.tolist() == [ids[start : start + 5].tolist() for start in starts.tolist()]
    with pytest.raises(ValueError, match="shape"):
        file.gather(np.array([0]), 5, np.zeros((2, 5), np.int64))


def test_what_it_refuses(file: TokenFile) -> None:
    for start, stop in ((-1, 3), (3, 2), (0, 5001), (5001, 5001)):
        with pytest.raises(IndexError):
            file.tokens(start, stop)
        with pytest.raises(IndexError):
            file.extent(start, stop)
    for starts, length in (([-1], 3), ([4998], 3), ([0], 5001), ([(1 << 63) - 1], 2)):
        with pytest.raises(IndexError):
            file.gather(np.array(starts), length)
    wrong: list[Any] = [np.array([1.0]), np.array([[1]]), np.array(["a"])]
    for starts in wrong:
        with pytest.raises(TypeError):
            file.gather(starts, 2)
    with pytest.raises(ValueError, match="-1 tokens"):
        file.gather(np.array([0]), -1)


def test_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    for read in ("mmap", "pread"):
        file = TokenFile(LocalStore(), str(tmp_path / "a"), 0, 0, np.dtype("<u2"), read)
        assert file.tokens(0, 0).tolist() == []
        assert file.gather(np.empty(0, np.int64), 9).shape == (0, 9)


def test_how_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(IDS.tobytes())
    store = CountingStore(LocalStore())
    file = TokenFile(store, str(path), 0, 5000, IDS.dtype)
    assert file.tokens(3, 6).tolist() == [3, 4, 5]
    assert store.read_bytes == 6
    with pytest.raises(Unsupported, match="pread"):
        TokenFile(store, str(path), 0, 5000, IDS.dtype, "mmap")
    memory = TokenFile(MemoryStore({"a": IDS.tobytes()}), "a", 0, 5000, IDS.dtype)
    assert memory.gather(np.array([9]), 2).tolist() == [[9, 10]]

    def no_map(*_: object) -> None:
        raise AssertionError("mapped")

    monkeypatch.setattr(LocalStore, "mmap", no_map)
    monkeypatch.setattr(_sources, "on_network", lambda _: True)
    assert TokenFile(LocalStore(), str(path), 0, 5000, IDS.dtype).tokens(0, 2).tolist() == [0, 1]
    monkeypatch.setattr(_sources, "on_network", lambda _: False)
    with pytest.raises(AssertionError, match="mapped"):
        TokenFile(LocalStore(), str(path), 0, 5000, IDS.dtype).tokens(0, 2)


def test_a_pickle_holds_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(IDS.tobytes())
    file = TokenFile(LocalStore(), str(tmp_path / "a"), 0, 5000, IDS.dtype)
    file.gather(np.array([0]), 100)
    assert len(pickle.dumps(file)) < 1000
    assert sys.getsizeof(file) < 1000


def test_fingerprint_of_a_side_file() -> None:
    store = MemoryStore({"a": b"1" * 100_000})
    sampled = data_fingerprint(store, "x", b"index", "a", None)
    first, second = (
        data_fingerprint(store, "x", b"index", "a", Manifest("x", 1, 1, block_digests={"data": (digest,)}))
        for digest in ("00", "01")
    )
    assert len({sampled, first, second, data_fingerprint(store, "y", b"index", "a", None)}) == 4
    assert data_fingerprint(store, "x", b"index", "a", Manifest("x", 1, 1)) == sampled


@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=12), length=st.integers(1, 6))
def test_flags_of_starts(lengths: list[int], length: int) -> None:
    doc_starts = np.cumsum([0, *lengths])
    first = np.zeros(doc_starts[-1], np.bool_)
    first[[start for start, own in zip(doc_starts, lengths, strict=False) if own]] = True
    starts = np.arange(max(0, len(first) - length + 1))
    expected = [first[start : start + length].tolist() for start in starts]
    assert flags_of_starts(doc_starts, starts, length).tolist() == expected
    with pytest.raises(IndexError):
        flags_of_starts(doc_starts, np.array([len(first)]), length)

"""Every seam of `penstock.abc`, each as something of ours fills it: the test of a seam has its name."""

from __future__ import annotations

import inspect
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.smoke.made import DOCUMENTS, FILES, LINES, MADE

import penstock as ps
import penstock.abc as seams
from penstock.executors import InlineExecutor
from penstock.formats import get_format
from penstock.order import GlobalOrder
from penstock.store import LocalStore
from penstock.testing import same
from penstock.types import OpenOptions

POSITIONS = np.arange(8)


def opened(name: str, folder: Path, **options: Any) -> Any:
    return ps.open(MADE[name](folder).path, **options)


def test_none_is_forgotten() -> None:
    """A new seam needs a test here, and one that is gone takes its test with it."""
    ours = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert ours - {"none_is_forgotten"} == {name for name in seams.__all__ if inspect.isclass(getattr(seams, name))}


def test_Source(tmp_path: Path) -> None:
    source = opened("jsonl", tmp_path)
    assert [source[index] for index in range(len(source))] == LINES
    assert source.get_batch([3, 0])["id"].tolist() == [3, 0]
    again = pickle.loads(pickle.dumps(source))
    assert (again[-1], again.fingerprint) == (LINES[-1], source.fingerprint)
    assert (source.children(), source.recipe()["path"]) == ({}, str(tmp_path / "a.jsonl"))
    assert source.schema is not None


def test_TokenSource(tmp_path: Path) -> None:
    source = opened("pbin", tmp_path)
    joined = np.concatenate(DOCUMENTS)
    assert (source.dtype, source.num_tokens, source.eos_id) == (np.uint16, len(joined), 0)
    assert source.doc_starts.tolist() == [0, 3, 5, 6, 10]
    assert source.tokens(2, 7).tolist() == joined[2:7].tolist()
    assert source.gather(np.array([0, 6]), 4).tolist() == [joined[:4].tolist(), joined[6:].tolist()]


def test_Packing(tmp_path: Path) -> None:
    windows = ps.Chunk(4)(opened("pbin", tmp_path))
    assert [windows[index]["tokens"].tolist() for index in range(len(windows))] == [[5, 6, 0, 7], [0, 0, 8, 9]]


def test_Stream(tmp_path: Path) -> None:
    stream = ps.Shuffle(opened("jsonl", tmp_path), seed=1)
    rows = stream.get_batch(POSITIONS)["id"].tolist()
    assert rows == [stream[position]["id"] for position in POSITIONS.tolist()]
    assert sorted(rows) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [stream.locate(position).index for position in POSITIONS.tolist()] == rows
    assert list(stream.children()) == ["source"]
    loader = ps.Loader(stream, global_batch=2)
    first = list(islice(loader, 1))
    state = loader.state_dict()
    other = ps.Loader(stream, global_batch=2)
    other.load_state_dict(state)
    assert first[0]["id"].tolist() + next(iter(other))["id"].tolist() == rows[:4]


def test_Order() -> None:
    order = GlobalOrder(5, seed=1)
    indices = order.order(np.arange(5, 10))
    assert sorted(indices.tolist()) == [0, 1, 2, 3, 4]
    assert [order.order_one(position) for position in range(5, 10)] == indices.tolist()
    assert order.inverse(indices, 1).tolist() == [5, 6, 7, 8, 9]


def test_Store(tmp_path: Path) -> None:
    store, path = LocalStore(), str(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"0123456789")
    assert (store.size(path), store.get(path, 2, 3)) == (10, b"234")
    assert store.get_ranges(path, [(8, 10), (0, 1)]) == [b"89", b"0"]
    assert (store.exists(path), store.is_folder(str(tmp_path)), list(store.list(str(tmp_path)))) == (True, True, [path])
    store.delete(path)
    assert not store.exists(path)


def test_Staged(tmp_path: Path) -> None:
    store, path = LocalStore(), str(tmp_path / "a")
    staged = store.stage(path)
    assert (staged.write(b"..cd"), staged.tell()) == (4, 4)
    staged.write_at(0, b"ab")
    assert staged.read_at(1, 2) == b"bc"
    assert not store.exists(path)
    staged.commit()
    assert store.get(path) == b"abcd"
    dropped = store.stage(path, overwrite=True)
    dropped.abort()
    assert list(store.list(str(tmp_path))) == [path]


def test_Format(tmp_path: Path) -> None:
    made, one, store = MADE["pbin"](tmp_path), get_format("pbin"), LocalStore()
    path = str(made.path)
    assert one.sniff(store, path).matches
    assert len(one.open(store, path, OpenOptions())) == len(made.samples)
    assert list(one.check(store, path, OpenOptions(), "full")) == []
    assert one.repair(store, path, OpenOptions(), [], write=False) == []


def test_Writer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    writer = ps.create(path, format="jsonl")
    writer.write({"id": 0})
    writer.write_batch({"id": np.array([1, 2])})
    assert not path.exists()
    assert writer.commit().num_samples == 3
    with pytest.raises(KeyError), ps.create(tmp_path / "b.jsonl", format="jsonl") as writer:
        raise KeyError
    assert not (tmp_path / "b.jsonl").exists()


def test_Executor() -> None:
    with InlineExecutor() as executor:
        assert list(executor.map(len, ["a", "", "abc"])) == [1, 0, 3]


def test_SupportsMmap(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    store = LocalStore()
    assert isinstance(store, seams.SupportsMmap)
    assert bytes(store.mmap(str(tmp_path / "a"))) == b"abc"


def test_SupportsKeys(tmp_path: Path) -> None:
    source = opened("webdataset", tmp_path)
    assert isinstance(source, seams.SupportsKeys)
    assert [source.index_of(source.key_of(index)) for index in range(4)] == [0, 1, 2, 3]


def test_SupportsPlaces(tmp_path: Path) -> None:
    windows = ps.Chunk(4)(opened("pbin", tmp_path))
    assert isinstance(windows, seams.SupportsPlaces)
    assert [document for document, _, _ in windows.place_of(1).documents] == [1, 2, 3]


def test_SupportsBlocks(tmp_path: Path) -> None:
    source = opened("webdataset", tmp_path)
    assert source.block_starts.tolist() == [0, 2, 4]
    stream = ps.Shuffle(source, seed=1, mode="blocks")
    assert sorted(stream.locate(position).index for position in range(4)) == [0, 1, 2, 3]


def test_SupportsFiles(tmp_path: Path) -> None:
    source = opened("folder", tmp_path)
    assert isinstance(source, seams.SupportsFiles)
    assert source.get("2.txt") == FILES[2]["txt"].encode()


def test_SupportsDocumentFlags(tmp_path: Path) -> None:
    source = opened("megatron", tmp_path)
    assert isinstance(source, seams.SupportsDocumentFlags)
    assert source.gather_starts(np.array([0]), 10).tolist() == [[n in (0, 3, 5, 6) for n in range(10)]]


def test_SupportsPrefetch(tmp_path: Path) -> None:
    stream = ps.Shuffle(opened("mds", tmp_path), seed=1)
    assert isinstance(stream, seams.SupportsPrefetch)
    resolved = stream.resolve(POSITIONS)
    if stream.prefetch is not None:
        stream.prefetch(resolved.reshape(-1, 2))
    assert same(stream.get_resolved(resolved), stream.get_batch(POSITIONS))
    assert same(stream.get_resolved_samples(resolved[:2]), [stream[0], stream[1]])


def test_SupportsSubstitutes(tmp_path: Path) -> None:
    stream = ps.Shuffle(opened("jsonl", tmp_path), seed=1)
    assert isinstance(stream, seams.SupportsSubstitutes)
    assert stream.substitute(3, 0) == stream.substitute(3, 0) != 3


def test_SupportsRuns(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2) as writer:
        assert isinstance(writer, seams.SupportsRuns)
        writer.write_run(np.array([1, 2, 3], np.uint16), np.array([1, 2]))
    source = ps.open(tmp_path / "a.pbin")
    assert [source[index]["tokens"].tolist() for index in range(2)] == [[1], [2, 3]]

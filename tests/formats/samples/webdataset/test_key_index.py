"""`index.keys`: keys of any number of samples by a few small reads, without `index.sqlite`."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import Corrupt, FormatError, NotFound, PenstockError
from penstock.formats.samples.webdataset import key_index
from penstock.formats.samples.webdataset.key_index import (
    ENTRY_BYTES,
    HEADER_BYTES,
    KeyIndex,
    KeyPlace,
    entries_of,
    write_keys,
)
from penstock.formats.samples.webdataset.shards import ShardTable, scan_shard
from penstock.prepare.energon.run import prepare_webdataset
from penstock.testing import FileServer

from .conftest import write_shards, write_tar

UUID = "0" * 36


def table(keys: list[str], start: int = 0) -> ShardTable:
    """Samples of 512 bytes, without parts."""
    offsets = np.arange(start, start + 512 * (len(keys) + 1), 512)
    none = np.zeros(0, np.int64)
    return ShardTable(keys, offsets, np.zeros(len(keys) + 1, np.int64), [], none, none)


def keys_of(shard: int, count: int) -> list[str]:
    return [f"{shard}/ä{place:07d}" for place in range(count)]


def index_bytes(tables: list[ShardTable]) -> bytes:
    pieces: list[bytes] = []
    write_keys(pieces.append, UUID, [entries_of([(number, one)]) for number, one in enumerate(tables)])
    return b"".join(pieces)


class Counted:
    """Bytes that count how often and how much is read of them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[int] = []

    def __call__(self, start: int, stop: int) -> bytes:
        self.reads.append(stop - start)
        return self.data[start:stop]


def opened(tables: list[ShardTable], data: bytes) -> tuple[KeyIndex, Counted]:
    counted = Counted(data)
    return KeyIndex(counted, "index.keys", [one.num_samples for one in tables], UUID), counted


@pytest.mark.parametrize("counts", [[0], [1], [3, 0, 5], [700, 1, 4000]])
def test_each_key_is_found_where_it_is(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [table(keys_of(shard, count), 512 * shard) for shard, count in enumerate(counts)]
    whole = index_bytes(tables)
    monkeypatch.setattr(key_index, "_MERGED", 50)  # many passes give the same bytes
    assert index_bytes(tables) == whole
    index, _ = opened(tables, whole)
    for shard, one in enumerate(tables):
        for place, key in enumerate(one.keys):
            start = int(one.offsets[place])
            assert index.find(key) == [KeyPlace(shard, place, start, start + 512)]
    assert index.find("no such key") == index.find("") == index.find("\ud800") == []


def test_reads_of_a_key_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_KEPT_BYTES", 1 << 10)
    reads: dict[int, tuple[int, int]] = {}
    for count in (20_000, 200_000):
        tables = [table(keys_of(0, count))]
        index, counted = opened(tables, index_bytes(tables))
        counted.reads.clear()
        for key in tables[0].keys[:: count // 20]:
            assert index.find(key)
        reads[count] = len(counted.reads), max(counted.reads)
    assert reads[20_000][0] == reads[200_000][0] == 2 * 20
    assert max(most for _, most in reads.values()) < 256 * ENTRY_BYTES


def test_a_key_that_comes_twice() -> None:
    tables = [table(["a", "b"]), table(["b", "c"])]
    index, _ = opened(tables, index_bytes(tables))
    assert [(one.shard, one.place) for one in index.find("b")] == [(0, 1), (1, 0)]


def test_damage_is_refused_and_never_read_beyond() -> None:
    tables = [table(keys_of(0, 300))]
    whole = index_bytes(tables)
    rng = np.random.default_rng(1)
    for at in [*range(HEADER_BYTES), *rng.integers(HEADER_BYTES, len(whole), 300).tolist()]:
        data = bytearray(whole)
        data[at] ^= 0xFF
        for cut in (len(data), at):
            with contextlib.suppress(Corrupt):
                index, _ = opened(tables, bytes(data[:cut]))
                for key in tables[0].keys[::10]:
                    assert all(one.shard == 0 and 0 <= one.place < 300 for one in index.find(key))


# --- in a dataset ------------------------------------------------------------------------------------------------


def prepared(root: Path, shards: int = 3, samples: int = 4, **how: Any) -> Path:
    write_shards(root, shards, samples)
    prepare_webdataset(root, split_ratio=(1, 0, 0), **how)
    return root


def files_of(root: Path) -> dict[str, bytes]:
    return {f"set/{one.relative_to(root)}": one.read_bytes() for one in sorted(root.rglob("*")) if one.is_file()}


def requests(server: FileServer) -> list[tuple[str, str]]:
    return [(method, name) for method, name, _ in server.log]


def test_requests_of_a_remote_dataset_do_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[tuple[str, str]]] = []
    for samples in (20, 200):
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / f"cache-{samples}"))
        root = prepared(tmp_path / f"set-{samples}", 2, samples)
        with FileServer(files_of(root)) as server:
            source: Any = ps.open(f"{server.url}/set", format="webdataset", raw=True, split="train")
            assert source.index_of("k1_7") == samples + 7
            server.log.clear()
            assert source.index_of("k1_9") == samples + 9
            assert source.get("k1_3.json") == b'{"json": 3}'
            with pytest.raises(NotFound):
                source.get("k1_3.png")
            with pytest.raises(NotFound):
                source.index_of("nothing")
            made.append(requests(server))
        assert not any("sqlite" in name or name.endswith(".idx") for _, name in made[-1])
    assert len(made[0]) == len(made[1]) <= 8


@pytest.mark.parametrize("keys", [True, False])
def test_every_reader_works_without_sqlite(keys: bool, tmp_path: Path) -> None:
    root = prepared(tmp_path / "set", sqlite=False)
    other = prepared(tmp_path / "other")
    assert not (root / ".nv-meta" / "index.sqlite").exists()
    if not keys:
        (root / ".nv-meta" / "index.keys").unlink()
    source: Any = ps.open(root, raw=True, split="train")
    assert [source.index_of(source.key_of(index)) for index in range(12)] == list(range(12))
    assert source.get("k2_1.txt") == b'{"txt": 1}'
    for wrong in ("k2_1", "k2_1.", "k9_1.txt", "k2_1.png"):
        with pytest.raises(NotFound):
            source.get(wrong)
    joined: Any = ps.Join([source, ps.open(other, raw=True, split="train")])
    assert len(joined) == 12
    with_aux: Any = ps.Map(ps.WithAux(source, images=source), _with_image)
    assert with_aux[5]["image"] == b'{"json": 1}'
    (root / ".nv-meta" / "split.yaml").write_text('exclude: ["s_1.tar/k1_2"]\nsplit_parts: {train: ["s_{0..2}.tar"]}\n')
    assert len(ps.open(root, raw=True, split="train")) == 11
    assert ps.verify(root, depth="full") == []


def _with_image(sample: Any, images: Any) -> Any:
    return {**sample, "image": images.get(f"{sample['__key__']}.json")}


def test_keys_that_repeat_name_no_sample(tmp_path: Path) -> None:
    for shard in range(2):
        write_tar(tmp_path / f"s_{shard}.tar", {"a.txt": b"1", f"b{shard}.txt": b"2"})
    summary = prepare_webdataset(tmp_path, split_ratio=(1, 0, 0), sqlite=False)
    assert any("1 samples share a key with others" in one for one in summary.warnings)
    for name in ("index.keys", None):
        source: Any = ps.open(tmp_path, raw=True, split="train")
        assert (source.index_of("b0"), source.index_of("b1")) == (1, 3)
        with pytest.raises(Corrupt, match="is in two samples"):
            source.index_of("a")
        if name:
            (tmp_path / ".nv-meta" / name).unlink()


def test_an_index_of_other_data_does_not_count(tmp_path: Path) -> None:
    root = prepared(tmp_path / "set", sqlite=False)
    stale = (root / ".nv-meta" / "index.keys").read_bytes()
    shutil.rmtree(root)
    write_tar(root / "s_0.tar", [(f"k2_{place}.txt", b"x" * 700) for place in range(12)])
    prepare_webdataset(root, split_ratio=(1, 0, 0), sqlite=False)
    (root / ".nv-meta" / "index.keys").write_bytes(stale)
    source: Any = ps.open(root, raw=True, split="train")
    assert source.index_of("k2_3") == 3
    assert source.get("k2_3.txt") == b"x" * 700


@pytest.mark.parametrize("damage", ["entry", "table", "cut", "header", "stale"])
def test_a_damaged_index_is_found_and_made_again(damage: str, tmp_path: Path) -> None:
    root = prepared(tmp_path / "set", sqlite=damage == "cut")
    path = root / ".nv-meta" / "index.keys"
    whole = path.read_bytes()
    assert ps.verify(root, depth="full") == []
    changed = bytearray(whole)
    changed[{"entry": HEADER_BYTES + 16, "table": len(whole) - 20, "cut": 0, "header": 1, "stale": 30}[damage]] ^= (
        damage != "cut"
    )
    path.write_bytes(changed[:-8] if damage == "cut" else changed)
    found = ps.verify(root, depth="full" if damage in ("entry", "table") else "quick")
    severity = "warning" if damage == "stale" else "error"
    assert {(one.code, one.severity) for one in found} == {("webdataset.keys", severity)}
    assert all(one.done for one in ps.repair(root, write=True))
    assert path.read_bytes() == whole
    for backup in root.rglob("*.bak*"):
        backup.unlink()
    assert ps.verify(root, depth="full") == []


def test_shards_that_changed_are_no_other_sample(tmp_path: Path) -> None:
    root = prepared(tmp_path / "set", sqlite=False)
    source: Any = ps.open(root, raw=True, split="train")
    write_tar(root / "s_1.tar", [(f"other_{place}.txt", b"{}") for place in range(8)])
    with pytest.raises(FormatError):
        source.get("k1_2.txt")


def test_the_first_of_a_part_that_repeats(tmp_path: Path) -> None:
    write_tar(tmp_path / "s_0.tar", [("a.txt", b"first"), ("a.txt", b"last")])
    read: list[bytes] = []
    for sqlite in (True, False):
        prepare_webdataset(tmp_path, split_ratio=(1, 0, 0), sqlite=sqlite, overwrite=True)
        source: Any = ps.open(tmp_path, raw=True, split="train")
        read.append(source.get("a.txt"))
    assert read == [b"first", b"first"]


def test_what_is_left_out_of_a_shard_needs_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = prepared(tmp_path / "set", sqlite=False)
    (root / ".nv-meta" / "index.keys").unlink()
    left_out = '["s_1.tar/k1_2", "s_1.tar/k1_0", "s_1.tar/nothing"]'
    splits = f'exclude: {left_out}\nsplit_parts: {{train: ["s_{{0..2}}.tar"]}}\n'
    (root / ".nv-meta" / "split.yaml").write_text(splits)
    scanned: list[str] = []

    def scan(store: Any, path: str) -> ShardTable:
        scanned.append(Path(path).name)
        return scan_shard(store, path)

    monkeypatch.setattr("penstock.formats.samples.webdataset.lookup.scan_shard", scan)
    source: Any = ps.open(root, raw=True, split="train")
    assert [source.key_of(index) for index in range(4, 6)] == ["k1_1", "k1_3"]
    assert scanned == ["s_1.tar"]


def test_a_derived_index_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = prepared(tmp_path / "set", sqlite=False)
    (root / ".nv-meta" / "index.keys").unlink()
    source: Any = ps.open(root, raw=True, split="train")
    assert source.index_of("k0_3") == 3

    def fail(*_: Any) -> None:
        raise PenstockError("scanned again")

    monkeypatch.setattr("penstock.formats.samples.webdataset.lookup.scan_shard", fail)
    again: Any = ps.open(root, raw=True, split="train")
    assert again.index_of("k2_0") == 8
    os.utime(root / "s_2.tar", (1, 1))
    changed: Any = ps.open(root, raw=True, split="train")
    with pytest.raises(PenstockError, match="scanned again"):
        changed.index_of("k2_0")

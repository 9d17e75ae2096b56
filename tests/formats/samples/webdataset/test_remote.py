"""Prepared datasets on a web server, and datasets that are prepared where they lie, in an object store."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import prepare_webdataset

import penstock
from penstock.store import resolve
from penstock.testing import FileServer
from penstock.testing.stores import put

from .conftest import write_tar


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for shard in range(3):
        members = {f"k{shard}_{place}.{part}": bytes([place]) * 9000 for place in range(40) for part in ("a", "b")}
        write_tar(tmp_path / "set" / f"s_{shard}.tar", members)
    return tmp_path / "set"


@pytest.fixture
def web() -> Iterator[FileServer]:
    with FileServer() as server:
        yield server


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_over_the_web_ranges_are_read(shards: Path, web: FileServer) -> None:
    prepare_webdataset(shards, split_ratio=(1, 0, 0))
    local: Any = penstock.open(shards, raw=True)
    web.files.update({f"set/{name}": data for name, data in files_in(shards).items()})
    source: Any = penstock.open(f"{web.url}/set", format="webdataset", raw=True)
    assert source[50]["a"] == local[50]["a"]
    assert source.get("k2_7.b") == local.get("k2_7.b")
    assert source.index_of("k1_3") == local.index_of("k1_3") == 43
    read = [(path, place) for _, path, place in web.log if path.endswith(".tar") and place is not None]
    assert 0 < sum(stop - start for _, (start, stop) in read) < 100_000
    assert source.fingerprint == local.fingerprint
    assert local.preferred_mode == "global"
    assert source.preferred_mode == penstock.open(f"{web.url}/set", format="webdataset").preferred_mode == "blocks"
    places = np.array([0, 119, 60, 61, 3])
    assert pickle.loads(pickle.dumps(source)).get_batch(places)["b"] == local.get_batch(places)["b"]


def test_over_the_web_damage_is_found(shards: Path, web: FileServer) -> None:
    prepare_webdataset(shards, split_ratio=(1, 0, 0))
    web.files.update({f"set/{name}": data for name, data in files_in(shards).items()})
    assert penstock.verify(f"{web.url}/set", depth="full") == []
    web.files["set/s_1.tar"] = web.files["set/s_1.tar"][:10_000] + bytes([1]) * 50_000
    found = penstock.verify(f"{web.url}/set", depth="full", format="webdataset")
    assert {one.code for one in found} == {"webdataset.index", "webdataset.shard"}
    assert all("s_1.tar" in one.path for one in found)


@pytest.mark.parametrize("base", ["s3://bucket", "memory://remote"])
def test_prepared_where_it_lies(shards: Path, base: str, request: pytest.FixtureRequest) -> None:
    if base.startswith("s3"):
        request.getfixturevalue("s3_server")
    store, url = resolve(f"{base}/prepare-{shards.parent.name}")
    for name, data in files_in(shards).items():
        put(store, f"{url}/{name}", data)
    there = prepare_webdataset(url, split_ratio=(2, 1, 0), media=None)
    here = prepare_webdataset(shards, split_ratio=(2, 1, 0))
    assert (there.shard_counts, there.uuid) == (here.shard_counts, here.uuid)
    for name, data in files_in(shards).items():
        assert store.get(f"{url}/{name}") == data, name
    source: Any = penstock.open(url, format="webdataset", split="val", raw=True)
    assert [sample["__key__"] for sample in source] == [f"k2_{place}" for place in range(40)]
    assert source.get("k0_3.a") == bytes([3]) * 9000

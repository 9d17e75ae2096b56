"""What the hosts of a run fetch of a remote dataset, in an epoch of whole blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import CachedStore, RemoteStore, replace

import penstock as ps
from penstock.formats import get_format
from penstock.testing import FileServer
from penstock.types import OpenOptions, Sample

LANES, BATCH = 8, 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    folder = tmp_path_factory.mktemp("locality") / "set"
    rng = np.random.default_rng(1)
    with ps.create(str(folder), format="mds", columns={"id": "int", "data": "bytes"}, size_limit=12_000) as writer:
        for number in range(3200):
            writer.write({"id": number, "data": rng.bytes(int(rng.integers(200, 400)))})
    with FileServer({f"set/{path.name}": path.read_bytes() for path in folder.iterdir()}) as one:
        yield one


def opened(server: FileServer, folder: Path, budget_bytes: int | None = None) -> tuple[Any, CachedStore]:
    store = CachedStore(RemoteStore(server.url), str(folder), budget_bytes)
    return get_format("mds").open(store, f"{server.url}/set", OpenOptions()), store


@pytest.mark.parametrize("mode", ["shuffled", "in order"])
def test_hosts_share_an_epoch(server: FileServer, tmp_path: Path, mode: str) -> None:
    total_bytes = sum(len(data) for path, data in server.files.items() if path.endswith(".mds"))
    index_bytes = len(server.files["set/index.json"])
    runs: list[list[list[int]]] = []
    for world in (1, 2, 4, 8):
        server.log.clear()
        rows: list[list[int]] = []
        fetched_bytes = 0
        for rank in range(world):
            source, store = opened(server, tmp_path / f"{world}.{rank}", 2 * total_bytes // world)
            if mode == "shuffled":
                stream = ps.Shuffle(source, seed=3, mode="blocks", lanes=LANES, open_blocks=4)
            else:
                stream = ps.Sequential(source, lanes=LANES)
            loader = ps.Loader(stream, BATCH, rank=rank, world=world, workers=0)
            rows.append(
                [
                    index
                    for _, batch in zip(range(3200 // BATCH), loader, strict=False)
                    for index in batch["id"].tolist()
                ]
            )
            fetched_bytes += store.stats().fetched_bytes - index_bytes
        assert fetched_bytes <= (1.01 if mode == "shuffled" else 1.1) * total_bytes
        gets = Counter((path, place) for method, path, place in server.log if method == "GET" and path.endswith(".mds"))
        partly = {path for path, place in gets if place != (0, len(server.files[path.lstrip("/")]))}
        assert len(partly) <= (LANES - 1 if mode == "shuffled" and world > 1 else 0)
        assert max(gets.values()) <= 2  # at the border of two lanes
        runs.append([[row[at] for at in range(len(row))] for row in zip(*rows, strict=True)])
    orders = [[index for row in run for index in row] for run in runs]
    assert sorted(orders[0]) == list(range(3200))
    assert all(order == orders[0] for order in orders)


def test_a_file_comes_whole_where_what_is_expected_of_it_costs_as_much(tmp_path: Path) -> None:
    size_bytes = 3 << 20
    with FileServer({"few": bytes(size_bytes), "many": bytes(size_bytes)}) as server:
        store = CachedStore(RemoteStore(server.url), str(tmp_path))
        few, many = f"{server.url}/few", f"{server.url}/many"
        store.prefetch({few: (5, 10_000), many: (6, 10_000)})
        store.prefetch({many: (7, 10_000)})
        for path in (few, many):
            assert store.get_ranges(path, [(50, 60)]) == [bytes(10)]
        assert server.gets() == [(50, 60), (0, size_bytes)]


def next_of(sample: Sample) -> Sample:
    return {"id": sample["id"] + 1}


def test_what_is_expected_changes_no_sample(server: FileServer, tmp_path: Path) -> None:
    source, store = opened(server, tmp_path)
    plain, _ = opened(server, tmp_path / "other")
    batches = np.random.default_rng(2).integers(0, len(source), (5, 7))
    mapped = ps.Map(source, next_of)
    requests = store.stats().requests
    for whole in (False, True):
        mapped.prefetch(batches, whole=whole)
        source.prefetch(batches[:0], whole=whole)
    assert store.stats().requests == requests
    for batch in batches:
        assert (source.get_batch(batch)["id"] == batch).all()
        assert mapped.get_batch(batch)["id"].tolist() == [index + 1 for index in plain.get_batch(batch)["id"].tolist()]


def test_copies_beyond_those_that_are_mapped_are_not_fetched_again(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(monkeypatch, "most_mapped", 2)
    source, store = opened(server, tmp_path)
    source.prefetch(np.arange(len(source)).reshape(-1, BATCH), whole=True)
    everything = np.arange(len(source))
    source.get_batch(everything)
    fetched_bytes = store.stats().fetched_bytes
    assert (source.get_batch(everything)["id"] == everything).all()
    assert store.stats().fetched_bytes == fetched_bytes

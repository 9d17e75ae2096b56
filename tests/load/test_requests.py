"""What hosts and ranks ask a server for: each shard once a host, no sizes that an index states, nothing for a state."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.formats import get_format
from penstock.store.cache import CachedStore
from penstock.store.remote import RemoteStore
from penstock.testing import FileServer
from penstock.types import OpenOptions

PER_SHARD, HOSTS = 4, 64
TEXT = bytes(range(97, 123)).decode() * 20
OPTIONS: dict[str, dict[str, Any]] = {
    "mds": {"columns": {"id": "int", "text": "str"}, "size_limit": 2800},
    "mds, compressed": {"columns": {"id": "int", "text": "str"}, "size_limit": 2800, "compression": "zstd"},
    "mds, with hashes": {"columns": {"id": "int", "text": "str"}, "size_limit": 2800, "hashes": ["sha1"]},
    "csv": {"columns": {"id": "int", "text": "str"}, "size_limit": 2800},
    "json-shards": {"columns": {"id": "int", "text": "str"}, "size_limit": 2800},
    "webdataset": {"maxcount": 4},
    "flat-tokens": {"chunk_tokens": 400, "split": "train"},
    "pbin": {"token_bytes": 2},
}


def write(path: Path, what: str, shards: int) -> str:
    """A dataset of so many shards; returns its format."""
    format = what.partition(",")[0]
    with ps.create(path, format=format, **OPTIONS[what]) as writer:
        for number in range(shards * PER_SHARD):
            if format in ("flat-tokens", "pbin"):
                writer.write({"tokens": np.full(100, number % 1000, np.uint16)})
            elif format == "webdataset":
                writer.write({"__key__": f"{number}", "txt": TEXT})
            else:
                writer.write({"id": number, "text": TEXT})
    return format


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str, int], tuple[FileServer, str]]]:
    with FileServer() as server:

        def make(what: str, shards: int) -> tuple[FileServer, str]:
            name = "set.pbin" if what == "pbin" else "set"
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            format = write(tmp_path / name, what, shards)
            server.files.clear()
            for path in tmp_path.rglob("*"):
                if path.is_file():
                    server.files[str(path.relative_to(tmp_path))] = path.read_bytes()
            return server, format

        yield make


def opened(server: FileServer, format: str, cache: Path) -> Any:
    name = "set.pbin" if format == "pbin" else "set"
    store = CachedStore(RemoteStore(server.url), str(cache))
    return get_format(format).open(store, f"{server.url}/{name}", OpenOptions(raw=format == "webdataset"))


def is_data(path: str) -> bool:
    """Whether a path is one of a shard, and not of an index."""
    last = path.rpartition("/")[2]
    return last.startswith("shard") or path.endswith((".tar", ".pbin")) or last.replace(".", "").isdigit()


def read_all(source: Any) -> None:
    stream = ps.Shuffle(source, seed=1, mode="blocks", lanes=2, open_blocks=2)
    loader = ps.Loader(stream, 8, rank=0, world=1, workers=0)
    for _, _batch in zip(range(len(source) // 8), loader, strict=False):
        pass
    loader.state_dict()


@pytest.mark.parametrize("what", OPTIONS)
def test_requests_of_two_ranks_of_a_host(what: str, serve: Any, tmp_path: Path) -> None:
    server, format = serve(what, 10)
    source = opened(server, format, tmp_path / "cache")
    server.log.clear()
    read_all(source)
    first = Counter(method for method, path, _ in server.log if is_data(path))
    shards = len({path for _, path, _ in server.log if is_data(path)})
    second = opened(server, format, tmp_path / "cache")
    server.log.clear()
    read_all(second)
    again = Counter(method for method, path, _ in server.log if is_data(path))
    if format in ("webdataset", "flat-tokens", "pbin"):
        assert first["HEAD"] <= (format == "pbin"), first  # nothing states its size
        assert again.total() <= first.total()
        return
    assert shards == sum(map(is_data, server.files)) >= 8
    assert first["HEAD"] == 0, first
    assert first["GET"] == shards, first  # the fingerprint is that of the side file
    assert again == {}


@pytest.mark.parametrize("what", ["webdataset", "flat-tokens", "mds"])
def test_no_size_is_asked_for_a_shard(what: str, serve: Any, tmp_path: Path) -> None:
    heads: list[int] = []
    for shards in (4, 40):
        server, format = serve(what, shards)
        source = opened(server, format, tmp_path / f"cache-{shards}")
        server.log.clear()
        read_all(source)
        heads.append(sum(method == "HEAD" for method, _, _ in server.log))
    assert heads[0] == heads[1] <= 2, heads


@pytest.mark.parametrize(("shard_bytes", "worlds"), [(1 << 19, (1, 8, HOSTS)), (1 << 21, (8,))])
def test_many_hosts_fetch_the_dataset_once_with_their_first_state(
    shard_bytes: int, worlds: tuple[int, ...], tmp_path: Path
) -> None:
    # Shards that lanes cut anywhere, of samples of many sizes: each border of lanes is in a shard that two hosts read.
    with ps.create(tmp_path / "set", format="mds", columns={"data": "bytes"}, size_limit=shard_bytes) as writer:
        for number in range(5 * HOSTS):
            writer.write({"data": bytes([number % 251]) * (shard_bytes // 40 + number * 7919 % (shard_bytes // 20))})
    with FileServer() as server:
        for path in (tmp_path / "set").iterdir():
            server.files[f"set/{path.name}"] = path.read_bytes()
        total_bytes = sum(len(data) for path, data in server.files.items() if is_data(path))
        shards = sum(map(is_data, server.files))
        for hosts in worlds:
            server.log.clear()
            fetched_bytes = [hosts_read(server, hosts, host, tmp_path / f"{hosts}-{host}") for host in range(hosts)]
            assert sum(fetched_bytes) <= 1.1 * total_bytes, hosts
            asked = Counter(method for method, path, _ in server.log if is_data(path))
            assert asked["HEAD"] == 0
            assert asked["GET"] <= 2 * shards + 3 * (hosts if hosts == 1 else HOSTS), hosts
            assert len(server.log) - asked.total() <= 8 * hosts, hosts  # index and side file, and the other rank


def hosts_read(server: FileServer, hosts: int, host: int, cache: Path) -> int:
    """Bytes of all kinds that a host fetches for an epoch and its state; the state asks for no data."""
    source = opened(server, "mds", cache)
    stream = ps.Shuffle(source, seed=3, mode="blocks", lanes=HOSTS)
    with ps.Loader(stream, HOSTS, rank=host, world=hosts, workers=0) as loader:
        batches = iter(loader)
        for _ in range(len(source) // HOSTS):
            next(batches)
        before = len(server.log)
        loader.state_dict()
        assert not [one for one in server.log[before:] if is_data(one[1])]
        fetched_bytes: int = source.folder.store.stats().fetched_bytes
    other = opened(server, "mds", cache)  # another rank of the host
    before = len(server.log)
    ps.Loader(ps.Shuffle(other, seed=3, mode="blocks", lanes=HOSTS), HOSTS, rank=host, world=hosts).state_dict()
    assert not [one for one in server.log[before:] if not one[1].endswith("index.json")]
    return fetched_bytes

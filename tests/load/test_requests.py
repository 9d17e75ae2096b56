"""What hosts and ranks ask a server for: each shard once a host, no sizes that an index states, nothing for a state."""

from __future__ import annotations

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

SHARDS, PER_SHARD, HOSTS = 256, 4, 64
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
    if format in ("webdataset", "flat-tokens", "pbin"):  # nothing states their sizes: a first look says them
        assert first["HEAD"] <= 1 + shards, first
        assert again.total() <= first.total()
        return
    assert shards == sum(map(is_data, server.files)) >= 8
    assert first["HEAD"] == 0, first
    assert first["GET"] <= shards + 64, first  # a fingerprint looks at 4 places of 16 files
    assert again == {}


def test_many_hosts_fetch_the_dataset_once_with_their_first_state(serve: Any, tmp_path: Path) -> None:
    server, format = serve("mds", SHARDS)
    sizes = {path: len(data) for path, data in server.files.items()}
    total_bytes = sum(size for path, size in sizes.items() if is_data(path))
    for hosts in (4, HOSTS):
        fetched_bytes = state_bytes = 0
        for host in range(hosts):
            source = opened(server, format, tmp_path / f"{hosts}-{host}")
            stream = ps.Shuffle(source, seed=3, mode="blocks", lanes=HOSTS, open_blocks=2)
            loader = ps.Loader(stream, HOSTS, rank=host, world=hosts, workers=0)
            batches = iter(loader)
            for _ in range(SHARDS * PER_SHARD // HOSTS):
                next(batches)
            fetched_bytes += source._folder.store.stats().fetched_bytes - sizes["set/index.json"]
            before = source._folder.store.stats().fetched_bytes
            loader.state_dict()
            state_bytes += source._folder.store.stats().fetched_bytes - before
            other = opened(server, format, tmp_path / f"{hosts}-{host}")  # another rank of the host
            server.log.clear()
            ps.Loader(
                ps.Shuffle(other, seed=3, mode="blocks", lanes=HOSTS), HOSTS, rank=host, world=hosts, workers=0
            ).state_dict()
            assert not [one for one in server.log if is_data(one[1])]
        assert fetched_bytes <= 1.1 * total_bytes
        assert state_bytes <= hosts * 16 * 4 * 4096 + hosts * sizes["set/index.json"]

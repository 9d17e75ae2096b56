"""What hosts and ranks ask a server for: each shard once a host, no sizes that an index states, nothing for a state."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore.store
import pyarrow
import pyarrow.parquet
import pytest
from tests.internals import CachedStore, Flavored, RemoteStore, place_of, put, replace
from tests.store.objects import counted_requests

import penstock as ps
from penstock.formats import get_format
from penstock.testing import FileServer
from penstock.testing.cluster import upload
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


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "subflavors": lambda source: Flavored(source, {"a": 1}),
    "epochs": lambda source: ps.Epochs({"a": (source, 1)}),
    "epochs of a stream": lambda source: ps.Epochs({"a": (ps.Sequential(source), 1)}),
    "groups": lambda source: ps.PackByLength(source, 1, np.ones(len(source), np.int64), name="x"),
    "take": lambda source: ps.Take(source, 0, len(source)),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_wrappers_ask_for_no_more(wrapper: str, serve: Any, tmp_path: Path) -> None:
    """Reading all samples through a wrapper takes the requests that the dataset alone takes, one for each shard."""
    for shards in (4, 40):
        server, format = serve("mds", shards)
        counts: list[int] = []
        for name, wrapped in (("plain", ps.Sequential), ("wrapped", lambda one: ps.Sequential(WRAPPED[wrapper](one)))):
            source = opened(server, format, tmp_path / f"{name}-{shards}")
            server.log.clear()
            loader = ps.Loader(wrapped(source), 8, rank=0, world=1, workers=0)
            for _, _batch in zip(range(len(source) // 8), loader, strict=False):
                pass
            counts.append(sum(is_data(path) for _, path, _ in server.log))
        assert counts == [counts[0], counts[0]], counts


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


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket in memory, by the client that asks servers."""
    kept = obstore.store.MemoryStore()
    replace(monkeypatch, "open_objects", lambda *given, **more: kept)
    return f"s3://{tmp_path.name.replace('_', '-')}"


def folder_of(path: Path, what: str, files: int) -> Path:
    """A folder of so many files; of token files by our index, or as others leave them."""
    kind, _, how = what.partition(", ")
    if how:
        path.mkdir()
        write_tokens(path / "in.pbin", "pbin", files, token_bytes=2)
        if how == "compressed":
            return write_tokens(path / "set", kind, files, split="train", chunk_tokens=300, compressor="zstd")
        ps.convert(path / "in.pbin", path / "set", to=kind, file_tokens=300, executor="inline")
        return path / "set"
    (path / "set").mkdir(parents=True)
    for number in range(files):
        name = path / "set" / f"{number:04}"
        if kind == "parquet":
            table = pyarrow.table({"text": [f"{number} {row} {TEXT}" for row in range(6)]})
            pyarrow.parquet.write_table(table, f"{name}.parquet")
        elif kind == "jsonl":
            Path(f"{name}.jsonl").write_text("".join(f'{{"text": "{row}"}}\n' for row in range(6)))
        else:
            write_tokens(Path(f"{name}.{kind.replace('megatron', 'bin')}"), kind, 1, token_bytes=2)
    return path / "set"


def write_tokens(path: Path, kind: str, times: int, **options: Any) -> Path:
    with ps.create(path, format=kind, **options) as writer:
        for number in range(6 * times):
            writer.write({"tokens": np.arange(50 * number, 50 * number + 50, dtype=np.uint16) % 300})
    return path


@pytest.mark.parametrize(
    "what",
    [
        *("pbin", "megatron", "parquet"),
        *("pbin, ours", "megatron, ours", "flat-tokens, compressed"),
    ],
)
def test_no_size_is_asked_for_a_file_of_a_folder(
    what: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the first rank of a host, and not by one that comes later, which asks for no data either."""
    made = counted_requests(monkeypatch)
    found: list[list[Counter[str]]] = []
    for files in (4, 24):
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / f"cache-{files}"))
        url = f"{bucket}/{files}"
        upload(folder_of(tmp_path / f"{files}", what, files), url)
        found.append([])
        for _ in range(2):
            made.clear()
            source = ps.open(url)
            assert len(source) == 6 * files
            read_all(source)
            found[-1].append(Counter(made))
    few, many = found
    for rank in range(2):
        assert many[rank]["head"] == few[rank]["head"] <= 16, (few, many)
        assert many[rank]["list"] == few[rank]["list"] <= 24, (few, many)
        assert many[rank]["heads"] == few[rank]["heads"] <= 2, (few, many)
    assert many[0]["read"] >= 24
    assert many[1]["read"] == 0, many


@pytest.mark.parametrize(("what", "most"), [("pbin", 2), ("megatron", 6), ("parquet", 1), ("jsonl", 3)])
def test_a_web_server_is_asked_once_for_what_it_has(
    what: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web server lists nothing: whatever a size or a version is wanted for, one HEAD a file and process tells it.

    What may be beside a file, an index or a side file, is asked for too.
    """
    for files in (3, 30):
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / f"cache-{files}"))
        (tmp_path / f"{files}").mkdir()
        folder = folder_of(tmp_path / f"{files}", what, files)
        with FileServer() as server:
            server.files.update({f"set/{path.name}": path.read_bytes() for path in folder.iterdir()})
            named = [f"{server.url}/{name}" for name in sorted(server.files) if not name.endswith((".idx", "stock"))]
            for _ in range(2):
                server.log.clear()
                read_all(ps.open(named))
                asked = Counter(path for method, path, _ in server.log if method == "HEAD")
                assert asked.total() <= most * files, asked
                assert max(times for path, times in asked.items() if path.lstrip("/") in server.files) == 1, asked


def test_a_file_that_is_replaced_is_another_one_for_who_opens_the_folder_then(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a listing says is of that opening: an older one tells of the change, a later one reads what is there."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    url = f"{bucket}/set"
    upload(folder_of(tmp_path, "parquet", 6), url)
    before = ps.open(url)
    text = before[35]["text"]
    pyarrow.parquet.write_table(pyarrow.table({"text": ["new"] * 6}), tmp_path / "set/0005.parquet")
    place = place_of(f"{url}/0005.parquet")
    put(place.store, place.path, (tmp_path / "set/0005.parquet").read_bytes())
    assert before[35]["text"] == text
    assert ps.open(url)[35]["text"] == "new"


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


def test_hosts_of_foreign_data_fetch_it_once_with_what_their_first_state_samples(tmp_path: Path) -> None:
    """Without a side file each samples 64 places of 4 KiB: a tenth of 2.6 MB. Two hosts stand for eight."""
    with ps.create(tmp_path / "set", format="mds", columns={"data": "bytes"}, size_limit=1 << 19) as writer:
        for number in range(8 * HOSTS):
            writer.write({"data": bytes([number % 251]) * (70_000 + number * 7919 % 20_000)})
    (tmp_path / "set/.penstock").unlink()
    with FileServer() as server:
        for path in (tmp_path / "set").iterdir():
            server.files[f"set/{path.name}"] = path.read_bytes()
        total_bytes = sum(map(len, server.files.values()))
        fetched_bytes = [hosts_read(server, 8, host, tmp_path / f"{host}", samples=True) for host in (1, 6)]
        assert 4 * sum(fetched_bytes) <= 1.1 * total_bytes, (fetched_bytes, total_bytes)


def test_foreign_data_cost_each_host_its_index_and_its_sample_alone(tmp_path: Path) -> None:
    """No more than that for 1 to 64 hosts of 0.5 MB shards: what a shared sample could save is 256 KiB a host."""
    with ps.create(tmp_path / "set", format="mds", columns={"data": "bytes"}, size_limit=1 << 19) as writer:
        for number in range(6 * HOSTS):
            writer.write({"data": bytes([number % 251]) * (70_000 + number * 7919 % 20_000)})
    (tmp_path / "set/.penstock").unlink()
    with FileServer() as server:
        for path in (tmp_path / "set").iterdir():
            server.files[f"set/{path.name}"] = path.read_bytes()
        index_bytes = len(server.files["set/index.json"])
        data_bytes = sum(map(len, server.files.values())) - index_bytes
        for hosts in (1, 8, HOSTS):
            sampled = hosts > 1  # one host has all of it in its cache
            read = [
                hosts_read(server, hosts, host, tmp_path / f"{hosts}-{host}", samples=sampled) for host in range(hosts)
            ]
            assert sum(read) <= 1.01 * data_bytes + hosts * (index_bytes + 64 * 4096), hosts


def hosts_read(server: FileServer, hosts: int, host: int, cache: Path, *, samples: bool = False) -> int:
    """Bytes of all kinds that a host fetches for an epoch and its state, which asks for no data but `samples`."""
    source = opened(server, "mds", cache)
    stream = ps.Shuffle(source, seed=3, mode="blocks", lanes=HOSTS)
    with ps.Loader(stream, HOSTS, rank=host, world=hosts, workers=0) as loader:
        batches = iter(loader)
        for _ in range(len(source) // HOSTS):
            next(batches)
        before = len(server.log)
        loader.state_dict()
        assert samples == any(is_data(one[1]) for one in server.log[before:])
        fetched_bytes: int = source.folder.store.stats().fetched_bytes
    other = opened(server, "mds", cache)  # another rank of the host
    before = len(server.log)
    ps.Loader(ps.Shuffle(other, seed=3, mode="blocks", lanes=HOSTS), HOSTS, rank=host, world=hosts).state_dict()
    assert not [one for one in server.log[before:] if not one[1].endswith("index.json")]
    return fetched_bytes

"""Digests in an index, and remote shards: whatever is fetched whole is checked, and `validate_hash` fetches whole."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.compat.streaming import Stream, StreamingDataset
from penstock.errors import ConfigError, Corrupt
from penstock.store import MemoryStore, resolve
from penstock.testing import FileServer
from penstock.testing.stores import put
from penstock.types import OpenOptions

SAMPLES = 600
SHARD = "shard.00001.mds"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with FileServer() as server:
        yield server


def written(folder: Path, **options: Any) -> dict[str, bytes]:
    """Name → bytes of a dataset of some shards, whose index states two digests of each."""
    given = {"format": "mds", "columns": {"n": "int", "data": "bytes"}, "hashes": ["sha1", "xxh64"], **options}
    with ps.create(folder, **given) as writer:
        for n in range(SAMPLES):
            writer.write({"n": n, "data": np.random.default_rng(n).bytes(2000)})
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def damaged(files: dict[str, bytes], name: str = SHARD) -> dict[str, bytes]:
    """The same files, one byte of the last sample's data changed."""
    data = files[name]
    return {**files, name: data[:-10] + bytes([data[-10] ^ 1]) + data[-9:]}


def served(web: FileServer, files: dict[str, bytes]) -> str:
    web.files.update({f"d/{name}": data for name, data in files.items()})
    return f"{web.url}/d"


@pytest.mark.parametrize("fingerprint", [False, True])
def test_a_copy_of_an_uncompressed_shard_is_checked(web: FileServer, tmp_path: Path, fingerprint: bool) -> None:
    url = served(web, damaged(written(tmp_path / "d", size_limit=1 << 19)))
    source = ps.open(url)
    if fingerprint:
        assert source.fingerprint  # its few reads are worth a small shard, which is copied before it is opened
    with pytest.raises(Corrupt, match=r"shard\.00001\.mds.*hash"):
        all(source[n]["n"] == n for n in range(SAMPLES))


def test_a_copy_that_another_reader_made_without_hashes_is_checked(web: FileServer, tmp_path: Path) -> None:

    url = served(web, damaged(written(tmp_path / "d", size_limit=1 << 19)))
    store, _ = resolve(url)
    store.get(f"{url}/{SHARD}")
    with pytest.raises(Corrupt, match=r"shard\.00001\.mds.*hash"):
        ps.open(url).get_batch(list(range(SAMPLES)))


@pytest.mark.parametrize("algorithm", ["sha1", "xxh64"])
def test_validate_hash_checks_before_the_first_sample(web: FileServer, tmp_path: Path, algorithm: str) -> None:
    files = written(tmp_path / "d", size_limit=1 << 19)
    url = served(web, damaged(files))
    places = {name: len(data) for name, data in files.items() if name.endswith(".mds")}
    per_shard = [shard["samples"] for shard in json.loads(files["index.json"])["shards"]]
    source = pickle.loads(pickle.dumps(ps.open(url, validate_hash=algorithm)))
    assert source[0]["n"] == 0
    assert source.recipe()["validate_hash"] == algorithm
    with pytest.raises(Corrupt, match=r"shard\.00001\.mds.*hash"):
        _ = source[per_shard[0]]  # right itself, in a shard that is wrong elsewhere
    web.log.clear()
    web.files[f"d/{SHARD}"] = files[SHARD]
    good = ps.open(url, validate_hash=algorithm)
    chosen = list(range(0, SAMPLES, 7))
    assert [row["n"] for row in good.get_samples(chosen)] == chosen
    assert good.get_batch(chosen)["n"].tolist() == chosen
    fetched = [(name, place) for method, name, place in web.log if method == "GET" and name.endswith(".mds")]
    assert sorted(name for name, _ in fetched) == [
        f"d/{name}" for name in sorted(places)[1:]
    ]  # the first one was there
    assert all(place == (0, places[name[2:]]) for name, place in fetched)


def test_without_it_one_sample_is_one_range(web: FileServer, tmp_path: Path) -> None:
    files = written(tmp_path / "d", size_limit=1 << 21)
    source = ps.open(served(web, files))
    web.log.clear()
    assert source[5]["n"] == 5
    assert sum(stop - start for start, stop in web.gets() if (start, stop)) < 10_000  # type: ignore[misc]


@pytest.mark.parametrize("read", ["mmap", "pread"])
def test_local_shards_are_checked_too(tmp_path: Path, read: Any) -> None:
    files = damaged(written(tmp_path / "d", size_limit=1 << 19))
    (tmp_path / "d" / SHARD).write_bytes(files[SHARD])
    source = ps.open(tmp_path / "d", validate_hash="sha1", read=read)
    assert source[0]["n"] == 0
    with pytest.raises(Corrupt, match=r"shard\.00001\.mds.*sha1"):
        all(source[n]["n"] == n for n in range(SAMPLES))


def test_a_store_without_copies_is_checked_too(tmp_path: Path) -> None:
    from tests.internals import MDS_FORMAT as FORMAT

    store = MemoryStore()
    for name, data in damaged(written(tmp_path / "d", size_limit=1 << 19)).items():
        put(store, f"d/{name}", data)
    source = FORMAT.open(store, "d", OpenOptions(validate_hash="sha1", read="pread"))
    with pytest.raises(Corrupt, match=r"shard\.00001\.mds.*sha1"):
        source.get_batch(list(range(SAMPLES)))


def test_meta_files_and_compressed_files(web: FileServer, tmp_path: Path) -> None:
    url = served(web, damaged(written(tmp_path / "z", size_limit=1 << 19, compression="zstd"), f"{SHARD}.zstd"))
    with pytest.raises(Corrupt, match=r"shard\.00001\.mds\.zstd.*sha1"):
        ps.open(url, validate_hash="sha1").get_batch(list(range(SAMPLES)))
    web.files.clear()
    with ps.create(tmp_path / "j", format="json-shards", columns={"n": "int"}, hashes=["sha1"]) as writer:
        for n in range(10):
            writer.write({"n": n})
    files = {path.name: path.read_bytes() for path in (tmp_path / "j").iterdir() if path.is_file()}
    name = next(name for name in files if name.endswith(".meta"))
    with pytest.raises(Corrupt, match=r"meta.*sha1"):
        _ = ps.open(served(web, damaged(files, name)), validate_hash="sha1")[0]


def test_what_validate_hash_can_not_check_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "d", hashes=["xxh64"])
    with pytest.raises(ConfigError, match=r"no sha1 hash.*found xxh64"):
        ps.open(tmp_path / "d", validate_hash="sha1")
    with pytest.raises(ConfigError, match="unknown hash algorithm"):
        ps.open(tmp_path / "d", validate_hash="crc")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ConfigError, match="validate_hash"):
        ps.open(tmp_path / "a.jsonl", validate_hash="sha1")


def test_an_unknown_algorithm_in_an_index_keeps_nobody_from_reading(web: FileServer, tmp_path: Path) -> None:
    files = written(tmp_path / "d", size_limit=1 << 19)
    index = json.loads(files["index.json"])
    for shard in index["shards"]:
        shard["raw_data"]["hashes"]["crc"] = "0"
    source = ps.open(served(web, {**files, "index.json": json.dumps(index).encode()}))
    assert source.get_batch(list(range(SAMPLES)))["n"].tolist() == list(range(SAMPLES))


def test_verify_says_which_remote_shard_is_wrong(web: FileServer, tmp_path: Path) -> None:
    url = served(web, damaged(written(tmp_path / "d", size_limit=1 << 19)))
    found = ps.verify(url, depth="full")
    assert {(one.code, one.path) for one in found if one.severity == "error"} >= {("shards.hash", f"{url}/{SHARD}")}


def test_the_dataset_of_streaming(web: FileServer, tmp_path: Path) -> None:
    files = written(tmp_path / "d", size_limit=1 << 19)
    url = served(web, damaged(files))
    first = hashlib.sha1(files[SHARD]).hexdigest()
    one = json.loads(files["index.json"])["shards"][0]["samples"]
    for dataset in (
        StreamingDataset(remote=url, validate_hash="sha1"),
        StreamingDataset(streams=[Stream(remote=url, validate_hash="sha1")]),
        StreamingDataset(remote=url, validate_hash="xxh64"),
    ):
        assert dataset[0]["n"] == 0
        with pytest.raises(Corrupt, match=r"shard\.00001\.mds"):
            _ = dataset[one]
    with pytest.raises(ConfigError, match="md5"):
        StreamingDataset(remote=url, validate_hash="md5")
    assert first != hashlib.sha1(web.files[f"d/{SHARD}"]).hexdigest()

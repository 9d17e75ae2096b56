"""Datasets in remote stores: the same samples and fingerprints as on disk, over S3, the web, and fsspec."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tests.internals import WORK, RemoteStore, geometry_of, main

import penstock as ps
from penstock.errors import NotFound, PrepareError, Truncated, Unsupported
from penstock.store import LocalStore, resolve
from penstock.testing import FileServer, same
from penstock.testing.stores import put
from penstock.testing.token_files import write_token_files

Upload = Callable[[dict[str, bytes]], str]
DOCS = [np.arange(size, dtype=np.uint16) % 50_000 for size in (5, 0, 3000, 1, 70_000, 12)]


@pytest.fixture
def web() -> Iterator[FileServer]:
    with FileServer() as server:
        yield server


@pytest.fixture(params=["s3", "http", "memory"])
def upload(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upload:
    """Puts files into a new folder of a remote store; gives its URL."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    name = f"formats-{tmp_path.name}"
    if request.param == "http":
        server: FileServer = request.getfixturevalue("web")

        def to_web(files: dict[str, bytes]) -> str:
            server.files.update({f"{name}/{path}": data for path, data in files.items()})
            return f"{server.url}/{name}"

        return to_web
    if request.param == "s3":
        request.getfixturevalue("s3_server")
    base = {"s3": "s3://bucket", "memory": "memory://"}[request.param]

    def to_store(files: dict[str, bytes]) -> str:
        store, url = resolve(f"{base}/{name}" if request.param == "s3" else f"memory://{name}")
        for path, data in files.items():
            put(store, f"{url}/{path}", data)
        return url

    return to_store


@pytest.mark.parametrize("format", ["pbin", "megatron", "parquet", "jsonl"])
def test_several_files_by_a_pattern(upload: Upload, tmp_path: Path, format: str) -> None:
    """`{a,b}` stands for files on a web server too, which lists nothing; so does a list."""
    suffix = {"megatron": "bin"}.get(format, format)
    for name in ("a", "b"):
        path = tmp_path / f"{name}.{suffix}"
        if format == "parquet":
            parquet.write_table(pyarrow.Table.from_pylist([{"n": 1}, {"n": 2}]), path)
        elif format == "jsonl":
            path.write_text('{"n": 1}\n{"n": 2}\n')
        else:
            with ps.create(path, format=format, token_bytes=2, eos_id=0) as writer:
                for _ in range(2):
                    writer.write({"tokens": np.array([1, 0], np.uint16)})
    url = upload({path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()})
    assert len(ps.open(f"{url}/{{a,b}}.{suffix}")) == 4
    assert len(ps.open([f"{url}/a.{suffix}", f"{url}/b.{suffix}"])) == 4
    with pytest.raises((NotFound, Unsupported), match=r"/z\."):
        ps.open(f"{url}/{{a,z}}.{suffix}")[2]


def files_of(folder: Path) -> dict[str, bytes]:
    """Relative path → bytes of all files in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "format", "options"),
    [
        ("a.pbin", "pbin", {"token_bytes": 2}),
        ("a.zarr", "flat-tokens", {}),
        ("a", "megatron", {"token_bytes": 2}),
    ],
)
def test_tokens(upload: Upload, tmp_path: Path, name: str, format: str, options: dict[str, int]) -> None:
    here = tmp_path / "data"
    here.mkdir()
    with ps.create(here / name, format=format, **options) as writer:
        for tokens in DOCS:
            writer.write({"tokens": tokens})
    local = ps.open(here / name)
    far = ps.open(f"{upload(files_of(here))}/{name}")
    assert len(far) == len(local)
    assert far.fingerprint == local.fingerprint
    starts = np.array([0, 7, 3000, 60_000], np.int64)
    for source in (far, pickle.loads(pickle.dumps(far))):
        assert np.array_equal(source.gather(starts, 100), local.gather(starts, 100))
        assert np.array_equal(source.tokens(2990, 3050), local.tokens(2990, 3050))
        assert same(source.get_batch([4, 0, 2]), local.get_batch([4, 0, 2]))
        assert np.array_equal(source.doc_starts, local.doc_starts)


@pytest.mark.parametrize("format", ["pbin", "megatron", "flat-tokens"])
def test_token_files(upload: Upload, tmp_path: Path, format: str) -> None:
    files = [[[1, 2, 7], [7]], [], [[5, 0, 1, 7], [3, 7]]]
    here = write_token_files(tmp_path / "out", files, format, options={"eos_id": 7})
    far: Any = ps.open(upload(files_of(here)))
    local: Any = ps.open(here)
    assert far.fingerprint == local.fingerprint
    assert far.files.opened == 0
    for source in (far, pickle.loads(pickle.dumps(far))):
        assert source.tokens(0, 10).tolist() == local.tokens(0, 10).tolist()
        assert source.gather(np.array([0, 2, 5]), 4).tolist() == local.gather(np.array([0, 2, 5]), 4).tolist()
        assert same(source.get_batch([3, 0, 2]), local.get_batch([3, 0, 2]))
        assert source.doc_starts.tolist() == [0, 3, 4, 8, 10]
        assert (source.eos_id, source.manifest.digest) == (7, local.manifest.digest)
    assert ps.Chunk(4, labels="shift")(far).get_batch([0])["inputs"].tolist() == [[1, 2, 7, 7]]


@pytest.mark.parametrize("lost", ["index", "index and files"])
def test_unfinished_token_files(s3_server: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    files = files_of(write_token_files(tmp_path / "out", [[[1, 2, 7], [7]], [[3]]]))
    names = {"part-", WORK} if lost == "index" else {WORK}
    files |= {f"{WORK}/plan": b"{}"}
    store, url = resolve(f"s3://bucket/unfinished-{tmp_path.name}")
    for name, data in files.items():
        if any(name.startswith(start) for start in names):
            put(store, f"{url}/{name}", data)
    with pytest.raises(PrepareError, match=r"unfinished.*penstock status s3://"):
        ps.open(url)


@pytest.mark.parametrize("indexed", [True, False])
def test_jsonl(upload: Upload, tmp_path: Path, indexed: bool) -> None:
    here = tmp_path / "data"
    here.mkdir()
    (here / "a.jsonl").write_text("".join(json.dumps({"text": "x" * n, "n": n}) + "\n" for n in range(300)))
    local = ps.open(here / "a.jsonl")
    assert len(local) == 300
    if indexed:
        ps.index(here / "a.jsonl")
    url = upload(files_of(here))
    far = ps.open(f"{url}/a.jsonl")
    assert [far[i] for i in (0, 299, 17)] == [local[i] for i in (0, 299, 17)]
    assert same(far.get_batch([5, 3]), local.get_batch([5, 3]))
    assert resolve(url)[0].exists(f"{url}/a.idx") == indexed, "opening wrote into the remote store"


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_mds(upload: Upload, tmp_path: Path, compression: str | None) -> None:
    here = tmp_path / "data"
    options = {"columns": {"n": "int", "tokens": "ndarray:uint16"}, "size_limit": 1 << 12, "hashes": ["sha1"]}
    with ps.create(here, format="mds", compression=compression, **options) as writer:
        for n in range(300):
            writer.write({"n": n, "tokens": np.arange(20, dtype=np.uint16) + n})
    local, far = ps.open(here), ps.open(upload(files_of(here)))
    assert far.fingerprint == local.fingerprint
    chosen = [299, 0, 17, 150, 151]
    assert same(far.get_batch(chosen), local.get_batch(chosen))
    assert same(far[42], local[42])


def test_a_missing_shard_is_named(web: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with ps.create(tmp_path / "d", format="mds", columns={"n": "int"}, size_limit=1 << 10) as writer:
        for n in range(300):
            writer.write({"n": n})
    web.files.update({f"d/{name}": data for name, data in files_of(tmp_path / "d").items()})
    del web.files["d/shard.00001.mds"]
    source = ps.open(f"{web.url}/d")
    assert source[0]["n"] == 0
    loader = ps.Loader(ps.Sequential(source), global_batch=10)
    with pytest.raises(NotFound, match=r"shard\.00001\.mds"):
        for _ in zip(range(60), loader, strict=False):
            pass


def test_info(upload: Upload, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2) as writer:
        for tokens in DOCS:
            writer.write({"tokens": tokens})
    url = upload({"a.pbin": (tmp_path / "a.pbin").read_bytes()})
    with pytest.raises(SystemExit) as ended:
        main(["info", f"{url}/a.pbin", "--json"])
    assert ended.value.code in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert (found["samples"], found["tokens"]) == (len(DOCS), sum(map(len, DOCS)))
    assert found["path"] == f"{url}/a.pbin"


def test_missing(upload: Upload) -> None:
    url = upload({"other": b"x"})
    with pytest.raises(NotFound) as caught:
        ps.open(f"{url}/a.pbin")
    assert caught.value.path is not None
    assert caught.value.path.startswith(url)


def test_a_file_that_ends_early(web: FileServer, tmp_path: Path) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": DOCS[4]})
    web.files["a.pbin"] = (tmp_path / "a.pbin").read_bytes()[:-4000]
    with pytest.raises(Truncated):
        ps.open(f"{web.url}/a.pbin")


def test_written_to_s3(s3_server: str, tmp_path: Path) -> None:
    url = f"s3://bucket/written-{tmp_path.name}"
    with ps.create(f"{url}/a.pbin", format="pbin", token_bytes=2) as writer:
        for tokens in DOCS:
            writer.write({"tokens": tokens})
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2) as writer:
        for tokens in DOCS:
            writer.write({"tokens": tokens})
    store = RemoteStore("s3://bucket")
    assert store.get(f"{url}/a.pbin") == LocalStore().get(str(tmp_path / "a.pbin"))
    assert same(ps.open(f"{url}/a.pbin")[4], {"tokens": DOCS[4]})


def test_fsspec_reads_what_is_written(tmp_path: Path) -> None:
    url = f"memory://written-{tmp_path.name}/a.pbin"
    with ps.create(url, format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": DOCS[2]})
    assert len(fsspec.open(url).open().read()) == geometry_of(ps.open(url)).size_bytes


def test_requests_of_opening(web: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": np.arange(4_000_000) % 50_000})
    web.files["a.pbin"] = (tmp_path / "a.pbin").read_bytes()
    source = ps.open(f"{web.url}/a.pbin")
    assert len(web.log) <= 18, web.log  # with two for a side file, which may record planes and an exclude list
    before = len(web.log)
    source.gather(np.arange(0, 4_000_000, 400_000), 100)
    assert len(web.log) - before <= 10
    assert sum(stop - start for start, stop in web.gets() if (start, stop)) < 400_000


def test_a_prepared_webdataset_is_found_in_few_requests(
    web: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        writer.write({"__key__": "a", "txt": "one"})
    web.files.update(
        {
            f"tars/{one.relative_to(tmp_path / 'tars')}": one.read_bytes()
            for one in (tmp_path / "tars").rglob("*")
            if one.is_file()
        }
    )
    source = ps.open(f"{web.url}/tars", raw=True)
    assert len(source) == 1
    assert len(web.log) <= 12, web.log


def test_writing_shards_to_a_web_server_is_refused_at_once(web: FileServer) -> None:
    with pytest.raises(Unsupported, match="read-only"):
        ps.create(f"{web.url}/out", format="mds", columns={"a": "int"})

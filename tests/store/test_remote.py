"""Remote stores over a real S3 server and a web server, with everything that goes wrong on the way."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.abc import Store
from penstock.errors import ConfigError, Denied, NotFound, Truncated, Unreachable, Unsupported
from penstock.store import _remote_output
from penstock.store._requests import RemoteOptions
from penstock.store.cache import CachedStore
from penstock.store.remote import RemoteStore, base_of
from penstock.testing import FileServer
from penstock.testing.stores import StoreSuite, put

FAST = RemoteOptions(backoff_s=0.01, timeout_s=2.0, tries=4)
DATA = np.random.default_rng(1).bytes(100_000)
_folders = itertools.count()


@pytest.fixture
def root(s3_server: str) -> str:
    """A folder that nobody has used."""
    return f"s3://bucket/{next(_folders)}"


@pytest.fixture
def store(s3_server: str) -> RemoteStore:
    return RemoteStore("s3://bucket", FAST)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({"d/a.bin": DATA, "d/with space%.bin": b"odd"}) as one:
        yield one


@pytest.fixture
def web(server: FileServer) -> RemoteStore:
    return RemoteStore(server.url, FAST)


class TestRemoteStore(StoreSuite):
    @pytest.fixture
    def store(self, s3_server: str) -> RemoteStore:
        return RemoteStore("s3://bucket", FAST)

    @pytest.fixture
    def root(self, s3_server: str) -> str:
        return f"s3://bucket/suite-{next(_folders)}"

    def test_odd_names(self, store: Store, root: str) -> None:
        for name in ("with space", "%41", "a" * 250, ".hidden", "quote'\"", "a+b&c=d"):
            put(store, f"{root}/{name}", name.encode())
            assert store.get(f"{root}/{name}") == name.encode()
        for name in ("new\nline", "a//b", "../up"):
            with pytest.raises(ConfigError):
                put(store, f"{root}/{name}", b"x")


# --- ranges and requests ---------------------------------------------------------------------------------------------


def test_neighbours_are_one_request(web: RemoteStore, server: FileServer) -> None:
    path = f"{server.url}/d/a.bin"
    ranges = [(50_000, 50_010), (0, 10), (20, 30), (5, 25), (99_990, 100_000), (7, 7)]
    narrow = RemoteStore(server.url, RemoteOptions(gap_bytes=16))
    assert narrow.get_ranges(path, ranges) == [DATA[start:stop] for start, stop in ranges]
    assert sorted(server.gets()) == [(0, 30), (50_000, 50_010), (99_990, 100_000)]
    assert narrow.stats().requests == 3
    assert narrow.stats().fetched_bytes == 50
    server.log.clear()
    assert web.get_ranges(path, ranges) == [DATA[start:stop] for start, stop in ranges]
    assert server.gets() == [(0, 100_000)]


def test_long_reads_are_several_requests(server: FileServer) -> None:
    store = RemoteStore(server.url, RemoteOptions(part_bytes=30_000))
    assert store.get_ranges(f"{server.url}/d/a.bin", [(10, 95_000), (29_999, 30_011)]) == [
        DATA[10:95_000],
        DATA[29_999:30_011],
    ]
    assert sorted(server.gets()) == [(10, 30_010), (30_010, 60_010), (60_010, 90_010), (90_010, 95_000)]


def test_requests_run_at_once(server: FileServer) -> None:
    server.delay_s = 0.2
    store = RemoteStore(server.url, RemoteOptions(gap_bytes=0, requests=8))
    active, most = 0, 0
    lock, answer = threading.Lock(), server._server.RequestHandlerClass.do_GET

    def counting(handler: object) -> None:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        answer(handler)
        with lock:
            active -= 1

    server._server.RequestHandlerClass.do_GET = counting
    try:
        store.get_ranges(f"{server.url}/d/a.bin", [(start, start + 1) for start in range(0, 80, 10)])
    finally:
        server._server.RequestHandlerClass.do_GET = answer
    assert most >= 4


def test_size_and_past_the_end(web: RemoteStore, server: FileServer) -> None:
    path = f"{server.url}/d/a.bin"
    assert web.size(path) == len(DATA)
    for ranges in ([(0, 100_001)], [(200_000, 200_010)], [(100_001, 100_001)]):
        with pytest.raises(Truncated) as caught:
            web.get_ranges(path, ranges)
        assert caught.value.path == path


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["500", "503", "429", "drop", "truncate"])
def test_a_passing_fault_is_tried_again(web: RemoteStore, server: FileServer, fault: str) -> None:
    server.fail([fault, fault, ""])
    assert web.get_ranges(f"{server.url}/d/a.bin", [(10, 5000)]) == [DATA[10:5000]]
    assert web.stats().requests == 3
    if fault != "truncate":  # of a whole file, nothing tells
        server.fail([fault, ""])
        assert web.get(f"{server.url}/d/a.bin") == DATA


@pytest.mark.parametrize("fault", ["500", "503", "drop", "truncate"])
def test_a_fault_that_stays_is_an_error(web: RemoteStore, server: FileServer, fault: str) -> None:
    server.always = fault
    path = f"{server.url}/d/a.bin"
    with pytest.raises(Unreachable) as caught:
        web.get_ranges(path, [(10, 5000)])
    assert caught.value.path == path
    assert len(server.gets()) == FAST.tries
    assert str(FAST.tries) in str(caught.value)


def test_a_server_that_is_silent(server: FileServer) -> None:
    server.always = "hang"
    store = RemoteStore(server.url, RemoteOptions(backoff_s=0.01, timeout_s=0.2, tries=2))
    with pytest.raises(Unreachable):
        store.get_ranges(f"{server.url}/d/a.bin", [(10, 5000)])


def test_nobody_listens() -> None:
    store = RemoteStore("http://127.0.0.1:9", RemoteOptions(backoff_s=0.01, tries=2))
    with pytest.raises(Unreachable) as caught:
        store.size("http://127.0.0.1:9/a")
    assert caught.value.path == "http://127.0.0.1:9/a"


def test_refused_and_missing(web: RemoteStore, server: FileServer) -> None:
    server.always = "403"
    with pytest.raises(Denied):
        web.get_ranges(f"{server.url}/d/a.bin", [(10, 5000)])
    assert len(server.gets()) == 1
    with pytest.raises(NotFound):
        web.get_ranges(f"{server.url}/missing", [(10, 20)])


def test_missing_bucket(s3_server: str) -> None:
    with pytest.raises(NotFound, match="s3://nobucket/a") as caught:
        RemoteStore("s3://nobucket", FAST).size("s3://nobucket/a")
    assert caught.value.path == "s3://nobucket/a"


# --- web servers -----------------------------------------------------------------------------------------------------


def test_a_server_without_ranges(web: RemoteStore, server: FileServer) -> None:
    server.always = "whole"
    path = f"{server.url}/d/a.bin"
    assert web.get_ranges(path, [(10, 20), (0, 5)]) == [DATA[10:20], DATA[:5]]
    with pytest.raises(Truncated):
        web.get_ranges(path, [(10, 100_001)])


def test_web_servers_are_only_read(web: RemoteStore, server: FileServer) -> None:
    path = f"{server.url}/d/a.bin"
    assert web.exists(path)
    assert not web.exists(f"{server.url}/d")
    assert web.is_folder(f"{server.url}/d")  # it may be one
    assert not web.is_folder(path)
    assert web.get(f"{server.url}/d/with%20space%25.bin") == b"odd"
    for work in (lambda: web.stage(path), lambda: web.delete(path), lambda: list(web.list(f"{server.url}/d"))):
        with pytest.raises(Unsupported):
            work()


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("put_bytes", "copy_bytes"), [(1 << 23, 1 << 30), (10, 1 << 30), (10, 100)])
@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_writers_one_wins(
    store: RemoteStore, root: str, monkeypatch: pytest.MonkeyPatch, put_bytes: int, copy_bytes: int, overwrite: bool
) -> None:
    monkeypatch.setattr(_remote_output, "ONE_PUT_BYTES", put_bytes)
    monkeypatch.setattr(_remote_output, "ONE_COPY_BYTES", copy_bytes)
    path = f"{root}/f/big"
    staged = [store.stage(path, overwrite=overwrite) for _ in range(2)]
    for number, one in enumerate(staged):
        one.write(bytes([number]) * 1000)
        one.sync()
        assert one.tell() == 1000
    assert not store.exists(f"{root}/f/big")
    staged[0].commit()
    if overwrite:
        staged[1].commit()
    else:
        with pytest.raises(ConfigError) as caught:
            staged[1].commit()
        assert caught.value.path == path
    assert store.get(path) == bytes([overwrite]) * 1000
    assert keys(store, root) == [path]


@pytest.mark.parametrize("again", [b"x" * 100, b"y" * 100])
def test_the_same_again_takes_over_what_a_killed_upload_left(
    store: RemoteStore, root: str, monkeypatch: pytest.MonkeyPatch, again: bytes
) -> None:
    monkeypatch.setattr(_remote_output, "ONE_PUT_BYTES", 10)
    killed = store.stage(f"{root}/set/big")
    killed.write(b"x" * 100)
    killed.sync()
    (left,) = keys(store, root)
    put(store, f"{root}/set/big", again)
    assert keys(store, root) == ([left] if again[0] != b"x"[0] else []) + [f"{root}/set/big"]
    put(store, f"{root}/.of-another.01234567.staged", b"")
    CachedStore(store).sweep_folder(f"{root}/set")
    assert keys(store, root) == [f"{root}/.of-another.01234567.staged", f"{root}/set/big"]


def test_an_upload_that_was_killed_when_it_had_been_copied_is_swept(
    store: RemoteStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [f"{root}/.big.{name}.staged" for name in ("01234567", "tar.89abcdef", "claim")]
    put(store, others[1], b"x" * 100)
    put(store, others[2], b"x" * 100)
    monkeypatch.setattr(_remote_output, "ONE_PUT_BYTES", 10)
    killed = store.stage(f"{root}/big")
    killed.write(b"x" * 100)
    with monkeypatch.context() as patch:
        patch.setattr(type(store._transport), "delete", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            killed.commit()
    put(store, others[0], b"y" * 101)
    put(store, f"{root}/behind", b"")
    assert len(keys(store, root)) == 6
    CachedStore(store).sweep(f"{root}/big")
    assert keys(store, root) == sorted([*others, f"{root}/behind", f"{root}/big"])
    CachedStore(store).sweep(f"{root}/none")
    with pytest.raises(ConfigError, match="exists"):
        ps.create(f"{root}/big", format="jsonl")


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("format", "options"), [("jsonl", {}), ("pbin", {"token_bytes": 2}), ("mds", {"columns": {"n": "int"}})]
)
def test_whoever_is_refused_sweeps(
    store: RemoteStore, root: str, monkeypatch: pytest.MonkeyPatch, format: str, options: dict[str, Any]
) -> None:
    path = f"{root}/set.{format}"
    ps.create(path, format=format, **options).commit()
    monkeypatch.setattr(_remote_output, "ONE_PUT_BYTES", -1)  # an empty file too
    big = path if format != "mds" else f"{path}/index.json"
    killed = RemoteStore("s3://bucket", FAST).stage(big, overwrite=True)
    killed.write(store.get(big))
    killed.sync()
    store._transport.copy(killed._hidden or "", big.removeprefix("s3://bucket/"), create=False)
    before = keys(store, root)
    with pytest.raises(ConfigError, match="exists"):
        ps.create(path, format=format, **options)
    assert len(keys(store, root)) == len(before) - 1


def test_a_claim_of_another_writer(store: RemoteStore, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_remote_output, "ONE_PUT_BYTES", 10)
    monkeypatch.setattr(_remote_output, "ONE_COPY_BYTES", 10)
    put(store, f"{root}/.big.claim.staged", b"")
    with pytest.raises(ConfigError, match="another writer"):
        put(store, f"{root}/big", b"x" * 100)
    assert keys(store, root) == [f"{root}/.big.claim.staged"]


def test_a_failed_commit_is_taken_back(store: RemoteStore, root: str) -> None:
    staged = [store.stage(f"{root}/{name}") for name in ("a", "b", "index")]
    for one in staged:
        one.write(b"mine")
    put(store, f"{root}/index", b"theirs")
    with pytest.raises(ConfigError):
        store.commit(staged)
    assert keys(store, root) == [f"{root}/index"]
    assert store.get(f"{root}/index") == b"theirs"


def test_nothing_stays_in_the_cache_folder(store: RemoteStore, root: str, cache_of_its_own: os.PathLike[str]) -> None:
    put(store, f"{root}/a", b"x" * 100)
    store.stage(f"{root}/b").abort()
    assert os.listdir(os.path.join(cache_of_its_own, "upload")) == []


def keys(store: RemoteStore, root: str) -> list[str]:
    """All keys under a folder, hidden ones too."""
    found = store._transport.list(root.removeprefix("s3://bucket/"), first_only=False)
    return sorted(f"s3://bucket/{key}" for key in found)


# --- names, options, pickles -----------------------------------------------------------------------------------------


def test_base_of() -> None:
    assert base_of("s3://b/a/c") == "s3://b"
    assert base_of("https://h:8/a") == "https://h:8"
    for url in ("s3:///a", "http://h/a?sig=x", "https://h/a#x"):
        with pytest.raises(ConfigError):
            base_of(url)


def test_a_path_of_another_store(store: RemoteStore) -> None:
    with pytest.raises(ConfigError) as caught:
        store.size("s3://bucket2/a")
    assert caught.value.path == "s3://bucket2/a"


def test_pickles(store: RemoteStore, root: str) -> None:
    put(store, f"{root}/a", b"xyz")
    again = pickle.loads(pickle.dumps(store))
    assert again.options == FAST
    assert again.get(f"{root}/a") == b"xyz"


def test_options_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "3")
    monkeypatch.setenv("PENSTOCK_REMOTE_TIMEOUT_S", "1.5")
    monkeypatch.setenv("PENSTOCK_REMOTE_GAP_BYTES", "0")
    options = RemoteOptions.from_environment()
    assert (options.tries, options.timeout_s, options.gap_bytes) == (3, 1.5, 0)
    for name, value in (
        ("TRIES", "0"),
        ("TRIES", "2.5"),
        ("TIMEOUT_S", "-1"),
        ("PART_BYTES", "x"),
        ("BACKOFF_S", "nan"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"PENSTOCK_REMOTE_{name}", value)
            with pytest.raises(ConfigError, match=name):
                RemoteOptions.from_environment()

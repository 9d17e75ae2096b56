"""Whole local copies of remote files: checked, shared, bounded, and never anything else."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.abc import SupportsMmap
from penstock.errors import ConfigError, Corrupt, NotFound, Truncated, Unreachable
from penstock.store import _copies
from penstock.store._leftovers import sweep
from penstock.store._requests import RemoteOptions
from penstock.store.cache import CachedStore
from penstock.store.local import LocalStore
from penstock.store.remote import RemoteStore
from penstock.testing import FileServer
from penstock.testing.stores import StoreSuite

DATA = np.random.default_rng(2).bytes(3 << 20)
SHA1 = {"sha1": hashlib.sha1(DATA).hexdigest()}
FAST = RemoteOptions(backoff_s=0.01, timeout_s=2.0, tries=3)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer(dict.fromkeys(("a", "b", "c", "d"), DATA)) as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(server: FileServer, folder: Path) -> CachedStore:
    return opened(server, folder)


def opened(server: FileServer, folder: Path, budget_bytes: int | None = None) -> CachedStore:
    return CachedStore(RemoteStore(server.url, FAST), str(folder), budget_bytes)


def copies(folder: Path) -> list[str]:
    """URL-less list of what is in the folder, the budget's lock and notes of versions left out."""
    return sorted(one for one in os.listdir(folder / "remote") if one != "budget.lock" and not one.endswith(".seen"))


class TestCachedStore(StoreSuite):
    """The laws of a store hold, with a copy of every file at once, as far as S3's names go."""

    @pytest.fixture
    def store(self, s3_server: str, folder: Path) -> CachedStore:
        return CachedStore(RemoteStore("s3://bucket", FAST), str(folder))

    @pytest.fixture
    def root(self, s3_server: str, tmp_path: Path) -> str:
        return f"s3://bucket/cached/{tmp_path.name}"

    def test_odd_names(self, store: CachedStore, root: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        staged = store.stage(f"{root}/with space")
        staged.write(b"x" * 3000)
        staged.commit()
        assert store.mapped_copy(f"{root}/with space").tobytes() == b"x" * 3000


# --- copies ----------------------------------------------------------------------------------------------------------


def test_a_copy_is_made_once(store: CachedStore, server: FileServer, folder: Path) -> None:
    url = f"{server.url}/a"
    assert store.keeps_copies
    assert not isinstance(store, SupportsMmap)
    mapped = store.mapped_copy(url, size_bytes=len(DATA), hashes=SHA1)
    assert mapped.tobytes() == DATA
    assert not mapped.flags.writeable
    before = len(server.gets())
    assert store.mapped_copy(url).tobytes() == DATA
    again = pickle.loads(pickle.dumps(store))
    assert Path(again.local_copy(url, hashes=SHA1)).read_bytes() == DATA
    assert again.get_ranges(url, [(5, 10), (0, 3 << 20)]) == [DATA[5:10], DATA]
    assert len(server.gets()) == before
    assert again.stats().fetched_bytes == 0
    assert again.stats().asked_bytes == 5 + (3 << 20)
    assert len(copies(folder)) == 2  # the copy, and its hashes


def test_nothing_is_made_before_it_is_needed(store: CachedStore, folder: Path) -> None:
    assert not folder.exists()


def test_a_corrupt_download_is_tried_again(store: CachedStore, server: FileServer, folder: Path) -> None:
    server.fail(["corrupt"])
    assert store.mapped_copy(f"{server.url}/a", hashes=SHA1).tobytes() == DATA
    assert store.stats().copies == 2


def test_a_corrupt_file_is_an_error_each_time(store: CachedStore, server: FileServer, folder: Path) -> None:
    server.always = "corrupt"
    url = f"{server.url}/a"
    for _ in range(2):
        with pytest.raises(Corrupt) as caught:
            store.mapped_copy(url, hashes=SHA1)
        assert caught.value.path == url
        assert caught.value.expected == SHA1["sha1"]
        assert copies(folder) == []
    server.always = ""
    assert store.mapped_copy(url, hashes=SHA1).tobytes() == DATA


@pytest.mark.parametrize(("size_bytes", "kind"), [(len(DATA) + 1, Truncated), (len(DATA) - 1, Corrupt)])
def test_another_size_than_the_index_states(
    store: CachedStore, server: FileServer, folder: Path, size_bytes: int, kind: type[Exception]
) -> None:
    for read in (store.mapped_copy, store.local_copy):
        with pytest.raises(kind, match=f"{server.url}/a"):
            read(f"{server.url}/a", size_bytes=size_bytes)
    assert len(server.gets()) == 1  # it says what the file is
    assert copies(folder) == []


def test_a_copy_that_was_damaged_later(store: CachedStore, server: FileServer, folder: Path) -> None:
    url = f"{server.url}/a"
    path = Path(store.local_copy(url))
    path.write_bytes(b"\0" + DATA[1:])
    assert store.mapped_copy(url, hashes=SHA1).tobytes() == DATA


@pytest.mark.parametrize("hashes", [{}, SHA1])
def test_a_copy_that_was_cut_is_fetched_again(hashes: dict[str, str], server: FileServer, folder: Path) -> None:
    os.truncate(opened(server, folder).local_copy(f"{server.url}/a", hashes=hashes), 100)
    again = opened(server, folder)
    assert again.get(f"{server.url}/a", 5, 7) == DATA[5:12]
    assert again.mapped_copy(f"{server.url}/a", hashes=hashes).tobytes() == DATA


def test_missing_file(store: CachedStore, server: FileServer, folder: Path) -> None:
    url = f"{server.url}/missing"
    for read in (store.mapped_copy, store.local_copy, store.get, store.size):
        with pytest.raises(NotFound) as caught:
            read(url)
        assert caught.value.path == url


def test_a_server_that_fails(store: CachedStore, server: FileServer, folder: Path) -> None:
    server.always = "503"
    with pytest.raises(Unreachable):
        store.mapped_copy(f"{server.url}/a")
    assert copies(folder) == []


def test_a_file_that_changes(store: CachedStore, server: FileServer, folder: Path) -> None:
    url = f"{server.url}/a"
    assert store.get_ranges(url, [(0, 10)]) == [DATA[:10]]
    server.files["a"] = DATA[::-1]
    with pytest.raises(Corrupt, match="changed"):
        store.get_ranges(url, [(0, 10)])
    assert opened(server, folder).get_ranges(url, [(0, 10)]) == [DATA[::-1][:10]]


def test_a_new_version_is_another_copy(store: CachedStore, server: FileServer, folder: Path) -> None:
    url = f"{server.url}/a"
    store.mapped_copy(url)
    server.files["a"] = DATA[::-1]
    assert opened(server, folder).mapped_copy(url).tobytes() == DATA[::-1]


# --- ranges or the whole file ----------------------------------------------------------------------------------------


def test_few_ranges_stay_ranges(store: CachedStore, server: FileServer, folder: Path) -> None:
    assert store.get_ranges(f"{server.url}/a", [(0, 10), (1 << 20, (1 << 20) + 10)]) == [
        DATA[:10],
        DATA[1 << 20 : (1 << 20) + 10],
    ]
    assert store.stats().copies == 0
    assert store.stats().fetched_bytes == 20


def test_the_first_range_of_a_file_is_one_request(store: CachedStore, server: FileServer) -> None:
    assert store.get_ranges(f"{server.url}/a", [(5, 10)]) == [DATA[5:10]]
    assert [method for method, _, _ in server.log] == ["GET"]
    assert store.size(f"{server.url}/a") == len(DATA)
    assert len(server.log) == 1
    with pytest.raises(Truncated):
        store.get_ranges(f"{server.url}/b", [(5, len(DATA) + 1)])


def test_a_copy_of_another_process_is_found(store: CachedStore, server: FileServer, folder: Path) -> None:
    opened(server, folder).mapped_copy(f"{server.url}/a")
    server.log.clear()
    for start in range(10):
        store.get_ranges(f"{server.url}/a", [(start * 300_000, start * 300_000 + 10)])
    assert server.log == []  # that process noted what it saw


def test_many_ranges_become_a_copy_at_twice_the_cost_at_most(store: CachedStore, server: FileServer) -> None:
    url = f"{server.url}/a"
    for start in range(0, 300):
        assert store.get_ranges(url, [(start * 10_000, start * 10_000 + 100)]) == [DATA[start * 10_000 :][:100]]
    assert store.stats().copies == 1
    # Twelve requests are worth as much as the file.
    assert len(server.gets()) <= 14
    assert store.stats().fetched_bytes <= 2 * len(DATA)


def test_a_whole_read_is_a_copy(store: CachedStore, server: FileServer) -> None:
    assert store.get(f"{server.url}/a") == DATA
    assert store.stats().copies == 1


def test_a_server_without_ranges_is_read_once(store: CachedStore, server: FileServer) -> None:
    server.always = "whole"
    for start in range(5):
        assert store.get_ranges(f"{server.url}/a", [(start, start + 2)]) == [DATA[start : start + 2]]
    assert [place for place in server.gets() if place is None] == [None]
    assert store.get_ranges(f"{server.url}/b", [(0, 2)]) == [DATA[:2]]


def test_a_file_larger_than_half_the_budget_is_read_by_ranges(server: FileServer, folder: Path) -> None:
    store = opened(server, folder, 4 << 20)
    for _ in range(3):
        assert store.get(f"{server.url}/a") == DATA
    assert store.stats().copies == 0


# --- the budget ------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_go(server: FileServer, folder: Path) -> None:
    store = opened(server, folder, 9 << 20)
    paths = {}
    for name in "abc":
        paths[name] = Path(store.local_copy(f"{server.url}/{name}", hashes=SHA1))
        os.utime(paths[name].with_suffix(".json"), (1000 + ord(name), 1000 + ord(name)))
    held = store.mapped_copy(f"{server.url}/b")
    store.local_copy(f"{server.url}/a")  # used again: now b is the oldest but for c
    os.utime(paths["b"].with_suffix(".json"), (10, 10))
    store.local_copy(f"{server.url}/d")
    assert [name for name in "abc" if paths[name].exists()] == ["a", "c"]
    assert held.tobytes() == DATA  # whoever maps it keeps it
    assert not paths["b"].with_suffix(".json").exists()
    assert sum(path.stat().st_size for path in (folder / "remote").glob("*.copy")) <= 9 << 20
    assert opened(server, folder, 9 << 20).mapped_copy(f"{server.url}/b").tobytes() == DATA


def test_only_copies_are_removed(server: FileServer, folder: Path) -> None:
    (folder / "remote").mkdir(parents=True)
    mine = [folder / "remote" / "shard.00000.mds", folder / "remote" / "index.json", folder / "other.copy"]
    for path in mine:
        path.write_bytes(DATA)
    store = opened(server, folder, 3 << 20)
    for name in "abcd":
        store.local_copy(f"{server.url}/{name}")
    assert all(path.read_bytes() == DATA for path in mine)
    assert len(list((folder / "remote").glob("?" * 32 + ".copy"))) == 1


def test_a_file_larger_than_the_budget(server: FileServer, folder: Path) -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_CACHE_BYTES") as caught:
        opened(server, folder, 1000).mapped_copy(f"{server.url}/a")
    assert caught.value.path == f"{server.url}/a"


def test_the_budget_of_the_environment(
    server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch, store: CachedStore
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_BYTES", "1000")
    with pytest.raises(ConfigError):
        store.mapped_copy(f"{server.url}/a")
    monkeypatch.setenv("PENSTOCK_CACHE_BYTES", "much")
    with pytest.raises(ConfigError, match="PENSTOCK_CACHE_BYTES"):
        opened(server, folder).mapped_copy(f"{server.url}/a")


def test_a_network_folder_is_refused(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_copies, "on_network", lambda path: True)
    with pytest.raises(ConfigError, match="PENSTOCK_CACHE") as caught:
        opened(server, tmp_path / "far").mapped_copy(f"{server.url}/a")
    assert caught.value.path == str(tmp_path / "far" / "remote")


# --- several processes -----------------------------------------------------------------------------------------------


COPY = """
import sys
from penstock.store._requests import RemoteOptions
from penstock.store.cache import CachedStore
from penstock.store.remote import RemoteStore
base, folder, sha1 = sys.argv[1:]
store = CachedStore(RemoteStore(base, RemoteOptions(backoff_s=0.01, tries=3)), folder)
store.mapped_copy(base + "/a", hashes={"sha1": sha1})
"""


def copying(server: FileServer, folder: Path) -> subprocess.Popen[bytes]:
    """A process that makes a copy of `a`."""
    return subprocess.Popen([sys.executable, "-c", COPY, server.url, str(folder), SHA1["sha1"]])


def test_one_downloads_and_the_others_wait(server: FileServer, folder: Path) -> None:
    server.delay_s = 0.2
    others = [copying(server, folder) for _ in range(2)]
    stores = [opened(server, folder) for _ in range(3)]
    work = [
        threading.Thread(target=one.mapped_copy, args=(f"{server.url}/a",), kwargs={"hashes": SHA1}) for one in stores
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert [one.wait(60) for one in others] == [0, 0]
    assert len(server.gets()) == 1
    assert len(copies(folder)) == 2


def test_a_killed_download_leaves_nothing_in_the_way(server: FileServer, folder: Path) -> None:
    server.always, server.hang_s = "hang", 30.0
    killed = copying(server, folder)
    while not server.gets() and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert {name.rpartition(".")[2] for name in copies(folder)} == {"staged", "lock"}
    server.always = ""
    assert opened(server, folder).mapped_copy(f"{server.url}/a", hashes=SHA1).tobytes() == DATA
    assert [name.rpartition(".")[2] for name in copies(folder)] == ["copy", "json"]


def test_leftovers_of_the_dead_are_swept(tmp_path: Path) -> None:
    dead, young = tmp_path / ".x.copy.01234567.staged", tmp_path / ".y.copy.01234567.staged"
    for path in (dead, young):
        path.write_bytes(b"x")
    os.utime(dead, (1000, 1000))
    living = LocalStore().stage(str(tmp_path / "z"))
    os.utime(living.hidden_path, (1000, 1000))
    sweep(str(tmp_path))
    assert not dead.exists()
    assert young.exists()
    assert os.path.exists(living.hidden_path)
    living.abort()


def test_a_dead_reservation_of_a_clock_that_was_set_back(server: FileServer, folder: Path) -> None:
    """Its time is a day ahead: so long it took its room, and stayed."""
    (folder / "remote").mkdir(parents=True)
    lock = folder / "remote" / ("0" * 32 + ".lock")
    lock.touch()
    os.truncate(lock, 3 << 20)
    os.utime(lock, (time.time() + 86_400,) * 2)
    assert os.path.exists(opened(server, folder, 4 << 20).local_copy(f"{server.url}/a"))
    assert not lock.exists()


def test_a_dead_reservation_counts_no_more(server: FileServer, folder: Path) -> None:
    (folder / "remote").mkdir(parents=True)
    lock = folder / "remote" / ("0" * 32 + ".lock")
    lock.touch()
    os.truncate(lock, 3 << 20)
    os.utime(lock, (1000, 1000))
    assert os.path.exists(opened(server, folder, 4 << 20).local_copy(f"{server.url}/a"))
    assert not lock.exists()


def test_hashes_are_kept_beside_the_copy(store: CachedStore, server: FileServer, folder: Path) -> None:
    url = f"{server.url}/a"
    path = Path(store.local_copy(url))
    assert json.loads(path.with_suffix(".json").read_text())["hashes"] == {}
    store.local_copy(url, hashes=SHA1)
    assert json.loads(path.with_suffix(".json").read_text())["hashes"] == SHA1
    with pytest.raises(Corrupt):
        store.local_copy(url, hashes={"xxh64": "0" * 16})

"""What a cache folder may be believed: copies and derived arrays that were changed, planted, or are another user's."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.codec import hashes as hashes_module
from penstock.errors import ConfigError, Corrupt
from penstock.store import _copies, derived
from penstock.store._copies import NoCopy
from penstock.store._requests import RemoteOptions
from penstock.store.cache import CachedStore
from penstock.store.derived import DerivedCache
from penstock.store.remote import Remote, RemoteStore
from penstock.testing import FileServer
from penstock.testing.faults import FaultyOs, faults_everywhere
from penstock.types import IntArray

DATA = np.random.default_rng(2).bytes(3 << 20)
CHANGED = bytes([DATA[0] ^ 1]) + DATA[1:]
SHA1 = {"sha1": hashlib.sha1(DATA).hexdigest()}
FAST = RemoteOptions(backoff_s=0.01, timeout_s=2.0, tries=3)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer(dict.fromkeys(("a", "b"), DATA)) as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(server: FileServer, folder: Path) -> CachedStore:
    return CachedStore(RemoteStore(server.url, FAST), str(folder))


def change(path: Path, data: bytes = CHANGED) -> None:
    """Write to a file in place, as its owner may."""
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(mode)


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what copies are held against their own digests."""
    found: list[int] = []

    def counted(algorithm: str, data: Any) -> str:
        found.append(len(data))
        return hashes_module.hex_digest(algorithm, data)

    monkeypatch.setattr(derived, "hex_digest", counted)
    return found


# --- copies that were changed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hashes", [{}, SHA1])
@pytest.mark.parametrize("read", ["mapped", "ranges", "path"])
def test_a_copy_changed_in_place_is_dropped_and_named(
    server: FileServer, folder: Path, caplog: pytest.LogCaptureFixture, hashes: dict[str, str], read: str
) -> None:
    url = f"{server.url}/a"
    copy = Path(opened(server, folder).local_copy(url, hashes=hashes))
    times = copy.stat()
    change(copy)
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))  # which hides it from who looks at size and mtime
    again = opened(server, folder)
    if hashes:
        again.expect_hashes(url, hashes)
    server.log.clear()
    with caplog.at_level(logging.WARNING, logger="penstock"):
        if read == "mapped":
            assert again.mapped_copy(url).tobytes() == DATA
        elif read == "path":
            assert Path(again.local_copy(url)).read_bytes() == DATA
        else:
            assert [again.get_ranges(url, [(0, 10)]) for _ in range(20)] == [[DATA[:10]]] * 20
    assert str(copy) in caplog.text
    assert url in caplog.text
    fetched = [place for place in server.gets() if place == (0, len(DATA))]
    assert len(fetched) == 1


def test_an_unchanged_copy_is_not_read_to_be_believed(server: FileServer, folder: Path, digests: list[int]) -> None:
    url = f"{server.url}/a"
    opened(server, folder).local_copy(url)
    for _ in range(2):
        again = opened(server, folder)
        assert [again.get_ranges(url, [(5, 10)]) for _ in range(5)] == [[DATA[5:10]]] * 5
    assert digests == []
    # Who takes all of it reads all of it anyway.
    whole = opened(server, folder)
    for _ in range(3):
        assert whole.mapped_copy(url).tobytes() == DATA
    assert digests == [len(DATA)]


def test_a_copy_that_was_moved_is_read_once_and_then_believed(
    server: FileServer, folder: Path, tmp_path: Path, digests: list[int]
) -> None:
    url = f"{server.url}/a"
    opened(server, folder).local_copy(url)
    shutil.copytree(folder, tmp_path / "moved")
    server.log.clear()
    for _ in range(2):
        store = opened(server, tmp_path / "moved")
        store.head(url)
        assert store.get_ranges(url, [(5, 10)]) == [DATA[5:10]]
        assert server.gets() == []
    assert digests == [len(DATA)]


def test_copies_are_not_writable(server: FileServer, folder: Path) -> None:
    before = os.umask(0o002)
    try:
        copy = Path(opened(server, folder).local_copy(f"{server.url}/a"))
    finally:
        os.umask(before)
    for path in (copy, copy.with_suffix(".json")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o444


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"hashes": 1, "digest": 2}', None])
def test_a_copy_without_a_sound_record_is_fetched_again(server: FileServer, folder: Path, text: str | None) -> None:
    url = f"{server.url}/a"
    copy = Path(opened(server, folder).local_copy(url))
    change(copy)
    copy.with_suffix(".json").unlink()
    if text is not None:
        copy.with_suffix(".json").write_text(text)
    assert opened(server, folder).mapped_copy(url).tobytes() == DATA


def test_a_copy_that_is_a_link_is_none(server: FileServer, folder: Path, tmp_path: Path) -> None:
    url = f"{server.url}/a"
    copy = Path(opened(server, folder).local_copy(url))
    (tmp_path / "other").write_bytes(CHANGED)
    copy.unlink()
    copy.symlink_to(tmp_path / "other")
    assert opened(server, folder).mapped_copy(url).tobytes() == DATA
    assert (tmp_path / "other").read_bytes() == CHANGED


@pytest.mark.parametrize("suffix", [".copy", ".json"])
@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo])
def test_no_file_in_the_place_of_a_copy(
    server: FileServer, folder: Path, suffix: str, put: Callable[[Path], object]
) -> None:
    """Ranges go on, as where the folder takes nothing."""
    url = f"{server.url}/a"
    place = Path(opened(server, folder).local_copy(url)).with_suffix(suffix)
    place.unlink()
    put(place)
    store = opened(server, folder)
    for _ in range(3):
        assert store.get(url) == DATA
    with pytest.raises(NoCopy, match="not a regular file"):
        opened(server, folder).local_copy(url)
    assert not place.is_file()


def test_verify_reads_every_copy(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rot that no time tells of: the record is made to say that nothing was changed."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": np.arange(200_000) % 60_000})
    for name in ("a.pbin", "a.pbin.penstock"):
        server.files[name] = (tmp_path / name).read_bytes()
    url = f"{server.url}/a.pbin"
    assert ps.verify(url, depth="full") == []
    copies = list((tmp_path / "cache" / "remote").glob("*.copy"))
    assert copies
    for copy in copies:
        data = bytearray(copy.read_bytes())
        data[len(data) // 2] ^= 1
        change(copy, bytes(data))
        record = json.loads(copy.with_suffix(".json").read_text())
        status = copy.stat()
        record["identity"] = [status.st_uid, status.st_ino, status.st_size, status.st_ctime_ns]
        change(copy.with_suffix(".json"), json.dumps(record).encode())
    server.log.clear()
    assert ps.verify(url, depth="full") == []
    assert any(start == 0 for start, _ in filter(None, server.gets())), "the damaged copy was read"


# --- servers that name versions badly --------------------------------------------------------------------------------


def test_a_weak_version_is_the_strong_one(server: FileServer, folder: Path) -> None:
    server.etags = "weak"
    store = opened(server, folder)
    assert store.size(f"{server.url}/a") == len(DATA)
    assert store.get_ranges(f"{server.url}/a", [(5, 10)]) == [DATA[5:10]]
    assert store.get(f"{server.url}/a") == DATA


def test_ranges_without_a_version_contradict_nothing(server: FileServer, folder: Path) -> None:
    server.etags = "whole"
    for first in (lambda one: one.size(f"{server.url}/a"), lambda one: one.get_ranges(f"{server.url}/a", [(0, 5)])):
        store = opened(server, folder)
        first(store)
        assert store.get_ranges(f"{server.url}/a", [(5, 10)]) == [DATA[5:10]]
        assert store.mapped_copy(f"{server.url}/a").tobytes() == DATA
    # HEAD names the version, so both are one copy; a replaced file is another.
    assert len(list((folder / "remote").glob("*.copy"))) == 1
    assert store.stats().copies == 0
    server.files["a"] = CHANGED
    assert opened(server, folder).mapped_copy(f"{server.url}/a").tobytes() == CHANGED
    # What is cut while it is read by ranges is another file all the same.
    store = opened(server, folder)
    assert store.get_ranges(f"{server.url}/b", [(0, 5)]) == [DATA[:5]]
    server.files["b"] = DATA[:-9]
    with pytest.raises(Corrupt, match="changed"):
        store.get_ranges(f"{server.url}/b", [(9, 15)])


OTHER_PROCESS = """
import sys
from penstock.store.cache import CachedStore
from penstock.store.remote import RemoteStore
store = CachedStore(RemoteStore(sys.argv[1]), sys.argv[2])
print(bytes(store.mapped_copy(sys.argv[1] + "/a")[:1]).hex(), store.stats().copies)
"""


def other_process(server: FileServer, folder: Path) -> list[str]:
    command = [sys.executable, "-c", OTHER_PROCESS, server.url, str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()


def test_without_a_version_a_copy_serves_one_run(server: FileServer, folder: Path) -> None:
    server.etags = "none"
    assert other_process(server, folder) == [DATA[:1].hex(), "1"]
    assert list((folder / "remote").glob("*.copy")) == []
    server.files["a"] = CHANGED  # of equal size
    assert other_process(server, folder) == [CHANGED[:1].hex(), "1"]
    store = opened(server, folder)
    for _ in range(3):
        assert store.mapped_copy(f"{server.url}/a").tobytes() == CHANGED
    assert opened(server, folder).mapped_copy(f"{server.url}/a").tobytes() == CHANGED  # this run goes on using it
    assert store.stats().copies == 1


WITH_A_WORKER = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from penstock.store.cache import CachedStore
from penstock.store.remote import RemoteStore

def copies(store, url):
    store.mapped_copy(url)
    return store.stats().copies

if __name__ == "__main__":
    how, server, folder = sys.argv[1:]
    store = CachedStore(RemoteStore(server), folder)
    store.mapped_copy(server + "/a")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(how)) as pool:
        print(pool.submit(copies, store, server + "/a").result(timeout=60))
"""


@pytest.mark.parametrize("how", ["forkserver", "spawn"])
def test_without_a_version_workers_of_a_run_share_its_copies(server: FileServer, folder: Path, how: str) -> None:
    server.etags = "none"
    script = folder.parent / "script.py"
    script.write_text(WITH_A_WORKER)
    command = [sys.executable, str(script), how, server.url, str(folder)]
    assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout == "0\n"
    assert list((folder / "remote").glob("*.copy")) == []


def test_without_a_version_what_is_unpickled_elsewhere_is_another_run(server: FileServer, folder: Path) -> None:
    server.etags = "none"
    store = opened(server, folder)
    store.mapped_copy(f"{server.url}/a")
    server.log.clear()
    script = "import pickle, sys; pickle.load(sys.stdin.buffer).mapped_copy(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, f"{server.url}/a"], input=pickle.dumps(store), check=True, timeout=60)
    assert server.gets() != []


def test_without_a_version_the_hashes_of_the_index_are_it(server: FileServer, folder: Path) -> None:
    server.etags = "none"
    url = f"{server.url}/a"
    opened(server, folder).mapped_copy(url, hashes=SHA1)
    server.log.clear()
    assert opened(server, folder).mapped_copy(url, hashes=SHA1).tobytes() == DATA
    assert server.gets() == []
    server.files["a"] = CHANGED
    other = {"sha1": hashlib.sha1(CHANGED).hexdigest()}
    assert opened(server, folder).mapped_copy(url, hashes=other).tobytes() == CHANGED


# --- folders that take nothing ---------------------------------------------------------------------------------------


def test_on_a_full_disk_ranges_go_on(
    server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = shutil.disk_usage("/")
    monkeypatch.setattr(_copies.shutil, "disk_usage", lambda path: disk._replace(free=0))
    store = opened(server, folder)
    with caplog.at_level(logging.WARNING, logger="penstock"):
        assert [store.get_ranges(f"{server.url}/a", [(n, n + 9)]) for n in range(40)] == [
            [DATA[n : n + 9]] for n in range(40)
        ]
    assert len(server.gets()) == 40
    assert caplog.text.count("can't store a copy") == 1
    assert str(folder) in caplog.text
    assert f"room for {len(DATA)} bytes" in caplog.text
    # What is needed whole is read into memory, and checked as a copy is.
    assert store.mapped_copy(f"{server.url}/b", hashes=SHA1).tobytes() == DATA
    server.files["c"] = CHANGED
    with pytest.raises(Corrupt, match="sha1"):
        store.mapped_copy(f"{server.url}/c", hashes=SHA1)
    with pytest.raises(NoCopy, match=rf"{folder}.*room for {len(DATA)} bytes.*PENSTOCK_CACHE"):
        store.local_copy(f"{server.url}/b")
    monkeypatch.setattr("penstock.store.cache._IN_MEMORY_BYTES", 1000)
    with pytest.raises(ConfigError, match="room for"):
        store.mapped_copy(f"{server.url}/b")


@pytest.mark.filterwarnings("error")
def test_a_disk_that_gets_full_at_any_operation(server: FileServer, folder: Path) -> None:
    url = f"{server.url}/a"
    with faults_everywhere(FaultyOs()) as counting:
        opened(server, folder).mapped_copy(url)
    assert counting.operations > 5
    for n in range(1, counting.operations + 1):
        with faults_everywhere(FaultyOs(n, "enospc")):
            assert opened(server, folder / str(n)).mapped_copy(url).tobytes() == DATA
            assert opened(server, folder / f"{n}r").get_ranges(url, [(5, 10)]) == [DATA[5:10]]
        assert opened(server, folder / str(n)).mapped_copy(url).tobytes() == DATA


def test_a_server_without_ranges_and_a_full_disk_is_said(
    server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.always = "whole"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_copies, "hold_lock", full)
    with pytest.raises(NoCopy, match="No space left"):
        opened(server, folder).get_ranges(f"{server.url}/a", [(5, 10)])


# --- several users ---------------------------------------------------------------------------------------------------


def by_user(uid: int, work: Callable[[], object]) -> None:
    """Run `work` in a child with another user's rights; it fails where the child does."""
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        status = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            work()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


class Fetched(Remote):
    """A remote store in memory, which works after a fork."""

    def __init__(self, data: bytes = DATA) -> None:
        super().__init__()
        self.data = data

    def head(self, path: str) -> Any:
        from penstock.store.base import Head

        return Head(len(self.data), "1")

    def fetch(self, path: str, ranges: Any) -> Any:
        self.counters.mine.requests += 1
        return [self.data[start:stop] for start, stop in ranges], self.head(path)

    def store(self, folder: Path) -> CachedStore:
        return CachedStore(self, str(folder))


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder that other users can reach."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name) / "cache"


def reads(folder: Path, requests: int, hashes: dict[str, str], data: bytes = DATA) -> Callable[[], None]:
    """Work that reads ranges of the file and all of it, by a number of requests."""

    def work() -> None:
        store = Fetched(data).store(folder)
        store.head("x/a")
        store.expect_hashes("x/a", hashes) if hashes else None
        for start in range(3):
            if store.get_ranges("x/a", [(start, start + 9)]) != [DATA[start : start + 9]]:
                raise AssertionError("wrong bytes")
        if store.mapped_copy("x/a").tobytes() != DATA:
            raise AssertionError("wrong bytes")
        if store.stats().requests != requests:
            raise AssertionError(f"{store.stats().requests} requests")

    return work


@as_root
@pytest.mark.parametrize("hashes", [{}, SHA1])
def test_a_cache_that_one_may_only_read(shared: Path, hashes: dict[str, str]) -> None:
    copy = Path(Fetched().store(shared).local_copy("x/a", hashes=hashes))
    by_user(65_001, reads(shared, 0, hashes))
    change(copy)
    # Three ranges and the whole: the wrong copy is not used, and can't be replaced.
    by_user(65_001, reads(shared, 4, hashes))
    by_user(0, reads(shared, 4, hashes))  # its owner can
    by_user(65_001, reads(shared, 0, hashes))


@as_root
def test_a_cache_that_a_user_can_not_even_look_into(shared: Path) -> None:
    Fetched().store(shared).local_copy("x/a")
    (shared / "remote").chmod(0o700)
    by_user(65_001, reads(shared, 4, {}))
    derived = DerivedCache(str(shared))
    derived.array("key", "int64", lambda: np.arange(9))
    (shared / "derived").chmod(0o700)

    def build() -> None:
        assert derived.array("key", "int64", lambda: np.arange(9)).tolist() == list(range(9))

    by_user(65_001, build)


@as_root
def test_a_cache_that_a_group_writes(shared: Path) -> None:
    (shared / "remote").mkdir(parents=True)
    for name in (shared, shared / "remote"):
        os.chown(name, 65_001, 65_002)
        os.chmod(name, 0o2775)
    by_user(65_002, reads(shared, 4, {}))
    by_user(65_003, reads(shared, 0, {}))  # others who may write here are a group that the owner chose


@as_root
def test_in_a_folder_that_everybody_writes_only_hashes_prove(shared: Path) -> None:
    (shared / "remote").mkdir(parents=True)
    for name in (shared, shared / "remote"):
        os.chmod(name, 0o1777)
    by_user(65_001, reads(shared, 4, SHA1))
    by_user(65_002, reads(shared, 0, SHA1))  # shared, and proved by each of them

    def plant() -> None:
        remote = Fetched(CHANGED)
        remote.store(shared).local_copy("x/b")

    by_user(65_001, plant)

    def victim() -> None:
        store = Fetched().store(shared)
        store.head("x/b")
        assert store.get_ranges("x/b", [(0, 9)]) == [DATA[:9]]
        assert store.mapped_copy("x/b").tobytes() == DATA

    by_user(65_002, victim)


# --- derived arrays --------------------------------------------------------------------------------------------------


def never() -> IntArray:
    raise AssertionError("built again")


def poisoned(path: Path) -> None:
    values = np.load(path)
    values[3] = 77
    np.save(path.with_name("other.npy"), values)
    change(path, path.with_name("other.npy").read_bytes()[: path.stat().st_size])


def test_a_changed_array_is_computed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DerivedCache(str(tmp_path))
    cache.array("key", "int64", lambda: np.arange(1000))
    path = tmp_path / "derived" / "key.npy"
    poisoned(path)
    assert np.load(path)[3] == 77
    with caplog.at_level(logging.WARNING, logger="penstock"):
        assert cache.array("key", "int64", lambda: np.arange(1000)).tolist() == list(range(1000))
    assert str(path) in caplog.text
    assert cache.array("key", "int64", never)[3] == 3


def test_an_array_of_another_key_is_none(tmp_path: Path) -> None:
    cache = DerivedCache(str(tmp_path))
    for key in ("one", "two"):
        cache.array(key, "int64", lambda: np.arange(9) if key == "one" else np.arange(9) + 1)  # noqa: B023
    for kind in ("npy", "json"):
        os.replace(tmp_path / "derived" / f"one.{kind}", tmp_path / "derived" / f"two.{kind}")
    assert cache.array("two", "int64", lambda: np.arange(9) + 1)[0] == 1


def test_an_array_that_was_moved_is_read_once(tmp_path: Path, digests: list[int]) -> None:
    DerivedCache(str(tmp_path / "a")).array("key", "int64", lambda: np.arange(1000))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for _ in range(3):
        assert DerivedCache(str(tmp_path / "b")).array("key", "int64", never)[999] == 999
    assert digests == [8000]


@as_root
def test_an_array_that_another_user_planted(shared: Path) -> None:
    folder = shared / "derived"
    folder.mkdir(parents=True)
    for name in (shared, folder):
        name.chmod(0o777)

    def plant() -> None:
        DerivedCache(str(shared)).array("key", "int64", lambda: np.arange(9) + 1)

    by_user(65_001, plant)
    assert DerivedCache(str(shared)).array("key", "int64", lambda: np.arange(9)).tolist() == list(range(9))
    assert DerivedCache(str(shared)).array("key", "int64", never)[0] == 0

    def mine() -> None:  # root's are believed
        DerivedCache(str(shared)).array("key", "int64", never)

    by_user(65_001, mine)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_a_lock_that_is_no_file(kind: str, server: FileServer, folder: Path, tmp_path: Path) -> None:
    """Through a link in its place, the file of somebody else was cut to the size of the copy."""
    server.files["a"] = bytes(1000)
    url = f"{server.url}/a"
    assert len(opened(server, folder).mapped_copy(url)) == 1000
    (copy,) = (folder / "remote").glob("*.copy")
    copy.unlink()
    lock = copy.with_suffix(".lock")
    precious = tmp_path / "precious"
    precious.write_bytes(b"p" * 5000)
    if kind == "link":
        lock.symlink_to(precious)
    elif kind == "fifo":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    assert bytes(opened(server, folder).mapped_copy(url)) == server.files["a"]
    assert precious.read_bytes() == b"p" * 5000

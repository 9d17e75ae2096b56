"""Shard datasets written to an object store: what goes up when, and what a writer that ended early leaves."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.internals import INDEX_NAME, LocalStaged, Objects, main
from tests.store.objects import objects

import penstock as ps
from penstock.compat.streaming import MDSWriter
from penstock.errors import ConfigError, NotFound, PrepareError, Unreachable
from penstock.store import object_folder, resolve

Calls = list[tuple[str, str]]
MARK = ".index.json.writing.staged"
SHARD_BYTES = 64


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def url(tmp_path: Path, s3_server: str) -> str:
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """(method, name) of each request that changes or asks for something."""
    made: Calls = []

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(Objects, name)

        def call(self: Objects, key: str, *given: Any, **named: Any) -> Any:
            made.append((name, key.rpartition("/")[2]))
            return original(self, key, *given, **named)

        return call

    for name in ("head", "read", "list", "put", "copy", "delete"):
        monkeypatch.setattr(Objects, name, counted(name))
    return made


def write(target: str, shards: int, format: str = "mds", **options: Any) -> None:
    with ps.create(target, format=format, columns={"n": "bytes" if format == "mds" else "int"}, **options) as writer:
        for number in range(shards):
            writer.write({"n": b"%060d" % number} if format == "mds" else {"n": 10**15 + number})


def one_a_shard(target: str, shards: int, **options: Any) -> None:
    write(target, shards, size_limit=200, **options)


def open_paths() -> Iterator[str]:
    """What this process has open."""
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{one}")


def on_disk(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def in_a_child(code: str, *, files: int | None = None) -> subprocess.CompletedProcess[str]:
    limit = (
        "" if files is None else f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))\n"
    )
    start = f"{limit}import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_upload import *\n"
    return subprocess.run(
        [sys.executable, "-c", start + code], capture_output=True, text=True, timeout=100, check=False
    )


def test_more_shards_than_open_files(url: str, tmp_path: Path) -> None:
    done = in_a_child(f"one_a_shard({url!r}, 150)", files=100)
    assert done.returncode == 0, done.stderr
    one_a_shard(str(tmp_path / "here"), 150)
    assert objects(url) == on_disk(tmp_path / "here")


@pytest.mark.parametrize("format", ["mds", "csv", "json-shards"])
def test_the_same_bytes_as_on_disk(format: str, url: str, tmp_path: Path) -> None:
    for target in (url, str(tmp_path / "here")):
        write(target, 20, format, size_limit=300)
    assert objects(url) == on_disk(tmp_path / "here")
    assert len(objects(url)) > 4


def test_requests_and_open_files_grow_with_nothing_but_shards(
    url: str, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    put = Objects.put

    def watched(*given: Any, **named: Any) -> bool:
        nonlocal most
        most = max(most, sum("/upload/" in one for one in open_paths()))
        return put(*given, **named)

    monkeypatch.setattr(Objects, "put", watched)
    counts, open_files = [], []
    for shards in (6, 60):
        calls.clear()
        most = 0
        one_a_shard(f"{url}/{shards}", shards)
        counts.append(len(calls))
        open_files.append(most)
        assert sum(call == ("put", f"shard.{shards - 1:05d}.mds") for call in calls) == 1
        assert not [call for call in calls if call[0] == "copy"]
    # For each shard more: is this still ours, and its bytes; and the fingerprint looks at 16 of them, not at 7.
    assert counts[1] - counts[0] == 54 * 2 + 16 - 7
    assert max(open_files) <= 10  # written and read by four threads, and the mark


def test_each_shard_is_up_before_the_writer_ends(url: str) -> None:
    writer = ps.create(url, format="mds", columns={"n": "bytes"}, size_limit=200)
    for number in range(50):
        writer.write({"n": b"%060d" % number})
    names: set[str] = set()
    while len(names) <= 10:  # four threads are at it
        names = set(objects(url))
    assert MARK in names
    with pytest.raises(NotFound):
        ps.open(url, format="mds")
    writer.commit()
    assert len(ps.open(url)) == 50
    assert MARK not in objects(url)


def killed(url: str, shards: int) -> set[str]:
    """Names that a writer leaves which is killed behind so many shards."""
    code = f"""
import time
object_folder.SAVE_EVERY = 2
writer = ps.create({url!r}, format="mds", columns={{"n": "bytes"}}, size_limit=200)
for number in range(1000):
    writer.write({{"n": b"%060d" % number}})
    while number > {shards} and len(objects({url!r})) < {shards}:
        time.sleep(0.01)
    if number > {shards}:
        os._exit(9)
"""
    done = in_a_child(code)
    assert done.returncode == 9, done.stderr
    return set(objects(url))


def test_a_killed_writer_is_gone_on_with(url: str, tmp_path: Path, calls: Calls) -> None:
    left = killed(url, 12)
    assert MARK in left
    calls.clear()
    one_a_shard(url, 14)
    one_a_shard(str(tmp_path / "here"), 14)
    assert objects(url) == on_disk(tmp_path / "here")
    put = {name for method, name in calls if method == "put" and name.startswith("shard.")}
    assert put < {name for name in on_disk(tmp_path / "here") if name.startswith("shard.")}


def test_what_it_left_beyond_is_removed(url: str, tmp_path: Path) -> None:
    assert len(killed(url, 12)) > 6
    one_a_shard(url, 3)
    one_a_shard(str(tmp_path / "here"), 3)
    assert objects(url) == on_disk(tmp_path / "here")


def test_other_samples_take_nothing_over(url: str, tmp_path: Path) -> None:
    killed(url, 12)
    for target in (url, str(tmp_path / "here")):
        with ps.create(target, format="mds", columns={"n": "bytes"}, size_limit=200) as writer:
            for number in range(14):
                writer.write({"n": b"%060d" % -number})
    assert objects(url) == on_disk(tmp_path / "here")


def test_a_store_that_is_lost_costs_nothing_that_is_up(
    url: str, tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_folder, "SAVE_EVERY", 1)
    put = Objects.put

    def lost(self: Objects, key: str, *given: Any, **named: Any) -> bool:
        if "shard.00009" in key:
            raise Unreachable("the store doesn't answer", path=key)
        return put(self, key, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "put", lost)
        with pytest.raises(Unreachable):
            one_a_shard(url, 30)
    there = {name for name in objects(url) if name.startswith("shard.")}
    assert len(there) >= 5
    calls.clear()
    one_a_shard(url, 30)
    one_a_shard(str(tmp_path / "here"), 30)
    assert objects(url) == on_disk(tmp_path / "here")
    again = there & {name for method, name in calls if method == "put"}
    assert len(again) <= 4  # those that were under way


def test_an_error_of_the_caller_leaves_nothing(url: str, cache: Path) -> None:
    def fail() -> None:
        with ps.create(url, format="mds", columns={"n": "bytes"}, size_limit=200) as writer:
            for number in range(50):
                writer.write({"n": b"%060d" % number})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert objects(url) == {}
    assert not [one for one in cache.rglob("upload/*") if one.is_file()]


def test_two_writers(url: str) -> None:
    with ps.create(url, format="mds", columns={"n": "int"}) as first:
        first.write({"n": 1})
        with pytest.raises(PrepareError, match="another run is writing"):
            ps.create(url, format="mds", columns={"n": "int"})
    assert len(ps.open(url)) == 1
    with pytest.raises(ConfigError, match="the output exists"):
        ps.create(url, format="mds", columns={"n": "int"})


def test_a_writer_on_another_machine(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = ps.create(url, format="mds", columns={"n": "int"})
    first.write({"n": 1})
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "elsewhere"))
    with pytest.raises(PrepareError, match=r"another machine.*overwrite"):
        ps.create(url, format="mds", columns={"n": "int"})
    with ps.create(url, format="mds", columns={"n": "int"}, overwrite=True) as second:
        second.write({"n": 2})
    with pytest.raises(PrepareError, match="took over this output"):
        first.commit()
    first.abort()
    assert ps.open(url)[0] == {"n": 2}


def test_files_that_no_writer_left(url: str) -> None:
    store, root = resolve(url)
    staged = store.stage(f"{root}/shard.00000.mds")
    staged.write(b"mine")
    staged.commit()
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"no index\.json: found shard\.00000\.mds"):
            ps.create(url, format="mds", columns={"n": "int"}, overwrite=overwrite)
    assert objects(url) == {"shard.00000.mds": b"mine"}


def test_a_copy_of_many_shards(url: str, tmp_path: Path) -> None:
    code = f"""
out = ({str(tmp_path / "here")!r}, {url!r})
with MDSWriter(out=out, keep_local=True, columns={{"n": "bytes"}}, size_limit=200) as writer:
    for number in range(150):
        writer.write({{"n": b"%060d" % number}})
"""
    done = in_a_child(code, files=100)
    assert done.returncode == 0, done.stderr
    assert objects(url) == on_disk(tmp_path / "here")


__all__ = ["MDSWriter", "object_folder", "objects", "one_a_shard", "os", "ps"]


@pytest.mark.parametrize("alive", [True, False])
def test_an_unfinished_output_is_said_to_be_one(alive: bool, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`penstock repair --write` was named, and put an index over what a living writer was still writing."""
    writer = ps.create(url, format="mds", columns={"n": "bytes"}, size_limit=200)
    for number in range(12):
        writer.write({"n": b"%060d" % number})
    if not alive:
        lock: Any = writer
        lock._out._folder._held.close()
    for given in ({}, {"format": "mds"}):
        with pytest.raises(NotFound, match="a write is running or was interrupted") as caught:
            ps.open(url, **given)
        assert "repair" not in str(caught.value)
    for line in (["verify", url], ["repair", url, "--write"]):
        with pytest.raises(SystemExit):
            main(line)
    said = "".join(capsys.readouterr())
    assert "shards.unfinished" in said
    assert INDEX_NAME not in objects(url)
    if alive:
        writer.__exit__(None, None, None)
        assert len(ps.open(url)) == 12


@pytest.mark.parametrize("place", [0, 3, 40])
def test_a_full_cache_folder_leaves_what_is_up(place: int, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a bare OSError, without the folder."""
    original, left = LocalStaged.sync, [place]

    def sync(self: LocalStaged) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStaged, "sync", sync)
        with pytest.raises(ConfigError, match=r"the cache folder can't hold .* No space left") as caught:
            one_a_shard(url, 60)
        assert "PENSTOCK_CACHE" in str(caught.value)
    up = {name for name in objects(url) if name.startswith("shard.")}
    assert bool(up) == (place > 0)
    one_a_shard(url, 60)
    assert len(ps.open(url)) == 60


def test_another_cache_folder_of_this_machine_goes_on(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full cache folder says to name another one: that was taken for another machine."""
    writer: Any = ps.create(url, format="mds", columns={"n": "bytes"}, size_limit=200)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "roomy"))
    with pytest.raises(PrepareError, match="another machine or cache folder"):
        one_a_shard(url, 5)
    writer._out._folder._held.close()
    one_a_shard(url, 5)
    assert len(ps.open(url)) == 5


def test_shards_that_lie_there_without_an_index_are_told_as_such(url: str) -> None:
    one_a_shard(url, 3)
    store, folder = resolve(url)
    for name in (INDEX_NAME, "shard.00000.mds"):
        store.delete(f"{folder}/{name}")
    with pytest.raises(NotFound, match=r"index\.json: no index\. Re-run the interrupted command .*`penstock repair`"):
        ps.open(url)

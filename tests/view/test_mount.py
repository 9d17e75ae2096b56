"""Mounted WebDatasets: what is in the folder, and what is refused. Through FUSE where this system has it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from tests.internals import MountedFiles as Files
from tests.internals import build_tree, mount, open_files, prepare_webdataset

import penstock as ps
from penstock.errors import ConfigError, NotFound, UnsafeData

GOLDEN = Path(__file__).parent.parent / "golden" / "energon"
_PATIENCE_S = 60.0


def _has_fuse() -> bool:
    try:
        import mfusepy  # noqa: F401
    except OSError:
        return False
    return os.access("/dev/fuse", os.R_OK | os.W_OK) and shutil.which("fusermount3") is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A prepared dataset with folders in its keys."""
    with ps.create(tmp_path / "set", format="webdataset", maxcount=3) as writer:
        for number in range(7):
            writer.write({"__key__": f"a/s{number}", "txt": f"text {number}", "seg.bin": bytes(range(256)) * number})
        writer.write({"__key__": "top", "json": {"n": 1}})
    return tmp_path / "set"


def listing(files: Files, path: str = "/") -> list[str]:
    return [name for name in files.readdir(path) if name not in (".", "..")]


@pytest.mark.parametrize("with_index", [True, False])
def test_flat(folder: Path, with_index: bool) -> None:
    if not with_index:
        (folder / ".nv-meta" / "index.sqlite").unlink()
    files = open_files(folder)
    assert listing(files) == ["a", "top.json"]
    assert sorted(listing(files, "/a"))[:2] == ["s0.seg.bin", "s0.txt"]
    assert files.read("/a/s3.txt", 100, 0) == b"text 3"
    assert files.read("/a/s3.txt", 2, 5) == b"3"
    assert files.read("/a/s3.txt", 2, 99) == b""
    found = files.getattr("/a/s3.seg.bin")
    assert (found["st_size"], oct(found["st_mode"]), found["st_uid"]) == (768, "0o100444", os.getuid())
    assert oct(files.getattr("/a")["st_mode"]) == "0o40555"
    assert files.getattr("/")["st_mtime"] == folder.stat().st_mtime


def test_by_sample(folder: Path) -> None:
    files = open_files(folder, by_sample=True)
    assert listing(files) == ["a", "top"]
    assert listing(files, "/a/s2") == ["txt", "seg.bin"]
    assert files.read("/a/s2/txt", 100, 0) == b"text 2"
    assert files.getattr("/a/s2")["st_size"] == 512 + 6


def test_what_is_not_there_and_what_is_not_allowed(folder: Path) -> None:
    files = open_files(folder)
    calls: list[tuple[Callable[[], object], int]] = [
        (lambda: files.getattr("/nothing"), errno.ENOENT),
        (lambda: files.readdir("/top.json"), errno.ENOENT),
        (lambda: files.read("/a", 1, 0), errno.ENOENT),
        (lambda: files.open("/nothing", os.O_RDONLY), errno.ENOENT),
        (lambda: files.open("/top.json", os.O_WRONLY), errno.EROFS),
    ]
    for call, number in calls:
        with pytest.raises(OSError, match=os.strerror(number)):
            call()
    assert files.open("/top.json", os.O_RDONLY) == 0


@pytest.mark.parametrize("key", ["../up", "/abs", "a/../../up", "a/.."])
@pytest.mark.parametrize("by_sample", [True, False])
def test_keys_that_leave_the_folder(key: str, by_sample: bool) -> None:
    with pytest.raises(UnsafeData, match="points outside the folder"):
        build_tree(iter([(0, key, "txt", 0, 1)]), by_sample=by_sample)


def test_names_no_file_can_have() -> None:
    for key, part in (("a\0b", "txt"), ("k" * 300, "txt")):
        with pytest.raises(ConfigError):
            build_tree(iter([(0, key, part, 0, 1)]))
    for rows in ([("x", "y"), ("x.y/z", "t")], [("x.y/z", "t"), ("x", "y")]):
        with pytest.raises(ConfigError, match="a file and a folder"):
            build_tree((0, key, part, 0, 1) for key, part in rows)
    tree = build_tree(iter([(0, "./d//k", "txt", 0, 1), (0, "d/k", "txt", 9, 9)]))
    assert tree.files == {"d/k.txt": (0, 0, 1)}


def test_data_of_old_versions_and_awkward_ones(tmp_path: Path) -> None:
    old = shutil.copytree(GOLDEN / "captioning", tmp_path / "old")
    prepare_webdataset(old, split_ratio=(1, 0, 0), overwrite=True, sqlite=False)
    assert len(listing(open_files(old, by_sample=True))) == 40


def test_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="the mount point doesn't exist"):
        mount(folder, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="not empty"):
        mount(folder, str(folder))


@contextlib.contextmanager
def mounted(
    folder: Path, point: Path, *flags: str, cwd: Path = Path("/"), ends_by: signal.Signals = signal.SIGINT
) -> Generator[None]:
    command = [sys.executable, "-m", "penstock", "mount", *flags, str(folder), str(point)]
    point = cwd / point
    point.mkdir()
    process = subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not os.path.ismount(point):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(ends_by)
        said = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 0, said
    assert not os.path.ismount(point)
    assert os.listdir(point) == []


def tree_of(point: Path) -> dict[str, bytes]:
    return {str(path.relative_to(point)): path.read_bytes() for path in point.rglob("*") if path.is_file()}


@pytest.mark.parametrize("flags", [(), ("--sample-folders",)])
def test_real_mounts(folder: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The same through the kernel; without FUSE the operations are asked themselves."""
    source = ps.open(folder, raw=True)
    join = "/" if flags else "."
    wanted = {
        f"{one['__key__']}{join}{part}": bytes(one[part]) for one in source for part in one if not part.startswith("__")
    }
    if not _has_fuse():
        files = open_files(folder, by_sample=bool(flags))
        assert {name: files.read(f"/{name}", 1 << 20, 0) for name in wanted} == wanted
        return
    with mounted(folder, tmp_path / "point", *flags):
        assert tree_of(tmp_path / "point") == wanted
        with pytest.raises(OSError, match="Read-only"):
            (tmp_path / "point" / "new").write_text("x")


def processes_at(point: Path) -> list[str]:
    """Processes that were started with this mount point."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(point).encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


@pytest.mark.skipif(not _has_fuse(), reason="FUSE isn't available")
@pytest.mark.parametrize("command", [["mount"], ["energon", "mount"]])
def test_detached(folder: Path, tmp_path: Path, command: list[str]) -> None:
    """From a relative path; the process in the background ends when the folder is unmounted."""
    point = tmp_path / "detached"
    point.mkdir()
    arguments = [sys.executable, "-m", "penstock", *command, "-d", "--json", folder.name, str(point)]
    done = subprocess.run(arguments, cwd=folder.parent, capture_output=True, check=True, timeout=_PATIENCE_S)
    assert json.loads(done.stdout)["mountpoint"] == str(point)
    try:
        assert len(processes_at(point)) == 1
        assert (point / "a" / "s3.txt").read_bytes() == b"text 3"
        assert len(tree_of(point)) == 15
    finally:
        subprocess.run(["fusermount3", "-u", str(point)], check=True)
    assert not os.path.ismount(point)
    deadline = time.monotonic() + _PATIENCE_S
    while processes_at(point) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_at(point) == []


@pytest.mark.skipif(not _has_fuse(), reason="FUSE isn't available")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_relative_path_and_a_clean_end(folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    with mounted(Path(folder.name), Path("point"), cwd=tmp_path, ends_by=number):
        assert (tmp_path / "point" / "a" / "s3.txt").read_bytes() == b"text 3"

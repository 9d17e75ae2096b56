"""Faults of every verb, a sample of what `make crash` does: failing calls, a full disk, no rights."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import each_fault
import failing
import scenarios
import verbs
from tests.internals import COMMANDS

SEED = int(os.environ.get("CRASH_SEED", "1"))
FAULTS = 2
DISK_BYTES = 8 << 20
BY_NAME = {verb.name: verb for verb in verbs.VERBS}
WRITING = [verb.name for verb in verbs.VERBS if verb.arguments[0] not in each_fault.READS]


@pytest.fixture(scope="module", autouse=True)
def inputs_made_once() -> None:
    """Here, before all the children that would."""
    scenarios.pack_inputs()


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place; others may look in."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def disk(folder: Path) -> Iterator[Path]:
    """A small file system of its own."""
    place = folder / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", place],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_verb_says_what_failed(name: str, folder: Path) -> None:
    one = each_fault.Round(BY_NAME[name], folder / "round")
    one.begin()
    assert len(list(one.faults())) >= 8
    problems = {f"{fault}: {problem}" for fault in one.some(FAULTS, SEED) for problem in one.fail(fault)}
    if os.getuid() == 0:
        problems |= {f"{mode:o}: {problem}" for mode in (0o555, 0) for problem in one.without_rights(mode)}
    assert not problems


@pytest.mark.parametrize("name", [name for name in WRITING if not name.startswith("demo")])
def test_a_full_disk_is_named(name: str, folder: Path, disk: Path) -> None:
    one = each_fault.Round(BY_NAME[name], folder / "round", disk)
    one.begin()
    free_bytes = random.Random(f"{SEED} {name}").choice((1 << 12, 1 << 14, 1 << 16))
    assert not [problem for free in (0, free_bytes) for problem in one.with_free_bytes(free)]


def test_every_verb_is_there() -> None:
    # One needs FUSE; the others write no data.
    others = {"mount", "view", "doctor", "completion", "cache"}
    assert {verb.arguments[0] for verb in verbs.VERBS} == set(COMMANDS) - others


def test_the_hook_fails_each_kind_of_call(folder: Path) -> None:
    work = """
import os, mmap, sqlite3
with open("a", "w") as file: file.write("x")
with open("a", "rb") as file: file.read()
os.stat("a")
os.rename("a", "b")
fd = os.open("b", os.O_RDWR)
os.pread(fd, 1, 0), mmap.mmap(fd, 1), os.fsync(fd), os.listdir(".")
sqlite3.connect("c").execute("CREATE TABLE t (a)")
"""
    (folder / "run").mkdir()
    one = each_fault.Round(verbs.Verb((), lambda _: None), folder)
    notes = folder / "notes"

    def run(fault: failing.Fault) -> each_fault.Ended:
        return one.child(lambda: (failing.install(fault), exec(work)))

    assert run(failing.Fault(str(folder / "run"), notes=str(notes))).status == 0
    names = [name for name, _ in failing.calls_in(notes)]
    kinds = ["create", "write", "open", "read", "stat", "rename", "open", "pread", "mmap", "fsync", "sql", "sql"]
    assert [name for name in names if name in kinds] == kinds
    for at, name in enumerate(names, 1):
        ended = run(failing.Fault(str(folder / "run"), at, "EIO"))
        assert ended.status != 0, name
        assert "disk I/O error" in ended.err if name == "sql" else "Input/output error" in ended.err

"""Kills of all that writes, a sample of what `make crash` does; and the hook that counts calls misses none."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import cases
import each_call
import hook
import scenarios
import traced

SEED = int(os.environ.get("CRASH_SEED", "1"))
KILLS, FEW = 3, 2
TRACED = ("merge mds", "convert to flat-tokens", "prepare", "prepare-media", "pack to pbin by processes")
BY_NAME = {case.name: case for case in cases.CASES}


@pytest.fixture(scope="module", autouse=True)
def inputs_made_once() -> None:
    """Here, before all the children that would."""
    scenarios.pack_inputs()


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: hundreds of cases wait for the disk otherwise."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> each_call.Bucket:
    """The bucket of a case that writes to one, else none."""
    if not BY_NAME[request.node.callspec.params["name"]].remote:
        return each_call.Bucket()
    request.getfixturevalue("s3_server")
    return each_call.Bucket(cases.BUCKET, served=True)


@pytest.mark.parametrize("name", BY_NAME)
def test_killed(name: str, folder: Path, bucket: each_call.Bucket) -> None:
    case = BY_NAME[name]
    rng = random.Random(f"{SEED} {name}")
    one = each_call.Round(case, folder / "round", case.old is not None and rng.random() < 0.5, bucket)
    one.begin()
    assert len(list(one.kills())) >= 8
    problems = {
        f"{kill}: {problem}"
        for kill in one.some(FEW if case.workers or case.remote or "files of" in name else KILLS, SEED)
        for problem in one.kill(kill)
    }
    first, second = one.some(2, f"{SEED} twice")
    assert not problems | {f"{first}, {second}: {problem}" for problem in one.kill_twice(first, second)}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("name", TRACED)
def test_the_hook_misses_no_call(name: str, folder: Path) -> None:
    """What strace sees change below the folder, the hook has counted; SQLite's own calls are counted as statements."""
    number = next(number for number, case in enumerate(cases.CASES) if case.name == name)
    one = each_call.Round(cases.CASES[number], folder / "round", BY_NAME[name].old is not None, each_call.Bucket())
    one.begin()
    one.restore()
    notes = folder / "notes"
    notes.mkdir()
    environment = {**os.environ, "PENSTOCK_CACHE": str(one.folder / "cache"), "TMPDIR": str(folder)}
    try:
        traced.run(number, one.folder, notes, with_old=one.with_old, environment=environment)
    except subprocess.CalledProcessError:
        if "ptrace" in (notes / "said").read_text():
            pytest.skip("processes can't be traced here")
        raise
    seen, noted = Counter(traced.seen_by_strace(notes, one.folder)), Counter(traced.seen_by_hook(notes))
    databases = {call.rpartition(" ")[2] for call in noted if call.startswith("sql ")}
    assert sum(seen.values()) >= 10
    assert {call for call in seen - noted if call.rpartition(" ")[2] not in databases} == set()
    assert {call for call in noted - seen if not call.startswith("sql ")} == set()


def test_the_hook_counts_and_kills(folder: Path) -> None:
    root, notes = folder / "root", folder / "notes"
    for made in (root, notes):
        made.mkdir()

    def work() -> None:
        (root / "a").write_bytes(b"12345678")
        os.rename(root / "a", root / "b")
        fd = os.open(root / "c", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"12345678")
        os.close(fd)
        (folder / "outside").write_bytes(b"")
        with importlib.import_module("tempfile").TemporaryDirectory(dir=root):
            pass
        shutil.rmtree(root, ignore_errors=True)

    def hooked(plan: hook.Plan) -> None:
        hook.install(plan)
        work()

    status, said = each_call.in_child(lambda: hooked(hook.Plan(str(root), str(notes), noted=True)))
    assert (status, said) == (0, "")
    names = [call.name for call in hook.calls_in(str(notes))]
    assert names[:4] == ["open", "rename", "open", "write"]
    assert names[4:6] == ["mkdir", "rmdir"]
    assert sorted(names[6:]) == ["unlink", "unlink"]
    for moment, left in (("before", b""), ("torn", b"1234"), ("after", b"12345678")):
        root.mkdir(exist_ok=True)
        (notes / "died").unlink(missing_ok=True)
        plan: Any = hook.Plan(str(root), str(notes), 4, moment)
        assert each_call.in_child(lambda plan=plan: hooked(plan))[0] == -9
        assert (root / "c").read_bytes() == left
        assert not (root / "a").exists()


def good(folder: Path, overwrite: bool) -> None:
    from penstock.store import LocalStore

    staged = LocalStore().stage(str(folder / "out"), overwrite=True)
    staged.write(b"new" * 10)
    staged.commit()


def in_place(folder: Path, overwrite: bool) -> None:
    with open(folder / "out", "wb", buffering=0) as file:
        os.write(file.fileno(), b"new")
        os.write(file.fileno(), b"new")


def sweeps_the_next_time(folder: Path, overwrite: bool) -> None:
    (folder / "beside").write_bytes(b"")
    good(folder, overwrite)
    (folder / "beside").unlink(missing_ok=True)


def leaves_a_file(folder: Path, overwrite: bool) -> None:
    beside = folder / f"beside.{os.getpid()}"
    beside.write_bytes(b"")
    good(folder, overwrite)
    beside.unlink()


def cannot_go_on(folder: Path, overwrite: bool) -> None:
    os.mkdir(folder / "lock")
    good(folder, overwrite)
    os.rmdir(folder / "lock")


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (good, None),
        (in_place, "neither old nor new is there"),
        (sweeps_the_next_time, None),
        (leaves_a_file, "left over"),
        (cannot_go_on, "the same again ended with 2"),
    ],
)
def test_what_breaks_the_law_is_found(folder: Path, work: Any, said: str | None) -> None:
    case = each_call.Case(
        "a test", cases.nothing, work, cases.file_of("out"), lambda at: (at / "out").write_bytes(b"old")
    )
    found: list[str] = []
    for with_old in (False, True):
        one = each_call.Round(case, folder / "round", with_old, each_call.Bucket())
        one.begin()
        found += [problem for kill in one.kills() for problem in one.kill(kill)]
    if said is None:
        assert found == []
    else:
        assert any(said in one for one in found)

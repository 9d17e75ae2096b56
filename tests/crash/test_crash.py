"""The crash tests notice what is not atomic."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.internals import WRITER_MODULES, system_calls

from penstock.store import LocalStore

for _name in WRITER_MODULES:  # once, before all the children that would
    importlib.import_module(_name)


@pytest.fixture(scope="module")
def faults() -> Iterator[ModuleType]:
    """The modules beside this one, as `run.py` imports them."""
    before, here = dict(os.environ), str(Path(__file__).parent)
    sys.path.insert(0, here)
    try:
        importlib.import_module("scenarios")
        yield importlib.import_module("faults")
    finally:
        sys.path.remove(here)
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: hundreds of cases wait for the disk otherwise."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(name)


def see(folder: Path) -> Any:
    return (folder / "out").read_bytes() if (folder / "out").exists() else None


def in_place(folder: Path, overwrite: bool) -> None:
    system = system_calls(LocalStore())
    fd = system.open(str(folder / "out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for _ in range(3):
            system.write(fd, b"new")
    finally:
        system.close(fd)


def staged(folder: Path, overwrite: bool) -> None:
    out = LocalStore().stage(str(folder / "out"), overwrite=overwrite)
    try:
        out.write(b"newnewnew")
        out.commit()
    finally:
        out.abort()


def leaves_a_file(folder: Path, overwrite: bool) -> None:
    beside = LocalStore().stage(str(folder / "beside"), overwrite=True)
    beside.write(b"x")
    beside.sync()
    staged(folder, overwrite)
    beside.abort()


def hides_the_error(folder: Path, overwrite: bool) -> None:
    try:
        staged(folder, overwrite)
    except OSError:
        return


def old(folder: Path) -> None:
    (folder / "out").write_bytes(b"old")


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (staged, None),
        (in_place, "neither old nor new is there"),
        (leaves_a_file, "left behind"),
        (hides_the_error, "no error, and the result is not there"),
    ],
)
def test_scenarios(faults: ModuleType, folder: Path, work: Any, said: str | None) -> None:
    scenario = faults.Scenario("a test", lambda folder: None, work, see, old)
    report = faults.run_scenario(scenario, folder, ("raise", "short", "kill"))
    assert report.tried > 20
    if said is None:
        assert report.findings == []
    else:
        assert any(said in finding for finding in report.findings)


def test_one_of_the_real_ones(faults: ModuleType, folder: Path) -> None:
    scenario = next(one for one in sys.modules["scenarios"].SCENARIOS if one.name == "manifest")
    report = faults.run_scenario(scenario, folder, ("kill", "short"))
    assert report.findings == []


def test_how_a_child_ended(faults: ModuleType) -> None:
    assert faults.in_child(lambda: None) == (0, "")
    assert faults.in_child(lambda: LocalStore().get("/no/such/file"))[0] == 1
    status, said = faults.in_child(lambda: 1 // 0)
    assert status == 2
    assert "ZeroDivisionError" in said
    assert faults.in_child(lambda: os.kill(os.getpid(), 9))[0] == -9

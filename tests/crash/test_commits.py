"""Readers, other users and version 0.2 while each local writer commits.

`make slow` tests a quarter of the writers at some calls, and `make crash` all at more calls. Four are in tests/store.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import cases
import commits
import each_call
import scenarios

SEED = int(os.environ.get("CRASH_SEED", "1"))
IS_WHOLE = "CRASH_ROUNDS" in os.environ
READS, PLACES = (60, 6) if IS_WHOLE else (8, 1)
MODES = (0o777, 0o1777)
LOCAL = [case for case in cases.CASES if not case.remote]
CHOSEN = LOCAL if IS_WHOLE else random.Random(SEED).sample(LOCAL, len(LOCAL) // 4)
BY_NAME = {case.name: case for case in CHOSEN}
ALONE = [name for name, case in BY_NAME.items() if not case.workers]
"""Cases without worker processes: those of another user may not be able to start the interpreter."""


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


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commits.OldVersion]:
    source = commits.old_source(tmp_path_factory.mktemp("old"))
    if source is None:
        pytest.skip("no version 0.2 in this checkout")
    with commits.old_version(source) as version:
        yield version


def rounds(name: str, folder: Path) -> Iterator[commits.Commit]:
    """Yield the case over nothing and over an older output, or by chance one of the two."""
    case = BY_NAME[name]
    starts = (False,) if case.old is None else (False, True)
    for with_old in starts if IS_WHOLE else (random.Random(f"{SEED} {name}").choice(starts),):
        one = commits.Commit(case, folder / "round", with_old, each_call.Bucket())
        one.begin()
        yield one


@pytest.mark.parametrize("name", BY_NAME)
def test_readers_see_the_old_dataset_or_the_new_one(name: str, folder: Path) -> None:
    assert [problem for one in rounds(name, folder) for problem in one.watched(set(one.places(READS, SEED)))] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("name", ALONE)
def test_other_users_and_read_only_directories(name: str, folder: Path) -> None:
    for one in rounds(name, folder):
        assert one.read_only() == []
        for mode in MODES if IS_WHOLE else (random.Random(f"{SEED} {one.name}").choice(MODES),):
            assert (oct(mode), one.of_another_user(mode)) == (oct(mode), [])
            for kill in one.some(PLACES, SEED):
                assert (oct(mode), kill, one.after_another_user(kill, mode)) == (oct(mode), kill, [])


@pytest.mark.parametrize("name", BY_NAME)
def test_version_02_at_the_same_output(name: str, folder: Path, old: commits.OldVersion) -> None:
    for one in rounds(name, folder):
        ended = one.learn(old)
        assert ended is not None
        assert ended.status == 0, ended
        for at in one.places(PLACES, SEED):
            for killed in (False, True):
                assert (at, killed, one.old_first(old, at, killed=killed)) == (at, killed, [])
                assert (at, killed, one.old_second(old, at, killed=killed)) == (at, killed, [])

"""Readers, other users and version 0.2 while a few writers commit; all writers are in tests/crash."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.transactions import memory_folder

sys.path.insert(0, str(Path(__file__).parent.parent / "crash"))

import cases
import commits
import each_call

SEED = int(os.environ.get("CRASH_SEED", "1"))
BY_NAME = {case.name: case for case in cases.CASES}
NAMES = ("write jsonl", "write megatron with planes", "write mds", "merge mds")


@pytest.fixture(params=NAMES)
def one(request: pytest.FixtureRequest) -> Iterator[commits.Commit]:
    """A writer over an older output."""
    with memory_folder() as folder:
        os.chmod(folder, 0o755)
        one = commits.Commit(BY_NAME[request.param], folder / "round", True, each_call.Bucket())
        one.begin()
        yield one


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[commits.OldVersion]:
    source = commits.old_source(tmp_path_factory.mktemp("old"))
    if source is None:
        pytest.skip("no version 0.2 in this checkout")
    with commits.old_version(source) as version:
        yield version


def test_readers_see_the_old_dataset_or_the_new_one(one: commits.Commit) -> None:
    last = set(range(len(one.calls) - 12, len(one.calls) + 1))
    assert one.watched(last) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_and_read_only_directories(one: commits.Commit) -> None:
    assert one.read_only() == []
    assert one.of_another_user(0o777) == []
    assert one.of_another_user(0o1777) == []


def test_version_02_at_the_same_output(one: commits.Commit, old: commits.OldVersion) -> None:
    for at in one.places(2, SEED):
        assert one.old_first(old, at, killed=False) == []
        assert one.old_second(old, at, killed=True) == []


def test_a_mixture_is_noticed(one: commits.Commit) -> None:
    """Other tools find the index of one dataset next to the data of another."""
    new, before = one.others
    name = next(name for name in new if name.endswith((".idx", "index.json")))
    mixed = commits.as_others_read(dict.fromkeys(new[name], b"other") | {name: new[name][name]})
    assert mixed[name] not in (new.get(name), before.get(name))

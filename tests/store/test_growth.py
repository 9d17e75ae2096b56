"""What the stores do grows with the work, not with what lies beside it: counted at n and at 10 n."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock._digest import digest
from penstock.store._copies import Copies
from penstock.store._files import is_free
from penstock.store.derived import DerivedCache
from penstock.store.local import LocalStore
from penstock.store.put import put
from penstock.store.remote import RemoteStore

FEW, MANY, MOST = 30, 300, 12


class Counted:
    """Counts calls of `os`, and the names that listings return."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("open", "stat", "lstat", "unlink", "rename", "link", "fsync", "listdir", "scandir"):
            patch.setattr(os, name, self._counting(name, getattr(os, name)))

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            if name == "fsync":
                return None
            if name not in ("listdir", "scandir"):
                return call(*args, **options)
            self.calls["names"] += len(os_listdir(*args))
            return call(*args, **options)

        return counting


os_listdir = os.listdir


def counts(work: Callable[[int], object], n: int) -> Counter[str]:
    counted = Counted()
    with pytest.MonkeyPatch.context() as patch:
        counted.install(patch)
        work(n)
    return counted.calls


def require_linear(work: Callable[[int], object], few: int = FEW, many: int = MANY) -> None:
    """`work(n)` does at most `MOST` times as much of everything, for ten times as many (few looks are free)."""
    assert many == 10 * few
    little, much = counts(work, few), counts(work, many)
    assert sum(little.values()) >= few
    for name in much:
        assert much[name] <= MOST * max(5 * few, little[name]), (name, little, much)


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[str, int], str]:
    """Makes a folder for each size."""

    def make(name: str, n: int) -> str:
        folder = tmp_path / f"{name}-{n}"
        folder.mkdir()
        return str(folder)

    return make


def test_files_written_into_one_folder(fresh: Callable[[str, int], str]) -> None:
    def write(n: int) -> None:
        folder = fresh("files", n)
        for number in range(n):
            put(LocalStore(), f"{folder}/{number}", b"x")

    require_linear(write)


def test_whether_a_folder_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MANY):
        (tmp_path / str(number)).touch()
    looked: list[str] = []
    scandir = os.scandir

    @contextlib.contextmanager
    def looking(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(path) as entries:
            yield (looked.append(entry.name) or entry for entry in entries)

    def refused(path: str) -> list[str]:
        raise AssertionError("a whole listing")

    monkeypatch.setattr(os, "scandir", looking)
    monkeypatch.setattr(os, "listdir", refused)
    assert not is_free(str(tmp_path))
    assert len(looked) == 1
    (tmp_path.parent / "empty").mkdir()
    assert is_free(str(tmp_path.parent / "empty"))
    assert is_free(str(tmp_path / "nothing"))
    assert not is_free(str(tmp_path / "1"))


def test_files_replaced_in_one_folder(fresh: Callable[[str, int], str]) -> None:
    def replace(n: int) -> None:
        folder = fresh("replaced", n)
        for round_number in range(2):
            for number in range(n):
                put(LocalStore(), f"{folder}/{number}", b"%d" % round_number, overwrite=True)

    require_linear(replace)


def test_files_that_are_refused_in_one_folder_of_second_names(fresh: Callable[[str, int], str]) -> None:
    """A copy of a dataset by hard links: each file there has a second name elsewhere."""

    def sweep(n: int) -> None:
        folder, other = fresh("linked", n), fresh("other", n)
        for number in range(n):
            put(LocalStore(), f"{folder}/{number}", b"x")
            os.link(f"{folder}/{number}", f"{other}/{number}")
            LocalStore().sweep(f"{folder}/{number}")

    require_linear(sweep)


def test_folders_staged_in_one_folder(fresh: Callable[[str, int], str]) -> None:
    def write(n: int) -> None:
        parent = fresh("folders", n)
        for number in range(n):
            folder = LocalStore().stage_folder(f"{parent}/{number}")
            folder.stage("a").commit()
            folder.commit()

    require_linear(write)


def test_outputs_that_are_claimed_in_one_folder(fresh: Callable[[str, int], str]) -> None:
    def claim(n: int) -> None:
        folder = fresh("claims", n)
        for number in range(n):
            held = LocalStore().claim(f"{folder}/{number}")
            put(LocalStore(), f"{folder}/{number}", b"x")
            held.release()

    require_linear(claim)


def test_derived_arrays(fresh: Callable[[str, int], str]) -> None:
    def derive(n: int) -> None:
        cache = DerivedCache(fresh("derived", n))
        for number in range(n):
            cache.array(f"key-{number}", "int64", lambda: np.arange(3))

    require_linear(derive)


def test_files_on_their_way_to_a_store(fresh: Callable[[str, int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(n: int) -> None:
        monkeypatch.setenv("PENSTOCK_CACHE", fresh("upload", n))
        store = RemoteStore("s3://bucket")
        staged = [store.stage(f"s3://bucket/{n}/{number}", overwrite=True) for number in range(n)]
        for one in staged:
            one.write(b"x")
            one.abort()

    require_linear(upload)


@pytest.mark.parametrize("budget_bytes", [1 << 20, None])
def test_copies_in_the_cache(fresh: Callable[[str, int], str], budget_bytes: int | None) -> None:
    def copy(n: int) -> None:
        folder = fresh("cache", n)
        for number in range(n):
            copies = Copies(budget_bytes, folder)
            copies.make(digest(number)[:32], f"s3://b/{number}", 1, {}, lambda: [b"x"])

    require_linear(copy, 12, 120)


def test_copies_in_a_cache_that_is_full(fresh: Callable[[str, int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.cache_room._MANY_COPIES", 8)
    monkeypatch.setattr("penstock.store.cache_room._SPARE", 4)

    def copy(n: int) -> None:
        folder = fresh("full", n)
        for number in range(2 * n):
            Copies(n, folder).make(digest(number)[:32], f"s3://b/{number}", 1, {}, lambda: [b"x"])

    require_linear(copy, 24, 240)

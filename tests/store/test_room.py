"""The running total of the copies in the cache folder: never too low, and the folder is looked at only in doubt."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock._digest import digest
from penstock.store import cache_room
from penstock.store._copies import Copies, NoCopy

SIZE = 100


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were looked at as a whole."""
    seen: list[str] = []
    plain = cache_room._scan

    def scan(folder: str) -> list[tuple[float, int, str]]:
        seen.append(folder)
        return plain(folder)

    monkeypatch.setattr(cache_room, "_scan", scan)
    return seen


def make(copies: Copies, number: int, size_bytes: int = SIZE, fetch: Callable[[], list[bytes]] | None = None) -> Path:
    name = digest("copy", number)[:32]
    return Path(copies.make(name, f"s3://b/{number}", size_bytes, {}, fetch or (lambda: [bytes(size_bytes)])).path)


def used(copies: Copies) -> int:
    return sum(path.stat().st_size for path in Path(copies.folder).glob("*.copy"))


def total(copies: Copies) -> dict[str, int]:
    return json.loads((Path(copies.folder) / "budget.lock").read_bytes())


def in_child(work: Callable[[], object]) -> int:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    return child.exitcode or 0


def test_the_folder_is_looked_at_once_while_there_is_room(tmp_path: Path, looks: list[str]) -> None:
    copies = Copies(1 << 20, str(tmp_path))
    for number in range(50):
        make(copies, number)
        Copies(1 << 20, str(tmp_path))
    assert len(looks) == 1
    assert total(copies)["used_bytes"] == used(copies) == 50 * SIZE


def test_without_a_budget_the_disk_alone_is_asked(tmp_path: Path, looks: list[str]) -> None:
    copies = Copies(None, str(tmp_path))
    for number in range(50):
        make(copies, number)
    assert looks == []
    make(Copies(1 << 20, str(tmp_path)), 50)  # who has one counts first
    assert len(looks) == 1
    assert total(copies)["used_bytes"] == 51 * SIZE


def test_a_cache_that_is_full_is_looked_at_seldom(
    tmp_path: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_room, "_MANY_COPIES", 32)
    budget_bytes = 64 * SIZE
    copies = Copies(budget_bytes, str(tmp_path))
    for number in range(64):
        make(copies, number)
    looks.clear()
    for number in range(64, 128):
        make(copies, number)
        assert used(copies) <= budget_bytes
    assert len(looks) <= 64 // 2  # two of 64 go at once; at a million, thirty thousand
    assert used(copies) >= budget_bytes - 3 * SIZE


def test_a_small_cache_loses_no_more_than_it_must(tmp_path: Path) -> None:
    copies = Copies(10 * SIZE, str(tmp_path))
    paths = [make(copies, number) for number in range(30)]
    assert [path.exists() for path in paths] == [False] * 20 + [True] * 10


def test_who_is_killed_before_its_copy_leaves_the_total_too_high(tmp_path: Path, looks: list[str]) -> None:
    copies = Copies(4 * SIZE, str(tmp_path))
    make(copies, 0)

    def die() -> list[bytes]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    assert in_child(lambda: make(copies, 1, fetch=die)) == -signal.SIGKILL
    assert total(copies)["used_bytes"] == 2 * SIZE
    for lock in Path(copies.folder).glob("?" * 32 + ".lock"):
        os.utime(lock, (1000, 1000))
    looks.clear()
    paths = [make(copies, number) for number in range(2, 5)]
    assert len(looks) == 1  # where the fourth would not fit, as it seemed
    assert total(copies)["used_bytes"] == used(copies) == 4 * SIZE
    assert all(path.exists() for path in paths)


def test_a_copy_that_fails_gives_its_room_back(tmp_path: Path) -> None:
    copies = Copies(4 * SIZE, str(tmp_path))
    make(copies, 0)

    def fail() -> list[bytes]:
        raise ConnectionError("gone")

    for number in range(1, 9):
        with pytest.raises(Exception, match=r"gone|can't store"):
            make(copies, number, fetch=fail)
    assert total(copies)["used_bytes"] == SIZE


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "too low": lambda path: path.write_bytes(path.read_bytes().replace(b'"used_bytes":400', b'"used_bytes":100')),
    "invalid value": lambda path: path.write_bytes(path.read_bytes().replace(b'"used_bytes":400', b'"used_bytes":1e9')),
    "nested": lambda path: path.write_bytes(b"[" * 5000),
    "no text": lambda path: path.write_bytes(b"\xff\xfe" * 100),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_total_is_counted_again(what: str, tmp_path: Path) -> None:
    copies = Copies(4 * SIZE, str(tmp_path))
    paths = [make(copies, number) for number in range(4)]
    before = total(copies)
    assert before["used_bytes"] == 4 * SIZE
    DAMAGE[what](Path(copies.folder) / "budget.lock")
    make(copies, 4)
    assert used(copies) == 4 * SIZE
    assert not paths[0].exists()
    assert total(copies)["used_bytes"] == 4 * SIZE


def test_a_total_from_before_a_reboot_is_counted_again(
    tmp_path: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Copies(10 * SIZE, str(tmp_path))
    make(copies, 0)
    monkeypatch.setattr(cache_room, "_boot", lambda: "another")
    make(copies, 1)
    assert len(looks) == 2


def test_what_others_put_there_is_seen_when_copies_have_doubled(
    tmp_path: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_room, "_FEW_COPIES", 4)
    copies = Copies(1000 * SIZE, str(tmp_path))
    make(copies, 0)
    for number in range(100, 120):
        (Path(copies.folder) / (digest("other", number)[:32] + ".copy")).write_bytes(bytes(SIZE))
    for number in range(1, 7):
        make(copies, number)
    assert total(copies)["used_bytes"] == used(copies)
    assert len(looks) == 2


def test_a_folder_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    copies = Copies(4 * SIZE, str(tmp_path))
    make(copies, 0)
    shutil.rmtree(copies.folder)
    assert make(copies, 1).exists()

    def delete() -> list[bytes]:
        shutil.rmtree(copies.folder)
        return [bytes(SIZE)]

    with pytest.raises(NoCopy, match="can't store a copy"):
        make(copies, 2, fetch=delete)
    assert make(copies, 3).exists()
    assert total(copies)["used_bytes"] >= used(copies)


def test_a_clock_that_was_set_back_evicts_nothing_new(tmp_path: Path) -> None:
    """What was used by a clock that was ahead was used before all that is used now."""
    copies = Copies(4 * SIZE, str(tmp_path))
    old = [make(copies, number) for number in range(3)]
    for number, path in enumerate(old):
        ahead = time.time() + 1e6 + number
        os.utime(path.with_suffix(".json"), (ahead, ahead))
    new = [make(copies, number) for number in range(3, 6)]
    assert [path.exists() for path in (*old, *new)] == [False, False, True, True, True, True]


def test_who_may_write_to_the_folder_may_count(tmp_path: Path, looks: list[str]) -> None:
    copies = Copies(1000 * SIZE, str(tmp_path))
    os.makedirs(copies.folder)
    os.chmod(copies.folder, 0o1777)
    make(copies, 0)
    lock = Path(copies.folder) / "budget.lock"
    assert lock.stat().st_mode & 0o022 == 0o022
    make(copies, 1)
    assert len(looks) == 1
    lock.chmod(0o644)  # then another user's copies are not in it
    make(copies, 2)
    assert len(looks) == 2


def fill(folder: str, first: int) -> None:
    copies = Copies(10 * SIZE, folder)
    for number in range(first, first + 40):
        make(copies, number)


def test_two_processes_keep_one_total(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=fill, args=(str(tmp_path), 100 * number)) for number in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    copies = Copies(10 * SIZE, str(tmp_path))
    assert used(copies) <= 10 * SIZE
    assert total(copies)["used_bytes"] >= used(copies)


def test_old_notes_of_versions_go_with_a_look(tmp_path: Path) -> None:
    copies = Copies(10 * SIZE, str(tmp_path))
    os.makedirs(copies.folder)
    old, young, other = (Path(copies.folder) / name for name in ("0" * 32 + ".seen", "1" * 32 + ".seen", "a.seen"))
    for path in (old, young, other):
        path.write_bytes(b"x")
    for path in (old, other):
        os.utime(path, (1000, 1000))
    make(copies, 0)
    assert [path.exists() for path in (old, young, other)] == [False, True, True]

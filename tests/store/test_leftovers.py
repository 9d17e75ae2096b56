"""What a killed writer left: removed by the next one, or taken over where bytes agree."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.store._leftovers import Kept
from penstock.store._local_staged import LocalStaged
from penstock.store.local import LocalStore
from penstock.store.names import is_staged_name
from penstock.testing import FaultyOs

MIB = 1 << 20
DATA = np.random.default_rng(3).bytes(5 * MIB + 17)


def killed(work: Callable[[], None]) -> None:
    """`work` in a child that dies by SIGKILL behind it."""

    def run() -> None:
        work()
        os.kill(os.getpid(), signal.SIGKILL)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def staged(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if is_staged_name(name)]


def leave(path: Path, data: bytes, header: bytes = b"") -> None:
    """What a writer leaves that is killed behind `data`."""

    def work() -> None:
        file = LocalStore().stage(str(path))
        file.write(data)
        file.sync()
        if header:
            file.write_at(0, header)

    killed(work)
    assert len(staged(path.parent)) == 1


def write(path: Path, data: bytes, store: LocalStore, step: int = 300_000) -> None:
    file = store.stage(str(path))
    for start in range(0, len(data), step):
        file.write(data[start : start + step])
    file.commit()


@pytest.mark.parametrize("size", [0, 1, MIB, 2 * MIB + 5, len(DATA)])
def test_the_same_again_writes_only_the_rest(tmp_path: Path, size: int) -> None:
    leave(tmp_path / "a", DATA[:size])
    kept, faulty = Kept(), FaultyOs()
    write(tmp_path / "a", DATA, LocalStore(faulty, kept=kept))
    assert (tmp_path / "a").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["a"]
    assert size - 2 * MIB < kept.bytes <= size
    assert ("write" in faulty.calls) == (size < len(DATA))


def test_without_being_asked_it_is_removed(tmp_path: Path) -> None:
    leave(tmp_path / "a", DATA)
    write(tmp_path / "a", b"new", LocalStore())
    assert os.listdir(tmp_path) == ["a"]


def test_what_differs_is_written(tmp_path: Path) -> None:
    wrong = bytearray(DATA)
    wrong[5] ^= 1
    wrong[3 * MIB : 4 * MIB] = bytes(MIB)  # as a power cut may leave it
    leave(tmp_path / "a", bytes(wrong))
    kept = Kept()
    write(tmp_path / "a", DATA, LocalStore(kept=kept))
    assert (tmp_path / "a").read_bytes() == DATA
    assert MIB < kept.bytes < 4 * MIB


def test_a_longer_leftover_is_cut(tmp_path: Path) -> None:
    leave(tmp_path / "a", DATA)
    write(tmp_path / "a", DATA[:1000], LocalStore(kept=Kept()))
    assert (tmp_path / "a").read_bytes() == DATA[:1000]
    leave(tmp_path / "b", DATA)
    write(tmp_path / "b", b"", LocalStore(kept=Kept()))
    assert (tmp_path / "b").read_bytes() == b""


def test_headers_and_ranges_of_files(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"before" + DATA)
    leave(tmp_path / "a", b"\0" * 8 + DATA[: 3 * MIB], header=b"8 bytes!")
    kept = Kept()
    file = LocalStore(kept=kept).stage(str(tmp_path / "a"))
    file.write(b"\0" * 8)
    assert file.append_file(str(tmp_path / "source"), 6) == len(DATA)
    file.write(b"behind")
    file.write_at(0, b"8 bytes!")
    assert file.tell() == len(DATA) + 14
    file.commit()
    assert (tmp_path / "a").read_bytes() == b"8 bytes!" + DATA + b"behind"
    assert kept.bytes > MIB


def test_the_file_of_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    alive = LocalStore().stage(str(tmp_path / "a"))
    alive.write(DATA)
    alive.sync()
    kept = Kept()
    write(tmp_path / "a", DATA, LocalStore(kept=kept))
    assert kept.bytes == 0
    assert len(staged(tmp_path)) == 1
    alive.abort()
    assert staged(tmp_path) == []


def test_one_of_several_is_taken(tmp_path: Path) -> None:
    leave(tmp_path / "a", DATA)
    (tmp_path / ".a.01234567.staged").write_bytes(DATA)
    os.mkdir(tmp_path / ".a.76543210.staged")
    write(tmp_path / "a", DATA, LocalStore(kept=Kept()))
    assert os.listdir(tmp_path) == ["a"]


def test_what_is_held_stays_for_the_next_run(tmp_path: Path) -> None:
    kept = Kept()
    file = LocalStore(kept=kept).stage(str(tmp_path / "a"))
    file.write(DATA[: 2 * MIB])
    kept.hold = True
    file.abort()
    assert len(staged(tmp_path)) == 1
    again = Kept()
    write(tmp_path / "a", DATA, LocalStore(kept=again))
    assert again.bytes > 0
    assert os.listdir(tmp_path) == ["a"]


class TestFolders:
    NEW: ClassVar = {"x/0": DATA[:MIB], "x/1": DATA[MIB : 2 * MIB], "meta": b"{}"}

    def leave(self, path: Path, files: dict[str, bytes]) -> None:
        def work() -> None:
            folder = LocalStore().stage_folder(str(path))
            for name, data in files.items():
                file = folder.stage(name)
                file.write(data)
                file.commit()

        killed(work)
        assert len(staged(path.parent)) == 1

    def write(self, path: Path, kept: Kept | None) -> None:
        folder = LocalStore(kept=kept).stage_folder(str(path))
        for name, data in self.NEW.items():
            file = folder.stage(name)
            file.write(data)
            file.commit()
        folder.commit()

    def test_files_that_agree_are_kept(self, tmp_path: Path) -> None:
        self.leave(tmp_path / "set", {"x/0": DATA[:MIB], "x/1": b"other", "x/2": b"more", "old/1": b"1"})
        kept = Kept()
        self.write(tmp_path / "set", kept)
        assert kept.bytes == MIB
        found = {
            os.path.relpath(p, tmp_path / "set"): p.read_bytes() for p in (tmp_path / "set").rglob("*") if p.is_file()
        }
        assert found == self.NEW
        assert os.listdir(tmp_path) == ["set"]

    def test_without_being_asked_they_are_removed(self, tmp_path: Path) -> None:
        self.leave(tmp_path / "set", self.NEW)
        self.write(tmp_path / "set", None)
        assert os.listdir(tmp_path) == ["set"]

    def test_the_folder_of_a_living_writer_is_left_alone(self, tmp_path: Path) -> None:
        alive = LocalStore().stage_folder(str(tmp_path / "set"))
        kept = Kept()
        self.write(tmp_path / "set", kept)
        assert kept.bytes == 0
        assert len(staged(tmp_path)) == 1
        alive.abort()

    def test_what_is_held_stays(self, tmp_path: Path) -> None:
        kept = Kept()
        folder = LocalStore(kept=kept).stage_folder(str(tmp_path / "set"))
        file = folder.stage("x/0")
        file.write(DATA[:MIB])
        file.commit()
        kept.hold = True
        folder.abort()
        again = Kept()
        self.write(tmp_path / "set", again)
        assert again.bytes == MIB


def test_a_lock_lives_as_long_as_its_writer(tmp_path: Path) -> None:
    leave(tmp_path / "a", DATA)
    taken = LocalStore(kept=Kept()).stage(str(tmp_path / "a"))
    fd = os.open(tmp_path / staged(tmp_path)[0], os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    taken.abort()
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_visible_already_is_never_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"the whole old one")
    os.link(path, tmp_path / ".out.0123abcd.staged")  # killed between link and unlink
    kept = Kept()
    file = LocalStore(kept=kept).stage(str(path), overwrite=True)
    assert staged(tmp_path) != [".out.0123abcd.staged"]
    file.write(b"something else")
    file.sync()
    assert path.read_bytes() == b"the whole old one"
    file.commit()
    assert path.read_bytes() == b"something else"
    assert kept.bytes == 0


def test_a_second_name_goes_when_the_same_is_refused(tmp_path: Path) -> None:
    """A writer was killed between its link and its unlink."""
    (tmp_path / "a").write_bytes(b"done")
    (tmp_path / "other").write_bytes(b"other")
    os.link(tmp_path / "a", tmp_path / ".a.01234567.staged")
    os.link(tmp_path / "other", tmp_path / ".a.01234568.staged")
    (tmp_path / ".a.01234569.staged").write_bytes(b"unfinished")
    with pytest.raises(ConfigError, match="the output exists"):
        LocalStore().stage(str(tmp_path / "a"))
    assert sorted(staged(tmp_path)) == [".a.01234568.staged", ".a.01234569.staged"]
    assert (tmp_path / "a").read_bytes() == b"done"


def test_a_writer_whose_second_name_was_swept_commits(tmp_path: Path) -> None:
    class Swept(FaultyOs):
        def link(self, path: str, name: str) -> None:
            os.link(path, name)
            LocalStore().sweep(name)

    file = LocalStore(Swept()).stage(str(tmp_path / "a"))
    file.write(b"x")
    file.commit()
    assert os.listdir(tmp_path) == ["a"]


def test_a_name_that_changed_hands_is_not_taken_for_that_of_a_dead_writer(tmp_path: Path) -> None:
    """A writer ended, and another began under the same hidden name, while a third one looked at it."""
    first = LocalStore().stage(str(tmp_path / "a"))
    others: list[LocalStaged] = []

    class Looking(FaultyOs):
        def open(self, path: str, *args: int) -> int:
            fd = os.open(path, *args)
            if not others:
                first.abort()
                others.append(LocalStore().stage(str(tmp_path / "a")))
                others[0].write(b"of the other")
            return fd

    third = LocalStore(Looking()).stage(str(tmp_path / "a"), overwrite=True)
    assert len(staged(tmp_path)) == 2
    others[0].commit()
    third.abort()
    assert (tmp_path / "a").read_bytes() == b"of the other"
    assert os.listdir(tmp_path) == ["a"]


def test_who_is_stopped_right_after_its_commit_removes_nothing_of_others(tmp_path: Path) -> None:
    others: list[LocalStaged] = []

    class Stopped(FaultyOs):
        def rename(self, path: str, name: str) -> None:
            os.rename(path, name)
            others.append(LocalStore().stage(str(tmp_path / "a"), overwrite=True))
            raise KeyboardInterrupt

    file = LocalStore(Stopped()).stage(str(tmp_path / "a"), overwrite=True)
    file.write(b"first")
    with pytest.raises(KeyboardInterrupt):
        file.commit()
    others[0].write(b"second")
    others[0].commit()
    assert (tmp_path / "a").read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["a"]


def test_what_version_0_1_left_goes(tmp_path: Path) -> None:
    """Its hidden names were random."""
    (tmp_path / ".a.01234567.staged").write_bytes(DATA[:MIB])
    kept = Kept()
    write(tmp_path / "a", DATA, LocalStore(kept=kept))
    assert kept.bytes == MIB
    assert os.listdir(tmp_path) == ["a"]


def test_names_that_are_cut_alike_are_of_several_files(tmp_path: Path) -> None:
    first, second = tmp_path / ("x" * 210 + "1"), tmp_path / ("x" * 210 + "2")
    LocalStore().stage(str(tmp_path / "other")).abort()  # what the one listing sees has no other name to go by
    leave(first, DATA)
    kept = Kept()
    write(second, DATA, LocalStore(kept=kept))
    assert kept.bytes == 0
    write(first, DATA, LocalStore(kept=kept))
    assert kept.bytes > 0
    assert sorted(os.listdir(tmp_path)) == [first.name, second.name]

"""An output of four files in two versions, written by `Transaction`, and what readers of it see."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from penstock.store._leftovers import Kept
from penstock.store.transaction import OutputFiles, Transaction, read_committed
from penstock.testing import FaultyOs

NAMES = ("x.bin", "x.planes", "x.penstock", "x.idx")
CHANGING = frozenset({"open", "write", "pwrite", "mkdir", "link", "rename", "unlink", "rmdir", "fsync", "ftruncate"})
"""Calls of `os` that may change something on disk."""


def files_in(folder: Path) -> OutputFiles:
    return OutputFiles(str(folder), NAMES)


def content(name: str, version: str) -> bytes:
    return f"{name}{version}".encode() * 1000


def write(folder: Path, version: str, os_module: Any = os, kept: Kept | None = None) -> str:
    """Write one version; returns `complete` if the same plan was found committed."""
    with Transaction(files_in(folder), f"plan {version}", kept=kept, os_module=os_module) as transaction:
        if transaction.is_complete:
            return f"complete {transaction.result}"
        for name in NAMES:
            transaction.stage(name).write(content(name, version))
        transaction.commit(version)
    return "written"


def version_of(found: dict[str, bytes | None]) -> str | None:
    """The version of which these are all files; None if there are none."""
    if not any(found.values()):
        return None
    versions = [one for one in "ABCDEFGH" if all(data == content(name, one) for name, data in found.items())]
    return versions[0] if versions else "mixture"


def seen(folder: Path) -> str | None:
    """The version that a reader sees."""

    def read(paths: dict[str, str | None]) -> str | None:
        return version_of({name: None if path is None else Path(path).read_bytes() for name, path in paths.items()})

    return read_committed(files_in(folder), read)


def seen_by_others(folder: Path) -> str | None:
    """The version that a tool sees which doesn't know the log: without the last file there is no dataset."""
    if not (folder / NAMES[-1]).exists():
        return None
    return version_of({name: (folder / name).read_bytes() if (folder / name).exists() else None for name in NAMES})


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def places_of(before: str | None, with_reads: bool = False) -> list[int]:
    """Numbers of the calls of one write at which something may change."""
    with memory_folder() as folder:
        if before is not None:
            write(folder, before)
        counting = FaultyOs()
        write(folder, "B", counting)
        return [place for place, name in enumerate(counting.calls, 1) if with_reads or name in CHANGING]


def killed(work: Callable[[], object]) -> bool:
    """Run `work` in a child; whether it was killed. Fails if it raised."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def problems(folder: Path, before: str | None) -> Iterator[str]:
    """What is wrong after an interrupted write of version B."""
    if (ours := seen(folder)) not in (before, "B"):
        yield f"a reader sees {ours}"
    if (others := seen_by_others(folder)) not in (None, before, "B"):
        yield f"another tool sees {others}"


def problems_at_end(folder: Path) -> Iterator[str]:
    """What is wrong after the same write has been repeated without faults."""
    write(folder, "B")
    if (seen(folder), seen_by_others(folder)) != ("B", "B"):
        yield f"at the end: {seen(folder)}, {seen_by_others(folder)}"
    if names_in(folder) != sorted(NAMES):
        yield f"left over: {names_in(folder)}"


def interrupted(before: str | None, *faults: Callable[[Path], object]) -> list[str]:
    """Write version B over `before`, interrupted in turn by each fault, then without; returns what is wrong."""
    with memory_folder() as folder:
        if before is not None:
            write(folder, before)
        found: list[str] = []
        for fault in faults:
            fault(folder)
            found += problems(folder, before)
        return [*found, *problems_at_end(folder)]


def kill_at(place: int) -> Callable[[Path], object]:
    return lambda folder: killed(lambda: write(folder, "B", FaultyOs(place, "kill")))


class FailingOs:
    """Module like `os` that fails at the n-th counted call, or from there on; also with an interrupt after it."""

    def __init__(self, place: int, error: BaseException, *, forever: bool = False, after: bool = False) -> None:
        self._counting, self._place, self._error = FaultyOs(), place, error
        self._forever, self._after = forever, after

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._counting, name)
        if not hasattr(value, "func"):
            return value

        def call(*args: Any, **options: Any) -> Any:
            place = self._counting.operations + 1
            fails = place >= self._place if self._forever else place == self._place
            if not fails:
                return value(*args, **options)
            if self._after or name == "close":
                value(*args, **options)
            elif not self._after:
                self._counting.calls.append(name)
            raise self._error

        return call


def fail_at(
    place: int, error: BaseException, *, forever: bool = False, after: bool = False
) -> Callable[[Path], object]:
    def fault(folder: Path) -> None:
        with contextlib.suppress(OSError, KeyboardInterrupt):
            write(folder, "B", FailingOs(place, error, forever=forever, after=after))

    return fault


class SteppedOs:
    """Module like `os` whose changing calls wait for `step`, so that another thread runs between two of them."""

    def __init__(self) -> None:
        self._ready, self._go = threading.Semaphore(0), threading.Semaphore(0)
        self.is_done = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(os, name)
        return self._waiting(value) if name in CHANGING else value

    def _waiting(self, value: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self._ready.release()
            self._go.acquire()
            return value(*args, **options)

        return call

    def start(self, work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            finally:
                self.is_done = True
                self._ready.release()

        thread = threading.Thread(target=run)
        thread.start()
        self._ready.acquire()
        return thread

    def step(self, calls: int = 1) -> None:
        """Let the writer do so many calls; returns when it is before the next one, or at its end."""
        for _ in range(calls):
            if self.is_done:
                return
            self._go.release()
            self._ready.acquire()


def read_across(before: str | None, first: int, second: int) -> list[str]:
    """Begin to read after `first` calls of a writer, go on after `second` more; returns what is wrong."""
    with memory_folder() as folder:
        if before is not None:
            write(folder, before)
        stepped = SteppedOs()
        thread = stepped.start(lambda: write(folder, "B", stepped))
        stepped.step(first)
        waits = [second]

        def read(paths: dict[str, str | None]) -> str | None:
            found: dict[str, bytes | None] = {}
            for number, (name, path) in enumerate(paths.items()):
                if number == 2 and waits:
                    stepped.step(waits.pop())
                found[name] = None if path is None else Path(path).read_bytes()
            return version_of(found)

        was = names_in(folder)
        try:
            result = read_committed(files_in(folder), read)
        except FileNotFoundError as error:
            result = str(error)
        if second == 0 and names_in(folder) != was:
            result = "a changed directory"
        stepped.step(1 << 20)
        thread.join()
        return [] if result in (before, "B") else [f"a reader across {first} and {second} sees {result}"]


@contextlib.contextmanager
def memory_folder() -> Generator[Path]:
    """A directory in memory if there is one: thousands of cases would wait for the disk otherwise."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(name)

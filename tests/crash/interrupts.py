"""Ctrl-C on a terminal, in every command: at a file operation of its own, and again with the same command.

A command runs on a pseudo-terminal and stops at its n-th operation on a file of its working folder; there it gets the
key. It must end with 130, with one line that says how to go on and no traceback, and leave nothing that only looks
complete; the same command then ends in the bytes of one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.internals import is_mark_or_lock
from tests.smoke.test_commands import PACK, PATIENCE_S, USES, working_folder

READY = b"<at it>"
HOOK = f"""
import os, sys, threading, time
at, log, place = int(sys.argv[1]), sys.argv[2], os.getcwd() + "/"
sys.argv[:] = sys.argv[2:]
seen = 0
def hook(event, arguments):
    global seen
    if event not in ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "sqlite3.connect") or not arguments:
        return
    path = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes)) else ""
    if not path or (path.startswith("/") and not path.startswith(place)):
        return
    seen += 1
    if not at:
        os.write(counts, b".")
    elif seen == at:
        os.write(2, {READY!r})
        time.sleep(30 if threading.current_thread() is threading.main_thread() else 0.5)
counts = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(hook)
from penstock.__main__ import main
main()
"""
SERVING = ("view", "mount", "energon mount", "energon preview")
"""Commands that Ctrl-C ends as meant, or that make no difference to a file."""
UNEQUAL = (".exclude.jsonl", ".certificate.json", ".sqlite", "-shm", "-wal", "-journal")
"""Ends of names of files that hold a time, or equal rows in other bytes."""

_PARTS = "inputs/part0.jsonl inputs/part1.jsonl"
MORE: dict[str, str] = {
    "pack a folder": f"pack {_PARTS} -o new/ --file-tokens 40 {PACK}",
    "pack by processes": f"pack {_PARTS} -o new/ --executor processes --workers 2 --file-tokens 40 {PACK}",
    "convert to mds": "convert lines/a.jsonl new --to mds --columns id=int,text=str",
    "convert to webdataset": "convert media new --to webdataset",
    "filter by processes": "filter tokens/a.pbin -o new.pbin --indices indices.txt --executor processes --workers 2",
}


@dataclass
class Ended:
    """How a run of a command ended."""

    status: int
    said: str
    was_stopped: bool = False


@dataclass
class Case:
    """A command in a folder of its own."""

    name: str
    base: Path
    arguments: list[str] = field(init=False)
    expected: dict[str, bytes] = field(init=False)
    before: dict[str, bytes] = field(init=False)
    operations: int = field(init=False)

    def __post_init__(self) -> None:
        use = USES.get(self.name)
        self.arguments = f"{self.name} {use.arguments}".split() if use else MORE[self.name].split()

    def begin(self) -> None:
        """Run it undisturbed: what it leaves, and how many operations it has."""
        place = self.fresh()
        self.before = tree(place)
        ended = self.run(place, 0)
        if ended.status != 0:
            raise RuntimeError(f"{self.name}: {ended.status} without an interrupt: {ended.said}")
        self.expected = tree(place)
        self.operations = os.path.getsize(self.base / "log")

    def fresh(self) -> Path:
        """The working folder, as it was before the command."""
        place, kept = self.base / "place", self.base / "kept"
        here = os.getcwd()
        if not kept.exists():
            kept.mkdir()
            os.chdir(kept)
            try:
                working_folder(kept)
            finally:
                os.chdir(here)
            (kept / "indices.txt").write_text("0\n2\n")
        for one in (place, self.base / "cache"):
            shutil.rmtree(one, ignore_errors=True)
        shutil.copytree(kept, place)
        return place

    def interrupt(self, at: int) -> list[str]:
        """The key at the n-th operation, and the command again; what is wrong."""
        place = self.fresh()
        ended = self.run(place, at)
        if not ended.was_stopped:
            return []
        found: list[str] = []
        lines = [line for line in ended.said.splitlines() if line.startswith("penstock: ")]
        if ended.status != 130:
            found.append(f"ended with {ended.status}: {ended.said[-300:]}")
        if "Traceback" in ended.said or "Exception ignored" in ended.said:
            found.append(f"a traceback: {ended.said[-600:]}")
        if len(lines) != 1 or "stopped" not in lines[0] or len(lines[0]) > 300:
            found.append(f"not one line: {ended.said!r}")
        found += [f"half visible: {name}" for name in self._half_made(tree(place))]
        again = self.run(place, 0)
        # The key came after the commit.
        is_done = again.status in (1, 2, 10) and re.search("exists|prepared already", again.said)
        if again.status != 0 and not is_done:
            return [*found, f"again: {again.status}: {again.said[-300:]}"]
        now = tree(place)
        for name in sorted(now.keys() ^ self.expected.keys()):
            # A lock that the key came to the removal of holds nothing up, and the next writer takes it away.
            if not (is_done and is_mark_or_lock(name)):
                found.append(f"again: {'left over' if name in now else 'not there'}: {name}")
        for name in sorted(now.keys() & self.expected.keys()):
            if now[name] != self.expected[name] and not name.endswith(UNEQUAL):
                found.append(f"again: other bytes: {name}")
        return found

    def _half_made(self, now: dict[str, bytes]) -> list[str]:
        """Of what is there now and was not before, files by the names of the output with other bytes."""
        return [
            name
            for name, data in now.items()
            if name in self.expected
            and data not in (self.expected[name], self.before.get(name))
            and not name.endswith(UNEQUAL)
        ]

    def run(self, place: Path, at: int) -> Ended:
        """The command on a terminal of its own; with `at`, the key at that operation."""
        log = self.base / "log"
        log.unlink(missing_ok=True)
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", HOOK, str(at), str(log), *self.arguments],
            cwd=place, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "PENSTOCK_CACHE": str(self.base / "cache"), "COLUMNS": "300"},
            preexec_fn=_own_terminal,
        )  # fmt: skip
        os.close(slave)
        try:
            said, was_stopped = _listen(master, process, at)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            os.close(master)
        return Ended(process.wait(PATIENCE_S), said.decode(errors="replace").replace("\r\n", "\n"), was_stopped)


def _own_terminal() -> None:
    """The terminal becomes the one that controls the process, so that its keys send signals, which it takes."""
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # in the background shells start things that ignore it

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _listen(master: int, process: subprocess.Popen[bytes], at: int) -> tuple[bytes, bool]:
    said, was_stopped, deadline = b"", False, time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.05)[0]:
            try:
                said += os.read(master, 1 << 16)
            except OSError:  # nobody has the other side any more
                break
        elif process.poll() is not None:
            break
        if at and not was_stopped and READY in said:
            was_stopped, said = True, said.partition(READY)[2]
            os.write(master, b"\x03")
    return said, was_stopped


def tree(place: Path) -> dict[str, bytes]:
    """Path → bytes of each file; links and folders without files too."""
    found: dict[str, bytes] = {}
    for folder, _, files in os.walk(place):
        for name in files:
            path = Path(folder, name)
            found[str(path.relative_to(place))] = path.read_bytes()
    return found


def moments(operations: int, most: int) -> Sequence[int]:
    """At most so many operations of a run, the first and the last among them."""
    if operations <= most:
        return range(1, operations + 1)
    return sorted({1 + round(i * (operations - 1) / (most - 1)) for i in range(most)})


NAMES = [*(name for name in USES if name not in SERVING and not name.startswith("demo")), *MORE]


def interrupt_all(base: Path, only: Sequence[str], most: int) -> int:
    """All cases whose names have one of the words in them; returns the number of findings."""
    total = 0
    for name in NAMES:
        if not any(word in name for word in only):
            continue
        case = Case(name, base / name.replace(" ", "-"))
        case.base.mkdir()
        found: dict[str, list[int]] = {}
        tried: Sequence[int] = ()
        try:
            case.begin()
            tried = moments(case.operations, most)
            for at in tried:
                for problem in case.interrupt(at):
                    found.setdefault(problem, []).append(at)
        except RuntimeError as error:
            found[str(error)] = []
        print(f"crash: Ctrl-C in {name}: {len(tried)} of {len(tried) and case.operations} operations, "
              f"{len(found)} findings", flush=True)  # fmt: skip
        for problem, at in found.items():
            print(f"  {problem} [at {', '.join(map(str, at[:5]))}]", flush=True)
        total += len(found)
        shutil.rmtree(case.base)
    return total

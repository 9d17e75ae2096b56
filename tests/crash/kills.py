"""SIGKILL at random moments of the real `penstock pack`, then the same command: it ends in the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from faults import files_of
from inputs import EOS, NAMES
from tests.internals import work_folders

Victim = Literal["all", "parent", "worker"]

OLD = b"the old output"
MOST_KILLS = 4
LIMIT_S = 300
GONE_S = 20


@dataclass(frozen=True)
class Undisturbed:
    """What the command does when nobody disturbs it."""

    seconds: float
    files: dict[str, bytes]


def command(folder: Path, workers: int, overwrite: bool) -> list[str]:
    return [
        str(Path(sys.executable).parent / "penstock"),
        *("pack", str(folder / "a.jsonl.gz"), str(folder / "b.jsonl"), "-o", str(folder / "out.pbin")),
        *("--tokenizer", str(folder / "tokenizer.json"), "--eos", EOS, "--workers", str(workers), "--json"),
        *(["--overwrite"] if overwrite else []),
    ]


def start(folder: Path, workers: int, overwrite: bool = False) -> subprocess.Popen[bytes]:
    """Start the command; its report goes to the file `told`, the rest of what it says to `said`."""
    environment = {**os.environ, "PENSTOCK_CACHE": str(folder / "cache")}
    with open(folder / "told", "wb") as told, open(folder / "said", "wb") as said:
        return subprocess.Popen(command(folder, workers, overwrite), stdout=told, stderr=said, env=environment)


def undisturbed(base: Path) -> Undisturbed:
    folder = fresh(base)
    started = time.monotonic()
    if start(folder, 2).wait(LIMIT_S):
        raise RuntimeError(f"pack fails undisturbed: {(folder / 'said').read_text()[-2000:]}")
    return Undisturbed(time.monotonic() - started, results(folder))


def fresh(base: Path) -> Path:
    """A new folder with the inputs."""
    folder = base / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in NAMES:
        os.link(base / name, folder / name)
    return folder


def results(folder: Path) -> dict[str, bytes]:
    """All files but what the command says."""
    return {name: data for name, data in files_of(folder).items() if name not in ("told", "said")}


def processes_of(folder: Path) -> list[int]:
    """Living processes of the command in `folder`, known by their environment: workers leave its session."""
    mark = b"PENSTOCK_CACHE=" + os.fsencode(folder / "cache") + b"\0"
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in Path("/proc", name, "environ").read_bytes():
                    found.append(int(name))
    return found


def all_gone(folder: Path) -> bool:
    """Whether all processes of the command end by themselves soon."""
    stop_s = time.monotonic() + GONE_S
    while processes_of(folder):
        if time.monotonic() > stop_s:
            return False
        time.sleep(0.02)
    return True


@dataclass
class Round:
    """One round: the command is killed a few times, then it may end.

    Attributes:
        folder: where it works.
        rng: decides everything.
        plain: what is to come out.
        overwrite: whether an older output is there and to be replaced.
        kills: what was killed, in words.
        num_killed: processes.
        num_reused: finished tasks that later runs did not do again.
    """

    folder: Path
    rng: random.Random
    plain: Undisturbed
    overwrite: bool
    kills: list[str] = field(default_factory=list)
    num_killed: int = 0
    num_reused: int = 0

    def run(self) -> Iterator[str]:
        """Yields what is wrong."""
        if self.overwrite:
            self.output.write_bytes(OLD)
        for _ in range(self.rng.randrange(1, MOST_KILLS + 1)):
            yield from self.disturbed()
            if self.complete():
                break
        yield from self.to_the_end()

    @property
    def output(self) -> Path:
        return self.folder / "out.pbin"

    def complete(self) -> bool:
        return self.output.exists() and self.output.read_bytes() == self.plain.files["out.pbin"]

    def disturbed(self) -> Iterator[str]:
        """Run the command, and kill what chance says when chance says."""
        victim: Victim = self.rng.choice(("all", "all", "parent", "worker"))
        workers = self.rng.choice((1, 2, 3))
        delay_s = self.rng.random() * self.plain.seconds * 1.1
        process = start(self.folder, workers, self.overwrite)
        try:
            process.wait(delay_s)
        except subprocess.TimeoutExpired:
            hit = self.kill(process.pid, victim)
            self.kills.append(f"{victim}: {hit} processes after {delay_s:.2f} s, {workers} workers")
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill(process.pid, "all")
            status = process.wait()
            yield f"no end within {LIMIT_S} s after {self.kills}"
        if "Traceback" in (said := self.said()):
            yield f"a traceback after {self.kills}: {said[-2000:]}"
        if not all_gone(self.folder):
            yield f"{len(processes_of(self.folder))} processes outlive the command after {self.kills}"
            self.kill(process.pid, "all")
        if not self.complete():
            there = self.output.read_bytes() if self.output.exists() else None
            if there != (OLD if self.overwrite else None):
                yield f"neither the old output nor the new one is there after {self.kills}"
            if status == 0:
                yield f"no error and no output after {self.kills}"

    def to_the_end(self) -> Iterator[str]:
        """The same command, undisturbed: it goes on, or is refused as its output is there. Then all is as it should."""
        # One that was killed behind its commit, before its work was swept, is ended by the next.
        swept = not work_folders(self.folder)
        refused = self.complete() and not self.overwrite and swept
        status = start(self.folder, self.rng.choice((1, 2)), self.overwrite).wait(LIMIT_S)
        if (status != 0) != refused:
            yield f"ended with {status} after {self.kills}: {self.said()[-2000:]}"
        if status == 0:
            self.num_reused = json.loads((self.folder / "told").read_bytes())["reused_tasks"]
        found = results(self.folder)
        if found != self.plain.files:
            changed = [name for name in found | self.plain.files if found.get(name) != self.plain.files.get(name)]
            yield f"other files after {self.kills}: {sorted(changed)}"

    def kill(self, leader: int, victim: Victim) -> int:
        """Kill all processes of the command, its first, or one of the others; returns how many were hit."""
        living = processes_of(self.folder)
        others = [pid for pid in living if pid != leader]
        chosen = {"all": living, "parent": [leader], "worker": [self.rng.choice(others)] if others else []}[victim]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.num_killed += len(chosen)
        return len(chosen)

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")


def new_round(base: Path, number: int, seed: int, plain: Undisturbed) -> Round:
    rng = random.Random(f"{seed}:{number}")
    return Round(fresh(base), rng, plain, overwrite=rng.random() < 0.3)

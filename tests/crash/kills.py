"""SIGKILL at random moments of the real `penstock pack`, then the same command: it ends in the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from faults import files_of
from inputs import EOS, NAMES

Victim = Literal["all", "parent", "worker"]

MOST_KILLS = 4
LIMIT_S = 300
GONE_S = 20


@dataclass(frozen=True)
class Undisturbed:
    """What the command does when nobody disturbs it."""

    seconds: float
    files: dict[str, bytes]


def command(folder: Path, workers: int) -> list[str]:
    return [
        str(Path(sys.executable).parent / "penstock"),
        *("pack", str(folder / "a.jsonl.gz"), str(folder / "b.jsonl"), "-o", str(folder / "out.pbin")),
        *("--tokenizer", str(folder / "tokenizer.json"), "--eos", EOS, "--workers", str(workers), "--json"),
    ]


def start(folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """Start the command; what it says goes to the file `said`."""
    environment = {**os.environ, "PENSTOCK_CACHE": str(folder / "cache")}
    with open(folder / "said", "wb") as said:
        return subprocess.Popen(command(folder, workers), stdout=said, stderr=said, env=environment)


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
    return {name: data for name, data in files_of(folder).items() if name != "said"}


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


def kill(folder: Path, leader: int, victim: Victim, rng: random.Random) -> int:
    """Kill all processes of the command, its first, or one of the others; returns how many were hit."""
    living = processes_of(folder)
    others = [pid for pid in living if pid != leader]
    chosen = {"all": living, "parent": [leader], "worker": [rng.choice(others)] if others else []}[victim]
    for pid in chosen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(chosen)


def all_gone(folder: Path) -> bool:
    """Whether all processes of the command end by themselves soon."""
    stop_s = time.monotonic() + GONE_S
    while processes_of(folder):
        if time.monotonic() > stop_s:
            return False
        time.sleep(0.02)
    return True


def one_round(base: Path, number: int, seed: int, plain: Undisturbed) -> Iterator[str]:
    """Kill the command a few times, let it end, and compare. Yields what is wrong."""
    rng = random.Random(f"{seed}:{number}")
    folder = fresh(base)
    kills: list[str] = []
    for _ in range(rng.randrange(1, MOST_KILLS + 1)):
        yield from disturbed(folder, rng, kills, plain)
        if (folder / "out.pbin").exists():
            break
    yield from to_the_end(folder, rng, kills, plain)


def disturbed(folder: Path, rng: random.Random, kills: list[str], plain: Undisturbed) -> Iterator[str]:
    """Run the command, and kill what chance says when chance says."""
    victim: Victim = rng.choice(("all", "all", "parent", "worker"))
    workers = rng.choice((1, 2, 3))
    process = start(folder, workers)
    delay_s = rng.random() * plain.seconds * 1.1
    try:
        process.wait(delay_s)
    except subprocess.TimeoutExpired:
        kills.append(f"{victim} of {kill(folder, process.pid, victim, rng)} after {delay_s:.2f} s, {workers} workers")
    try:
        status = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        kill(folder, process.pid, "all", rng)
        status = process.wait()
        yield f"no end within {LIMIT_S} s after {kills}"
    said = (folder / "said").read_text(errors="replace")
    if "Traceback" in said:
        yield f"a traceback after {kills}: {said[-2000:]}"
    if not all_gone(folder):
        yield f"{len(processes_of(folder))} processes outlive the command after {kills}"
        kill(folder, process.pid, "all", rng)
    output = folder / "out.pbin"
    if output.exists() and output.read_bytes() != plain.files["out.pbin"]:
        yield f"a wrong output is visible after {kills}"
    if status == 0 and not output.exists():
        yield f"no error and no output after {kills}"


def to_the_end(folder: Path, rng: random.Random, kills: list[str], plain: Undisturbed) -> Iterator[str]:
    """The same command once more, undisturbed: it goes on, or is refused as its output is there. Then all is as it
    would have been."""
    complete = (folder / "out.pbin").exists()
    process = start(folder, rng.choice((1, 2)))
    status = process.wait(LIMIT_S)
    said = (folder / "said").read_text(errors="replace")
    if (status == 0) == complete:
        yield f"ended with {status} after {kills}: {said[-2000:]}"
    found = results(folder)
    if found != plain.files:
        changed = [name for name in found | plain.files if found.get(name) != plain.files.get(name)]
        yield f"other files after {kills}: {sorted(changed)}"

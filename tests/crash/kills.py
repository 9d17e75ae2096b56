"""SIGKILL at random moments of the real `penstock pack`, then the same command: it ends in the same bytes."""

from __future__ import annotations

import json
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

from penstock.store.local import is_staged_name

Victim = Literal["all", "parent", "worker"]

MOST_KILLS = 4
LIMIT_S = 300
GONE_S = 20


@dataclass(frozen=True)
class Undisturbed:
    """What the command does when nobody disturbs it."""

    seconds: float
    files: dict[str, bytes]


def make_inputs(folder: Path, size_bytes: int) -> None:
    """Two JSONL files of the standard library's own text, one of them compressed, and a tokenizer."""
    import gzip

    from tokenizers import ByteLevelBPETokenizer

    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(os.__file__).parent.glob("*.py"))]
    pieces = [piece for text in texts for piece in text.split("\n\n\n") if piece.strip()]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(pieces[:500], vocab_size=2000, special_tokens=["<|end|>"], show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    lines: list[str] = []
    while sum(map(len, lines[:: max(1, len(lines) // 100)])) * max(1, len(lines) // 100) < size_bytes:
        lines += [json.dumps({"text": piece, "n": len(lines)}) for piece in pieces]
    data = ("\n".join(lines) + "\n").encode()
    (folder / "b.jsonl").write_bytes(data)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(data[: data.index(b"\n", size_bytes // 10) + 1], 1, mtime=0))


def command(folder: Path, workers: int) -> list[str]:
    return [
        str(Path(sys.executable).parent / "penstock"),
        *("pack", str(folder / "a.jsonl.gz"), str(folder / "b.jsonl"), "-o", str(folder / "out.pbin")),
        *("--tokenizer", str(folder / "tokenizer.json"), "--eos", "<|end|>", "--workers", str(workers), "--json"),
    ]


def start(folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """The command in a session of its own, so that all its processes can be found and killed."""
    environment = {**os.environ, "PENSTOCK_CACHE": str(folder / "cache")}
    with open(folder / "said", "wb") as said:
        return subprocess.Popen(
            command(folder, workers), stdout=said, stderr=said, env=environment, start_new_session=True
        )


def run_to_the_end(folder: Path, workers: int) -> None:
    process = start(folder, workers)
    if process.wait(LIMIT_S):
        raise RuntimeError(f"ended with {process.returncode}: {(folder / 'said').read_text()[-2000:]}")


def undisturbed(base: Path) -> Undisturbed:
    folder = fresh(base)
    started = time.monotonic()
    run_to_the_end(folder, 2)
    return Undisturbed(time.monotonic() - started, results(folder))


def fresh(base: Path) -> Path:
    """A new folder with the inputs."""
    folder = base / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("a.jsonl.gz", "b.jsonl", "tokenizer.json"):
        os.link(base / name, folder / name)
    return folder


def results(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(folder).items() if name != "said"}


def session_of(leader: int) -> list[int]:
    """Living processes of a session, the leader first."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_bytes().rpartition(b") ")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] not in (b"Z", b"X"):
                found.append(int(name))
    return sorted(found, key=lambda pid: pid != leader)


def kill(leader: int, victim: Victim, rng: random.Random) -> int:
    """Kill the whole session, its leader, or one other process of it; returns how many were hit."""
    living = session_of(leader)
    others = [pid for pid in living if pid != leader]
    chosen = {"all": living, "parent": [leader], "worker": [rng.choice(others)] if others else []}[victim]
    for pid in chosen:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(chosen)


def one_round(base: Path, number: int, seed: int, plain: Undisturbed) -> Iterator[str]:
    """Kill the command a few times, let it end, and compare. Yields what is wrong."""
    rng = random.Random(f"{seed}:{number}")
    folder = fresh(base)
    kills: list[str] = []
    for _ in range(rng.randrange(1, MOST_KILLS + 1)):
        victim: Victim = rng.choice(("all", "all", "parent", "worker"))
        process = start(folder, rng.choice((1, 2, 3)))
        try:
            process.wait(rng.random() * plain.seconds * 1.1)
        except subprocess.TimeoutExpired:
            kills.append(f"{victim} ({kill(process.pid, victim, rng)})")
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            kill(process.pid, "all", rng)
            yield f"no end within {LIMIT_S} s after {kills}"
            return
        said = (folder / "said").read_text(errors="replace")
        if "Traceback" in said:
            yield f"a traceback after {kills}: {said[-2000:]}"
        if not gone(process.pid):
            yield f"processes outlive the command after {kills}: {session_of(process.pid)}"
            kill(process.pid, "all", rng)
        if status == 0:
            break
        if (folder / "out.pbin").exists() and (folder / "out.pbin").read_bytes() != plain.files["out.pbin"]:
            yield f"a wrong output is visible after {kills}"
    else:
        if not (folder / "out.pbin").exists():
            try:
                run_to_the_end(folder, rng.choice((1, 2)))
            except RuntimeError as error:
                yield f"the same command failed after {kills}: {error}"
                return
    found = results(folder)
    if found != plain.files:
        left = [name for name in found.keys() - plain.files.keys() if is_staged_name(os.path.basename(name))]
        # Killed between the name and the end of the command: only a staged file of the dead one may be left.
        changed = [
            name for name in found | plain.files if found.get(name) != plain.files.get(name) and name not in left
        ]
        if changed:
            yield f"other bytes after {kills}: {sorted(changed)}"


def gone(leader: int) -> bool:
    """Whether all processes of a session end by themselves soon."""
    stop_s = time.monotonic() + GONE_S
    while session_of(leader):
        if time.monotonic() > stop_s:
            return False
        time.sleep(0.02)
    return True

"""Runs programs that were written for a peer, as they are and on Penstock's names, on several ranks."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peers

PROGRAMS = Path(__file__).resolve().parent / "programs"
STEPS = 5
_SECONDS = 400


def programs(name: str, change: tuple[str, str], folder: Path) -> dict[bool, Path]:
    """Whether it is ours → the program, with the lines that match `change[0]` changed in the one that is."""
    text = (PROGRAMS / f"{name}.py").read_text()
    changed, count = re.subn(*change, text, flags=re.MULTILINE)
    assert count, f"{name}: nothing to change"
    found: dict[bool, Path] = {}
    for ours, lines in ((True, changed), (False, text)):
        found[ours] = folder / f"{name}_{'ours' if ours else 'theirs'}.py"
        found[ours].write_text(lines)
    return found


def run(peer: str, program: Path, ours: bool, world: int, arguments: Sequence[object]) -> list[Any]:
    """What each rank prints last, as JSON."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    ranks = str(world)
    base = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            map(str, [*[peers.STUBS] * peers.PEERS[peer].stubs, *[peers.ROOT / "src"] * ours])
        ),
        **{"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        **{"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
    }
    command = [str(peers.python_of(peer)), str(program), *map(str, arguments)]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(
            command, env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=pipe, stderr=pipe, text=True
        )
        for rank in range(world)
    ]
    try:
        done = [one.communicate(timeout=_SECONDS) for one in started]
    finally:
        for one in started:
            one.kill()
    for one, (output, errors) in zip(started, done, strict=True):
        assert one.returncode == 0, f"{program.name}: {output[-500:]}{errors[-3000:]}"
    return [json.loads(output.splitlines()[-1]) if output.strip().endswith("}") else None for output, _ in done]


def says(peer: str, program: Path, ours: bool, data: Path, state: Path) -> list[Any]:
    """What a program reads on two ranks, and then from its state on one."""
    first = run(peer, program, ours, 2, [data, state, STEPS])
    os.replace(f"{state}.new", state)
    return [first, run(peer, program, ours, 1, [data, state, 10_000])]


def require_equal(peer: str, found: dict[bool, Path], folder: Path, prepared: Sequence[object] = ()) -> None:
    """Both prepare data and read them, then go on from their state at another world size, and say the same."""
    said: dict[bool, list[Any]] = {}
    for ours, program in found.items():
        data = folder / ("by-ours" if ours else "by-theirs")
        run(peer, program, ours, 1, ["prepare", data, *prepared])
        said[ours] = says(peer, program, ours, data, folder / f"state-{ours}")
    assert said[True] == said[False]
    first, rest = said[True]
    assert [len(one["read"]) for one in first] == [STEPS, STEPS]
    assert rest[0]["read"]

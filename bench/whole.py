"""What the questions on whole datasets share: outputs that are made anew each time, in seconds and in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import (
    DATA,
    PENSTOCK,
    PYTHON,
    Failed,
    Options,
    Row,
    alternate,
    answer,
    child,
    command_seconds,
    limit,
    row,
)
from peers import modalities

MOST_MB = 256
"""What a command may hold, where documents need no permutation of another's."""


def fresh(name: str) -> Path:
    """Where an output goes; what an earlier run left there is removed."""
    path = DATA / "whole" / name
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(parents=True)
    return path


def timed(command: Callable[[Path], Sequence[object]], name: str) -> Callable[[], float]:
    """Seconds of a command that writes a new file."""

    def seconds() -> float:
        path = fresh(name)
        return command_seconds(command(path))

    return seconds


def beside_modalities(
    what: str,
    ours: Callable[[Path], Sequence[object]],
    theirs: Callable[[Path], Sequence[object]],
    name: str,
    options: Options,
    target: float | None,
) -> list[Row]:
    """Whole commands in turn, and the memory of both, which is reported."""
    pairs = alternate(timed(ours, name), timed(theirs, name), options.pairs(5))
    held = alternate(lambda: command_memory(ours(fresh(name))), lambda: command_memory(theirs(fresh(name))), 1)
    return [
        row(f"{what}, whole command", "s", pairs, modalities.NAME, target),
        limit(f"{what}, memory (Modalities: {held[0][1]:,.0f} MB)", "MB", [held[0][0]], MOST_MB),
    ]


def command_memory(command: Sequence[object]) -> float:
    """Most memory in MB that a command held at once, mapped pages counted."""
    return child(PYTHON, __file__, "most_memory", command=[str(part) for part in command])["mb"]


def most_memory(command: list[str]) -> dict[str, float]:
    """In a child that is small itself: what a process holds counts from the fork on."""
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(started.pid, 0)
    if status != 0:
        raise Failed(f"{' '.join(command)[:300]} ended with {status}")
    return {"mb": usage.ru_maxrss / 1000}


def same_bytes(ours: Callable[[Path], Sequence[object]], theirs: Callable[[Path], Sequence[object]], name: str) -> str:
    """A note that both commands write the same file, or an error."""
    path = fresh(name)
    command_seconds(ours(path))
    kept = path.with_name(f"ours-{name}")
    path.rename(kept)
    command_seconds(theirs(path))
    if kept.read_bytes() != path.read_bytes():
        raise Failed("the two files differ: a figure would mean nothing")
    return f"Both write the same {path.stat().st_size / 1e6:,.0f} MB, byte for byte."


def penstock(*arguments: object) -> list[object]:
    """Our command line."""
    return [PENSTOCK, *arguments]


if __name__ == "__main__":
    answer(globals())

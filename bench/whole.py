"""Helpers for benchmarks that write a whole dataset: time and peak memory of a command."""

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
"""Largest allowed peak memory of a command."""


def fresh(name: str) -> Path:
    """Return the path of an output, after removing earlier outputs."""
    path = DATA / "whole" / name
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(parents=True)
    return path


def timed(command: Callable[[Path], Sequence[object]], name: str) -> Callable[[], float]:
    """Return a function that times a command that writes a new file."""

    def seconds() -> float:
        path = fresh(name)
        return command_seconds(command(path))

    return seconds


def compare_with_modalities(
    what: str,
    ours: Callable[[Path], Sequence[object]],
    theirs: Callable[[Path], Sequence[object]],
    name: str,
    options: Options,
    target: float | None,
) -> list[Row]:
    """Run whole commands in turn and measure the peak memory of both."""
    pairs = alternate(timed(ours, name), timed(theirs, name), options.pairs(5))
    held = alternate(lambda: command_memory(ours(fresh(name))), lambda: command_memory(theirs(fresh(name))), 1)
    return [
        row(f"{what}, whole command", "s", pairs, modalities.NAME, target),
        limit(f"{what}, peak memory (Modalities: {held[0][1]:,.0f} MB)", "MB", [held[0][0]], MOST_MB),
    ]


def command_memory(command: Sequence[object]) -> float:
    """Return the peak memory of a command in MB, including mapped pages."""
    return child(PYTHON, __file__, "most_memory", command=[str(part) for part in command])["mb"]


def most_memory(command: list[str]) -> dict[str, float]:
    """Measure in a small child process, because the peak of a process includes its memory at the fork."""
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(started.pid, 0)
    if status != 0:
        raise Failed(f"{' '.join(command)[:300]} ended with {status}")
    return {"mb": usage.ru_maxrss / 1000}


def same_bytes(ours: Callable[[Path], Sequence[object]], theirs: Callable[[Path], Sequence[object]], name: str) -> str:
    """Return a note that both commands write the same file; raise `Failed` if they don't."""
    path = fresh(name)
    command_seconds(ours(path))
    kept = path.with_name(f"ours-{name}")
    path.rename(kept)
    command_seconds(theirs(path))
    if kept.read_bytes() != path.read_bytes():
        raise Failed("the two files differ, so the timings are meaningless")
    return f"Both outputs are byte-identical ({path.stat().st_size / 1e6:,.0f} MB)."


def penstock(*arguments: object) -> list[object]:
    """Return a `penstock` command."""
    return [PENSTOCK, *arguments]


if __name__ == "__main__":
    answer(globals())

"""Runs a program of `examples/`, kills it, runs it again, and holds its notes against those of a run nobody stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import peers

EXAMPLES = peers.ROOT / "examples"
STEPS_MORE = 12
_LEAST_STEPS = 8
"""Before it is killed: a checkpoint is older than that."""
_SECONDS = 300

Steps = dict[int, tuple[list[int], float]]
"""Step → the samples of all ranks, sorted, and the loss."""


def killed_and_taken_up(
    first: Sequence[str],
    later: Sequence[Sequence[str]],
    example: str,
    folder: Path,
    *,
    change: Callable[[Path], None] = lambda _: None,
    **more: str,
) -> tuple[Steps, list[Steps], Steps]:
    """The steps of a run that was killed, of those that took it up, and of one that nobody stopped.

    Args:
        first: what starts Python for the run that is killed, and for the one that nobody stops.
        later: the same for each run that takes it up, from a copy of what the first one left.
        example: file in `examples/`.
        folder: empty.
        change: is called with each copy before it is taken up.
        more: the environment.
    """
    words = [str(EXAMPLES / example), str(folder / "tokens.pbin")]
    log = folder / "killed"
    running = _start([*first, *words, str(folder / "kept"), "1000000", "--notes", str(log)], folder, more)
    until = time.monotonic() + _SECONDS
    while len(read(log)) < _LEAST_STEPS:
        if running.poll() is not None or time.monotonic() > until:
            _kill(running)
            raise AssertionError((folder / "said").read_text()[-3000:])
        time.sleep(0.01)
    _kill(running)
    killed = read(log)
    total = str(max(killed) + STEPS_MORE)
    taken_up: list[Steps] = []
    for number, start in enumerate(later):
        kept, log = folder / f"kept-{number}", folder / f"later-{number}"
        shutil.copytree(folder / "kept", kept)
        change(kept)
        _finish(_start([*start, *words, str(kept), total, "--notes", str(log)], folder, more), folder)
        taken_up.append(read(log))
    _finish(
        _start([*first, *words, str(folder / "fresh"), total, "--notes", str(folder / "whole")], folder, more), folder
    )
    return killed, taken_up, read(folder / "whole")


def require_equal(killed: Steps, later: Steps, whole: Steps, *, same_world: bool = True) -> None:
    """The same samples at every step, and the same loss where the number of ranks is the same; a loss that falls."""
    assert sorted(whole) == list(range(len(whole)))
    assert max(later) == max(whole)
    assert 0 < min(later) <= max(killed) + 1  # it began where the last checkpoint was
    assert sorted(later) == list(range(min(later), max(later) + 1))
    for steps in (killed, later):
        for step, (samples, loss) in steps.items():
            assert samples == whole[step][0], step
            if same_world:
                assert abs(loss - whole[step][1]) < 1e-6, step
    assert len({one for samples, _ in whole.values() for one in samples}) > len(whole)
    losses = [loss for _, (_, loss) in sorted(whole.items())]
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


def read(notes: Path) -> Steps:
    """The steps that every rank has written down; a line that was cut by the kill does not count."""
    ranks: list[dict[int, tuple[list[int], float]]] = []
    for path in sorted(notes.parent.glob(f"{notes.name}.*")):
        lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        ranks.append({line["step"]: (line["samples"], line["loss"]) for line in lines})
    if not ranks:
        return {}
    common = set(ranks[0]).intersection(*ranks[1:])
    return {step: (sorted(one for rank in ranks for one in rank[step][0]), ranks[0][step][1]) for step in common}


def _start(command: Sequence[str], folder: Path, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    environment |= {"PYTHONPATH": str(peers.ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONFAULTHANDLER": "1"} | more
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment, start_new_session=True
        )


def _finish(running: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        status = running.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        for process in _descendants(running.pid):  # where they hang, for the message below
            os.kill(process, signal.SIGABRT)
        time.sleep(5)
        _kill(running)
        status = None
    assert status == 0, (folder / "said").read_text()[-3000:]


def _kill(running: subprocess.Popen[bytes]) -> None:
    """All of its processes at once, as a node that goes down; torchrun gives each rank a session of its own."""
    for process in [running.pid, *_descendants(running.pid)]:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    running.wait()


def _descendants(process: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [int(one) for task in tasks for one in (task / "children").read_text().split()]
    except OSError:
        return []
    return [one for child in children for one in (child, *_descendants(child))]

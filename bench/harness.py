"""Measuring: whole commands by wall time, inner loops in a child process that prints JSON, always in pairs.

Machines are noisy. Penstock and the peer are therefore run in turn, A B A B, in the same run, and the result is the
median of the pairs' factors.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
DATA = BENCH / "data"
PYTHON = sys.executable
PENSTOCK = Path(sys.executable).parent / "penstock"

LESS_IS_BETTER = ("s", "MB", "requests")
"""Units for which less is better. All others are rates."""

_CHILD_SECONDS = 3600


class NotRun(Exception):
    """A benchmark that can't run here. The message has the reason."""


class Failed(Exception):
    """A measured command that failed or returned a wrong result."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a result.

    Attributes:
        what: label.
        unit: `"s"` or another of `LESS_IS_BETTER`, else a rate.
        ours: median of Penstock's figures.
        other: median of the peer's figures, None without a peer.
        other_name: name of the peer.
        factor: how many times as good as the peer Penstock is, the median over pairs; without a peer, `ours`.
        target: the smallest allowed factor, or with `at_most` the largest allowed `ours`; None: no target.
    """

    what: str
    unit: str
    ours: float
    other: float | None
    other_name: str
    factor: float
    target: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None without a target."""
        if self.target is None:
            return None
        return self.ours <= self.target if self.at_most else self.factor >= self.target


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one benchmark: rows, and notes for the reader."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=tuple[str, ...])

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, with `met` in each row."""
        rows = [asdict(row) | {"met": row.met} for row in self.rows]
        return {"title": self.title, "rows": rows, "notes": list(self.notes)}


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall time of a command, and CPU time of all its processes."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Options:
    """Run options: `quick` runs one pair of everything, `large` also benchmarks that take many minutes."""

    quick: bool = False
    large: bool = False

    def pairs(self, usual: int) -> int:
        """Return the number of pairs to run."""
        return 1 if self.quick else usual


def row(
    what: str, unit: str, pairs: Sequence[tuple[float, float]], other_name: str, target: float | None = None
) -> Row:
    """Return a row from pairs of figures (Penstock's, the peer's)."""
    ours, other = zip(*pairs, strict=True)
    factors = [b / a if unit in LESS_IS_BETTER else a / b for a, b in pairs]
    return Row(
        *(what, unit, statistics.median(ours), statistics.median(other), other_name),
        *(statistics.median(factors), target),
    )


def limit(what: str, unit: str, figures: Sequence[float], at_most: float | None) -> Row:
    """Return a row without a peer, whose figure should be at most `at_most`; None: no target."""
    middle = statistics.median(figures)
    return Row(what, unit, middle, None, "", middle, at_most, at_most=True)


def alternate(ours: Callable[[], Any], other: Callable[[], Any], count: int) -> list[tuple[Any, Any]]:
    """Run both functions in turn and return `count` pairs of results."""
    return [(ours(), other()) for _ in range(count)]


def columns(pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], ours: str, other: str) -> Any:
    """Return one named figure of each side from the pairs of `alternate`."""
    return [(a[ours], b[other]) for a, b in pairs]


def command_seconds(command: Sequence[object], before: Callable[[], object] = lambda: None) -> float:
    """Return the wall time of a whole command, including interpreter startup; `before` isn't timed."""
    before()
    return command_cost(command, {}).seconds


def command_cost(command: Sequence[object], variables: Mapping[str, str]) -> Cost:
    """Return the time of a whole command that runs with these environment variables."""
    cpu_seconds, started = _children_seconds(), time.perf_counter()
    _run([str(part) for part in command], variables)
    return Cost(time.perf_counter() - started, _children_seconds() - cpu_seconds)


def child(python: object, script: object, function: str, python_path: Path | None = None, **arguments: Any) -> Any:
    """Call a function of a script in a child process, which answers in JSON. `python_path` is for its imports."""
    variables = {} if python_path is None else {"PYTHONPATH": str(python_path)}
    output = _run([str(python), str(script), function, json.dumps(arguments, default=str)], variables)
    return json.loads(output.splitlines()[-1])


def answer(functions: Mapping[str, Any]) -> None:
    """Run the function named on the command line, in the child process; `functions` are the script's globals."""
    print(json.dumps(functions[sys.argv[1]](**json.loads(sys.argv[2]))))


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _run(command: list[str], variables: Mapping[str, str]) -> str:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # cache bytecode for Penstock and the peers alike
    environment.setdefault("PENSTOCK_CACHE", str(DATA / "cache"))
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=_CHILD_SECONDS, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)[:300]} exited with {done.returncode}:\n{(done.stdout + done.stderr)[-1500:]}")
    return done.stdout

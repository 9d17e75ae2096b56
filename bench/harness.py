"""How things are measured: whole commands by wall time, inner loops by a child that prints JSON, always in pairs.

Machines are noisy. So ours and the other are run in turn, A B A B, in one run, and what counts is the median of
the pairs' factors, not two figures from two days.
"""

from __future__ import annotations

import json
import os
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
"""Units of what should be small; all others are rates."""

_CHILD_SECONDS = 3600


class NotRun(Exception):
    """A question that can't be answered here and now; the message says why."""


class Failed(Exception):
    """Something that was to be measured did not work, or gave a wrong result."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a result.

    Attributes:
        what: what was done.
        unit: `"s"`, or another of `LESS_IS_BETTER`, else a rate.
        ours: median of our figures.
        other: median of the other's figures, None where there is no other.
        other_name: who the other is.
        factor: how many times as good as the other we are, the median over pairs; without another, `ours`.
        target: the least factor that was asked for, or with `at_most` the largest `ours`; None: only reported.
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
        """Whether the target was met; None where there is none."""
        if self.target is None:
            return None
        return self.ours <= self.target if self.at_most else self.factor >= self.target


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one question: rows, and notes for the reader."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=tuple[str, ...])

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, with `met` in each row."""
        rows = [asdict(row) | {"met": row.met} for row in self.rows]
        return {"title": self.title, "rows": rows, "notes": list(self.notes)}


@dataclass(frozen=True, slots=True)
class Options:
    """How much to do: `quick` one pair of everything, `large` also what takes many minutes."""

    quick: bool = False
    large: bool = False

    def pairs(self, usual: int) -> int:
        """How many pairs to run."""
        return 1 if self.quick else usual


def row(
    what: str, unit: str, pairs: Sequence[tuple[float, float]], other_name: str, target: float | None = None
) -> Row:
    """A row from pairs of (ours, the other's) figures."""
    ours, other = zip(*pairs, strict=True)
    factors = [b / a if unit in LESS_IS_BETTER else a / b for a, b in pairs]
    return Row(
        *(what, unit, statistics.median(ours), statistics.median(other), other_name),
        *(statistics.median(factors), target),
    )


def limit(what: str, unit: str, figures: Sequence[float], at_most: float | None) -> Row:
    """A row that stands alone and should not be above a figure; with None it is only reported."""
    middle = statistics.median(figures)
    return Row(what, unit, middle, None, "", middle, at_most, at_most=True)


def alternate(ours: Callable[[], Any], other: Callable[[], Any], count: int) -> list[tuple[Any, Any]]:
    """`count` pairs of results, in turn."""
    return [(ours(), other()) for _ in range(count)]


def columns(pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], ours: str, other: str) -> Any:
    """One named figure of each side of the pairs that `alternate` made of children."""
    return [(a[ours], b[other]) for a, b in pairs]


def command_seconds(command: Sequence[object], before: Callable[[], object] = lambda: None) -> float:
    """Wall time of a whole command, start of the interpreter included; `before` is not timed."""
    before()
    started = time.perf_counter()
    _run([str(part) for part in command])
    return time.perf_counter() - started


def child(python: object, script: object, function: str, python_path: Path | None = None, **arguments: Any) -> Any:
    """Call a function of a script in a process of its own; it answers in JSON. `python_path` is for its imports."""
    output = _run([str(python), str(script), function, json.dumps(arguments, default=str)], python_path)
    return json.loads(output.splitlines()[-1])


def answer(functions: Mapping[str, Any]) -> None:
    """The child's side of `child`: `functions` are the script's globals."""
    print(json.dumps(functions[sys.argv[1]](**json.loads(sys.argv[2]))))


def _run(command: list[str], python_path: Path | None = None) -> str:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode, ours as the peers'
    environment.setdefault("PENSTOCK_CACHE", str(DATA / "cache"))
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=_CHILD_SECONDS, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)[:300]} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout

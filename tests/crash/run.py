"""Crash everything that writes: `python tests/crash/run.py`. `make crash` calls it.

First death before, after and in the middle of each call that changes files or the store, for every case in `cases.py`:
of the main process, of one worker and of all. Then a fault at every file operation of every scenario in `scenarios.py`:
errors, torn and short writes, a full disk, kills. Then a fault at each call of every verb in `verbs.py`, reading ones
too, and what the user is told. Then CRASH_ROUNDS (20) rounds of SIGKILL at random moments of the
real `penstock pack`. A finding ends with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import logging
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import each_call
import each_fault
import faults
import inputs
import interrupts
import kills
from cases import BUCKET, CASES
from scenarios import SCENARIOS, pack_inputs
from tests.internals import RANDOM_PART, WRITER_MODULES
from verbs import VERBS

PRELOAD = (
    "tokenizers",
    *WRITER_MODULES,
    "penstock.convert",
)
"""Imported once, before all the children that would."""

STAGES = ("calls", "operations", "verbs", "interrupts", "pack")
INTERRUPTS = 12
"""At most so many of a command."""
INPUT_BYTES = 64 << 20
SLOW_FAULTS = 100
"""Of a verb that takes seconds."""


@dataclass(frozen=True)
class Killed:
    """What the kills of a case came to."""

    calls: int = 0
    kills: int = 0
    states: int = 0
    failed: int = 0
    seconds: float = 0.0
    findings: tuple[str, ...] = ()


def kill_case(number: int, most: int, seed: int) -> Killed:
    """The kills of a case, without and with an old result; what went wrong, once with the kills that it came of."""
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    case, started = CASES[number], time.monotonic()
    calls = tried = states = failed = 0
    found: dict[str, list[str]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-crash-", dir=memory_folder()) as folder,
        bucket_for(case) as bucket,
    ):
        for with_old in (False, True) if case.old is not None else (False,):
            one = each_call.Round(case, Path(folder), with_old, bucket)
            try:
                one.begin()
            except RuntimeError as error:
                found[str(error)] = ["without a kill"]
                continue
            for kill in one.some(most, seed):
                problems = one.kill(kill)
                tried, failed = tried + 1, failed + bool(problems)
                for problem in problems:
                    plain = re.sub(RANDOM_PART, "…", problem).replace(folder, "")
                    found.setdefault(f"{one.name}: {plain}", []).append(f"{kill.victim} {kill.moment} {kill.at}")
            calls, states = calls + len(one.calls) + len(one.worker_calls), states + len(one.judged)
    findings = tuple(f"{problem} [{len(at)} kills: {', '.join(at[:5])}]" for problem, at in found.items())
    return Killed(calls, tried, states, failed, time.monotonic() - started, findings)


@contextlib.contextmanager
def bucket_for(case: each_call.Case) -> Generator[each_call.Bucket]:
    """The bucket of a case that writes to one."""
    if not case.remote:
        yield each_call.Bucket()
        return
    with each_call.served_bucket(BUCKET) as bucket:
        yield bucket


def chosen_of(names: Sequence[str], only: Sequence[str]) -> list[int]:
    """Places of the names that have one of some words in them, in the order of the words."""
    return list(dict.fromkeys(number for word in only for number, name in enumerate(names) if word in name))


def crash_calls(only: Sequence[str], most: int, seed: int, processes: int) -> int:
    """The kills of all cases, some cases at a time; returns the number of findings."""
    chosen = chosen_of([case.name for case in CASES], only)
    started, total = time.monotonic(), Killed()
    pack_inputs()  # once, before all the children that would
    print(f"crash: {'case':<36} {'calls':>6} {'kills':>6} {'states':>6} {'failed':>6} {'kills/s':>8}")
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        for number, one in zip(
            chosen, pool.imap(functools.partial(kill_case, most=most, seed=seed), chosen), strict=True
        ):
            print_row(CASES[number].name, one, one.seconds)
            for finding in one.findings:
                print(f"  {finding}", flush=True)
            sums = (total.calls + one.calls, total.kills + one.kills, total.states + one.states)
            total = Killed(*sums, total.failed + one.failed, 0, total.findings + one.findings)
    print_row(f"{len(chosen)} cases", total, time.monotonic() - started)
    return len(total.findings)


def print_row(name: str, one: Killed, seconds: float) -> None:
    rate = one.kills / max(seconds, 1e-3)
    print(f"crash: {name:<36} {one.calls:6} {one.kills:6} {one.states:6} {one.failed:6} {rate:8.1f}", flush=True)


def crash_scenario(number: int) -> faults.Report:
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    for name in PRELOAD:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="penstock-crash-", dir=memory_folder()) as folder:
        return faults.run_scenario(SCENARIOS[number], Path(folder))


def crash_operations(only: Sequence[str], processes: int) -> int:
    """All scenarios, some at a time; returns the number of findings."""
    chosen = chosen_of([scenario.name for scenario in SCENARIOS], only)
    found = 0
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for number, report in zip(chosen, pool.imap(crash_scenario, chosen), strict=True):
            for finding in report.findings:
                print(f"  {finding}")
            found += len(report.findings)
            print(
                f"crash: {SCENARIOS[number].name}: {report.tried} faults, {len(report.findings)} findings",
                flush=True,
            )
    return found


def fail_verb(number: int, most: int, seed: int) -> tuple[int, list[str]]:
    """A fault at each call of a verb: how many, and what went wrong, each with the first fault that it came of."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-crash-", dir=memory_folder()) as folder:
        one = each_fault.Round(VERBS[number], Path(folder) / "round")
        one.begin()
        chosen = one.some(min(most, SLOW_FAULTS) if VERBS[number].slow else most, seed)
        for fault in chosen:
            for problem in one.fail(fault):
                name, path = one.calls[fault.at - 1]
                found.setdefault(problem.replace(folder, ""), f"{fault.error} at {fault.at}, {name} {path}")
    return len(chosen), [f"{problem} [{first}]" for problem, first in found.items()]


def crash_verbs(only: Sequence[str], most: int, seed: int, processes: int) -> int:
    """A fault at each call of every verb, some verbs at a time; returns the number of findings."""
    chosen = chosen_of([verb.name for verb in VERBS], only)
    total = 0
    pack_inputs()
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        work = functools.partial(fail_verb, most=most, seed=seed)
        for number, (tried, findings) in zip(chosen, pool.imap(work, chosen), strict=True):
            print(f"crash: {VERBS[number].name}: {tried} faults, {len(findings)} findings", flush=True)
            for finding in findings:
                print(f"  {finding}", flush=True)
            total += len(findings)
    return total


def crash_interrupts(only: Sequence[str], most: int) -> int:
    """Ctrl-C in every command; returns the number of findings."""
    with tempfile.TemporaryDirectory(prefix="penstock-crash-", dir=memory_folder()) as folder:
        return interrupts.interrupt_all(Path(folder), only, min(most, INTERRUPTS))


def crash_pack(rounds: int, seed: int) -> int:
    """Rounds of kills; returns the number of findings."""
    found = killed = runs = reused = 0
    with tempfile.TemporaryDirectory(prefix="penstock-crash-", dir=memory_folder()) as folder:
        base = Path(folder)
        inputs.inputs_in(base, INPUT_BYTES)
        plain = kills.undisturbed(base)
        print(f"crash: pack undisturbed: {plain.seconds:.1f} s, {len(plain.files['out.pbin']):,} bytes", flush=True)
        for number in range(rounds):
            one = kills.new_round(base, number, seed, plain)
            for finding in one.run():
                print(f"  round {number}: {finding}", flush=True)
                found += 1
            killed += one.num_killed
            runs += len(one.kills)
            reused += one.num_reused
    print(f"crash: pack: {rounds} rounds, {runs} runs and {killed} processes killed, {reused} finished tasks reused")
    return found


def memory_folder() -> str | None:
    """Where no case waits for a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("CRASH_ROUNDS", "20")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("CRASH_SEED", "1")))
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="what has one of these in its name")
    most = int(os.environ.get("CRASH_KILLS", str(sys.maxsize)))
    parser.add_argument("--kills", type=int, default=most, help="at most so many kills at calls, a case and start")
    parser.add_argument("--stages", nargs="+", choices=STAGES, help="only these; with --only all but `pack`")
    parser.add_argument("--processes", type=int, default=2, help="so many cases at a time")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    print(f"crash: seed {given.seed}, {given.rounds} rounds")
    stages: dict[str, Callable[[], int]] = {
        "calls": lambda: crash_calls(given.only, given.kills, given.seed, given.processes),
        "operations": lambda: crash_operations(given.only, given.processes),
        "verbs": lambda: crash_verbs(given.only, given.kills, given.seed, given.processes),
        "interrupts": lambda: crash_interrupts(given.only, given.kills),
        "pack": lambda: crash_pack(given.rounds, given.seed),
    }
    every = STAGES if given.only == [""] else STAGES[:-1]
    found = sum(stages[name]() for name in given.stages or every)
    print(f"crash: {found} findings in {time.monotonic() - started:.0f} s")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Crash everything that writes: `python tests/crash/run.py`. `make crash` calls it.

First a fault at every file operation of every scenario in `scenarios.py`: errors, torn and short writes, a full disk,
kills. Then CRASH_ROUNDS (20) rounds of SIGKILL at random moments of the real `penstock pack`. A finding ends with 1.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import faults
import inputs
import kills
from scenarios import SCENARIOS

PRELOAD = (
    "tokenizers",
    "penstock.prepare.raw",
    "penstock.formats.pbin",
    "penstock.prepare.pipeline",
    "penstock.prepare.tokenize",
    "penstock.convert",
)
"""Imported once, before all the children that would."""

INPUT_BYTES = 64 << 20


def crash_scenario(number: int) -> faults.Report:
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    for name in PRELOAD:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="penstock-crash-", dir=memory_folder()) as folder:
        return faults.run_scenario(SCENARIOS[number], Path(folder))


def crash_operations(only: str) -> int:
    """All scenarios, two at a time; returns the number of findings."""
    chosen = [number for number, scenario in enumerate(SCENARIOS) if only in scenario.name]
    found = 0
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for number, report in zip(chosen, pool.imap(crash_scenario, chosen), strict=True):
            for finding in report.findings:
                print(f"  {finding}")
            found += len(report.findings)
            print(
                f"crash: {SCENARIOS[number].name}: {report.tried} faults, {len(report.findings)} findings",
                flush=True,
            )
    return found


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
    parser.add_argument("--only", default="", help="only the scenarios with this in their name, and no kills of pack")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    print(f"crash: seed {given.seed}, {given.rounds} rounds")
    found = crash_operations(given.only)
    if not given.only:
        found += crash_pack(given.rounds, given.seed)
    print(f"crash: {found} findings in {time.monotonic() - started:.0f} s")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())

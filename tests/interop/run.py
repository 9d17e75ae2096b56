"""Interop with the real packages: makes their environments, runs the tests, and says plainly what ran.

`make interop`, or `python tests/interop/run.py [--seed N] [peer …]`. Two peers run at a time. A peer that does not
install is NOT RUN, never passed; the exit status is red for it where it is required.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import peers

HERE = Path(__file__).resolve().parent
SEED_VARIABLE = "PENSTOCK_INTEROP_SEED"
AT_A_TIME = 2
# mosaicml-streaming numbers its shared memory from 0 in each process: two of its test runs at once can take one name.
ONE_AT_A_TIME = {"streaming", "spark"}
_shared_memory = threading.Lock()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one peer's tests; `reason` is set where they did not run."""

    peer: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reason: str | None = None

    @property
    def green(self) -> bool:
        """Whether this peer does not spoil the run. A run of no test at all is not green."""
        if self.reason is not None:
            return not peers.PEERS[self.peer].required
        return self.failed == 0 and self.skipped == 0 and self.passed > 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the summary, and give the exit status."""
    parser = argparse.ArgumentParser(description="Interop tests against the real packages.")
    parser.add_argument("names", nargs="*", help=f"peers; all by default: {', '.join(peers.PEERS)}")
    parser.add_argument("--seed", type=int, default=None, help="of the fresh input; drawn and printed by default")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(peers.PEERS))
    if unknown:
        parser.error(f"unknown peers: {', '.join(unknown)}")
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed of the fresh input: {seed} (the same again: tests/interop/run.py --seed {seed})", flush=True)
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        outcomes = list(threads.map(lambda name: _one(name, seed), options.names or peers.PEERS))
    print(_summary(outcomes))
    return 0 if all(outcome.green for outcome in outcomes) else 1


def _one(name: str, seed: int) -> Outcome:
    started = time.monotonic()
    print(f"{name}: making its environment …", flush=True)
    try:
        peers.ensure(name)
    except peers.PeerError as error:
        print(error, file=sys.stderr, flush=True)
        return Outcome(name, reason=str(error))
    print(f"{name}: environment ready after {time.monotonic() - started:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # The project's own options leave this folder out of `make test`; here they are set anew.
        command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider"]
        command += ["--durations=5", "-o", "addopts=", f"--junitxml={report}"]
        command += map(str, sorted(HERE.glob(f"test_{name}*.py")))
        environment = {**os.environ, SEED_VARIABLE: str(seed)}
        with _shared_memory if name in ONE_AT_A_TIME else contextlib.nullcontext():
            done = subprocess.run(
                command, cwd=peers.ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        print(f"{name}:\n{done.stdout}", end="", flush=True)
        return _read(name, report, done.returncode, time.monotonic() - started)


def _read(name: str, report: Path, status: int, seconds: float) -> Outcome:
    if not report.exists():
        return Outcome(name, failed=1, seconds=seconds)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    if suite is None:
        return Outcome(name, failed=1, seconds=seconds)
    tests, errors, failures, skipped = (int(suite.get(key, "0")) for key in ("tests", "errors", "failures", "skipped"))
    failed = errors + failures
    passed = tests - failed - skipped
    # A status that the counts do not explain is a failure too.
    return Outcome(name, passed, max(failed, int(status != 0)), skipped, seconds)


def _summary(outcomes: Sequence[Outcome]) -> str:
    lines = ["", "interop:"]
    for outcome in outcomes:
        requirement = peers.PEERS[outcome.peer].requirements[0]
        if outcome.reason is not None:
            need = "required" if peers.PEERS[outcome.peer].required else "not required"
            lines.append(f"  {requirement}: NOT RUN ({need}): {outcome.reason.strip().splitlines()[-1]}")
        else:
            lines.append(
                f"  {requirement}: {outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped "
                f"in {outcome.seconds:.0f} s"
            )
    totals = (sum(getattr(outcome, name) for outcome in outcomes) for name in ("passed", "failed", "skipped"))
    not_run = sum(outcome.reason is not None for outcome in outcomes)
    summary = "{} passed, {} failed, {} skipped".format(*totals)
    lines.append(summary + (f", {not_run} peers NOT RUN" if not_run else ""))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

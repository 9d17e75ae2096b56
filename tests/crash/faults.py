"""A fault at every file operation of all that writes: afterwards the old state, the whole new one, or nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import inputs
from tests.internals import is_staged_name

from penstock.errors import NotFound, PenstockError
from penstock.testing.faults import FaultMode, FaultyOs, faults_everywhere, places_of

MODES: tuple[FaultMode, ...] = ("raise", "tear", "short", "enospc", "kill", "tear-kill")
KILLS = ("kill", "tear-kill")
LIMIT_S = 120


@dataclass(frozen=True)
class Scenario:
    """One thing that writes.

    Attributes:
        name: what it is.
        setup: makes the inputs in a new folder.
        work: does it; `overwrite` where a result is there already.
        view: what a reader sees of the result, None where there is none.
        old: makes an older result, for the round with one; None where there can be none.
        again: whether the same call again overwrites a result that is there; else it is refused with it, or knows it
            for its own by what a killed run left.
        spare: pattern of names that the same call again may add: further backups.
    """

    name: str
    setup: Callable[[Path], None]
    work: Callable[[Path, bool], object]
    view: Callable[[Path], Any]
    old: Callable[[Path], None] | None = None
    again: Literal["overwrites", "is refused"] = "overwrites"
    spare: str = r"(?!)"


@dataclass(frozen=True)
class Report:
    """How many faults were tried, and what went wrong."""

    tried: int
    findings: list[str]


def run_scenario(scenario: Scenario, base: Path, modes: tuple[FaultMode, ...] = MODES) -> Report:
    """Every mode at every operation, without and with an old result."""
    tried, findings = 0, []
    for with_old in (False, True) if scenario.old is not None else (False,):
        plain = _prepared(scenario, base / "plain", with_old)
        inputs.know_tokenizers(plain)
        before = _seen(scenario, plain)
        in_child(lambda plain=plain, with_old=with_old: scenario.work(plain, with_old))
        after, final = _seen(scenario, plain), files_of(plain)
        calls = _calls(scenario, base / "count", with_old)
        for mode in modes:
            for n in places_of(mode, calls):
                tried += 1
                folder = _prepared(scenario, base / "case", with_old)
                for problem in _one(scenario, folder, mode, n, with_old, (before, after, final)):
                    findings.append(
                        f"{scenario.name}, old {with_old}, {mode} at {n} of {len(calls)}, {calls[n - 1]}: {problem}"
                    )
    return Report(tried, findings)


def _one(
    scenario: Scenario,
    folder: Path,
    mode: FaultMode,
    n: int,
    with_old: bool,
    expected: tuple[Any, Any, dict[str, bytes]],
) -> Iterator[str]:
    before, after, final = expected

    def faulty() -> None:
        with faults_everywhere(FaultyOs(n, mode)):
            scenario.work(folder, with_old)

    status, said = in_child(faulty)
    seen = _seen(scenario, folder)
    if seen not in (before, after):
        yield f"neither old nor new is there: {str(seen)[:200]}"
    if status == 0 and seen != after:
        yield "no error, and the result is not there"
    if status > 1 or (status < 0 and not (status == -signal.SIGKILL and mode in KILLS)):
        yield f"ended with {status}: {said}"
    if mode == "short" and status != 0:
        yield f"a short read or write was taken for an error: {said}"
    left = [name for name in files_of(folder) if is_staged_name(os.path.basename(name))]
    if mode not in KILLS and left:
        yield f"left behind: {left}"
    refused = scenario.again == "is refused" and seen is not None and not with_old
    status, said = in_child(lambda: scenario.work(folder, with_old or (seen is not None and not refused)))
    if status not in ((0, 1) if refused else (0,)):
        yield f"the same again ended with {status}: {said}"
    found = files_of(folder)
    if seen == after and mode in KILLS:
        # The work was done: whoever finds it done does not look for what the dead one left.
        found = {name: data for name, data in found.items() if not is_staged_name(os.path.basename(name))}
    changed = {name for name in found | final if found.get(name) != final.get(name)}
    changed = {name for name in changed if not re.fullmatch(scenario.spare, name)}
    if changed:
        yield f"the same again gave other bytes: {sorted(changed)}"


def in_child(work: Callable[[], object]) -> tuple[int, str]:
    """Run in a forked child: 0 done, 1 an error that a user may see, 2 any other, below 0 the signal; and its text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 2
        signal.alarm(LIMIT_S)
        try:
            work()
            status = 0
        except (OSError, PenstockError) as error:
            os.write(writing, str(error).encode()[-2000:])
            status = 1
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as said:
        text = said.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def files_of(folder: Path) -> dict[str, bytes]:
    """Files of a case, the cache left out."""
    return {
        os.path.relpath(os.path.join(parent, name), folder): Path(parent, name).read_bytes()
        for parent, _, names in os.walk(folder)
        for name in names
        if not os.path.relpath(parent, folder).startswith("cache")
    }


def _prepared(scenario: Scenario, folder: Path, with_old: bool) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["PENSTOCK_CACHE"] = str(folder / "cache")
    scenario.setup(folder)
    if with_old and scenario.old is not None:
        scenario.old(folder)
    return folder


def _seen(scenario: Scenario, folder: Path) -> Any:
    """The view, taken on a copy: looking may write an index or a cache."""
    copied = folder.with_name("look")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(folder, copied)
    os.environ["PENSTOCK_CACHE"] = str(copied / "cache")
    try:
        return scenario.view(copied)
    except NotFound:
        return None
    finally:
        os.environ["PENSTOCK_CACHE"] = str(folder / "cache")


def _calls(scenario: Scenario, folder: Path, with_old: bool) -> list[str]:
    """Names of the file operations of an undisturbed run."""
    prepared = _prepared(scenario, folder, with_old)
    noted = prepared / "cache" / "calls"

    def note() -> None:
        with faults_everywhere(FaultyOs()) as faults:
            scenario.work(prepared, with_old)
        noted.parent.mkdir(exist_ok=True)
        noted.write_text("\n".join(faults.calls))

    status, said = in_child(note)
    if status:
        raise RuntimeError(f"{scenario.name} fails without a fault: {said}")
    return noted.read_text().splitlines()

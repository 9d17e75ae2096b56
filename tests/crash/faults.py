"""A fault at every file operation of all that writes: afterwards the old state, the whole new one, or nothing."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import inputs
import numpy as np

import penstock
from penstock.errors import NotFound, PenstockError
from penstock.store.local import is_staged_name
from penstock.testing.faults import FaultMode, FaultyOs, faults_everywhere, places_of

MODES: tuple[FaultMode, ...] = ("raise", "tear", "short", "enospc", "kill", "tear-kill")
KILLS = ("kill", "tear-kill")
LIMIT_S = 120
OLD_DOCUMENTS = [[9, 9, 0], [8, 0]]
DOCUMENTS = [[number % 250 + 1 for number in range(length)] + [0] for length in (5, 0, 300, 41)]


@dataclass(frozen=True)
class Scenario:
    """One thing that writes.

    Attributes:
        name: what it is.
        setup: makes the inputs in a new folder.
        work: does it; `overwrite` where a result is there already.
        view: what a reader sees of the result, None where there is none.
        old: makes an older result, for the round with one; None where there can be none.
        again: whether the same call again overwrites a result that is there, or is refused with it.
    """

    name: str
    setup: Callable[[Path], None]
    work: Callable[[Path, bool], object]
    view: Callable[[Path], Any]
    old: Callable[[Path], None] | None = None
    again: Literal["overwrites", "is refused"] = "overwrites"


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
    if status != int(refused):
        yield f"the same again ended with {status}: {said}"
    found = files_of(folder)
    if seen == after and mode in KILLS:
        # The work was done: whoever finds it done does not look for what the dead one left.
        found = {name: data for name, data in found.items() if not is_staged_name(os.path.basename(name))}
    if found != final:
        changed = {name for name in found | final if found.get(name) != final.get(name)}
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


# --- scenarios -------------------------------------------------------------------------------------------------------


def write_tokens(path: Path, documents: list[list[int]], *, overwrite: bool = False) -> None:
    with penstock.create(path, format="pbin", token_bytes=2, eos_id=0, overwrite=overwrite) as writer:
        for document in documents:
            writer.write({"tokens": np.array(document, np.uint16)})


def write_lines(path: Path, texts: list[str], *, overwrite: bool = False) -> None:
    with penstock.create(path, format="jsonl", overwrite=overwrite) as writer:
        for text in texts:
            writer.write({"text": text})


def see(name: str, **options: Any) -> Callable[[Path], Any]:
    """All samples of the dataset `name`, as plain values."""

    def view(folder: Path) -> list[Any]:
        source = penstock.open(folder / name, **options)
        return [
            {key: getattr(value, "tolist", lambda value=value: value)() for key, value in sample.items()}
            for sample in source
        ]

    return view


def index_again(folder: Path, overwrite: bool) -> None:
    from penstock.prepare.raw import build_index

    build_index(folder / "a.jsonl", overwrite=overwrite, workers=1)


def see_index(folder: Path) -> Any:
    try:
        return (folder / "a.idx").read_bytes()
    except FileNotFoundError:
        return None


def write_jsonl_alone(folder: Path) -> None:
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": "x" * number}) + "\n" for number in range(40)))


def starts(folder: Path, overwrite: bool) -> Any:
    return penstock.open(folder / "in.pbin").doc_starts.tolist()


@functools.cache
def pack_inputs() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        inputs.inputs_in(Path(folder), 8000)
        return {name: (Path(folder) / name).read_bytes() for name in inputs.NAMES}


def write_pack_inputs(folder: Path) -> None:
    for name, data in pack_inputs().items():
        (folder / name).write_bytes(data)
        os.utime(folder / name, (1_000_000_000, 1_000_000_000))


def pack(folder: Path, overwrite: bool) -> None:
    from penstock.prepare import pack

    pack(
        [folder / "a.jsonl.gz", folder / "b.jsonl"],
        folder / "made" / "out.pbin",
        tokenizer=folder / "tokenizer.json",
        eos=inputs.EOS,
        executor="inline",
        overwrite=overwrite,
        engine="tokenizers",  # the other engine reads samples first, and writes no more than this one
        task_bytes=3000,
    )


def write_old_pack(folder: Path) -> None:
    write_tokens(folder / "made" / "out.pbin", OLD_DOCUMENTS)


SCENARIOS = [
    Scenario(
        "pbin writer",
        lambda folder: None,
        lambda folder, overwrite: write_tokens(folder / "deep" / "out.pbin", DOCUMENTS, overwrite=overwrite),
        see("deep/out.pbin"),
        lambda folder: write_tokens(folder / "deep" / "out.pbin", OLD_DOCUMENTS),
    ),
    Scenario(
        "jsonl writer",
        lambda folder: None,
        lambda folder, overwrite: write_lines(folder / "out.jsonl", ["a", "é" * 2000, ""], overwrite=overwrite),
        see("out.jsonl"),
        lambda folder: write_lines(folder / "out.jsonl", ["old", "older"]),
    ),
    Scenario("index", write_jsonl_alone, index_again, see_index, lambda folder: (folder / "a.idx").write_bytes(b"old")),
    Scenario(
        "index made at first use",
        write_jsonl_alone,
        lambda folder, overwrite: len(penstock.open(folder / "a.jsonl")),
        see("a.jsonl"),
    ),
    Scenario(
        "document starts kept in the cache",
        lambda folder: write_tokens(folder / "in.pbin", [[1, 0]] * 3000),
        starts,
        lambda folder: starts(folder, False),
    ),
    Scenario(
        "convert",
        lambda folder: write_tokens(folder / "in.pbin", DOCUMENTS),
        lambda folder, overwrite: penstock.convert(folder / "in.pbin", folder / "out.pbin", overwrite=overwrite),
        see("out.pbin"),
        lambda folder: write_tokens(folder / "out.pbin", OLD_DOCUMENTS),
    ),
    Scenario("pack", write_pack_inputs, pack, see("made/out.pbin"), write_old_pack, again="is refused"),
]

"""Run the cases and compare what they do with the golden files.

python tests/corpus/run.py                       # all cases
python tests/corpus/run.py --seed S --share 10   # a tenth, chosen by S
REFRESH_CORPUS=1 python tests/corpus/run.py      # all cases; rewrites the golden files
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import io
import json
import multiprocessing
import os
import pickle
import pkgutil
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.corpus.cases import CASES, Case, may_be_lifted  # noqa: E402
from tests.corpus.inputs import make_inputs  # noqa: E402
from tests.corpus.record import files_in, plain, plain_text, record  # noqa: E402
from tests.corpus.sizes import shrink_tasks, unknown_sizes  # noqa: E402
from tests.crash import hook  # noqa: E402
from tests.crash.inputs import import_modules, know_tokenizers  # noqa: E402
from tests.preloaded import served  # noqa: E402

import penstock.cli.main  # noqa: E402 (before the forks)
from penstock.__main__ import main as penstock_main  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"
UNUSED = re.compile(r"penstock\.(__main__|compat|cook|load|mix|order|recipe|testing|view|executors\.on_ray)\b")
COUNTED = (".samples", ".tokens", ".documents", ".dropped", ".excluded", ".num_dropped")
ESTIMATED = "report.cost."
"""What a report says of the cost of a way depends on the sizes of its tasks."""
PARTS = 3
MEMORY = "/dev/shm"
PRELOADED = (
    "gigatoken",
    "tokenizers",
    "pyarrow.parquet",
    "zarr",
    "numcodecs",
    "jq",
    "penstock.cli.main",
    "moto.s3.responses",
)
ENVIRONMENT = {"COLUMNS": "120", "NO_COLOR": "1", "TZ": "UTC", "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}
Entry = dict[str, Any]
Run = dict[str, Any]


class _Then(datetime.datetime):
    """A clock that stands still: digests of exclude lists cover the time of their entries."""

    __slots__ = ()

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _Then:
        return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)


@dataclass(frozen=True, slots=True)
class Done:
    """What a way of a case did: the reports of its commands, and the files that it left."""

    runs: list[Run]
    files: dict[str, str]


class Driver:
    """Runs cases.

    Args:
        folder: for files of this process.
        inputs: of all cases.
        kills: seed that decides where processes are killed.
    """

    def __init__(self, folder: Path, inputs: Path, kills: str) -> None:
        self._folder = folder
        self._inputs = inputs
        self._kills = kills

    def entry(self, case: Case) -> Entry:
        """Run a case in all ways; return what belongs in the golden file."""
        inline, num_calls = self._inline(case)
        entry: Entry = {"runs": inline.runs, "files": inline.files}
        ways: dict[str, Any] = {}
        for way in case.ways:
            if way == "killed":
                if inline.runs[-1].get("status", 0) == 0:
                    ways[way] = self._killed(case, inline, num_calls)
            else:
                ways[way] = _compared(
                    self._whole(case, case.lines_of(way, PARTS), shrink=True), inline, len(case.lines) - 1
                )
        return entry | ({"ways": ways} if ways else {})

    def _inline(self, case: Case) -> tuple[Done, int]:
        """Run a case in one process; return the number of calls of the last command that change files, too."""
        notes = self._notes()
        done = self._whole(case, case.lines, hook.Plan(str(self._case), str(notes), noted=True) if case.ways else None)
        return done, len(hook.calls_in(str(notes)))

    def _killed(self, case: Case, inline: Done, num_calls: int) -> Any:
        """Kill the last command at one call, and run it again."""
        rng = random.Random(f"{self._kills} {case.verb} {case.name}")
        moment = rng.choice(("before", "after", "torn"))
        at = rng.randrange(num_calls) + 1
        before = self._fresh(case)
        notes = self._notes()
        self._in_fork(lambda: self._run_all(case.lines[:-1]))
        died = self._in_fork(
            lambda: self._run_all(case.lines[-1:], hook.Plan(str(self._case), str(notes), at, moment)), may_die=True
        )
        runs = self._in_fork(lambda: self._run_all(case.lines[-1:]))
        files = record(self._case, before)
        if files == inline.files:
            return "same"
        where = f"killed {moment} call {at} of {num_calls}" if died is None else "not killed"
        return {"files": _changes(inline.files, files), "then": runs[-1].get("error", "no error"), "where": where}

    def _whole(self, case: Case, lines: Sequence[str], plan: hook.Plan | None = None, *, shrink: bool = False) -> Done:
        before = self._fresh(case)
        if shrink:
            runs = self._in_fork(lambda: (shrink_tasks(), self._run_all(lines))[1])
        elif case.remote:
            runs = self._in_fork(lambda: self._in_bucket(lines))
        elif plan is None:
            runs = self._in_fork(lambda: self._run_all(lines))
        else:
            runs = self._in_fork(lambda: self._run_all(lines[:-1])) if lines[:-1] else []
            runs += self._in_fork(lambda: self._run_all(lines[-1:], plan))
        return Done(runs, record(self._case, before))

    @property
    def _case(self) -> Path:
        return self._folder / "case"

    def _notes(self) -> Path:
        notes = self._folder / "notes"
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir()
        return notes

    def _fresh(self, case: Case) -> dict[str, Any]:
        """Make a folder with the inputs that a case names; return their files."""
        for name in ("case", "cache"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        (self._case / "out").mkdir(parents=True)
        for word in {word for line in case.lines for word in shlex.split(line)}:
            parent, _, name = word.removeprefix("s3://bucket/").partition("/")
            if not name or not (self._inputs / parent).is_dir():
                continue
            stem = name.partition("/")[0].partition(".")[0]
            for source in (self._inputs / parent).iterdir():
                target = self._case / parent / source.name
                if source.name.partition(".")[0] == stem and not target.exists():
                    target.parent.mkdir(exist_ok=True)
                    if source.is_dir():
                        shutil.copytree(source, target, copy_function=shutil.copyfile)
                    else:
                        shutil.copyfile(source, target)
        found = files_in(self._case)
        found.pop("out/", None)
        return found

    def _run_all(self, lines: Sequence[str], plan: hook.Plan | None = None) -> list[Run]:
        os.chdir(self._case)
        os.environ["PENSTOCK_CACHE"] = str(self._folder / "cache")
        if plan is not None:
            hook.install(plan)
        return [self._run(line) for line in lines]

    def _run(self, line: str) -> Run:
        """Run one command in this process."""
        out, said, status = io.StringIO(), io.StringIO(), 0
        words = shlex.split(line)
        sys.argv = ["penstock", *words, "--json"]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            try:
                penstock_main()
            except SystemExit as ended:
                status = int(ended.code or 0)
        root = self._case
        found: Run = {"status": status} if status else {}
        text = out.getvalue()
        try:
            report = plain(json.loads(text), root)
        except ValueError:
            report = plain_text(text, root)
        if isinstance(report, dict) and "error" in report:
            error = report["error"]
            return found | {"error": f"{error['code']}: {error['message']}"}
        found["report"] = report
        notes = plain_text(said.getvalue(), root).strip()
        return found | ({"said": notes} if notes else {})

    def _in_bucket(self, lines: Sequence[str]) -> list[Run]:
        """Run commands over a bucket with all inputs of the case; each report has the number of requests."""
        from tests import moto_s3

        counts: Counter[str] = Counter()
        answer = moto_s3.answer

        def counted(request: moto_s3.Request) -> moto_s3.Answer:
            kind = "LIST" if "list-type" in request.query else request.method
            counts[kind] += 1
            return answer(request)

        moto_s3.answer = counted
        with moto_s3.served() as url:
            keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
            os.environ.update(keys, S3_ENDPOINT_URL=url, AWS_EC2_METADATA_DISABLED="true")
            files = files_in(self._case)
            for name, data in files.items():
                if data is not None:
                    moto_s3.backend().put_object(moto_s3.BUCKET, name, data)
            runs: list[Run] = []
            for line in lines:
                counts.clear()
                runs += self._run_all([line])
                runs[-1]["requests"] = dict(sorted(counts.items()))
            for name, key in moto_s3.backend().buckets[moto_s3.BUCKET].keys.items():
                if files.get(name) != key.value:
                    path = self._case / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(key.value)
        return runs

    def _in_fork(self, work: Callable[[], list[Run]], *, may_die: bool = False) -> Any:
        """Return what `work` returns in a forked process, or None if that is killed."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                os.close(reader)
                data = pickle.dumps(work())
                with open(writer, "wb") as file:
                    file.write(data)
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writer)
        with open(reader, "rb") as file:
            data = file.read()
        os.waitpid(pid, 0)
        if not data and not may_die:
            raise RuntimeError("a command ended its process")
        return pickle.loads(data) if data else None


def _compared(done: Done, inline: Done, num_before: int) -> Any:
    """Return how a way differs from the inline one: `same`, a refusal, or other files and reports."""
    refused = next((run for run in done.runs[num_before:] if "error" in run), None)
    if refused is not None:
        left = {"files": done.files} if done.files else {}
        if refused == inline.runs[-1] and done.files == inline.files:
            return "same"
        return {"refused": refused["error"], "status": refused["status"], **left}
    found: Entry = {}
    if done.files != inline.files:
        found["files"] = _changes(inline.files, done.files)
    *parts, last = (_flat(run) for run in done.runs[num_before:])
    report = _changes(_flat(inline.runs[-1]), last)
    if report := {name: one for name, one in report.items() if not name.startswith(ESTIMATED)}:
        found["report"] = report
    # Which rows belong to which part is up to the engine; what the parts count together isn't.
    counts: dict[str, int] = {}
    for name in last:
        if parts and name.endswith(COUNTED) and all(isinstance(part.get(name), int) for part in parts):
            counts[name] = sum(part[name] for part in parts)
    if sums := _changes(last, {**last, **counts}):
        found["sum of parts"] = sums
    return found or "same"


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {
            path: one for key, inner in value.items() for path, one in _flat(inner, f"{name}.{key}".strip(".")).items()
        }
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {path: one for at, inner in enumerate(value) for path, one in _flat(inner, f"{name}[{at}]").items()}
    return {name: value}


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the values that changed; those that are gone are None."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: after.get(name) for name in sorted(names)}


def differences(case: Case, known: Entry | None, found: Entry) -> Iterator[str]:
    """Yield a line for each way and value that differs from the golden file."""
    if known is None:
        yield f"{case.verb} {case.name}: not in the golden file"
        return
    for way in {**known.get("ways", {}), **found.get("ways", {})}:
        before, after = known.get("ways", {}).get(way), found.get("ways", {}).get(way)
        if before != after and not _is_lifted(way, before, after):
            yield from _lines(f"{case.verb} {case.name} [{way}]", _flat({"way": before}), _flat({"way": after}))
    for part in ("files", "runs"):
        yield from _lines(f"{case.verb} {case.name}", _flat({part: known[part]}), _flat({part: found[part]}))


def _is_lifted(way: str, before: Any, after: Any) -> bool:
    """Return whether a way now does what it couldn't do, with the result of the inline way, or says more of why not."""
    if way == "killed":
        return after == "same"
    is_inline = after == "same" or (isinstance(after, dict) and after.keys() <= {"report", "sum of parts"})
    return before is not None and may_be_lifted(way, before) and (is_inline or may_be_lifted(way, after))


def _lines(head: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name in _changes(before, after):
        yield f"{head}: {name}: {json.dumps(before.get(name))} → {json.dumps(after.get(name))}"


def load_golden() -> dict[str, dict[str, Entry]]:
    """Return verb → case → entry."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(GOLDEN.glob("*.json"))}


def write_golden(found: dict[str, dict[str, Entry]]) -> None:
    """Write a file for each verb, with a line for each case."""
    for path in GOLDEN.glob("*.json"):
        path.unlink()
    for verb, entries in found.items():
        lines = [f"{json.dumps(name)}: {json.dumps(entries[name], ensure_ascii=False)}" for name in sorted(entries)]
        (GOLDEN / f"{verb}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


_driver: Driver


def _begin(folder: Path, inputs: Path, kills: str) -> None:
    global _driver
    own = folder / str(os.getpid())
    own.mkdir()
    _driver = Driver(own, inputs, kills)


def _entry(case: Case) -> tuple[Case, Entry, float]:
    began = time.monotonic()
    try:
        entry = _driver.entry(case)
    except Exception as error:
        entry = {"runs": [{"error": f"the corpus fails: {error!r}"}], "files": {}}
    return case, entry, time.monotonic() - began


def chosen(seed: str, share: int) -> list[Case]:
    """Return one in `share` of the cases, by a seed."""
    return [case for case in CASES if random.Random(f"{seed} {case.verb} {case.name} chosen").randrange(share) == 0]


@contextlib.contextmanager
def tried(cases: Sequence[Case], jobs: int, kills: str) -> Iterator[Iterator[tuple[Case, Entry, float]]]:
    """Run cases in several processes; each comes with its entry and the seconds that it took."""
    os.environ.update(ENVIRONMENT)
    datetime.datetime = _Then  # type: ignore[misc]
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="penstock-corpus-", dir=place) as name:
        folder = Path(name)
        os.environ["PENSTOCK_CACHE"] = str(folder / "cache")
        make_inputs(folder / "inputs")
        (folder / "programs").mkdir()
        import_modules([*PRELOADED, *_modules()])
        with served(folder / "programs", [*PRELOADED, *_modules()]) as programs:
            sys.executable = str(programs / "python")
            know_tokenizers(folder / "inputs")
            gc.collect()
            gc.freeze()
            arguments = (folder, folder / "inputs", kills)
            with multiprocessing.get_context("fork").Pool(jobs, _begin, arguments) as pool:
                yield pool.imap_unordered(_entry, cases, 4)


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("--seed", default="0")
    asked.add_argument("--kills", default="0", help="seed of where processes are killed")
    asked.add_argument("--share", type=int, default=1)
    asked.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    asked.add_argument("--only", default="", help="only cases whose name fits this pattern")
    asked.add_argument("--slow", action="store_true", help="print the slowest cases")
    given = asked.parse_args()
    refresh, began = bool(os.environ.get("REFRESH_CORPUS")), time.monotonic()
    cases = [case for case in chosen(given.seed, given.share) if re.search(given.only, f"{case.verb} {case.name}")]
    known, seconds = load_golden(), list[tuple[float, str]]()
    found: dict[str, dict[str, Entry]] = {}
    wrong = [f"tests/corpus/sizes.py: there is no {name} any more" for name in unknown_sizes()]
    if len(cases) == len(CASES):
        names = {(case.verb, case.name) for case in CASES}
        wrong += [f"{verb} {name}: no such case" for verb in known for name in known[verb] if (verb, name) not in names]
    if not refresh:
        print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)
    with tried(cases, given.jobs, given.kills) as entries:
        for case, entry, took_s in entries:
            found.setdefault(case.verb, {})[case.name] = entry
            seconds.append((took_s, f"{case.verb} {case.name}"))
            for line in () if refresh else differences(case, known.get(case.verb, {}).get(case.name), entry):
                print(line, flush=True)
                wrong.append(line)
    if refresh:
        kept = {} if len(cases) == len(CASES) else known
        write_golden({verb: {**kept.get(verb, {}), **found.get(verb, {})} for verb in {**kept, **found}})
    for took_s, name in sorted(seconds, reverse=True)[: 15 if given.slow else 0]:
        print(f"{took_s:.1f} s {name}")
    print(f"{_counts(found)}, {len(wrong)} differences, {time.monotonic() - began:.0f} s")
    return 1 if wrong and not refresh else 0


def _counts(found: dict[str, dict[str, Entry]]) -> str:
    entries = [entry for one in found.values() for entry in one.values()]
    ways = [way for entry in entries for way in entry.get("ways", {}).values()]
    refusals = sum("error" in entry["runs"][-1] for entry in entries) + sum("refused" in way for way in ways)
    digests = sum(len(entry["files"]) for entry in entries)
    return f"{len(entries)} cases, {len(ways)} other ways, {digests} digests, {refusals} refusals"


def _modules() -> list[str]:
    """Return modules that the commands import: what is imported before the forks costs once."""
    found = pkgutil.walk_packages(penstock.__path__, "penstock.")
    return [one.name for one in found if not UNUSED.match(one.name)]


if __name__ == "__main__":
    sys.exit(main())

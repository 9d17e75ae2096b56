"""Distributed `verify`: many processes that only share the dataset and a directory for records.

The check of a format yields its tasks in an order that depends only on the dataset. Part I of N does every N-th task
and records the results in one file, named after its content. The finalize step runs the same check, takes recorded
results, does the tasks that have none, and so reports what a single run would. Records are in `DIR/.work`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

import msgspec
import xxhash

from penstock import errors
from penstock.abc import Executor
from penstock.engine.folder import WorkFolder
from penstock.engine.options import Counter, RunOptions
from penstock.engine.parts import PartName
from penstock.engine.plan import Plan
from penstock.engine.run import Job, Wave
from penstock.engine.work import Work, work_folder
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError
from penstock.executors.law import described
from penstock.formats._problems import Problem
from penstock.formats._side_checks import Run
from penstock.store.place import Place
from penstock.store.put import put_new
from penstock.types import Finding

_APART = "Choose another folder for the records: work= (--work)"
_OVER = "Check again: restart (--finish --restart), or choose another folder for the records: work= (--work)"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of a run of a distributed check.

    Attributes:
        findings: those of the whole dataset; None if parts are missing.
        tasks: number of tasks done by this run.
        part: `(i, n)` if this was part i.
        missing: indices of missing parts, with `no_work`.
    """

    findings: list[Finding] | None
    tasks: int
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VerifyJob(Job[VerifyReport]):
    """A distributed check.

    The number of parts is unknown until the first one starts, so parts are tasks of the second wave, the only one.

    Attributes:
        output: the directory of the records.
        options: how to run it.
        counter: counts finished tasks.
        dataset: what is checked.
        check: the check; it passes its tasks to its argument.
        planned: the dataset and the options of the check.
        preload: modules that workers import before their first task.
    """

    output: Place
    options: RunOptions
    counter: Counter
    dataset: Place
    check: Callable[[Run], list[Finding]]
    planned: Plan
    preload: Sequence[str]

    def __post_init__(self) -> None:
        if f"{self.output.absolute.rstrip('/')}/".startswith(f"{self.dataset.absolute.rstrip('/')}/"):
            what = "the folder for records is inside the dataset, which a check never modifies"
            raise ConfigError(what, path=self.output.path, hint=_APART)

    @property
    def folder(self) -> WorkFolder:
        return work_folder(self.output, inside=True)

    @property
    def reads(self) -> Sequence[Place]:
        return (self.dataset,)

    @property
    def tasks(self) -> Sequence[Any]:
        return ()

    @property
    def most_workers(self) -> None:
        return None

    def plan(self) -> Plan:
        return self.planned

    def first_files(self) -> Sequence[Place]:
        return ()

    def finished(self) -> None:
        return None

    def require_free(self) -> None:
        pass

    def part_fn(self, work: Work) -> Callable[[Any], object]:
        return id

    def wave(self, work: Work) -> Wave:
        return _Parts(self, work)

    def commit(self, work: Work, wave: Any) -> VerifyReport:
        return VerifyReport(wave.findings, self.counter.done)

    def unfinished(self, work: Work, missing: tuple[int, ...] = ()) -> VerifyReport:
        if missing and work.num_job_parts() is None:
            work.clear()  # no part has started, so there is nothing to keep
        return VerifyReport(None, self.counter.done, self.options.part, missing)


class _Part(NamedTuple):
    number: int


class _Parts(Wave):
    """The parts of a check.

    Attributes:
        findings: those of the whole dataset, after the finalize step.
    """

    def __init__(self, job: VerifyJob, work: Work) -> None:
        self._job = job
        self._work = work
        self._records = {part: names[0] for part, names in work.listed().items()}
        self.tasks = list(map(_Part, range(work.num_job_parts() or 1)))
        self.findings: list[Finding] | None = None

    def done(self) -> Mapping[int, PartName]:
        return self._records

    def run(self, pool: Executor, tasks: Sequence[_Part]) -> None:
        """Do these parts in one pass over the check; the finalize step also collects all findings."""
        is_final, work = self._job.options.finish, self._work
        if not tasks and not is_final:
            return
        chosen = {task.number for task in tasks}
        records = {part: _read_record(work, name) for part, name in self._records.items()} if is_final else {}
        run = _PartsRun(pool.map, len(self.tasks), chosen, {part: iter(one.results) for part, one in records.items()})
        findings = self._job.check(run)
        work.require_unchanged_inputs()
        for part, record in records.items():
            if (record.tasks, record.digest) != (run.total, run.digest()):
                what = f"the dataset changed after part {part} checked it"
                raise Corrupt(what, path=self._job.output.path, found=f"{run.total} tasks", hint=_OVER)
        for part in chosen:
            _write_record(work, part, run)
        work.listed()  # raises if a part ran twice with different results
        self._job.counter.add(sum(map(len, run.results.values())))
        self.findings = findings if is_final else None


class _PartsRun:
    """Does the tasks of chosen parts; for tasks of other parts, returns the recorded result, or nothing.

    Args:
        run: does tasks.
        count: number of parts.
        chosen: the parts to do.
        known: results of other parts, in the order of their tasks.
    """

    def __init__(self, run: Run, count: int, chosen: Collection[int], known: Mapping[int, Iterator[Any]]) -> None:
        self._run = run
        self._count = count
        self._known = known
        self._hasher = xxhash.xxh3_64()
        self.total = 0
        self.results: dict[int, list[Any]] = {part: [] for part in chosen}

    def digest(self) -> str:
        """Return the digest of the descriptions of all tasks."""
        return self._hasher.hexdigest()

    def __call__(self, fn: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        """Yield the result of each task in order; an empty tuple if it is unknown."""
        numbered = list(enumerate(tasks, self.total))
        self.total += len(numbered)
        for _, task in numbered:
            self._hasher.update(f"{described(task)}\n".encode())
        results = iter(self._run(fn, [task for number, task in numbered if number % self._count in self.results]))
        for number, _ in numbered:
            part = number % self._count
            if part in self.results:
                result = next(results)
                self.results[part].append(_to_json(result))
                yield result
            else:
                yield _from_json(next(self._known[part], ())) if part in self._known else ()


# --- records -------------------------------------------------------------------------------------------------------


class _Record(msgspec.Struct):
    """Results of one part.

    Attributes:
        tasks: number of tasks of all parts.
        digest: digest of the descriptions of these.
        results: those of this part's tasks, as JSON.
    """

    tasks: int
    digest: str
    results: list[Any]


def _write_record(work: Work, part: int, run: _PartsRun) -> None:
    results = run.results[part]
    data = msgspec.json.encode(_Record(run.total, run.digest(), results))
    name = PartName(part, 0, True, len(results), run.total, 0, xxhash.xxh3_64_hexdigest(data))
    put_new(work.folder.store, work.parts.child(name.path).path, data)


def _read_record(work: Work, name: PartName) -> _Record:
    path = work.parts.child(name.path).path
    try:
        data = work.folder.store.get(path)
        if xxhash.xxh3_64_hexdigest(data) == name.digest:
            return msgspec.json.decode(data, type=_Record)
    except (NotFound, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    raise Corrupt("a record of the distributed job is damaged", path=path, hint=_OVER)


_KINDS: dict[str, type[Any]] = {"finding": Finding, "problem": Problem}


def _to_json(value: Any) -> Any:
    """Return a result as JSON: strings, integers, findings, problems, and lists of these."""
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            each = (getattr(value, one.name) for one in fields(cast(Any, kind)))
            return {name: [one.__name__ if isinstance(one, type) else one for one in each]}
    if isinstance(value, list | tuple):
        return [_to_json(one) for one in cast(Sequence[Any], value)]
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"a result of type {type(value).__name__}")


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        ((name, values),) = cast(dict[str, list[Any]], value).items()
        if name == "problem":
            kind = getattr(errors, values[1], None)
            values[1] = kind if isinstance(kind, type) and issubclass(kind, PenstockError) else Corrupt
        return _KINDS[name](*values)
    return [_from_json(one) for one in cast(list[Any], value)] if isinstance(value, list | tuple) else value

"""`verify` by many processes that nothing connects but a folder of marks: each does its share, one reports all.

A check gives tasks away in an order that follows from the dataset. Share I of N does each N-th of them and leaves their
results as one mark, under a name that tells its content. The finisher goes the same way, takes what marks say, does
what has none, and so reports what one run would. Marks lie in `DIR/.work`, as parts of unfinished work do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import msgspec
import xxhash

from penstock import errors
from penstock.engine.parts import PartName
from penstock.engine.plan import Plan, require_same
from penstock.engine.shared import SharedWork, open_shared, work_folder
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError
from penstock.executors.law import described
from penstock.formats._problems import Problem
from penstock.formats._side_checks import Run
from penstock.store.place import Place
from penstock.store.put import put_new
from penstock.types import Finding

_APART = "Choose another folder for the records: work= (--work)"
_OVER = "Check again: restart (--finish --restart), or choose another folder for the records: work= (--work)"


class _Mark(msgspec.Struct):
    """What a share leaves: how many tasks there are, a digest of what they are called, and the results of its own."""

    tasks: int
    digest: str
    results: list[Any]


@dataclass(frozen=True, slots=True)
class SharedReport:
    """What there is to say of shared work.

    Attributes:
        findings: of the whole dataset; None where that is not known yet.
        tasks: that were done here.
        part: `(i, n)` of a share.
        missing: shares that were not done, where nothing more should be.
    """

    findings: list[Finding] | None
    tasks: int
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()


def check_in_shares(
    check: Callable[[Run], Iterable[Finding]],
    run: Run,
    place: Place,
    plan: Plan,
    part: tuple[int, int] | None,
    *,
    reads: Place,
    no_work: bool,
    restart: bool,
) -> SharedReport:
    """Do a share of a check, or finish it.

    Args:
        check: gives its tasks to what it is called with; the same tasks each time.
        run: does tasks.
        place: the folder of the marks.
        plan: what is checked, and how.
        part: `(i, n)`: the share; None: finish.
        reads: the dataset.
        no_work: finish only where no share is missing.
        restart: throw away what marks there are.

    Raises:
        ConfigError: the folder holds marks of another check, shares disagree on how many they are, or the dataset
            changed between two shares.
        Corrupt: a mark is damaged, or the dataset changed while it was read.
    """
    with open_shared(place, work_folder(place, inside=True), restart=restart, shared=True) as work:
        work.reads = (reads,)
        work.require_recorded_inputs()
        require_same(work.plan, plan, place.path)
        if part is not None:
            work.begin(plan, part[1])
            work.record_inputs()
            work.share_among(part[1])
            work.tell_begin(part)
        count = (work.shares() if work.head is not None else None) or 1
        there = {task: names[0] for task, names in work.listed().items()} if work.head is not None else {}
        if part is not None:
            return _do_share(check, run, work, part, there)
        missing = tuple(share for share in range(count) if share not in there)
        if no_work and missing:
            return SharedReport(None, 0, None, missing)
        marks = {share: _read_mark(work, name) for share, name in there.items()}
        tasks = _Tasks(run, count, set(missing), {share: iter(mark.results) for share, mark in marks.items()})
        findings = list(check(tasks))
        if work.head is not None:
            work.require_unchanged_inputs()
        for share, mark in marks.items():
            if (mark.tasks, mark.digest) != (tasks.total, tasks.digest()):
                what = f"the dataset changed after part {share} checked it"
                raise Corrupt(what, path=place.path, found=f"{tasks.total} tasks", hint=_OVER)
        work.clear()
        return SharedReport(findings, tasks.done)


def _do_share(
    check: Callable[[Run], Iterable[Finding]],
    run: Run,
    work: SharedWork,
    part: tuple[int, int],
    there: Mapping[int, PartName],
) -> SharedReport:
    index, count = part
    if index in there:
        return SharedReport(None, 0, part)
    tasks = _Tasks(run, count, {index}, {})
    for _ in check(tasks):
        pass  # they are told by the finisher, who knows the results of all
    work.require_unchanged_inputs()
    data = msgspec.json.encode(_Mark(tasks.total, tasks.digest(), tasks.results))
    name = PartName(index, 0, True, tasks.done, tasks.total, 0, xxhash.xxh3_64_hexdigest(data))
    put_new(work.folder.store, work.parts.child(name.path).path, data)
    work.listed()  # raises where the share ran twice and found two things
    return SharedReport(None, tasks.done, part)


def _read_mark(work: SharedWork, name: PartName) -> _Mark:
    path = work.parts.child(name.path).path
    try:
        data = work.folder.store.get(path)
        if xxhash.xxh3_64_hexdigest(data) == name.digest:
            return msgspec.json.decode(data, type=_Mark)
    except (NotFound, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    raise Corrupt("a record of the distributed job is damaged", path=path, hint=_OVER)


class _Tasks:
    """Runs the tasks of some shares; of others it gives what is known, or nothing.

    Args:
        run: does tasks.
        count: number of shares.
        chosen: those to be done.
        known: results of others, in the order of tasks.
    """

    def __init__(self, run: Run, count: int, chosen: set[int], known: Mapping[int, Iterator[Any]]) -> None:
        self._run = run
        self._count = count
        self._chosen = chosen
        self._known = known
        self._hasher = xxhash.xxh3_64()
        self.total = self.done = 0
        self.results: list[Any] = []

    def digest(self) -> str:
        """Of what all tasks are called."""
        return self._hasher.hexdigest()

    def __call__(self, fn: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        """The result of each task, in order; an empty tuple for one of which nothing is known."""
        numbered = list(enumerate(tasks, self.total))
        self.total += len(numbered)
        for _, task in numbered:
            self._hasher.update(f"{described(task)}\n".encode())
        own = [task for number, task in numbered if number % self._count in self._chosen]
        made = iter(self._run(fn, own))
        for number, _ in numbered:
            share = number % self._count
            if share in self._chosen:
                found = next(made)
                self.done += 1
                self.results.append(_plain(found))
                yield found
            else:
                yield _of_plain(next(self._known[share], ())) if share in self._known else ()


# --- results as JSON -----------------------------------------------------------------------------------------------

_KINDS: dict[str, type[Any]] = {"finding": Finding, "problem": Problem}


def _plain(value: Any) -> Any:
    """A result as JSON: texts and numbers, findings and problems, and lists of these."""
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            each = (getattr(value, one.name) for one in fields(cast(Any, kind)))
            return {name: [one.__name__ if isinstance(one, type) else one for one in each]}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast(Sequence[Any], value)]
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"a result of type {type(value).__name__}")


def _of_plain(value: Any) -> Any:
    if isinstance(value, dict):
        ((name, given),) = cast(dict[str, list[Any]], value).items()
        if name == "problem":
            kind = getattr(errors, given[1], None)
            given[1] = kind if isinstance(kind, type) and issubclass(kind, PenstockError) else Corrupt
        return _KINDS[name](*given)
    return [_of_plain(one) for one in cast(list[Any], value)] if isinstance(value, list | tuple) else value


def require_apart(marks: Place, dataset: Place) -> None:
    """Refuse marks that would lie in the dataset; raises `ConfigError`."""
    if f"{marks.absolute.rstrip('/')}/".startswith(f"{dataset.absolute.rstrip('/')}/"):
        raise ConfigError(
            "the folder for records is inside the dataset, which a check never modifies", path=marks.path, hint=_APART
        )

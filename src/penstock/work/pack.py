"""The work folder: what an unfinished preparation has finished so far, and what it was asked to do.

`.<name>.work` beside the output holds `plan.json`, one part for each finished task, and the lock. The plan is written
before the first part. A later run goes on only where its own plan is the same; what differs is refused by name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.errors import ConfigError, Corrupt, PrepareError
from penstock.store.place import Place
from penstock.work.folder import WorkFolder, work_beside
from penstock.work.parts import SUFFIX

VERSION = 1
"""Of the cut into tasks and of the parts: work of another version is not gone on with."""

_PLAN = "plan.json"
_PART = re.compile(rf"^(\d+)-(\d+){re.escape(SUFFIX)}$")
_RESTART = "Run the same command as before, or throw the finished work away: restart (--restart)"


@dataclass(frozen=True, slots=True)
class PlannedInput:
    """One input, as a plan knows it."""

    name: str
    size_bytes: int
    digest: str
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a preparation was asked to do, as far as its output depends on it.

    Attributes:
        options: command-line name of an option → its value, plain JSON.
        inputs: the files.
        task_bytes: size of the pieces.
        engine: who encodes.
        version: see `VERSION`.
    """

    options: dict[str, Any]
    inputs: tuple[PlannedInput, ...]
    task_bytes: int
    engine: str
    version: int = VERSION


@dataclass(slots=True)
class Journal:
    """The work folder of one output, locked; see `open_journal`.

    Attributes:
        folder: the work folder.
        plan: the plan of the work in it, None for a new one.
        parts: `(file, piece)` of the parts that were there at the start.
    """

    folder: WorkFolder
    plan: Plan | None = None
    parts: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def save(self, plan: Plan) -> None:
        """Write the plan, durably."""
        self.folder.put(_PLAN, msgspec.json.format(msgspec.json.encode(plan), indent=1))
        self.plan = plan

    def clear(self) -> None:
        """Throw all work away; raises the first error after the last file."""
        try:
            self.folder.clear()
        finally:
            self.plan = None
            self.parts.clear()

    def has_parts(self) -> bool:
        """Whether any task is finished by now."""
        return any(_PART.match(name) for name in self.folder.names())


def work_of(output: Place) -> WorkFolder:
    """The work folder of an output."""
    return work_beside(output, "work", _is_ours)


@contextlib.contextmanager
def open_journal(output: Place, *, restart: bool) -> Generator[Journal]:
    """The locked journal of an output. Afterwards the folder is gone, but for one with finished tasks.

    Raises:
        PrepareError: another run writes this output.
        Corrupt: the plan in the folder is damaged.
    """
    folder = work_of(output)
    above = _missing_folders(output.folder())
    what, hint = "another run is writing this output", "Wait for it, or name another output"
    with folder.held(PrepareError(what, path=output.path, hint=hint)):
        journal = Journal(folder)
        try:
            _recover(journal, restart=restart)
            yield journal
        finally:
            # Leftovers are no reason to fail: what stays is hidden, and the next run of this output removes it.
            with contextlib.suppress(OSError):
                folder.clear_staged()
                if not journal.has_parts():
                    _remove(journal, above)


def require_same(plan: Plan, journal: Journal, output: Place) -> None:
    """Raise `ConfigError` that names the first thing in which a plan differs from that of the work in the folder."""
    before = journal.plan
    if before is None:
        return
    difference = _difference(before, plan)
    if difference is not None:
        what, was, now = difference
        raise ConfigError(
            f"unfinished work for this output differs: {what}", path=output.path, found=now, expected=was, hint=_RESTART
        )


def _difference(before: Plan, plan: Plan) -> tuple[str, Any, Any] | None:
    if before.version != plan.version:
        return "the version of Penstock that began it", before.version, plan.version
    for name in sorted(before.options.keys() | plan.options.keys()):
        was, now = before.options.get(name), plan.options.get(name)
        if was != now:
            return name, was, now
    was_named = {one.name: one for one in before.inputs}
    for one in plan.inputs:
        was_one = was_named.pop(one.name, None)
        if was_one is None:
            return f"the input {one.name} is new", _count(before.inputs), _count(plan.inputs)
        if (was_one.size_bytes, was_one.digest) != (one.size_bytes, one.digest):
            what = f"the input {one.name} has changed"
            return what, f"{was_one.size_bytes} bytes, {was_one.digest}", f"{one.size_bytes} bytes, {one.digest}"
    for name in was_named:
        return f"the input {name} is missing", _count(before.inputs), _count(plan.inputs)
    if before.task_bytes != plan.task_bytes:
        return "task_bytes", before.task_bytes, plan.task_bytes
    return None


def _count(inputs: Sequence[PlannedInput]) -> str:
    return f"{len(inputs)} input file{'s' * (len(inputs) != 1)}"


def _recover(journal: Journal, *, restart: bool) -> None:
    """Take in what an earlier run left, and drop what it left half-written."""
    if restart:
        journal.clear()
        return
    journal.folder.clear_staged()
    names = journal.folder.names()
    if _PLAN not in names:
        journal.clear()
        return
    journal.plan = journal.folder.read(_PLAN, Plan)
    if journal.plan is None:
        path = journal.folder.file(_PLAN).path
        raise Corrupt("the plan of unfinished work is damaged", path=path, hint=_RESTART)
    journal.parts = {(int(found[1]), int(found[2])) for name in names if (found := _PART.match(name))}


def _is_ours(name: str) -> bool:
    return name == _PLAN or _PART.match(name) is not None


def _missing_folders(folder: Place) -> list[Place]:
    """Folders that have to be made for `folder`, the innermost first."""
    missing: list[Place] = []
    while not folder.is_folder() and folder.path != folder.folder().path:
        missing.append(folder)
        folder = folder.folder()
    return missing


def _remove(journal: Journal, above: Sequence[Place]) -> None:
    journal.clear()
    journal.folder.drop()
    for folder in above:
        journal.folder.store.remove_folder(folder.path)

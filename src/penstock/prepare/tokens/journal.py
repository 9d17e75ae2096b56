"""The work folder: what an unfinished preparation has finished so far, and what it was asked to do.

`.<name>.work` beside the output holds `plan.json`, one part for each finished task, and the lock. The plan is written
before the first part. A later run goes on only where its own plan is the same; what differs is refused by name.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.errors import ConfigError, Corrupt, PrepareError
from penstock.prepare.tokens.inputs import InputFile
from penstock.prepare.tokens.parts import SUFFIX
from penstock.store._replaced import is_staged_name
from penstock.store._work import drop_work, empty_work, hold_work, is_real_folder, read_note
from penstock.store.local import LocalStore
from penstock.store.put import put
from penstock.store.resolve import absolute

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

    store: LocalStore
    folder: str
    plan: Plan | None = None
    parts: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def save(self, plan: Plan) -> None:
        """Write the plan, durably."""
        put(self.store, os.path.join(self.folder, _PLAN), msgspec.json.format(msgspec.json.encode(plan), indent=1))
        self.plan = plan

    def clear(self) -> None:
        """Throw all work away; raises the first error after the last file."""
        try:
            empty_work(self.store, self.folder, _is_ours)
        finally:
            self.plan = None
            self.parts.clear()

    def has_parts(self) -> bool:
        """Whether any task is finished by now."""
        return any(_PART.match(name) for name in os.listdir(self.folder))


def work_folder(output: str) -> str:
    """The work folder of an output."""
    folder, name = os.path.split(absolute(output))
    return os.path.join(folder, f".{os.fsdecode(os.fsencode(name)[:200])}.work")


@contextlib.contextmanager
def open_journal(store: LocalStore, output: str, *, restart: bool) -> Generator[Journal]:
    """The locked journal of an output. Afterwards the folder is gone, but for one with finished tasks.

    Raises:
        PrepareError: another run writes this output.
        Corrupt: the plan in the folder is damaged.
    """
    folder = work_folder(output)
    above = _missing_folders(os.path.dirname(folder))
    with hold_work(folder) as had:
        if not had:
            raise PrepareError(
                "another run is writing this output", path=output, hint="Wait for it, or name another output"
            )
        journal = Journal(store, folder)
        try:
            _recover(journal, restart=restart)
            yield journal
        finally:
            # Leftovers are no reason to fail: what stays is hidden, and the next run of this output removes it.
            with contextlib.suppress(OSError):
                _drop_staged(journal)
                if not journal.has_parts():
                    _remove(journal, above)


def require_same(plan: Plan, journal: Journal, output: str) -> None:
    """Raise `ConfigError` that names the first thing in which a plan differs from that of the work in the folder."""
    before = journal.plan
    if before is None:
        return
    difference = _difference(before, plan)
    if difference is not None:
        what, was, now = difference
        raise ConfigError(
            f"unfinished work for this output differs: {what}", path=output, found=now, expected=was, hint=_RESTART
        )


def forget_finished_work(store: LocalStore, output: str) -> None:
    """Remove the work folder that a run left which was killed after its output was complete."""
    if is_real_folder(work_folder(output)):
        with open_journal(store, output, restart=True):
            pass


def is_trusted(before: Plan | None, one: InputFile, file: int) -> bool:
    """Whether the finished parts of an input need no further look: its digest, or its time of change, says so."""
    if before is None:
        return True
    return one.digested_whole or before.inputs[file].mtime_ns == one.mtime_ns


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
    _drop_staged(journal)
    names = os.listdir(journal.folder)
    if _PLAN not in names:
        journal.clear()
        return
    path = os.path.join(journal.folder, _PLAN)
    journal.plan = read_note(journal.store, path, Plan)
    if journal.plan is None:
        raise Corrupt("the plan of unfinished work is damaged", path=path, hint=_RESTART)
    journal.parts = {(int(found[1]), int(found[2])) for name in names if (found := _PART.match(name))}


def _drop_staged(journal: Journal) -> None:
    for name in filter(is_staged_name, os.listdir(journal.folder)):
        journal.store.delete(os.path.join(journal.folder, name))


def _is_ours(name: str) -> bool:
    return name == _PLAN or _PART.match(name) is not None


def _missing_folders(folder: str) -> list[str]:
    """Folders that have to be made for `folder`, the innermost first."""
    missing: list[str] = []
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def _remove(journal: Journal, above: Sequence[str]) -> None:
    journal.clear()
    drop_work(journal.store, journal.folder)
    for folder in above:
        journal.store.remove_folder(folder)

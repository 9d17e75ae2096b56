"""A fault at each call on files of every verb, and what the user is told then.

The law, for each: an exit status that is documented, never 70, and 1 only with a finding (energon's commands end
with 1 for all that they refuse, as the original's do); one line on stderr that names
a file, without a traceback; nothing half-made is visible; and where the run ends well, with what it would have made
without the fault.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import logging
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import failing
import inputs
from tests.internals import WAITING_EXCLUDE_LIST, final_name, is_hidden
from verbs import Verb

LIMIT_S = 60
OTHER_USER = 65534
SYSTEM = 18
FULL = r"No space left on device: (?:[\d,]+ bytes left to write, )?[\d,]+ bytes free there"
READS = ("info", "head", "verify", "plan", "explain", "energon")
ONE_STATUS = ("energon",)
"""Commands that end with 1 for every refusal, as those that they stand for do."""
Tree = dict[str, bytes]


@dataclass(frozen=True)
class Ended:
    """How a run ended: below 0 for a signal."""

    status: int
    out: str
    err: str
    tree: Tree


@dataclass
class Round:
    """A verb, run once without a fault; `base` is a folder of its own, `disk` another for the runs alone."""

    verb: Verb
    base: Path
    disk: Path | None = None
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    before: Tree = field(default_factory=Tree)
    plain: Ended = field(init=False)

    @property
    def folder(self) -> Path:
        """Where the verb runs, and where alone calls fail."""
        return (self.disk or self.base) / "run"

    def begin(self) -> None:
        """Make the inputs, and run the verb; what it imports is imported here."""
        self.base.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir()
        made = self.child(lambda: self.verb.setup(self.folder))
        if made.status:
            raise RuntimeError(f"{self.verb.name}: no inputs: {made.err}")
        shutil.copytree(self.folder, self.base / "template", symlinks=True)
        inputs.know_tokenizers(self.base / "template")
        self.before = made.tree
        for _ in range(2):  # the first run imports, which reads no file that counts, and may fill caches elsewhere
            self.restore()
            notes = self.base / "notes"
            notes.unlink(missing_ok=True)
            self.plain = self.run(failing.Fault(str(self.folder), notes=str(notes)))
            if self.plain.status != 0:
                raise RuntimeError(f"{self.verb.name}: {self.plain}")
        self.calls = failing.calls_in(notes)
        inputs.import_modules((self.base / "modules").read_text().splitlines())

    def faults(self) -> Iterator[failing.Fault]:
        """Each error at each call that can end with it."""
        for error, can in failing.ERRORS.items():
            for at, (name, _) in enumerate(self.calls, 1):
                if can is None or name in can:
                    yield failing.Fault(str(self.folder), at, error)

    def some(self, most: int, seed: int) -> list[failing.Fault]:
        """At most so many of them, the same ones for a seed."""
        every = list(self.faults())
        return every if len(every) <= most else random.Random(f"{seed} {self.verb.name}").sample(every, most)

    def fail(self, fault: failing.Fault) -> list[str]:
        """Run with a fault; returns what is wrong with how it ended."""
        self.restore()
        return list(self._judged(self.run(fault)))

    def restore(self) -> None:
        """The folder as it was at the start."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.base / "template", self.folder, symlinks=True)

    def with_free_bytes(self, free_bytes: int) -> list[str]:
        """Run where the disk is full but for so much; returns what is wrong with how it ended."""
        if self.disk is None:
            raise ValueError("a disk of its own is what gets full")
        self.restore()
        status = os.statvfs(self.disk)
        filled = self.disk / "filled"
        try:
            filled.write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - free_bytes)))
            ended = self.run(failing.Fault(str(self.folder)))
        finally:
            filled.unlink(missing_ok=True)
        problems = list(self._judged(ended))
        if ended.status not in (0, SYSTEM) or (ended.status and not re.search(FULL, ended.err)):
            problems.append(f"ended with {ended.status}: {ended.err.strip()[-300:]}")
        return problems

    def without_rights(self, mode: int) -> list[str]:
        """Run as another user where all that is there has this mode; returns what is wrong with how it ended."""
        self.restore()
        for parent, folders, names in os.walk(self.folder, topdown=False):
            for name in names:
                os.chmod(os.path.join(parent, name), mode & 0o666)
            for name in folders:
                os.chmod(os.path.join(parent, name), mode)
        os.chmod(self.folder, mode)
        ended = self.run(failing.Fault(str(self.folder)), user=OTHER_USER)
        problems = list(self._judged(ended))
        if ended.status not in (0, 1, SYSTEM) or (ended.status and "Permission denied" not in ended.err):
            problems.append(f"ended with {ended.status} instead of {SYSTEM}: {ended.err.strip()[-300:]}")
        return problems

    def run(self, fault: failing.Fault, *, user: int = 0) -> Ended:
        """The verb in a child, of another user where one is given."""

        def work() -> None:
            from tests.internals import main

            if user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            failing.install(fault)
            try:
                main(self.verb.arguments)
            finally:
                if fault.notes:
                    (self.base / "modules").write_text("\n".join(sys.modules))

        return self.child(work)

    def _judged(self, ended: Ended) -> Iterator[str]:
        from tests.internals import exit_codes

        status, last = ended.status, (ended.err.strip().splitlines() or [""])[-1]
        if status not in {number for number, _ in exit_codes()} or status in (2, 70):
            yield f"ended with {status}: {last}"
        if "Traceback" in ended.err:
            yield f"a traceback: {last}"
        refused = status == 1 and self.verb.arguments[0] in ONE_STATUS
        if status == 1 and not refused and not (self.verb.finds and ended.out.strip()):
            yield f"ended with 1 and no finding: {last}"
        if status == 0:
            told = any(name in ended.err for name in self._names())
            if self.verb.same and not told:
                yield from self._compared(ended)
        elif status not in (1, 130) or (refused and not ended.out.strip()):
            if not last.startswith("penstock: "):
                yield f"the last line is not ours: {ended.err[-300:]!r}"
            if not any(name in last for name in self._names()):
                yield f"no file is named: {last}"
        for name, data in ended.tree.items():
            if is_hidden(name) or data == self.before.get(name):
                continue
            # A new side file has its own name, or until the old one is gone that of the next one, which counts as well.
            final = self.plain.tree.get(name, self.plain.tree.get(final_name(name)))
            if name.endswith(WAITING_EXCLUDE_LIST):
                yield from self._waits(name.removesuffix(WAITING_EXCLUDE_LIST), last)
            elif f"{name.removesuffix('.penstock')}{WAITING_EXCLUDE_LIST}" in ended.tree:
                continue  # the side file tells of its list once that is there; until then nobody may open the data
            elif status and self.verb.same and data != final:
                yield f"half-made: {name}: {last}"

    def _waits(self, name: str, last: str) -> Iterator[str]:
        """A list that is not there yet: until it is, nobody may open the data, if they are there."""
        import penstock
        from penstock.errors import NotFound, PrepareError

        if not (self.folder / f"{name}{final_name(WAITING_EXCLUDE_LIST)}").exists():
            with contextlib.suppress(NotFound, PrepareError):
                penstock.open(self.folder / name)
                yield f"opened without its list: {name}: {last}"

    def _compared(self, ended: Ended) -> Iterator[str]:
        """How a run that says nothing differs from the one without a fault."""
        plain = self.plain
        if _timeless(ended.out) != _timeless(plain.out):
            found, expected = (_timeless(one.out).splitlines() for one in (ended, plain))
            other = "; ".join(line for line in difflib.unified_diff(expected, found, n=0, lineterm="") if line[2:])
            yield f"no error, and it prints something else: {other[:400]}"
        changed = {name for name in ended.tree | plain.tree if ended.tree.get(name) != plain.tree.get(name)}
        if self.verb.arguments[0] in READS:
            changed &= ended.tree.keys()  # an index that is made on the way may stay in memory
        if changed := {name for name in changed if not is_hidden(name)}:
            yield f"no error, and other files: {sorted(changed)}"

    def _names(self) -> set[str]:
        """What a message may name: a file or a folder of this run; those for a while have other names in each."""
        paths = [path for _, path in self.calls] + [str(self.folder)]
        return {os.path.basename(path).partition(".")[0] or os.path.basename(path) for path in paths} - {""} | {"tmp/"}

    def child(self, work: object) -> Ended:
        out, err = self.base / "out", self.base / "err"
        pid = os.fork()
        if pid == 0:
            status = 3
            try:
                signal.alarm(LIMIT_S)
                for fd, path in ((1, out), (2, err)):
                    os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o666), fd)
                sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
                logging.root.handlers.clear()  # those of the test run
                for name in list(logging.root.manager.loggerDict):
                    logging.getLogger(name).handlers.clear()
                self._enter()
                work()  # type: ignore[operator]
                status = 0
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Ended(status, out.read_text(), err.read_text(), _tree(self.folder))

    def _enter(self) -> None:
        os.chdir(self.folder)
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        os.environ["PENSTOCK_CACHE"] = str(self.folder / "cache")
        os.environ["TMPDIR"] = str(scratch)
        importlib.import_module("tempfile").tempdir = None


def _tree(folder: Path) -> Tree:
    """The files, but for the cache and scratch."""
    return {
        os.path.relpath(os.path.join(parent, name), folder): Path(parent, name).read_bytes()
        for parent, _, names in os.walk(folder)
        for name in names
        if os.path.relpath(parent, folder).partition("/")[0] not in ("cache", "tmp")
    }


def _timeless(text: str) -> str:
    """What a run prints, without how long it took."""
    return re.sub(r"[\d.,]+ [^\s,]+/s\b|\b[\d.,]+ s\b", "", text)

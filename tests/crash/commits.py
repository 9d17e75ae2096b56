"""Commits of every local writer: readers between their calls, other users, and version 0.2 at the same output."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import each_call
import hook
import inputs
from tests import internals

from penstock.errors import NotFound

ROOT = Path(__file__).parents[2]
OLD_REVISION = "c3b67e91"
"""The last commit of version 0.2.0."""
OTHER_USER = 65534
SYSTEM = 18
LIMIT_S = 60


@dataclass(frozen=True)
class Ended:
    """How a run ended: below 0 by a signal, else with the exit status of the command line for its error."""

    status: int
    kind: str = ""
    said: str = ""

    def __str__(self) -> str:
        return f"{self.status}: {self.kind}: {self.said[-600:]}"


class Child:
    """A forked child that runs `work`, as another user if one is given. It may stop itself."""

    def __init__(self, work: Callable[[], object], answer: Path, user: int = 0, limit_s: int = LIMIT_S) -> None:
        self._answer = answer
        answer.unlink(missing_ok=True)
        self._pid = os.fork()
        if self._pid == 0:
            self._run(work, user, limit_s)

    def wait(self) -> Ended | None:
        """Return how it ended, or None if it stopped."""
        status = os.waitpid(self._pid, os.WUNTRACED)[1]
        if os.WIFSTOPPED(status):
            return None
        code = os.waitstatus_to_exitcode(status)
        if code or not self._answer.exists():
            return Ended(code)
        *ended, modules = json.loads(self._answer.read_text())
        inputs.import_modules(modules)
        return Ended(*ended)

    def resume(self) -> Ended | None:
        """Continue it, and wait as `wait` does."""
        os.kill(self._pid, signal.SIGCONT)
        return self.wait()

    def kill(self) -> None:
        """Kill it while it is stopped."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _run(self, work: Callable[[], object], user: int, limit_s: int) -> None:
        status, kind, said = 0, "", ""
        try:
            signal.alarm(limit_s)
            with open(self._answer, "w") as answer:
                if user:
                    os.setgroups([])
                    os.setgid(user)
                    os.setuid(user)
                try:
                    work()
                except BaseException as error:
                    status, said = internals.understood(error)
                    kind = type(error).__name__
                json.dump([status, kind, said, sorted(sys.modules)], answer)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(3)
        os._exit(0)


# --- version 0.2.0 -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OldVersion:
    """A process that runs cases with version 0.2.0, each in a child; at most one is stopped."""

    process: subprocess.Popen[str]

    def start(self, one: Commit, plan: hook.Plan | None = None) -> Ended | None:
        """Run a case; see `Child.wait`."""
        given = None if plan is None else asdict(plan)
        return self._ask("start", one.case.name, str(one.base), one.with_old, given)

    def resume(self) -> Ended | None:
        return self._ask("resume")

    def kill(self) -> None:
        self._ask("kill")

    def _ask(self, *request: object) -> Ended | None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        return None if answer is None else Ended(*answer)


def old_source(folder: Path) -> Path | None:
    """Unpack the source of version 0.2.0; None if this checkout doesn't have it."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", OLD_REVISION, "src/penstock"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        return None
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"


@contextlib.contextmanager
def old_version(source: Path) -> Generator[OldVersion]:
    """Start version 0.2.0."""
    command = [sys.executable, "-c", "import commits; commits.serve()"]
    path = os.pathsep.join(map(str, (source, ROOT, Path(__file__).parent)))
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, text=True, **pipes) as process:
        try:
            yield OldVersion(process)
        finally:
            process.kill()


def serve() -> None:
    """Run cases that are asked for on standard input, with the version that is on the path."""
    by_name = {case.name: case for case in importlib.import_module("cases").CASES}
    internals.use_version_02()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    child: Any = None
    for line in sys.stdin:
        what, *given = json.loads(line)
        ended = None
        if what == "start":
            name, base, with_old, plan = given
            one = Commit(by_name[name], Path(base), with_old, each_call.Bucket())
            inputs.know_tokenizers(one.folder)
            child = one.child(None if plan is None else hook.Plan(**plan))
            ended = child.wait()
        elif what == "resume":
            ended = child.resume()
        else:
            child.kill()
        print(json.dumps(None if ended is None else [ended.status, ended.kind, ended.said]), file=answers, flush=True)


# --- what others read --------------------------------------------------------------------------------------------


def as_others_read(tree: each_call.Tree) -> dict[str, dict[str, bytes]]:
    """Return what tools that know nothing of Penstock read: the file by which they find a dataset → its files."""
    files = {name: data for name, data in tree.items() if data is not None and not _is_ours(name)}
    found: dict[str, dict[str, bytes]] = {}
    for name, data in files.items():
        folder, _, base = name.rpartition("/")
        stem = name.removesuffix(".idx")
        members = {name: data}
        if base in ("index.json", ".zgroup", ".info.json"):
            members = {one: data for one, data in files.items() if one.startswith(f"{folder}/")}
            if base == "index.json":  # the files that it names
                tops = [one.removeprefix(f"{folder}/").partition("/")[0] for one in members]
                named = {one: members[one] for one, top in zip(members, tops, strict=True) if top.encode() in data}
                members = {name: data} | named
        elif stem != name:
            data_names = [one for one in (stem, f"{stem}.bin", f"{stem}.jsonl") if one in files]
            members |= {one: files[one] for one in data_names}
            if not data_names:
                continue
        elif not name.endswith((".pbin", ".jsonl", ".tar", ".sqlite")):
            continue
        found[name] = members
    return found


def _is_ours(name: str) -> bool:
    """Return whether only Penstock reads a file: side files, planes, hidden files, and all in hidden directories."""
    foreign = (".nv-meta", ".zgroup", ".zarray", ".zattrs", ".info.json", ".info.yaml")
    if any(part.startswith(".") and part not in foreign for part in name.split("/")):
        return True
    return internals.is_side_file(name.rpartition("/")[2])


# --- the laws ----------------------------------------------------------------------------------------------------


@dataclass
class Commit(each_call.Round):
    """A case whose files others read or write while it runs.

    Attributes:
        others: what other tools read at the end, and at the start.
        names: files at the end, of either version.
        by_old: what a reader sees of the output of version 0.2.0.
    """

    others: list[dict[str, dict[str, bytes]]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    by_old: Any = None

    def begin(self) -> None:
        super().begin()
        self.others = [as_others_read(self.final)]
        self.names, self.by_old = set(self.final), self.after
        self.restore()
        self.others.append(as_others_read(self.tree()))

    def child(self, plan: hook.Plan | None = None, user: int = 0) -> Child:
        """Start the case in a child."""

        def work() -> None:
            self._enter(self.folder)
            if user:
                os.environ["PENSTOCK_CACHE"] = os.environ["TMPDIR"] = str(self.base / "scratch" / "user")
            if plan is None:
                self.case.work(self.folder, self.with_old)
            else:
                self._hooked(plan)

        limit_s = 10 * LIMIT_S if plan is not None and plan.stepped else LIMIT_S
        return Child(work, self.base / f"told-{os.getpid()}", user, limit_s)

    def stop_at(self, at: int) -> hook.Plan:
        """Return the plan of a run that stops before a call."""
        return hook.Plan(str(self.folder), str(self._notes()), at, signal=signal.SIGSTOP)

    def places(self, most: int, seed: object) -> list[int]:
        """Return at most so many of the calls, by chance."""
        every = range(1, len(self.calls) + 1)
        return sorted(random.Random(f"{seed} {self.name}").sample(every, min(most, len(every))))

    # -- readers

    def watched(self, places: set[int]) -> list[str]:
        """Read before the calls at `places`, and at the end; return what was wrong."""
        self.restore()
        child = self.child(hook.Plan(str(self.folder), str(self._notes()), stepped=True))
        problems: dict[str, int] = {}
        seen: list[Any] = []
        place, ended = 0, child.wait()
        while ended is None:
            place += 1
            if place in places:
                for problem in self._read(seen):
                    problems.setdefault(problem, place)
            ended = child.resume()
        if ended.status:
            problems[f"ended with {ended}"] = place
        for problem in self._read(seen):
            problems.setdefault(problem, place)
        if seen[-1] != self.after or any(one == self.before != self.after for one in seen[seen.index(self.after) :]):
            problems["old again after new"] = place
        return [f"before call {at} ({self._call(at)}): {problem}" for problem, at in problems.items()]

    def _call(self, place: int) -> str:
        names = [f"{call.name} {os.path.relpath(call.path, self.folder)}" for call in self.calls]
        return names[place - 1] if place <= len(names) else "the end"

    def _read(self, seen: list[Any]) -> Iterator[str]:
        """Read the output as it is now, with Penstock and as other tools do."""
        was = self.tree()
        answer = self.base / "read"

        def look() -> None:
            os.environ["PENSTOCK_CACHE"] = str(self.base / "scratch" / "reader")
            try:
                found = self.case.view(self.folder)
            except NotFound:
                found = None
            answer.write_text(repr(found))

        answer.unlink(missing_ok=True)
        status, said = each_call.in_child(look)
        if status:
            yield f"reading ends with {status}: {said[-700:]}"
        else:
            found = answer.read_text()
            known = [one for one in (self.before, self.after) if repr(one) == found]
            if known:
                seen.append(known[0])
            else:
                yield f"neither old nor new: {found[:300]}"
        if (now := self.tree()) != was:
            yield f"reading changed {sorted(name for name in now | was if now.get(name, 0) != was.get(name, 0))}"
        new, old = self.others
        # A repair changes one file after the other.
        for entry, members in () if self.case.name.startswith("repair") else as_others_read(was).items():
            if members not in (old.get(entry), new.get(entry)):
                yield f"other tools see a mixture by {entry}"

    # -- users

    def allow(self, mode: int, file_mode: int) -> None:
        """Restore the folder, with these modes."""
        self.restore()
        os.chmod(self.base, 0o755)
        user = self.base / "scratch" / "user"
        user.mkdir(exist_ok=True, parents=True)
        os.chmod(user, 0o777)
        for parent, folders, names in os.walk(self.folder, topdown=False):
            for name in names:
                os.chmod(os.path.join(parent, name), file_mode)
            for name in folders:
                os.chmod(os.path.join(parent, name), mode)
        os.chmod(self.folder, mode)

    def read_only(self) -> list[str]:
        """Write as another user where nothing may be written."""
        self.allow(0o555, 0o444)
        was = self.tree()
        ended = self.child(user=OTHER_USER).wait()
        problems = list(self._told(ended))
        if ended is None or ended.status != SYSTEM or "Permission denied" not in ended.said:
            problems.append(f"ended with {ended}")
        if (now := self.tree()) != was:
            problems.append(f"changed: {_differences(was, now)}")
        return problems

    def of_another_user(self, mode: int) -> list[str]:
        """Write where all files are those of another user, who then writes again."""
        self.allow(mode, 0o644)
        return [*self._as_user(), *self._again(set())]

    def after_another_user(self, kill: each_call.Kill, mode: int) -> list[str]:
        """Write after another user was killed, who then writes again."""
        self.allow(mode, 0o644)
        problems = self._die(kill)[2]
        return [*problems, *self._as_user(), *self._again(set(self.tree()))]

    def _as_user(self) -> Iterator[str]:
        was, before = self.tree(), self.seen()
        ended = self.child(user=OTHER_USER).wait()
        now, after = self.tree(), self.seen()
        yield from self._told(ended)
        if ended is not None and ended.status == 0:
            if after != self.after:
                yield "no error, and the result is not there"
        elif after not in (before, self.after):
            yield f"an error, and something else is there than before: {ended}"
        new = [name for name in now if name not in was and name not in self.final and not internals.is_lock(name)]
        # What another user's rights keep from being removed may stay, under a hidden name.
        new = [name for name in new if not (ended is not None and ended.status == 0 and self._is_kept(name))]
        if ended is not None and "Finished parts are kept" in ended.said:
            new = [name for name in new if not internals.has_work(name) and not internals.is_mark_or_lock(name)]
        if new:
            yield f"left behind with {ended}: {new}"

    def _is_kept(self, name: str) -> bool:
        """Return whether a file is in a hidden directory of the first user."""
        path = self.folder / name
        return internals.is_hidden(name) and os.lstat(path.parent).st_uid == os.geteuid()

    def _told(self, ended: Ended | None) -> Iterator[str]:
        if ended is None or ended.status < 0 or ended.status in (1, 2, 3, 70):
            yield f"ended with {ended}"
        elif ended.status and ("\n" in ended.said or not ended.said.strip()):
            yield f"not one line: {ended}"
        elif ended.status and str(self.folder) not in ended.said:
            yield f"no file is named: {ended}"

    # -- version 0.2.0

    def learn(self, old: OldVersion) -> Ended | None:
        """Run version 0.2.0 alone; return how it ended."""
        self.restore()
        ended = old.start(self)
        if ended is not None and ended.status == 0:
            self.by_old = self.seen()
            self.names |= set(self.tree())
        return ended

    def old_first(self, old: OldVersion, at: int, *, killed: bool) -> list[str]:
        """Write while version 0.2.0 is stopped in the middle, and after it was resumed or killed."""
        self.restore()
        if old.start(self, self.stop_at(at)) is not None:
            return []
        held, was = self._is_held(), self.tree()
        ended = self.child().wait()
        problems, left = list(self._excluded(ended, held, was)), set(self.tree()) if killed else set[str]()
        if killed:
            old.kill()
        elif (resumed := old.resume()) is None or resumed.status in (1, 2, 3, 70):
            problems.append(f"version 0.2.0 ended with {resumed}")
        elif held and (resumed.status or self.seen() != self.by_old):
            problems.append(f"version 0.2.0 was disturbed: {resumed}")
        return [*problems, *self._again(left)]

    def old_second(self, old: OldVersion, at: int, *, killed: bool) -> list[str]:
        """Run version 0.2.0 while this one is stopped in the middle, or after it was killed."""
        self.restore()
        child = self.child(self.stop_at(at))
        if child.wait() is not None:
            return []
        held, was = self._is_held(), self.tree()
        left = set(was) if killed else set[str]()
        if killed:
            child.kill()
        ended = old.start(self)
        if killed:
            problems = [] if ended is not None and ended.status not in (1, 2, 3, 70) else [f"0.2.0 ended with {ended}"]
        else:
            problems = list(self._excluded(ended, held, was, by_old=True))
            resumed = child.resume()
            if resumed is None or resumed.status in (1, 2, 3, 70) or (held and resumed.status):
                problems.append(f"resumed, it ended with {resumed}")
        return [*problems, *self._again(left)]

    def _excluded(self, ended: Ended | None, held: bool, was: each_call.Tree, *, by_old: bool = False) -> Iterator[str]:
        """Yield what is wrong with a run next to one that is stopped."""
        if ended is None or ended.status in (1, 2, 3, 70):
            yield f"next to the other version it ended with {ended}"
            return
        if not held:
            return
        names_restart = "--restart" in ended.said
        another_lock = ended.kind == "ConfigError" and "lock" in ended.said  # a commit of this version
        if ended.status == 0 or not (ended.kind == "PrepareError" or names_restart or another_lock):
            yield f"it wasn't excluded: {ended}"
        changed = [name for name in _differences(was, self.tree()) if not internals.is_lock(name)]
        # Version 0.2, and the finalize step of another plan, remove the mark of a run although they are refused.
        if by_old or "by an array" in self.case.name:
            changed = [name for name in changed if not internals.is_mark_or_lock(name) and not name.endswith("/tmp")]
        if changed:
            yield f"it changed {changed}"

    def _is_held(self) -> bool:
        """Return whether a process holds the lock of the output: alone, or with other parts of a plan."""
        names = list(self.tree())
        locks = [self.folder / name for name in names if internals.is_lock(name)]
        if any(internals.is_locked(path, shared=True) for path in locks):
            return True
        return any(map(internals.is_locked, locks)) and any(map(internals.is_plan, names))

    def _again(self, spared: Collection[str]) -> Iterator[str]:
        """Yield what is wrong with what is there, and with the same work again.

        Args:
            spared: files of a killed run that may stay if another one has made the output.
        """
        seen = self.seen()
        if seen not in (self.before, self.after, self.by_old):
            yield f"neither old nor new is there: {str(seen)[:300]}"
        status, said = self._child(lambda: self.case.work(self.folder, self.with_old))
        if status == 1 and "--restart" in said:
            return
        is_done = seen in (self.after, self.by_old)
        if status and not (status == 1 and is_done):
            yield f"the same again ended with {status}: {said}"
        elif self.seen() not in (self.after, self.by_old):
            yield "after the same again, the result is not there"
        if left := [name for name in self.tree() if name not in self.names and not (is_done and name in spared)]:
            yield f"left over: {left}"


def _differences(was: each_call.Tree, now: each_call.Tree) -> list[str]:
    return sorted(name for name in was.keys() | now.keys() if was.get(name, 0) != now.get(name, 0))

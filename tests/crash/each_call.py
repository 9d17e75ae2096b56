"""Death before, after and in the middle of each call that changes files or the store, and what is there then.

The law, for each case: a reader sees the old dataset, the whole new one, or nothing, and `verify` finds no error in it;
the same command again ends in the same files as one that was never killed, or says that they are complete; and nothing
is left over.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import pickle
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hook
import inputs
from tests.internals import RANDOM_PART, is_lock, is_work

from penstock.errors import NotFound, PenstockError
from penstock.formats import format_names

LIMIT_S = 60
GONE_S = 20
_RANDOM = re.compile(rf"{RANDOM_PART}|(?<=/tmp/)[0-9a-f]{{16}}")
_TIMES = re.compile(rb'(?<="(?:began|ended)_s":)[0-9.e+]+')
Tree = dict[str, bytes | None]
"""Path below the folder → bytes of a file, None for a folder."""


class Bucket:
    """What is in a bucket of a server in this process; without one, nothing.

    Args:
        name: of the bucket.
        served: whether there is one.
    """

    def __init__(self, name: str = "", *, served: bool = False) -> None:
        self._name, self._served = name, served

    def load(self) -> dict[str, bytes]:
        """The files."""
        if not self._served:
            return {}
        return {name: key.value for name, key in self._bucket.keys.items()}

    def put(self, files: dict[str, bytes]) -> None:
        """Have these files and no others."""
        if self._served:
            backend = self._backend
            for name in list(self._bucket.keys):
                backend.delete_object(self._name, name)
            for name, data in files.items():
                backend.put_object(self._name, name, data)

    @property
    def _backend(self) -> Any:
        return importlib.import_module("tests.moto_s3").backend()

    @property
    def _bucket(self) -> Any:
        return self._backend.buckets[self._name]


@contextlib.contextmanager
def served_bucket(name: str) -> Generator[Bucket]:
    """A server with one bucket, which the environment names."""
    with importlib.import_module("tests.moto_s3").served() as url:
        settings = {"S3_ENDPOINT_URL": url, "AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"}
        os.environ.update(settings, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_REGION="us-east-1")
        yield Bucket(name, served=True)


@dataclass(frozen=True)
class Case:
    """One thing that writes.

    Attributes:
        name: what it is.
        setup: makes the inputs in a new folder.
        work: does it; `overwrite` where a result is there already.
        view: what a reader sees of the result; raises `NotFound` where there is none.
        old: makes an older result, for the round with one; None where there can be none.
        workers: whether it has worker processes.
        remote: whether it writes to the bucket.
        finishes: the same again never says that the output exists.
        stays: what came in the place of an old result is not replaced by the same again, which says so.
    """

    name: str
    setup: Callable[[Path], object]
    work: Callable[[Path, bool], object]
    view: Callable[[Path], Any]
    old: Callable[[Path], object] | None = None
    workers: bool = False
    remote: bool = False
    finishes: bool = False
    stays: bool = False


@dataclass(frozen=True)
class Kill:
    """One death."""

    at: int
    moment: hook.Moment
    victim: hook.Victim = "main"


@dataclass
class Round:
    """A case without or with an old result, run once without a kill.

    Attributes:
        before: what a reader sees at the start.
        after: and at the end.
        final: the files at the end.
        calls: of the main process.
        worker_calls: of the worker that made most.
        judged: state after a kill → what was wrong with it.
    """

    case: Case
    base: Path
    with_old: bool
    bucket: Bucket
    before: Any = None
    after: Any = None
    final: Tree = field(default_factory=dict)
    calls: list[hook.Call] = field(default_factory=list)
    worker_calls: list[hook.Call] = field(default_factory=list)
    judged: dict[str, list[str]] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.base / "case"

    @property
    def name(self) -> str:
        return f"{self.case.name}, {'over an old one' if self.with_old else 'fresh'}"

    def begin(self) -> None:
        """Make the template, and run the case once."""
        shutil.rmtree(self.base, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.bucket.put({})
        self._must(self._setup)
        self.stored = self.bucket.load()
        shutil.copytree(self.folder, self.base / "template", symlinks=True)
        inputs.know_tokenizers(self.base / "template")
        format_names()  # reads what is installed: once, not in each child
        self.before = self.seen()
        notes = self._notes()
        self._must(lambda: self._hooked(hook.Plan(str(self.folder), str(notes), noted=True)))
        self._wait_for_workers(notes)
        inputs.import_modules((notes / "modules").read_text().split("\n"))
        made = hook.calls_in(str(notes))
        main = hook.pids_in(str(notes))[0]
        self.calls = [call for call in made if call.pid == main]
        others = [[call for call in made if call.pid == pid] for pid in {call.pid for call in made} - {main}]
        self.worker_calls = max(others, key=len, default=[])
        self.after, self.final = self.seen(), self.tree()
        if self.after is None:
            raise RuntimeError(f"{self.name}: the view sees nothing of what was made")

    def some(self, most: int, seed: object) -> list[Kill]:
        """At most so many of the kills, by chance."""
        kills = list(self.kills())
        return sorted(random.Random(f"{seed} {self.name}").sample(kills, min(most, len(kills))), key=lambda one: one.at)

    def kills(self) -> Iterator[Kill]:
        """All that there are to try."""
        victims: Sequence[hook.Victim] = ("main", "worker", "all") if self.case.workers else ("main",)
        for victim in victims:
            calls = {
                "main": self.calls,
                "worker": self.worker_calls,
                "all": max(self.calls, self.worker_calls, key=len),
            }
            for at, call in enumerate(calls[victim], 1):
                yield Kill(at, "before", victim)
                yield Kill(at, "after", victim)
                if call.name in hook.MOVING:
                    yield Kill(at, "torn", victim)

    def kill(self, kill: Kill) -> list[str]:
        """What is wrong after one death."""
        self.restore()
        status, died, problems = self._die(kill)
        # Uploads are made by threads: how many calls come before the last one differs from run to run; threads that
        # write chunks may both make a folder, or one of them.
        last = "flat-tokens" in self.case.name and kill.at > len(self.calls) - 2
        if not died and not last and not self.case.workers and not self.case.remote:
            problems.append("nobody died")
        return problems + self._judged(done=status == 0)

    def kill_twice(self, first: Kill, second: Kill) -> list[str]:
        """What is wrong if the command is killed, and killed again while it resumes; it may end before that."""
        self.restore()
        problems = self._die(first)[2]
        status, died, more = self._die(second)
        return problems + more + self._judged(done=status == 0 and not died)

    def _die(self, kill: Kill) -> tuple[int, bool, list[str]]:
        notes = self._notes()
        plan = hook.Plan(str(self.folder), str(notes), kill.at, kill.moment, kill.victim)
        status, said = self._child(lambda: self._hooked(plan))
        problems = [f"processes outlive it: {left}"] if (left := self._wait_for_workers(notes)) else []
        died = (notes / "died").exists()
        if status > 1 or (status < 0 and not (status == -signal.SIGKILL and died)):
            problems.append(f"ended with {status}: {said}")
        return status, died, problems

    def _judged(self, *, done: bool) -> list[str]:
        state = f"{done} {_digest(self.tree())}"
        if state not in self.judged:
            self.judged[state] = list(self._judge(done=done))
        return self.judged[state]

    def _judge(self, *, done: bool) -> Iterator[str]:
        try:
            seen = self.seen()
        except RuntimeError as error:
            yield f"what is there can't be read: {error}"
            seen = error
        else:
            if seen not in (self.before, self.after):
                yield f"neither old nor new is there: {str(seen)[:300]}"
            if done and seen != self.after:
                yield "no error, and the result is not there"
        # Killed after its last change of all, a run was complete: what comes then is another one.
        complete = _without_locks(self.tree()) == self.final
        status, said = self._child(lambda: self.case.work(self.folder, self.with_old))
        may_stay = self.case.stays or not self.with_old
        refused = status == 1 and seen == self.after and may_stay and (complete or not self.case.finishes)
        if status != 0 and not refused:
            yield f"the same again ended with {status}: {said}"
        found = self.tree()
        changed = sorted(
            name for name in found.keys() | self.final.keys() if found.get(name, 0) != self.final.get(name, 0)
        )
        if left := [name for name in changed if name not in self.final]:
            yield f"left over: {left}"
        if other := [name for name in changed if name in self.final]:
            yield f"other than one never killed: {other}"

    def restore(self) -> None:
        """The folder as it was at the start."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.base / "template", self.folder, symlinks=True)
        self.bucket.put(self.stored)

    def seen(self) -> Any:
        """The view, taken on a copy, by a child: looking may write an index or a cache, and remember."""
        copied = self.base / "look"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(self.folder, copied, symlinks=True)
        answer = self.base / "answer"

        def look() -> None:
            self._enter(copied)
            try:
                seen = self.case.view(copied)
            except NotFound:
                seen = None
            answer.write_bytes(pickle.dumps((seen, sorted(sys.modules))))

        self._must(look)
        seen, modules = pickle.loads(answer.read_bytes())
        inputs.import_modules(modules)
        return seen

    def tree(self) -> Tree:
        """All files and folders of the case, but for the cache; and what the bucket has."""
        found: Tree = {}
        for parent, folders, names in os.walk(self.folder):
            within = os.path.relpath(parent, self.folder)
            if within == ".":
                folders[:] = [name for name in folders if name not in ("cache", "scratch")]
            found.update((os.path.normpath(os.path.join(within, name)), None) for name in folders)
            for name in names:
                found[os.path.normpath(os.path.join(within, name))] = Path(parent, name).read_bytes()
        return found | {f"s3://{name}": data for name, data in self.bucket.load().items()}

    def _setup(self) -> None:
        self._enter(self.folder)
        self.case.setup(self.folder)
        if self.with_old and self.case.old is not None:
            self.case.old(self.folder)

    def _hooked(self, plan: hook.Plan) -> None:
        self._enter(self.folder)
        hook.install(plan)
        self.case.work(self.folder, self.with_old)
        if plan.noted:
            Path(plan.notes, "modules").write_text("\n".join(sys.modules))

    def _enter(self, folder: Path) -> None:
        os.environ["PENSTOCK_CACHE"] = str(folder / "cache")
        scratch = self.base / "scratch"
        scratch.mkdir(exist_ok=True)
        os.environ["TMPDIR"] = str(scratch)

    def _notes(self) -> Path:
        notes = self.base / "notes"
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir()
        return notes

    def _must(self, work: Callable[[], object]) -> None:
        status, said = self._child(work)
        if status:
            raise RuntimeError(f"{self.name}: ended with {status}: {said}")

    def _child(self, work: Callable[[], object]) -> tuple[int, str]:
        def entered() -> None:
            self._enter(self.folder)
            work()

        return in_child(entered)

    def _wait_for_workers(self, notes: Path) -> list[int]:
        """Those that do not end by themselves."""
        left = hook.pids_in(str(notes))
        stop_s = time.monotonic() + GONE_S
        while (left := [pid for pid in left if _lives(pid)]) and time.monotonic() < stop_s:
            time.sleep(0.005)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


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
        except PenstockError as error:
            os.write(writing, str(error).encode()[-2000:])
            status = 1
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(status)
    os.close(writing)
    # Its workers may have the pipe too, so the end of what it says is its own end.
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.set_blocking(reading, False)
    with open(reading, "rb") as said:
        return status, (said.read() or b"").decode()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _without_locks(tree: Tree) -> Tree:
    return {name: data for name, data in tree.items() if not is_lock(name)}


def _digest(tree: Tree) -> str:
    """Of all names and bytes, but for random parts of hidden names, times of work, and who held a lock."""
    hasher = hashlib.blake2b()
    for plain, name in sorted((_RANDOM.sub("", name), name) for name in tree):
        data = b"" if is_lock(name) else tree[name]
        if data and is_work(name):
            data = _TIMES.sub(b"", data)
        hasher.update(f"{plain}\0{'folder' if data is None else len(data)}\0".encode() + (data or b""))
    return hasher.hexdigest()

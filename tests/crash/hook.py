"""A counting hook: every call of a process that changes files below a folder, or the store; and death at one of them.

It stands in for the functions of `os` (and `open`, and `renameat2` by ctypes) for the rest of a process that is to die
anyhow: a forked child, or a worker that starts with `hooked/sitecustomize.py` on its path. So nothing is missed that
Python code does: the standard library's own `shutil` and `tempfile`, locks, and what does not go through a
`LocalStore`. SQLite makes its own calls; of a database below the folder each statement counts instead.
`test_kills.py` holds all that against strace.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import io
import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Moment = Literal["before", "after", "torn"]
"""Of a call: it is not made, it is made, or half of what it was to write is written."""
Victim = Literal["main", "worker", "all"]
"""Who dies: the process that was started, one of its workers, or every process when one of them comes to the call."""

SQL = ("execute", "executemany", "executescript", "commit", "close")
BY_PATH = ("chmod", "link", "mkdir", "remove", "rename", "replace", "rmdir", "symlink", "truncate", "unlink", "utime")
BY_FD = (
    *("copy_file_range", "fdatasync", "fsync", "ftruncate", "posix_fallocate", "pwrite", "pwritev", "sendfile"),
    *("write", "writev"),
)
MOVING = {"write": 1, "pwrite": 1, "copy_file_range": 2, "sendfile": 3}
"""Which argument is what is moved, or how much."""
STORE = ("put", "copy", "delete")
"""What a remote store is asked for."""
VARIABLE = "PENSTOCK_TESTS_HOOK"
HOOKED = str(Path(__file__).parent / "hooked")


@dataclass(frozen=True)
class Plan:
    """What is watched, and where it ends.

    Attributes:
        root: only what lies below this folder counts.
        notes: folder, outside of it, for what the processes note.
        at: number of the call in its process, from 1; 0 for none.
        moment: of that call.
        victim: who dies.
        noted: whether each call is noted.
        signal: what ends it; after SIGSTOP, before the call, it may be let go on.
        stepped: whether the first process stops before each call.
    """

    root: str
    notes: str
    at: int = 0
    moment: Moment = "before"
    victim: Victim = "main"
    noted: bool = False
    signal: int = signal.SIGKILL
    stepped: bool = False


@dataclass(frozen=True)
class Call:
    """One call that was noted."""

    pid: int
    name: str
    path: str


def install(plan: Plan, *, worker: bool = False) -> None:
    """Hook this process for good, and the fresh interpreters that it starts. Calls to remote stores count too."""
    hook = _Hook(plan, worker)
    os.environ[VARIABLE] = json.dumps(asdict(plan))
    os.environ["PYTHONPATH"] = HOOKED
    for name in (*BY_PATH, *BY_FD, "open"):
        setattr(os, name, functools.wraps(getattr(os, name))(functools.partial(hook, name, getattr(os, name))))
    opened = functools.partial(hook.open_file, io.open)
    builtins.open = io.open = opened  # type: ignore[assignment]
    ctypes.CDLL = functools.partial(_Library, hook, ctypes.CDLL)  # type: ignore[misc, assignment]
    sqlite3.connect = functools.partial(_connect, hook, sqlite3.connect)  # type: ignore[assignment]
    os.register_at_fork(after_in_child=hook.register)
    hook.register()
    if "penstock" in sys.modules:  # not so in a fresh interpreter
        from tests.internals import object_transport

        objects = object_transport()
        for name in STORE if objects else ():
            setattr(objects, name, _method(hook, name, getattr(objects, name)))


def install_from_environment() -> None:
    """For a worker: what its parent was hooked with."""
    if VARIABLE in os.environ:
        install(Plan(**json.loads(os.environ[VARIABLE])), worker=True)


def calls_in(notes: str) -> list[Call]:
    """The calls that were noted, in their order in each process."""
    path = Path(notes, "calls")
    lines = path.read_text().splitlines() if path.exists() else []
    return [Call(int(pid), name, where) for pid, name, where in (line.split(" ", 2) for line in lines)]


def pids_in(notes: str) -> list[int]:
    """The processes that were hooked."""
    path = Path(notes, "pids")
    return [int(line) for line in path.read_text().split()] if path.exists() else []


class _Hook:
    def __init__(self, plan: Plan, worker: bool) -> None:
        self.plan = plan
        self.count = 0
        self._role = "worker" if worker else "main"
        self._lock = threading.RLock()
        self._os = {name: getattr(os, name) for name in ("open", "write", "close", "fstat", "readlink")}

    def __call__(self, name: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        path = self._below(name, args, named)
        return call(*args, **named) if path is None else self.meet(name, path, call, *args, **named)

    def meet(self, name: str, path: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Make a call that counts."""
        plan = self.plan
        with self._lock:
            self.count += 1
            place = self.count
            if plan.noted:
                self.note("calls", f"{os.getpid()} {name} {path}")
            if plan.stepped and self._role == "main":
                os.kill(os.getpid(), signal.SIGSTOP)
        if place != plan.at or plan.victim not in ("all", self._role) or not self.is_chosen():
            return call(*args, **named)
        if plan.moment == "torn" and name in MOVING:
            call(*_halved(name, args), **named)
        elif plan.moment == "after":
            # What a process learns of a call that fails, it can do nothing with: it dies all the same.
            with contextlib.suppress(Exception):
                call(*args, **named)
        self.die()
        return call(*args, **named)  # it was only stopped

    def open_file(self, call: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
        """`open`, which counts where it may make a file."""
        if isinstance(file, int) or not set(mode) & set("wax+") or not self.is_below(os.path.abspath(file)):
            return call(file, mode, *args, **named)
        return self.meet("open", os.path.abspath(file), call, file, mode, *args, **named)

    def is_chosen(self) -> bool:
        """Whether this process comes to the call first: of several workers one dies, the others go on as always."""
        try:
            self._os["close"](self._os["open"](f"{self.plan.notes}/died", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def die(self) -> None:
        """Kill who is to die."""
        if self.plan.victim == "all":
            for pid in pids_in(self.plan.notes):
                if pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), self.plan.signal)

    def register(self) -> None:
        """Make this process known."""
        self.note("pids", str(os.getpid()))

    def note(self, name: str, line: str) -> None:
        fd = self._os["open"](f"{self.plan.notes}/{name}", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o666)
        self._os["write"](fd, line.encode() + b"\n")
        self._os["close"](fd)

    def _below(self, name: str, args: Sequence[Any], named: dict[str, Any]) -> str | None:
        """The path that a call changes, None where it changes nothing below the root."""
        if name == "open":
            flags = args[1] if len(args) > 1 else named["flags"]
            if not flags & (os.O_CREAT | os.O_TRUNC) or flags & os.O_TMPFILE == os.O_TMPFILE:
                return None
        target: Any = args[0]
        if name in ("link", "rename", "replace", "symlink", "copy_file_range"):
            target = args[1]
        if name in BY_FD or isinstance(target, int):
            with contextlib.suppress(OSError):
                path = self._os["readlink"](f"/proc/self/fd/{target}")
                return path if self.is_below(path) else None
            return None
        folder = named.get("dir_fd", named.get("dst_dir_fd"))
        within = "" if folder is None else self._os["readlink"](f"/proc/self/fd/{folder}")
        path = os.path.abspath(os.path.join(within, os.fsdecode(target)))
        return path if self.is_below(path) else None

    def is_below(self, path: str) -> bool:
        """Whether what happens to a path counts."""
        return os.fsdecode(path).startswith(self.plan.root + "/")


class _Library:
    """A C library, of which `renameat2` counts."""

    def __init__(self, hook: _Hook, load: Callable[..., Any], *args: Any, **named: Any) -> None:
        self._hook, self._library = hook, load(*args, **named)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if name != "renameat2":
            return found
        return lambda *args: self._hook.meet(name, os.fsdecode(args[3]), found, *args)


def _connect(hook: _Hook, connect: Callable[..., Any], path: Any, *args: Any, **named: Any) -> Any:
    if not hook.is_below(os.path.abspath(path)):
        return connect(path, *args, **named)

    base = named.pop("factory", sqlite3.Connection)

    def method(name: str) -> Callable[..., Any]:
        call = getattr(base, name)
        return lambda *given: hook.meet("sql", os.path.abspath(path), call, *given)

    made = type("Connection", (base,), {name: method(name) for name in SQL})
    return hook.meet("sql", os.path.abspath(path), connect, path, *args, factory=made, **named)


def _method(hook: _Hook, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, key, *args, **named: hook.meet(name, key, method, self, key, *args, **named)


def _halved(name: str, args: Sequence[Any]) -> list[Any]:
    place = MOVING[name]
    amount = args[place]
    half = amount // 2 if isinstance(amount, int) else memoryview(amount)[: len(amount) // 2]
    return [*args[:place], half, *args[place + 1 :]]

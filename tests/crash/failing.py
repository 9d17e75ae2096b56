"""A hook that lets one call on files below a folder fail: those that read as those that write.

As `hook`, which lets a process die at the calls that change something, it stands in for functions of `os`, `open`,
`mmap` and `sqlite3` for the rest of a process that ends anyhow. Of a database each statement counts.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import functools
import io
import json
import mmap
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BY_PATH = (
    *("access", "chmod", "link", "listdir", "lstat", "mkdir", "open", "readlink", "remove", "rename", "replace"),
    *("rmdir", "scandir", "stat", "symlink", "truncate", "unlink", "utime"),
)
BY_FD = (
    *("copy_file_range", "fdatasync", "fstat", "fsync", "ftruncate", "posix_fallocate", "pread", "preadv", "pwrite"),
    *("pwritev", "read", "readv", "sendfile", "write", "writev"),
)
OF_TARGET = ("link", "rename", "replace", "symlink", "copy_file_range")
SPACE = frozenset(
    ("write", "pwrite", "pwritev", "writev", "copy_file_range", "sendfile", "mkdir", "link", "symlink", "create", "sql")
)
NAMES = frozenset((*BY_PATH, "create", "sql", "mmap"))
OPENING = frozenset(("open", "create", "listdir", "scandir", "sql", "mmap"))
ERRORS = {"EIO": None, "ENOSPC": SPACE, "EACCES": NAMES - {"mmap"}, "EMFILE": OPENING}
"""Error → the calls that can end with it; None for every one."""
LASTS = ("ENOSPC", "EACCES")
"""What does not go away: a full disk fails all that comes later, and a file without rights each call on it."""
OF_SQLITE = {
    "EIO": (sqlite3.SQLITE_IOERR, "disk I/O error"),
    "ENOSPC": (sqlite3.SQLITE_FULL, "database or disk is full"),
    "EACCES": (sqlite3.SQLITE_CANTOPEN, "unable to open database file"),
    "EMFILE": (sqlite3.SQLITE_CANTOPEN, "unable to open database file"),
}


@dataclass(frozen=True)
class Fault:
    """What fails: the call of number `at`, from 1, and what follows of it; 0 for none, and the calls are noted.

    Attributes:
        root: only what lies below this folder counts.
        at: number of the call.
        error: name of its error.
        notes: file for the calls, outside of the root; empty for none.
    """

    root: str
    at: int = 0
    error: str = "EIO"
    notes: str = ""


def install(fault: Fault) -> None:
    """Hook this process for good."""
    hook = _Hook(fault)
    for name in (*BY_PATH, *BY_FD):
        setattr(os, name, functools.wraps(getattr(os, name))(functools.partial(hook, name, getattr(os, name))))
    os.supports_fd |= {os.scandir, os.listdir, os.stat}  # `shutil` asks which functions take what
    os.supports_dir_fd |= {os.open, os.stat, os.unlink, os.rmdir}
    os.supports_follow_symlinks |= {os.stat}
    builtins.open = io.open = functools.partial(_open, hook, io.open)  # type: ignore[assignment]
    mmap.mmap = type("mmap", (mmap.mmap,), {"__new__": functools.partial(_map, hook, mmap.mmap)})  # type: ignore[misc]
    sqlite3.connect = functools.partial(_connect, hook, sqlite3.connect)  # type: ignore[assignment]
    ctypes.CDLL = functools.partial(_Library, hook, ctypes.CDLL)  # type: ignore[misc, assignment]


def calls_in(notes: Path) -> list[tuple[str, str]]:
    """The calls that were noted, in their order: name, path."""
    return [tuple(json.loads(line)) for line in notes.read_text().splitlines()] if notes.exists() else []


class _Hook:
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.count = 0
        self.failed_path: str | None = None
        self._lock = threading.RLock()
        self._os = {name: getattr(os, name) for name in ("open", "write", "readlink")}

    def __call__(self, name: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        path = self._below(name, args, named)
        if path is not None:
            flags = (args[1] if len(args) > 1 else named.get("flags", 0)) if name == "open" else 0
            self.meet("create" if flags & os.O_CREAT else name, path, by_path=name in BY_PATH)
        return call(*args, **named)

    def meet(self, name: str, path: str, *, by_path: bool = True) -> None:
        """Count a call, and fail it where it is its turn."""
        fault = self.fault
        with self._lock:
            self.count += 1
            place = self.count
            if fault.notes:
                fd = self._os["open"](fault.notes, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o666)
                self._os["write"](fd, json.dumps((name, path)).encode() + b"\n")
                os.close(fd)
        can = ERRORS[fault.error]
        lasts = fault.error in LASTS and (fault.error == "ENOSPC" or path == self.failed_path)
        if not fault.at or (place != fault.at and not (place > fault.at and lasts)) or (can and name not in can):
            return
        self.failed_path = path
        if name == "sql":
            number, text = OF_SQLITE[fault.error]
            error = sqlite3.OperationalError(text)
            error.sqlite_errorcode = number
            raise error
        number = getattr(errno, fault.error)
        raise OSError(number, os.strerror(number), *([path] if by_path else []))

    def is_below(self, path: str) -> bool:
        """Whether what happens to a path counts."""
        return path.startswith(self.fault.root + "/")

    def place_of(self, fd: int) -> str | None:
        """The path of an open file, where it counts."""
        try:
            path = self._os["readlink"](f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
        except OSError:
            return None
        return path if self.is_below(path) else None

    def _below(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> str | None:
        target: Any = args[1] if name in OF_TARGET else args[0] if args else named.get("path", ".")
        if isinstance(target, int):
            return self.place_of(target)
        folder = named.get("dir_fd", named.get("dst_dir_fd"))
        within = "" if folder is None else self._os["readlink"](f"/proc/self/fd/{folder}")
        path = os.path.abspath(os.path.join(within, os.fsdecode(target or ".")))
        return path if self.is_below(path) else None


class _File(io.FileIO):
    hook: _Hook

    def _meet(self, name: str) -> None:
        path = self.hook.place_of(self.fileno())
        if path is not None:
            self.hook.meet(name, path, by_path=False)

    def readinto(self, buffer: Any, /) -> Any:
        self._meet("read")
        return super().readinto(buffer)

    def readall(self) -> Any:
        self._meet("read")
        return super().readall()

    def write(self, data: Any, /) -> Any:
        self._meet("write")
        return super().write(data)


def _open(hook: _Hook, opened: Callable[..., Any], file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
    names = ("buffering", "encoding", "errors", "newline", "closefd", "opener")
    given = {**dict(zip(names, args, strict=False)), **named}
    path = None if isinstance(file, int) else os.path.abspath(os.fsdecode(file))
    if path is None or not hook.is_below(path):
        return opened(file, mode, **given)
    hook.meet("create" if set(mode) & set("wax") else "open", path)
    raw = _File(file, mode.replace("b", "").replace("t", ""), opener=given.get("opener"))
    raw.hook = hook
    if given.get("buffering") == 0:
        return raw
    kind = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
    buffered: Any = kind(raw)
    if "b" in mode:
        return buffered
    text = io.TextIOWrapper(buffered, *(given.get(name) for name in ("encoding", "errors", "newline")))
    text.mode = mode  # type: ignore[misc]
    return text


def _map(hook: _Hook, kind: Any, cls: Any, fileno: int, *args: Any, **named: Any) -> Any:
    path = hook.place_of(fileno)
    if path is not None:
        hook.meet("mmap", path, by_path=False)
    return kind.__new__(cls, fileno, *args, **named)


def _connect(hook: _Hook, connect: Callable[..., Any], path: Any, *args: Any, **named: Any) -> Any:
    place = os.path.abspath(os.fsdecode(path).removeprefix("file:").partition("?")[0])
    if not hook.is_below(place):
        return connect(path, *args, **named)

    base = named.pop("factory", sqlite3.Connection)

    def method(name: str) -> Callable[..., Any]:
        call = getattr(base, name)

        def met(*given: Any) -> Any:
            hook.meet("sql", place)
            return call(*given)

        return met

    made = type("Connection", (base,), {one: method(one) for one in ("execute", "executemany", "commit")})
    hook.meet("sql", place)
    return connect(path, *args, factory=made, **named)


class _Library:
    """A C library, of which `renameat2` counts."""

    def __init__(self, hook: _Hook, load: Callable[..., Any], *args: Any, **named: Any) -> None:
        self._hook, self._library = hook, load(*args, **named)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if name != "renameat2":
            return found

        def exchange(*args: Any) -> Any:
            try:
                self._hook.meet("rename", os.fsdecode(args[3]))
            except OSError as error:
                ctypes.set_errno(error.errno or 0)
                return -1
            return found(*args)

        return exchange

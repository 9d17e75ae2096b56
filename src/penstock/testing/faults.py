"""Stores that inject faults: the n-th file operation fails, tears a write, fills the disk, or kills the process.

`LocalStore` makes every system call through an `os` module that can be replaced, such as by `FaultyOs`. One loop
covers every point at which a writer can be interrupted:

    total = count_operations(lambda store: write_dataset(store))
    for n in range(1, total + 1):
        with pytest.raises(OSError):
            write_dataset(FaultStore(n, "raise"))
        ...  # the old dataset, the whole new one, or nothing
"""

from __future__ import annotations

import contextlib
import errno as _errno
import functools
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal
from unittest import mock

from penstock.store import local
from penstock.store.local import LocalStore

FaultMode = Literal["raise", "tear", "short", "enospc", "kill", "tear-kill"]
"""Fault at the n-th operation.

- `raise`: it fails with `errno` and does nothing (a `close` does close).
- `tear`: a write writes its first half, then fails with `errno`; anything else as `raise`.
- `short`: a read or a write transfers half of the requested bytes and returns their number, without an error: the
  caller has to continue.
- `enospc`: the disk is full from here on: operations that need space fail, the others work.
- `kill`, `tear-kill`: as `raise` and `tear`, but the process is killed instead of the error.
"""

_MOVING = {"write": 1, "pwrite": 1, "copy_file_range": 2, "pread": 1, "read": 1}  # name → which argument is the amount
_WRITING = frozenset({"write", "pwrite", "copy_file_range"})
_SPACE = _WRITING | {"mkdir", "link", "symlink", "ftruncate", "posix_fallocate"}
_CHANGING = frozenset({"fsync", "fdatasync", "rename", "replace", "unlink", "remove", "rmdir"})
COUNTED = frozenset(_MOVING) | _SPACE | _CHANGING | {"open", "close"}
"""Functions of `os` that count as file operations; everything else passes through."""


class FaultyOs:
    """Module like `os` that injects a fault at one file operation.

    Args:
        fail_at: number of the operation, from 1; 0 only counts.
        mode: kind of fault.
        errno: error number for `raise` and `tear`.

    Attributes:
        calls: names of the file operations called so far.

    Examples:
        >>> import os
        >>> from penstock.testing import FaultyOs
        >>> faulty = FaultyOs(fail_at=2)
        >>> file = faulty.open("docs.jsonl", os.O_RDONLY)
        >>> try:
        ...     faulty.read(file, 10)
        ... except OSError as error:
        ...     print(error.strerror)
        Input/output error
        >>> faulty.close(file)
        >>> faulty.calls
        ['open', 'read', 'close']
    """

    def __init__(self, fail_at: int = 0, mode: FaultMode = "raise", errno: int = _errno.EIO) -> None:
        self.fail_at = fail_at
        self.mode: FaultMode = mode
        self.errno = errno
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        # The copy in another process counts its own operations, from 0.
        return (FaultyOs, (self.fail_at, self.mode, self.errno))

    @property
    def operations(self) -> int:
        """Number of file operations called so far."""
        return len(self.calls)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(os, name)
        return functools.partial(self._call, name, value) if name in COUNTED else value

    def _call(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self.calls.append(name)
            place = len(self.calls)
        if self.mode == "enospc" and self.fail_at and place >= self.fail_at and _takes_space(name, args):
            raise OSError(_errno.ENOSPC, os.strerror(_errno.ENOSPC), f"{name}, operation {place}")
        if place != self.fail_at or self.mode == "enospc":
            return call(*args, **kwargs)
        if self.mode == "short":
            return call(*_halved(name, args), **kwargs) if name in _MOVING else call(*args, **kwargs)
        if self.mode.startswith("tear") and name in _WRITING:
            call(*_halved(name, args), **kwargs)
        if self.mode.endswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "close":
            call(*args, **kwargs)
        raise OSError(self.errno, os.strerror(self.errno), f"{name}, operation {place}")


class FaultStore(LocalStore):
    """Local store over a `FaultyOs`, with its arguments.

    Maps and path look-ups aren't counted as operations.

    Examples:
        >>> from penstock.testing import FaultStore
        >>> store = FaultStore(fail_at=2)
        >>> try:
        ...     store.get("docs.jsonl")
        ... except OSError as error:
        ...     print(error.strerror, store.operations)
        Input/output error 3
    """

    __slots__ = ("faults",)

    def __init__(self, fail_at: int = 0, mode: FaultMode = "raise", errno: int = _errno.EIO) -> None:
        self.faults = FaultyOs(fail_at, mode, errno)
        super().__init__(self.faults)

    def __reduce__(self) -> tuple[object, ...]:
        return (FaultStore, (self.faults.fail_at, self.faults.mode, self.faults.errno))

    def __repr__(self) -> str:
        return f"FaultStore(fail_at={self.faults.fail_at}, mode={self.faults.mode!r})"

    @property
    def operations(self) -> int:
        """Number of file operations called so far."""
        return self.faults.operations


def places_of(mode: FaultMode, calls: Sequence[str]) -> list[int]:
    """Return the operations, from 1, at which `mode` differs from other modes and has an effect."""
    special: dict[FaultMode, frozenset[str]] = {
        "tear": _WRITING,
        "tear-kill": _WRITING,
        "short": frozenset(_MOVING),
        "enospc": _SPACE | {"open"},
    }
    chosen = special.get(mode, COUNTED)
    return [place for place, name in enumerate(calls, 1) if name in chosen]


def count_operations(work: Callable[[FaultStore], object]) -> int:
    """Return the number of file operations of `work(store)` without faults.

    Examples:
        >>> from penstock.testing import FaultStore, count_operations
        >>> def read(store):
        ...     return store.get("docs.jsonl")
        >>> total = count_operations(read)
        >>> failures = 0
        >>> for number in range(1, total + 1):
        ...     try:
        ...         read(FaultStore(number))
        ...     except OSError:
        ...         failures += 1
        >>> failures == total
        True
    """
    store = FaultStore()
    work(store)
    return store.operations


@contextlib.contextmanager
def faults_everywhere(faults: FaultyOs) -> Generator[FaultyOs]:
    """Route every new `LocalStore()` of this process through `faults` inside the block, including locks.

    For code that opens its own store, such as `penstock.create` and `penstock.prepare`. Not for use by several threads.

    Examples:
        >>> import penstock as ps
        >>> from penstock.testing import FaultyOs, faults_everywhere
        >>> with faults_everywhere(FaultyOs(fail_at=1)):
        ...     try:
        ...         ps.open("corpus.pbin")
        ...     except OSError as error:
        ...         print(error.strerror)
        Input/output error
    """
    with mock.patch.object(LocalStore.__init__, "__defaults__", (faults,)), mock.patch.object(local, "os", faults):
        yield faults


def _takes_space(name: str, args: tuple[Any, ...]) -> bool:
    return name in _SPACE or (name == "open" and len(args) > 1 and bool(args[1] & os.O_CREAT))


def _halved(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    place = _MOVING[name]
    amount = args[place]
    if isinstance(amount, int):
        half: Any = min(amount, max(1, amount // 2))
    else:
        half = memoryview(amount)[: max(1, len(amount) // 2)]
    return (*args[:place], half, *args[place + 1 :])

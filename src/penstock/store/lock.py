"""Locks between processes of one host, and claims on outputs.

A claim reserves a local output for one writer, from the first byte to the commit. Meanwhile `.<name>.lock.staged` is
next to the output, under `flock`. It names the writer, which removes it at the end. The lock file of a killed writer is
unlocked, and the next writer removes it. A forked child releases its copy at once, so that no child keeps the lock of a
dead parent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import weakref
from collections.abc import Generator
from typing import Any

from penstock.errors import ConfigError, PrepareError
from penstock.store._files import make_folders, named, sync_folder, try_to_remove
from penstock.store.names import LOCK_FILE, STAGING, hidden_path, lock_path

_ANOTHER_THING = {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV}


@contextlib.contextmanager
def hold_lock(path: str, *, wait: bool = True, shared: bool = False) -> Generator[bool]:
    """Hold an exclusive or `shared` lock between processes of this host on the file `path`, created if missing.

    The holder may delete the file: waiting processes then lock a new one.

    Yields:
        True if the lock was acquired; always true with `wait`.

    Raises:
        FileExistsError: a link, a folder or a special file is in its place.
    """
    with locked_file(path, wait=wait, shared=shared) as fd:
        yield fd >= 0


@contextlib.contextmanager
def locked_file(path: str, *, wait: bool = True, shared: bool = False) -> Generator[int]:
    """Do the same, and yield the descriptor of the locked file, which may be read-only, or -1."""
    while True:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        try:
            fd = open_lock(path)
        except FileNotFoundError:
            continue  # the holder removed the folder meanwhile
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            had = False
            break
        except BaseException:
            os.close(fd)
            raise
        had = True
        try:
            is_ours = _is_file_of(fd, path)
        except BaseException:
            os.close(fd)
            raise
        if is_ours:
            break
        os.close(fd)
    try:
        yield fd if had else -1
    finally:
        if had:
            # Unlock explicitly: a child forked meanwhile has the descriptor too, so closing ours isn't enough.
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def open_lock(path: str, os_module: Any = os) -> int:
    """Return the descriptor of a lock file, created if missing; raise `FileExistsError` for anything else."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            fd = os_module.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
        except PermissionError as refused:
            try:
                fd = os_module.open(path, os.O_RDONLY | flags)  # another user's file can be locked read-only
            except FileNotFoundError:
                raise refused from None
    except OSError as error:
        if error.errno in _ANOTHER_THING:
            raise _another_thing(path) from None
        raise
    try:
        status = os.fstat(fd)
    except OSError as error:
        os_module.close(fd)
        raise OSError(error.errno, error.strerror, path) from None
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # a write would be visible under another name
        os_module.close(fd)
        raise _another_thing(path)
    return fd


def _another_thing(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "the path of the lock file is taken by something else", path)


def _is_file_of(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise named(error, path) from None


def being_written(
    path: str, *, found: str | None = None, hint: str = "Wait for it, or choose another output"
) -> PrepareError:
    return PrepareError("another run is writing this output", path=path, found=found, hint=hint)


_MOST_HOLDER_BYTES = 300
_OPEN_TRIES = 10  # the holder may give the file its second name meanwhile
_held: weakref.WeakSet[LocalClaim] = weakref.WeakSet()


def block_old_writers(os_module: Any, path: str) -> None:
    """Give the lock of a local output a second name: version 0.2 then refuses to write; see `store.transaction`."""
    with contextlib.suppress(OSError):  # a file system without hard links
        os_module.link(lock_path(path), _second_name(path))


def _second_name(path: str) -> str:
    return os.path.join(hidden_path(os.path.abspath(path), STAGING), LOCK_FILE)


class Claim:
    """The claim of one writer to an output.

    This base class locks nothing. It is for stores without claims, and for writers that work for the claim's owner.
    """

    __slots__ = ()

    def release(self) -> None:
        """Release the output for other writers; a second call does nothing."""


class HeldClaims(Claim):
    """Several claims that are released together."""

    __slots__ = ("_held",)

    def __init__(self, held: contextlib.ExitStack) -> None:
        self._held = held

    def release(self) -> None:
        self._held.close()


class LocalClaim(Claim):
    """The claim of one writer to a local output, or a `shared` claim of several writers; see `Store.claim`.

    Raises:
        PrepareError: another writer holds this output.
        ConfigError: something else has the name of the lock.
    """

    __slots__ = ("__weakref__", "_fd", "_lock_path", "_made", "_os", "path")

    def __init__(self, os_module: Any, path: str, *, shared: bool = False) -> None:
        self.path = path
        self._os = os_module
        self._fd = -1
        self._lock_path = lock_path(path)
        self._made = make_folders(os_module, os.path.dirname(self._lock_path))
        try:
            for one in self._made:
                sync_folder(os_module, os.path.dirname(one))
            while not self._lock(fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
                pass  # the holder removed the file between the two steps: now there is a new one, or none
            _held.add(self)
            with contextlib.suppress(OSError):  # a full disk: then the file doesn't name this writer
                os_module.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._fd >= 0:
            try:
                with contextlib.suppress(OSError):
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if another shared claim needs the file
                    if self._is_ours() and os.fstat(self._fd).st_nlink == 1:  # else a commit must be completed
                        try_to_remove(self._os.unlink, self._lock_path)
            finally:  # also after an interrupt
                with contextlib.suppress(OSError):
                    fcntl.flock(self._fd, fcntl.LOCK_UN)  # also releases copies of the descriptor in other processes
                self._close()
        made, self._made = self._made, []
        for folder in reversed(made):
            try_to_remove(self._os.rmdir, folder)

    def __del__(self) -> None:
        # For a writer that was dropped without closing, maybe at interpreter exit, when contextlib is gone.
        try:  # noqa: SIM105
            self.release()
        except Exception:
            pass

    def _lock(self, how: int) -> bool:
        """Try once; return False if the locked file no longer has this name."""
        self._fd = self._open()
        try:
            fcntl.flock(self._fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(self._fd, _MOST_HOLDER_BYTES, 0).decode(errors="replace").strip() or None
            self._close()
            raise being_written(self.path, found=who) from None
        except BaseException:
            self._close()
            raise
        if self._is_ours():
            return True
        self._close()
        return False

    def _open(self) -> int:
        tries = 0
        while True:
            try:
                self._remove_second_name()
                return open_lock(self._lock_path, self._os)
            except FileExistsError as error:
                tries += 1
                if tries == _OPEN_TRIES:
                    hint = "Remove it, or choose another output"
                    raise ConfigError(str(error.strerror), path=self._lock_path, hint=hint) from None

    def _remove_second_name(self) -> None:
        """Undo `block_old_writers` of a killed writer."""
        second = _second_name(self.path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.lstat(self._lock_path)
            if status.st_nlink > 1 and os.path.samestat(status, os.lstat(second)):
                self._os.unlink(second)

    def _is_ours(self) -> bool:
        try:
            return os.path.samestat(self._os.fstat(self._fd), self._os.lstat(self._lock_path))
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                self._os.close(fd)

    def give_back(self) -> None:
        """Close the parent's lock in a forked child, without releasing it."""
        if self._fd >= 0:
            fd, self._fd, self._made = self._fd, -1, []
            os.close(fd)


class MemoryClaim(Claim):
    """The claim of one writer to an output of a `MemoryStore`.

    Args:
        taken: claimed outputs → number of shared claims; -1 for an exclusive one.
        path: the output.
        shared: with others that claim it shared.
    """

    __slots__ = ("_taken", "path")

    def __init__(self, taken: dict[str, int], path: str, *, shared: bool = False) -> None:
        self.path = path
        self._taken: dict[str, int] | None = None
        if path in taken and not (shared and taken[path] > 0):
            raise being_written(path)
        taken[path] = taken.get(path, 0) + 1 if shared else -1
        self._taken = taken

    def release(self) -> None:
        if self._taken is not None:
            taken, self._taken = self._taken, None
            taken[self.path] -= 1
            if taken[self.path] <= 0:
                del taken[self.path]

    def __del__(self) -> None:
        self.release()


def _after_fork() -> None:
    for claim in list(_held):
        with contextlib.suppress(OSError):
            claim.give_back()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)

"""Arrays that are computed once per host: built under a lock, published atomically, mapped by every process.

Files are plain `.npy` in `<cache folder>/derived`, named by a digest of their inputs. A record next to each file has
the key of the array and its digest. A file that was changed or added by others is logged and computed again. The cache
folder is `PENSTOCK_CACHE`, else `penstock` in the user's cache directory. Deleting it is always safe.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import stat
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import byte_view
from penstock._secrets import logger
from penstock._settings import setting
from penstock.codec.hashes import hasher, hex_digest
from penstock.errors import ConfigError, PenstockError
from penstock.store._files import named
from penstock.store.local import LocalStore
from penstock.store.lock import hold_lock
from penstock.store.mapped import map_open
from penstock.store.names import LOCK_FILE
from penstock.store.put import aborting

_nothing: ContextVar[bool] = ContextVar("keeps_nothing", default=False)


@contextlib.contextmanager
def keeping_nothing(really: bool = True) -> Generator[None]:
    """Keep arrays that are derived from local data in memory in the block; write nothing."""
    token = _nothing.set(really or _nothing.get())
    try:
        yield
    finally:
        _nothing.reset(token)


def keeps_nothing() -> bool:
    return _nothing.get()


DIGEST = "xxh3_128"
_MOST_RECORD_BYTES = 1 << 16
_MOST_MAPPED = 128
_TOUCH_S = 30.0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Published:
    """A file in the cache folder.

    Attributes:
        path: path of the file.
        data: uint8[size_bytes], mapped read-only.
        about: content of its record; empty without a trusted record.
        identity: current owner, inode, size and time of the last change.
        unchanged: `identity` is that of the publication, and others can't write to the file.
    """

    path: str
    data: NDArray[np.uint8]
    about: Mapping[str, Any]
    identity: tuple[int, ...]
    unchanged: bool

    def is_right(self, start_bytes: int = 0) -> bool:
        """Read all bytes from `start_bytes` on, and return whether they have the recorded digest."""
        return self.about.get("digest") == hex_digest(DIGEST, self.data[start_bytes:])


def open_published(path: str) -> Published | None:
    """Return the file at `path`, correct or not, or None if it can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        data = map_open(fd, status.st_size)
    finally:
        os.close(fd)
    about = _record(path) if _is_believed(path, status) else {}
    identity = _identity(status)
    unchanged = about.get("identity") == list(identity) and not status.st_mode & _OTHERS_WRITE
    return Published(path, data, about, identity, unchanged)


def write_record(path: str, about: Mapping[str, Any], digest: str) -> None:
    """Write the record of a file that was published or verified, and make the file read-only.

    `digest` is the digest of the bytes that `Published.is_right` checks.
    """
    _seal(path)
    with aborting(LocalStore().stage(_record_path(path), overwrite=True)) as staged:
        text = {**about, "digest": digest, "identity": list(_identity(os.stat(path, follow_symlinks=False)))}
        staged.write(json.dumps(text).encode())
        staged.sync()
        _seal(staged.hidden_path)
        staged.commit()


def require_publishable(path: str) -> None:
    """Raise `OSError` if a directory or a special file has the name of a file or its record."""
    for one in (path, _record_path(path)):
        with contextlib.suppress(FileNotFoundError):
            mode = os.lstat(one).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                raise OSError(errno.EEXIST, f"{one} is not a regular file", one)


def note_use(path: str) -> None:
    """Set the time of a file's record to now, if allowed. Touching the file itself would change its ctime."""
    with contextlib.suppress(OSError):
        os.utime(_record_path(path))


def remove_published(path: str) -> None:
    for one in (path, _record_path(path)):
        with contextlib.suppress(OSError):
            os.unlink(one)


def _record_path(path: str) -> str:
    return os.path.splitext(path)[0] + ".json"


def _record(path: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        fd = os.open(_record_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and not status.st_mode & _OTHERS_WRITE and _is_believed(path, status):
                found = json.loads(file.read(_MOST_RECORD_BYTES))
                return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    return {}


def _is_believed(path: str, status: os.stat_result) -> bool:
    folder = os.stat(os.path.dirname(path))
    return status.st_uid in (0, os.geteuid(), folder.st_uid) or not folder.st_mode & stat.S_IWOTH


def _seal(path: str) -> None:
    mode = stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode)
    if mode & 0o222:
        os.chmod(path, mode & ~0o222)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_uid, status.st_ino, status.st_size, status.st_ctime_ns


@dataclass(frozen=True, slots=True)
class _Mapped:
    copy: Published
    whole: bool
    noted: float


class InUse:
    """Most recently used copies that a process has mapped, and the files whose copies it has looked for on the disk.

    A mapping holds a file open, so their number is bounded.
    """

    __slots__ = ("_looked", "_mapped")

    def __init__(self) -> None:
        self._mapped: OrderedDict[str, _Mapped] = OrderedDict()
        self._looked: set[str] = set()

    def get(self, path: str, *, whole: bool) -> Published | None:
        """Return the mapped copy of a file; with `whole`, only if it was checked completely."""
        known = self._mapped.get(path)
        return known.copy if known is not None and (known.whole or not whole) else None

    def used(self, path: str) -> Published | None:
        """Return the mapped copy of a file, and record its use from time to time."""
        known = self._mapped.get(path)
        if known is None:
            return None
        if time.monotonic() - known.noted > _TOUCH_S:
            note_use(self.keep(path, known.copy, whole=known.whole).path)
        return known.copy

    def keep(self, path: str, copy: Published, *, whole: bool) -> Published:
        self._mapped[path] = _Mapped(copy, whole, time.monotonic())
        while len(self._mapped) > _MOST_MAPPED:
            dropped, _ = self._mapped.popitem(last=False)
            self._looked.discard(dropped)  # its copy may still be on the disk
        return copy

    def is_first_look(self, path: str) -> bool:
        """Return whether this is the first call for a file, because copies are looked for on the disk once."""
        is_first = path not in self._looked
        self._looked.add(path)
        return is_first

    def look_again(self) -> None:
        self._looked.clear()

    def forget(self, path: str) -> None:
        self._mapped.pop(path, None)
        self._looked.discard(path)

    def clear(self) -> None:
        self._mapped.clear()
        self._looked.clear()


_log = logger()
Put = Callable[[NDArray[Any]], None]
"""Function that appends any[k] to an array."""

_SMALL_SCRATCH_BYTES = 1 << 24
_KEY = re.compile(r"^[A-Za-z0-9_.-]{1,200}$")


_AT_HAND_ONLY: ContextVar[bool] = ContextVar("at_hand_only", default=False)


class NotAtHand(Exception):
    """A result isn't cached, and computing it takes as long as reading an index or the data."""


@contextlib.contextmanager
def at_hand_only() -> Generator[None]:
    """Raise `NotAtHand` in the block for anything that isn't computed yet; only in this thread."""
    before = _AT_HAND_ONLY.set(True)
    try:
        yield
    finally:
        _AT_HAND_ONLY.reset(before)


def require_long_work(what: str) -> None:
    """Raise `NotAtHand` in a block of `at_hand_only`."""
    if _AT_HAND_ONLY.get():
        raise NotAtHand(what)


def cache_folder() -> str:
    """Return the directory for data that can be computed or fetched again.

    Raises `ConfigError` if it is a URL.

    Set it with the environment variable `PENSTOCK_CACHE`.

    Examples:
        >>> import os
        >>> from penstock.store import cache_folder
        >>> os.path.isabs(cache_folder())
        True
    """
    usual = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "penstock")
    given = setting("PENSTOCK_CACHE") or usual
    if "://" in given:  # a local folder of that name would be created
        raise ConfigError(
            "the cache folder must be a local path", path=given, hint="Set PENSTOCK_CACHE to a local path"
        )
    return given


def upload_folder() -> str:
    folder = os.path.join(cache_folder(), "upload")
    os.makedirs(folder, exist_ok=True)
    return folder


class DerivedCache:
    """Cache of computed arrays, mapped from files; see `penstock._kinds.Derived`.

    Uses memory if the directory isn't writable.

    Args:
        folder: directory of the files; the cache folder by default.

    Examples:
        >>> import numpy as np
        >>> from penstock.store import DerivedCache
        >>> cache = DerivedCache("cache")
        >>> cache.array("squares-10", "int64", lambda: np.arange(10) ** 2)[:4].tolist()
        [0, 1, 4, 9]
    """

    __slots__ = ("_folder",)

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> str:
        """Directory of the files; the environment is read at each use."""
        return os.path.join(self._folder or cache_folder(), "derived")

    def array(self, key: str, dtype: str, build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return the 1-d array under `key`, mapped read-only.

        If it is missing, one process builds it, under a lock.
        """
        return self.fed(key, dtype, lambda put: put(build()))

    def scratch(self, count: int, dtype: str) -> NDArray[Any]:
        """Return a mutable array of `count` zeros, mapped from an unnamed file; raise `OSError` if the disk is full.

        Small arrays, and all arrays if the directory isn't writable, are in memory.
        """
        size_bytes = count * np.dtype(dtype).itemsize
        if size_bytes < _SMALL_SCRATCH_BYTES or keeps_nothing():
            return np.zeros(count, dtype)
        try:
            os.makedirs(self.folder, exist_ok=True)
            file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115  (the mapping keeps it)
        except OSError as error:
            _log.warning("%s: can't create a file here (%s); working in memory", self.folder, error)
            return np.zeros(count, dtype)
        with file:
            try:
                # Reserve the space now: a page that doesn't fit on the disk later would kill the process.
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            except OSError as error:
                raise named(error, self.folder, size_bytes) from None
            return np.memmap(file, dtype, "r+", shape=(count,)).view(np.ndarray)

    def fed(self, key: str, dtype: str, feed: Callable[[Put], None]) -> NDArray[Any]:
        """Return the array under `key`, built from pieces that `feed(put)` appends in order.

        If `feed` raises, nothing is kept. If the directory isn't writable, `feed` is called again.
        """
        if not _KEY.match(key):
            raise ConfigError(f"not a key for a derived file: {key!r}")
        path = os.path.join(self.folder, f"{key}.npy")
        found = _mapped(path, key, dtype)
        if found is not None:
            return found
        require_long_work(key)
        try:
            if not keeps_nothing():
                found = _found_or_made(path, key, dtype, feed)
        except PenstockError:
            raise
        except OSError as error:
            _log.warning("%s: can't cache a derived file here (%s); computing it in memory", self.folder, error)
        if found is None:
            pieces: list[NDArray[Any]] = []
            feed(lambda run: pieces.append(np.array(run, dtype)))
            found = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, dtype), *pieces])
            found.flags.writeable = False
        return found


def _found_or_made(path: str, key: str, dtype: str, feed: Callable[[Put], None]) -> NDArray[Any] | None:
    with hold_lock(path + LOCK_FILE):
        found = _mapped(path, key, dtype)
        if found is None:
            require_publishable(path)
            if os.path.lexists(path):
                _log.warning("%s: changed, damaged or not from Penstock; computing it again", path)
            _publish(path, key, dtype, feed)
            found = _mapped(path, key, dtype)
        return found


def _publish(path: str, key: str, dtype: str, feed: Callable[[Put], None]) -> None:
    """Write a derived file; if `feed` fails, remove the lock's file too."""
    staged = LocalStore().stage(path, overwrite=True)
    count = 0
    digest = hasher(DIGEST)

    def put(run: NDArray[Any]) -> None:
        nonlocal count
        values = np.ascontiguousarray(run, dtype)
        staged.write(values)
        digest.update(byte_view(values))
        count += len(run)

    try:
        staged.write(_header(dtype, 0))
        feed(put)
        staged.write_at(0, _header(dtype, count))
    except BaseException as error:
        staged.abort()
        if not isinstance(error, OSError):
            with contextlib.suppress(OSError):
                os.unlink(path + LOCK_FILE)
        raise
    staged.commit()
    write_record(path, _about(key, dtype, count), digest.hexdigest())


def _about(key: str, dtype: str, count: int) -> dict[str, Any]:
    return {"key": key, "dtype": np.dtype(dtype).str, "length": count}


def _header(dtype: str, count: int) -> bytes:
    """Return the header of a `.npy` file, of the same size for any count."""
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def _mapped(path: str, key: str, dtype: str) -> NDArray[Any] | None:
    """Return the array in a file, or None if it doesn't match its record, or has no trusted record."""
    found = open_published(path)
    count = found.about.get("length") if found is not None else None
    if found is None or not isinstance(count, int) or count < 0:
        return None
    about, header = _about(key, dtype, count), _header(dtype, count)
    size_bytes = len(header) + count * np.dtype(dtype).itemsize
    same = found.about.items() >= about.items() and len(found.data) == size_bytes
    if not same or found.data[: len(header)].tobytes() != header:
        return None
    if not found.unchanged:
        if not found.is_right(len(header)):
            return None
        with contextlib.suppress(OSError):  # it may be another user's
            write_record(path, about, str(found.about["digest"]))
    return found.data[len(header) :].view(dtype)

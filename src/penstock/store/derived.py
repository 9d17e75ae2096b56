"""Arrays that are computed once a host: built under a lock, published whole, mapped by every process.

Files are plain `.npy` in `<cache folder>/derived`, named by the digest of what they depend on. A record beside each
says which array it holds, and its digest: a file that others changed or put there is logged and computed again; see
`penstock.store._published`. The cache folder is `PENSTOCK_CACHE`, else `penstock` in the user's cache directory.
Deleting it is always safe.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._buffers import byte_view
from penstock._secrets import logger
from penstock._settings import setting
from penstock.codec.hashes import hasher
from penstock.errors import ConfigError, PenstockError
from penstock.store._files import named
from penstock.store._keeping import keeps_nothing
from penstock.store._published import DIGEST, open_published, require_publishable, write_record
from penstock.store.local import LocalStore
from penstock.store.lock import hold_lock

_log = logger()
Put = Callable[[NDArray[Any]], None]
"""Takes any[k]: the next run of an array."""

_SMALL_SCRATCH_BYTES = 1 << 24
_KEY = re.compile(r"^[A-Za-z0-9_.-]{1,200}$")


_AT_HAND_ONLY: ContextVar[bool] = ContextVar("at_hand_only", default=False)


class NotAtHand(Exception):
    """What was asked for would have to be computed first, which takes as long as reading an index, or the data."""


@contextlib.contextmanager
def at_hand_only() -> Generator[None]:
    """Inside, what is not computed yet is not computed: whoever asks for it gets `NotAtHand`; for this thread alone."""
    before = _AT_HAND_ONLY.set(True)
    try:
        yield
    finally:
        _AT_HAND_ONLY.reset(before)


def require_long_work(what: str) -> None:
    """That what takes long may be done here; raises `NotAtHand`."""
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
    if "://" in given:  # a folder of that name would be made here
        raise ConfigError(
            "the cache folder must be a local path", path=given, hint="Set PENSTOCK_CACHE to a local path"
        )
    return given


def upload_folder() -> str:
    """The folder for what is about to be sent to a store, made where it is missing."""
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
        """Return a mutable array of `count` zeros, mapped from an unnamed file.

        Small arrays, and all arrays if the directory isn't writable, are in memory.

        Raises:
            OSError: the disk is full.
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
                # Reserved now: a page for which there is no room later would end the process.
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            except OSError as error:
                raise named(error, self.folder, size_bytes) from None
            return np.memmap(file, dtype, "r+", shape=(count,)).view(np.ndarray)

    def fed(self, key: str, dtype: str, feed: Callable[[Put], None]) -> NDArray[Any]:
        """Return the array under `key`, built from pieces: `feed(put)` puts one after another.

        Errors of `feed` are raised, and nothing is kept. If the directory isn't writable, `feed` is called again.
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
    """The array in a file, which is made under a lock where it is missing."""
    with hold_lock(path + ".lock"):
        found = _mapped(path, key, dtype)
        if found is None:
            require_publishable(path)
            if os.path.lexists(path):
                _log.warning("%s: changed, damaged or not from Penstock; computing it again", path)
            _publish(path, key, dtype, feed)
            found = _mapped(path, key, dtype)
        return found


def _publish(path: str, key: str, dtype: str, feed: Callable[[Put], None]) -> None:
    """Write a derived file; where `feed` fails, the lock's file goes too, so that nothing is left behind."""
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
                os.unlink(path + ".lock")
        raise
    staged.commit()
    write_record(path, _about(key, dtype, count), digest.hexdigest())


def _about(key: str, dtype: str, count: int) -> dict[str, Any]:
    return {"key": key, "dtype": np.dtype(dtype).str, "length": count}


def _header(dtype: str, count: int) -> bytes:
    """The first bytes of a `.npy` file, of one size for any count."""
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def _mapped(path: str, key: str, dtype: str) -> NDArray[Any] | None:
    """The array in a file; None where it is not what its record says, or has none that is believed."""
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

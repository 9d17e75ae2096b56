"""What is computed once a host: built under a lock, published whole, mapped by everyone.

Files are plain `.npy` in `<cache folder>/derived`, named by the digest of what they depend on. The cache folder is
`PENSTOCK_CACHE`, else `penstock` in the user's cache directory. Deleting it is always safe.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._secrets import logger
from penstock.errors import ConfigError
from penstock.store.local import LocalStore
from penstock.store.lock import hold_lock

_log = logger()
Put = Callable[[NDArray[Any]], None]
"""Takes any[k]: the next run of an array."""

_KEY = re.compile(r"^[A-Za-z0-9_.-]{1,200}$")


def cache_folder() -> str:
    """The folder for everything that can be computed or fetched again."""
    given = os.environ.get("PENSTOCK_CACHE")
    if given:
        return given
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "penstock")


class DerivedCache:
    """Mapped arrays by key; see `penstock.abc.Derived`. Falls back to memory where the folder can't be written."""

    __slots__ = ("_folder",)

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder

    @property
    def folder(self) -> str:
        """Folder of the files; the environment is read at each use, so that tests and workers may set it late."""
        return os.path.join(self._folder or cache_folder(), "derived")

    def array(self, key: str, dtype: str, build: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The 1-d array under `key`, mapped read-only; built under a lock by one process where it is missing."""
        return self.fed(key, dtype, lambda put: put(build()))

    def fed(self, key: str, dtype: str, feed: Callable[[Put], None]) -> NDArray[Any]:
        """The same for an array that comes in runs, which are never all in memory: `feed(put)` puts one after another.

        What `feed` raises is raised, and nothing is kept; it is called again where the folder can't be written.
        """
        if not _KEY.match(key):
            raise ConfigError(f"not a key for a derived file: {key!r}")
        path = os.path.join(self.folder, f"{key}.npy")
        found = _mapped(path, dtype)
        if found is not None:
            return found
        try:
            with hold_lock(path + ".lock"):
                found = _mapped(path, dtype)
                if found is None:
                    _publish(path, dtype, feed)
                    found = _mapped(path, dtype)
        except OSError as error:
            _log.warning("%s: cannot keep a derived file here (%s); computing it in memory", self.folder, error)
        if found is None:
            pieces: list[NDArray[Any]] = []
            feed(lambda run: pieces.append(np.array(run, dtype)))
            found = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, dtype), *pieces])
            found.flags.writeable = False
        return found


def _publish(path: str, dtype: str, feed: Callable[[Put], None]) -> None:
    """Write a derived file; where `feed` fails, the lock's file goes too, so that nothing is left behind."""
    staged = LocalStore().stage(path, overwrite=True)
    count = 0

    def put(run: NDArray[Any]) -> None:
        nonlocal count
        staged.write(np.ascontiguousarray(run, dtype))
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


def _header(dtype: str, count: int) -> bytes:
    """The first bytes of a `.npy` file, of one size for any count."""
    header = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def _mapped(path: str, dtype: str) -> NDArray[Any] | None:
    with contextlib.suppress(OSError, ValueError, EOFError):
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if found.ndim == 1 and found.dtype == np.dtype(dtype):
            return found.view(np.ndarray)
    return None

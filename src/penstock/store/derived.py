"""What is computed once a host: built under a lock, published whole, mapped by everyone.

Files are plain `.npy` in `<cache folder>/derived`, named by the digest of what they depend on. The cache folder is
`PENSTOCK_CACHE`, else `penstock` in the user's cache directory. Deleting it is always safe.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.store.local import LocalStore, hold_lock

_log = logging.getLogger("penstock")
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
                    _publish(path, np.ascontiguousarray(_built(build, path + ".lock"), dtype))
                    found = _mapped(path, dtype)
        except OSError as error:
            _log.warning("%s: cannot keep a derived file here (%s); computing it in memory", self.folder, error)
        if found is None:
            found = np.ascontiguousarray(build(), dtype)
            found.flags.writeable = False
        return found


def _built(build: Callable[[], NDArray[Any]], lock_path: str) -> NDArray[Any]:
    """What `build` gives; where it fails, the lock's file goes too, so that nothing is left behind."""
    try:
        return build()
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(lock_path)
        raise


def _publish(path: str, array: NDArray[Any]) -> None:
    store = LocalStore()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    staged = store.stage(path, overwrite=True)
    try:
        staged.write(header.getvalue())
        staged.write(array)
    except BaseException:
        staged.abort()
        raise
    staged.commit()


def _mapped(path: str, dtype: str) -> NDArray[Any] | None:
    with contextlib.suppress(OSError, ValueError, EOFError):
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if found.ndim == 1 and found.dtype == np.dtype(dtype):
            return found.view(np.ndarray)
    return None

"""Local files that must stay as they were when a dataset was opened, because they are opened or read again later."""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock.errors import Corrupt, Truncated
from penstock.store._files import status_of
from penstock.store.base import Store, changed_while_read


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A local file as it was when a dataset was opened, so that its reader notices that the dataset was replaced since.

    The inode isn't compared, because some file systems in user space give a file another one each time.

    Attributes:
        path: of the file.
        size_bytes, mtime_ns: its size and time of change then.
    """

    path: str
    size_bytes: int
    mtime_ns: int

    def require_same(self) -> None:
        """Raise an error if the file is another one now. A file that is gone is left to whoever reads the others.

        Raises:
            Truncated: it is shorter than it was.
            Corrupt: it changed otherwise.
        """
        status = status_of(os.stat, self.path)
        if status is not None and (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            kind = Truncated if status.st_size < self.size_bytes else Corrupt
            raise changed_while_read(self.path, _shown(status.st_size, status.st_mtime_ns), str(self), kind)

    def require_not_later(self, path: str) -> None:
        """Raise `Corrupt` if this file is another one now, and the file at `path` was written after it was opened.

        For an index that may be made again over the same files.
        """
        index, status = status_of(os.stat, self.path), status_of(os.stat, path)
        if index is None or status is None or (index.st_size, index.st_mtime_ns) == (self.size_bytes, self.mtime_ns):
            return
        if status.st_mtime_ns > self.mtime_ns:
            found = f"written {(status.st_mtime_ns - self.mtime_ns) / 10**9:.3f} s after it"
            raise changed_while_read(path, found, "a file that is older than the opened index")

    def __str__(self) -> str:
        return _shown(self.size_bytes, self.mtime_ns)


def opened_file(store: Store, path: str) -> OpenedFile | None:
    """Return a file as it is now; None for a remote one, whose store compares versions, or if there is none."""
    if not store.is_local:
        return None
    path = store.current_path(path)
    status = status_of(os.stat, path)
    return None if status is None else OpenedFile(path, status.st_size, status.st_mtime_ns)


def _shown(size_bytes: int, mtime_ns: int) -> str:
    return f"{size_bytes} bytes, last changed {mtime_ns / 10**9:.3f} s after 1970"

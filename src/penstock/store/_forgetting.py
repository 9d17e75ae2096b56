"""Staged files of a store that remembers its files."""

from __future__ import annotations

from collections.abc import Callable

from penstock.abc import Staged
from penstock.types import Buffer


class Forgetting:
    """A staged file, after whose commit nothing old is known of it."""

    __slots__ = ("_forget", "path", "staged")

    def __init__(self, forget: Callable[[str], object], staged: Staged) -> None:
        self._forget = forget
        self.staged = staged
        self.path = staged.path

    def write(self, data: Buffer) -> int:
        """Append; returns bytes written."""
        return self.staged.write(data)

    def write_at(self, offset_bytes: int, data: Buffer) -> None:
        """Overwrite bytes already written."""
        self.staged.write_at(offset_bytes, data)

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Bytes already written."""
        return self.staged.read_at(offset_bytes, length_bytes)

    def append_file(self, path: str, start_bytes: int = 0, length_bytes: int | None = None) -> int:
        """Append a range of a local file."""
        return self.staged.append_file(path, start_bytes, length_bytes)

    def tell(self) -> int:
        """Return the number of bytes appended so far."""
        return self.staged.tell()

    def sync(self) -> None:
        """Make the bytes durable, but not yet visible."""
        self.staged.sync()

    def commit(self) -> None:
        """`sync`, then make visible."""
        self.staged.commit()
        self._forget(self.path)

    def abort(self) -> None:
        """Drop it."""
        self.staged.abort()

"""`EPath`: a path of this machine, or a URL of anywhere that `penstock.open` reads."""

from __future__ import annotations

import io
import os
import posixpath
from pathlib import Path
from typing import IO, Any

from penstock.errors import ConfigError, NotFound
from penstock.store import resolve

__all__ = ["EPath"]


class EPath:
    """A path or URL, as text with a few methods. Equal to every path that reads the same.

    Args:
        path: text, a path, or another one.
    """

    __slots__ = ("_text",)

    def __init__(self, path: Any) -> None:
        text = str(path) if not isinstance(path, os.PathLike) else os.fspath(path)  # pyright: ignore
        self._text = str(text) if "://" in str(text) else os.path.abspath(str(text))

    @property
    def name(self) -> str:
        """The last component."""
        return posixpath.basename(self._text.rstrip("/"))

    @property
    def suffix(self) -> str:
        """The end of the name, with its dot."""
        return posixpath.splitext(self.name)[1]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return posixpath.splitext(self.name)[0]

    @property
    def parent(self) -> EPath:
        """The folder that it is in."""
        return EPath(posixpath.dirname(self._text.rstrip("/")))

    @property
    def url(self) -> str:
        """As text."""
        return self._text

    @property
    def display_name(self) -> str:
        """As text."""
        return self._text

    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return "://" not in self._text

    def __truediv__(self, other: Any) -> EPath:
        return EPath(posixpath.join(self._text, str(other)))

    def open(self, mode: str = "r") -> IO[Any]:
        """The file, for reading; of this machine for writing, too."""
        if self.is_local():
            return Path(self._text).open(mode)
        if set(mode) - set("rbt"):
            raise ConfigError("a remote path is opened for reading only", path=self._text, found=mode)
        data = self.read_bytes()
        return io.BytesIO(data) if "b" in mode else io.StringIO(data.decode())

    def read_bytes(self) -> bytes:
        """The file's bytes."""
        store, path = resolve(self._text)
        return bytes(store.get(path))

    def read_text(self) -> str:
        """The file's text."""
        return self.read_bytes().decode()

    def is_file(self) -> bool:
        """Whether it is a file."""
        if self.is_local():
            return Path(self._text).is_file()
        store, path = resolve(self._text)
        try:
            store.size(path)
        except NotFound:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        if self.is_local():
            return Path(self._text).is_dir()
        store, path = resolve(self._text)
        return next(iter(store.list(path.rstrip("/") + "/")), None) is not None

    def exists(self) -> bool:
        """Whether there is something."""
        return self.is_file() or self.is_dir()

    def __fspath__(self) -> str:
        return self._text

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"EPath({self._text!r})"

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, (str, os.PathLike)) or type(other).__name__ == "EPath"
        return same and str(other) == self._text

    def __hash__(self) -> int:
        return hash(self._text)

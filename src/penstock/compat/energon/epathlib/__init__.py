"""`EPath`: a path of this machine, or a URL of anywhere that `penstock.open` reads."""

from __future__ import annotations

import io
import os
import posixpath
from typing import IO, Any

from penstock.errors import ConfigError
from penstock.store.place import Place, place_of

__all__ = ["EPath"]


class EPath:
    """A path or URL. Equal to every path that reads the same.

    Args:
        path: text, a path, or another one.
    """

    __slots__ = ("_place",)

    def __init__(self, path: Any) -> None:
        self._place: Place = place_of(str(path))

    @property
    def url(self) -> str:
        """As text; absolute where it is local."""
        return self._place.absolute

    @property
    def name(self) -> str:
        """The last component."""
        return self._place.name

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
        return EPath(self._place.folder().path)

    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return self._place.is_local

    def __truediv__(self, other: Any) -> EPath:
        return EPath(self._place.child(str(other)).path)

    def open(self, mode: str = "r") -> IO[Any]:
        """The file, for reading."""
        if set(mode) - set("rbt"):
            hint = "Write local files by Python's own open"
            raise ConfigError("a path is opened for reading only", path=self.url, found=mode, hint=hint)
        data = self.read_bytes()
        return io.BytesIO(data) if "b" in mode else io.StringIO(data.decode())

    def read_bytes(self) -> bytes:
        """The file's bytes."""
        return self._place.store.get(self._place.path)

    def read_text(self) -> str:
        """The file's text."""
        return self.read_bytes().decode()

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._place.is_file()

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self._place.is_folder()

    def exists(self) -> bool:
        """Whether there is something."""
        return self._place.exists()

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"EPath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, (str, os.PathLike)) or type(other).__name__ == "EPath"
        return same and str(other) == str(self)

    def __hash__(self) -> int:
        return hash(self.url)

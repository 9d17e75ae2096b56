"""`EPath`: a path of this machine, or a URL of anywhere that `penstock.open` reads."""

from __future__ import annotations

import io
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from penstock.errors import ConfigError
from penstock.store.place import Place, fixed_place, is_url
from penstock.store.put import put

__all__ = ["EPath"]

_WORDS = re.compile(r"\*\*/|\*\*|\[[^\]]+\]|.", re.DOTALL)
_AS_REGEX: Mapping[str, str] = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
"""Wildcards of a pattern."""


class EPath:
    """A path or URL. Equal to every path that reads the same.

    Args:
        path: text, a path, or another one.
    """

    __slots__ = ("_place",)

    def __init__(self, path: Any) -> None:
        self._place: Place = fixed_place(str(path))

    @property
    def url(self) -> str:
        """Path as text; absolute if it is local."""
        return self._place.absolute

    @property
    def name(self) -> str:
        """Last component."""
        return self._place.name

    @property
    def suffix(self) -> str:
        """Suffix of the name, with its dot."""
        return posixpath.splitext(self.name)[1]

    @property
    def stem(self) -> str:
        """Name without its suffix."""
        return posixpath.splitext(self.name)[0]

    @property
    def parent(self) -> EPath:
        """Parent folder."""
        return EPath(self._place.folder().path)

    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return self._place.is_local

    @property
    def display_name(self) -> str:
        """Name for display."""
        return self.name

    def local_path(self) -> Path:
        """Path as a `pathlib.Path`; raises `ConfigError`, a `ValueError`, if it is not on this machine."""
        if not self.is_local():
            raise ConfigError("the path isn't local", path=self.url)
        return Path(self.url)

    def relative_to(self, other: EPath) -> str:
        """Return the path relative to a folder above it; raise `ConfigError`, a `ValueError`, for another folder."""
        folder = self.url if other == self else f"{other.url.rstrip('/')}/"
        if not self.url.startswith(folder):
            raise ConfigError("the path isn't in the folder", path=self.url, expected=folder)
        return self.url[len(folder) :] or "."

    def __reduce__(self) -> tuple[object, ...]:
        return (EPath, (self.url,))

    def __truediv__(self, other: Any) -> EPath:
        name = str(other)
        return EPath(name if is_url(name) or name.startswith("/") else self._place.child(name).path)

    def __lt__(self, other: EPath) -> bool:
        return self.url.split("/") < other.url.split("/")

    def open(self, mode: str = "r") -> IO[Any]:
        """Open the file for reading."""
        if set(mode) - set("rbt"):
            hint = "Use write_text or write_bytes to write"
            raise ConfigError("paths can only be opened for reading", path=self.url, found=mode, hint=hint)
        data = self.read_bytes()
        return io.BytesIO(data) if "b" in mode else io.StringIO(data.decode())

    def read_bytes(self) -> bytes:
        """Return the content of the file as bytes."""
        return self._place.store.get(self._place.path)

    def read_text(self) -> str:
        """Return the content of the file as text."""
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes) -> None:
        """Make these bytes the file's, at once."""
        put(self._place.store, self._place.path, data)

    def write_text(self, text: str) -> None:
        """Make this text the file's, at once."""
        self.write_bytes(text.encode())

    def walk(self) -> Iterator[EPath]:
        """Yield all files in the folder, at any depth."""
        return self.glob("**")

    def glob(self, pattern: str) -> Iterator[EPath]:
        """Yield the files in the folder that match a pattern, sorted by name; `**` matches any number of folders."""
        fits = re.compile(
            "".join(_AS_REGEX.get(one) or (one if one[1:] else re.escape(one)) for one in _WORDS.findall(pattern))
        )
        start = len(self._place.path.rstrip("/")) + 1
        names = [path[start:] for path in self._place.store.list(self._place.path)]
        return (self / name for name in sorted(names) if fits.fullmatch(name))

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self._place.store.size(self._place.path)

    def with_suffix(self, suffix: str) -> EPath:
        """Its neighbour of the same name with another suffix."""
        return self.parent / (self.stem + suffix)

    def is_file(self) -> bool:
        """Return whether it is a file."""
        return self._place.is_file()

    def is_dir(self) -> bool:
        """Return whether it is a folder."""
        return self._place.is_folder()

    def exists(self) -> bool:
        """Return whether it exists."""
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

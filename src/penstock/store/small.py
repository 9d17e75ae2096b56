"""Small local files: each is read whole and once, and what stands beside many of them is told by their folder's list.

What is asked of such a file after that costs no system call. It is opened as any other: a pipe, a device and a link out
of the dataset are refused.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.store._files import STAGED_SUFFIX, hidden_stem, is_there
from penstock.store.base import Store
from penstock.store.memory import MemoryStore

SMALL_BYTES = 1 << 20
"""The most that such a file holds."""

HIDDEN = (STAGED_SUFFIX, ".unfinished")
"""What the names of hidden files end in."""

_WORTH_A_LISTING = 16
_MOST_FOLDERS = 1 << 10
_HIDDEN_END = re.compile(r"\.(?:unfinished|(?:lock|writing)\.staged|[0-9a-f]{8}\.staged)$")


def read_small(store: Store, *paths: str) -> Store:
    """A store of these files alone, as they are now, in memory.

    Or `store` itself, where one of them is not small or not on this machine, or can't be read: it says why.
    """
    if not store.is_local:
        return store
    files: dict[str, bytes] = {}
    with contextlib.suppress(PenstockError, OSError):
        for path in paths:
            files[path] = store.get(path, 0, SMALL_BYTES + 1)
            if len(files[path]) > SMALL_BYTES:
                return store
        return MemoryStore(files)
    return store


class NamesBeside:
    """Which local names stand beside files. The folder of many is listed once; of a few, each name is asked for.

    Args:
        paths: the files.
        suffixes: what the names end in that will be asked for.
    """

    __slots__ = ("_folders", "_hidden", "_lists", "_suffixes")

    def __init__(self, paths: Sequence[str], suffixes: tuple[str, ...]) -> None:
        self._lists = len(paths) >= _WORTH_A_LISTING
        self._suffixes = suffixes
        self._folders: dict[str, frozenset[str]] = {}
        self._hidden: dict[str, frozenset[str]] = {}

    def has(self, path: str) -> bool:
        """Whether something has this name, or had it when its folder was listed."""
        if not self._lists:
            return is_there(path)
        folder, name = os.path.split(path)
        return name in self.names_in(folder)

    def is_listed(self) -> bool:
        """Whether folders are listed, and `has_unfinished` is known."""
        return self._lists

    def has_unfinished(self, path: str) -> bool:
        """Whether hidden files of a writer of `path`, alive or killed, stand there; `HIDDEN` are among the suffixes."""
        folder, name = os.path.split(path)
        return f".{hidden_stem(name)}" in self._hidden_in(folder)

    def _hidden_in(self, folder: str) -> frozenset[str]:
        """What the hidden names in a folder begin with."""
        found = self._hidden.get(folder)
        if found is None:
            ends = ((name, _HIDDEN_END.search(name)) for name in self.names_in(folder))
            found = frozenset(name[: end.start()] for name, end in ends if end is not None)
            self._hidden[folder] = found
        return found

    def names_in(self, folder: str) -> frozenset[str]:
        """The names in a folder that end in one of the suffixes."""
        found = self._folders.get(folder)
        if found is None:
            found = frozenset(name for name in os.listdir(folder or ".") if name.endswith(self._suffixes))
            if len(self._folders) >= _MOST_FOLDERS:
                self._folders.clear()
                self._hidden.clear()
            self._folders[folder] = found
        return found

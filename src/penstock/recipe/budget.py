"""Limits one recipe and all the files that it names: nodes, depth and bytes, counted while they are read.

A few short files that each name the next one twice stand for millions of datasets: so nodes are counted as they stand
in the tree, and each file is read once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock._limits import MOST_FILES_DEEP, MOST_NESTING, MOST_NODES
from penstock.codec import energon_yaml
from penstock.errors import FormatError, NotFound, TooLarge
from penstock.store import limited
from penstock.store.place import place_of


class Budget:
    """What one recipe may still hold. For one thread, while it is read and opened."""

    __slots__ = ("_documents", "_nodes")

    def __init__(self) -> None:
        self._documents: dict[str, Any] = {}
        self._nodes = MOST_NODES

    def count_node(self, path: str | None) -> None:
        """Count a dataset, a join or a mix; raises `TooLarge`."""
        self._nodes -= 1
        if self._nodes < 0:
            raise TooLarge("the recipe has too many nodes", path=path, expected=f"at most {MOST_NODES:,}")

    def read(self, path: str, what: str, files: tuple[str, ...]) -> Any:
        """The plain data of a YAML or JSON file, which are not to be changed.

        Args:
            path: file or URL.
            what: it is, for errors.
            files: that lead to it.

        Raises:
            NotFound: no such file.
            FormatError: no YAML or JSON, or nested too deep.
            TooLarge: a file of more than `MOST_DOCUMENT_BYTES`, or more than `MOST_FILES_DEEP` files that lead to it.
        """
        if len(files) >= MOST_FILES_DEEP:
            found = f"{files[0]} → … → {path}"
            raise TooLarge(f"too many nested {what} files", path=files[0], found=found, expected=MOST_FILES_DEEP)
        if path not in self._documents:
            self._documents[path] = read_document(path, what)
        return self._documents[path]


def read_document(path: str, what: str) -> Any:
    """See `Budget.read`."""
    place = place_of(path)
    if not place.exists() or place.is_folder():
        raise NotFound(f"no such {what}", path=path, hint="Check the path")
    data = limited.read_document(place.store, place.path)
    if not path.endswith(".json"):
        return energon_yaml.load(data, path)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError("not valid JSON", path=path, found=str(error)) from None
    check_nesting(value, path)
    return value


def check_nesting(value: Any, path: str | None) -> None:
    """Refuse lists and maps inside of one another beyond `MOST_NESTING`; raises `FormatError`."""
    level: list[Any] = [[value]]
    for _ in range(MOST_NESTING + 2):
        level = [one for inner in level for one in _inside(inner)]
        if not level:
            return
    raise FormatError("nested too deeply", path=path, expected=f"at most {MOST_NESTING} levels")


def _inside(value: Any) -> list[Any]:
    """The lists and maps in a list or map."""
    inner: Any = value.values() if isinstance(value, Mapping) else value
    return [one for one in inner if isinstance(one, (Mapping, list, tuple))]

"""Context in which a recipe node is built: its file and location there, the code it may name, and limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock._kinds import is_finite, is_stream
from penstock._limits import MOST_FILES_DEEP, MOST_NESTING, MOST_NODES
from penstock.codec import energon_yaml
from penstock.errors import ConfigError, FormatError, NotFound, TooLarge, UnsafeData
from penstock.formats import open_source
from penstock.recipe.code import Code
from penstock.recipe.places import beside
from penstock.store import put
from penstock.store.place import place_of


@dataclass(frozen=True, slots=True)
class Context:
    """Context of a node.

    Attributes:
        code: the functions and types that may be named.
        file: file of the recipe; None for a dict, whose paths are relative to the working directory.
        at: the node's location in the file, for messages.
        make: builds a node.
        open_file: opens a metadataset or a recipe in a separate file, at this depth of nodes.
        budget: limits of the whole recipe.
        deep: number of nodes above this one, including those in outer files.
        global_batch: samples per step; None if it isn't in the recipe.
    """

    code: Code
    file: str | None
    at: str
    make: Callable[[Context, Any], Any]
    open_file: Callable[[str, Mapping[str, Any], int], Any]
    budget: Budget
    deep: int = 0
    global_batch: int | None = None

    @property
    def path(self) -> str | None:
        return self.file

    def beside(self, path: str) -> str:
        """Return the path or URL that `path` means."""
        return path if self.file is None else beside(self.file, path)

    def open_source(self, path: str | Sequence[str], **options: Any) -> Any:
        return open_source(path, **options)

    def child(self, node: Any, name: str) -> Any:
        return self.make(replace(self, at=f"{self.at}.{name}" if self.at else name, deep=self.deep + 1), node)

    def source(self, node: Mapping[str, Any]) -> Any:
        return self.source_of(node["source"], "source")

    def source_of(self, node: Any, name: str) -> Any:
        """Return the source of a node that is named `name`, such as in a list."""
        made = self.child(node, name)
        if not is_finite(made):
            raise ConfigError(
                f"{self.at or 'the recipe'} needs a finite source",
                path=self.file,
                found=f"a {type(made).__name__} as {name}",
            )
        return made

    def stream(self, node: Mapping[str, Any]) -> Any:
        made = self.child(node["stream"], "stream")
        if not is_stream(made):
            raise ConfigError(
                f"{self.at or 'the recipe'} needs an endless stream",
                path=self.file,
                found=f"a {type(made).__name__} as stream",
                hint="Wrap it in shuffle or sequential",
            )
        return made

    def either(self, node: Mapping[str, Any]) -> Any:
        return self.source(node) if "source" in node else self.stream(node)

    def untrusted(self, what: str, found: str) -> UnsafeData:
        """Return the error for code that may not run."""
        return UnsafeData(
            f"the recipe needs {what}", path=self.file, found=found, hint="Pass trust=True if you trust it"
        )

    def unknown_array(self, what: str, label: str, values: str) -> ConfigError:
        """Return the error for an array that is only a digest in the recipe, and wasn't passed."""
        return ConfigError(
            f"{self.at or 'the recipe'} needs its {what}: the recipe only stores a digest of this array",
            path=self.file,
            found=f"{label!r} is not in functions=",
            expected=f"int64: {values}",
            hint=f"Pass functions={{{label!r}: {what}}} to open_recipe",
        )


class Budget:
    """Remaining limits of one recipe. For one thread, while it is read and opened."""

    __slots__ = ("_documents", "_nodes")

    def __init__(self) -> None:
        self._documents: dict[str, Any] = {}
        self._nodes = MOST_NODES

    def count_node(self, path: str | None) -> None:
        """Count a dataset, a join or a mix; raise `TooLarge` over the limit."""
        self._nodes -= 1
        if self._nodes < 0:
            raise TooLarge("the recipe has too many nodes", path=path, expected=f"at most {MOST_NODES:,}")

    def read(self, path: str, what: str, files: tuple[str, ...]) -> Any:
        """Return the plain data of a YAML or JSON file, which must not be modified.

        Raises:
            NotFound: the file doesn't exist.
            FormatError: the file isn't YAML or JSON, or is nested too deep.
            TooLarge: the file has more than `MOST_DOCUMENT_BYTES`, or more than `MOST_FILES_DEEP` files lead to it.
        """
        if len(files) >= MOST_FILES_DEEP:
            found = f"{files[0]} → … → {path}"
            raise TooLarge(f"too many nested {what} files", path=files[0], found=found, expected=MOST_FILES_DEEP)
        if path not in self._documents:
            self._documents[path] = read_document(path, what)
        return self._documents[path]


def read_document(path: str, what: str) -> Any:
    place = place_of(path)
    if not place.exists() or place.is_folder():
        raise NotFound(f"no such {what}", path=path, hint="Check the path")
    data = put.read_document(place.store, place.path)
    if not path.endswith(".json"):
        return energon_yaml.load(data, path)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError("not valid JSON", path=path, found=str(error)) from None
    check_nesting(value, path)
    return value


def check_nesting(value: Any, path: str | None) -> None:
    """Raise `FormatError` for lists and maps nested deeper than `MOST_NESTING`."""
    level: list[Any] = [[value]]
    for _ in range(MOST_NESTING + 2):
        level = [one for inner in level for one in _inside(inner)]
        if not level:
            return
    raise FormatError("nested too deeply", path=path, expected=f"at most {MOST_NESTING} levels")


def _inside(value: Any) -> list[Any]:
    """Return the lists and maps in a list or map."""
    inner: Any = value.values() if isinstance(value, Mapping) else value
    return [one for one in inner if isinstance(one, (Mapping, list, tuple))]

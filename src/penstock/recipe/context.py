"""The context in which a node of a recipe is built: its file, its place in it, and the code that it may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock._kinds import is_finite, is_stream
from penstock.errors import ConfigError, UnsafeData
from penstock.formats import open_source
from penstock.recipe.budget import Budget
from penstock.recipe.code import Code
from penstock.recipe.places import beside


@dataclass(frozen=True, slots=True)
class Context:
    """Where a node is made.

    Attributes:
        code: functions and types that may be named.
        file: of the recipe; None for a dict, whose paths are those of the process.
        at: the node's place in it, for messages.
        make: makes a node.
        open_file: opens a metadataset or a recipe in a file of its own, at a depth of so many nodes.
        budget: limits of the whole recipe.
        deep: nodes above this one, those of the files that name this one counted.
        global_batch: samples of a step; None where the recipe does not say.
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
        """The file, for messages."""
        return self.file

    def beside(self, path: str) -> str:
        """The path or URL that `path` means."""
        return path if self.file is None else beside(self.file, path)

    def open_source(self, path: str | Sequence[str], **options: Any) -> Any:
        """A dataset in any format."""
        return open_source(path, **options)

    def child(self, node: Any, name: str) -> Any:
        """The source or stream of a node below this one."""
        return self.make(replace(self, at=f"{self.at}.{name}" if self.at else name, deep=self.deep + 1), node)

    def source(self, node: Mapping[str, Any]) -> Any:
        """The source below a node."""
        return self.source_of(node["source"], "source")

    def source_of(self, node: Any, name: str) -> Any:
        """The same of one that stands under `name`, such as in a list."""
        made = self.child(node, name)
        if not is_finite(made):
            raise ConfigError(
                f"{self.at or 'the recipe'} needs a finite source",
                path=self.file,
                found=f"a {type(made).__name__} as {name}",
            )
        return made

    def stream(self, node: Mapping[str, Any]) -> Any:
        """The stream below a node."""
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
        """The source or stream below a node."""
        return self.source(node) if "source" in node else self.stream(node)

    def untrusted(self, what: str, found: str) -> UnsafeData:
        """The error for code that may not run."""
        return UnsafeData(
            f"the recipe needs {what}", path=self.file, found=found, hint="Pass trust=True if you trust it"
        )

    def unknown_array(self, what: str, label: str, values: str) -> ConfigError:
        """The error for an array that the recipe knows by its digest, and that was not given."""
        return ConfigError(
            f"{self.at or 'the recipe'} needs its {what}: the recipe only stores a digest of this array",
            path=self.file,
            found=f"{label!r} is not in functions=",
            expected=f"int64: {values}",
            hint=f"Pass functions={{{label!r}: {what}}} to open_recipe",
        )

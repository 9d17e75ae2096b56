"""From which row of which input the documents of a run were made, as far as row maps beside the data tell.

A row is written `NAME[INDEX]`: the input as the side file names it, and the row in it from 0: in JSONL the line,
as `penstock find` says, unless an index leaves lines out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock._kinds import is_token_source
from penstock._numbers import count_in
from penstock._resolved import capability
from penstock.errors import ConfigError
from penstock.mix import ConcatTokens
from penstock.node.walk import descend
from penstock.store.place import place_of
from penstock.store.row_map import RowMap, read_row_map
from penstock.types import Manifest

_NAMED = re.compile(r"(.+)\[(\d{1,18})\]", re.DOTALL)


def row_map_of(source: Any) -> RowMap | None:
    """The row map beside the dataset of a token source; None where there is none. Raises as `read_row_map`."""
    manifest, recipe = capability(source, "manifest"), source.recipe()
    if not isinstance(manifest, Manifest) or recipe.get("kind") != "open":
        return None
    return read_row_map(place_of(recipe["path"]), manifest)


def documents_of(source: Any, key: str) -> list[int]:
    """The documents of a token source that a key names: by their number, or by the row that they were made of.

    Raises:
        ConfigError: several inputs have the name.
    """
    if (number := count_in(key)) is not None:
        return [number]
    named = _NAMED.fullmatch(key)
    if named is None:
        return []
    if isinstance(source, ConcatTokens):
        found, begin = list[int](), 0
        for child in source.sources:
            found += [begin + one for one in documents_of(child, key)]
            begin += len(child)
        return found
    mapped = row_map_of(source)
    numbers = [] if mapped is None else mapped.numbers_of(named[1])
    if mapped is None or not numbers:
        return []
    if len(numbers) > 1:
        names = ", ".join(mapped.inputs[number].name for number in numbers[:3])
        raise ConfigError("several inputs have this name", found=named[1], expected=f"one of {names}")
    return mapped.samples_of(numbers[0], np.array([int(named[2])])).tolist()


@dataclass(frozen=True, slots=True)
class Origins:
    """Tells of a run which rows its documents were made of; each row map is read once.

    Attributes:
        data: the stream or source of the run.
    """

    data: Any
    _maps: dict[int, RowMap | None] = field(default_factory=dict[int, RowMap | None])

    def of(self, path: Sequence[str], documents: Sequence[int]) -> list[str | None] | None:
        """The rows of documents; None where no row map tells.

        Args:
            path: names of the children that lead to their source.
            documents: their numbers in it.
        """
        source = descend(self.data, path, is_token_source)
        if source is None:
            return None
        found = [self._origin(source, document) for document in documents]
        return found if any(found) else None

    def _origin(self, source: Any, document: int) -> str | None:
        if isinstance(source, ConcatTokens):
            for child in source.sources:
                if document < len(child):
                    return self._origin(child, document)
                document -= len(child)
            return None
        if id(source) not in self._maps:
            self._maps[id(source)] = row_map_of(source)
        mapped = self._maps[id(source)]
        if mapped is None or document >= len(mapped.rows):
            return None
        one, row = mapped.origin_of(document)
        return f"{one.name}[{row}]"

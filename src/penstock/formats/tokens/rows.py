"""Base of sources of rows in the parts of a folder; one column of them can be read as tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from penstock.errors import ConfigError
from penstock.formats._sources import StoredSource
from penstock.store.base import Store
from penstock.types import IntArray, OpenOptions


class PartedRows(StoredSource):
    """Rows of a folder with `counts` rows per part; `reopen` opens it again, in another process too."""

    stated = ("columns", "eos_id", "follow_links", "planes")

    def __init__(
        self, store: Store, path: str, options: OpenOptions, counts: Iterable[int], reopen: Callable[..., Any]
    ) -> None:
        super().__init__(store, path, options)
        self._reopen = reopen
        self.path = path
        self._starts: IntArray = np.cumsum([0, *counts], dtype=np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return (self._reopen, (self._store, self.path, self._options))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _require_columns(self, known: Sequence[str]) -> None:
        """Raise `ConfigError` if a requested column is unknown."""
        for name in self._options.columns or ():
            if name not in known:
                raise ConfigError(f"no column {name!r}", path=self.path, expected=", ".join(known))

    def _find(self, index: int) -> tuple[int, int]:
        """Return the part of a row, and its index there."""
        part = int(np.searchsorted(self._starts, index, side="right")) - 1
        return part, index - int(self._starts[part])

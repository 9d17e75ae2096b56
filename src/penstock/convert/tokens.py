"""Documents of tokens in a column of samples, as a token source: the way from shards back to a token format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.abc import Source
from penstock.errors import ConfigError, Unsupported
from penstock.formats._excluding import stored
from penstock.formats.shards.source import ShardSource
from penstock.types import Batch, Field, IntArray, Manifest, Sample, Schema, TokenArray

COLUMN = "tokens"
_STEP = 1024


def column_tokens(source: Source[Any], shown: str, eos_id: int | None) -> ColumnTokens | None:
    """The column `tokens` of a source, where it holds arrays of ids; None where there is none.

    Raises:
        Unsupported: its arrays are of a dtype that ids don't have.
    """
    fields = [field for field in source.schema.fields if field.name == COLUMN and field.kind == "ndarray"]
    if not fields or not isinstance(stored(getattr(source, "whole", source)), ShardSource):
        return None
    dtype = np.dtype(fields[0].dtype) if fields[0].dtype else source[0][COLUMN].dtype if len(source) else None
    if dtype is None or dtype.kind != "u" or dtype.itemsize > 4:
        found, expected = str(dtype), "uint8, uint16 or uint32"
        raise Unsupported(f"the column {COLUMN!r} holds no token ids", path=shown, found=found, expected=expected)
    return ColumnTokens(source, shown, dtype, eos_id)


class ColumnTokens:
    """A document a sample; see `penstock.abc.TokenSource`. Memory: 8 bytes a document, and what is asked for."""

    def __init__(self, source: Any, shown: str, dtype: np.dtype[Any], eos_id: int | None) -> None:
        self._source = source
        self._shown = shown
        self._eos_id = eos_id
        self._known_starts: IntArray | None = None
        self.dtype = dtype

    @property
    def schema(self) -> Schema:
        """One field."""
        return Schema((Field(COLUMN, "tokens", self.dtype.name, (None,)),))

    @property
    def fingerprint(self) -> str:
        """Of the samples."""
        return self._source.fingerprint

    @property
    def manifest(self) -> Manifest | None:
        """What the side file of the samples says."""
        return self._source.manifest

    @property
    def only_here(self) -> tuple[str, ...]:
        """Columns that a token format has no place for."""
        return tuple(f"column {field.name!r}" for field in self._source.schema.fields if field.name != COLUMN)

    @property
    def eos_id(self) -> int | None:
        """As told, else as the side file says."""
        manifest = self.manifest
        return self._eos_id if self._eos_id is not None or manifest is None else manifest.eos_id

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return int(self.doc_starts[-1])

    @property
    def doc_starts(self) -> IntArray:
        """int64[n_docs + 1]: found by one pass over the column."""
        if self._known_starts is None:
            starts = np.zeros(len(self) + 1, np.int64)
            for first in range(0, len(self), _STEP):
                stop = min(len(self), first + _STEP)
                starts[first + 1 : stop + 1] = [len(one) for one in self._documents(first, stop)]
            self._known_starts = np.cumsum(starts)
        return self._known_starts

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int, /) -> Sample:
        return {COLUMN: self._source[index][COLUMN]}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """The column."""
        return {COLUMN: self._source.get_batch(indices)[COLUMN]}

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start]: tokens in `[start, stop)`, out of the documents that hold them."""
        first = int(np.searchsorted(self.doc_starts, start, side="right")) - 1
        last = int(np.searchsorted(self.doc_starts, stop, side="left"))
        pieces = [one for at in range(first, last, _STEP) for one in self._documents(at, min(last, at + _STEP))]
        joined = np.concatenate([*pieces, np.empty(0, self.dtype)])
        before = start - int(self.doc_starts[first])
        return joined[before : before + stop - start]

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """uint[len(starts), length]: one window a row."""
        rows = np.empty((len(starts), length), self.dtype) if out is None else out
        for row, start in enumerate(np.asarray(starts).tolist()):
            rows[row] = self.tokens(start, start + length)
        return rows

    def runs(self, first: int, stop: int) -> Iterator[tuple[TokenArray, IntArray]]:
        """Documents `[first, stop)`, without a look at those before: (uint[n_tokens], int64[n_docs] lengths)."""
        for start in range(first, stop, _STEP):
            pieces = self._documents(start, min(stop, start + _STEP))
            lengths = np.array([len(one) for one in pieces], np.int64)
            yield np.concatenate([*pieces, np.empty(0, self.dtype)]), lengths

    def children(self) -> Mapping[str, Source[Any]]:
        """The samples."""
        return {"samples": self._source}

    def recipe(self) -> dict[str, Any]:
        """That of the samples."""
        return self._source.recipe()

    def _documents(self, first: int, stop: int) -> list[NDArray[Any]]:
        found = list(self._source.get_batch(np.arange(first, stop))[COLUMN])
        for place, one in enumerate(found, first):
            if one.ndim != 1 or one.dtype != self.dtype:
                raise ConfigError(
                    f"sample {place} is no document", path=self._shown, found=f"{one.dtype} {one.shape}",
                    expected=f"{self.dtype}, one axis",
                )  # fmt: skip
        return found

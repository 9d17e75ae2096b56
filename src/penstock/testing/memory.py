"""Datasets in memory, for tests and experiments, with the same guarantees as files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._arrays import as_index, as_indices, stack
from penstock._digest import digest
from penstock._tree import brief, html, line, tree
from penstock.abc import Source
from penstock.errors import ConfigError, NotFound
from penstock.types import Batch, Field, IntArray, Sample, Schema, TokenArray


class MemorySource:
    """Source over a list of samples.

    Args:
        samples: dicts; not copied.
        schema: schema of the samples; open and empty by default.

    Examples:
        >>> import penstock as ps
        >>> from penstock.testing import MemorySource
        >>> source = MemorySource([{"text": "a"}, {"text": "b"}, {"text": "c"}])
        >>> source[-1]
        {'text': 'c'}
        >>> stream = ps.Shuffle(source, seed=1)
        >>> sorted(stream[position]["text"] for position in range(3))
        ['a', 'b', 'c']
    """

    def __init__(self, samples: Sequence[Sample], schema: Schema | None = None) -> None:
        self._samples = samples
        self._schema = Schema((), open=True) if schema is None else schema
        self._fingerprint: str | None = None

    @property
    def schema(self) -> Schema:
        """Schema of the samples."""
        return self._schema

    @property
    def fingerprint(self) -> str:
        """Digest of all samples."""
        if self._fingerprint is None:
            self._fingerprint = digest("memory", [_plain(sample) for sample in self._samples])
        return self._fingerprint

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int, /) -> Sample:
        return self._samples[as_index(index, len(self))]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns, in that order."""
        return stack([self._samples[i] for i in as_indices(indices, len(self)).tolist()])

    def children(self) -> Mapping[str, Source[Any]]:
        """Return an empty mapping."""
        return {}

    def recipe(self) -> dict[str, Any]:
        """Return a description; the source can't be rebuilt from it."""
        return {"kind": "memory", "samples": len(self), "fingerprint": self.fingerprint}

    def summary(self) -> str:
        """Return one line: the number of samples."""
        return line("MemorySource", {"samples": len(self)}, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


class KeyedSource(MemorySource):
    """Source over a list of samples with keys, which implements `penstock.abc.SupportsKeys`.

    Args:
        samples: dicts; not copied.
        key: field with a sample's key; if two are equal, the first is found.
        schema: schema of the samples; open and empty by default.

    Examples:
        >>> from penstock.testing import KeyedSource
        >>> source = KeyedSource([{"id": "x", "text": "a"}, {"id": "y", "text": "b"}], key="id")
        >>> source.index_of("y"), source.key_of(0)
        (1, 'x')
    """

    def __init__(self, samples: Sequence[Sample], key: str = "__key__", schema: Schema | None = None) -> None:
        super().__init__(samples, schema)
        self._key = key
        self._indices: dict[str, int] | None = None

    def key_of(self, index: int, /) -> str:
        """Return the key of sample `index` as text."""
        return str(self[index][self._key])

    def index_of(self, key: str, /) -> int:
        """Return the index of the sample with this key, or raise `NotFound`."""
        if self._indices is None:
            self._indices = {str(self[index][self._key]): index for index in reversed(range(len(self)))}
        index = self._indices.get(key)
        if index is None:
            raise NotFound(f"no key {key!r}")
        return index

    def summary(self) -> str:
        """Return one line: the number of samples."""
        return line("KeyedSource", {"samples": len(self)}, self._fingerprint)


class MemoryTokens:
    """Token source over a list of documents, used as they are.

    Args:
        documents: token ids of each document, including the EOS token if there is one.
        eos_id: id that ends every document, if they have one.
        dtype: `"uint8"`, `"uint16"` or `"uint32"`; by default the narrowest that fits.
        tokenizer_digest: digest of the tokenizer, if it matters.
        start_flags: find document starts inside a window (`SupportsDocumentFlags`).

    Raises:
        ConfigError: an id doesn't fit the dtype.

    Examples:
        >>> import penstock as ps
        >>> from penstock.testing import MemoryTokens
        >>> source = MemoryTokens([[5, 6, 0], [7, 0], [8, 9, 4, 0]], eos_id=0)
        >>> source.num_tokens, source.dtype.name, source.doc_starts.tolist()
        (9, 'uint8', [0, 3, 5, 9])
        >>> ps.Chunk(4)(source)[1]["tokens"].tolist()
        [0, 8, 9, 4]
    """

    def __init__(
        self,
        documents: Sequence[ArrayLike],
        eos_id: int | None = None,
        dtype: str | None = None,
        tokenizer_digest: str | None = None,
        *,
        start_flags: bool = False,
    ) -> None:
        arrays = [np.asarray(document, dtype=np.int64) for document in documents]
        ids = np.concatenate([np.empty(0, dtype=np.int64), *arrays])
        kind = np.dtype(_narrowest(ids, eos_id) if dtype is None else dtype)
        if ids.size and not 0 <= ids.min() <= ids.max() <= np.iinfo(kind).max:
            raise ConfigError("a token id does not fit", found=f"{ids.min()} to {ids.max()}", expected=str(kind))
        self._tokens: TokenArray = ids.astype(kind)
        self._doc_starts: IntArray = np.cumsum([0, *(len(array) for array in arrays)], dtype=np.int64)
        self._eos_id = eos_id
        self.tokenizer_digest = tokenizer_digest
        # None makes isinstance(…, SupportsDocumentFlags) false.
        self.gather_starts = self._gather_starts if start_flags else None
        for array in (self._tokens, self._doc_starts):
            array.flags.writeable = False

    @property
    def schema(self) -> Schema:
        """One field: `tokens`."""
        return Schema((Field("tokens", "tokens", str(self.dtype), (None,)),))

    @property
    def fingerprint(self) -> str:
        """Digest of tokens, document starts and EOS id."""
        content = hashlib.blake2b(self._tokens.tobytes() + self._doc_starts.tobytes(), digest_size=16).hexdigest()
        return digest("memory-tokens", str(self.dtype), self._eos_id, content)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the ids."""
        return self._tokens.dtype

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return len(self._tokens)

    @property
    def doc_starts(self) -> IntArray:
        """int64[n_docs + 1]: first token of each document, and `num_tokens`."""
        return self._doc_starts

    @property
    def eos_id(self) -> int | None:
        """EOS id, if documents have one."""
        return self._eos_id

    def __len__(self) -> int:
        return len(self._doc_starts) - 1

    def __getitem__(self, index: int, /) -> Sample:
        index = as_index(index, len(self))
        return {"tokens": self._tokens[self._doc_starts[index] : self._doc_starts[index + 1]]}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]) as columns, in that order."""
        return stack([self[i] for i in as_indices(indices, len(self)).tolist()])

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the tokens `[start, stop)`, uint[stop - start], as a read-only view."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.num_tokens})")
        return self._tokens[start:stop]

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], written into `out` if given."""
        starts = as_indices(starts, self.num_tokens - length + 1)
        windows = np.lib.stride_tricks.sliding_window_view(self._tokens, length)
        if out is None:
            return windows[starts]
        out[...] = windows[starts]
        return out

    def _gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of each window is the first of a document."""
        first = np.zeros(self.num_tokens, dtype=np.bool_)
        first[self._doc_starts[:-1][np.diff(self._doc_starts) > 0]] = True
        return np.lib.stride_tricks.sliding_window_view(first, length)[as_indices(starts, self.num_tokens - length + 1)]

    def children(self) -> Mapping[str, Source[Any]]:
        """Return an empty mapping."""
        return {}

    def recipe(self) -> dict[str, Any]:
        """Return a description; the source can't be rebuilt from it."""
        return {"kind": "memory-tokens", "fingerprint": self.fingerprint}

    def summary(self) -> str:
        """Return one line: documents and tokens."""
        return line("MemoryTokens", {"documents": len(self), "tokens": self.num_tokens, "dtype": self.dtype})

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html


def _narrowest(ids: IntArray, eos_id: int | None) -> str:
    largest = max(int(ids.max()) if ids.size else 0, 0 if eos_id is None else eos_id)
    return "uint8" if largest < 1 << 8 else "uint16" if largest < 1 << 16 else "uint32"


def _plain(value: Any) -> Any:
    """Return `value` as plain JSON, with its type if it isn't a JSON type."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return [str(value.dtype), list(value.shape), np.ascontiguousarray(value).tobytes().hex()]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return [type(value).__qualname__, repr(value)]
    return value

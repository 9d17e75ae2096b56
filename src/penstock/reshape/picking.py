"""Documents of tokens that are read where they lie, each alone, as a new order wants them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.abc import Store, TokenSource
from penstock.codec.tokens import dtype_for
from penstock.types import Extent, IntArray


@runtime_checkable
class OneRun(Protocol):
    """A token source whose tokens may lie in one file as a writer of the same width would put them there."""

    def token_run(self) -> Extent | None:
        """File range of all tokens, back to back and little-endian in the width of `dtype`; None where it is not so."""
        ...


@runtime_checkable
class ManyFiles(Protocol):
    """A token source of many files, none of which shares a document with another."""

    def by_file(self, indices: IntArray, /) -> Iterator[tuple[IntArray, TokenSource, IntArray]]:
        """Of each file with some of these documents: their places in `indices`, the file, and their indices there."""
        ...


def can_pick(source: Any) -> bool:
    """Whether documents can be read one by one for what they weigh; of many files the first one says so."""
    if isinstance(source, ManyFiles):
        return any(can_pick(file) for _, file, _ in source.by_file(np.zeros(1, np.int64)))
    return isinstance(source, OneRun) and source.token_run() is not None


def pick(store: Store, source: TokenSource, indices: IntArray) -> NDArray[Any]:
    """uint[n]: the tokens of the documents at these indices, back to back; one call to the store a file."""
    found = [b""] * len(indices)
    if isinstance(source, ManyFiles):
        for places, file, within in source.by_file(indices):
            for place, data in zip(places.tolist(), _each(store, file, within), strict=True):
                found[place] = data
    else:
        found = _each(store, source, indices)
    return np.frombuffer(b"".join(found), dtype_for(source.dtype.itemsize, "<"))


def _each(store: Store, source: TokenSource, indices: IntArray) -> list[bytes]:
    width, doc_starts = source.dtype.itemsize, source.doc_starts
    pairs = list(zip(doc_starts[indices].tolist(), doc_starts[indices + 1].tolist(), strict=True))
    run = source.token_run() if isinstance(source, OneRun) else None
    if run is None:  # a file among others that is stored in another way
        return [source.tokens(*pair).astype(dtype_for(width, "<"), copy=False).tobytes() for pair in pairs]
    return store.get_ranges(run.path, [(run.offset_bytes + a * width, run.offset_bytes + b * width) for a, b in pairs])

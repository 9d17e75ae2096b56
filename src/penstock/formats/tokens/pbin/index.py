"""The document index: `(offset, length)` in bytes for each document, as a pickled list."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from penstock.codec.pickles import decode_marked, feed_pairs
from penstock.errors import Corrupt
from penstock.formats._findings import Problem
from penstock.formats.tokens.pbin.layout import Geometry, problem
from penstock.store.base import Store
from penstock.store.local import LocalStore
from penstock.store.mapped import MappedFile
from penstock.types import IntArray

_FIRST_HEADER_BYTES = 8  # of the layouts without a token width

MOST_PROBLEMS = 20
"""Wrong entries that are listed one by one."""

_REBUILD = "`penstock repair PATH --eos-id ID` rebuilds the index from the EOS tokens"


def read_index(store: Store, path: str, geometry: Geometry) -> IntArray:
    """Return offset from the first token and length in bytes of each document, int64[n_docs, 2], unchecked."""
    return read_marked(store, path, geometry)[0]


def read_marked(store: Store, path: str, geometry: Geometry) -> tuple[IntArray, IntArray | None]:
    """Return `read_index`, and the place of each `MARKED_PAIRS`th document in the list, int64[k], if known.

    After an 8-byte header a length may omit the EOS id after its document; here it counts.

    Memory: 3 times the index's size in the file at most.

    Raises:
        FormatError: the index isn't a plain pickled list.
    """
    start_bytes = geometry.index_start_bytes
    buffer = store.view(path, start_bytes, geometry.size_bytes - start_bytes)
    pairs, marks = decode_marked(buffer, path=path, offset_bytes=start_bytes)
    if geometry.offset_base_bytes:
        pairs = pairs - np.array([geometry.offset_base_bytes, 0])
    if geometry.layout.header_bytes == _FIRST_HEADER_BYTES:
        pairs = _with_separators(pairs, geometry)
    return pairs, marks


def _with_separators(pairs: IntArray, geometry: Geometry) -> IntArray:
    """Return the pairs; if documents aren't back to back, each with the one token after it that belongs to none.

    The first description leaves open whether a length counts the EOS id, and whether the last document has one.
    """
    offsets = pairs[:, 0]
    stops = np.append(offsets[1:], geometry.data_bytes)[: len(pairs)]
    gaps = stops - offsets - pairs[:, 1]
    apart = len(pairs) > 0 and (gaps[:-1] == geometry.token_bytes).all() and gaps[-1] in (0, geometry.token_bytes)
    return np.stack([offsets, stops - offsets], axis=1) if apart else pairs


class NotStraight(Exception):
    """Documents that aren't simply back to back: `doc_starts` reads them, or describes the problem."""


def feed_starts(store: LocalStore, path: str, geometry: Geometry, put: Callable[[IntArray], None]) -> None:
    """Put the result of `doc_starts` in runs, as the index is decoded. Memory: a few MB.

    Raises:
        NotStraight: entries that need a closer look.
        FormatError: the index isn't a plain pickled list.
    """
    mapped = MappedFile(path)
    end = 0

    def take(pairs: IntArray) -> None:
        nonlocal end
        offsets, lengths = pairs[:, 0] - geometry.offset_base_bytes, pairs[:, 1]
        if len(pairs) and int(lengths.max()) > geometry.data_bytes:
            raise NotStraight
        ends = np.cumsum(lengths) + end
        if not np.array_equal(offsets, ends - lengths) or (lengths % geometry.token_bytes).any():
            raise NotStraight
        put(offsets // geometry.token_bytes)
        end = int(ends[-1]) if len(ends) else end
        mapped.release()

    index = mapped.data[geometry.index_start_bytes : geometry.size_bytes]
    whole = feed_pairs(index, take, path=path, offset_bytes=geometry.index_start_bytes)
    if not whole or end != geometry.data_bytes:
        raise NotStraight
    put(np.array([geometry.num_tokens]))


def doc_starts(pairs: IntArray, geometry: Geometry, path: str) -> IntArray:
    """Return the first token of each document, and the number of tokens: int64[n_docs + 1].

    Raises:
        Corrupt: the documents aren't back to back over all tokens.
    """
    for one in index_problems(pairs, geometry):
        raise one.at(path).error()
    starts = np.empty(len(pairs) + 1, np.int64)
    starts[:-1] = pairs[:, 0]
    starts[-1] = geometry.data_bytes
    return np.floor_divide(starts, geometry.token_bytes, out=starts)


def is_merged(pairs: IntArray, geometry: Geometry) -> bool:
    """Return whether offsets have the error of Modalities' `merge_packed_data`: 12 bytes too low per preceding file."""
    lengths = pairs[:, 1]
    if _sum(lengths) != geometry.data_bytes:
        return False
    too_low = np.cumsum(lengths) - lengths - pairs[:, 0]
    steps = np.diff(too_low, prepend=0)
    return bool(len(steps) and steps.any() and (steps >= 0).all() and (steps % 12 == 0).all())


def index_problems(pairs: IntArray, geometry: Geometry) -> Iterator[Problem]:
    """Yield the entries that aren't back to back over all tokens: the first wrong ones, then a count.

    Args:
        pairs: int64[n_docs, 2], as returned by `read_index`.
        geometry: geometry of the file.
    """
    offsets, lengths = pairs[:, 0], pairs[:, 1]
    if is_merged(pairs, geometry):
        yield _merged(pairs, geometry)
        return
    # The sums below fit int64 only if each entry is inside the data.
    too_far = offsets > geometry.data_bytes - lengths
    outside = np.flatnonzero((offsets < 0) | (lengths > geometry.data_bytes) | too_far)
    if len(outside):
        yield from (_outside(doc, pairs, geometry) for doc in outside[:MOST_PROBLEMS].tolist())
        yield from _more("index-outside", len(outside))
        return
    uneven = np.flatnonzero((lengths % geometry.token_bytes != 0) | (offsets % geometry.token_bytes != 0))
    if len(uneven):
        yield _uneven(int(uneven[0]), len(uneven), pairs, geometry)
        return
    ends = offsets + lengths
    expected = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    gaps = np.flatnonzero(offsets != expected)
    yield from (_gap(doc, int(expected[doc]), pairs, geometry) for doc in gaps[:MOST_PROBLEMS].tolist())
    yield from _more("index-hole", len(gaps))
    last = int(ends[-1]) if len(ends) else 0
    if last != geometry.data_bytes:
        yield problem(
            "index-hole",
            Corrupt,
            "the index ends before the tokens do",
            geometry.layout.header_bytes + last,
            f"{len(pairs)} documents up to byte {last} of the tokens",
            f"byte {geometry.data_bytes}",
            _REBUILD,
        )


def _more(code: str, count: int) -> Iterator[Problem]:
    if count > MOST_PROBLEMS:
        yield problem(code, Corrupt, f"{count - MOST_PROBLEMS} more wrong entries")


def _sum(lengths: IntArray) -> int:
    """Return the exact sum, even for malicious lengths."""
    low, high = int((lengths & 0xFFFFFFFF).sum()), int((lengths >> 32).sum())
    return (high << 32) + low


def _place(geometry: Geometry, offset_bytes: int) -> int:
    return min(max(0, geometry.layout.header_bytes + offset_bytes), geometry.size_bytes)


def _merged(pairs: IntArray, geometry: Geometry) -> Problem:
    lengths = pairs[:, 1]
    right = np.cumsum(lengths) - lengths
    wrong = np.flatnonzero(pairs[:, 0] != right)
    first = int(wrong[0])
    return problem(
        "merged-offsets",
        Corrupt,
        f"{len(wrong)} of {len(pairs)} documents have offsets that are too low by a multiple of 12 bytes, "
        "a known bug of merge_packed_data in Modalities",
        _place(geometry, int(right[first])),
        f"offset {int(pairs[first, 0])} for document {first}",
        f"offset {int(right[first])}",
        "`penstock repair --write` sets them to the sums of the lengths",
    )


def _outside(doc: int, pairs: IntArray, geometry: Geometry) -> Problem:
    return problem(
        "index-outside",
        Corrupt,
        "a document is outside the data",
        _place(geometry, int(pairs[doc, 0])),
        f"document {doc} at byte {int(pairs[doc, 0])} of the tokens, {int(pairs[doc, 1])} bytes long",
        f"0 to {geometry.data_bytes}",
        _REBUILD,
    )


def _uneven(doc: int, count: int, pairs: IntArray, geometry: Geometry) -> Problem:
    return problem(
        "token-bytes",
        Corrupt,
        "document lengths don't match the token width, so the width in the header is wrong",
        8 if geometry.layout.token_bytes is None else _place(geometry, int(pairs[doc, 0])),
        f"{count} documents, the first is {doc} at byte {int(pairs[doc, 0])}, {int(pairs[doc, 1])} bytes long",
        f"multiples of {geometry.token_bytes}",
        "Correct the width at byte 8, or pack again",
    )


def _gap(doc: int, expected_bytes: int, pairs: IntArray, geometry: Geometry) -> Problem:
    hole = int(pairs[doc, 0]) > expected_bytes
    return problem(
        "index-hole" if hole else "index-overlap",
        Corrupt,
        "some bytes belong to no document" if hole else "a document overlaps another one, or is out of order",
        _place(geometry, min(expected_bytes, int(pairs[doc, 0]))),
        f"document {doc} at byte {int(pairs[doc, 0])} of the tokens",
        f"byte {expected_bytes}, where the previous document ends",
        _REBUILD,
    )

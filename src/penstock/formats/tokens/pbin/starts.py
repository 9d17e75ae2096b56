"""A sparse table of the document index: the place of each 4,096th document in the pickled list and in the tokens.

Entries of the list have no fixed width, so one document can't be looked up in it. With the table in the side file, a
document takes a read of some 80 KB instead of the whole list. As text, the table is two columns: the steps between
places in the list, and the steps between first tokens, in base64, little-endian, as wide as needed.

A piece of the list is used if it has the number of documents in the table, back to back from the token in the table to
the first token of the next piece. `penstock verify` compares the table with the whole list.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.codec.pickles import MARKED_PAIRS, decode_piece
from penstock.errors import Corrupt, FormatError, UnsafeData
from penstock.formats._manifest import side_path
from penstock.formats.tokens.pbin.layout import TODAY, Geometry
from penstock.store.base import Store
from penstock.store.side_file import REPLACE
from penstock.types import IntArray, Manifest

_LEAST_DOCS = MARKED_PAIRS + 1  # fewer are one piece
_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Starts:
    """The table of one file.

    Attributes:
        places: int64[k + 1]: start of each piece in the list, in bytes, and the list's length.
        tokens: int64[k + 1]: first token of each piece, and the number of tokens.
        num_docs: documents in all.
    """

    places: IntArray
    tokens: IntArray
    num_docs: int

    def read(self, store: Store, path: str, geometry: Geometry, pieces: Sequence[int]) -> list[IntArray]:
        """Return, for each piece, the first token of its documents and of the next one: int64[n_docs + 1].

        Raises:
            FormatError: the list has other documents there.
        """
        begin = geometry.index_start_bytes
        ranges = [(begin + int(self.places[one]), begin + int(self.places[one + 1])) for one in pieces]
        found = zip(pieces, ranges, store.get_ranges(path, ranges), strict=True)
        return [self._decoded(path, geometry, piece, start, data) for piece, (start, _), data in found]

    def _decoded(self, path: str, geometry: Geometry, piece: int, start: int, data: bytes) -> IntArray:
        try:
            pairs = decode_piece(np.frombuffer(data, np.uint8), path=path, offset_bytes=start)
        except (FormatError, UnsafeData) as error:  # either the list or the table is wrong
            raise contradicted(path, error.what, error.offset_bytes) from None
        width = geometry.token_bytes
        first, end = (int(token) * width for token in self.tokens[piece : piece + 2])
        offsets, lengths = pairs[:, 0], pairs[:, 1]
        count = min(self.num_docs - piece * MARKED_PAIRS, MARKED_PAIRS)
        inside = len(pairs) == count and bool((lengths <= geometry.data_bytes).all())
        ends = first + np.cumsum(lengths) if inside else lengths
        if not inside or not np.array_equal(offsets, ends - lengths) or ends[-1] != end or (lengths % width).any():
            raise contradicted(path, f"documents starting at {piece * MARKED_PAIRS}", start)
        return np.append(offsets, end) // width


def contradicted(path: str, what: str, offset_bytes: int | None = None) -> Corrupt:
    """Return the error for an index and a table that differ."""
    return Corrupt(
        "the index contradicts the document table in the side file",
        path=path,
        offset_bytes=offset_bytes,
        found=what,
        expected=f"as recorded in {side_path(path)}",
        hint=f"`penstock verify` finds which one is damaged. If the data is right, {REPLACE}",
    )


def encode_starts(places: Iterable[int], tokens: Iterable[int], num_docs: int) -> str | None:
    """Return the table as text; None if it would have only one piece.

    Args:
        places: start of each piece in the list.
        tokens: first token of each piece.
        num_docs: number of documents.
    """
    if num_docs < _LEAST_DOCS:
        return None
    return " ".join(_packed(np.diff(np.fromiter(column, np.int64), prepend=0)) for column in (places, tokens))


def _packed(steps: IntArray) -> str:
    width = max(1, -(-int(steps.max()).bit_length() // 8))
    return base64.b64encode(steps.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()).decode()


def _unpacked(text: str, count: int) -> IntArray | None:
    try:
        data = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None
    width, rest = divmod(len(data), count)
    if rest or not 1 <= width <= 8:
        return None
    steps = np.zeros((count, 8), np.uint8)
    steps[:, :width] = np.frombuffer(data, np.uint8).reshape(count, width)
    found = steps.view("<i8").reshape(-1)
    return np.cumsum(found) if int(found.min()) >= 0 and int(found.max()) <= _MOST // count else None


def stated_starts(manifest: Manifest | None, geometry: Geometry) -> Starts | None:
    """Return the table in a side file that fits its data, or None if it can't be of this file."""
    if manifest is None or manifest.starts is None or geometry.layout is not TODAY or geometry.offset_base_bytes:
        return None
    count = -(-manifest.num_samples // MARKED_PAIRS)
    columns = manifest.starts.split(" ")
    if not count or len(columns) != 2:
        return None
    places, tokens = (_unpacked(column, count) for column in columns)
    if places is None or tokens is None or tokens[0] != 0 or tokens[-1] > geometry.num_tokens:
        return None
    places, tokens = np.append(places, geometry.index_bytes), np.append(tokens, geometry.num_tokens)
    return Starts(places, tokens, manifest.num_samples) if (np.diff(places) > 0).all() else None

"""Source of a packed file: tokens are read directly, documents on demand."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock._secrets import logger
from penstock._tokens import checked_starts, flags_between, flags_of_starts
from penstock.codec.pickles import MARKED_PAIRS
from penstock.codec.tokens import dtype_for
from penstock.errors import Corrupt, FormatError
from penstock.formats._findings import Problem
from penstock.formats._manifest import side_path
from penstock.formats.tokens.common import TokenFile
from penstock.formats.tokens.pbin.index import NotStraight, doc_starts, feed_starts, read_index
from penstock.formats.tokens.pbin.layout import HEADER_BYTES, Geometry, find_layout
from penstock.formats.tokens.pbin.starts import Starts, contradicted, stated_starts
from penstock.formats.tokens.source import SideFile, StoredTokens
from penstock.store.base import Store
from penstock.store.derived import Put
from penstock.store.local import LocalStore
from penstock.store.side_file import REPLACE, Facts, file_facts
from penstock.types import Extent, IntArray, OpenOptions

_STARTS_VERSION = "pbin-doc-starts-1"
_TAIL_BYTES = 4096
_log = logger()

_SLOW_INDEX_BYTES = 1 << 26
_SMALL_INDEX_BYTES = 1 << 16  # decoded in less time than a lock and a new file take
_MOST_PIECES = 64
"""Most pieces of the index that are read individually; for more, the whole index is read."""
_KEPT_PIECES = 16
_LEAST_ENTRY_BYTES = 5  # a pickled tuple of two integers


def open_pbin(store: Store, path: str, options: OpenOptions) -> PbinSource:
    """Open a packed file: a few reads of header, first index entry and tail, and the side file if needed.

    Raises:
        NotFound: the file doesn't exist.
        Truncated: the file ends early, or its writer was killed.
        Corrupt: header and index contradict each other.
        ConfigError: more than one layout fits, or an option can't hold.
        TooLarge: `vocab_size=` is given and the side file records a larger id.
    """
    geometry = find_layout(store, path, options.layout)
    if isinstance(geometry, Problem):
        raise geometry.at(path).error()
    return PbinSource(store, path, geometry, options)


def pbin_facts(store: Store, path: str, geometry: Geometry, num_docs: int | None = None) -> Facts:
    """Return the facts of a packed file to compare with a side file; without `num_docs` its index isn't decoded."""
    room = geometry.index_bytes // _LEAST_ENTRY_BYTES if num_docs is None else None
    return file_facts(store, path, "pbin", num_samples=num_docs, num_tokens=geometry.num_tokens, most_samples=room)


class PbinSource(StoredTokens):
    """The documents and tokens of one packed file; see `penstock.abc.TokenSource`. Made by `penstock.open`."""

    title = "pbin"
    reopen = staticmethod(open_pbin)
    had_eos_borders = True

    def __init__(self, store: Store, path: str, geometry: Geometry, options: OpenOptions) -> None:
        super().__init__(store, path, options)
        stored = dtype_for(geometry.token_bytes, geometry.layout.byte_order)
        self._geometry = geometry
        self._file = TokenFile(store, path, geometry.layout.header_bytes, geometry.num_tokens, stored, options.read)
        self.ids = self._file
        self._pieces: tuple[tuple[int, IntArray], ...] = ()  # those read last
        self._pieces_read = 0
        self._require_options(self.dtype)

    def _head(self) -> bytes:
        """Return header, size, and last 4 KiB."""
        size_bytes = self._geometry.size_bytes
        head = self._store.get(self._path, 0, HEADER_BYTES) + size_bytes.to_bytes(8, "little")
        return head + self._store.get(self._path, max(0, size_bytes - _TAIL_BYTES), _TAIL_BYTES)

    @property
    def geometry(self) -> Geometry:
        """Positions of everything in the file."""
        return self._geometry

    @property
    def layout(self) -> str:
        """Name of the file's layout; the current one is `"h12le"`."""
        return self._geometry.layout.name

    def _side(self) -> SideFile:
        facts = functools.partial(pbin_facts, self._store, self._path, self._geometry)
        return SideFile(side_path(self._path), facts)

    @property
    def is_large(self) -> bool:
        return self._geometry.index_bytes >= _SMALL_INDEX_BYTES

    def _load_doc_starts(self) -> IntArray:
        with self._of_opened_file():
            starts = self._streamed_starts()
            if starts is None:
                starts = super()._load_doc_starts()
            self._require_recorded(starts)
        return starts

    def _streamed_starts(self) -> IntArray | None:
        """Decode a large index of a local file in little memory; None if that isn't possible."""
        path, geometry, derived = self._path, self._geometry, self.derived
        if derived is None or not self._store.is_local:
            return None

        def feed(put: Put) -> None:
            if geometry.index_bytes >= _SLOW_INDEX_BYTES:
                _log.warning("%s: decoding a document index of %d bytes, once on this host", path, geometry.index_bytes)
            feed_starts(LocalStore(), path, geometry, put)

        try:
            return derived.fed(self._starts_key, "int64", feed)
        except NotStraight:
            return None

    def _find_starts(self) -> IntArray:
        return doc_starts(read_index(self._store, self._path, self._geometry), self._geometry, self._path)

    @contextlib.contextmanager
    def _of_opened_file(self) -> Generator[None]:
        """Raise `FormatError` if the opened file was replaced while something was read by its path."""
        try:
            yield
        except FormatError:
            self._file.require_same()
            raise
        self._file.require_same()

    @functools.cached_property
    def _table(self) -> Starts | None:
        return stated_starts(self.manifest, self._geometry)

    def borders_of(self, first: int, stop: int, /) -> IntArray:
        last = max(0, stop - 1) // MARKED_PAIRS
        low = min(first // MARKED_PAIRS, last)  # the last document ends the last piece
        found = self._sparse(range(low, last + 1))
        if found is None:
            return self.doc_starts[first : stop + 1]
        begin = low * MARKED_PAIRS
        return _joined(found)[first - begin : stop + 1 - begin]

    def borders_at(self, indices: IntArray, /) -> tuple[IntArray, IntArray]:
        pieces, which = np.unique(indices // MARKED_PAIRS, return_inverse=True)
        found = self._sparse(pieces.tolist())
        if found is None:
            starts = self.doc_starts
            return starts[indices], starts[indices + 1]
        within = indices % MARKED_PAIRS
        ends = [[int(found[one][at]), int(found[one][at + 1])] for one, at in zip(which, within, strict=True)]
        both = np.array(ends, np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def borders_around(self, start: int, stop: int, /) -> tuple[int, IntArray]:
        if self._table is not None:
            first = int(np.searchsorted(self._table.tokens[:-1], start, side="right")) - 1
            last = max(first, int(np.searchsorted(self._table.tokens[:-1], stop, side="left")) - 1)
            found = self._sparse(range(first, last + 1))
            if found is not None:
                return first * MARKED_PAIRS, _joined(found)
        return 0, self.doc_starts

    def _sparse(self, pieces: Sequence[int]) -> list[IntArray] | None:
        """Return the borders in some pieces of the index; None if the whole index is loaded, or faster to load."""
        table = self._table if self._doc_starts.held() is None else None
        if table is None:
            return None
        known = dict(self._pieces)
        missing = [one for one in pieces if one not in known]
        if self._pieces_read + len(missing) > _MOST_PIECES:
            return None
        if missing:
            with self._of_opened_file():
                read = zip(missing, table.read(self._store, self._path, self._geometry, missing), strict=True)
            new = dict(read)
            known |= new
            self._pieces_read += len(missing)
            self._pieces = (*new.items(), *self._pieces)[:_KEPT_PIECES]
        return [known[one] for one in pieces]

    def __len__(self) -> int:
        if self._doc_starts.held() is None and self.manifest is not None:
            return self.manifest.num_samples
        return len(self.doc_starts) - 1

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        if self._doc_starts.held() is None and self._table is not None:
            starts = checked_starts(starts, length, self.num_tokens)
            borders = self._borders_in(self._table, starts, length)
            if borders is not None:
                return flags_between(borders, starts, length)
        return flags_of_starts(self.doc_starts, starts, length)

    def _borders_in(self, table: Starts, starts: IntArray, length: int) -> IntArray | None:
        """Return the borders in the pieces with these windows, int64[k]; None if the whole index is needed."""
        begins = table.tokens[:-1]
        if len(begins) <= _KEPT_PIECES:  # the whole index is read as fast
            return None
        first = np.maximum(np.searchsorted(begins, starts, side="right") - 1, 0)
        stop = np.maximum(np.searchsorted(begins, starts + length, side="left"), first + 1)
        if int((stop - first).max(initial=0)) > _MOST_PIECES:
            return None
        pieces = {piece for low, high in zip(first.tolist(), stop.tolist(), strict=True) for piece in range(low, high)}
        found = self._sparse(sorted(pieces))
        # Each piece ends with the first border of the next one; duplicates do no harm.
        if found is None or len(found) == 1:
            return None if found is None else found[0]
        return np.concatenate([np.empty(0, np.int64), *found])

    def token_run(self) -> Extent | None:
        """Return the file range of all tokens; None for a big-endian layout."""
        layout = self._geometry.layout
        return self.ids.extent(0, self.num_tokens) if layout.byte_order == "<" else None

    def _require_recorded(self, starts: IntArray) -> None:
        """Raise `Corrupt` if the index contradicts the side file, which `len` and documents may have come from."""
        recorded, num_docs = vars(self).get("manifest"), len(starts) - 1
        table = None if recorded is None else self._table
        if table is not None and table.num_docs == num_docs:
            wrong = np.flatnonzero(table.tokens[:-1] != starts[:-1:MARKED_PAIRS])
            if len(wrong):
                raise contradicted(self._path, f"document {int(wrong[0]) * MARKED_PAIRS} at a different offset")
        if recorded is not None and recorded.num_samples != num_docs:
            raise Corrupt(
                "the index contradicts the side file",
                path=side_path(self._path),
                found=f"{recorded.num_samples} in the side file",
                expected=f"{num_docs}, as in the index",
                hint=f"If the data is right, {REPLACE}",
            )

    @functools.cached_property
    def _starts_key(self) -> str:
        geometry = self._geometry
        known = self._index_key(self._path, geometry.index_start_bytes, geometry.index_bytes)
        return f"{_STARTS_VERSION}-{geometry.layout.name}-{known}"


def _joined(pieces: list[IntArray]) -> IntArray:
    """Join the borders of consecutive pieces."""
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate([*(one[:-1] for one in pieces[:-1]), pieces[-1]])

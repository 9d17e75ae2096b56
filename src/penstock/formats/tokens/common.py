"""Shared reading code of token formats: runs of tokens in files, and documents in them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from penstock._arrays import as_index, as_indices, column
from penstock._secrets import logger
from penstock._tokens import borders_at, borders_of, checked_starts
from penstock.abc import TokenSource
from penstock.errors import ConfigError, TooLarge
from penstock.formats._sources import map_least, way_to_read
from penstock.store.base import Store
from penstock.store.fingerprint import OpenedFile, opened_file
from penstock.store.mapped import Held
from penstock.types import Batch, Extent, Field, IntArray, Manifest, ReadMode, Sample, Schema, TokenArray

RUN_TOKENS = 1 << 24
"""Tokens read at once if a whole dataset is read."""

_log = logger()
_ROWS = 256


@property
def token_schema(self: TokenSource) -> Schema:
    """Schema with one field: `tokens`."""
    return Schema((Field("tokens", "tokens", self.dtype.name, (None,)),))


class TokenFile:
    """A run of tokens that fills a range of one file, mapped, or read with `pread`.

    Thread-safe, picklable, and safe after fork: a mapping is shared, and `pread` opens the file at each call. Mappings
    keep no file open, and of many files only those used last are mapped; see `penstock.store.mapped`.

    Args:
        store: store of the file.
        path: the file.
        start_bytes: place of the first token.
        num_tokens: tokens in the run; the file is known to hold them.
        stored: dtype in the file, such as `"<u2"`.
        read: `"mmap"`, `"pread"`, or `"auto"`: mmap, except on network file systems.
        opened: the local file when the dataset was opened, by default as it is now; another one isn't read.

    Raises:
        Unsupported: `"mmap"` in a store that can't map files.
    """

    __slots__ = (
        *("_args", "_dtype", "_is_view", "_mapped", "_num_tokens", "_opened", "_path", "_start_bytes", "_store"),
        "_stored",
    )

    def __init__(
        self,
        store: Store,
        path: str,
        start_bytes: int,
        num_tokens: int,
        stored: np.dtype[Any],
        read: ReadMode = "auto",
        opened: OpenedFile | None = None,
    ) -> None:
        read = way_to_read(store, path, read)
        self._opened = opened or opened_file(store, path)
        self._args = (store, path, start_bytes, num_tokens, stored, read, self._opened)
        self._store = store
        self._path = path
        self._start_bytes = start_bytes
        self._num_tokens = num_tokens
        self._stored = stored
        self._dtype = stored.newbyteorder("=")
        self._is_view = read == "mmap" and stored.isnative
        start_bytes, stop_bytes = self._range(0, num_tokens)
        self._mapped = Held(functools.partial(_map_run, store, path, start_bytes, stop_bytes, stored, self._opened))

    def __reduce__(self) -> tuple[object, ...]:
        return (TokenFile, self._args)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Native dtype of the ids."""
        return self._dtype

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the run."""
        return self._num_tokens

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the tokens `[start, stop)`, uint[stop - start], read-only.

        A view if the file is mapped and in native byte order.

        Raises:
            IndexError: the range is outside the run.
        """
        if not 0 <= start <= stop <= self._num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self._num_tokens})")
        if self._is_view:
            return self._mapped.get().run[start:stop]
        if self._args[5] == "mmap":
            found = self._mapped.get().run[start:stop]
        else:
            found = np.frombuffer(self._ranges([self._range(start, stop)])[0], self._stored)
        if not found.dtype.isnative:
            found = found.astype(self._dtype)
            found.flags.writeable = False
        return found

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], written into `out` if given.

        Raises:
            IndexError: a window is not inside the run.
        """
        starts = checked_starts(starts, length, self._num_tokens)
        if out is None:
            if self._args[5] == "mmap" and length <= self._num_tokens and self._stored.isnative:
                return self._mapped.get().windows(length)[starts]
            out = np.empty((len(starts), length), self._dtype)
        elif out.shape != (len(starts), length):
            raise ValueError(f"out has shape {out.shape}, expected {(len(starts), length)}")
        if self._args[5] == "pread":
            ranges = [self._range(start, start + length) for start in starts.tolist()]
            for row, data in zip(out, self._ranges(ranges), strict=True):
                row[:] = np.frombuffer(data, self._stored)
        elif len(starts):
            view = self._mapped.get().windows(length)
            # In slices, so that intermediate data stays in the processor's cache.
            for first in range(0, len(starts), _ROWS):
                out[first : first + _ROWS] = view[starts[first : first + _ROWS]]
        return out

    def extent(self, start: int, stop: int) -> Extent:
        """Return the file range of the tokens `[start, stop)`."""
        if not 0 <= start <= stop <= self._num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self._num_tokens})")
        start_bytes, stop_bytes = self._range(start, stop)
        return Extent(self._store.current_path(self._path), start_bytes, stop_bytes - start_bytes)

    def extents(self, start: int, stop: int) -> tuple[Extent, ...]:
        return (self.extent(start, stop),)

    def _ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        pieces = self._store.get_ranges(self._path, ranges)
        self.require_same()
        return pieces

    def require_same(self) -> None:
        """Raise `FormatError` if the file was replaced since it was opened."""
        if self._opened is not None:
            self._opened.require_same()

    def _range(self, start: int, stop: int) -> tuple[int, int]:
        width = self._stored.itemsize
        return self._start_bytes + start * width, self._start_bytes + stop * width


class _Mapped:
    """Mapped run of tokens, and a view of its windows."""

    __slots__ = ("_windows", "run")

    def __init__(self, run: NDArray[Any]) -> None:
        self.run = run
        self._windows: tuple[int, NDArray[Any]] | None = None

    def windows(self, length: int) -> NDArray[Any]:
        """Return the window at each token, uint[num_tokens - length + 1, length]."""
        windows = self._windows
        if windows is None or windows[0] != length:
            # Kept, because making the view costs as much as copying a batch through it.
            self._windows = windows = (length, sliding_window_view(self.run, length))
        return windows[1]


def _map_run(
    store: Any, path: str, start_bytes: int, stop_bytes: int, stored: np.dtype[Any], opened: OpenedFile | None
) -> _Mapped:
    whole = map_least(store, path, stop_bytes)
    if opened is not None:
        opened.require_same()
    return _Mapped(whole[start_bytes:stop_bytes].view(stored))


# --- documents ---------------------------------------------------------------------------------------------------


def document(source: TokenSource, index: int) -> Sample:
    """Return document `index` as `{"tokens": array}`, including its EOS token."""
    index = as_index(index, len(source))
    start, stop = borders_of(source, index, index + 1).tolist()
    return {"tokens": source.tokens(start, stop)}


def document_batch(source: TokenSource, indices: Sequence[int] | IntArray) -> Batch:
    """Return the documents at `indices` as one column: an array if all lengths agree, else a list of arrays."""
    chosen = as_indices(indices, len(source))
    ranges = zip(*(ends.tolist() for ends in borders_at(source, chosen)), strict=True)
    return {"tokens": column([source.tokens(start, stop) for start, stop in ranges])}


def document_runs(
    source: TokenSource, run_tokens: int = RUN_TOKENS, first: int = 0, end: int | None = None
) -> Iterator[tuple[TokenArray, IntArray]]:
    """Yield whole documents in order, in runs of about `run_tokens` tokens.

    Args:
        source: token source.
        run_tokens: approximate size of a run.
        first: first document.
        end: end of the range of documents; None for all.

    Yields:
        The tokens, uint[n_tokens], and the documents' lengths, int64[n_docs].

    Examples:
        >>> import penstock as ps
        >>> from penstock.convert import document_runs
        >>> [(len(tokens), lengths.tolist()) for tokens, lengths in document_runs(ps.open("corpus.pbin"))]
        [(45, [5, 6, 7, 8, 9, 10])]
    """
    for start, stop, lengths in runs_of(source.doc_starts, run_tokens, first, end):
        yield source.tokens(start, stop), lengths


def runs_of(
    doc_starts: IntArray, run_tokens: int = RUN_TOKENS, first: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, IntArray]]:
    """Yield `(start, stop, document lengths)` of runs of whole documents; arguments as of `document_runs`."""
    n_docs = len(doc_starts) - 1 if end is None else end
    while first < n_docs:
        stop = int(np.searchsorted(doc_starts, doc_starts[first] + run_tokens, side="right")) - 1
        stop = min(max(stop, first + 1), n_docs)
        run = np.asarray(doc_starts[first : stop + 1], np.int64)
        yield int(run[0]), int(run[-1]), np.diff(run)
        first = stop


# --- side files --------------------------------------------------------------------------------------------------


def require_vocabulary(path: str, dtype: np.dtype[Any], manifest: Manifest | None, vocab_size: int) -> None:
    """Reject data with ids of `vocab_size` or more, according to its side file; warn if the largest id is unknown.

    Raises:
        TooLarge: the largest id is known and too large.
    """
    if manifest is not None and manifest.max_token_id is not None:
        if manifest.max_token_id >= vocab_size:
            raise TooLarge(
                "the data contains ids outside the vocabulary",
                path=path,
                found=manifest.max_token_id,
                expected=f"0 to {vocab_size - 1}",
                hint="They come from a different tokenizer",
            )
    elif vocab_size < 1 << 8 * dtype.itemsize:
        _log.warning(
            "%s: without a side file the largest id is unknown, so vocab_size=%d isn't checked; "
            "`penstock verify --write-manifest` creates one",
            path,
            vocab_size,
        )


def require_eos(path: str, dtype: np.dtype[Any], eos_id: int | None) -> None:
    """Raise `ConfigError` for an EOS id that doesn't fit the dtype of these tokens."""
    if eos_id is not None and not 0 <= eos_id < 1 << 8 * dtype.itemsize:
        raise ConfigError(
            "EOS id out of range", path=path, found=eos_id, expected=f"0 to {(1 << 8 * dtype.itemsize) - 1}"
        )

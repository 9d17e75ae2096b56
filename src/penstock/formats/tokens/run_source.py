"""Documents and tokens of one run in a file, for formats that are read only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._borders import flags_of_starts
from penstock._secrets import logger
from penstock._tree import brief, html, line, tree
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.formats._manifest import DATA
from penstock.formats._marked import no_such_mark
from penstock.formats._modes import Mode, preferred_mode
from penstock.formats.tokens.common import (
    document,
    document_batch,
    recipe_of,
    require_eos,
    token_schema,
)
from penstock.store.base import Store
from penstock.store.derived import DerivedCache
from penstock.store.fingerprint import files_key, once_a_host, sample_fingerprint
from penstock.store.mapped import Held
from penstock.types import Batch, Extent, IntArray, OpenOptions, Place, Sample, TokenArray

_STARTS_VERSION = "run-starts-1"
_SMALL_BYTES = 1 << 16  # scanned in less time than a lock and a new file take
_SCAN_TOKENS = 1 << 22
_log = logger()


class Borders(Protocol):
    """How a format tells where documents begin."""

    def find(self) -> IntArray:
        """int64[n_docs + 1]: first token of each document, and the number of tokens; may read everything."""
        ...

    def flags(self, doc_starts: Callable[[], IntArray], starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of the windows starts a document."""
        ...


class Ids(Protocol):
    """A run of ids in files: `FileIds`, or those of several files."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def num_tokens(self) -> int: ...

    def tokens(self, start: int, stop: int) -> TokenArray: ...

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray: ...

    def extent(self, start: int, stop: int) -> Extent: ...

    def extents(self, start: int, stop: int) -> tuple[Extent, ...]: ...


@dataclass(frozen=True, slots=True)
class IndexBorders:
    """Borders that stand in an index.

    Attributes:
        read: gives int64[n_docs + 1].
    """

    read: Callable[[], IntArray]

    def find(self) -> IntArray:
        """See `Borders`."""
        return self.read()

    def flags(self, doc_starts: Callable[[], IntArray], starts: IntArray, length: int) -> NDArray[np.bool_]:
        """See `Borders`."""
        return flags_of_starts(doc_starts(), starts, length)


@dataclass(frozen=True, slots=True)
class MarkedBorders:
    """Borders at one token in the data. Finding them all reads everything once; a window needs itself alone.

    Attributes:
        ids: the tokens.
        path: for errors.
        mark: the id; None where it is not known.
        before: the id is the first of each document; else the last.
    """

    ids: Ids
    path: str
    mark: int | None
    before: bool

    def find(self) -> IntArray:
        """See `Borders`; raises `ConfigError` where no token has the id. Memory: 8 bytes a document, and 16 MiB."""
        mark = self._mark()
        found = [np.zeros(1, np.int64)]
        for start in range(0, self.ids.num_tokens, _SCAN_TOKENS):
            tokens = self.ids.tokens(start, min(self.ids.num_tokens, start + _SCAN_TOKENS))
            found.append(np.flatnonzero(tokens == mark) + (start + (not self.before)))
        if self.ids.num_tokens and not any(map(len, found[1:])):
            raise no_such_mark(self.path, mark)
        borders = np.concatenate([*found, np.array([self.ids.num_tokens])])
        # Both ends may be borders already: of an empty file, and where the first or the last token is the mark.
        return borders[np.append(True, np.diff(borders) > 0)]

    def flags(self, doc_starts: Callable[[], IntArray], starts: IntArray, length: int) -> NDArray[np.bool_]:
        """See `Borders`."""
        mark = self._mark()
        if self.before:
            flags = self.ids.gather(starts, length) == mark
        else:
            flags = np.empty((len(starts), length), np.bool_)
            np.equal(self.ids.gather(starts, length)[:, :-1], mark, out=flags[:, 1:])
            flags[:, 0] = self.ids.gather(np.maximum(starts - 1, 0), 1)[:, 0] == mark
        flags[starts == 0, 0] = True
        return flags

    def _mark(self) -> int:
        if self.mark is None:
            raise ConfigError(
                "this format doesn't store document borders",
                path=self.path,
                hint="Specify the id between documents with eos_id= (--eos-id), or use one_document= (--one-document). "
                "Windows without labels need neither",
            )
        return self.mark


@dataclass(frozen=True, slots=True)
class OneDocument:
    """Borders of a run that is one document, or of none where it is empty.

    Attributes:
        num_tokens: of the run.
    """

    num_tokens: int

    def find(self) -> IntArray:
        """See `Borders`."""
        return np.array([0, self.num_tokens] if self.num_tokens else [0], np.int64)

    def flags(self, doc_starts: Callable[[], IntArray], starts: IntArray, length: int) -> NDArray[np.bool_]:
        """See `Borders`."""
        return flags_of_starts(self.find(), starts, length)


@dataclass(frozen=True, slots=True)
class Opening:
    """How a source was made, and what tells it from others.

    Attributes:
        format: format name.
        again: makes the source again, in another process too.
        store: where the files are.
        path: file of the tokens.
        options: as given.
        head: the format's own index or header, for the fingerprint.
        more_files: `(name, path)` of further files of the dataset.
        params: of the recipe, beside format, path and `eos_id`.
        is_folder: `path` is a folder, and the tokens are in `more_files`.
    """

    format: str
    again: Callable[[Store, str, OpenOptions], Source[Sample]]
    store: Store
    path: str
    options: OpenOptions
    head: bytes
    more_files: tuple[tuple[str, str], ...] = ()
    params: tuple[tuple[str, Any], ...] = ()
    is_folder: bool = False

    @property
    def files(self) -> list[tuple[str, str]]:
        """`(name, path)` of all files that hold tokens or borders."""
        return [*self.more_files] if self.is_folder else [(DATA, self.path), *self.more_files]


class RunSource:
    """See `penstock.abc.TokenSource`. Made by `penstock.open`.

    Args:
        opening: how it was made.
        ids: the tokens.
        borders: where documents begin.
        eos_id: id that ends every document; None where there is none, or it is not known.
    """

    def __init__(self, opening: Opening, ids: Ids, borders: Borders, eos_id: int | None) -> None:
        self._opening = opening
        self._borders = borders
        self._eos_id = eos_id
        self._doc_starts = Held(self._load_doc_starts)
        self._fingerprint: str | None = None
        self.ids = ids
        options = opening.options
        require_eos(opening.path, ids.dtype, options.eos_id)
        if options.vocab_size is not None and options.vocab_size < 1 << 8 * ids.dtype.itemsize:
            _log.warning(
                "%s: the largest id isn't recorded, so vocab_size=%d isn't checked; "
                "`penstock verify --vocab-size %d --depth full` checks every id",
                opening.path,
                options.vocab_size,
                options.vocab_size,
            )

    def __reduce__(self) -> tuple[object, ...]:
        return (self._opening.again, (self._opening.store, self._opening.path, self._opening.options))

    schema = token_schema

    @property
    def preferred_mode(self) -> Mode:
        """Default mode of `Shuffle`: `"blocks"` for remote data."""
        return preferred_mode(self._opening.store)

    @property
    def fingerprint(self) -> str:
        """Digest of the header or index, of a sample of the files, and of how they are read."""
        if self._fingerprint is None:
            one = self._opening
            read_as = repr((one.params, self.options.eos_id)).encode()
            if self.options.one_document and self.options.eos_id is None:
                read_as += b" one document"

            def find() -> str:
                return sample_fingerprint(one.store, one.format, one.head + read_as, one.files)

            name = f"{one.format} {(one.head + read_as).hex()}"
            self._fingerprint = once_a_host(one.store, [path for _, path in one.files], name, find)
        return self._fingerprint

    @property
    def options(self) -> OpenOptions:
        """As given."""
        return self._opening.options

    @property
    def kept_key(self) -> str:
        """By what this host keeps what it derives of these data; see `penstock._digest`."""
        return files_key(self.fingerprint, self._opening.store, (path for _, path in self._opening.files))

    @property
    def derived(self) -> DerivedCache | None:
        """Where what is computed from this file is kept; None for a small one."""
        return DerivedCache() if self.num_tokens * self.dtype.itemsize >= _SMALL_BYTES else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8, uint16 or uint32."""
        return self.ids.dtype

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return self.ids.num_tokens

    @property
    def doc_starts(self) -> IntArray:
        """int64[n_docs + 1], read-only: first token of each document, and `num_tokens`.

        Found at first use; once a host, and mapped, unless the file is small.

        Raises:
            ConfigError: nothing says where documents begin.
            FormatError: the index is damaged; `tokens` and `gather` still work.
        """
        return self._doc_starts.get()

    def _load_doc_starts(self) -> IntArray:
        derived = self.derived
        if derived is not None:
            return derived.array(f"{_STARTS_VERSION}-{self.kept_key}", "int64", self._borders.find)
        starts = self._borders.find()
        starts.flags.writeable = False
        return starts

    @property
    def eos_id(self) -> int | None:
        """Id that ends every document; None where there is none, or it is not known."""
        return self._eos_id

    @property
    def is_marked(self) -> bool:
        """Whether that id is what parts documents: then the last one may be without it."""
        return isinstance(self._borders, MarkedBorders)

    def __len__(self) -> int:
        return len(self.doc_starts) - 1

    def __getitem__(self, index: int, /) -> Sample:
        return document(self, index)

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]); a list of arrays if their lengths differ."""
        return document_batch(self, indices)

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start]: tokens `[start, stop)`; a read-only view of the mapped file where that is possible."""
        return self.ids.tokens(start, stop)

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], written into `out` if given."""
        return self.ids.gather(starts, length, out)

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of the windows starts a document."""
        return self._borders.flags(lambda: self.doc_starts, starts, length)

    def place_of(self, index: int, /) -> Place:
        """Return the file range of document `index`."""
        index = range(len(self))[index]
        return Place(extents=(self.ids.extent(int(self.doc_starts[index]), int(self.doc_starts[index + 1])),))

    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        """File range of tokens `[start, stop)`."""
        return self.ids.extents(start, stop)

    def children(self) -> Mapping[str, Source[Any]]:
        """Return an empty mapping: data on disk has no children."""
        return {}

    def recipe(self) -> dict[str, Any]:
        """Return format, path and options as plain JSON."""
        one = self._opening
        borders = {"one_document": one.options.one_document or None}
        return recipe_of(one.format, one.path, one.options, **dict(one.params), **borders)

    def summary(self) -> str:
        """Return one line: path, tokens, width."""
        one = self._opening
        params = {"path": one.path, "tokens": self.num_tokens, "dtype": self.dtype, **dict(one.params)}
        return line(one.format, params, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

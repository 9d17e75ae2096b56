"""Token sources: code shared by all token formats, and complete read-only formats over a layout of their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import as_index, as_indices, column
from penstock._secrets import logger
from penstock._tokens import borders_of, flags_of_starts
from penstock.abc import Source
from penstock.errors import ConfigError
from penstock.formats._manifest import DATA, files_fingerprint, side_path
from penstock.formats._proof import AnyProof, Proof, known_manifest
from penstock.formats._sources import StoredSource, no_such_mark
from penstock.formats.tokens.common import (
    document,
    document_batch,
    require_eos,
    require_vocabulary,
    token_schema,
)
from penstock.formats.tokens.proof import token_proof
from penstock.store.base import Store
from penstock.store.derived import DerivedCache, Put
from penstock.store.fingerprint import files_key
from penstock.store.mapped import Held
from penstock.store.side_file import Facts, fitting_manifest
from penstock.types import Batch, Extent, IntArray, Manifest, OpenOptions, Place, Sample, TokenArray

_SMALL_BYTES = 1 << 16  # scanned in less time than a lock and a new file take
_HASHED_INDEX_BYTES = 1 << 26
_SCAN_TOKENS = 1 << 22
_log = logger()


class Borders(Protocol):
    """Document borders of a format."""

    def find(self) -> IntArray:
        """Return first tokens and number of tokens, int64[n_docs + 1]; may read everything."""
        ...

    def flags(self, doc_starts: Callable[[], IntArray], starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of the windows starts a document."""
        ...


class Ids(Protocol):
    """Run of ids in files: `FileIds`, or those of several files."""

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
    """Borders from an index.

    Attributes:
        read: gives int64[n_docs + 1].
    """

    read: Callable[[], IntArray]

    def find(self) -> IntArray:
        return self.read()

    def flags(self, doc_starts: Callable[[], IntArray], starts: IntArray, length: int) -> NDArray[np.bool_]:
        return flags_of_starts(doc_starts(), starts, length)


@dataclass(frozen=True, slots=True)
class MarkedBorders:
    """Borders at one token in the data.

    Finding all borders reads everything once; a window needs only its own tokens.

    Attributes:
        ids: the tokens.
        path: path for errors.
        mark: the separating id; None if unknown.
        before: the id is the first of each document, otherwise the last.
    """

    ids: Ids
    path: str
    mark: int | None
    before: bool

    def find(self) -> IntArray:
        """Return the borders; raise `ConfigError` if no token has the id. Memory: 8 bytes per document, and 16 MiB."""
        mark = self._mark()
        found = [np.zeros(1, np.int64)]
        for start in range(0, self.ids.num_tokens, _SCAN_TOKENS):
            tokens = self.ids.tokens(start, min(self.ids.num_tokens, start + _SCAN_TOKENS))
            found.append(np.flatnonzero(tokens == mark) + (start + (not self.before)))
        if self.ids.num_tokens and not any(map(len, found[1:])):
            raise no_such_mark(self.path, mark)
        borders = np.concatenate([*found, np.array([self.ids.num_tokens])])
        # Both ends may be borders already: for an empty file, or if the first or the last token is the mark.
        return borders[np.append(True, np.diff(borders) > 0)]

    def flags(self, doc_starts: Callable[[], IntArray], starts: IntArray, length: int) -> NDArray[np.bool_]:
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
    """Border of a run that is one document, or none if it is empty.

    Attributes:
        num_tokens: number of tokens of the run.
    """

    num_tokens: int

    def find(self) -> IntArray:
        return np.array([0, self.num_tokens] if self.num_tokens else [0], np.int64)

    def flags(self, doc_starts: Callable[[], IntArray], starts: IntArray, length: int) -> NDArray[np.bool_]:
        return flags_of_starts(self.find(), starts, length)


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """Files of a read-only format: locations of their tokens and documents, and their identity.

    Attributes:
        format: format name.
        reopen: opens the source again, in another process too.
        ids: the tokens.
        borders: where documents begin.
        eos_id: id that ends every document; None if unknown.
        head: the format's own index or header, for the fingerprint.
        more_files: `(name, path)` of further files of the dataset.
        params: of the recipe, besides format, path and `eos_id`.
        is_folder: the path is a folder, and the tokens are in `more_files`.
        facts: returns the facts to compare with the side file next to the path; None if the format has no side files.
    """

    format: str
    reopen: Callable[[Store, str, OpenOptions], Source[Sample]]
    ids: Ids
    borders: Borders
    eos_id: int | None
    head: bytes
    more_files: tuple[tuple[str, str], ...] = ()
    params: tuple[tuple[str, Any], ...] = ()
    is_folder: bool = False
    facts: Callable[[], Facts] | None = None


@dataclass(frozen=True, slots=True)
class SideFile:
    """Side file of a dataset: its path, the facts to compare with it, and the part of it that describes the dataset."""

    path: str
    facts: Callable[[], Facts]
    part: str | None = None


class StoredTokens(StoredSource):
    """Documents and tokens of one dataset on disk; see `penstock.abc.TokenSource`.

    A format sets `title` and `reopen`, and defines `ids`, `_find_starts` and `_head`; `_named_files` for more than
    one file, `_side` if it has a side file. It may override members that its index answers faster.
    """

    reopen: Callable[..., Source[Sample]]
    stated = ("layout", "eos_id", "follow_links", "planes")
    starts_version: str
    had_eos_borders: Any = False
    reads_alone = False
    """Return whether `_read_document` reads a document without `doc_starts` of all."""

    gather_flagged: Any = None
    borders_of: Any = None
    borders_at: Any = None
    borders_around: Any = None
    token_run: Any = None

    def __init__(self, store: Store, path: str, options: OpenOptions) -> None:
        super().__init__(store, path, options)
        self._doc_starts = Held(self._load_doc_starts)

    def __reduce__(self) -> tuple[object, ...]:
        return (self.reopen, (self._store, self._path, self._options))

    # --- defined by a format -----------------------------------------------------------------------------------------

    @cached_property
    def ids(self) -> Ids:
        raise TypeError(type(self).__name__)

    def _find_starts(self) -> IntArray:
        """Return int64[n_docs + 1]: first token of each document, and the number of tokens; may read everything."""
        raise TypeError(type(self).__name__)

    def _head(self) -> bytes:
        """Return the format's own index or header, for the fingerprint."""
        raise TypeError(type(self).__name__)

    @property
    def _data_path(self) -> str:
        return self._path

    def _named_files(self) -> Sequence[tuple[str, str]]:
        """Return `(name in the side file, path)` of the files of the dataset, the tokens first."""
        return [(DATA, self._data_path)]

    def _side(self) -> SideFile | None:
        """Return the side file; None if the format has none."""
        return None

    def _proof_by(self, manifest: Manifest) -> Proof:
        """Return the proof of the tokens by a side file that belongs to them."""
        num_tokens, ids = self.num_tokens, self.ids.extent(0, self.num_tokens)
        width = ids.length_bytes // num_tokens if num_tokens else self.dtype.itemsize
        indexes = dict(self._named_files()[1:])
        return token_proof(self, manifest, self._store, self._data_path, ids.offset_bytes, num_tokens, width, indexes)

    def _read_document(self, index: int) -> TokenArray:
        """Return one document without `doc_starts`, if `reads_alone`."""
        raise TypeError(type(self).__name__)

    @property
    def is_large(self) -> bool:
        """Whether finding document starts takes longer than a lock and a new file."""
        return self.num_tokens * self.dtype.itemsize >= _SMALL_BYTES

    # --- derived -----------------------------------------------------------------------------------------------------

    schema = token_schema

    def _require_options(self, dtype: np.dtype[Any]) -> None:
        """Raise `ConfigError` or `TooLarge` if ids of this dtype, or those of the side file, contradict an option."""
        require_eos(self._path, dtype, self._options.eos_id)
        if self._options.vocab_size is not None:
            require_vocabulary(self._path, dtype, self.manifest, self._options.vocab_size)

    @cached_property
    def manifest(self) -> Manifest | None:
        """Side file that belongs to this data, or None."""
        return self._find_manifest()

    def _find_manifest(self) -> Manifest | None:
        side = self._side()
        return None if side is None else fitting_manifest(self._store, side.path, side.facts, side.part)

    def proof(self) -> AnyProof | None:
        """Return the proof by the side file; see `penstock.formats._proof`."""
        side = self._side()
        if side is None:
            return None
        manifest = known_manifest(self.title, self._store, self._data_path, side.path, side.facts, side.part)
        return None if manifest is None else self._proof_by(manifest)

    def _read_files(self) -> tuple[Store, list[str]]:
        return self._store, [path for _, path in self._named_files()]

    def _find_fingerprint(self) -> str:
        return files_fingerprint(self._store, self.title, self._head(), self._named_files(), self.manifest)

    @property
    def tokenizer_digest(self) -> str | None:
        """Digest of the tokenizer, if the side file records it."""
        return None if self.manifest is None else self.manifest.tokenizer_digest

    @property
    def eos_id(self) -> int | None:
        """Id that ends every document, as given, else as recorded in the side file."""
        if self._options.eos_id is not None:
            return self._options.eos_id
        return None if self.manifest is None else self.manifest.eos_id

    @property
    def derived(self) -> DerivedCache | None:
        """Cache of arrays derived from this data; None if it is small."""
        return DerivedCache() if self.is_large else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8, uint16 or uint32."""
        return self.ids.dtype

    @property
    def num_tokens(self) -> int:
        return self.ids.num_tokens

    @property
    def doc_starts(self) -> IntArray:
        """int64[n_docs + 1], read-only: first token of each document, and `num_tokens`.

        Found at first use; once per host, and mapped, unless the dataset is small.

        Raises:
            ConfigError: document boundaries are unknown.
            FormatError: the index is damaged; `tokens` and `gather` still work.
        """
        return self._doc_starts.get()

    def _load_doc_starts(self) -> IntArray:
        if (derived := self.derived) is not None:
            return derived.fed(self._starts_key, "int64", self._feed_starts)
        runs: list[IntArray] = []
        self._feed_starts(runs.append)
        starts = runs[0] if len(runs) == 1 else np.concatenate(runs)
        starts.flags.writeable = False
        return starts

    def _feed_starts(self, put: Put) -> None:
        """Put document starts one run after another; by default all at once."""
        put(self._find_starts())

    @cached_property
    def _starts_key(self) -> str:
        return f"{self.starts_version}-{self.kept_key}"

    def _index_key(self, path: str, start_bytes: int, size_bytes: int) -> str:
        """Return the key of arrays derived from an index of `size_bytes`: a fingerprint is only a sample of it."""
        if size_bytes > _HASHED_INDEX_BYTES:
            return files_key(self.fingerprint, self._store, [path])
        index = self._store.get(path, start_bytes, size_bytes)
        return f"{self.fingerprint}-{xxhash.xxh3_64_hexdigest(index)}"

    def __len__(self) -> int:
        return len(self.doc_starts) - 1

    @property
    def _is_alone(self) -> bool:
        return self.reads_alone and self._doc_starts.held() is None

    def __getitem__(self, index: int, /) -> Sample:
        if self._is_alone:
            return {"tokens": self._read_document(as_index(index, len(self)))}
        return document(self, index)

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]); a list of arrays if their lengths differ."""
        if self._is_alone:
            return {"tokens": column([self._read_document(one) for one in as_indices(indices, len(self)).tolist()])}
        return document_batch(self, indices)

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return uint[stop - start], read-only: tokens `[start, stop)`; a view of the mapped file if possible."""
        return self.ids.tokens(start, stop)

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], written into `out` if given."""
        return self.ids.gather(starts, length, out)

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of each window is the first of a document."""
        return flags_of_starts(self.doc_starts, starts, length)

    def place_of(self, index: int, /) -> Place:
        """Return the file range of document `index`."""
        index = as_index(index, len(self))
        start, stop = borders_of(self, index, index + 1).tolist()
        return Place(extents=(self.ids.extent(start, stop),))

    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        """Return the file ranges of tokens `[start, stop)`."""
        return self.ids.extents(start, stop)

    def shown(self) -> dict[str, Any]:
        return {"path": self._path, "tokens": self.num_tokens, "dtype": self.dtype}


class RunSource(StoredTokens):
    """Tokens and documents as a `TokenLayout` describes them. Made by `penstock.open`."""

    stated = ("one_document", "eos_id", "follow_links", "planes")
    starts_version = "run-starts-1"

    def __init__(self, store: Store, path: str, options: OpenOptions, layout: TokenLayout) -> None:
        super().__init__(store, path, options)
        self.title = layout.format
        self.reopen = layout.reopen
        self.ids = layout.ids
        self._layout = layout
        if layout.facts is not None:
            self._require_options(self.dtype)
            return
        require_eos(path, self.dtype, options.eos_id)
        if options.vocab_size is not None and options.vocab_size < 1 << 8 * self.dtype.itemsize:
            _log.warning(
                "%s: the largest id isn't recorded, so vocab_size=%d isn't checked; "
                "`penstock verify --vocab-size %d --depth full` checks every id",
                path,
                options.vocab_size,
                options.vocab_size,
            )

    def _find_starts(self) -> IntArray:
        return self._layout.borders.find()

    def _named_files(self) -> list[tuple[str, str]]:
        own = [] if self._layout.is_folder else [(DATA, self._path)]
        return [*own, *self._layout.more_files]

    def _side(self) -> SideFile | None:
        facts = self._layout.facts
        return None if facts is None else SideFile(side_path(self._path), facts)

    def _head(self) -> bytes:
        """Return the header or index, and how it is read."""
        layout, options = self._layout, self._options
        head = layout.head + repr((layout.params, options.eos_id)).encode()
        if options.one_document and options.eos_id is None:
            head += b" one document"
        return head

    @property
    def eos_id(self) -> int | None:
        """Id that ends every document; None if unknown."""
        return super().eos_id if self._layout.facts is not None else self._layout.eos_id

    @property
    def is_marked(self) -> bool:
        """Whether that id separates documents, so that the last one may lack it."""
        return isinstance(self._layout.borders, MarkedBorders)

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        return self._layout.borders.flags(lambda: self.doc_starts, starts, length)

    def _stated(self) -> dict[str, Any]:
        return {**dict(self._layout.params), **super()._stated()}

    def shown(self) -> dict[str, Any]:
        return {**super().shown(), **dict(self._layout.params)}

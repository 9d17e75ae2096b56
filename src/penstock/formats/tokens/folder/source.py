"""Reading many token files: one run of documents and tokens, of files that are opened when they are read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._borders import checked_starts, document_flags
from penstock._columns import scatter
from penstock._index import as_index, as_indices
from penstock._places import place_of, token_extents
from penstock._secrets import redact
from penstock._tree import brief, html, line, tree
from penstock.abc import Source, TokenSource
from penstock.errors import ConfigError, Corrupt, NotFound
from penstock.formats._marked import require_recorded_eos
from penstock.formats._proof import AnyProof
from penstock.formats.tokens.common import (
    document,
    document_batch,
    mode_of_store,
    recipe_of,
    require_vocabulary,
    token_schema,
)
from penstock.formats.tokens.folder.files import FileList, OpenFiles, folder_of, require_alike
from penstock.formats.tokens.folder.found import FoundFiles, find_token_files
from penstock.formats.tokens.folder.index import INDEX_NAME
from penstock.formats.tokens.folder.listed import ListedFiles
from penstock.formats.tokens.folder.proof import folder_proof
from penstock.formats.tokens.folder.side import NAME
from penstock.formats.tokens.folder.unfinished import read_finished_index
from penstock.store.base import Store
from penstock.store.derived import DerivedCache, Put
from penstock.store.fingerprint import files_key
from penstock.types import Batch, Extent, IntArray, Manifest, OpenOptions, Place, Sample, TokenArray

_STARTS_VERSION = "token-files-starts-1"
_SMALL_DOCUMENTS = 1 << 13  # put together in less time than a lock and a new file take
Read = Callable[[TokenSource, IntArray, int], tuple[NDArray[Any], ...]]
"""Windows of one file: source, first tokens, length → arrays of one row each."""


def open_token_files(store: Store, given: str | Sequence[str], options: OpenOptions) -> TokenFilesSource:
    """Open a folder of token files: its `index.json` is read, and no file of the data.

    Where there is no such index, they are those that a folder, a pattern or a list means; these are listed.

    Raises:
        NotFound: there is no index, and no token file.
        PrepareError: the run that makes them has not come to its end.
        FormatError: the index is damaged, or one of another kind.
        ConfigError: they are no token files of one format.
        TooLarge: `vocab_size=` is given, and a larger id is recorded.
    """
    if isinstance(given, str):
        with contextlib.suppress(NotFound):
            return _open_listed(store, given, options)
    return TokenFilesSource(store, given, options, find_token_files(store, given, options), None)


def _open_listed(store: Store, path: str, options: OpenOptions) -> TokenFilesSource:
    root = folder_of(path)
    listed = ListedFiles(store, root, read_finished_index(store, root))
    return TokenFilesSource(store, path, options, listed, f"{root}/{INDEX_NAME}")


class TokenFilesSource:
    """The documents and tokens of many files, one after the other; see `penstock.abc.TokenSource`.

    Made by `penstock.open`. Memory: 32 bytes a file, and its entry or its path; up to `MOST_OPEN` files are open.

    Args:
        store: where they are.
        given: folder, pattern or paths that they were opened by.
        options: that they were opened with.
        listed: the files.
        index: the `index.json`, which says the largest id; None where none lists them.
    """

    def __init__(
        self, store: Store, given: str | Sequence[str], options: OpenOptions, listed: FileList, index: str | None
    ) -> None:
        self._store = store
        self._given = given
        self._options = options
        self.listed = listed
        self._index = index
        if options.one_document and listed.format != "raw-tokens":
            what, hint = f"the format {listed.format!r} stores document borders", "Omit --one-document"
            raise ConfigError(what, path=self._path, found="one_document", hint=hint)
        self._doc_starts: IntArray | None = None
        self._dtype: np.dtype[Any] | None = None
        # Largest ids stand in the index: a file need not be asked for its own.
        each = OpenOptions(
            flavor=options.flavor,
            layout=options.layout,
            one_document=options.one_document,
            eos_id=options.eos_id,
            read=options.read,
            trust=options.trust,
            follow_links=options.follow_links,
        )
        self.files = OpenFiles(store, listed, each)
        if listed.format == "flat-tokens":
            self.gather_flagged = self._gather_flagged
        if options.vocab_size is not None and (index is None or self.max_token_id is not None):
            stated = Manifest(NAME, 0, 0, max_token_id=self.max_token_id)
            require_vocabulary(index or self._path, np.dtype(np.uint32), stated, options.vocab_size)

    def __reduce__(self) -> tuple[object, ...]:
        if self._index is not None:
            return (open_token_files, (self._store, self._given, self._options))
        return (TokenFilesSource, (self._store, self._given, self._options, self.listed, None))

    schema = token_schema
    preferred_mode = mode_of_store

    @cached_property
    def _token_starts(self) -> IntArray:
        return _running(self.listed.tokens)

    @cached_property
    def _starts(self) -> IntArray:
        return _running(self.listed.documents)

    @property
    def had_eos_borders(self) -> bool:
        """Whether document boundaries used to come from the EOS id; see `penstock._borders.had_eos_borders`."""
        return self.listed.format not in ("megatron", "flat-tokens")

    @property
    def _path(self) -> str:
        return self._given if isinstance(self._given, str) else self._given[0]

    @property
    def block_starts(self) -> IntArray:
        """int64[n_files + 1]: first document of each file, and the number of documents."""
        return self._starts

    @property
    def fingerprint(self) -> str:
        """Digest of the index, which has the digest of each file's documents; without one, of a sample of the files."""
        return self.listed.fingerprint

    @property
    def manifest(self) -> Manifest | None:
        """What the folder's side file says; None where there is none, or where it does not belong to this index."""
        return self.listed.manifest

    @property
    def kept_key(self) -> str:
        """By what this host keeps what it derives of these data; see `penstock._digest`."""
        if isinstance(self.listed, FoundFiles):  # their fingerprint is a sample; an index of ours has digests of all
            return files_key(self.fingerprint, self._store, self.listed.index_files)
        return self.fingerprint

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8, uint16 or uint32: that of the first file, which the others must have too."""
        if self._dtype is None:
            self._dtype = self.files.get(0).dtype if len(self.listed) else np.dtype(np.uint32)
        return self._dtype

    @property
    def num_tokens(self) -> int:
        """Tokens in all."""
        return int(self._token_starts[-1])

    @property
    def max_token_id(self) -> int | None:
        """The largest id, as the index or the side files say; None where that is not known, or there is no token."""
        return self.listed.max_token_id

    @property
    def size_bytes(self) -> int | None:
        """Bytes of all token files, where the side file says so; without an index they are asked for."""
        return self.listed.size_bytes

    @property
    def eos_id(self) -> int | None:
        """As given, else what the folder's side file says, else that of the first file."""
        if self._options.eos_id is not None and self.listed.format != "raw-tokens":  # llm.c begins documents with it
            return self._options.eos_id
        if self.manifest is not None:
            return self.manifest.eos_id
        return self.files.get(0).eos_id if len(self.listed) else None

    @property
    def tokenizer_digest(self) -> str | None:
        """Digest of the tokenizer that made the ids, where the folder's side file, or the first file's, records it."""
        if self.manifest is not None:
            return self.manifest.tokenizer_digest
        return _tokenizer_of(self.files.get(0)) if len(self.listed) else None

    @property
    def derived(self) -> DerivedCache | None:
        """Where what is computed from this folder is kept; None for a small one."""
        return DerivedCache() if len(self) >= _SMALL_DOCUMENTS else None

    @property
    def doc_starts(self) -> IntArray:
        """int64[n_docs + 1], read-only: first token of each document, and `num_tokens`.

        Put together from the indexes of all files at first use; once a host, and mapped, unless there are few.
        Documents, tokens and windows are read without it.

        Raises:
            NotFound: a file is not there.
            FormatError: one is damaged, or not the one that the index lists.
        """
        if self._doc_starts is None:
            derived = self.derived
            if derived is None:
                runs: list[IntArray] = []
                self._feed_starts(runs.append)
                self._doc_starts = np.concatenate(runs)
                self._doc_starts.flags.writeable = False
            else:
                self._doc_starts = derived.fed(f"{_STARTS_VERSION}-{self.kept_key}", "int64", self._feed_starts)
        return self._doc_starts

    def details(self) -> dict[str, Any]:
        """What `info` shows beside counts: how many files, and their format."""
        return {"files": len(self.listed), "format of the files": self.listed.format}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int, /) -> Sample:
        if self._doc_starts is not None:
            return document(self, index)
        file, within = self._file_of(as_index(index, len(self)))
        with self._listed_documents(file):
            return self._file(file)[within]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]); a list of arrays if their lengths differ."""
        if self._doc_starts is not None:
            return document_batch(self, indices)
        indices = as_indices(indices, len(self))
        parts: list[tuple[NDArray[np.intp], Batch]] = []
        for file, at in self._files_of(indices):
            with self._listed_documents(file):
                parts.append((at, self._file(file).get_batch(indices[at] - self._starts[file])))
        return parts[0][1] if len(parts) == 1 else scatter(parts or [(indices, {"tokens": []})], len(indices))

    def by_file(self, indices: IntArray, /) -> Iterator[tuple[IntArray, TokenSource, IntArray]]:
        """Of each file with some of these documents: their places in `indices`, the file, and their indices there."""
        for file, at in self._files_of(as_indices(indices, len(self))):
            yield at, self._file(file), indices[at] - self._starts[file]

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start], read-only: tokens `[start, stop)`; a copy only where they cross a border of files."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.num_tokens})")
        pieces = [self._file(file).tokens(low, high) for file, low, high in self._pieces(start, stop)]
        if len(pieces) == 1:
            return pieces[0]
        joined = np.concatenate([np.empty(0, self.dtype), *pieces])
        joined.flags.writeable = False
        return joined

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """uint[len(starts), length]: one window a row; into `out` where given; one call to each file."""
        starts = checked_starts(starts, length, self.num_tokens)
        if out is not None and out.shape != (len(starts), length):
            raise ValueError(f"out has shape {out.shape}, expected {(len(starts), length)}")
        file = self._only_file(starts, length)
        if file is not None:
            return self._file(file).gather(starts - self._token_starts[file], length, out)
        rows = np.empty((len(starts), length), self.dtype) if out is None else out
        self._gather(lambda source, starts, length: (source.gather(starts, length),), starts, (rows,))
        return rows

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of the windows starts a document."""
        starts = checked_starts(starts, length, self.num_tokens)
        flags = np.empty((len(starts), length), np.bool_)
        self._gather(_read_flags, starts, (flags,))
        return flags

    def place_of(self, index: int, /) -> Place:
        """What the document's own file knows of it."""
        file, within = self._file_of(as_index(index, len(self)))
        with self._listed_documents(file):
            return place_of(self._file(file), within)

    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        """File ranges that hold tokens `[start, stop)`."""
        pieces = self._pieces(start, stop)
        return tuple(chain(*(token_extents(self._file(file), low, high) or () for file, low, high in pieces)))

    def proof(self) -> AnyProof | None:
        """What the files' side files and the index prove; see `penstock.formats._proof`."""
        return folder_proof(self._store, self.listed, self._file, self._pieces)

    def children(self) -> Mapping[str, Source[Any]]:
        """Return an empty mapping: data on disk has no children."""
        return {}

    def recipe(self) -> dict[str, Any]:
        """Return format, path and options as plain JSON."""
        recipe = recipe_of(
            NAME,
            self._path,
            self._options,
            layout=self._options.layout,
            one_document=self._options.one_document or None,
        )
        return recipe if isinstance(self._given, str) else recipe | {"path": [redact(one) for one in self._given]}

    def summary(self) -> str:
        """One line: path, files, documents, tokens."""
        counts = {"files": len(self.listed), "documents": len(self), "tokens": self.num_tokens}
        known = vars(self.listed).get("_fingerprint")
        return line(NAME, {"path": self._path, **counts}, known)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    # --- inside --------------------------------------------------------------------------------------------------

    def _file(self, number: int) -> TokenSource:
        """File `number`, known to agree with the first one."""
        return self.files.get(number, self._require_alike)

    def _require_alike(self, number: int, source: TokenSource) -> None:
        if self.manifest is None and self._options.eos_id is not None:
            require_recorded_eos(self.listed.path(number), self._options.eos_id, getattr(source, "manifest", None))
        if number:
            first, path = os.path.basename(self.listed.path(0)), self.listed.path(number)
            require_alike("token widths", source.dtype, path, self.dtype, first)
            if self.manifest is None:  # then nothing but the files themselves says so
                require_alike("EOS ids", source.eos_id, path, self.eos_id, first)
                require_alike("tokenizers", _tokenizer_of(source), path, self.tokenizer_digest, first)

    @contextlib.contextmanager
    def _listed_documents(self, number: int) -> Generator[None]:
        """A file that has fewer documents than the index says is another file: the caller's numbers are right."""
        try:
            yield
        except IndexError:
            raise self._other_documents(number, "fewer documents") from None

    def _other_documents(self, number: int, found: str) -> Corrupt:
        return self.listed.contradiction(number, found, str(self.listed.documents[number]))

    def _file_of(self, index: int) -> tuple[int, int]:
        file = int(np.searchsorted(self._starts, index, side="right")) - 1
        return file, index - int(self._starts[file])

    def _files_of(self, indices: IntArray) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Each file that holds some of these documents, and their places in `indices`."""
        owner = np.searchsorted(self._starts, indices, side="right") - 1
        for file in np.unique(owner).tolist():
            yield file, np.flatnonzero(owner == file)

    def _only_file(self, starts: IntArray, length: int) -> int | None:
        """The file that holds all of these windows; None where they lie in several."""
        if not len(starts):
            return None
        low, high = int(starts.min()), int(starts.max()) + length
        file = int(np.searchsorted(self._token_starts, low, side="right")) - 1
        return file if file < len(self.listed) and high <= self._token_starts[file + 1] else None

    def _gather(self, read: Read, starts: IntArray, outs: tuple[NDArray[Any], ...]) -> None:
        """Rows of `outs` by one call to each file; rows that cross a border piece by piece."""
        length = outs[0].shape[1]
        first = np.searchsorted(self._token_starts, starts, side="right") - 1
        first = np.minimum(first, max(0, len(self.listed) - 1))  # of windows of no token at the end
        crossing = starts + length > self._token_starts[1:][first] if len(starts) and length else np.zeros(0, np.bool_)
        whole = np.flatnonzero(~crossing)
        for file in np.unique(first[whole]).tolist() if length else ():
            rows = whole[first[whole] == file]
            for out, found in zip(
                outs, read(self._file(file), starts[rows] - self._token_starts[file], length), strict=True
            ):
                out[rows] = found
        for row in np.flatnonzero(crossing).tolist():
            filled = 0
            for file, low, high in self._pieces(int(starts[row]), int(starts[row]) + length):
                for out, found in zip(outs, read(self._file(file), np.array([low]), high - low), strict=True):
                    out[row, filled : filled + high - low] = found[0]
                filled += high - low

    def _gather_flagged(
        self, starts: IntArray, length: int, out: TokenArray | None = None
    ) -> tuple[TokenArray, NDArray[np.bool_]]:
        """What `gather` and `gather_starts` give, for one read."""
        starts = checked_starts(starts, length, self.num_tokens)
        if out is not None and out.shape != (len(starts), length):
            raise ValueError(f"out has shape {out.shape}, expected {(len(starts), length)}")
        rows = np.empty((len(starts), length), self.dtype) if out is None else out
        flags = np.empty((len(starts), length), np.bool_)
        self._gather(_read_flagged, starts, (rows, flags))
        return rows, flags

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """`(file, start, stop)` of each file with tokens in `[start, stop)`, counted from its own first token."""
        first = int(np.searchsorted(self._token_starts, start, side="right")) - 1
        last = int(np.searchsorted(self._token_starts, stop, side="left"))
        bounds = self._token_starts[first : last + 1].tolist()
        return [
            (first + place, max(start - low, 0), min(stop, high) - low)
            for place, (low, high) in enumerate(pairwise(bounds))
            if low < high
        ]

    def _feed_starts(self, put: Put) -> None:
        each = zip(self.listed.documents.tolist(), self._token_starts.tolist(), strict=False)
        for number, (documents, first) in enumerate(each):
            if documents:
                starts = self._file(number).doc_starts
                if len(starts) - 1 != documents:
                    raise self._other_documents(number, f"{len(starts) - 1} documents")
                put(starts[:-1] + first)
        put(self._token_starts[-1:])


def _read_flagged(source: Any, starts: IntArray, length: int) -> tuple[NDArray[Any], ...]:
    return source.gather_flagged(starts, length)


def _read_flags(source: TokenSource, starts: IntArray, length: int) -> tuple[NDArray[Any], ...]:
    return (document_flags(source, starts, length),)


def _tokenizer_of(source: object) -> str | None:
    return getattr(source, "tokenizer_digest", None)


def _running(sizes: IntArray) -> IntArray:
    """int64[len(sizes) + 1], read-only: where each begins, and their sum."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    starts.flags.writeable = False
    return starts

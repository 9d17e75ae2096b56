"""Source of many token files: one run of documents and tokens, from files that are opened on demand."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._access import place_of
from penstock._arrays import as_index, as_indices, scatter
from penstock._tokens import checked_starts, document_flags, fill_windows, pieces, running
from penstock._tree import line
from penstock.abc import TokenSource
from penstock.codec.joined_digest import is_joinable
from penstock.errors import ConfigError, Corrupt, NotFound
from penstock.formats._proof import AnyProof, Proof, Provable, known_manifest, require_none
from penstock.formats._side_checks import RESTORE
from penstock.formats._sources import redacted, require_recorded_eos
from penstock.formats.tokens.common import document, document_batch, require_vocabulary
from penstock.formats.tokens.folder.files import (
    SIDE_NAME,
    FileList,
    OpenFiles,
    folder_of,
    manifest_of,
    read_finished_index,
    require_alike,
)
from penstock.formats.tokens.folder.found import FoundFiles, find_token_files
from penstock.formats.tokens.folder.index import INDEX_NAME
from penstock.formats.tokens.folder.side import NAME, ListedFiles, folder_digest, folder_facts
from penstock.formats.tokens.proof import all_documents
from penstock.formats.tokens.source import StoredTokens
from penstock.node.tokens import JoinedIds, JoinedSources
from penstock.store.base import Store
from penstock.store.derived import Put
from penstock.store.fingerprint import files_key
from penstock.types import Batch, Finding, IntArray, Manifest, OpenOptions, Place, Sample, TokenArray

_SMALL_DOCUMENTS = 1 << 13  # put together in less time than a lock and a new file take


def open_token_files(store: Store, given: str | Sequence[str], options: OpenOptions) -> TokenFilesSource:
    """Open a folder of token files: its `index.json` is read, and none of the data.

    Without such an index, the files of the folder, pattern or list are listed.

    Raises:
        NotFound: neither an index nor a token file exists.
        PrepareError: the run that makes them is unfinished.
        FormatError: the index is damaged, or of another kind.
        ConfigError: the files aren't token files of one format.
        TooLarge: a recorded id isn't below `vocab_size=`.
    """
    if isinstance(given, str):
        with contextlib.suppress(NotFound):
            return _open_listed(store, given, options)
    return TokenFilesSource(store, given, options, find_token_files(store, given, options), None)


def _open_listed(store: Store, path: str, options: OpenOptions) -> TokenFilesSource:
    root = folder_of(path)
    listed = ListedFiles(store, root, read_finished_index(store, root))
    return TokenFilesSource(store, path, options, listed, f"{root}/{INDEX_NAME}")


class _FolderIds(JoinedSources):
    """Tokens of all files, which must have the dtype of the first one."""

    def __init__(self, source: TokenFilesSource) -> None:
        super().__init__(running(source.listed.tokens), ())
        self._source = weakref.proxy(source)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._source.dtype

    def piece(self, number: int) -> tuple[TokenSource, int]:
        return self._source.file(number), 0


class TokenFilesSource(StoredTokens):
    """Documents and tokens of many files, one after the other; see `penstock.abc.TokenSource`.

    Made by `penstock.open`. Memory: 32 bytes per file, and its entry or its path; up to `MOST_OPEN` files are open.

    Args:
        store: store of the files.
        given: folder, pattern or paths that were opened.
        options: options of opening.
        listed: list of the files.
        index: the `index.json`, which records the largest id, or None.
    """

    title = NAME
    stated = ("layout", "one_document", "eos_id", "follow_links", "planes")
    starts_version = "token-files-starts-1"
    reads_alone = True

    def __init__(
        self, store: Store, given: str | Sequence[str], options: OpenOptions, listed: FileList, index: str | None
    ) -> None:
        super().__init__(store, given if isinstance(given, str) else given[0], options)
        self._given = given
        self.listed = listed
        self._index = index
        if options.one_document and listed.format != "raw-tokens":
            what, hint = f"the format {listed.format!r} stores document borders", "Omit --one-document"
            raise ConfigError(what, path=self._path, found="one_document", hint=hint)
        # Largest ids are in the index, so files needn't be read for theirs.
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

    @cached_property
    def ids(self) -> JoinedIds:
        return _FolderIds(self)

    @property
    def had_eos_borders(self) -> bool:
        """Whether document boundaries used to come from the EOS id; see `penstock._tokens.had_eos_borders`."""
        return self.listed.format not in ("megatron", "flat-tokens")

    @cached_property
    def block_starts(self) -> IntArray:
        """First document of each file, and the number of documents: int64[n_files + 1]."""
        return running(self.listed.documents)

    @property
    def fingerprint(self) -> str:
        """Digest of the index, which has the digest of each file's documents; without one, of a sample of the files."""
        return self.listed.fingerprint

    def _find_manifest(self) -> Manifest | None:
        return self.listed.manifest

    @property
    def kept_key(self) -> str:
        """Key of arrays derived from this data on this host; see `penstock._digest`."""
        if isinstance(self.listed, FoundFiles):  # their fingerprint is a sample; an index of ours has digests of all
            return files_key(self.fingerprint, self._store, self.listed.index_files)
        return self.fingerprint

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens: uint8, uint16 or uint32, as in the first file, with which the others must agree."""
        return self._dtype

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        return self.files.get(0).dtype if len(self.listed) else np.dtype(np.uint32)

    @property
    def max_token_id(self) -> int | None:
        """Largest id in the index or the side files; None if unknown."""
        return self.listed.max_token_id

    @property
    def size_bytes(self) -> int | None:
        """Size of all token files in bytes, if the side file records it; looked up without an index."""
        return self.listed.size_bytes

    @property
    def eos_id(self) -> int | None:
        """EOS id as passed, else as recorded in the folder's side file, else that of the first file."""
        if self._options.eos_id is not None and self.listed.format != "raw-tokens":  # llm.c begins documents with it
            return self._options.eos_id
        if self.manifest is not None:
            return self.manifest.eos_id
        return self.files.get(0).eos_id if len(self.listed) else None

    @property
    def tokenizer_digest(self) -> str | None:
        """Digest of the tokenizer, if the folder's side file, or the first file's, records it."""
        if self.manifest is not None:
            return self.manifest.tokenizer_digest
        return _tokenizer_of(self.files.get(0)) if len(self.listed) else None

    @property
    def is_large(self) -> bool:
        return len(self) >= _SMALL_DOCUMENTS

    def _feed_starts(self, put: Put) -> None:
        each = zip(self.listed.documents.tolist(), self.ids.begins.tolist(), strict=False)
        for number, (documents, first) in enumerate(each):
            if documents:
                starts = self.file(number).doc_starts
                if len(starts) - 1 != documents:
                    raise self._other_documents(number, f"{len(starts) - 1} documents")
                put(starts[:-1] + first)
        put(self.ids.begins[-1:])

    def details(self) -> dict[str, Any]:
        """Return the number of files, and their format, for `info`."""
        return {"files": len(self.listed), "format of the files": self.listed.format}

    def __len__(self) -> int:
        return int(self.block_starts[-1])

    def __getitem__(self, index: int, /) -> Sample:
        if not self._is_alone:
            return document(self, index)
        file, within = self._file_of(as_index(index, len(self)))
        with self._listed_documents(file):
            return self.file(file)[within]

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]); a list of arrays if their lengths differ."""
        if not self._is_alone:
            return document_batch(self, indices)
        indices = as_indices(indices, len(self))
        parts: list[tuple[NDArray[np.intp], Batch]] = []
        for file, at in self._files_of(indices):
            with self._listed_documents(file):
                parts.append((at, self.file(file).get_batch(indices[at] - self.block_starts[file])))
        return parts[0][1] if len(parts) == 1 else scatter(parts or [(indices, {"tokens": []})], len(indices))

    def by_file(self, indices: IntArray, /) -> Iterator[tuple[IntArray, TokenSource, IntArray]]:
        """Yield, for each file with some of these documents, their places in `indices`, the file, and indices in it."""
        for file, at in self._files_of(as_indices(indices, len(self))):
            yield at, self.file(file), indices[at] - self.block_starts[file]

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token of the windows starts a document."""
        flags = np.empty((len(starts), length), np.bool_)
        return self.ids.fill(lambda file: partial(document_flags, file), starts, flags)

    def place_of(self, index: int, /) -> Place:
        """Return the place of the document in its file."""
        file, within = self._file_of(as_index(index, len(self)))
        with self._listed_documents(file):
            return place_of(self.file(file), within)

    def proof(self) -> AnyProof | None:
        """Return the proof by the files' side files and the index; raise `Corrupt` if the index contradicts its own."""
        if isinstance(self.listed, ListedFiles):
            _require_index(self._store, self.listed)
            if not self._store.is_local:  # its digests are of documents, which would be fetched twice
                return None
        return _FolderProof(self)

    def recipe(self) -> dict[str, Any]:
        return super().recipe() | {"path": redacted(self._given)}

    def shown(self) -> dict[str, Any]:
        counts = {"files": len(self.listed), "documents": len(self), "tokens": self.num_tokens}
        return {"path": self._path, **counts}

    def summary(self) -> str:
        return line(NAME, self.shown(), vars(self.listed).get("fingerprint"))

    def file(self, number: int) -> TokenSource:
        """Return file `number`, known to agree with the first one."""
        return self.files.get(number, self._require_alike)

    def _require_alike(self, number: int, source: TokenSource) -> None:
        if self.manifest is None and self._options.eos_id is not None:
            require_recorded_eos(self.listed.path(number), self._options.eos_id, getattr(source, "manifest", None))
        if number:
            first, path = os.path.basename(self.listed.path(0)), self.listed.path(number)
            require_alike("token widths", source.dtype, path, self.dtype, first)
            if self.manifest is None:  # then only the files themselves record it
                require_alike("EOS ids", source.eos_id, path, self.eos_id, first)
                require_alike("tokenizers", _tokenizer_of(source), path, self.tokenizer_digest, first)

    @contextlib.contextmanager
    def _listed_documents(self, number: int) -> Generator[None]:
        """Raise an error about the file if it has fewer documents than in the index, because it was replaced."""
        try:
            yield
        except IndexError:
            raise self._other_documents(number, "fewer documents") from None

    def _other_documents(self, number: int, found: str) -> Corrupt:
        return self.listed.contradiction(number, found, str(self.listed.documents[number]))

    def _file_of(self, index: int) -> tuple[int, int]:
        file = int(np.searchsorted(self.block_starts, index, side="right")) - 1
        return file, index - int(self.block_starts[file])

    def _files_of(self, indices: IntArray) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Yield each file with some of these documents, and their places in `indices`."""
        owner = np.searchsorted(self.block_starts, indices, side="right") - 1
        for file in np.unique(owner).tolist():
            yield file, np.flatnonzero(owner == file)

    def _gather_flagged(
        self, starts: IntArray, length: int, out: TokenArray | None = None
    ) -> tuple[TokenArray, NDArray[np.bool_]]:
        """Return the results of `gather` and `gather_starts`, by one read."""
        starts = checked_starts(starts, length, self.num_tokens)
        if out is not None and out.shape != (len(starts), length):
            raise ValueError(f"out has shape {out.shape}, expected {(len(starts), length)}")
        rows = np.empty((len(starts), length), self.dtype) if out is None else out
        flags = np.empty((len(starts), length), np.bool_)
        fill_windows(self.ids.begins, self._read_flagged, starts, (rows, flags))
        return rows, flags

    def _read_flagged(self, file: int, starts: IntArray, length: int) -> tuple[NDArray[Any], ...]:
        source: Any = self.file(file)
        return source.gather_flagged(starts, length)


def _tokenizer_of(source: object) -> str | None:
    return getattr(source, "tokenizer_digest", None)


def _require_index(store: Store, listed: ListedFiles) -> None:
    where, side = f"{listed.root}/{INDEX_NAME}", f"{listed.root}/{SIDE_NAME}"
    manifest = known_manifest(NAME, store, where, side, partial(folder_facts, listed.data, listed.index))
    found = folder_digest(listed.index)
    if manifest is not None and None not in (found, manifest.digest) and found != manifest.digest:
        stated = f"{manifest.digest}, as recorded in the side file"
        require_none([Finding(f"{NAME}.changed", "error", where, None, f"digest {found}", stated, RESTORE)])


class _FolderProof:
    """Proof of many files: each by its own side file, and all by the index."""

    def __init__(self, source: TokenFilesSource) -> None:
        self._source = source
        self._files: dict[int, AnyProof | None] = {}

    def require(self, start: int, stop: int) -> None:
        for number, low, high in pieces(self._source.ids.begins, start, stop) if start < stop else ():
            if number not in self._files:
                self._files[number] = self._proof_of(number)
            found = self._files[number]
            if found is not None:
                found.require(low, high)

    def _proof_of(self, number: int) -> AnyProof | None:
        source, listed = self._source.file(number), self._source.listed
        own = source.proof() if isinstance(source, Provable) else None
        if not isinstance(listed, ListedFiles):
            return own
        stated, manifest = listed.index.files[number].digest, manifest_of(source)
        known = None if manifest is None else manifest.digest
        if own is None or known is None or is_joinable(known) != is_joinable(stated):
            return Proof([all_documents(source, listed.path(number), stated)])
        if known != stated:
            raise listed.contradiction(number, f"documents with the digest {known}", stated)
        return own

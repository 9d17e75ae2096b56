"""Source of a dataset: tokens as one run, documents through the index."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import as_index
from penstock.errors import Truncated
from penstock.formats._findings import Problem
from penstock.formats._manifest import DATA, data_fingerprint
from penstock.formats._proof import Proof
from penstock.formats.tokens.ids import FileIds, PickedIds, id_limit
from penstock.formats.tokens.megatron.index import (
    IndexArrays,
    document_starts,
    last_border_problem,
    sequence_starts,
    trailing_problem,
    width_problem,
)
from penstock.formats.tokens.megatron.kept import prefix_of, read_committed
from penstock.formats.tokens.megatron.layout import (
    HEADER_BYTES,
    INDEX,
    Header,
    bin_path,
    idx_path,
    megatron_facts,
    read_header,
    read_manifest,
    require_kind,
    side_file_path,
)
from penstock.formats.tokens.proof import token_proof
from penstock.formats.tokens.source import Ids, SideFile, StoredTokens
from penstock.store.base import Store
from penstock.store.fingerprint import opened_file
from penstock.types import Extent, IntArray, Manifest, OpenOptions, Place, TokenArray

_STARTS_VERSION = "megatron-starts-1"
_SMALL_INDEX_BYTES = 1 << 16  # worked out in less time than a lock and a new file take


def open_megatron(store: Store, path: str, options: OpenOptions, *, may_trail: bool = False) -> MegatronSource:
    """Open the dataset of a prefix, of which the `.bin` or the `.idx` may be named: a few small reads.

    Args:
        store: store of the dataset.
        path: the prefix or one of its two files.
        options: how it is read.
        may_trail: whether tokens may follow the last sequence although no side file records them.

    Raises:
        NotFound: one of the two files is not there.
        Truncated: a file ends early.
        Corrupt: header, sizes, the last sequence and the last document contradict each other.
        ConfigError: an option can't hold.
        TooLarge: `vocab_size=` is given and the side file records a larger id.
    """
    return read_committed(store, path, lambda store: _open_committed(store, path, options, may_trail=may_trail))


def _open_committed(store: Store, path: str, options: OpenOptions, *, may_trail: bool) -> MegatronSource:
    prefix = prefix_of(store, path)
    header = read_header(store, prefix)
    if isinstance(header, Problem):
        raise header.error()
    require_kind(prefix, header.kind, options.layout)
    bin_bytes = store.size(bin_path(prefix))
    index = IndexArrays(store, prefix, header, bin_bytes, options.read)
    stop_bytes = _last_stop(index)
    if stop_bytes != bin_bytes:  # all lengths are read only if there is a reason
        problem = width_problem(index) or last_sequence_problem(index)
        if problem is not None:
            raise problem.error()
        trailing = trailing_problem(index, stop_bytes)
        if trailing is not None and not may_trail and read_manifest(store, prefix, header.num_documents) is None:
            raise trailing.error()
    problem = last_border_problem(index) if header.num_sequences else None
    if problem is not None:
        raise problem.error()
    return MegatronSource(store, prefix, index, options)


def last_sequence_problem(index: IndexArrays) -> Problem | None:
    """Return the problem if the `.bin` ends before the last sequence does, as in an incomplete copy."""
    stop_bytes = _last_stop(index)
    if stop_bytes <= index.bin_bytes:
        return None
    return Problem(
        "megatron.truncated",
        Truncated,
        bin_path(index.prefix),
        "the tokens end before the end of the last sequence",
        "Copy the file again; `penstock repair` keeps the complete documents",
        index.bin_bytes,
        f"{index.bin_bytes} bytes",
        f"{stop_bytes} bytes",
    )


def _last_stop(index: IndexArrays) -> int:
    """Return the byte at which the last sequence ends; 0 without sequences."""
    count, width = index.header.num_sequences, index.header.kind.itemsize
    if count == 0:
        return 0
    return int(index.pointers(count - 1, count)[0]) + width * int(index.lengths(count - 1, count)[0])


class MegatronSource(StoredTokens):
    """The documents and tokens of one dataset; see `penstock.abc.TokenSource`. Made by `penstock.open`.

    A document is all its sequences, one after another. Tokens are in the order of the index, whatever the order of
    the sequences in the file. If that is the file's own order, without gaps, they are a view of it.
    """

    title = "megatron"
    reads_alone = True

    def __init__(self, store: Store, prefix: str, index: IndexArrays, options: OpenOptions) -> None:
        super().__init__(store, prefix, options)
        self._index = index
        self._opened = opened_file(store, bin_path(prefix))
        self._require_options(self.dtype)

    def __reduce__(self) -> tuple[object, ...]:
        # Tokens may trail: whatever rule it was opened by, it was opened.
        return (partial(open_megatron, may_trail=True), (self._store, self._path, self._options))

    def _head(self) -> bytes:
        """Return the index's header, and the size of both files."""
        return self._store.get(idx_path(self._path), 0, HEADER_BYTES) + self.size_bytes.to_bytes(16, "little")

    @property
    def _data_path(self) -> str:
        return bin_path(self._path)

    def _named_files(self) -> list[tuple[str, str]]:
        return [(DATA, self._data_path), (INDEX, idx_path(self._path))]

    def _find_fingerprint(self) -> str:
        if self.manifest is None:
            return super()._find_fingerprint()
        # A side file without block digests leaves out the index, as in earlier versions.
        return data_fingerprint(self._store, self.title, self._head(), self._data_path, self.manifest)

    def _side(self) -> SideFile:
        facts = partial(megatron_facts, self._store, self._path, self.header.num_documents)
        return SideFile(side_file_path(self._path), facts)

    @property
    def size_bytes(self) -> int:
        """Bytes of both files."""
        return self._index.bin_bytes + self.header.size_bytes

    @property
    def header(self) -> Header:
        """Dtype code and counts."""
        return self._index.header

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.header.kind.ids

    @property
    def most_tokens(self) -> int:
        """Ids in the `.bin`: `num_tokens`, unless sequences leave some out. Reads no index."""
        return self._index.bin_bytes // self.header.kind.itemsize

    @property
    def doc_starts(self) -> IntArray:
        return self._doc_starts.get()[1:]

    @property
    def modes(self) -> NDArray[np.int8] | None:
        """int8[n_sequences]: mode of each sequence; None if the index has none."""
        return self._index.modes()

    @property
    def sequence_lengths(self) -> IntArray:
        """int64[n_sequences]: tokens of each sequence."""
        return self._index.lengths(0, self.header.num_sequences)

    @property
    def document_indices(self) -> IntArray:
        """int64[n_docs + 1]: first sequence of each document, and the number of sequences."""
        return self._index.borders(0, self.header.num_documents + 1)

    @property
    def only_here(self) -> tuple[str, ...]:
        """Contents of the files that other formats can't store."""
        several = self.header.num_sequences != self.header.num_documents
        return ("sequence borders inside documents",) * several + ("modes",) * self.header.has_modes

    @property
    def is_large(self) -> bool:
        return self.header.size_bytes >= _SMALL_INDEX_BYTES

    def __len__(self) -> int:
        return self.header.num_documents

    def token_run(self) -> Extent | None:
        """Return the file range of all tokens; None if they aren't back to back, or may not be unsigned ids."""
        kind = self.header.kind
        unsigned = kind.stored.kind == "u" or (kind.stored == f"<i{kind.ids.itemsize}" and self._is_trusted)
        if not unsigned or isinstance(self.ids, PickedIds):
            return None
        return Extent(self._store.current_path(self._data_path), 0, self.num_tokens * kind.itemsize)

    def _proof_by(self, manifest: Manifest) -> Proof:
        tokens = (self._store, self._data_path, 0, self.most_tokens, self.header.kind.itemsize)
        in_order = not isinstance(self.ids, PickedIds)
        return token_proof(self, manifest, *tokens, {INDEX: idx_path(self._path)}, in_order=in_order)

    def place_of(self, index: int, /) -> Place:
        """Return the file ranges of document `index`, one per sequence."""
        places, lengths = self._index.document(as_index(index, len(self)))
        width = self.header.kind.itemsize
        extents = (
            Extent(self._store.current_path(self._data_path), place * width, length * width)
            for place, length in zip(places.tolist(), lengths.tolist(), strict=True)
        )
        return Place(extents=tuple(extents))

    def shown(self) -> dict[str, Any]:
        return {"path": self._path, "documents": len(self), "dtype": self.header.kind.name}

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _is_trusted(self) -> bool:
        """Whether the side file records that all ids are valid and their dtype allows this."""
        largest = None if self.manifest is None else self.manifest.max_token_id
        return largest is not None and largest < id_limit(self.header.kind.stored)

    @cached_property
    def _whole_file(self) -> FileIds:
        return self._file_ids(self.most_tokens)

    @cached_property
    def ids(self) -> Ids:
        """All tokens, in the order of the index."""
        found = self._doc_starts.get()
        in_order, num_tokens = bool(found[0]), int(found[-1])
        if in_order:
            return self._file_ids(num_tokens)
        starts, _ = sequence_starts(self._index)
        places = self._index.pointers(0, self.header.num_sequences) // self.header.kind.itemsize
        return PickedIds(self._whole_file, starts, places)

    @cached_property
    def _starts_key(self) -> str:
        return f"{_STARTS_VERSION}-{self._index_key(idx_path(self._path), 0, self.header.size_bytes)}"

    def _find_starts(self) -> IntArray:
        """Return int64[n_docs + 2]: whether sequences are in order, then `doc_starts`."""
        starts, in_order = sequence_starts(self._index)
        documents = document_starts(self._index, starts)
        # The end is that of the last sequence, which the checked document index ends with.
        return np.concatenate([np.array([in_order], np.int64), documents])

    def _file_ids(self, num_tokens: int) -> FileIds:
        path, stored, options = bin_path(self._path), self.header.kind.stored, self._options
        return FileIds(
            self._store, path, 0, num_tokens, stored, options.read, trusted=self._is_trusted, opened=self._opened
        )

    def _read_document(self, index: int) -> TokenArray:
        places, lengths = self._index.document(index)
        stops = places + lengths
        if len(places) > 1 and bool((places[1:] == stops[:-1]).all()):
            places, stops = places[:1], stops[-1:]
        ranges = zip(places.tolist(), stops.tolist(), strict=True)
        runs = [self._whole_file.tokens(start, stop) for start, stop in ranges]
        found = runs[0] if len(runs) == 1 else np.concatenate([np.empty(0, self.dtype), *runs])
        found.flags.writeable = False
        return found

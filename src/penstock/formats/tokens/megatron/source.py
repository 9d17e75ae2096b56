"""Reading a dataset: tokens as one run, documents through the index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._borders import flags_of_starts
from penstock._columns import column
from penstock._index import as_index, as_indices
from penstock._tree import brief, html, line, tree
from penstock.abc import Source
from penstock.errors import Truncated
from penstock.formats._findings import Problem
from penstock.formats._manifest import DATA, data_fingerprint
from penstock.formats._proof import Proof, known_manifest
from penstock.formats.tokens.common import (
    document_batch,
    eos_of,
    mode_of_store,
    recipe_of,
    require_eos,
    require_vocabulary,
    token_schema,
)
from penstock.formats.tokens.ids import FileIds, id_limit
from penstock.formats.tokens.megatron.index import (
    IndexArrays,
    document_starts,
    last_border_problem,
    sequence_starts,
    trailing_problem,
    width_problem,
)
from penstock.formats.tokens.megatron.kept import prefix_of, read_committed
from penstock.formats.tokens.megatron.layout import HEADER_BYTES, Header, bin_path, idx_path, read_header, require_kind
from penstock.formats.tokens.megatron.manifest import INDEX, megatron_facts, read_manifest, side_file_path
from penstock.formats.tokens.megatron.tokens import Ids, ScatteredIds, file_ids, joined
from penstock.formats.tokens.proof import token_proof
from penstock.store.base import Store
from penstock.store.derived import DerivedCache
from penstock.store.fingerprint import files_key, once_a_host, opened_file, sample_fingerprint
from penstock.store.mapped import Held
from penstock.store.place import current_path
from penstock.types import (
    Batch,
    Extent,
    IntArray,
    Manifest,
    OpenOptions,
    Place,
    Sample,
    TokenArray,
)

_STARTS_VERSION = "megatron-starts-1"
_SMALL_INDEX_BYTES = 1 << 16  # worked out in less time than a lock and a new file take
_HASHED_INDEX_BYTES = 1 << 26


def open_megatron(store: Store, path: str, options: OpenOptions, *, may_trail: bool = False) -> MegatronSource:
    """Open the dataset of a prefix, of which the `.bin` or the `.idx` may be named: a few small reads.

    Args:
        store: where it is.
        path: the prefix or one of its two files.
        options: how it is read.
        may_trail: whether tokens may follow the last sequence although no side file knows of them.

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
    """Whether the `.bin` ends before the last sequence does: what a copy that stopped early looks like."""
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


class MegatronSource:
    """The documents and tokens of one dataset; see `penstock.abc.TokenSource`. Made by `penstock.open`.

    A document is all its sequences, one after another. Tokens come in the order of the index, whatever the order of
    the sequences in the file; where that is the file's own order, and nothing lies between them, they are a view of it.
    """

    def __init__(self, store: Store, prefix: str, index: IndexArrays, options: OpenOptions) -> None:
        self._store = store
        self._prefix = prefix
        self._index = index
        self._options = options
        self._opened = opened_file(store, bin_path(prefix))
        self._fingerprint: str | None = None
        self._held_starts = Held(self._load_starts)
        require_eos(prefix, self.dtype, options.eos_id)
        if options.vocab_size is not None:
            require_vocabulary(prefix, self.dtype, self.manifest, options.vocab_size)

    def __reduce__(self) -> tuple[object, ...]:
        reopen = partial(open_megatron, may_trail=True)  # it was opened here, by whatever rule
        return (reopen, (self._store, self._prefix, self._options))

    schema = token_schema
    preferred_mode = mode_of_store

    @property
    def fingerprint(self) -> str:
        """Digest of the index's header and size, and of a sample of both files or the side file's digests."""
        if self._fingerprint is None:
            head = self._store.get(idx_path(self._prefix), 0, HEADER_BYTES) + self.size_bytes.to_bytes(16, "little")
            if self.manifest is not None:
                path = bin_path(self._prefix)
                self._fingerprint = data_fingerprint(self._store, "megatron", head, path, self.manifest)
            else:
                files = [(DATA, bin_path(self._prefix)), (INDEX, idx_path(self._prefix))]
                self._fingerprint = once_a_host(
                    self._store,
                    [idx_path(self._prefix)],
                    f"megatron {head.hex()}",
                    lambda: sample_fingerprint(self._store, "megatron", head, files),
                )
        return self._fingerprint

    @cached_property
    def manifest(self) -> Manifest | None:
        """What the side file says; None where there is none, or where it does not belong to these files."""
        return read_manifest(self._store, self._prefix, self.header.num_documents)

    @property
    def tokenizer_digest(self) -> str | None:
        """Digest of the tokenizer, if the side file records it."""
        return None if self.manifest is None else self.manifest.tokenizer_digest

    @property
    def kept_key(self) -> str:
        """By what this host keeps what it derives of these data; see `penstock._digest`."""
        return files_key(self.fingerprint, self._store, [idx_path(self._prefix), bin_path(self._prefix)])

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
        """uint8, uint16 or uint32."""
        return self.header.kind.ids

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return self.ids.num_tokens

    @property
    def most_tokens(self) -> int:
        """As many ids as the `.bin` holds: `num_tokens`, unless sequences leave some out; no index is read for it."""
        return self._index.bin_bytes // self.header.kind.itemsize

    @property
    def doc_starts(self) -> IntArray:
        """int64[n_docs + 1], read-only: first token of each document, and `num_tokens`.

        Worked out at first use of tokens; once a host, and mapped, unless the index is small.

        Raises:
            Corrupt: the index is damaged; documents that it gives right can still be read one by one.
        """
        return self._starts[1:]

    @property
    def eos_id(self) -> int | None:
        """As given, else what the side file says."""
        return eos_of(self._options, self.manifest)

    @property
    def modes(self) -> NDArray[np.int8] | None:
        """int8[n_sequences]: mode of each sequence; None where the index has none."""
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
        """What the files hold beside documents of tokens, and other formats have no place for."""
        several = self.header.num_sequences != self.header.num_documents
        return ("sequence borders inside documents",) * several + ("modes",) * self.header.has_modes

    @property
    def derived(self) -> DerivedCache | None:
        """Where what is computed from this dataset is kept; None for a small one."""
        return DerivedCache() if self.header.size_bytes >= _SMALL_INDEX_BYTES else None

    def __len__(self) -> int:
        return self.header.num_documents

    def __getitem__(self, index: int, /) -> Sample:
        return {"tokens": self._document(as_index(index, len(self)))}

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the documents at `indices` (int64[k]); a list of arrays if their lengths differ."""
        if self._held_starts.held() is not None:
            return document_batch(self, indices)
        return {"tokens": column([self._document(index) for index in as_indices(indices, len(self)).tolist()])}

    def tokens(self, start: int, stop: int) -> TokenArray:
        """uint[stop - start]: tokens `[start, stop)`; a read-only view of the mapped file where that is possible."""
        return self.ids.tokens(start, stop)

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return one window per row, uint[len(starts), length], written into `out` if given."""
        return self.ids.gather(starts, length, out)

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """bool[len(starts), length]: whether each token of each window is the first of a document, by the index."""
        return flags_of_starts(self.doc_starts, starts, length)

    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        """File ranges of tokens `[start, stop)`."""
        return self.ids.extents(start, stop)

    def token_run(self) -> Extent | None:
        """File range of all tokens; None where they are not back to back, or may be no unsigned ids as they stand."""
        kind = self.header.kind
        unsigned = kind.stored.kind == "u" or (kind.stored == f"<i{kind.ids.itemsize}" and self._is_trusted)
        if not unsigned or isinstance(self.ids, ScatteredIds):
            return None
        return Extent(current_path(self._store, bin_path(self._prefix)), 0, self.num_tokens * kind.itemsize)

    def proof(self) -> Proof | None:
        """What the side file proves; see `penstock.formats._proof`."""
        store, prefix, path = self._store, self._prefix, bin_path(self._prefix)
        facts = partial(megatron_facts, store, prefix, len(self))
        manifest = known_manifest("megatron", store, path, side_file_path(prefix), facts)
        if manifest is None:
            return None
        in_order = not isinstance(self.ids, ScatteredIds)
        indexes, width = {INDEX: idx_path(prefix)}, self.header.kind.itemsize
        return token_proof(self, manifest, store, path, 0, self.most_tokens, width, indexes, in_order=in_order)

    def place_of(self, index: int, /) -> Place:
        """File ranges of document `index`, one for each sequence."""
        places, lengths = self._index.document(as_index(index, len(self)))
        width = self.header.kind.itemsize
        extents = (
            Extent(current_path(self._store, bin_path(self._prefix)), place * width, length * width)
            for place, length in zip(places.tolist(), lengths.tolist(), strict=True)
        )
        return Place(extents=tuple(extents))

    def children(self) -> Mapping[str, Source[Any]]:
        """Return an empty mapping: data on disk has no children."""
        return {}

    def recipe(self) -> dict[str, Any]:
        """Format, prefix and options."""
        return recipe_of("megatron", self._prefix, self._options, layout=self._options.layout)

    def summary(self) -> str:
        """One line: prefix, documents, dtype."""
        params = {"path": self._prefix, "documents": len(self), "dtype": self.header.kind.name}
        return line("megatron", params, self._fingerprint)

    __repr__ = brief
    __str__ = tree
    _repr_html_ = html

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _is_trusted(self) -> bool:
        """Whether the side file records that all ids are good; what no id can be is no record of it."""
        largest = None if self.manifest is None else self.manifest.max_token_id
        return largest is not None and largest < id_limit(self.header.kind.stored)

    @cached_property
    def _whole_file(self) -> FileIds:
        return self._file_ids(self.most_tokens)

    @cached_property
    def ids(self) -> Ids:
        """All tokens, in the order of the index."""
        in_order, num_tokens = bool(self._starts[0]), int(self._starts[-1])
        if in_order:
            return self._file_ids(num_tokens)
        starts, _ = sequence_starts(self._index)
        places = self._index.pointers(0, self.header.num_sequences) // self.header.kind.itemsize
        return ScatteredIds(self._whole_file, starts, places)

    @property
    def _starts(self) -> IntArray:
        """int64[n_docs + 2]: whether sequences lie in order, then `doc_starts`."""
        return self._held_starts.get()

    def _load_starts(self) -> IntArray:
        if self.derived is None:
            return self._find_starts()
        return self.derived.array(self._starts_key, "int64", self._find_starts)

    @cached_property
    def _starts_key(self) -> str:
        path = idx_path(self._prefix)
        if self.header.size_bytes <= _HASHED_INDEX_BYTES:
            # A fingerprint is a sample: two datasets may share it and differ in the middle of their indexes.
            return f"{_STARTS_VERSION}-{self.fingerprint}-{xxhash.xxh3_64_hexdigest(self._store.get(path))}"
        return f"{_STARTS_VERSION}-{files_key(self.fingerprint, self._store, [path])}"

    def _find_starts(self) -> IntArray:
        starts, in_order = sequence_starts(self._index)
        documents = document_starts(self._index, starts)
        found = np.concatenate([np.array([in_order], np.int64), documents])
        # The end is that of the last sequence, which the checked document index ends with.
        found.flags.writeable = False
        return found

    def _file_ids(self, num_tokens: int) -> FileIds:
        kind, read = self.header.kind, self._options.read
        trusted = self._is_trusted
        return file_ids(self._store, self._prefix, kind, num_tokens, read, trusted=trusted, opened=self._opened)

    def _document(self, index: int) -> TokenArray:
        places, lengths = self._index.document(index)
        stops = places + lengths
        if len(places) > 1 and bool((places[1:] == stops[:-1]).all()):
            places, stops = places[:1], stops[-1:]
        ranges = zip(places.tolist(), stops.tolist(), strict=True)
        found = joined([self._whole_file.tokens(start, stop) for start, stop in ranges], self.dtype)
        found.flags.writeable = False
        return found

"""Source of a flat-tokens array: tokens are read directly, documents on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, repeat
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock._arrays import as_index, byte_view
from penstock._tokens import checked_starts
from penstock.errors import Corrupt, TooLarge, Truncated
from penstock.formats._findings import Problem
from penstock.formats._manifest import file_digest
from penstock.formats._proof import Proof, ProvedRun, beside, require_none
from penstock.formats._side_checks import RESTORE
from penstock.formats.tokens.common import require_eos
from penstock.formats.tokens.flat_tokens.group import LIMIT, STARTS, TOKENS, Group, find_group, group_side, read_group
from penstock.formats.tokens.source import SideFile, StoredTokens
from penstock.formats.tokens.zarr.chunks import ChunkArray
from penstock.formats.tokens.zarr.foreign import ForeignArray
from penstock.formats.tokens.zarr.meta import ARRAY_FILE, ATTRIBUTES_FILE, REBUILD, ArrayMeta, fault
from penstock.store.base import Readable, Store
from penstock.store.fingerprint import once_a_host, sample_fingerprint
from penstock.types import Extent, Finding, IntArray, Manifest, OpenOptions, Place, ReadMode, TokenArray

TOKENS_BUDGET_BYTES = 1 << 26
"""Decoded tokens that a source keeps if chunks are compressed."""

STARTS_BUDGET_BYTES = 1 << 24
"""Decoded entries of `seq_starts` that a source keeps, until all of them were requested."""

AnyArray: TypeAlias = ChunkArray | ForeignArray

_STARTS_VERSION = "flat-tokens-starts-1"
_DERIVED_ITEMS = 1 << 22
_SAMPLED_FILES = 10
_MOST_MISSING = 1 << 14
_HASH_BYTES = 1 << 24
_ONE = np.uint32(1)


def open_flat_tokens(store: Store, path: str, options: OpenOptions) -> FlatTokensSource:
    """Open a single array group, or one split of a dataset, by reading a few small metadata files.

    Raises:
        NotFound: the path or the split doesn't exist.
        Unsupported: another kind of zarr group, or an unsupported codec.
        Corrupt: metadata is damaged or violates the format.
        ConfigError: a split is named and the group has none, or the reverse.
        TooLarge: `max_token_id` isn't below `vocab_size=`.
    """
    folder, split = find_group(store, path.rstrip("/") or path, options.split)
    return FlatTokensSource(store, path, split, read_group(store, folder), options)


def open_array(
    store: Store, folder: str, meta: ArrayMeta, read: ReadMode, budget_bytes: int, *, is_empty: bool = False
) -> AnyArray:
    """Return the reader of an array.

    No chunk may be missing, whatever the fill value: zeros would be trained. Only for a group without tokens
    (`is_empty`), zarr may have left out the one chunk of `seq_starts`.
    """
    meta = meta if is_empty else replace(meta, fill=None)
    if meta.foreign is not None:
        return ForeignArray(store, folder, meta)
    return ChunkArray(store, folder, meta, read, budget_bytes)


class EncodedIds:
    """Ids of an array with a lowest bit that marks the start of a sequence; reading always copies."""

    dtype = np.dtype(np.uint32)

    def __init__(self, array: AnyArray) -> None:
        self._array = array
        self.num_tokens = array.meta.num_items

    def tokens(self, start: int, stop: int) -> TokenArray:
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) are not all in [0, {self.num_tokens})")
        ids = self._array.read(start, stop, 1)
        ids.setflags(write=False)
        return ids

    def gather(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        encoded = self.encoded(starts, length, out)
        return np.right_shift(encoded, _ONE, out=encoded)

    def encoded(self, starts: IntArray, length: int, out: TokenArray | None = None) -> TokenArray:
        """Return the windows as they are stored, uint32[len(starts), length]."""
        starts = checked_starts(starts, length, self.num_tokens)
        if out is not None and out.shape != (len(starts), length):
            raise ValueError(f"out has shape {out.shape}, expected {(len(starts), length)}")
        return self._array.gather(starts, length, out)

    def extent(self, start: int, stop: int) -> Extent:
        return self.extents(start, stop)[0]

    def extents(self, start: int, stop: int) -> tuple[Extent, ...]:
        return tuple(self._array.extents(start, stop))


class FlatTokensSource(StoredTokens):
    """Sequences and tokens of one flat-tokens array; see `penstock.abc.TokenSource`. Made by `penstock.open`.

    Memory: `TOKENS_BUDGET_BYTES` and `STARTS_BUDGET_BYTES` of decoded chunks, and 8 bytes per document after the first
    use of `doc_starts`. Uncompressed data is mapped and needs none of these.
    """

    title = "flat-tokens"
    reopen = staticmethod(open_flat_tokens)
    stated = ("eos_id", "follow_links", "planes")
    reads_alone = True

    def __init__(self, store: Store, path: str, split: str | None, group: Group, options: OpenOptions) -> None:
        super().__init__(store, path, options)
        tokens, starts, limit = group.require()
        self._split = split
        self._group = group
        self._limit = limit
        self._is_compressed = tokens.foreign is not None or not tokens.chain.raw
        folder, read, is_empty = group.path, options.read, tokens.num_items == 0
        self._tokens = open_array(store, f"{folder}/{group.tokens_name}", tokens, read, TOKENS_BUDGET_BYTES)
        self._encoded = EncodedIds(self._tokens)
        self.ids = self._encoded
        self._starts = open_array(store, f"{folder}/{STARTS}", starts, read, STARTS_BUDGET_BYTES, is_empty=is_empty)
        require_eos(path, self.dtype, options.eos_id)
        if options.vocab_size is not None and limit >= options.vocab_size:
            raise TooLarge(
                "the data may contain ids outside the vocabulary",
                path=f"{folder}/{ATTRIBUTES_FILE[group.zarr_format]}",
                found=f"{LIMIT} {limit}",
                expected=f"0 to {options.vocab_size - 1}",
                hint="They come from a different tokenizer",
            )

    @property
    def _data_path(self) -> str:
        return self._group.path

    def _read_files(self) -> tuple[Store, list[str]]:
        return self._store, sorted(self._store.list(self._group.path))

    @property
    def split(self) -> str | None:
        """Name of the split; None if the group has no splits."""
        return self._split

    def _side(self) -> SideFile:
        return group_side(self._store, self._group)

    @property
    def max_token_id(self) -> int:
        """The attribute `max_token_id`: no id is larger."""
        return self._limit

    def __len__(self) -> int:
        return self._starts.meta.num_items - 1

    def _read_document(self, index: int) -> TokenArray:
        start, stop = (int(one) for one in self._starts.read(index, index + 2))
        if not 0 <= start <= stop <= self.num_tokens:
            raise _no_range(self._group, f"{start} and {stop} at entry {index}", self.num_tokens).error()
        return self.tokens(start, stop)

    def gather_starts(self, starts: IntArray, length: int) -> NDArray[np.bool_]:
        """Return bool[len(starts), length]: whether each token starts a sequence, by its start bit."""
        return np.bitwise_and(self._encoded.encoded(starts, length), _ONE).astype(np.bool_)

    def gather_flagged(
        self, starts: IntArray, length: int, out: TokenArray | None = None
    ) -> tuple[TokenArray, NDArray[np.bool_]]:
        """Return the results of `gather` and `gather_starts`, by one read."""
        encoded = self._encoded.encoded(starts, length, out)
        flags = np.bitwise_and(encoded, _ONE).astype(np.bool_)
        return np.right_shift(encoded, _ONE, out=encoded), flags

    def place_of(self, index: int, /) -> Place:
        """Return the file ranges of sequence `index`."""
        start, stop = self.doc_starts[(index := as_index(index, len(self))) : index + 2].tolist()
        return Place(extents=self.token_extent(start, stop))

    def _proof_by(self, manifest: Manifest) -> Proof:
        return Proof(self._proved_files(manifest))

    def _proved_files(self, manifest: Manifest) -> Iterator[ProvedRun]:
        """Yield the files of the group that have recorded digests: those of tokens by their content."""
        arrays = {TOKENS: (self._group.tokens_name, self._tokens.meta), STARTS: (STARTS, self._starts.meta)}
        for name, digests in manifest.block_digests.items():
            path, names = f"{self._group.path}/{name}", repeat("")
            if name in arrays:
                folder, meta = arrays[name]
                path, names = f"{self._group.path}/{folder}/", map(meta.file_name, count())
            checks = [_FileProof(self._store, path + one, digest) for one, digest in zip(names, digests, strict=False)]
            if name != TOKENS:
                yield from beside(checks, self.num_tokens)
                continue
            items = self._tokens.meta.chunk_items
            for number, one in enumerate(checks):
                yield ProvedRun(number * items, (number + 1) * items, one)

    def _stated(self) -> dict[str, Any]:
        return {**({} if self._split is None else {"split": self._split}), **super()._stated()}

    def shown(self) -> dict[str, Any]:
        counts = {"documents": len(self), "tokens": self.num_tokens, LIMIT: self._limit}
        return {"path": self._path, "split": self._split, **counts}

    @property
    def is_large(self) -> bool:
        count = self._starts.meta.num_items
        return count >= _DERIVED_ITEMS and isinstance(self._starts, ChunkArray) and not self._is_one_map()

    def _find_starts(self) -> IntArray:
        """Return `seq_starts`: mapped if it is one uncompressed chunk, else decoded."""
        starts = self._starts.read(0, self._starts.meta.num_items)
        return checked_doc_starts(self._group, starts, self.num_tokens)

    @cached_property
    def _starts_key(self) -> str:
        return f"{_STARTS_VERSION}-{self._hash_starts()}"

    def _is_one_map(self) -> bool:
        meta = self._starts.meta
        return meta.chain.raw and meta.num_files == 1 and meta.chain.stored.isnative

    def _hash_starts(self) -> str:
        """Return a digest of the stored entries: derived arrays must not rest on a sample."""
        starts: Any = self._starts
        hasher = xxhash.xxh3_128(self._group.index)
        num_missing = 0
        for number in range(starts.meta.num_files):
            if not self._store.exists(starts.files.path(number)):
                num_missing += 1
                if num_missing > _MOST_MISSING:
                    what, path = "chunks of the sequence starts are missing", starts.files.path(number)
                    raise Truncated(
                        what, path=path, found=f"{num_missing} missing chunks", hint="Download the group again"
                    )
            else:
                size_bytes = starts.files.size(number)
                hasher.update(f"\n{number} {size_bytes}\n".encode())
                for begin in range(0, size_bytes, _HASH_BYTES):
                    hasher.update(byte_view(starts.files.get(number, begin, begin + _HASH_BYTES)))
        return hasher.hexdigest()

    def _find_fingerprint(self) -> str:
        """Return a digest of the metadata, of a sample of the chunks, and of the side file's digests."""
        # The side file's digests cover every byte, but not changes made after it was written: hence both.
        group, manifest = self._group, self.manifest
        arrays = {group.tokens_name: self._tokens.meta, STARTS: self._starts.meta}

        def find() -> str:
            places = [(name, f"{group.path}/{name}") for name in sampled_names(arrays, group.index)]
            there = [one for one in places if self._store.exists(one[1])]
            return sample_fingerprint(self._store, "flat-tokens", group.index, there)

        def said() -> str | None:
            return None if manifest is None else manifest.fingerprints.get(xxhash.xxh3_128_hexdigest(group.index))

        index = f"{group.path}/{group.tokens_name}/{ARRAY_FILE[group.zarr_format]}"
        sample = once_a_host(self._store, [index], "flat-tokens", find, said)
        if manifest is None or not manifest.block_digests:
            return sample
        hasher = xxhash.xxh3_128(sample.encode())
        for name, digests in sorted(manifest.block_digests.items()):
            hasher.update("\n".join(("", name, *digests)).encode())
        return hasher.hexdigest()


@dataclass(frozen=True, slots=True)
class _FileProof:
    """File of a group; a call verifies its digest."""

    store: Store
    path: str
    digest: str

    def __call__(self) -> None:
        found = file_digest(self.store, self.path)
        if found != self.digest:
            what = "no such file" if found == "" else f"a file with the digest {found}"
            require_none([Finding("digest", "error", self.path, None, what, self.digest, RESTORE)])


def sampled_names(arrays: Mapping[str, ArrayMeta], index: bytes) -> list[str]:
    """Return the names in the group of the chunks in a fingerprint, per array by its name."""
    counts = {name: 2 if name == STARTS else _SAMPLED_FILES for name in arrays}
    return [f"{name}/{file}" for name, meta in arrays.items() for file in sampled_files(meta, index, counts[name])]


def chunks_fingerprint(
    files: Readable, index: bytes, arrays: Mapping[str, ArrayMeta], folder: str = ""
) -> dict[str, str]:
    """Return the fingerprint of complete chunks in `files` below `folder`, which ends in `/`, for a side file."""
    places = [(name, folder + name) for name in sampled_names(arrays, index)]
    return {xxhash.xxh3_128_hexdigest(index): sample_fingerprint(files, "flat-tokens", index, places)}


def sampled_files(meta: ArrayMeta, index: bytes, count: int) -> list[str]:
    """Return the names of at most `count` chunk files: the first, the last, and others by hash."""
    if meta.num_files <= count:
        return [meta.file_name(number) for number in range(meta.num_files)]
    seeds = (xxhash.xxh3_64_intdigest(index, seed) for seed in range(count - 2))
    numbers = {0, meta.num_files - 1, *(seed % meta.num_files for seed in seeds)}
    return [meta.file_name(number) for number in sorted(numbers)]


def checked_doc_starts(group: Group, found: NDArray[Any], num_tokens: int) -> IntArray:
    """Return `seq_starts` as int64, read-only; raise `Corrupt` if they aren't borders of sequences."""
    starts = found.view(np.int64)
    problem = starts_problem(group, starts, num_tokens)
    if problem is not None:
        raise problem.error()
    starts.flags.writeable = False
    return starts


def starts_problem(group: Group, starts: IntArray, num_tokens: int) -> Problem | None:
    """Return the problem with `seq_starts` as a whole; None if they are borders of sequences."""
    path = f"{group.path}/{STARTS}"
    if int(starts[0]) != 0:
        what = "`seq_starts` does not begin with 0"
        return fault(f"{STARTS}.first_zero", Corrupt, path, what, REBUILD, None, str(int(starts[0])), "0")
    falls = np.flatnonzero(starts[1:] < starts[:-1])
    if len(falls):
        entry = int(falls[0]) + 1
        found = f"entry {entry} is {int(starts[entry])}, after {int(starts[entry - 1])}"
        what = "`seq_starts` decreases"
        return fault(f"{STARTS}.monotone", Corrupt, path, what, REBUILD, None, found, "non-decreasing entries")
    if int(starts[-1]) != num_tokens:
        what = "`seq_starts` does not end at the number of tokens"
        code = f"{STARTS}.last_equals_token_count"
        return fault(code, Corrupt, path, what, REBUILD, None, str(int(starts[-1])), str(num_tokens))
    return None


def _no_range(group: Group, found: str, num_tokens: int) -> Problem:
    what = "entries of `seq_starts` outside the tokens"
    path = f"{group.path}/{STARTS}"
    return fault(f"{STARTS}.monotone", Corrupt, path, what, REBUILD, None, found, f"a range in [0, {num_tokens}]")

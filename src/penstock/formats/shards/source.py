"""Random access to a folder of shards: the common part of the sources of mds, csv, tsv, xsv and json-shards.

One index may hold shards of several formats, columns and compressions. Each format provides a `RowCodec` for a layout.
Everything else is here: which shard a sample is in, which files are open, how a batch is read.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import operator
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain, pairwise
from time import monotonic
from typing import Any, cast

import numpy as np
import xxhash

from penstock._arrays import as_index, as_indices, stack
from penstock._secrets import logger
from penstock._threads import Pool
from penstock.abc import SupportsMmap
from penstock.codec.hashes import hasher
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.formats import get_format
from penstock.formats._proof import known_manifest
from penstock.formats._sources import StoredSource, way_to_read
from penstock.formats.shards.cache import ShardCache
from penstock.formats.shards.files import FAULTS, Folder, OpenShard, Row, RowCodec, WholeShard, checkable, open_shard
from penstock.formats.shards.index_json import INDEX_NAME, Layout, Shard
from penstock.formats.shards.index_table import OpenIndex
from penstock.formats.shards.side import FINGERPRINTED_AS, SIDE_NAME, sampled_files, shards_facts
from penstock.store.base import Store
from penstock.store.fingerprint import once_a_host, sample_fingerprint
from penstock.store.side_file import fitting_manifest, recorded_fingerprints
from penstock.types import Batch, Field, IntArray, Manifest, OpenOptions, Place, Sample, Schema

CodecMaker = Callable[[Layout, OpenOptions], RowCodec]
"""Function that returns the codec of a layout, for the columns and the trust in the options."""

_REGISTERED = {"json": "json-shards"}
_MANY_ROWS = 8
_FETCHERS = 16
_UNPACKERS = 4
_NEAR_BYTES = 1 << 18
_MOST_PART_BYTES = 1 << 25
_UNREAD: Any = object()
_UNCHECKED = (
    "%s: the hashes in the index can only verify whole shards, not ranges; validate_hash= downloads whole shards"
)
_log = logger()


class ShardSource(StoredSource):
    """Samples of an index, in the order of its shards; see `penstock.abc.Source`. Returned by `penstock.open`.

    `folder` is the place of its shards, `cache` holds the open ones. Memory: open shards, and the pages in use of a
    large index; about 400 bytes per shard of a small one.

    Args:
        store: the store of the folder.
        path: the folder of the index.
        name: name of the format.
        index: its shards.
        options: options of `penstock.open`.
        reopen: function and arguments that reopen the source in another process.

    Raises:
        ConfigError: no shard has one of the columns.
        Unsupported: an encoding is unknown, or files can't be mapped.
    """

    stated = ("trust", "raw", "validate_hash", "columns", "follow_links", "decode")

    def __init__(
        self,
        store: Store,
        path: str,
        name: str,
        index: OpenIndex,
        options: OpenOptions,
        reopen: tuple[Any, ...],
    ) -> None:
        super().__init__(store, path, options)
        self.title = name
        self._reopen = reopen
        self._is_compressed = index.facts.zipped
        self._shards = index.shards
        self._starts = index.starts
        self._facts = index.facts
        self._first = index.starts.data  # as Python ints
        self._size = self._first[-1]
        mapped = way_to_read(store, path, options.read) == "mmap"
        self.folder = Folder(store, path, mapped, options.validate_hash, index.file)
        _require_hashes(index, options.validate_hash, path)
        if options.validate_hash is None and store.keeps_copies and index.facts.unchecked:
            _log.info(_UNCHECKED, path)
        self._codecs = _codecs(index.facts.layouts, options, path)
        self.cache = ShardCache(self._load)
        self._open = self.cache.shards
        self._parts: dict[int, tuple[int, int]] = {}
        # Not in worker processes: each of them would fetch the part.
        takes_parts = store.keeps_copies and multiprocessing.parent_process() is None
        self.expect_parts = self._expect_parts if takes_parts else None
        self._manifest: Manifest | None = _UNREAD

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    @property
    def files(self) -> tuple[Store, Iterator[str]]:
        path = self.folder.path
        named = (f"{path}/{file.basename}" for shard in self._shards for file in shard.files())
        return self.folder.store, chain((f"{path}/{INDEX_NAME}",), named)

    @property
    def schema(self) -> Schema:
        """Columns of all shards; open if some shard lacks one, or if rows are free-form."""
        layouts = [codec.fields for codec in self._codecs.values()]
        fields: dict[str, Field] = {}
        for field in (field for one in layouts for field in one):
            same = fields.setdefault(field.name, field) == field
            fields[field.name] = field if same else Field(field.name, "mixed")
        free = any(layout.format == "json" for layout in self._codecs)
        return Schema(tuple(fields.values()), open=free or any(len(one) < len(fields) for one in layouts))

    def _find_fingerprint(self) -> str:
        store, path = self._store, self._path
        index = f"{path}/{INDEX_NAME}"

        def find() -> str:
            files = sampled_files(self._facts, self._shards, lambda file: store.exists(f"{path}/{file}"))
            places = [(name, f"{path}/{file.basename}") for name, file in files]
            if store.keeps_copies:
                for (_, file), (_, place) in zip(files, places, strict=True):
                    store.expect_size(place, file.size_bytes)
            return sample_fingerprint(store, FINGERPRINTED_AS, b"", places, index_digest=digest)

        def recorded() -> str | None:
            return recorded_fingerprints(store, f"{path}/{SIDE_NAME}").get(digest.hex())

        digest = self._facts.digest or xxhash.xxh3_128_digest(store.get(index))
        return once_a_host(store, [index], FINGERPRINTED_AS, find, recorded)

    @property
    def manifest(self) -> Manifest | None:
        """Content of the side file, or None if there is none or it doesn't belong to this index."""
        if self._manifest is _UNREAD:
            store, path = self.folder.store, self.folder.path
            facts = functools.partial(shards_facts, store, path, self._size)
            self._manifest = fitting_manifest(store, f"{path}/{SIDE_NAME}", facts)
        return self._manifest

    def proof(self) -> None:
        """Raise `Corrupt` if the index contradicts the side file; the shards are proved by their index.

        See `penstock.formats._proof`.
        """
        store, path = self.folder.store, self.folder.path
        facts = functools.partial(shards_facts, store, path, self._size)
        known_manifest("shards", store, f"{path}/{INDEX_NAME}", f"{path}/{SIDE_NAME}", facts)

    @property
    def block_starts(self) -> IntArray:
        """First sample of each shard, and `len` at the end: int64[n_shards + 1]."""
        return self._starts

    def _read_files(self) -> tuple[Store, Iterator[str]]:
        return self.files

    @property
    def size_bytes(self) -> int:
        """Size in bytes of all shards and meta files as stored, according to the index."""
        return self._facts.stored_bytes

    def details(self) -> dict[str, Any]:
        layouts = list(self._codecs)
        columns: dict[str, list[str]] = {}
        for layout in layouts:
            for name, encoding in zip(layout.column_names, layout.column_encodings, strict=True):
                columns.setdefault(name, []).append(encoding)
        counts = np.diff(self._starts)
        return {
            "shards": len(self._shards),
            "shard_formats": sorted({layout.format for layout in layouts}),
            "samples_per_shard": f"{counts.min(initial=self._size):,} to {counts.max(initial=0):,}",
            "largest_shard_bytes": self._facts.largest_bytes,
            "columns": {name: " or ".join(dict.fromkeys(found)) for name, found in columns.items()},
            "compression": sorted({layout.compression or "none" for layout in layouts}),
            "hashes": sorted({name for layout in layouts for name in layout.hashes}),
        }

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int, /) -> Sample:
        place = operator.index(index)
        if not 0 <= place < self._size:
            place = as_index(place, self._size)
        number = bisect_right(self._first, place) - 1
        shard = self._open.get(number)
        if shard is None:
            shard = self.cache.open(number)
        return shard.sample(place - self._first[number])

    def get_batch(self, indices: Sequence[int] | IntArray, /) -> Batch:
        """Return the samples at `indices` (int64[k]) as columns. Each shard is read once, in the order of shards."""
        chosen = as_indices(indices, self._size)
        if not len(chosen):
            return {}
        numbers = np.searchsorted(self._starts, chosen, side="right") - 1
        places = chosen - self._starts[numbers]
        batch = self._of_one_shard(numbers, places)
        if batch is not None:
            return batch
        codecs, rows = self._rows(numbers, places)
        try:
            if all(codec is codecs[0] for codec in codecs):
                return codecs[0].decode_rows(rows)
            return stack([codec.decode(*row) for codec, row in zip(codecs, rows, strict=True)])
        except FAULTS:
            self._refuse(chosen)
            raise

    def get_samples(self, indices: IntArray, /) -> list[Sample]:
        """Return the samples at `indices` (int64[k]), in that order."""
        chosen = as_indices(indices, self._size)
        numbers = np.searchsorted(self._starts, chosen, side="right") - 1
        codecs, rows = self._rows(numbers, chosen - self._starts[numbers])
        try:
            return [codec.decode(*row) for codec, row in zip(codecs, rows, strict=True)]
        except FAULTS:
            self._refuse(chosen)
            raise

    def prefetch(self, batches: IntArray, /, *, whole: bool = False) -> None:
        """Pass hints of future reads to a store that uses them; see `penstock.abc.SupportsPrefetch`.

        Neighboring samples of a batch become one request, by the mean size of a shard's samples.
        """
        store = self.folder.store
        if not store.keeps_copies or not batches.size:
            return
        places = np.sort(batches, axis=1)
        numbers = np.searchsorted(self._starts, places, side="right") - 1
        touched, numbers = np.unique(numbers, return_inverse=True)
        numbers = numbers.reshape(places.shape)
        shards = [self._shards[number] for number in touched.tolist()]
        means = np.array([shard.raw_data.size_bytes / max(1, shard.samples) for shard in shards])
        begins = np.ones(places.shape)
        far = np.diff(places, axis=1) * means[numbers[:, 1:]] > _NEAR_BYTES
        begins[:, 1:] = far | (numbers[:, 1:] != numbers[:, :-1])
        requests = np.bincount(numbers.reshape(-1), begins.reshape(-1)).astype(np.int64)
        asked_bytes = (np.bincount(numbers.reshape(-1)) * means).astype(np.int64)
        if whole:
            asked_bytes = np.array([shard.raw_data.size_bytes for shard in shards])
        asked = (requests.tolist(), asked_bytes.tolist())
        told = [one for one in zip(touched.tolist(), shards, *asked, strict=True) if one[0] not in self._parts]
        place = self.folder.place
        store.prefetch({place(one.raw_data): (n, size) for _, one, n, size in told if one.zip_data is None})

    def block_files(self, block: int, /) -> list[tuple[str, int, dict[str, str]]]:
        """Return path, size and known hashes of the stored files of a shard."""
        shard, store = self._shards[block], self.folder.store
        found: list[tuple[str, int, dict[str, str]]] = []
        for raw, zipped in ((shard.raw_data, shard.zip_data), (shard.raw_meta, shard.zip_meta)):
            if raw is not None:
                one = raw if zipped is None or not store.exists(self.folder.place(zipped)) else zipped
                found.append((self.folder.place(one), one.size_bytes, checkable(one)))
        return found

    def place_of(self, index: int, /) -> Place:
        """Return the place of a sample's bytes; in a compressed shard, the whole compressed file."""
        place = as_index(index, self._size)
        number = bisect_right(self._first, place) - 1
        return Place(extents=(self._shard(number).extent(place - self._first[number]),))

    def shown(self) -> dict[str, Any]:
        return {"path": self._path, "samples": self._size, "shards": len(self._shards)}

    # --- inside --------------------------------------------------------------------------------------------------

    def _expect_parts(self, first: IntArray, stop: IntArray, /) -> None:
        """Announce that only samples `[first, stop)`, int64[k] each, of their shards are read for now.

        Each part is one request, kept in memory until it has been read once. Ignored if the files have hashes, which
        only cover whole files.
        """
        numbers = np.searchsorted(self._starts, first, side="right") - 1
        begins = self._starts[numbers]
        partly = stop - first < self._starts[numbers + 1] - begins
        facts = (numbers, first - begins, stop - begins, partly)
        for number, begin, end, some in zip(*(one.tolist() for one in facts), strict=True):
            shard, wanted = self._shards[number], None
            size_bytes = shard.raw_data.size_bytes * (end - begin) // shard.samples
            if some and shard.zip_data is None and not checkable(shard.raw_data) and size_bytes <= _MOST_PART_BYTES:
                wanted = (begin, end)
            if wanted != self._parts.get(number):
                self._parts.pop(number, None)
                if wanted is not None:
                    self._parts[number] = wanted
                self.cache.drop(number)

    def _load(self, number: int) -> OpenShard:
        shard = self._shards[number]
        return open_shard(self.folder, number, shard, self._codecs[shard.layout], self._parts.get(number))

    def _shard(self, number: int) -> OpenShard:
        return self._open.get(number) or self.cache.open(number)

    def _of_one_shard(self, numbers: IntArray, places: IntArray) -> Batch | None:
        """Return columns of many samples of one mapped shard, or None if this doesn't apply."""
        if len(numbers) < _MANY_ROWS or not (numbers == numbers[0]).all():
            return None
        shard = self._shard(int(numbers[0]))
        many = shard.codec.decode_many
        if many is None or not isinstance(shard, WholeShard) or shard.held:
            return None
        shard.used = monotonic()
        return many(shard.array, shard.table[places].astype(np.int64), shard.table[places + 1].astype(np.int64))

    def _rows(self, numbers: IntArray, places: IntArray) -> tuple[list[RowCodec], list[Row]]:
        shards = [self._open.get(number) for number in numbers.tolist()]
        if None in shards or not self.folder.mapped:
            return self._fetched_rows(numbers, places)
        rows: list[Row] = []
        now = monotonic()
        for shard, place in zip(cast(list[WholeShard], shards), places.tolist(), strict=True):
            shard.used = now
            offsets = shard.offsets
            rows.append(shard.row(place) if shard.held else (shard.view, offsets[place], offsets[place + 1]))
        return [shard.codec for shard in cast(list[WholeShard], shards)], rows

    def _fetched_rows(self, numbers: IntArray, places: IntArray) -> tuple[list[RowCodec], list[Row]]:
        """Return codecs and rows shard by shard; each shard is opened and read once, and released afterwards."""
        order = np.argsort(numbers, kind="stable")
        borders = (np.flatnonzero(np.diff(numbers[order])) + 1).tolist()
        groups = [order[start:stop].tolist() for start, stop in pairwise([0, *borders, len(order)])]
        places_list = places.tolist()

        def read(group: list[int]) -> tuple[RowCodec, list[Row]]:
            shard = self._shard(int(numbers[group[0]]))
            return shard.codec, shard.rows([places_list[row] for row in group])

        codecs: list[Any] = [None] * len(numbers)
        rows: list[Any] = [None] * len(numbers)
        with self._readers(len(groups)) as run:
            for group, (codec, found) in zip(groups, run(read, groups), strict=True):
                for at, row in zip(group, found, strict=True):
                    codecs[at], rows[at] = codec, row
        return codecs, rows

    @contextlib.contextmanager
    def _readers(self, shards: int) -> Generator[Callable[..., Iterator[Any]]]:
        """Return a `map` over shards: concurrent if they are remote or compressed."""
        if shards == 1 or isinstance(self.folder.store, SupportsMmap):
            yield map
            return
        zipped = any(layout.compression for layout in self._codecs)  # each of these is a shard in memory
        with Pool(min(_UNPACKERS if zipped else _FETCHERS, shards), "penstock-shards") as pool:
            yield pool.map

    def _refuse(self, indices: IntArray) -> None:
        for index in indices.tolist():
            self[index]


def _require_hashes(index: OpenIndex, algorithm: str | None, path: str) -> None:
    if algorithm is None:
        return
    hasher(algorithm)  # rejects unknown names
    lacking = [first for first, names in index.facts.hash_names if algorithm not in names]
    if not lacking:
        return
    number = min(lacking)
    file = next(file for file in index.shards[number].files() if algorithm not in file.hashes)
    raise ConfigError(
        f"shard {number}: no {algorithm} hash for validate_hash to check",
        path=f"{path}/{INDEX_NAME}",
        found=", ".join(sorted(file.hashes)) or "no hashes",
        hint="Use an algorithm recorded in the index, or omit validate_hash",
    )


def registered_name(stored: str) -> str:
    """Return the registered name of the format that an index calls `stored`."""
    return _REGISTERED.get(stored, stored)


def codec_of(layout: Layout, options: OpenOptions) -> RowCodec:
    """Return the codec of a layout; an index may hold shards of several formats, which are imported when needed."""
    chosen: Any = get_format(registered_name(layout.format))
    return chosen.codec(layout, options)


def _codecs(layouts: Sequence[tuple[int, Layout]], options: OpenOptions, path: str) -> dict[Layout, RowCodec]:
    known = {name for _, layout in layouts for name in layout.column_names}
    for name in options.columns or ():
        if name not in known and layouts:
            raise ConfigError(f"no column {name!r}", path=path, expected=", ".join(sorted(known)))
    found: dict[Layout, RowCodec] = {}
    for number, layout in layouts:
        try:
            found[layout] = codec_of(layout, options)
        except PenstockError as error:
            what = f"shard {number}: {error.what}"
            where = f"{path}/{INDEX_NAME}"
            raise Unsupported(what, path=where, found=error.found, expected=error.expected, hint=error.hint) from error
    return found

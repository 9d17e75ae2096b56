"""Arrays of levanter: rows of different lengths, as one zarr array of values and one of the ends of rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock.errors import Unsupported
from penstock.formats._findings import Problem
from penstock.formats.tokens.levanter.ledger import Part, damaged
from penstock.formats.tokens.zarr.chunks import ChunkArray
from penstock.formats.tokens.zarr.meta import ArrayMeta, parse_array
from penstock.store.base import Store
from penstock.store.mapped import Held
from penstock.types import IntArray, ReadMode

_ARRAY = "zarr.json"
_MOST_META_BYTES = 1 << 20
_MOST_RANK = 32
_VALUES_BUDGET_BYTES = 1 << 26
_INDEX_BUDGET_BYTES = 1 << 22
_STEP = 1 << 20
_KINDS = "iufb"
_IDS = ("input_ids", "tokens")
"""Fields of token ids. Levanter leaves out files of only zeros, but no file of ids has only zeros."""


class JaggedArray:
    """One field of a part. Thread-safe, picklable.

    Memory: 8 bytes per row once a row is read, and 64 MiB of values.

    Args:
        store: store of the cache.
        part: folder and rows.
        name: name of the field: its folder in that of the part.
        read: as in `penstock.open`.
    """

    def __init__(self, store: Store, part: Part, name: str, read: ReadMode) -> None:
        self._args = (store, part, name, read)
        self.folder = f"{part.folder}/{name}" if name else part.folder
        self.rows = part.rows
        self._count = part.counts.get(name)
        self.has_ids = name in _IDS
        self.values, _ = _open(store, f"{self.folder}/data", read, _VALUES_BUDGET_BYTES, self.has_ids)
        self._ends, _ = _open(store, f"{self.folder}/offsets", read, _INDEX_BUDGET_BYTES, True)
        self._shapes, self._known_axes = None, 0
        if store.exists(f"{self.folder}/shapes/{_ARRAY}"):
            self._shapes, self._known_axes = _open(store, f"{self.folder}/shapes", read, _INDEX_BUDGET_BYTES)
        self._starts = Held(self._read_starts)
        for array in (self._ends, *(() if self._shapes is None else (self._shapes,))):
            if array.meta.dtype != np.dtype(np.int64):
                raise Unsupported("offsets that aren't int64", path=array.files.folder, found=str(array.meta.dtype))

    def __reduce__(self) -> tuple[Any, ...]:
        return (JaggedArray, self._args)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.values.meta.dtype

    @property
    def rank(self) -> int:
        """Number of axes of a row."""
        return 1 + self._known_axes

    @property
    def starts(self) -> IntArray:
        """Start of the values of each row, and their number, int64[rows + 1], read-only.

        Raises `Corrupt` if invalid.
        """
        return self._starts.get()

    def row(self, index: int) -> NDArray[Any]:
        """Return the values of one row, in its shape."""
        start, stop = self.starts[index : index + 2].tolist()
        found = self.values.read(start, stop)
        if self._shapes is None:
            return found
        axes = self._known_axes
        known = self._shapes.read(index * axes, (index + 1) * axes).tolist()
        inner = 1
        for size in known:
            inner *= max(0, size)
        last = (stop - start) // inner if inner else 0
        if min(known) < 0 or inner * last != stop - start:
            found = f"{stop - start} values, shape {known} plus one axis"
            raise damaged(f"{self.folder}/shapes", f"row {index} doesn't match its shape", found)
        return found.reshape(*known, last)

    def run(self, first: int, stop: int) -> tuple[NDArray[Any], IntArray]:
        """Return the values of rows `[first, stop)` back to back, and the number of each, int64[n_rows]."""
        starts = self.starts[first : stop + 1]
        return self.values.read(int(starts[0]), int(starts[-1])), np.diff(starts)

    def files(self, name: str) -> list[tuple[str, str]]:
        """Return `(name, path)` of the files of its rows; files of only zeros were never written."""
        found: list[tuple[str, str]] = []
        shapes = [] if self._shapes is None else [("shapes", self._shapes, self.rows * self._known_axes)]
        for kind, array, count in (
            ("data", self.values, int(self.starts[-1])),
            ("offsets", self._ends, self.rows + 1),
            *shapes,
        ):
            for number in range(-(-count // array.meta.chunk_items)):
                path = array.files.path(number)
                if array.files.store.exists(path):
                    found.append((f"{name}/{kind}/{number}", path))
        return found

    def missing(self) -> list[str]:
        """Return missing files of values: levanter doesn't write zeros, so a lost file can't be detected otherwise."""
        count = -(-int(self.starts[-1]) // self.values.meta.chunk_items)
        paths = map(self.values.files.path, range(count))
        return [path for path in paths if not self.values.files.store.exists(path)]

    def scan(self) -> None:
        """Read every row once; raises `Corrupt`."""
        for start in range(0, int(self.starts[-1]), _STEP):
            self.values.read(start, min(int(self.starts[-1]), start + _STEP))
        if self._shapes is not None:
            for index in range(self.rows):
                self.row(index)

    def _read_starts(self) -> IntArray:
        where = f"{self.folder}/offsets"
        starts = self._ends.read(0, self.rows + 1).astype(np.int64)
        if int(starts[0]) != self.rows:
            raise damaged(where, "the number of rows differs from the ledger", int(starts[0]), self.rows)
        starts[0] = 0
        if bool((np.diff(starts) < 0).any()) or int(starts[-1]) > self.values.meta.num_items:
            row = int(np.argmax(np.diff(starts) < 0))
            raise damaged(where, "the rows overlap or are out of order", f"row {row} ends at {starts[row + 1]}")
        if self._count is not None and int(starts[-1]) != self._count:
            raise damaged(where, "the number of values differs from the ledger", int(starts[-1]), self._count)
        starts.flags.writeable = False
        return starts


def _open(
    store: Store, folder: str, read: ReadMode, budget_bytes: int, requires_files: bool = False
) -> tuple[ChunkArray, int]:
    """Open an array; return it and the size of its second axis, which is merged with the first; 0 without one."""
    path = f"{folder}/{_ARRAY}"
    data = store.get(path, 0, _MOST_META_BYTES)
    try:
        found = json.loads(data)
        width = _flatten(found)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise damaged(path, "the metadata doesn't describe an array", error) from None
    dtype = _dtype(found.get("data_type"), path)
    meta = parse_array(json.dumps(found).encode(), path, 3, folder.rpartition("/")[2], dtype.name)
    if isinstance(meta, Problem):
        raise meta.error()
    if meta.foreign is not None or meta.shard is None:
        what = meta.foreign or "chunks without shards"
        raise Unsupported("an array type that levanter doesn't write", path=path, found=what)
    return ChunkArray(store, folder, _named(meta, width), read, budget_bytes, requires_files), width


def _flatten(found: dict[str, Any]) -> int:
    """Merge two axes in metadata if chunks hold whole rows; return the size of the second axis, else 0."""
    shape = found["shape"]
    if not isinstance(shape, list) or len(cast(list[Any], shape)) != 2:
        return 0
    shape = cast(list[Any], shape)
    width = shape[1]
    sharding = found["codecs"][0]["configuration"]
    places = [(found, "shape"), (found["chunk_grid"]["configuration"], "chunk_shape"), (sharding, "chunk_shape")]
    if type(width) is not int or not 0 < width < _MOST_RANK:
        raise ValueError(f"shape {shape}")
    for holder, key in places:
        rows, inner = holder[key]
        if inner != width or type(rows) is not int:
            raise ValueError(f"{key} {holder[key]}, not of whole rows")
        holder[key] = [rows * width]
    return width


def _named(meta: ArrayMeta, width: int) -> ArrayMeta:
    return replace(meta, key_end=meta.key_start[-1:] + "0") if width else meta


def _dtype(name: Any, path: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name) if isinstance(name, str) else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in _KINDS or dtype.name != name:
        hint = "Read only the other fields: `penstock convert` and `penstock head` take --columns NAME,… (columns=)"
        raise Unsupported("values with a dtype that numpy doesn't support", path=path, found=f"{name!s:.40}", hint=hint)
    return dtype

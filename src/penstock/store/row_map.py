"""The row map: the input and row from which each sample of a dataset was made.

It is the file `<dataset>.penstock.rows` next to a dataset, without the `.idx` or `.bin` of its name. Little-endian:

| bytes | content |
|---|---|
| 0 … 8·N | int64[N]: the row of each sample, counted from 0 over all inputs in their order |
| … + M | JSON: `_Note` |
| last 32 | `penstmap`, N, M, xxh3-64 of the JSON; u64 |

A row is a line of JSONL or of plain text, a row of a table, or a file that is one document. A map is valid for every
dataset that was made from the same inputs with the same options, and has the same numbers of samples and tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import xxhash

from penstock._arrays import byte_view
from penstock.abc import SupportsMmap
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, Unreachable
from penstock.store.base import Store
from penstock.store.names import NEXT
from penstock.store.place import Place
from penstock.store.side_file import promote
from penstock.types import IntArray, Manifest

SUFFIX = ".penstock.rows"

_FOOTER = struct.Struct("<8sQQQ")
_MAGIC = b"penstmap"
_MOST_NOTE_BYTES = 1 << 30
_STEMS = (".idx", ".bin")


class MappedInput(msgspec.Struct, frozen=True):
    """One input: its name and digest, as in the side file, and its number of rows."""

    name: str
    digest: str
    rows: int


class _Note(msgspec.Struct, frozen=True):
    inputs: tuple[MappedInput, ...]
    options: dict[str, Any]
    tokenizer_digest: str | None
    num_tokens: int | None
    digest: str
    """xxh3-128 of the rows."""


@dataclass(frozen=True, slots=True)
class RowMap:
    """Input and row from which each sample was made.

    Attributes:
        inputs: the inputs, in order.
        rows: int64[n_samples]: the row of each sample, counted over all inputs.
        path: path of the map.
    """

    inputs: tuple[MappedInput, ...]
    rows: IntArray
    path: str

    @property
    def first_rows(self) -> IntArray:
        """First row of each input, and the total number of rows at the end, as int64[n_inputs + 1]."""
        return np.concatenate([[0], np.cumsum([one.rows for one in self.inputs])]).astype(np.int64)

    def numbers_of(self, name: str) -> list[int]:
        """Return the numbers of the inputs with this name, last path component, or digest."""
        exact = [number for number, one in enumerate(self.inputs) if name in (one.name, one.digest)]
        return exact or [number for number, one in enumerate(self.inputs) if one.name.endswith("/" + name)]

    def samples_of(self, number: int, rows: IntArray) -> IntArray:
        """Return int64[k], ascending: the samples made from `rows`, int64[n] from 0, of input `number`."""
        rows = np.asarray(rows, np.int64)
        known = rows[(rows >= 0) & (rows < self.inputs[number].rows)] + self.first_rows[number]
        return np.flatnonzero(np.isin(self.rows, known)).astype(np.int64)

    def origin_of(self, sample: int) -> tuple[MappedInput, int]:
        """Return a sample's input and the row in it, from 0; raise `Corrupt` if there is no such row."""
        row, first = int(self.rows[sample]), self.first_rows
        if not 0 <= row < first[-1]:
            raise Corrupt("the row map refers to a row that isn't in the input", path=self.path, found=row, hint=_HINT)
        number = int(np.searchsorted(first, row, side="right")) - 1
        return self.inputs[number], row - int(first[number])


_HINT = "Rebuild the dataset with keep_map=True (--keep-map)"
_REMOVE = "Remove it, or choose another output"


def row_map_path(path: str) -> str:
    path = path.rstrip("/") or path
    return next((path.removesuffix(one) for one in _STEMS if path.endswith(one)), path) + SUFFIX


def read_row_map(dataset: Place, manifest: Manifest | None) -> RowMap | None:
    """Return the row map of a dataset, or None.

    Args:
        dataset: location of the dataset.
        manifest: content of its side file, which the map must match, or None.

    Raises:
        ConfigError: the map belongs to other data.
        Corrupt: the map is damaged.
    """
    path, is_there = row_map_path(dataset.path), False
    for one in (path, path + NEXT):  # the next map is only valid with the new data
        try:
            note, rows = _read(dataset.store, one)
        except NotFound:
            continue
        if manifest is not None and _fits(note, len(rows), manifest):
            return RowMap(note.inputs, rows, one)
        is_there = is_there or one == path
    if is_there:
        raise ConfigError("the row map belongs to different data", path=path, hint=_HINT)
    return None


def require_own_row_map(dataset: Place) -> None:
    """Raise `ConfigError` if something else has the name of the row map or the next row map."""
    path, store = row_map_path(dataset.path), dataset.store
    for one in (path, path + NEXT):
        if store.exists(one):
            try:
                is_map = store.get(one, max(store.size(one) - _FOOTER.size, 0), len(_MAGIC)) == _MAGIC
            except Unreachable:
                raise
            except (PenstockError, IsADirectoryError):
                is_map = False
            if not is_map:
                raise ConfigError("the path of the row map is taken by something else", path=one, hint=_REMOVE)


def write_row_map(
    store: Store, path: str, runs: Iterable[IntArray], inputs: Sequence[tuple[str, str]], rows: Mapping[str, int],
    recorded: Mapping[str, Any], num_tokens: int | None,
) -> None:  # fmt: skip
    """Write a row map, durably. Memory: one run.

    Args:
        store: store of the map.
        path: path returned by `row_map_path`, or the same with `.next`.
        runs: arrays int64[k] with the rows of all samples, in order.
        inputs: name and digest of each input.
        rows: input name → number of rows; read after the last run.
        recorded: `options` and `tokenizer_digest`, as in the side file.
        num_tokens: number of tokens of the dataset.
    """
    hasher, count = xxhash.xxh3_128(), 0
    staged = store.stage(path, overwrite=True)
    try:
        for run in runs:
            data = np.ascontiguousarray(run, "<i8")
            hasher.update(byte_view(data))
            staged.write(data)
            count += len(data)
        made_of = tuple(MappedInput(name, digest, rows.get(name, 0)) for name, digest in inputs)
        options, tokenizer = dict(recorded.get("options", {})), recorded.get("tokenizer_digest")
        note = msgspec.json.encode(_Note(made_of, options, tokenizer, num_tokens, hasher.hexdigest()))
        staged.write(note + _FOOTER.pack(_MAGIC, count, len(note), xxhash.xxh3_64_intdigest(note)))
        staged.commit()
    finally:
        staged.abort()


def settle_row_map(dataset: Place, manifest: Manifest | None) -> None:
    """Give the map of the current data its final name, and remove the map of replaced data."""
    path = row_map_path(dataset.path)
    for one in (path + NEXT, path):
        try:
            note, rows = _read(dataset.store, one)
        except (PenstockError, OSError):  # not one of our maps; the data is visible already
            continue
        if manifest is None or not _fits(note, len(rows), manifest):
            dataset.store.delete(one)
        elif one != path:
            promote(dataset.store, one)


def is_damaged(row_map: RowMap, store: Store) -> bool:
    """Return whether the rows of the map differ from what was written."""
    note, rows = _read(store, row_map.path)
    return xxhash.xxh3_128_hexdigest(byte_view(np.ascontiguousarray(rows))) != note.digest


def _fits(note: _Note, count: int, manifest: Manifest) -> bool:
    told = {name: manifest.options.get(name) for name in note.options}
    known = (manifest.num_samples, manifest.tokenizer_digest, dict(manifest.inputs), told)
    made_of = {one.name: one.digest for one in note.inputs}
    same_tokens = None in (manifest.num_tokens, note.num_tokens) or manifest.num_tokens == note.num_tokens
    return same_tokens and known == (count, note.tokenizer_digest, made_of, note.options)


def _read(store: Store, path: str) -> tuple[_Note, IntArray]:
    """Return the content of a map, with mapped rows if possible; raise `NotFound` or `Corrupt`."""
    size_bytes = store.size(path)
    damaged = Corrupt("the row map is damaged", path=path, hint=_HINT)
    if size_bytes < _FOOTER.size:
        raise damaged
    magic, count, note_bytes, check = _FOOTER.unpack(store.get(path, size_bytes - _FOOTER.size, _FOOTER.size))
    if magic != _MAGIC or note_bytes > _MOST_NOTE_BYTES or 8 * count + note_bytes + _FOOTER.size != size_bytes:
        raise damaged
    note = store.get(path, 8 * count, note_bytes)
    if xxhash.xxh3_64_intdigest(note) != check:
        raise damaged
    try:
        known = msgspec.json.decode(note, type=_Note)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise damaged from None
    if min((one.rows for one in known.inputs), default=0) < 0:
        raise damaged
    data = store.mmap(path)[: 8 * count] if isinstance(store, SupportsMmap) else store.get(path, 0, 8 * count)
    return known, np.frombuffer(data, "<i8").view(np.int64)

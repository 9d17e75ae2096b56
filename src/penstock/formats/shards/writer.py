"""Write a folder of shards with its index: the common part of the writers of mds, csv, tsv, xsv and json-shards.

Raw shards, meta files and `index.json` are byte for byte those of mosaicml-streaming 0.13.0 for the same samples and
options. A sample begins a new shard if `size_limit < counted + row_bytes + len(row)`. So, as in the original, a first
sample larger than the limit comes after an empty shard.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import penstock
from penstock.codec.compress import parse_compression
from penstock.codec.fields import FieldCodec
from penstock.codec.hashes import ALGORITHMS
from penstock.errors import ConfigError, PenstockError, TooLarge
from penstock.formats._manifest import Provenance
from penstock.formats._writers import BaseWriter, num_rows_of, require_fields, require_known, require_open
from penstock.formats.shards.index_json import Layout, Shard, encode_config, encode_index
from penstock.formats.shards.output import Output, ShardWork, open_output
from penstock.formats.shards.side import SIDE_NAME
from penstock.store.base import Store
from penstock.store.side_file import EDGE_BYTES, edge_binding
from penstock.types import Batch, IntArray, Manifest, Sample

SIZE_LIMIT_BYTES = 1 << 26
MOST_BYTES = (1 << 32) - 1
"""Size of the largest data file: offsets have 32 bits."""

_COMMON_OPTIONS = ("columns", "size_limit", "compression", "hashes")
_RECORDED = tuple(one.name for one in dataclasses.fields(Provenance))
_SIZE_TEXT = re.compile(r"\s*(\d{1,30}|\d{1,30}\.\d{,30}|\.\d{1,30})\s*(b|kb|mb|gb|tb|pb|eb|zb|yb)?\s*", re.IGNORECASE)
_UNITS = ("b", "kb", "mb", "gb", "tb", "pb", "eb", "zb", "yb")


class RowEncoder(Protocol):
    """Encoder of samples as rows, and of rows as shards.

    Attributes:
        layout: layout of all shards.
        start_bytes: size of a shard without samples, as counted for the size limit.
        row_bytes: additional bytes counted per row.
        head_bytes: bytes of the data file that don't count toward the limit.
    """

    layout: Layout
    start_bytes: int
    row_bytes: int
    head_bytes: int

    def encode(self, sample: Sample, parts: list[Any], /) -> int:
        """Append the pieces of one row to `parts` and return their size in bytes; append nothing on errors."""
        ...

    def encode_many(self, batch: Batch, /) -> NDArray[np.uint8] | None:
        """Return uint8[k, n], the rows of a batch with n bytes each, or None to encode them one by one."""
        ...

    def shard(self, sizes: IntArray, /) -> tuple[bytes, bytes | None]:
        """Return the head of the data file for rows of int64[n] bytes, and the meta file, if any."""
        ...


class TextEncoder:
    """Encoder of the text formats: one piece per row, and offsets in a meta file; see `RowEncoder`.

    Args:
        layout: layout of all shards.
        header: first row of each data file, with its newline; may be empty.
        encode_row: returns one row, with its newline.
    """

    __slots__ = ("_encode_row", "_header", "head_bytes", "layout", "row_bytes", "start_bytes")

    def __init__(self, layout: Layout, header: bytes, encode_row: Callable[[Sample], bytes]) -> None:
        self.layout = layout
        self.start_bytes = 0
        self.row_bytes = 0
        self.head_bytes = len(header)
        self._header = header
        self._encode_row = encode_row

    def encode(self, sample: Sample, parts: list[Any], /) -> int:
        row = self._encode_row(sample)
        parts.append(row)
        return len(row)

    def encode_many(self, batch: Batch, /) -> None:
        """Return None: rows of text are encoded one by one."""

    def shard(self, sizes: IntArray, /) -> tuple[bytes, bytes | None]:
        return self._header, offset_table(sizes, len(self._header)) + encode_config(self.layout)


def offset_table(sizes: IntArray, first: int) -> bytes:
    """Return `u32 n, u32 offset[n + 1]` of n rows of int64[n] `sizes`, the first at `first`; it must fit 32 bits."""
    table = np.empty(len(sizes) + 2, "<u4")
    table[0] = len(sizes)
    table[1] = first
    table[2:] = first + np.cumsum(sizes)
    return table.tobytes()


class ShardWriter(BaseWriter):
    """Streams samples into shards; see `penstock.abc.Writer`. Returned by `penstock.create`.

    Finished shards are compressed, hashed, written and synced by a few threads while the next one fills. Memory: the
    current shard and up to 128 MiB of finished ones, at least one; compressed ones count twice.

    Values passed as `bytes` are kept until their shard is written, not copied.
    """

    def __init__(self, store: Store, path: str, name: str, encoder: RowEncoder, given: Provenance, out: Output) -> None:
        super().__init__(path)
        self._name = name
        self._encoder = encoder
        self._encode = encoder.encode
        self._row_bytes = encoder.row_bytes
        limit = parse_size(encoder.layout.size_limit)
        self._endless = not limit
        self._most = MOST_BYTES - encoder.head_bytes
        self._limit = min(limit or self._most, self._most)
        self._given = given
        self._out = out
        self._work = ShardWork(encoder.layout, encoder.shard, out)
        self._parts: list[Any] = []
        self._sizes: list[int] = []
        self._counted = encoder.start_bytes
        self._num_samples = 0

    @property
    def layout(self) -> Layout:
        return self._encoder.layout

    def write(self, sample: Sample, /) -> None:
        """Add one sample.

        Raises:
            ConfigError: a column is missing, a value doesn't fit its column or would read back differently, or the
                writer is closed.
            TooLarge: a number is outside its column's range, or the sample's offset exceeds 32 bits.
        """
        if not self._open:  # a call per sample is too slow
            require_open(self._open, self._path)
        parts = self._parts
        before = len(parts)
        try:
            size = self._encode(sample, parts)
        except PenstockError as error:
            error.what = f"sample {self._num_samples}: {error.what}"
            error.path = self._path
            raise
        except (AttributeError, IndexError, TypeError):
            require_fields(sample, self._path)  # checking each sample first is too slow
            raise
        counted = self._counted + self._row_bytes + size
        if counted > self._limit:
            counted = self._next_shard(size, before)
        self._counted = counted
        self._sizes.append(size)
        self._num_samples += 1

    def write_batch(self, batch: Batch, /) -> None:
        """Add k samples passed as columns: lists, or arrays `[k, …]`."""
        require_open(self._open, self._path)
        require_fields(batch, self._path)
        names = self._encoder.layout.column_names
        num_rows = num_rows_of((batch[name] for name in names if name in batch), self._path)
        rows = self._encoder.encode_many(batch) if num_rows else None
        if rows is not None:
            self._write_rows(rows)
            return
        plain = {name: _values(values) for name, values in batch.items()}
        for row in range(num_rows):
            self.write({name: values[row] for name, values in plain.items()})

    def write_run(self, data: NDArray[np.uint8], lengths: IntArray, /) -> None:
        """Append samples in the stored form of a source with the same columns.

        Args:
            data: uint8[n_bytes]: rows back to back, copied without validation.
            lengths: int64[k], in bytes.
        """
        require_open(self._open, self._path)
        stops = np.cumsum(lengths)
        counts = np.cumsum(lengths + self._row_bytes)
        at = 0
        while at < len(lengths):
            before = int(counts[at - 1]) if at else 0
            stop = int(np.searchsorted(counts, before + self._limit - self._counted, side="right"))
            if stop <= at:  # one long row may already have exceeded the limit of the shard
                self._counted = self._next_shard(int(lengths[at]), len(self._parts))
                stop = at + 1
            else:
                self._counted += int(counts[stop - 1]) - before
            start = int(stops[at] - lengths[at])
            self._parts.append(data[start : int(stops[stop - 1])].copy())
            self._sizes += lengths[at:stop].tolist()
            self._num_samples += stop - at
            at = stop

    def borders(self, lengths: IntArray) -> list[int]:
        """Return the first row of each shard if only rows of int64[n] bytes are written; raise `TooLarge`.

        As in the original, the first shard is empty if the first row exceeds the limit.
        """
        firsts, counted, at = [0], self._encoder.start_bytes, 0
        counts = np.cumsum(lengths + self._row_bytes)
        while at < len(lengths):
            before = int(counts[at - 1]) if at else 0
            stop = int(np.searchsorted(counts, before + self._limit - counted, side="right"))
            if stop <= at:
                counted = self._first_counted(int(lengths[at]), counted)
                firsts.append(at)
                stop = at + 1
            else:
                counted += int(counts[stop - 1]) - before
            at = stop
        return firsts if len(lengths) else []

    def _commit(self) -> Manifest:
        """Write the last shard, the side file and the index, and make them visible, the index last."""
        if self._sizes:
            self._flush(len(self._parts))
        shards = self._work.finish()
        index = encode_index(shards)
        return self._out.publish(index, shards, self._manifest(shards, index))

    # --- inside --------------------------------------------------------------------------------------------------

    def _write_rows(self, rows: NDArray[np.uint8]) -> None:
        size = rows.shape[1]
        at = 0
        while at < len(rows):
            room = (self._limit - self._counted) // (self._row_bytes + size)
            if room < 1:
                self._counted = self._next_shard(size, len(self._parts))
                room = 1
            else:
                room = min(room, len(rows) - at)
                self._counted += room * (self._row_bytes + size)
            self._parts.append(rows[at : at + room])
            self._sizes += [size] * room
            self._num_samples += room
            at += room

    def _next_shard(self, size: int, keep: int) -> int:
        """Finish the shard of the first `keep` parts; return the counted size of the next one with a row of `size`."""
        try:
            counted = self._first_counted(size, self._counted)
        except TooLarge:
            del self._parts[keep:]
            raise
        self._flush(keep)
        return counted

    def _first_counted(self, size: int, before: int) -> int:
        """Return the counted size of a new shard with a row of `size`, if the previous one has `before`."""
        counted = self._encoder.start_bytes + self._row_bytes + size
        if counted > self._most or self._endless:
            hint = "Shorten the sample" if counted > self._most else "Set size_limit to write several shards"
            raise TooLarge(
                f"sample {self._num_samples} would end after byte 2^32 of its shard",
                path=self._path,
                found=f"{max(counted, before + size)} bytes",
                expected=f"at most {self._most} bytes per shard",
                hint=hint,
            )
        return counted

    def _flush(self, keep: int) -> None:
        parts, self._parts = self._parts[:keep], self._parts[keep:]
        sizes, self._sizes = np.array(self._sizes, np.int64), []
        try:
            self._work.submit(parts, sizes)
        except BaseException:
            self.abort()  # written and counted bytes differ: don't write any more
            raise

    def _manifest(self, shards: Sequence[Shard], index: bytes) -> Manifest:
        layout = self._encoder.layout
        options = {key: value for key, value in layout.config().items() if key not in ("version", "format")}
        return Manifest(
            format=self._name,
            num_samples=self._num_samples,
            size_bytes=sum(self._work.sizes.values()) + len(index),
            eos_id=self._given.eos_id,
            tokenizer=self._given.tokenizer,
            tokenizer_digest=self._given.tokenizer_digest,
            inputs=self._given.inputs,
            block_digests=self._work.digests,
            options={**options, **self._given.options},
            binding=edge_binding(len(index), index[:EDGE_BYTES], index[-EDGE_BYTES:]),
            tool=f"penstock {penstock.__version__}",
        )

    def _close(self) -> None:
        self._work.stop()
        self._out.abort()


def _values(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values


# --- options -----------------------------------------------------------------------------------------------------


def create_shards(
    store: Store,
    path: str,
    name: str,
    options: Mapping[str, Any],
    own: tuple[str, ...],
    encoder_of: Callable[[Mapping[str, Any]], RowEncoder],
    *,
    overwrite: bool,
) -> ShardWriter:
    """Return a writer for a folder of shards.

    Args:
        store: the target store.
        path: the folder.
        name: name of the format.
        options: `columns` (name → encoding), `size_limit` (bytes, text such as `"64mb"`, or None; 2^26),
            `compression` (`"zstd:7"`), `hashes` (names of algorithms), and the format's own options.
            `eos_id, tokenizer, tokenizer_digest, inputs, options` are only recorded in the side file.
        own: names of the options specific to this format.
        encoder_of: returns the encoder for the options.
        overwrite: replace the existing folder.

    Raises:
        ConfigError: an option is unknown or invalid, or the output exists.
    """
    known = (*_COMMON_OPTIONS, *own, *_RECORDED)
    require_known(options, known, path)
    path = path.rstrip("/") or path
    try:
        encoder = encoder_of({key: value for key, value in options.items() if key not in _RECORDED})
    except PenstockError as error:
        error.path = path
        raise
    recorded = {key: value for key, value in options.items() if key in _RECORDED and value is not None}
    out = open_output(store, path, SIDE_NAME, overwrite=overwrite)
    return ShardWriter(store, path, name, encoder, Provenance(**recorded), out)


def writer_layout(
    stored: str,
    options: Mapping[str, Any],
    field_of: Callable[[str], FieldCodec],
    *,
    sized: bool = False,
    newline: str | None = None,
    separator: str | None = None,
) -> Layout:
    """Return the layout of a writer's shards: its columns sorted by name, and its options as in the index.

    Args:
        stored: format name in the index.
        options: options of `create_shards`.
        field_of: returns the codec of an encoding.
        sized: the index records the sizes of columns.
        newline: end of a row.
        separator: between columns.

    Raises:
        ConfigError: there are no columns, an encoding, compression or hash is unknown, or the limit is invalid.
    """
    columns = options.get("columns")
    if not isinstance(columns, Mapping) or not columns or not all(isinstance(one, str) for one in columns):
        expected = 'names and encodings, such as columns={"text": "str"}'
        raise ConfigError("columns are needed", found=repr(columns), expected=expected)
    names = sorted(columns)
    fields = [_field_of(name, columns[name], field_of) for name in names]
    compression = options.get("compression")
    parse_compression(compression)
    limit = options.get("size_limit", SIZE_LIMIT_BYTES)
    return Layout(
        format=stored,
        column_names=tuple(names),
        column_encodings=tuple(columns[name] for name in names),
        column_sizes=tuple(one.size_bytes for one in fields) if sized else None,
        compression=compression,
        hashes=_hashes(options.get("hashes") or ()),
        size_limit=parse_size(limit) or None,
        newline=newline,
        separator=separator,
    )


def text_option(options: Mapping[str, Any], name: str, default: str | None) -> str:
    value = options.get(name)
    value = default if value is None else value
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a string of at least one character", found=repr(value))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} can't be written as UTF-8", found=repr(value)) from None
    return value


class MissingColumn(ConfigError, KeyError):
    """A sample lacks a column. Also a `KeyError`, for code written against the original."""


def encoded_column(sample: Sample, name: str, codec: FieldCodec) -> bytes:
    try:
        value = sample[name]
    except KeyError:
        raise MissingColumn(f"a sample without its column {name!r}", found=", ".join(map(str, sample))) from None
    try:
        return codec.encode(value)
    except PenstockError as error:
        error.what = f"column {name!r}: {error.what}"
        raise


def parse_size(limit: Any) -> int:
    """Return the bytes of a size limit as in the original: a number, or text such as `"64mb"`; 0 for no limit.

    Raises:
        ConfigError: the text isn't a size, or the size is outside `[0, 2^32)`.
    """
    if limit is None:
        return 0
    if isinstance(limit, str):
        found = _SIZE_TEXT.fullmatch(limit)
        if found is None or (found[2] is None and not found[1].isdigit()):
            raise ConfigError("not a size", found=repr(limit), expected='such as "64mb", "1.5 kb" or "1000"')
        scale = 1024 ** _UNITS.index((found[2] or "b").lower())
        size = int(found[1]) * scale if found[1].isdigit() else int(float(found[1]) * scale)
    elif isinstance(limit, int | float) and not isinstance(limit, bool) and limit == limit and abs(limit) < 1 << 63:
        size = int(limit)
    else:
        raise ConfigError("not a size", found=repr(limit), expected="a number of bytes, or a string with a unit")
    if not 0 <= size <= MOST_BYTES:
        what = f"`size_limit` must be less than {MOST_BYTES + 1} bytes, and 0 or more"
        raise ConfigError(what, found=size)
    return size


def _field_of(name: str, encoding: Any, field_of: Callable[[str], FieldCodec]) -> FieldCodec:
    try:
        name.encode()
        return field_of(str(encoding))
    except PenstockError as error:
        error.what = f"column {name!r}: {error.what}"
        raise
    except UnicodeEncodeError:
        raise ConfigError("a column name can't be written as UTF-8", found=repr(name)) from None


def _hashes(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ConfigError("hashes must be a list of names", found=repr(names))
    unknown = [name for name in names if name not in ALGORITHMS]
    if unknown or len(set(names)) != len(names):
        found, expected = ", ".join(map(str, unknown or names)), ", ".join(ALGORITHMS)
        raise ConfigError("unknown hashes" if unknown else "duplicate hash", found=found, expected=expected)
    return tuple(sorted(names))

"""Encode rows and shards of MDS."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.codec.fields import FieldCodec, mds_field
from penstock.errors import ConfigError, FormatError, PenstockError, TooLarge
from penstock.formats.shards.index_json import Layout, encode_config
from penstock.formats.shards.mds.layout import MdsColumn, first_sample_bytes, mds_columns
from penstock.formats.shards.writer import MOST_BYTES, RowEncoder, encoded_column, offset_table, writer_layout
from penstock.types import Batch, IntArray, Sample


def mds_encoder(options: Mapping[str, Any]) -> RowEncoder:
    layout = writer_layout("mds", options, mds_field, sized=True)
    return MdsEncoder(encode_config(layout), mds_columns(layout), layout)


class MdsEncoder:
    __slots__ = (
        "_columns",
        "_config",
        "_fields",
        "_size",
        "_sizes",
        "head_bytes",
        "layout",
        "row_bytes",
        "start_bytes",
    )

    def __init__(self, config: bytes, columns: tuple[MdsColumn, ...], layout: Layout) -> None:
        self.layout = layout
        self.start_bytes = first_sample_bytes(0) + len(config)
        self.row_bytes = 4
        self.head_bytes = 0
        self._config = config
        self._columns = columns
        self._fields = [(one.name, one.codec, one.size_bytes is None) for one in columns]
        self._sizes = struct.Struct(f"<{sum(one.size_bytes is None for one in columns)}I").pack
        self._size = sum(one.size_bytes or 4 for one in columns)

    def encode(self, sample: Sample, parts: list[Any], /) -> int:
        """Append the sizes of the variable columns, and the values."""
        sizes: list[int] = []
        values: list[bytes] = []
        for name, codec, variable in self._fields:
            try:
                value = sample[name]
            except KeyError:
                value = None
            if type(value) is not bytes or codec.encoding != "bytes":
                value = encoded_column(sample, name, codec)
                if variable and sample[name] is value:
                    _require_readable(name, codec, value)
            if variable:
                sizes.append(len(value))
            values.append(value)
        variable_bytes = sum(sizes)
        if variable_bytes > MOST_BYTES:
            raise TooLarge("the sample doesn't fit in a shard", found=variable_bytes, expected=f"at most {MOST_BYTES}")
        if sizes:
            parts.append(self._sizes(*sizes))
        parts += values
        return self._size + variable_bytes

    def encode_many(self, batch: Batch, /) -> NDArray[np.uint8] | None:
        """Return uint8[k, n], the rows, if all columns are arrays of the stored dtype; else None."""
        heads: list[NDArray[np.uint8]] = []
        values: list[NDArray[np.uint8]] = []
        for one in self._columns:
            column = batch.get(one.name)
            encoded = _encoded_array(one, column) if isinstance(column, np.ndarray) else None
            if encoded is None:
                return None
            if one.size_bytes is None:
                size = np.full((len(encoded), 1), encoded.shape[1], "<u4")
                heads.append(size.view(np.uint8))
            values.append(encoded)
        return np.concatenate([*heads, *values], axis=1)

    def shard(self, sizes: IntArray, /) -> tuple[bytes, None]:
        first_bytes = first_sample_bytes(len(sizes)) + len(self._config)
        return offset_table(sizes, first_bytes) + self._config, None


def _encoded_array(one: MdsColumn, column: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Return uint8[k, n], the encoded rows of an array column, or None if they must be encoded one by one."""
    codec = one.codec
    fixed = codec.size_bytes is not None
    if fixed and (codec.dtype is None or column.dtype.name != codec.dtype or column.shape[1:] != (codec.shape or ())):
        return None
    if not fixed and codec.kind != "ndarray":
        return None
    stored = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
    rows = stored.reshape(len(stored), -1).view(np.uint8)
    if fixed:
        return rows
    try:
        first = codec.encode(column[0])
    except PenstockError:
        return None
    head = np.frombuffer(first, np.uint8, len(first) - rows.shape[1])
    return np.concatenate([np.broadcast_to(head, (len(rows), len(head))), rows], axis=1)


def _require_readable(name: str, codec: FieldCodec, value: bytes) -> None:
    """Raise `ConfigError` if a value passed in encoded form can't be decoded; images aren't checked."""
    if codec.kind in ("text", "int", "float", "decimal", "json", "ndarray"):
        try:
            codec.decode(value)
        except FormatError as error:
            what = f"column {name!r}: the bytes are not a valid {codec.encoding!r} value"
            raise ConfigError(what, found=error.found, expected=error.expected) from error

"""Layout of MDS samples, and their decoding, one by one or in batches.

A sample: `u32 size` for each column of variable size, in column order; then the values of all columns, in column order.
The sizes must fill the sample exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._arrays import column, stack
from penstock.codec.fields import FieldCodec, mds_field
from penstock.codec.parts import DecodeOptions, array_options, decode_image
from penstock.codec.upright import upright_rgb
from penstock.errors import Corrupt, PenstockError, Unsupported
from penstock.formats.shards.files import Row, RowCodec, join_rows
from penstock.formats.shards.index_json import Layout
from penstock.types import Batch, Buffer, Field, IntArray, OpenOptions, Sample

Bytes = NDArray[np.uint8]

_STORED = mds_field("bytes")
_JOINED_BYTES = 1 << 14  # maximum mean size of rows that are copied together before decoding


@dataclass(frozen=True, slots=True)
class MdsColumn:
    """One column of a layout.

    Attributes:
        name: key in the sample.
        codec: codec of its values.
        size_bytes: size of every value, or None if each sample records it.
    """

    name: str
    codec: FieldCodec
    size_bytes: int | None


def mds_columns(layout: Layout, *, trust: bool = False, raw: bool = False) -> tuple[MdsColumn, ...]:
    """Return the columns of a layout, in file order; with `raw` their values are the stored bytes.

    Raises:
        ConfigError: an encoding is unknown.
        Unsupported: a fixed size differs from that of its encoding.
    """
    sizes = layout.column_sizes or (None,) * len(layout.column_names)
    columns: list[MdsColumn] = []
    for name, encoding, size_bytes in zip(layout.column_names, layout.column_encodings, sizes, strict=True):
        codec = mds_field(encoding, trust=trust)
        if size_bytes is not None and codec.size_bytes not in (None, size_bytes):
            what = f"column {name!r} has a different size than its encoding {encoding!r}"
            raise Unsupported(what, found=size_bytes, expected=codec.size_bytes)
        columns.append(MdsColumn(name, _STORED if raw else codec, size_bytes))
    return tuple(columns)


def mds_codec(layout: Layout, options: OpenOptions) -> RowCodec:
    columns = mds_columns(layout, trust=options.trust, raw=options.raw)
    if (how := array_options(options.decode)) is not None:
        columns = tuple(replace(one, codec=_as_pixels(one.codec, how)) for one in columns)
    wanted = tuple(one for one in columns if options.columns is None or one.name in options.columns)
    decode = _decoder(columns, wanted)
    many = _ManyDecoder(columns, wanted)
    arrays = all(_array_dtype(one) is not None or one.codec.kind == "ndarray" for one in wanted)
    return RowCodec(
        fields=tuple(Field(one.name, one.codec.kind, one.codec.dtype, one.codec.shape) for one in wanted),
        floor_bytes=first_sample_bytes,
        decode=decode,
        decode_rows=_rows_decoder(columns, wanted, decode, many if arrays else None),
        decode_many=many,
        arrays=arrays,
    )


def _as_pixels(codec: FieldCodec, how: DecodeOptions) -> FieldCodec:
    """Return a codec that decodes images to arrays; for other columns, the codec itself."""
    if codec.kind not in ("image", "images"):
        return codec
    is_file = codec.encoding in ("jpeg", "png")
    decode = partial(_pixels_of_file, how) if is_file else partial(_pixels, codec.decode, how.upright)
    shape = (None, None, 3) if codec.kind == "image" else None
    return replace(codec, dtype="uint8" if shape else None, shape=shape, decode=decode)


def _pixels_of_file(how: DecodeOptions, data: Buffer) -> Any:
    return decode_image(bytes(data), how)


def _pixels(decode: Callable[[Buffer], Any], upright: bool, data: Buffer) -> Any:
    image = decode(data)
    as_rgb = upright_rgb if upright else _as_rgb
    return [as_rgb(one) for one in image] if isinstance(image, list) else as_rgb(image)


def _as_rgb(image: Any) -> Bytes:
    return np.array(image.convert("RGB"))


def first_sample_bytes(samples: int) -> int:
    """Return the smallest possible offset of the first of `samples` samples: the end of the table of offsets."""
    return 4 * (samples + 2)


# --- one sample --------------------------------------------------------------------------------------------------


def _decoder(columns: tuple[MdsColumn, ...], wanted: tuple[MdsColumn, ...]) -> Callable[[memoryview, int, int], Sample]:
    if len(columns) == len(wanted) == 1 and columns[0].size_bytes is None:
        return _one_variable(columns[0])
    if all(one.size_bytes is not None for one in columns):
        return _all_fixed(columns, wanted)
    return _general(columns, wanted)


def _one_variable(only: MdsColumn) -> Callable[[memoryview, int, int], Sample]:
    name, decode, size_at = only.name, only.codec.decode, struct.Struct("<I").unpack_from

    def decode_sample(view: memoryview, start: int, stop: int) -> Sample:
        if stop - start < 4 or size_at(view, start)[0] != stop - start - 4:
            raise _sizes_differ(view, start, stop, (only,))
        try:
            return {name: decode(view[start + 4 : stop])}
        except PenstockError as error:
            raise _placed(error, name, start + 4)  # noqa: B904 (the same error, with its place)

    return decode_sample


def _all_fixed(
    columns: tuple[MdsColumn, ...], wanted: tuple[MdsColumn, ...]
) -> Callable[[memoryview, int, int], Sample]:
    parts: list[tuple[str, int, int, Callable[[Any], Any]]] = []
    names = {one.name for one in wanted}
    begin = 0
    for one in columns:
        end = begin + (one.size_bytes or 0)
        if one.name in names:
            parts.append((one.name, begin, end, one.codec.decode))
        begin = end
    total_bytes = begin

    def decode_sample(view: memoryview, start: int, stop: int) -> Sample:
        if stop - start != total_bytes:
            raise _sizes_differ(view, start, stop, columns)
        sample: Sample = {}
        for name, begin, end, decode in parts:
            try:
                sample[name] = decode(view[start + begin : start + end])
            except PenstockError as error:
                raise _placed(error, name, start + begin)  # noqa: B904
        return sample

    return decode_sample


def _general(columns: tuple[MdsColumn, ...], wanted: tuple[MdsColumn, ...]) -> Callable[[memoryview, int, int], Sample]:
    names = {one.name for one in wanted}
    sizes_of = struct.Struct(f"<{sum(one.size_bytes is None for one in columns)}I")
    parts = [(one.name, one.size_bytes, one.codec.decode if one.name in names else None) for one in columns]

    def decode_sample(view: memoryview, start: int, stop: int) -> Sample:
        begin = start + sizes_of.size
        if begin > stop:
            raise _sizes_differ(view, start, stop, columns)
        sizes = iter(sizes_of.unpack_from(view, start))
        cuts: list[tuple[str, int, int, Callable[[Any], Any]]] = []
        for name, size_bytes, decode in parts:
            end = begin + (next(sizes) if size_bytes is None else size_bytes)
            if decode is not None:
                cuts.append((name, begin, end, decode))
            begin = end
        if begin != stop:
            raise _sizes_differ(view, start, stop, columns)
        sample: Sample = {}
        for name, begin, end, decode in cuts:
            try:
                sample[name] = decode(view[begin:end])
            except PenstockError as error:
                raise _placed(error, name, begin)  # noqa: B904
        return sample

    return decode_sample


def _placed(error: PenstockError, name: str, at: int) -> PenstockError:
    error.what = f"column {name!r}: {error.what}"
    error.offset_bytes = at + (error.offset_bytes or 0)
    return error


def _sizes_differ(view: memoryview, start: int, stop: int, columns: tuple[MdsColumn, ...]) -> Corrupt:
    variable = [one for one in columns if one.size_bytes is None]
    fixed_bytes = sum(one.size_bytes or 0 for one in columns) + 4 * len(variable)
    if stop - start < 4 * len(variable):
        found = "the sizes are truncated"
    else:
        stated = struct.unpack_from(f"<{len(variable)}I", view, start)
        found = f"columns of {sum(stated) + fixed_bytes} bytes in all, sizes included"
    expected = f"{stop - start} bytes, as in the offsets"
    return Corrupt(
        "the column sizes don't add up to the sample size", offset_bytes=start, found=found, expected=expected
    )


# --- many samples, of any buffers --------------------------------------------------------------------------------


def _rows_decoder(
    columns: tuple[MdsColumn, ...],
    wanted: tuple[MdsColumn, ...],
    decode: Callable[[memoryview, int, int], Sample],
    many: _ManyDecoder | None,
) -> Callable[[Sequence[Row]], Batch]:
    if many is not None:
        return partial(_joined_rows, many, decode)
    if len(columns) == len(wanted) == 1 and columns[0].size_bytes is None:
        return partial(_rows_of_one, columns[0])
    return lambda rows: stack([decode(*row) for row in rows])


def _joined_rows(many: _ManyDecoder, decode: Callable[[memoryview, int, int], Sample], rows: Sequence[Row]) -> Batch:
    """Return columns that are all arrays; small rows are copied together first."""
    if sum([stop - start for _, start, stop in rows]) <= _JOINED_BYTES * len(rows):
        batch = many(*join_rows(rows))
        if batch is not None:
            return batch
    return stack([decode(*row) for row in rows])


def _rows_of_one(only: MdsColumn, rows: Sequence[Row]) -> Batch:
    size_at, decode = struct.Struct("<I").unpack_from, only.codec.decode
    values: list[Any] = []
    for view, start, stop in rows:
        if size_at(view, start)[0] != stop - start - 4:
            raise _sizes_differ(view, start, stop, (only,))
        values.append(decode(view[start + 4 : stop]))
    return {only.name: column(values)}


# --- many samples, of one buffer ---------------------------------------------------------------------------------


class _ManyDecoder:
    """Decoder of many samples in one buffer as columns; see `RowCodec.decode_many`."""

    __slots__ = ("_columns", "_fixed", "_variable", "_wanted")

    def __init__(self, columns: tuple[MdsColumn, ...], wanted: tuple[MdsColumn, ...]) -> None:
        self._columns = columns
        names = {one.name for one in wanted}
        self._wanted = [one.name in names for one in columns]
        self._variable = [place for place, one in enumerate(columns) if one.size_bytes is None]
        self._fixed = np.array([one.size_bytes or 0 for one in columns], np.int64)

    def __call__(self, data: Bytes, starts: IntArray, stops: IntArray) -> Batch | None:
        head_bytes = 4 * len(self._variable)
        if int((stops - starts).min()) < head_bytes:
            return None
        sizes = np.broadcast_to(self._fixed, (len(starts), len(self._fixed)))
        if head_bytes:
            sizes = sizes.copy()
            sizes[:, self._variable] = _windows(data, head_bytes)[starts].view("<u4")
        ends = (starts + head_bytes)[:, None] + np.cumsum(sizes, axis=1)
        if (ends[:, -1] != stops).any():
            return None
        batch: Batch = {}
        try:
            for place, one in enumerate(self._columns):
                if self._wanted[place]:
                    batch[one.name] = _column(data, one, ends[:, place] - sizes[:, place], sizes[:, place])
        except PenstockError:
            return None  # the decoder of single samples finds the irregular one
        return batch


def _column(data: Bytes, one: MdsColumn, begins: IntArray, sizes: IntArray) -> Any:
    dtype = _array_dtype(one)
    if dtype is not None:
        rows = _windows(data, int(sizes[0]))[begins].view(dtype.newbyteorder("<"))
        return rows.astype(dtype, copy=False).reshape(len(begins), *(one.codec.shape or ()))
    if one.codec.kind == "ndarray" and (sizes == sizes[0]).all():
        stacked = _equal_arrays(data, one, begins, int(sizes[0]))
        if stacked is not None:
            return stacked
    view, decode = data.data, one.codec.decode
    return column([decode(view[at : at + size]) for at, size in zip(begins.tolist(), sizes.tolist(), strict=True)])


def _equal_arrays(data: Bytes, one: MdsColumn, begins: IntArray, size_bytes: int) -> Any:
    """Return arrays of equal shape as one array, or None if their headers differ."""
    at = int(begins[0])
    first: NDArray[Any] = one.codec.decode(data[at : at + size_bytes])
    head_bytes = size_bytes - first.nbytes  # an array's values are the last bytes
    if head_bytes:
        heads = _windows(data, head_bytes)[begins]
        if (heads != heads[0]).any():
            return None
    rows = _windows(data, first.nbytes)[begins + head_bytes].view(first.dtype.newbyteorder("<"))
    return rows.astype(first.dtype, copy=False).reshape(len(begins), *first.shape)


def _array_dtype(one: MdsColumn) -> np.dtype[Any] | None:
    """Return the dtype of a column of plain numbers: sized numbers, or arrays of a fixed shape."""
    codec = one.codec
    if codec.dtype is None or codec.size_bytes is None or one.size_bytes != codec.size_bytes:
        return None
    return np.dtype(codec.dtype)


def _windows(data: Bytes, width: int) -> Bytes:
    """Return uint8[n, width], the `width` bytes at each offset, without a copy. Offsets must leave room for `width`."""
    return np.ndarray((max(0, len(data) - width + 1), width), np.uint8, data, strides=(1, 1))

"""csv, tsv and xsv: rows of text in shards, with the offset of each row in a meta file.

As written by MosaicML Streaming. The data file:

| bytes | content |
|---|---|
| header row | the column names |
| one row per sample | the values in column order, joined by the separator, then the newline; UTF-8, no quoting |

The meta file: `u32 n, u32 offset[n + 1]`, offsets in the data file, then the columns and options of the writer as JSON.
The separator is `,` in csv, a tab in tsv, any text in xsv. Values are `str`, `int` or `float`, as written by Python.

Limits: 2^32 - 1 bytes per shard. Checked against mosaicml-streaming 0.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from penstock._arrays import column
from penstock.codec.fields import FieldCodec, text_field
from penstock.errors import ConfigError, Corrupt
from penstock.formats.shards.files import Row, RowCodec
from penstock.formats.shards.format import ShardFormat
from penstock.formats.shards.index_json import SEPARATORS, Layout
from penstock.formats.shards.writer import RowEncoder, TextEncoder, encoded_column, text_option, writer_layout
from penstock.types import Batch, Field, OpenOptions, Sample, Traits

_SHOWN_BYTES = 60
_PARSERS: dict[str, Callable[[str], Any] | None] = {"str": None, "int": int, "float": float}


# --- reading -----------------------------------------------------------------------------------------------------


def xsv_codec(layout: Layout, options: OpenOptions) -> RowCodec:
    fields = [text_field(encoding) for encoding in layout.column_encodings]
    wanted: _Wanted = [
        (place, name, _PARSERS[one.encoding])
        for place, (name, one) in enumerate(zip(layout.column_names, fields, strict=True))
        if options.columns is None or name in options.columns
    ]
    return RowCodec(
        fields=tuple(Field(name, fields[place].kind, None, fields[place].shape) for place, name, _ in wanted),
        floor_bytes=lambda _samples: 0,
        decode=_decoder(layout, wanted),
        decode_rows=partial(_decode_rows, layout, wanted),
    )


_Wanted: TypeAlias = list[tuple[int, str, Callable[[str], Any] | None]]
"""Position, name and parser of the selected columns."""


def _decoder(layout: Layout, wanted: _Wanted) -> Callable[[memoryview, int, int], Sample]:
    separator, newline = layout.separator or "", layout.newline or ""
    count, end = len(layout.column_names), -len(newline)

    def decode(view: memoryview, start: int, stop: int) -> Sample:
        try:
            row = str(view[start:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise Corrupt("a row is not UTF-8", offset_bytes=start + error.start, found=error.reason) from None
        if not row.endswith(newline):
            found, expected = repr(row[end:]), repr(newline)
            raise Corrupt("a row has no newline", offset_bytes=start, found=found, expected=expected)
        cells = row[:end].split(separator)
        if len(cells) != count:
            raise Corrupt("a row has the wrong number of cells", offset_bytes=start, found=len(cells), expected=count)
        try:
            return {name: cells[place] if parse is None else parse(cells[place]) for place, name, parse in wanted}
        except ValueError as error:
            raise Corrupt("a cell doesn't match the type of its column", offset_bytes=start, found=str(error)) from None

    return decode


def _decode_rows(layout: Layout, wanted: _Wanted, rows: Sequence[Row]) -> Batch:
    separator, newline = layout.separator or "", layout.newline or ""
    count, end = len(layout.column_names), -len(newline)
    texts = [str(view[start:stop], "utf-8") for view, start, stop in rows]
    if not all(text.endswith(newline) for text in texts):
        raise Corrupt("a row has no newline")
    table = [text[:end].split(separator) for text in texts]
    if {len(cells) for cells in table} != {count}:
        raise Corrupt("a row has the wrong number of cells")
    columns = list(zip(*table, strict=True))
    return {
        name: list(columns[place]) if parse is None else column(list(map(parse, columns[place])))
        for place, name, parse in wanted
    }


# --- writing -----------------------------------------------------------------------------------------------------


def xsv_encoder(stored: str, options: Mapping[str, Any]) -> RowEncoder:
    separator = SEPARATORS.get(stored) or text_option(options, "separator", None)
    newline = text_option(options, "newline", "\n")
    layout = writer_layout(stored, options, text_field, newline=newline, separator=separator)
    header = _joined(layout, [name.encode() for name in layout.column_names])
    fields = list(zip(layout.column_names, map(text_field, layout.column_encodings), strict=True))
    return TextEncoder(layout, header, partial(_encode_row, layout, fields))


def _encode_row(layout: Layout, fields: list[tuple[str, FieldCodec]], sample: Sample) -> bytes:
    return _joined(layout, [encoded_column(sample, name, codec) for name, codec in fields])


def _joined(layout: Layout, cells: list[bytes]) -> bytes:
    """Return one row; raise an error if it would read back differently."""
    separator, newline = (layout.separator or "").encode(), (layout.newline or "").encode()
    for name, cell in zip(layout.column_names, cells, strict=True):
        for one in (separator, newline):
            if one in cell:
                what = f"the column {name!r} holds {one.decode()!r}, which a {layout.format} row can't hold"
                raise ConfigError(what, hint="Write json-shards or mds: --to json-shards (format='json-shards')")
    row = separator.join(cells)
    # Across two cells, a multi-character separator may begin earlier than it was inserted.
    if row.count(separator) != len(cells) - 1 or (len(separator) > 1 and row.split(separator) != cells):
        shown = repr(row[:_SHOWN_BYTES])
        raise ConfigError(
            "a value can't be stored in this format", found=shown, expected=f"no {separator!r} in its values"
        )
    return row + newline


def _format(name: str, *options: str) -> ShardFormat:
    return ShardFormat(
        name=name,
        stored=name,
        traits=Traits(
            write=True, splits=True, remote=True, verify=True, repair=True, hashes=True, made_by="MosaicML Streaming"
        ),
        codec=xsv_codec,
        encoder=partial(xsv_encoder, name),
        options=("newline", *options),
    )


CSV = _format("csv")
TSV = _format("tsv")
XSV = _format("xsv", "separator")

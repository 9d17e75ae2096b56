"""json-shards: one JSON object per line in shards, with the offset of each line in a meta file.

As written by MosaicML Streaming; the format name in an index is `json`. The data file: `json.dumps` of each sample with
sorted keys and ASCII escapes, then the newline; NaN and Infinity are written as such. The meta file: `u32 n,
u32 offset[n + 1]`, offsets in the data file, then the columns and options of the writer as JSON. Columns are `str`,
`int` or `float`. When reading, rows may hold any other values.

Limits: 2^32 - 1 bytes per shard. Checked against mosaicml-streaming 0.13.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from penstock._arrays import stack
from penstock._limits import require_memory_for
from penstock.codec.fields import FieldCodec, text_field
from penstock.errors import ConfigError, Corrupt
from penstock.formats.shards.files import RowCodec
from penstock.formats.shards.format import ShardFormat
from penstock.formats.shards.index_json import Layout
from penstock.formats.shards.writer import RowEncoder, TextEncoder, encoded_column, text_option, writer_layout
from penstock.types import Field, OpenOptions, Sample, Traits

_JSON_SPACE = " \t\r\n"
_KINDS: dict[str, type] = {"str": str, "int": int, "float": float}


# --- reading -----------------------------------------------------------------------------------------------------


def json_codec(layout: Layout, options: OpenOptions) -> RowCodec:
    fields = [
        (name, text_field(encoding))
        for name, encoding in zip(layout.column_names, layout.column_encodings, strict=True)
        if options.columns is None or name in options.columns
    ]
    decode = _decoder(options.columns)
    return RowCodec(
        fields=tuple(Field(name, one.kind, None, one.shape) for name, one in fields),
        floor_bytes=lambda _samples: 0,
        decode=decode,
        decode_rows=lambda rows: stack([decode(*row) for row in rows]),
    )


def _decoder(columns: tuple[str, ...] | None) -> Callable[[memoryview, int, int], Sample]:
    decode_json = msgspec.json.Decoder().decode

    def decode(view: memoryview, start: int, stop: int) -> Sample:
        require_memory_for(view[start:stop])
        try:
            value = decode_json(view[start:stop])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = _by_python(view, start, stop)  # NaN and Infinity, numbers beyond a float's range
        sample: Sample = value if isinstance(value, dict) else {"value": value}
        return sample if columns is None else {name: sample[name] for name in columns if name in sample}

    return decode


def _by_python(view: memoryview, start: int, stop: int) -> Any:
    try:
        return json.loads(bytes(view[start:stop]))
    except (ValueError, RecursionError) as error:
        at = start + getattr(error, "pos", 0)
        raise Corrupt("a line is not valid JSON", offset_bytes=at, found=str(error)) from None


# --- writing -----------------------------------------------------------------------------------------------------


def json_encoder(options: Mapping[str, Any]) -> RowEncoder:
    newline = text_option(options, "newline", "\n")
    if newline.strip(_JSON_SPACE):
        hint = "Readers pass the newline to their JSON parser"
        raise ConfigError("the newline is not white space", found=repr(newline), expected="of \\n \\r \\t", hint=hint)
    layout = writer_layout("json", options, text_field, newline=newline)
    columns = [
        (name, _KINDS[encoding], text_field(encoding))
        for name, encoding in zip(layout.column_names, layout.column_encodings, strict=True)
    ]
    return TextEncoder(layout, b"", partial(_encode_line, columns, newline.encode()))


def _encode_line(columns: list[tuple[str, type, FieldCodec]], newline: bytes, sample: Sample) -> bytes:
    line: Sample = {}
    for name, kind, codec in columns:  # in the order of their names
        value = sample.get(name)
        if type(value) is not kind:
            encoded_column(sample, name, codec)  # rejects values of other types
            value = value if isinstance(value, kind) else value.item()  # pyright: ignore (a number of numpy)
        line[name] = value
    try:
        return json.dumps(line).encode() + newline
    except ValueError:
        for name, _, codec in columns:
            encoded_column(sample, name, codec)  # rejects an int of more digits than Python reads back
        raise


FORMAT = ShardFormat(
    name="json-shards",
    stored="json",
    traits=Traits(
        write=True, splits=True, remote=True, verify=True, repair=True, hashes=True, made_by="MosaicML Streaming"
    ),
    codec=json_codec,
    encoder=json_encoder,
    options=("newline",),
)

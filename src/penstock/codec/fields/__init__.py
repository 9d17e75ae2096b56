"""Encoders of column values: the 28 encodings of MDS, and the three of its text formats.

Checked against mosaicml-streaming 0.13.0. Values that it changes, or writes but can't read, raise an error here:
`uint8`
of 3.7 or of a numpy 300, `float16` of 1e9, `str_int` of True, an empty `jpeg_array`, `pil` with a palette. A `bytes`
value is stored as it is in every encoding: it must be readable in that encoding, and of its size if that is fixed. An
image file, which is costly to read, is only checked when it is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

import numpy as np

from penstock._naming import nearest
from penstock.codec.fields import _arrays, _images, _json, _pickled, _scalars
from penstock.codec.fields._codec import FieldCodec, UnfitValue
from penstock.codec.fields._images import split_list
from penstock.codec.fields._own import own_encodings, own_field, register_encoding, unregister_encoding
from penstock.errors import ConfigError, FormatError
from penstock.types import Buffer

__all__ = [
    "FieldCodec",
    "mds_encodings",
    "mds_field",
    "own_encodings",
    "register_encoding",
    "split_list",
    "text_field",
    "unregister_encoding",
]

_Encode = Callable[[Any], bytes]
_Decode = Callable[[Buffer], Any]

_SIZED = tuple(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)) + tuple(
    f"float{bits}" for bits in (16, 32, 64)
)


def _number_text(encoding: str, encode: Callable[[str, Any], bytes], kind: Any) -> tuple[_Encode, _Decode]:
    return partial(encode, encoding), partial(_scalars.decode_number_text, encoding, kind)


_IMAGES: dict[str, tuple[_Encode, _Decode]] = {
    "pil": (_images.encode_pil, _images.decode_pil),
    "jpeg": (_images.encode_jpeg, partial(_images.decode_file, "jpeg")),
    "png": (_images.encode_png, partial(_images.decode_file, "png")),
}

_VARIABLE: dict[str, tuple[str, _Encode, _Decode]] = {
    "bytes": ("bytes", _scalars.encode_bytes, _scalars.decode_bytes),
    "str": ("text", _scalars.encode_str, _scalars.decode_str),
    "str_int": ("int", *_number_text("str_int", _scalars.encode_int_text, int)),
    "str_float": ("float", *_number_text("str_float", _scalars.encode_float_text, float)),
    "str_decimal": ("decimal", *_number_text("str_decimal", _scalars.encode_decimal_text, Decimal)),
    "json": ("json", _json.encode_json, _json.decode_json),
    "pkl": ("pickle", _pickled.encode_pickle, _pickled.refuse_pickle),
    **{name: ("image", *functions) for name, functions in _IMAGES.items()},
    "jpeg_array": ("images", _images.encode_jpeg_array, _images.decode_jpeg_array),
    "jpegarray": ("images", _images.encode_jpeg_array, _images.decode_jpeg_array),
    **{
        f"list[{name}]": ("images", partial(_images.encode_list, name, encode), partial(_images.decode_list, name))
        for name, (encode, _) in _IMAGES.items()
    },
}
"""Encodings of variable size → kind, encoder, decoder."""

_OF_YOUR_OWN = (
    "To add an encoding, use register_encoding, or for commands an entry point in the group penstock.mds_encodings"
)

_TEXT: dict[str, tuple[str, _Encode, _Decode]] = {
    "str": ("text", _scalars.encode_str, _scalars.decode_str),
    "int": ("int", *_number_text("int", _scalars.encode_int_text, int)),
    "float": ("float", *_number_text("float", _scalars.encode_float_text, float)),
}


def mds_encodings() -> tuple[str, ...]:
    """Return the 28 names; `ndarray` also takes a dtype and a shape: `ndarray:int16`, `ndarray:int16:3,4`."""
    return ("int", "ndarray", *_SIZED, *_VARIABLE)


def mds_field(encoding: str, *, trust: bool = False) -> FieldCodec:
    """Return the codec of an MDS column.

    Args:
        encoding: a name, for `ndarray` with its dtype and shape; or a registered one, see `register_encoding`.
        trust: allow decoding of `pkl`, which runs code from the data.

    Raises:
        ConfigError: the encoding is unknown.
    """
    found = own_field(encoding) or _known_field(encoding, trust) or own_field(encoding, of_packages=True)
    if found is None:
        raise _unknown(encoding, mds_encodings())
    return found


@lru_cache(maxsize=128)  # a file may have 10^5 columns
def _known_field(encoding: str, trust: bool) -> FieldCodec | None:
    """Return the codec of one of the 28 encodings, None for another name."""
    name, colon, config = encoding.partition(":")
    if name == "ndarray":
        return _array_field(encoding, config)
    if colon or name not in mds_encodings():
        return None
    if name == "int":
        return _field(name, 8, "int", "int64", (), _scalars.encode_int, _scalars.decode_int)
    if name in _SIZED:
        dtype = np.dtype(name)
        encode = _scalars.encode_sized_float if dtype.kind == "f" else _scalars.encode_sized_int
        kind = "float" if dtype.kind == "f" else "int"
        return _field(name, dtype.itemsize, kind, name, (), partial(encode, name), partial(_scalars.decode_sized, name))
    kind, encode, decode = _VARIABLE[name]
    if name == "pkl" and trust:
        decode = _pickled.decode_trusted_pickle
    return _field(name, None, kind, None, () if kind in ("int", "float", "decimal") else None, encode, decode)


def text_field(encoding: str) -> FieldCodec:
    """Return the codec of a column of CSV, TSV, XSV and JSON shards: `str`, `int` or `float`, as UTF-8 text.

    Raises:
        ConfigError: the encoding is unknown.
    """
    if encoding not in _TEXT:
        raise _unknown(encoding, tuple(_TEXT))
    kind, encode, decode = _TEXT[encoding]
    return FieldCodec(encoding, None, kind, None, None if kind == "text" else (), False, encode, decode)


def _array_field(encoding: str, config: str) -> FieldCodec:
    dtype, shape = _arrays.parse_array(config)
    size_bytes = None if dtype is None or shape is None else math.prod(shape) * np.dtype(dtype).itemsize
    encode = partial(_arrays.encode_array, dtype, shape)
    return _field(encoding, size_bytes, "ndarray", dtype, shape, encode, partial(_arrays.decode_array, dtype, shape))


def _field(
    encoding: str,
    size_bytes: int | None,
    kind: str,
    dtype: str | None,
    shape: tuple[int | None, ...] | None,
    encode: _Encode,
    decode: _Decode,
) -> FieldCodec:
    passing = partial(_encode_or_pass, encoding, size_bytes, encode, _CHECKS.get(encoding.partition(":")[0], decode))
    return FieldCodec(encoding, size_bytes, kind, dtype, shape, encoding == "pkl", passing, decode)


def _taken(data: Buffer) -> None:
    """Accept any bytes: an image file is stored as it is."""


_CHECKS: dict[str, Callable[[Buffer], object]] = {
    "pkl": _pickled.check_pickle,
    "pil": _images.check_pil,
    "jpeg": _taken,
    "png": _taken,
    **dict.fromkeys(("jpeg_array", "jpegarray"), partial(_images.check_parts, "jpeg_array", 0)),
    **{f"list[{name}]": partial(_images.check_parts, f"list[{name}]", 4) for name in _IMAGES},
}
"""Encoding → check for unreadable bytes without decoding them."""


def _encode_or_pass(
    encoding: str, size_bytes: int | None, encode: _Encode, check: Callable[[Buffer], object], value: Any
) -> bytes:
    if not isinstance(value, bytes):
        return encode(value)
    if size_bytes is not None and len(value) != size_bytes:
        what = f"the bytes for the encoding {encoding!r} have the wrong size"
        raise UnfitValue(what, found=len(value), expected=size_bytes)
    if size_bytes is None:
        try:
            check(value)
        except FormatError as error:
            raise UnfitValue(
                f"the bytes for the encoding {encoding!r} can't be decoded",
                found=f"{error.what}: {error.found}",
                expected=f"a value, or its bytes as stored by {encoding!r}",
                hint="Use the encoding 'bytes' to store bytes",
            ) from None
    return value


class UnknownEncoding(ConfigError, TypeError):
    """Unknown encoding; a `TypeError` for code that was written for mosaicml-streaming."""


def _unknown(encoding: str, names: tuple[str, ...]) -> UnknownEncoding:
    name = encoding.partition(":")[0]
    close = {"string": "str", "text": "str", "integer": "int"}.get(name) or nearest(name, names)
    hint = f"Did you mean {close!r}?" if close else _OF_YOUR_OWN
    expected = None if close else ", ".join(names)
    return UnknownEncoding("unknown encoding", found=repr(encoding), expected=expected, hint=hint)

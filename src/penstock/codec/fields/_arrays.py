"""Encoding `ndarray`: a dtype byte if the dtype is free, the shape if it is free, then the values in C order.

    u8 code                    8 uint8, 9 int8, 16 uint16, 17 int16, 18 float16, … 66 float64
    u8 ndim << 2 | w           dims are uint8, uint16, uint32, uint64 for w = 0 to 3
    dims, values               little-endian

1 to 63 axes, none of them empty. Arrays of the other byte order are converted. The original stores their bytes
unchanged and reads wrong numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock._arrays import byte_view
from penstock._limits import count_in
from penstock.codec.fields._codec import bad_value, cut_off, damaged
from penstock.errors import ConfigError, Unsupported
from penstock.types import Buffer

_CODES = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
_DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in _CODES.items()}
_CODES_OF = {np.dtype(name).newbyteorder(order): code for name, code in _CODES.items() for order in ("<", ">", "=")}
_DIM_DTYPES = tuple(np.dtype(f"<u{1 << w}") for w in range(4))
_MAX_AXES = 63

Shape = tuple[int, ...]


def parse_array(config: str) -> tuple[str | None, Shape | None]:
    """Parse `""`, `"int16"` or `"int16:3,4"` as dtype and shape, None if free."""
    if not config:
        return None, None
    name, colon, dims = config.partition(":")
    if name not in _CODES:
        raise ConfigError("not a dtype of ndarray columns", found=repr(name), expected=", ".join(_CODES))
    if not colon:
        return name, None
    shape = [count_in(part) for part in dims.split(",")]
    if not all(shape):
        raise ConfigError(
            "not a shape of ndarray columns", found=repr(dims), expected="sizes of at least 1, such as 3,4"
        )
    if len(shape) > _MAX_AXES:
        raise ConfigError("too many axes", found=len(shape), expected=f"1 to {_MAX_AXES}")
    return name, tuple(filter(None, shape))


def encode_array(dtype: str | None, shape: Shape | None, value: Any) -> bytes:
    """Return the bytes of an array, which must match the dtype and shape of the column if they are fixed."""
    if not isinstance(value, np.ndarray):
        raise bad_value(array_encoding(dtype, shape), value, "a numpy array")
    code = _CODES_OF.get(value.dtype)
    if code is None or (dtype is not None and code != _CODES[dtype]):
        expected = f"dtype {dtype}" if dtype else ", ".join(_CODES)
        raise _unfit(array_encoding(dtype, shape), f"dtype {value.dtype}", expected)
    if shape is not None and shape != value.shape:
        raise _unfit(array_encoding(dtype, shape), f"shape {value.shape}", f"shape {shape}")
    if not value.size or not 1 <= value.ndim <= _MAX_AXES:
        expected = f"1 to {_MAX_AXES} axes, none of size 0"
        raise _unfit(array_encoding(dtype, shape), f"shape {value.shape}", expected)
    head = b"" if dtype else bytes([code])
    if shape is None:
        width = next(width for width in range(4) if not max(value.shape) >> (8 << width))
        head += bytes([value.ndim << 2 | width]) + np.asarray(value.shape, _DIM_DTYPES[width]).tobytes()
    return head + value.astype(_DTYPES[code], copy=False).tobytes()


def decode_array(dtype: str | None, shape: Shape | None, data: Buffer) -> Any:
    """Return a read-only view of the values in `data`."""
    fixed, view, at = shape, byte_view(data), 0
    if dtype is None:
        stored = _DTYPES.get(_byte(dtype, shape, view, at))
        at += 1
        if stored is None:
            encoding = array_encoding(dtype, shape)
            raise damaged(encoding, f"dtype code {view[0]}", ", ".join(str(code) for code in _DTYPES))
    else:
        stored = _DTYPES[_CODES[dtype]]
    if shape is None:
        head = _byte(dtype, shape, view, at)
        dims, axes = _DIM_DTYPES[head & 3], head >> 2
        at += 1 + axes * dims.itemsize
        if at > len(view):
            raise cut_off(array_encoding(dtype, fixed), view, at)
        shape = tuple(np.frombuffer(view, dims, axes, at - axes * dims.itemsize).tolist())
        if not shape or 0 in shape:
            raise damaged(array_encoding(dtype, fixed), f"shape {shape}", "1 or more axes, none of size 0")
    size_bytes = at + math.prod(shape) * stored.itemsize
    if size_bytes > len(view):
        raise cut_off(array_encoding(dtype, fixed), view, size_bytes)
    if size_bytes < len(view):
        raise damaged(array_encoding(dtype, fixed), f"{len(view)} bytes", f"{size_bytes} bytes", size_bytes)
    flat = np.frombuffer(view, stored, offset=at)
    if not stored.isnative:
        flat = flat.astype(stored.newbyteorder("="))
    flat.flags.writeable = False
    try:
        return flat.reshape(shape)
    except ValueError as error:  # numpy 1 has 32 axes at most
        raise Unsupported(f"an array of {len(shape)} axes needs a newer version of numpy") from error


def array_encoding(dtype: str | None, shape: Shape | None) -> str:
    parts = ["ndarray", dtype, None if shape is None else ",".join(str(size) for size in shape)]
    return ":".join(part for part in parts if part)


def _byte(dtype: str | None, shape: Shape | None, view: memoryview, at: int) -> int:
    if at >= len(view):
        raise cut_off(array_encoding(dtype, shape), view, at + 1)
    return view[at]


def _unfit(encoding: str, found: str, expected: str) -> ConfigError:
    return ConfigError(f"an array doesn't fit the encoding {encoding!r}", found=found, expected=expected)

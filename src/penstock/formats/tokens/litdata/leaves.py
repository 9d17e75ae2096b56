"""The values of a sample in litdata's chunks: bytes → Python values. Nothing is unpickled.

| format | content |
|---|---|
| `str`, `text` | UTF-8 |
| `int`, `float`, `bool` | int64, float64, a byte |
| `bytes`, and files: `jpeg image video audio file pdf mesh nifti tifffile` | as they are stored |
| `jpeg_array` | u32 n, u32 size of each, n files: a list of them as they are stored |
| `no_header_numpy:C`, `no_header_tensor:C` | an array of one dimension, of the dtype with number C |
| `numpy` | u32 dtype, u32 dimensions, u32 each, array |
| `tensor` | the same, big-endian but for the array |
| `pil` | u32 width, u32 height, u32 length of the mode, mode, pixels |
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock._limits import count_in
from penstock._printable import shortened
from penstock.codec.fields import split_list
from penstock.errors import Corrupt, FormatError, UnsafeData, Unsupported
from penstock.types import Field

Decode = Callable[[memoryview], Any]

_NUMPY = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?")
"""Dtypes by NumPy's type numbers, little-endian."""

_TORCH = {
    **dict.fromkeys((0, 1), "f4"), **dict.fromkeys((2, 3), "f8"), **dict.fromkeys((4, 5), "c8"),
    **dict.fromkeys((6, 7), "c16"), **dict.fromkeys((8, 9), "f2"), 11: "u1", 12: "i1", **dict.fromkeys((13, 14), "i2"),
    **dict.fromkeys((15, 16), "i4"), **dict.fromkeys((17, 18), "i8"), 19: "?", 20: "u2",
}  # fmt: skip
_FILES = ("bytes", "jpeg", "image", "video", "audio", "file", "pdf", "mesh", "nifti", "tifffile", "tiff", "png")
_PLAIN = ("no_header_numpy", "no_header_tensor")
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
_MOST_DIMS, _MOST_DEEP = 32, 64
_MOST_NAMES = 200


def stored_dtype(leaf: str, path: str) -> np.dtype[Any]:
    """Return the little-endian dtype of `no_header_numpy:C` or `no_header_tensor:C`; raise `Unsupported` if unknown."""
    dtype = _dtype_of(leaf)
    if dtype is None:
        raise Unsupported("arrays with an unknown dtype", path=path, found=leaf[:80])
    return dtype


def field_of(name: str, leaf: str) -> Field:
    """Return the schema field of a value in this format."""
    kind = leaf.partition(":")[0]
    if kind in ("str", "text"):
        return Field(name, "text")
    if kind in ("int", "float", "bool"):
        return Field(name, kind, {"int": "int64", "float": "float64", "bool": "bool"}[kind], ())
    if kind in _PLAIN:
        dtype = _dtype_of(leaf)
        return Field(name, "ndarray", None if dtype is None else dtype.newbyteorder("=").name, (None,))
    if kind == "jpeg_array":
        return Field(name, "images")
    return Field(name, "bytes" if kind in _FILES else "ndarray" if kind in ("numpy", "tensor", "pil") else kind)


def is_readable(leaf: str) -> bool:
    """Return whether `decoder` supports this format of values."""
    return _decoder(leaf) is not None


def decoder(leaf: str, path: str, column: str, others: Sequence[str]) -> Decode:
    """Return the function that makes a value of stored bytes.

    Args:
        leaf: how the value is written.
        path: of the index, for errors.
        column: that holds the value, for errors.
        others: the columns that can be read, for errors.

    Raises:
        UnsafeData: pickles.
        Unsupported: an unknown format.
    """
    decode = _decoder(leaf)
    if decode is not None:
        return decode
    kind, names = leaf.partition(":")[0], shortened(",".join(others), _MOST_NAMES)
    hint = "Write the column again as arrays, strings or bytes"
    if others:
        hint += f"; or read only the others: `penstock convert` and `penstock head` take --columns {names} (columns=)"
    if kind in ("pickle", "graph"):
        what = f"column {column!r} holds pickles, which may run code"
        raise UnsafeData(what, path=path, found=leaf[:80], hint=hint)
    what = f"column {column!r} has a format that isn't supported"
    raise Unsupported(what, path=path, found=leaf[:80], hint=hint)


def _decoder(leaf: str) -> Decode | None:
    kind = leaf.partition(":")[0]
    if kind in _PLAIN:
        dtype = _dtype_of(leaf)
        return None if dtype is None else partial(_plain, dtype)
    if kind in _FILES:
        return bytes
    known: dict[str, Decode] = {
        "str": _text, "text": _text, "bool": _bool, "int": partial(_scalar, "<q"), "float": partial(_scalar, "<d"),
        "numpy": partial(_array, "<", False), "tensor": partial(_array, ">", True), "pil": _picture,
        "jpeg_array": _files,
    }  # fmt: skip
    return known.get(kind)


def _dtype_of(leaf: str) -> np.dtype[Any] | None:
    kind, _, code = leaf.partition(":")
    number = count_in(code)
    return None if kind not in _PLAIN or number is None else _code(number, is_torch=kind == "no_header_tensor")


def names_of(spec: Any, path: str) -> tuple[str, ...]:
    """Return the names of the leaves at the top of a sample; deeper leaves are part of these."""
    kind, children = _node(spec, path)
    if kind in ("builtins.dict", "collections.OrderedDict"):
        return _keys(spec, len(children), path)
    return tuple(map(str, range(len(children)))) if kind is not None else ("value",)


def children_of(spec: Any, path: str) -> list[Any]:
    """Return the trees of these leaves."""
    kind, children = _node(spec, path)
    return children if kind is not None else [spec]


def count_leaves(spec: Any, path: str, deep: int = 0) -> int:
    """Return the number of values of a tree; raise `Unsupported` unless it is of dicts, lists and tuples."""
    if deep > _MOST_DEEP:
        raise Unsupported("samples are nested too deeply", path=path, expected=f"{_MOST_DEEP} levels")
    kind, children = _node(spec, path)
    return 1 if kind is None else sum(count_leaves(one, path, deep + 1) for one in children)


def unflatten(spec: Any, values: Iterator[Any], path: str) -> Any:
    """Return the tree with its values."""
    kind, children = _node(spec, path)
    if kind is None:
        return next(values)
    found = [unflatten(one, values, path) for one in children]
    if kind in ("builtins.dict", "collections.OrderedDict"):
        return dict(zip(_keys(spec, len(found), path), found, strict=True))
    return found if kind == "builtins.list" else tuple(found)


def _node(spec: Any, path: str) -> tuple[str | None, list[Any]]:
    known = (None, "builtins.dict", "builtins.list", "builtins.tuple", "collections.OrderedDict")
    one = cast(dict[str, Any], spec) if isinstance(spec, dict) else {}
    kind, children = one.get("type", ""), one.get("children_spec")
    if kind not in known or not isinstance(children, list):
        raise Unsupported("unknown type of samples", path=path, found=f"{kind!r:.80}")
    return kind, cast(list[Any], children)


def _keys(spec: Any, count: int, path: str) -> tuple[str, ...]:
    import json

    try:
        found = json.loads(spec.get("context"))
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or len(cast(list[Any], found)) != count:
        raise Corrupt("the keys of a sample are damaged", path=path, found=f"{spec.get('context')!r:.80}")
    return tuple(map(str, cast(list[Any], found)))


def _code(code: int, *, is_torch: bool) -> np.dtype[Any] | None:
    name = _TORCH.get(code) if is_torch else _NUMPY[code] if code < len(_NUMPY) else None
    return None if name is None else np.dtype(name).newbyteorder("<")


def _text(data: memoryview) -> str:
    return bytes(data).decode()


def _files(data: memoryview) -> list[bytes]:
    try:
        files = split_list("jpeg_array", data)
    except FormatError as error:
        raise ValueError(str(error)) from None
    if not files:
        raise ValueError("not a valid jpeg_array")
    return files


def _bool(data: memoryview) -> bool:
    (value,) = data
    return value != 0


def _scalar(form: str, data: memoryview) -> Any:
    return struct.unpack(form, data)[0]


def _plain(dtype: np.dtype[Any], data: memoryview) -> NDArray[Any]:
    return _native(np.frombuffer(data, dtype))


def _array(order: str, is_torch: bool, data: memoryview) -> NDArray[Any]:
    code, dims = struct.unpack_from(f"{order}II", data)
    dtype = _code(code, is_torch=is_torch)
    if dtype is None or dims > _MOST_DIMS:
        raise ValueError(f"an array of dtype {code} and {dims} dimensions")
    shape: Sequence[int] = struct.unpack_from(f"{order}{dims}I", data, 8)
    body = data[8 + 4 * dims :]
    if math.prod(shape) * dtype.itemsize != len(body):
        raise ValueError(f"an array of shape {list(shape)} in {len(body)} bytes")
    return _native(np.frombuffer(body, dtype)).reshape(shape)


def _picture(data: memoryview) -> NDArray[Any]:
    width, height, length = struct.unpack_from("<III", data)
    mode, body = bytes(data[12 : 12 + length]).decode(), data[12 + length :]
    channels = _CHANNELS.get(mode)
    if channels is None or width * height * channels != len(body):
        raise ValueError(f"an image of mode {mode!r:.20}, {width} x {height}, in {len(body)} bytes")
    return np.frombuffer(body, np.uint8).reshape((height, width, channels) if channels > 1 else (height, width)).copy()


def _native(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(array.dtype.newbyteorder("="))

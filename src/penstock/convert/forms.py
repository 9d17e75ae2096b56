"""How values stand in a format, and the way from one form to another without decoding where the bytes are the same.

| form | a value is |
|---|---|
| `value` | a Python value: lines of JSON, cells of text, rows of Arrow |
| `file` | `{"bytes": …, "path": …}`, as Hugging Face keeps images and audio |
| `mds:<encoding>` | the stored bytes of an MDS column |
| `part:<name>` | the bytes of a file of that name: a part of a tar sample, a file in a folder |
| `text:str`, `text:int`, `text:float` | a Python value for a column of csv, tsv, xsv and json-shards |
| `json` | a Python value for JSON |
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from penstock.codec.fields import mds_field
from penstock.codec.parts import encode_part
from penstock.errors import ConfigError, Corrupt, PenstockError

Convert = Callable[[Any], Any]
"""A value as it was read → the value for the writer."""

_PART_CLASSES = {
    **dict.fromkeys(("txt", "text", "transcript"), "utf8"),
    **dict.fromkeys(("json", "jsn"), "json"),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), "decimal"),
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), "jpeg"),
    **dict.fromkeys(("pkl", "pickle", "pyd"), "pickle"),
    "png": "png",
    "npy": "npy",
}
_MDS_CLASSES = {"str": "utf8", "json": "json", "str_int": "decimal", "jpeg": "jpeg", "png": "png", "pkl": "pickle"}
_OPAQUE = frozenset(("jpeg", "png", "pickle", "mds:pil", "mds:jpeg_array", "mds:list"))
_KINDS = {"utf8": "text", "json": "json", "decimal": "int", "jpeg": "jpeg", "png": "png", "pickle": "pickle"}


def suffix_of(part: str) -> str:
    """`"img.JPG"` → `"jpg"`."""
    return part.rpartition(".")[2].lower()


def stored_class(form: str) -> str:
    """What the bytes of a form are: forms of one class have the same bytes for the same value."""
    side, _, name = form.partition(":")
    if side == "part":
        return _PART_CLASSES.get(suffix_of(name), "bytes")
    if side == "mds":
        encoding = name.partition(":")[0]
        if encoding in ("list[pil]", "list[jpeg]", "list[png]"):
            return f"mds:{encoding}"
        return "bytes" if encoding == "bytes" else _MDS_CLASSES.get(encoding, f"mds:{name}")
    return form


def kind_of(form: str) -> str:
    """What values of a stored form are: `text int float json bytes array jpeg png pickle`, or `opaque`."""
    found = stored_class(form)
    if found in _KINDS:
        return _KINDS[found]
    if found == "npy":
        return "array"
    side, _, name = form.partition(":")
    if side == "mds" and found != "bytes":
        kind = mds_field(name).kind
        return {"ndarray": "array", "decimal": "decimal", "int": "int", "float": "float"}.get(kind, "opaque")
    return "bytes"


def converter(read: str, write: str) -> Convert | None:
    """The way from a form that is read to one that is written; None where there is none.

    The functions are picklable. Their errors are `PenstockError` without a path.
    """
    if read == "file":
        rest = converter("part:bin" if write == "mds:bytes" else _as_stored(write), write)
        return None if rest is None else partial(_of_file, rest)
    if ":" in read and ":" in write and not write.startswith("text:"):
        before, after = stored_class(read), stored_class(write)
        if before == after or after == "bytes":
            return bytes
        if before == "bytes" and write.startswith("part:") and after not in ("utf8", "json", "decimal", "npy"):
            return bytes
    decode = _decoder(read)
    encode = _encoder(write)
    if decode is None or encode is None:
        return None
    return partial(_both, decode, encode)


def _both(decode: Convert, encode: Convert, value: Any) -> Any:
    return encode(decode(value))


def _as_stored(write: str) -> str:
    return write if stored_class(write) in _OPAQUE or write.startswith("part:") else "part:bin"


def _of_file(rest: Convert, value: Any) -> Any:
    data = value.get("bytes") if isinstance(value, dict) else value  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(data, bytes):
        raise ConfigError("a path to a file that isn't in the dataset", found=repr(value)[:80])
    return rest(data)


# --- reading -------------------------------------------------------------------------------------------------------


def _decoder(form: str) -> Convert | None:
    side, _, name = form.partition(":")
    if side == "mds":
        return None if kind_of(form) in ("opaque", "jpeg", "png", "pickle") else mds_field(name).decode
    if side == "part":
        return _PART_DECODERS.get(stored_class(form))
    return _same


def _same(value: Any) -> Any:
    return value


def _text(data: bytes) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise Corrupt("not UTF-8", offset_bytes=error.start, found=error.reason) from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt("not JSON", found=str(error)) from None


def _decimal(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise Corrupt("not an integer", found=repr(data[:40])) from None


def _array(data: bytes) -> Any:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise Corrupt("not a NumPy array", found=str(error)) from None


_PART_DECODERS: dict[str, Convert] = {
    "utf8": _text,
    "json": _json,
    "decimal": _decimal,
    "npy": _array,
    "bytes": bytes,
}


# --- writing -------------------------------------------------------------------------------------------------------


def _encoder(form: str) -> Convert | None:
    side, _, name = form.partition(":")
    if side == "mds":
        return partial(_mds, name)
    if side == "part":
        return partial(_part, name)
    if side == "text":
        return {"str": _to_text, "int": _to_int, "float": _to_float}[name]
    return _plain


def _mds(encoding: str, value: Any) -> bytes:
    kind = mds_field(encoding).kind
    if kind == "int":
        value = _to_int(value)
    elif encoding == "str":
        value = _to_text(value)
    elif kind == "float" and isinstance(value, str | int):
        value = _to_float(value)
    elif encoding == "json":
        value = _plain(value)
    return mds_field(encoding).encode(value)


def _part(name: str, value: Any) -> bytes:
    if isinstance(value, np.generic):
        value = value.item()
    if stored_class(f"part:{name}") == "json":
        try:
            return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError("a value that JSON can't hold", found=str(error)) from None
    if stored_class(f"part:{name}") == "utf8":
        return _to_text(value).encode("utf-8", "surrogatepass")
    try:
        return encode_part(name, value)
    except PenstockError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a value that the part {name!r} can't hold", found=str(error)) from None


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise ConfigError("a value that is not a string", found=type(value).__name__, expected="str")


def _to_int(value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    raise ConfigError("a value that is not an integer", found=repr(value)[:40], expected="int")


def _to_float(value: Any) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return _exact_float(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    raise ConfigError("a value that is not a number", found=repr(value)[:40], expected="float")


def _exact_float(value: int) -> float:
    """The float that equals an integer; raises `ConfigError` if there is none."""
    try:
        made = float(value)
    except OverflowError:
        made = 0.0
    if made != value:
        raise ConfigError(
            "an integer that float can't represent exactly", found=value, expected="at most 2^53, or a multiple"
        )
    return made


def _plain(value: Any) -> Any:
    """What JSON can hold; raises `ConfigError`."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, datetime.date | datetime.time | decimal.Decimal):
        return _to_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise ConfigError("bytes that JSON can't hold", expected="text, numbers, lists and objects")
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return value

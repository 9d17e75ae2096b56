"""Samples as a writer takes them: keys and names that read back, and values as the bytes of their parts."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from penstock.codec.parts import NO_PART
from penstock.errors import ConfigError
from penstock.formats.samples.webdataset.names import split_name
from penstock.types import Sample

_JSON = ("json", "jsn")
_NUMBERS = ("cls", "cls2", "index", "inx", "id")


def encode_sample(sample: Sample, path: str) -> tuple[str, list[tuple[str, bytes]]]:
    """Key, and the full name and content of each part; fields of the reader's own, such as `__sources__`, are left out.

    Raises:
        ConfigError: no key, a name that would not read back, no part, or a value that has no bytes.
    """
    key = sample.get("__key__")
    if not isinstance(key, str):
        raise ConfigError("a sample needs a key", path=path, found=repr(key)[:80], expected='"__key__": str')
    parts = [
        (_name(key, part, path), _content(part, value, path))
        for part, value in sample.items()
        if not (part.startswith("__") and part.endswith("__")) and value is not None
    ]
    if not parts:
        expected = "a field such as txt, json, jpg"
        raise ConfigError(f"the sample {key!r} has no parts", path=path, expected=expected, hint=NO_PART)
    return key, parts


def _name(key: str, part: str, path: str) -> str:
    name = f"{key}.{part}"
    if split_name(name) != (key, part):
        raise ConfigError(
            "the name would be ambiguous when read", path=path, found=f"key {key!r}, part {part!r}",
            expected="a key without a dot after its last slash, and a part without a slash",
        )  # fmt: skip
    if key.startswith("/") or ".." in key.split("/") or "\0" in name or not _is_text(name):
        raise ConfigError(
            "not a valid file name", path=path, found=repr(name),
            expected="a relative path without .., in UTF-8",
        )  # fmt: skip
    return name


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _content(part: str, value: Any, path: str) -> bytes:
    kind = part.rpartition(".")[2].lower()
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if kind in _JSON:
        return _json(part, value, path)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if kind in _NUMBERS and isinstance(value, int | np.integer):
        return str(int(value)).encode()
    if kind == "npy" and isinstance(value, np.ndarray) and value.dtype.kind != "O":
        out = io.BytesIO()
        np.save(out, value, allow_pickle=False)
        return out.getvalue()
    raise ConfigError(
        f"unsupported value for the part {part!r}", path=path, found=type(value).__name__,
        expected="bytes, str, plain data for json, an int for cls, an array for npy",
    )  # fmt: skip


def _json(part: str, value: Any, path: str) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"a value of the part {part!r} can't be stored as JSON", path=path, found=str(error)
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} can't be stored as JSON")

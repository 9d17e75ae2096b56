"""Encode samples as tar members: the same bytes for the same name and content, at any time and for any user.

A header is ustar: mode 0644, owner 0, time 0. A name beyond ASCII, or one that fits neither its field nor the folder
field, is stored in a PAX header before it, as is a size from 8 GiB on.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from penstock.codec.parts import NO_PART
from penstock.errors import ConfigError
from penstock.formats.samples.webdataset.samples import split_name
from penstock.formats.samples.webdataset.tar_blocks import BLOCK_BYTES
from penstock.types import Sample

_JSON = ("json", "jsn")
_NUMBERS = ("cls", "cls2", "index", "inx", "id")


def encode_sample(sample: Sample, path: str) -> tuple[str, list[tuple[str, bytes]]]:
    """Return the key, and the full name and content of each part; skip fields of readers, such as `__sources__`.

    Raises:
        ConfigError: there is no key or no part, a name would read back differently, or a value has no bytes.
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


END = bytes(2 * BLOCK_BYTES)
"""End of an archive."""

_NAME_BYTES, _FOLDER_BYTES = 100, 155
_MOST_SIZE = 8**11
_SPACES = b" " * 8
_TAIL = b"\0" * 12


def encode_headers(name: str, size_bytes: int) -> bytes:
    """Return all headers of a regular member, including its PAX header."""
    raw = name.encode()
    fields = _fields(raw) if name.isascii() else None
    records = b""
    if fields is None:
        records += _record(b"path", raw)
        fields = raw.decode("ascii", "replace").replace("\ufffd", "?").encode()[:_NAME_BYTES], b""
    if size_bytes >= _MOST_SIZE:
        records += _record(b"size", str(size_bytes).encode())
    own = _header(*fields, size_bytes if size_bytes < _MOST_SIZE else 0, b"0")
    if not records:
        return own
    return _header(b"PaxHeader", b"", len(records), b"x") + records + padding(len(records)) + own


def padding(size_bytes: int) -> bytes:
    return bytes(-size_bytes % BLOCK_BYTES)


def _fields(raw: bytes) -> tuple[bytes, bytes] | None:
    """Return a name split into name and folder field, or None if it doesn't fit."""
    if len(raw) <= _NAME_BYTES:
        return raw, b""
    slash = raw.rfind(b"/", 0, _FOLDER_BYTES + 1)
    if slash <= 0 or len(raw) - slash - 1 > _NAME_BYTES or slash + 1 == len(raw):
        return None
    return raw[slash + 1 :], raw[:slash]


def _record(key: bytes, value: bytes) -> bytes:
    """Return a PAX record, prefixed with its own length."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _header(name: bytes, folder: bytes, size_bytes: int, kind: bytes) -> bytes:
    start = name.ljust(_NAME_BYTES, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size_bytes + b"%011o\0" % 0
    rest = (
        kind + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + folder.ljust(_FOLDER_BYTES, b"\0") + _TAIL
    )
    return start + b"%06o\0 " % (sum(start) + sum(_SPACES) + sum(rest)) + rest

"""Bytes of tar members: the same for the same name and content, at any time and for any user.

A header is ustar: mode 0644, owner 0, time 0. A name beyond ASCII, or one that fits neither its field nor the folder
field, stands in a PAX header before it, as does a size from 8 GiB on.
"""

from __future__ import annotations

from penstock.formats.samples.webdataset.tar_blocks import BLOCK_BYTES

END = bytes(2 * BLOCK_BYTES)
"""What ends an archive."""

_NAME_BYTES, _FOLDER_BYTES = 100, 155
_MOST_SIZE = 8**11
_SPACES = b" " * 8
_TAIL = b"\0" * 12


def encode_headers(name: str, size_bytes: int) -> bytes:
    """All headers of a regular member, its PAX header included."""
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
    """What fills a content's last block."""
    return bytes(-size_bytes % BLOCK_BYTES)


def _fields(raw: bytes) -> tuple[bytes, bytes] | None:
    """A name as name and folder field; None where it does not fit."""
    if len(raw) <= _NAME_BYTES:
        return raw, b""
    slash = raw.rfind(b"/", 0, _FOLDER_BYTES + 1)
    if slash <= 0 or len(raw) - slash - 1 > _NAME_BYTES or slash + 1 == len(raw):
        return None
    return raw[slash + 1 :], raw[:slash]


def _record(key: bytes, value: bytes) -> bytes:
    """A PAX record: its own length in front."""
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

"""`index.json` of a folder of token files: the files, their order, and the counts of each.

One JSON object, `{"version": 1, "format": …, "files": […]}`, one file per line; no key may be missing or added:

| key of a file | value |
|---|---|
| `path` | `part-NNNNN-<8 hex digits>.<suffix>`, a file (of Megatron the `.bin`) or zarr group in the folder |
| `tokens`, `documents` | how many it holds, EOS ids and empty documents counted |
| `max_token_id` | its largest id; -1 without tokens |
| `digest` | of its documents, of version 2 or 1 (`penstock.codec`); its first 8 hex digits are in the name |

Limits: fewer than 2^63 tokens, and documents, in all; ids below 2^32; an index of 256 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec

from penstock.errors import Corrupt, PenstockError, TooLarge, UnsafeData, Unsupported

INDEX_NAME = "index.json"
VERSION = 1
MOST_INDEX_BYTES = 1 << 28
"""Limit of about 1.5 million files; longer files are rejected before they are read."""

SUFFIXES = {"pbin": "pbin", "megatron": "bin", "flat-tokens": "zarr"}
"""Format of the files → suffix of their names, without the dot."""

TOKEN_FILE_NAME = re.compile(r"part-(?P<number>\d{5}|[1-9]\d{5,17})-(?P<digits>[0-9a-f]{8})\.(?P<suffix>[a-z]+)", re.A)
"""Pattern of the names of token files, for `fullmatch`. The number has five digits, or more if needed."""

_DIGEST = re.compile(r"(?:2:(?=[0-7]))?(?P<digits>[0-9a-f]{32})(?::(?P<documents>0|[1-9]\d{0,18}))?", re.A)
_ITEM = re.compile(r" - at `\$\.files\[(\d+)\]")
_REPAIR = "`penstock repair` rebuilds it from the files"


@dataclass(frozen=True, slots=True)
class TokenFileEntry:
    """One file of a folder of token files.

    Attributes:
        path: name in the folder: see `TOKEN_FILE_NAME`.
        tokens: number of tokens.
        documents: number of documents.
        max_token_id: largest id; -1 without tokens.
        digest: document digest, of version 2 (`penstock.codec.joined_digest`), or of version 1, which can't be joined.
    """

    path: str
    tokens: int
    documents: int
    max_token_id: int
    digest: str


@dataclass(frozen=True, slots=True)
class TokenFileIndex:
    """Checked `index.json`.

    Attributes:
        format: format of the files: one of `SUFFIXES`.
        files: entries in order.
    """

    format: str
    files: tuple[TokenFileEntry, ...]


def token_file_name(number: int, digest: str, suffix: str) -> str:
    """Return the name of token file `number` (from 0) with this document digest: `part-00007-0a1b2c3d.pbin`.

    Args:
        number: number of the file in the folder.
        digest: document digest of the file, of either version.
        suffix: one of the values of `SUFFIXES`.
    """
    return f"part-{number:05d}-{digest_digits(digest)}.{suffix}"


def digest_digits(digest: str) -> str:
    """Return the 8 digits of a document digest that are part of a file's name."""
    return digest.removeprefix("2:")[:8]


def encode_index(format: str, files: Sequence[TokenFileEntry]) -> bytes:
    """Return the bytes of an `index.json`.

    Raises:
        FormatError: it could not be read again: an unknown format, or an invalid name, count or digest.
    """
    head = b'{"version": %d, "format": %s, "files": [' % (VERSION, msgspec.json.encode(format))
    lines = [_spaced(one) for one in files]
    data = head + (b"\n" + b",\n".join(lines) + b"\n" if lines else b"") + b"]}\n"
    decode_index(data, INDEX_NAME)
    return data


def _spaced(one: TokenFileEntry) -> bytes:
    pairs = ((name, getattr(one, name)) for name in ("path", "tokens", "documents", "max_token_id", "digest"))
    return b"{" + b", ".join(b'"%s": %s' % (name.encode(), msgspec.json.encode(value)) for name, value in pairs) + b"}"


# --- reading -----------------------------------------------------------------------------------------------------

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Id: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 32)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    path: str
    tokens: _Count
    documents: _Count
    max_token_id: _Id
    digest: str


class _File(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    version: int
    format: str
    files: list[_Entry]


class _Head(msgspec.Struct, gc=False):
    """Keys that identify an `index.json`, whatever else is wrong with it."""

    version: Any = None
    format: Any = None
    files: msgspec.Raw = msgspec.Raw()
    shards: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_File)
_head_decoder = msgspec.json.Decoder(_Head)


def decode_index(data: bytes, path: str) -> TokenFileIndex:
    """Return the files of an `index.json`. Time: about three microseconds per file.

    Args:
        data: the whole file.
        path: path for messages.

    Raises:
        Unsupported: another version, an unknown format, or an index of shards.
        Corrupt: invalid JSON, a missing or unknown key, an invalid value, or a duplicate file.
        TooLarge: the index is too long, or counts 2^63 tokens or documents or more.
        UnsafeData: a path that isn't that of a token file in the folder.
    """
    if len(data) > MOST_INDEX_BYTES:
        raise TooLarge(
            "the index is too long", path=path, found=len(data), expected=f"{MOST_INDEX_BYTES} bytes at most"
        )
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _fault(data, path, str(error)) from None
    if found.version != VERSION:
        raise _other_version(path, found.version)
    if found.format not in SUFFIXES:
        raise _other_format(path, found.format)
    _check_files(found.files, SUFFIXES[found.format], path)
    return TokenFileIndex(found.format, tuple(map(_public, found.files)))


def _check_files(files: Iterable[_Entry], suffix: str, path: str) -> None:
    taken: set[str] = set()
    num_tokens = num_documents = 0
    for place, one in enumerate(files):
        try:
            _check_file(one, suffix)
            if one.path in taken:
                raise Corrupt("the file is listed twice", found=one.path, hint=_REPAIR)
        except PenstockError as error:
            error.path = path
            error.what = f"file {place}: {error.what}"
            raise
        taken.add(one.path)
        num_tokens += one.tokens
        num_documents += one.documents
    for what, count in (("tokens", num_tokens), ("documents", num_documents)):
        if count >= 1 << 63:
            raise TooLarge(f"too many {what}", path=path, found=count, expected="below 2^63")


def _public(one: _Entry) -> TokenFileEntry:
    return TokenFileEntry(one.path, one.tokens, one.documents, one.max_token_id, one.digest)


def _check_file(one: _Entry, suffix: str) -> None:
    name = TOKEN_FILE_NAME.fullmatch(one.path)
    if name is None or name["suffix"] != suffix:
        expected = f"part-NNNNN-<8 hex digits>.{suffix}"
        kind = UnsafeData if "/" in one.path or "\\" in one.path or "\0" in one.path else Corrupt
        raise kind("not a valid name for a token file in this folder", found=repr(one.path[:200]), expected=expected)
    digest = _DIGEST.fullmatch(one.digest)
    if digest is None or one.digest.startswith("2:") != (digest["documents"] is not None):
        raise Corrupt("no document digest", found=repr(one.digest[:80]), hint=_REPAIR)
    if digest["digits"][:8] != name["digits"]:
        raise Corrupt("name and digest of a file differ", found=one.digest, expected=f"{name['digits']}…", hint=_REPAIR)
    if digest["documents"] is not None and int(digest["documents"]) != one.documents:
        raise Corrupt("documents and digest of a file differ", found=one.documents, expected=digest["documents"])
    if (one.max_token_id < 0) != (one.tokens == 0) or (one.tokens and not one.documents):
        found = f"{one.tokens} tokens, {one.documents} documents, largest id {one.max_token_id}"
        raise Corrupt("the counts contradict each other", found=found, expected="-1 if there are no tokens")


def _fault(data: bytes, path: str, what: str) -> PenstockError:
    """Return the error for an index that can't be decoded: its version first, since other versions have other keys."""
    try:
        head = _head_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Corrupt("not an index", path=path, found=what, hint=_REPAIR)
    if bytes(head.shards):
        return Unsupported("an index of shards, not of token files", path=path, expected='a list of "files"')
    if head.version is not None and head.version != VERSION:
        return _other_version(path, head.version)
    place = _ITEM.search(what)
    where = "the index is damaged" if place is None else f"file {place[1]}: the entry is damaged"
    return Corrupt(where, path=path, found=what, hint=_REPAIR)


def _other_version(path: str, version: object) -> Unsupported:
    found = repr(version)[:200]
    return Unsupported("unknown index version", path=path, found=found, expected=VERSION)


def _other_format(path: str, format: str) -> Unsupported:
    return Unsupported(
        "unknown format of token files", path=path, found=repr(format[:200]), expected=" | ".join(SUFFIXES)
    )

"""`index.json` of a folder of token files: strict reading, exact writing."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

import pytest

from penstock.errors import Corrupt, FormatError, TooLarge, UnsafeData, Unsupported
from penstock.formats.tokens.folder.index import (
    TOKEN_FILE_NAME,
    TokenFileEntry,
    decode_index,
    encode_index,
    token_file_name,
)

FIRST = TokenFileEntry("part-00000-0a1b2c3d.pbin", 7, 2, 90, "0a1b2c3d" + "0" * 24)
SECOND = TokenFileEntry("part-00001-4d3c2b1a.pbin", 0, 1, -1, "2:4d3c2b1a" + "f" * 24 + ":1")


def entry(**changed: Any) -> dict[str, Any]:
    first = dict(zip(TokenFileEntry.__slots__, astuple(FIRST), strict=True))
    return {**first, **changed}


def text(*files: dict[str, Any], **changed: Any) -> bytes:
    return json.dumps({"version": 1, "format": "pbin", "files": list(files), **changed}).encode()


def test_what_is_written_is_read() -> None:
    data = encode_index("pbin", [FIRST, SECOND])
    found = decode_index(data, "index.json")
    assert (found.format, found.files) == ("pbin", (FIRST, SECOND))
    assert encode_index("pbin", found.files) == data


def test_one_file_a_line() -> None:
    assert encode_index("pbin", [FIRST, SECOND]).decode() == (
        '{"version": 1, "format": "pbin", "files": [\n'
        '{"path": "part-00000-0a1b2c3d.pbin", "tokens": 7, "documents": 2, "max_token_id": 90, '
        '"digest": "0a1b2c3d000000000000000000000000"},\n'
        '{"path": "part-00001-4d3c2b1a.pbin", "tokens": 0, "documents": 1, "max_token_id": -1, '
        '"digest": "2:4d3c2b1affffffffffffffffffffffff:1"}\n'
        "]}\n"
    )
    assert encode_index("megatron", []) == b'{"version": 1, "format": "megatron", "files": []}\n'
    assert not decode_index(encode_index("megatron", []), "index.json").files


@pytest.mark.parametrize(("number", "name"), [(0, "part-00000-0a1b2c3d.bin"), (1234567, "part-1234567-0a1b2c3d.bin")])
def test_names(number: int, name: str) -> None:
    for digest in (FIRST.digest, f"2:{FIRST.digest}:3"):
        assert token_file_name(number, digest, "bin") == name
    matched = TOKEN_FILE_NAME.fullmatch(name)
    assert matched is not None
    assert int(matched["number"]) == number


@pytest.mark.parametrize(
    "path",
    [
        *("../part-00000-0a1b2c3d.pbin", "/etc/passwd", "a/part-00000-0a1b2c3d.pbin", "part-00000-0a1b2c3d.pbin/../x"),
        *("..\\part-00000-0a1b2c3d.pbin", "part-00000-0a1b2c3d.pbin\0"),
    ],
)
def test_a_path_that_leaves_the_folder(path: str) -> None:
    with pytest.raises(UnsafeData, match="file 0: not a valid name for a token file"):
        decode_index(text(entry(path=path)), "index.json")


@pytest.mark.parametrize(
    "changed",
    [
        *({"path": name} for name in ("", ".", "..", "index.json", "train.pbin", "part-00000-0a1b2c3d.pbin\n")),
        *({"path": name} for name in ("part-٠٠٠٠٠-0a1b2c3d.pbin", "part-0-0a1b2c3d.pbin", "part-000000-0a1b2c3d.pbin")),
        *({"path": name} for name in ("part-00000-0A1B2C3D.pbin", "part-00000-0a1b2c3d.bin", "part-" + "9" * 10**6)),
        *({"path": name} for name in ("part-00000-ffffffff.pbin", "part-00000-{a..z}.pbin")),
        *({"tokens": count} for count in (-1, 1 << 63, 10**400, 1.5, "7", None, 0)),
        *({"documents": -1}, {"documents": 1 << 64}, {"documents": 0}, {"max_token_id": -2}, {"max_token_id": 1 << 32}),
        *({"max_token_id": -1}, {"digest": ""}, {"digest": "0a1b2c3d"}, {"digest": "0a1b2c3d" + "g" * 24}),
        *({"digest": "2:" + FIRST.digest}, {"digest": FIRST.digest + ":2"}, {"digest": f"2:{FIRST.digest}:3"}),
        *({"digest": f"3:{FIRST.digest}:2"}, {"digest": f"2:{FIRST.digest}:{'9' * 30}"}, {"extra": 1}),
    ],
)
def test_a_value_that_can_not_be(changed: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="file 0: "):
        decode_index(text(entry(**changed)), "index.json")


def test_a_file_that_stands_twice() -> None:
    with pytest.raises(Corrupt, match="file 1: the file is listed twice"):
        decode_index(text(entry(), entry()), "index.json")


def test_counts_that_no_number_holds() -> None:
    big = [entry(path=f"part-{n:05d}-0a1b2c3d.pbin", tokens=(1 << 63) - 1) for n in range(2)]
    with pytest.raises(TooLarge, match="too many tokens"):
        decode_index(text(*big), "index.json")


@pytest.mark.parametrize("key", ["path", "tokens", "documents", "max_token_id", "digest"])
def test_a_key_that_is_missing(key: str) -> None:
    one = entry()
    del one[key]
    with pytest.raises(Corrupt, match="file 0: the entry is damaged"):
        decode_index(text(one), "index.json")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"null", b"[]", b"{}", b"\xff\xfe", b'{"version": 1', b"[" * 10**6, b'{"a":' * 10**5),
        *(text(extra=1), text(files=None), text(files={}), text(format=None), text(version="1")),
    ],
)
def test_what_is_no_index(data: bytes) -> None:
    with pytest.raises((Corrupt, Unsupported)):
        decode_index(data, "index.json")


def test_another_version_or_format_is_named() -> None:
    with pytest.raises(Unsupported, match="unknown index version: found 2, expected 1"):
        decode_index(text(version=2, more=[1]), "index.json")
    with pytest.raises(Unsupported, match="unknown format of token files: found 'mds'"):
        decode_index(text(format="mds"), "index.json")


def test_an_index_of_shards_is_named() -> None:
    data = b'{"shards": [], "version": 2}'
    with pytest.raises(Unsupported, match="an index of shards, not of token files"):
        decode_index(data, "index.json")


@pytest.mark.parametrize("cut", [60, 100, 300])
def test_a_torn_index_is_refused(cut: int) -> None:
    data = encode_index("pbin", [FIRST, SECOND])[:cut]
    with pytest.raises(Corrupt):
        decode_index(data, "index.json")


def test_what_could_not_be_read_is_not_written() -> None:
    with pytest.raises(FormatError):
        encode_index("pbin", [FIRST, FIRST])
    with pytest.raises(Unsupported):
        encode_index("mds", [])

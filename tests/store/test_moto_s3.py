"""The front of the S3 server of the tests answers plain requests as moto does, whose model of S3 it stands before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from tests import moto_s3
from tests.moto_s3 import Answer, Request, answer, by_moto

KEYS = ("a", "a/b", "a/b c+d&é.txt", "a/c/1", "a/c/2", "a.b", "b/1", "b/2/3", "empty")
AUTHORIZATION = {"authorization": moto_s3._SCOPE, "host": "127.0.0.1:1"}


@pytest.fixture(scope="module", autouse=True)
def keys(s3_server: str) -> Iterator[None]:
    bucket = moto_s3.backend().buckets["bucket"].keys
    before = list(bucket.items())
    for name, _ in before:
        bucket.pop(name)
    for name in KEYS:
        path = f"/bucket/{quote(name)}"
        data = b"" if name == "empty" else name.encode() * 3
        assert answer(Request("PUT", path, "", dict(AUTHORIZATION), data)).status.startswith("200")
    yield
    for name in KEYS:
        bucket.pop(name)
    for name, key in before:
        bucket[name] = key


def asked(method: str, path: str, query: str = "", body: bytes = b"", **headers: str) -> tuple[Answer, Answer]:
    """The answers of the front and of moto."""
    fields = AUTHORIZATION | {name.replace("_", "-"): value for name, value in headers.items()}
    return tuple(ask(Request(method, path, query, dict(fields), body)) for ask in (answer, by_moto))  # type: ignore[return-value]


def said(found: Answer) -> tuple[Any, ...]:
    """What a client reads: status, the headers of objects, and data or the fields of an answer in XML."""
    headers = {name.lower(): value for name, value in found.headers}
    names = ("etag", "last-modified", "content-range", "accept-ranges")
    length = len(found.body) if found.length_bytes is None else found.length_bytes
    if found.body.startswith(b"<?xml"):
        return found.status[:3], fields(found.body)
    return found.status[:3], {name: headers.get(name) for name in names}, found.body, length


def fields(body: bytes) -> list[tuple[str, str]]:
    """Tags and texts but for those that differ from answer to answer, or that only one of both sends."""
    other = {"RequestId", "HostId", "ContinuationToken", "NextContinuationToken", "Owner", "EncodingType", "Type"}
    other |= {"StartAfter", "Delimiter", "ChecksumAlgorithm", "Contents", "CommonPrefixes", "ListBucketResult", "Error"}
    found = ((re.sub(r"{.*}", "", one.tag), one.text or "") for one in ElementTree.fromstring(body).iter())
    return sorted(one for one in found if one[0] not in other)


@pytest.mark.parametrize("name", [*KEYS, "none", "a/"])
@pytest.mark.parametrize("range", ["", "bytes=0-0", "bytes=1-1000", "bytes=2-", "bytes=-2", "bytes=5000-5001"])
def test_objects(name: str, range: str) -> None:
    headers = {"range": range} if range else {}
    front, moto = asked("GET", f"/bucket/{quote(name)}", **headers)
    assert said(front) == said(moto)
    front, moto = asked("HEAD", f"/bucket/{quote(name)}")
    assert said(front)[0] == said(moto)[0]
    if said(front)[0] == "200":
        size_bytes = len(front.body) if front.length_bytes is None else front.length_bytes
        assert (size_bytes, said(front)[1]) == (said(moto)[3], said(moto)[1])


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/c/", "b", "none/"])
@pytest.mark.parametrize("delimiter", ["", "/"])
@pytest.mark.parametrize("more", ["", "&max-keys=2", "&start-after=a/b", "&start-after=a.b&max-keys=1"])
def test_listings(prefix: str, delimiter: str, more: str) -> None:
    query = f"list-type=2&prefix={quote(prefix, safe='')}" + (
        f"&delimiter={quote(delimiter, safe='')}" if delimiter else ""
    )
    front, moto = asked("GET", "/bucket", query + more)
    assert said(front) == said(moto)


def test_pages_add_up() -> None:
    names, token = list[str](), ""
    for _ in KEYS:
        page = answer(Request("GET", "/bucket", "list-type=2&max-keys=2" + token, dict(AUTHORIZATION), b"")).body
        names += [text for tag, text in fields(page) if tag == "Key"]
        more = [one.text or "" for one in ElementTree.fromstring(page) if one.tag.endswith("NextContinuationToken")]
        if not more:
            break
        token = f"&continuation-token={quote(more[0], safe='')}"
    assert names == sorted(KEYS)


def test_conditional_puts() -> None:
    front, moto = asked("PUT", "/bucket/a", body=b"other", if_none_match="*")
    assert said(front) == said(moto)
    assert answer(Request("GET", "/bucket/a", "", dict(AUTHORIZATION), b"")).body == b"aaa"
    new = Request("PUT", "/bucket/new", "", AUTHORIZATION | {"if-none-match": "*"}, b"1")
    assert [answer(new).status[:3] for _ in range(2)] == ["200", "412"]
    for _ in range(2):
        assert answer(Request("DELETE", "/bucket/new", "", dict(AUTHORIZATION), b"")).status[:3] == "204"
    assert answer(Request("HEAD", "/bucket/new", "", dict(AUTHORIZATION), b"")).status[:3] == "404"

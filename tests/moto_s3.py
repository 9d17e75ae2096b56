"""An S3 server of this machine: moto, behind a front that answers the plain requests itself.

Tests make tens of thousands of requests, and moto takes 2 to 3 ms for each: for routes, templates and a log.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import socket
import socketserver
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

BUCKET = "bucket"
_ACCOUNT = "123456789012"
_SCOPE = "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=b"
_CONDITIONS = {
    "if-match", "if-modified-since", "if-unmodified-since", "x-amz-copy-source", "x-amz-version-id", "content-encoding",
    "x-amz-tagging", "x-amz-acl", "x-amz-storage-class", "x-amz-server-side-encryption", "transfer-encoding",
}  # fmt: skip
_LISTING = {"list-type", "prefix", "delimiter", "max-keys", "start-after", "continuation-token"}
_REASONS = {200: "OK", 206: "Partial Content", 404: "Not Found", 412: "Precondition Failed"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        headers: their names in small letters.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and reason, headers but for the length, body, and the length if it differs from the body's."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    length_bytes: int | None = None


@contextlib.contextmanager
def served() -> Generator[str]:
    """Its URL; it has the bucket `BUCKET`."""
    request = Request("PUT", f"/{BUCKET}", "", {"authorization": _SCOPE, "host": "127.0.0.1"}, b"")
    if not (made := by_moto(request)).status.startswith("200"):
        raise RuntimeError(f"no bucket is made: {made.status}")
    with _Server(("127.0.0.1", 0), _Connection) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield "http://{}:{}".format(*server.server_address)
        finally:
            server.shutdown()
            server.hang_up()
            thread.join()


def backend() -> Any:
    """What moto has of S3: buckets, keys, uploads."""
    from moto.s3.models import s3_backends

    return s3_backends[_ACCOUNT]["aws"]


def answer(request: Request) -> Answer:
    """By the front if the request is a plain one, else by moto."""
    bucket, _, key = unquote(request.path).lstrip("/").partition("/")
    if bucket == BUCKET and not request.headers.keys() & _CONDITIONS:
        if key and not request.query:
            plain = {"GET": _get, "HEAD": _get, "PUT": _put, "DELETE": _delete}.get(request.method)
            if plain is not None and (found := plain(key, request)) is not None:
                return found
        if not key and request.method == "GET":
            query = dict(parse_qsl(request.query, keep_blank_values=True))
            if query.get("list-type") == "2" and query.keys() <= _LISTING:
                return _list(query)
    return by_moto(request)


def by_moto(request: Request) -> Answer:
    """What moto's own server would answer."""
    status, headers = "", list[tuple[str, str]]()

    def start(line: str, fields: list[tuple[str, str]], _: object = None) -> None:
        nonlocal status, headers
        status, headers = line, fields

    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(request.path, "latin-1"),
        "RAW_URI": f"{request.path}?{request.query}" if request.query else request.path,
        "QUERY_STRING": request.query,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_TYPE": request.headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in request.headers.items()}
    chunks: Iterable[bytes] = _moto()(environ, start)
    body = b"".join(chunks)
    if callable(close := getattr(chunks, "close", None)):
        close()
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), None)
    return Answer(status, [(name, value) for name, value in headers if name.lower() != "content-length"], body, length)


@functools.cache
def _moto() -> Any:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    # For each request it looks for the service of a host in its own folder, then by hundreds of patterns.
    with_memory = functools.cache(DomainDispatcherApplication.get_backend_for_host)
    DomainDispatcherApplication.get_backend_for_host = with_memory  # type: ignore[method-assign]
    return DomainDispatcherApplication(create_backend_app)


def _answer(status: int, headers: list[tuple[str, str]], body: bytes = b"", length_bytes: int | None = None) -> Answer:
    return Answer(f"{status} {_REASONS[status]}", headers, body, length_bytes)


def _error(status: int, code: str, text: str, inside: str) -> Answer:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{text}</Message>'
        f"{inside}<RequestId>a</RequestId></Error>"
    )
    return _answer(status, [("Content-Type", "application/xml")], body.encode())


def _get(key: str, request: Request) -> Answer | None:
    if "if-none-match" in request.headers:
        return None
    found = backend().buckets[BUCKET].keys.get(key)
    if found is None:
        return _error(404, "NoSuchKey", "The specified key does not exist.", f"<Key>{escape(key)}</Key>")
    if type(found).__name__ != "FakeKey":
        return None
    headers = [
        ("ETag", found.etag),
        ("Last-Modified", found.last_modified_RFC1123),
        ("Accept-Ranges", "bytes"),
        ("Content-Type", found.metadata.get("Content-Type", "binary/octet-stream")),
    ]
    data = found.value
    places = request.headers.get("range")
    if places is None:
        return _answer(200, headers, data)
    first, dash, last = places.removeprefix("bytes=").partition("-")
    if not dash or not first.isdigit() or (last and not last.isdigit()):
        return None
    start, end = int(first), min(int(last) if last else len(data), len(data) - 1)
    if not start <= end:
        return None
    return _answer(206, [*headers, ("Content-Range", f"bytes {start}-{end}/{len(data)}")], data[start : end + 1])


def _put(key: str, request: Request) -> Answer | None:
    store, condition = backend(), request.headers.get("if-none-match")
    if condition not in (None, "*"):
        return None
    with _writing:
        if condition and key in store.buckets[BUCKET].keys:
            inside = "<Condition>If-None-Match</Condition>"
            return _error(
                412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold", inside
            )
        etag = hashlib.md5(request.body, usedforsecurity=False).hexdigest()
        made = store.put_object(BUCKET, key, request.body, etag=etag)
        if "content-type" in request.headers:
            made.set_metadata({"Content-Type": request.headers["content-type"]})
    return _answer(200, [("ETag", f'"{etag}"')])


_writing = threading.Lock()


def _delete(key: str, _: Request) -> Answer | None:
    return None if key in backend().buckets[BUCKET].keys else Answer("204 NO CONTENT", [])


def _list(query: dict[str, str]) -> Answer:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    most, after = int(query.get("max-keys", "1000")), query.get("continuation-token") or query.get("start-after", "")
    lines, folders, last, cut = list[str](), dict[str, None](), "", False
    keys = backend().buckets[BUCKET].keys
    for name in sorted(dict.keys(keys)):
        key = keys.get(name)
        if key is None or not name.startswith(prefix) or name <= after:
            continue
        end = name.find(delimiter, len(prefix)) if delimiter else -1
        folder = name[: end + len(delimiter)] if end >= 0 else ""
        if folder and (folder in folders or after.startswith(folder)):
            last = name
            continue
        if len(lines) + len(folders) == most:
            cut = True
            break
        last = name
        if folder:
            folders[folder] = None
        else:
            lines.append(
                f"<Contents><Key>{escape(name)}</Key><LastModified>{key.last_modified_ISO8601}</LastModified>"
                f"<ETag>{escape(key.etag)}</ETag><Size>{key.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            )
    lines += (f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
    token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if cut else ""
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><MaxKeys>{most}</MaxKeys>"
        f"<KeyCount>{len(lines)}</KeyCount><IsTruncated>{str(cut).lower()}</IsTruncated>{token}{''.join(lines)}"
        "</ListBucketResult>"
    )
    return _answer(200, [("Content-Type", "application/xml")], body.encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open = set[socket.socket]()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed hang up."""

    def hang_up(self) -> None:
        """End the connections that clients keep."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while self._one():
            pass

    def _one(self) -> bool:
        words = self.rfile.readline().decode("latin-1").split()
        if len(words) != 3:
            return False
        headers = dict[str, str]()
        while (line := self.rfile.readline().decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if headers.pop("expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self._body(headers)
        if body is None:
            return False
        path, _, query = words[1].partition("?")
        found = answer(Request(words[0], path, query, headers, body))
        length_bytes = len(found.body) if found.length_bytes is None else found.length_bytes
        head = "".join(f"{name}: {value}\r\n" for name, value in found.headers)
        head = f"HTTP/1.1 {found.status}\r\n{head}Content-Length: {length_bytes}\r\n\r\n"
        self.connection.sendall(head.encode("latin-1") + (b"" if words[0] == "HEAD" else found.body))
        return headers.get("connection", "").lower() != "close"

    def _body(self, headers: dict[str, str]) -> bytes | None:
        """None if the client hung up in the middle of it."""
        if headers.get("transfer-encoding", "").lower() != "chunked":
            length_bytes = int(headers.get("content-length", "0"))
            data = self.rfile.read(length_bytes)
            return data if len(data) == length_bytes else None
        del headers["transfer-encoding"]
        chunks = list[bytes]()
        while size_bytes := int(self.rfile.readline().partition(b";")[0] or b"0", 16):
            chunks.append(self.rfile.read(size_bytes))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

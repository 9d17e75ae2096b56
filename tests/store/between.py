"""A proxy before a server of this machine: it counts the bytes of bodies, and faults happen in it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fault = Literal["", "cut", "unanswered", "half", "500", "503", "expired"]
"""`cut`: the connection ends within the request's body. `unanswered`: the server does it, and the answer is lost.
`half`: the connection ends within the answer. A status, or what S3 says of credentials that are over."""

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}
_EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


@dataclass
class Between:
    """The proxy, while it runs.

    Attributes:
        url: of it.
        to: host and port of the server.
        fault: of a request, by its method and path (with its query).
        look: is given the headers of each request.
        log: method, path and status of each request.
        up_bytes, down_bytes: of bodies.
    """

    url: str
    to: str
    fault: Callable[[str, str], Fault] = lambda method, path: ""
    look: Callable[[Any], object] = lambda headers: None
    log: list[tuple[str, str, int]] = field(default_factory=list)
    up_bytes: int = 0
    down_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def once(self, fault: Fault, method: str, *words: str, after: int = 0) -> list[str]:
        """Let one request of a method whose path has these words meet a fault; which did, is in the list."""
        met: list[str] = []
        seen: list[str] = []

        def chosen(given: str, path: str) -> Fault:
            if given == method and all(word in path for word in words):
                seen.append(path)
                if len(seen) == after + 1:
                    met.append(path)
                    return fault
            return ""

        self.fault = chosen
        return met


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Between

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def _chunked(self) -> bytes:
        pieces: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    def _pass(self) -> None:
        owner, size = self.owner, int(self.headers.get("Content-Length") or 0)
        with owner.lock:
            fault = owner.fault(self.command, self.path)
            owner.look(self.headers)
        if fault == "cut":
            self.rfile.read(min(size, 1000))
            self._end(-1)
            return
        body = self._chunked() if self.headers.get("Transfer-Encoding") == "chunked" else self.rfile.read(size)
        owner.up_bytes += len(body)
        if fault in ("500", "503", "expired"):
            self._answer(400 if fault == "expired" else int(fault), [], _EXPIRED if fault == "expired" else b"busy")
            return
        connection = HTTPConnection(owner.to, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in (*_HOP, "expect")}
        connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if fault == "unanswered":
            self._end(answer.status)
            return
        owner.down_bytes += len(data)
        self._answer(answer.status, answer.getheaders(), data, half=fault == "half")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, *, half: bool = False) -> None:
        self.owner.log.append((self.command, self.path, status))
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        length = dict(headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if half else data)
        if half:
            self.close_connection = True

    def _end(self, status: int) -> None:
        self.owner.log.append((self.command, self.path, status))
        self.close_connection = True


@contextlib.contextmanager
def between(url: str) -> Generator[Between]:
    """A proxy to `url`."""
    owner = Between("", url.removeprefix("http://"))
    handler = type("Handler", (_Handler,), {"owner": owner})

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Clients that go away are what is tested here."""

    server = Server(("127.0.0.1", 0), handler)
    owner.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield owner
    finally:
        server.shutdown()
        server.server_close()

"""Local web server that serves ranges and injects faults."""

from __future__ import annotations

import base64
import http.server
import re
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import unquote

Fault = Literal["500", "503", "429", "403", "drop", "truncate", "hang", "slow", "whole", "corrupt", ""]
"""Response to a GET: a status; half of the body, then a closed connection; a body announced as half; no byte for
`hang_s`; a body that takes `hang_s`, in ten pieces; the whole file for a range; one byte changed; nothing."""

Etags = Literal["all", "none", "whole", "weak"]
"""Responses with a version (ETag): all; none; those of whole files and of HEAD; all, a weak one to HEAD."""

_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
_STATUSES = ("500", "503", "429", "403")


class FileServer:
    """Server of `files` over HTTP/1.1 on a free port, inside a `with` block.

    Args:
        files: path, such as `"folder/a.bin"`, → bytes; may change.

    Attributes:
        url: URL of the server, without a trailing slash.
        faults: faults of the next GETs, in order.
        always: fault of every other GET.
        auth: required `"user:password"`, or None.
        delay_s: delay before each response.
        hang_s: duration of `"hang"` and `"slow"`.
        etags: which responses have the version of their file.
        log: (method, path, range or None) of each request.

    Examples:
        >>> import penstock as ps
        >>> from pathlib import Path
        >>> from penstock.testing import FileServer
        >>> with FileServer({"corpus.pbin": Path("corpus.pbin").read_bytes()}) as server:
        ...     server.fail(["503"])  # the first GET fails; the store tries again
        ...     documents = len(ps.open(f"{server.url}/corpus.pbin"))
        >>> documents
        6
    """

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files: dict[str, bytes] = {} if files is None else files
        self.faults: list[Fault] = []
        self.always: Fault = ""
        self.auth: str | None = None
        self.delay_s = 0.0
        self.hang_s = 5.0
        self.etags: Etags = "all"
        self.log: list[tuple[str, str, tuple[int, int] | None]] = []
        self.released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def fail(self, faults: Iterable[Fault]) -> None:
        """Inject these faults into the next GETs, in order; an empty one answers normally."""
        self.faults[:] = list(faults)

    def gets(self) -> list[tuple[int, int] | None]:
        """Return the ranges of the GET requests so far, None for a whole file."""
        return [place for method, _, place in self.log if method == "GET"]


def _basic(auth: str) -> str:
    return f"Basic {base64.b64encode(auth.encode()).decode()}"


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    owner: FileServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, which is part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: tests read `log`."""

    def _answer(self) -> None:
        server: Any = self.server
        owner: FileServer = server.owner
        name = unquote(self.path).lstrip("/")
        found = _RANGE.match(self.headers.get("Range") or "")
        data = owner.files.get(name)
        size_bytes = 0 if data is None else len(data)
        place = None if found is None else (int(found[1]), min(size_bytes, int(found[2] or size_bytes) + 1))
        owner.log.append((self.command, name, place))
        time.sleep(owner.delay_s)
        fault = (owner.faults.pop(0) if owner.faults else owner.always) if self.command == "GET" else ""
        if fault == "hang":
            owner.released.wait(owner.hang_s)
        if owner.auth is not None and self.headers.get("Authorization") != _basic(owner.auth):
            self._head(401, 0)
        elif data is None or fault in _STATUSES:
            self._head(404 if data is None else int(fault), 0)
        elif place is not None and place[0] >= size_bytes:
            self._head(416, 0)
        else:
            self._body(data, None if fault == "whole" else place, fault)

    def _body(self, data: bytes, place: tuple[int, int] | None, fault: Fault) -> None:
        start, stop = place or (0, len(data))
        body = data[start:stop]
        if fault == "corrupt":
            body = bytes([body[0] ^ 1]) + body[1:]
        half = fault in ("drop", "truncate")
        sent = body[: len(body) // 2] if half else body
        headers = self._etag(data, place is not None)
        if place is not None:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self._head(200 if place is None else 206, len(sent if fault == "truncate" else body), headers)
        if self.command == "GET" and fault == "slow":
            server: Any = self.server
            for start in range(0, len(sent), max(1, len(sent) // 10)):
                self.wfile.write(sent[start : start + max(1, len(sent) // 10)])
                server.owner.released.wait(server.owner.hang_s / 10)
        elif self.command == "GET":
            self.wfile.write(sent)
        self.close_connection = self.close_connection or half

    def _etag(self, data: bytes, is_range: bool) -> dict[str, str]:
        server: Any = self.server
        etags: Etags = server.owner.etags
        if etags == "none" or (etags == "whole" and is_range):
            return {}
        weak = "W/" if etags == "weak" and self.command == "HEAD" else ""
        return {"ETag": f'{weak}"{hash(data):x}"'}  # computed once by Python

    def _head(self, status: int, length_bytes: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length_bytes), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

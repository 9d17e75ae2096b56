"""Web servers that answer oddly: either the data come as they are, or an error says what is wrong; never other data."""

from __future__ import annotations

import gzip
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.internals import MOST_PARTS, CachedStore, RemoteStore, plan_requests

import penstock as ps
from penstock.errors import PenstockError, Unreachable, Unsupported

DATA = b"".join(number.to_bytes(2, "little") for number in [*range(1, 500), 0] * 4)
RANGE = re.compile(r"bytes=(\d+)-(\d+)$")


class _Odd(http.server.BaseHTTPRequestHandler):
    """Answers for one file; `how` is that of the server."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        server: Any = self.server
        how = server.how
        if self.path != "/a.bin":
            self._send(404, b"")
        elif how in ("405", "501"):
            self._send(int(how), b"")
        elif how in ("no length", "chunked"):
            self._send(200, None)
        elif how.startswith("size "):
            self._send(200, b"", {"Content-Length": how.partition(" ")[2]})
        else:
            self._get(how)

    def do_GET(self) -> None:
        server: Any = self.server
        if self.path == "/a.bin":
            self._get(server.how)
        else:
            self._send(404, b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def _get(self, how: str) -> None:
        server: Any = self.server
        server.asked.append(self.command)
        place = RANGE.match(self.headers.get("Range") or "")
        start, stop = (int(place[1]), int(place[2]) + 1) if place else (0, len(DATA))
        body, headers = DATA[start:stop], dict[str, str]()
        if place:
            headers["Content-Range"] = f"bytes {start}-{min(stop, len(DATA)) - 1}/{len(DATA)}"
        if how == "gzip":
            place, body, headers = None, gzip.compress(DATA), {"Content-Encoding": "gzip"}
        elif how == "modified":
            headers["Last-Modified"] = "yesterday"
        elif how == "no range" and place:
            del headers["Content-Range"]
        self._send(206 if place else 200, None if how == "chunked" else body, headers)

    def _send(self, status: int, body: bytes | None, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body or b"")), **(headers or {})}.items():
            if body is not None or name != "Content-Length":
                self.send_header(name, value)
        if body is None:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(DATA if body is None else body)


@pytest.fixture
def serve() -> Iterator[Callable[[str], Any]]:
    servers: list[Any] = []

    def start(how: str) -> Any:
        server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Odd)
        server.how, server.asked, server.daemon_threads = how, [], True
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "3")
    monkeypatch.setenv("PENSTOCK_REMOTE_BACKOFF_S", "0.001")
    return tmp_path / "cache"


def documents(url: str) -> list[list[int]]:
    source = ps.open(f"{url}/a.bin", format="raw-tokens", layout="uint16", eos_id=0)
    return [source[number]["tokens"].tolist() for number in range(len(source))]


@pytest.mark.parametrize("how", ["405", "501", "no length", "size 0"])
def test_a_server_that_does_not_answer_head(how: str, serve: Callable[[str], Any]) -> None:
    """It was said to have no such file; with a size of 0 the dataset was empty, without a word."""
    assert documents(serve(how).url) == [[*range(1, 500), 0]] * 4


def test_a_missing_file_is_missing(serve: Callable[[str], Any]) -> None:
    url = serve("405").url
    store = RemoteStore(url)
    assert store.exists(f"{url}/a.bin")
    assert not store.exists(f"{url}/b.bin")


def test_a_body_that_is_compressed_on_its_way(serve: Callable[[str], Any]) -> None:
    url = serve("gzip").url
    with pytest.raises(Unsupported, match="compresses this file in transit"):
        RemoteStore(url).get(f"{url}/a.bin")
    with pytest.raises(PenstockError):
        documents(url)


@pytest.mark.parametrize("how", ["chunked", "modified", "no range"])
def test_answers_of_no_use_are_not_asked_for_again(how: str, serve: Callable[[str], Any]) -> None:
    server = serve(how)
    with pytest.raises(Unreachable, match="invalid response from the server"):
        RemoteStore(server.url).get_ranges(f"{server.url}/a.bin", [(0, 10)])
    assert server.asked.count("GET") <= 2  # the second one looks for the size


def test_a_size_that_is_a_lie_costs_no_memory(serve: Callable[[str], Any], cache: Path) -> None:
    """2 ** 50 bytes would be 134 million requests of 8 MiB: the list of them alone took 10 GB."""
    server = serve(f"size {1 << 50}")
    store = CachedStore(RemoteStore(server.url), str(cache), 1 << 20)
    with pytest.raises(PenstockError):
        store.get(f"{server.url}/a.bin")
    assert len(plan_requests([(0, 1 << 50)], gap_bytes=0, part_bytes=1 << 23)) <= MOST_PARTS + 1

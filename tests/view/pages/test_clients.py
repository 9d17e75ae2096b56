"""Clients that mean no good, or are slow: nobody is locked out by them, and memory stays bounded."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from tests.view.pages.conftest import Ask
from uvicorn.protocols.http.h11_impl import H11Protocol

import penstock as ps
from penstock.codec.media_bytes import media_bytes
from penstock.view.facts.samples import Media
from penstock.view.pages.connections import MOST_WAITING, Connections, Limits
from penstock.view.pages.site import Busy, InHand

PATIENCE_S = 60.0
MOST_GROWTH_KIB = 48 << 10


class Server:
    """`penstock view` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.port = int(url.split(":")[2].partition("/")[0])

    def rss_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1])

    def raw(self, data: bytes) -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        opened.sendall(data)
        return opened


def whole(opened: socket.socket) -> bytes:
    """What comes until the other side ends."""
    got = bytearray()
    try:
        while data := opened.recv(1 << 16):
            got += data
    except ConnectionResetError:
        pass
    return bytes(got)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"line {n}"}) + "\n" for n in range(500)))
    command = [sys.executable, "-m", "penstock", "view", str(path), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        made = Server(process, process.stdout.readline().strip())
        assert httpx.get(made.url, timeout=PATIENCE_S).status_code == 200
        yield made
        process.terminate()
        _, error = process.communicate(timeout=PATIENCE_S)
    assert error == ""


def test_open_sockets_lock_nobody_out(server: Server) -> None:
    with ExitStack() as held:
        for _ in range(4 * MOST_WAITING):
            held.enter_context(server.raw(b"GET / HTTP/1.1\r\nX-Slow: "))
        for _ in range(3):
            assert httpx.get(server.url, timeout=PATIENCE_S).status_code == 200


def test_half_sent_forms_lock_nobody_out(server: Server) -> None:
    """A client that knows the token announces bodies and never sends them whole."""
    path = server.url.partition(str(server.port))[2]
    head = f"POST {path}d/a.jsonl/health/start HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    with ExitStack() as held:
        for number in range(2 * MOST_WAITING + 8):
            kind = "Content-Length: 100\r\n\r\ntoken=" if number % 2 else "Transfer-Encoding: chunked\r\n\r\n5\r\ntok"
            held.enter_context(server.raw((head + kind).encode()))
        for _ in range(3):
            assert httpx.get(server.url, timeout=PATIENCE_S).status_code == 200


def test_a_flood_of_refused_requests(server: Server) -> None:
    """Each is answered once and its connection closed, whoever does not read the answer."""
    many = b"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200
    with ExitStack() as held:
        for _ in range(3 * MOST_WAITING):
            last = held.enter_context(server.raw(many))
        assert httpx.get(server.url, timeout=PATIENCE_S).status_code == 200
        assert whole(last).count(b"HTTP/1.1 404") == 1


@pytest.mark.parametrize("theirs", [b"", b"GET /wrong/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])
def test_a_request_is_answered_whatever_comes_with_it(server: Server, theirs: bytes) -> None:
    """Many connections at once, before the server looks at any: the first one's request is whole, and is begun."""
    path = server.url.partition(str(server.port))[2]
    ours = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n".encode()
    for _ in range(5):
        with ExitStack() as held:
            server.process.send_signal(signal.SIGSTOP)
            try:
                first = held.enter_context(server.raw(ours))
                for _ in range(MOST_WAITING + 40):
                    held.enter_context(server.raw(theirs))
            finally:
                server.process.send_signal(signal.SIGCONT)
            assert whole(first).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "data",
    [b"GET /" + b"a" * (1 << 21), b"\x16\x03\x01\x02\x00" * 100, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (1 << 17)],
)
def test_what_is_no_request_of_ours(server: Server, data: bytes) -> None:
    try:
        with server.raw(data) as opened:
            assert opened.recv(1 << 12)[9:12] in (b"400", b"431", b"")
    except (ConnectionResetError, BrokenPipeError):
        pass
    query = httpx.get(f"{server.url}d/a.jsonl/samples?start=0&x={'a' * 40_000}", timeout=PATIENCE_S)
    assert query.status_code == 200
    assert len(query.text) < 1 << 20
    assert server.url.rsplit("/", 2)[1] not in query.text


def test_many_requests_take_no_memory(server: Server) -> None:
    def ask(client: httpx.Client, number: int) -> int:
        return client.get(f"{server.url}d/a.jsonl/samples?start={number * 7 % 480}&n=5").status_code

    with httpx.Client(timeout=PATIENCE_S) as client:
        for number in range(20):
            ask(client, number)
        before = server.rss_kib()
        assert {ask(client, number) for number in range(300)} <= {200, 202}
        with ThreadPoolExecutor(50) as pool:
            assert set(pool.map(lambda number: ask(client, number), range(100))) <= {200, 202}
    assert server.rss_kib() - before < MOST_GROWTH_KIB


@contextmanager
def serving(limits: Limits, app: Callable[..., Any]) -> Iterator[int]:
    """An application behind these limits; gives its port."""
    connections = Connections(app, limits)
    http: Any = connections.protocol(H11Protocol)
    listening = socket.create_server(("127.0.0.1", 0))
    made = uvicorn.Server(uvicorn.Config(connections, http=http, ws="none", lifespan="off", log_level="error"))
    thread = threading.Thread(target=made.run, args=([listening],))
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        made.should_exit = True
        thread.join(PATIENCE_S)
        listening.close()
        assert not thread.is_alive()


async def pours(scope: Any, receive: Any, send: Any) -> None:
    """An answer of 64 MiB, which stops as soon as nobody takes it."""
    head = [(b"content-length", b"%d" % (1 << 26))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    for _ in range(1 << 10):
        await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def drips(opened: socket.socket) -> int:
    """Sends a byte again and again until the other side is gone; gives how many it sent."""
    opened.settimeout(0.05)
    for sent in range(2000):
        try:
            opened.send(b"x")
            if opened.recv(1) == b"":
                return sent
        except TimeoutError:
            continue
        except OSError:
            return sent
    return -1


def test_a_request_that_never_ends_is_ended() -> None:
    with serving(Limits(request_seconds=0.3), pours) as port, socket.create_connection(("127.0.0.1", port)) as opened:
        opened.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert drips(opened) >= 0


async def echoes(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the body that was sent."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def test_a_body_that_never_ends_is_ended() -> None:
    with serving(Limits(request_seconds=0.3), echoes) as port:
        with socket.create_connection(("127.0.0.1", port)) as opened:
            opened.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
            assert drips(opened) >= 0
        with httpx.Client() as client:  # whole bodies are answered, several on a connection
            for length in (0, 5, 1 << 17):
                answered = client.post(f"http://127.0.0.1:{port}/", content=b"x" * length, timeout=PATIENCE_S)
                assert answered.content == b"x" * length


def test_who_reads_nothing_is_let_go() -> None:
    with serving(Limits(send_seconds=0.3), pours) as port, socket.create_connection(("127.0.0.1", port)) as opened:
        opened.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        threading.Event().wait(2)
        assert len(whole(opened)) < 1 << 26
    with serving(Limits(send_seconds=30), pours) as port:
        assert len(httpx.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S).content) == 1 << 26


def test_large_parts_that_nobody_takes() -> None:
    in_hand = InHand(100)
    first = in_hand.take(lambda: Media("image/png", media_bytes(bytes(60))))
    second = in_hand.take(lambda: Media("image/png", media_bytes(bytes(60))))
    with pytest.raises(Busy):
        in_hand.take(lambda: Media("image/png", media_bytes(b"")))
    assert (len(first.media.data.head), len(second.media.data.head)) == (60, 60)
    del first
    assert in_hand.take(lambda: Media("image/png", media_bytes(b"one"))).media.data.head == b"one"


def test_too_much_in_hand_is_said(tmp_path: Path, pages: Ask) -> None:
    with ps.create(tmp_path / "mds", format="mds", columns={"b": "bytes"}) as writer:
        writer.write({"b": b"some bytes"})
    client = pages(tmp_path / "mds")
    in_hand = client.app.state.site.in_hand  # type: ignore[attr-defined]
    held = in_hand.take(lambda: Media("image/png", media_bytes(bytes(1 << 28))))
    refused = client.get("/d/mds/part/0/b")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
    assert client.get("/d/mds/samples").status_code == 200
    del held
    for _ in range(3):
        assert client.get("/d/mds/part/0/b").content == b"some bytes"


class Planted:
    """Makes a file where it is decoded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.path,)


def asked_of(client: Any, name: str, part: str) -> None:
    for one in ("", "samples", "sample/0", "find?text=a", f"part/0/{part}", f"small/0/{part}"):
        client.get(f"/d/{name}/{one}")


def test_pickles_of_tars_are_decoded_by_no_page(tmp_path: Path, pages: Ask) -> None:
    planted = pickle.dumps(Planted(str(tmp_path / "ran")))
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        writer.write({"__key__": "one", "pkl": planted})
    for trust in (False, True):
        asked_of(pages(tmp_path / "tars", trust=trust), "tars", "pkl")
        assert not (tmp_path / "ran").exists()


def test_a_pickle_of_a_column_is_decoded_only_if_trusted(tmp_path: Path, pages: Ask) -> None:
    ran = tmp_path / "ran"
    with ps.create(tmp_path / "mds", format="mds", columns={"x": "pkl"}, compression=None) as writer:
        writer.write({"x": "y" * (len(str(ran)) + 90)})
    [shard] = (tmp_path / "mds").glob("*.mds")
    data, planted = shard.read_bytes(), pickle.dumps(Planted(str(ran)))
    where = data.rindex(pickle.dumps("y")[:2])
    room = len(data) - where
    assert len(planted) <= room
    shard.write_bytes(data[:where] + planted + bytes(room - len(planted)))
    asked_of(pages(tmp_path / "mds"), "mds", "x")
    assert not ran.exists()
    asked_of(pages(tmp_path / "mds", trust=True), "mds", "x")
    assert ran.exists()


def test_the_pickled_index_of_a_pbin_runs_nothing(tmp_path: Path, pages: Ask) -> None:
    path, ran = tmp_path / "a.pbin", tmp_path / "ran"
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": [1, 2, 0]})
    data = path.read_bytes()
    head = 12 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:head] + pickle.dumps(Planted(str(ran))))
    for trust in (False, True):
        asked_of(pages(path, trust=trust), "a.pbin", "tokens")
        assert not ran.exists()

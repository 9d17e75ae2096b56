"""Who may ask: the name, the token, the method, the page that asks; and what every answer says of itself."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from penstock.view.pages.app import FORMS, PAGES, make_app
from penstock.view.pages.guard import MOST_REQUESTS, Guard, hosts_of
from penstock.view.pages.targets import Settings, Targets

TOKEN = "a-token-that-nobody-guesses"
PATIENCE_S = 60.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    (tmp_path / "a.jsonl").write_text('{"text": "<script>alert(1)</script>"}\n')
    app = make_app(Targets((str(tmp_path / "a.jsonl"),), Settings()))
    client = TestClient(Guard(app, TOKEN, hosts_of("127.0.0.1")), base_url="http://127.0.0.1:8000")
    yield client
    client.close()
    app.state.jobs.close()


def paths() -> list[str]:
    named = {"{name}": "a.jsonl", "{index}": "0", "{part:path}": "text", "{position}": "0"}
    found = [*PAGES, *FORMS, "/static/colours.css", "/static/style.css", "/static/htmx.js", "/nothing"]
    return [re.sub(r"\{[^}]+\}", lambda one: named[one[0]], path) for path in found]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "", "[::2]"])
def test_another_name_is_refused(client: TestClient, host: str) -> None:
    assert client.get(f"/{TOKEN}/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:1"])
def test_our_names_by_any_port(client: TestClient, host: str) -> None:
    assert client.get(f"/{TOKEN}/", headers={"host": host}).status_code == 200


def test_a_server_for_others_goes_by_its_own_names() -> None:
    open_to_all = hosts_of("0.0.0.0")
    assert open_to_all.allow("10.1.2.3:8000")
    assert open_to_all.allow(socket.gethostname())
    assert not open_to_all.allow("evil.example")
    assert not hosts_of("127.0.0.1").allow("10.1.2.3")


def test_more_at_once_are_told_to_come_again() -> None:
    """Of those that know the token; strangers take nobody's place."""

    async def asked() -> tuple[list[int], list[int]]:
        go_on = asyncio.Event()

        async def waits(_scope: Any, _receive: Any, send: Any) -> None:
            await go_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        guard = Guard(waits, TOKEN, hosts_of("127.0.0.1"))

        async def ask(token: str) -> int:
            scope = {"type": "http", "path": f"/{token}/", "method": "GET", "headers": [(b"host", b"localhost")]}
            got: list[Any] = []

            async def send(message: Any) -> None:
                got.append(message)

            await guard(scope, None, send)  # type: ignore[arg-type]
            return got[0]["status"]

        strangers = [await ask("wrong") for _ in range(MOST_REQUESTS)]
        held = [asyncio.create_task(ask(TOKEN)) for _ in range(MOST_REQUESTS)]
        await asyncio.sleep(0)
        more = await ask(TOKEN)
        go_on.set()
        return strangers, [more, *await asyncio.gather(*held), await ask(TOKEN)]

    strangers, known = asyncio.run(asked())
    assert strangers == [404] * MOST_REQUESTS
    assert known == [503] + [200] * (MOST_REQUESTS + 1)


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "%00", "%E2%98%83"])
def test_without_the_token_there_is_nothing(client: TestClient, token: str) -> None:
    for path in paths():
        answer = client.get(f"/{token}{path}")
        assert answer.status_code in (404, 405), path
        assert "a.jsonl" not in answer.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_pages_are_read(client: TestClient, method: str) -> None:
    assert client.request(method, f"/{TOKEN}/d/a.jsonl/").status_code == 405


@pytest.mark.parametrize("path", paths())
def test_every_answer_says_what_it_is(client: TestClient, path: str) -> None:
    for answer in (client.get(f"/{TOKEN}{path}"), client.get(f"/wrong{path}"), client.post(f"/{TOKEN}{path}")):
        told = answer.headers
        assert told["x-content-type-options"] == "nosniff"
        assert told["referrer-policy"] == "same-origin"
        assert told["x-frame-options"] == "DENY"
        policy = told["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
        assert ("script-src 'self'" in policy) == told["content-type"].startswith("text/html")
        assert "access-control-allow-origin" not in told
        assert "server" not in told


def test_another_page_starts_nothing(client: TestClient) -> None:
    page = client.get(f"/{TOKEN}/d/a.jsonl/health").text
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found is not None
    start = f"/{TOKEN}/d/a.jsonl/health/start"
    form = {"depth": "quick", "token": found[1]}
    for headers in (
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert client.post(start, data=form, headers=headers).status_code == 403
    assert client.post(start, data={"depth": "quick"}).status_code == 400
    assert client.post(start, content=b"x" * 100_000).status_code == 400
    assert client.get(start).status_code == 405
    assert client.post(start, data=form, follow_redirects=False).status_code == 303


def test_another_page_reads_nothing(client: TestClient) -> None:
    asked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert client.get(f"/{TOKEN}/d/a.jsonl/part/0/text", headers=asked).status_code == 403
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get(f"/{TOKEN}/", headers=followed).status_code == 200  # a link in a mail


@pytest.mark.parametrize("part", ["../../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "%00", "a" * 9000])
def test_no_path_names_a_file(client: TestClient, part: str) -> None:
    answer = client.get(f"/{TOKEN}/d/a.jsonl/part/0/{part}")
    assert answer.status_code == 404
    assert "root:" not in answer.text


def test_text_of_the_data_is_text(client: TestClient) -> None:
    for page in ("samples", "samples?as=table", "samples?as=grid", "sample/0"):
        text = client.get(f"/{TOKEN}/d/a.jsonl/{page}").text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)" in text
    part = client.get(f"/{TOKEN}/d/a.jsonl/part/0/text")
    assert part.headers["content-type"] == "application/octet-stream"
    assert part.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in part.headers["content-security-policy"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    command = [sys.executable, "-m", "penstock", "view", str(tmp_path / "a.jsonl"), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", url)
        assert "a.jsonl" in httpx.get(url, timeout=PATIENCE_S).text
        assert httpx.get(url.rsplit("/", 2)[0], timeout=PATIENCE_S).status_code == 404
        process.send_signal(number)
        out, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, error) == (0, "", "")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "penstock", "view", str(tmp_path / "a.jsonl"), "--no-open"]
        command += ["--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 10
    assert "can't listen on this address" in done.stderr
    assert port in done.stderr

"""Slow servers: what is said, when a request is given up, and that one is not while bytes come."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

import pytest

from penstock.errors import Unreachable
from penstock.store import _objects
from penstock.store._objects import Objects, SlowRequests
from penstock.store._requests import RemoteOptions
from penstock.testing import FileServer
from penstock.testing.web import Fault

DATA = bytes(range(200))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(_objects, "REPORT_AFTER_S", 0.05)
    with FileServer({"a": DATA}) as server:
        yield server


def test_a_wait_is_said(server: FileServer, caplog: pytest.LogCaptureFixture) -> None:
    server.fail(["hang"])
    server.hang_s = 0.6
    with caplog.at_level(logging.WARNING, "penstock"):
        objects = Objects(server.url.replace("http://", "http://u:pw@"), RemoteOptions())
        assert bytes(objects.read("a", [(0, 3)]).data[0]) == DATA[:3]
    said = [record.getMessage() for record in caplog.records]
    assert said
    assert all(one.startswith("http://***@127.0.0.1") and "/a: no answer for 0 s" in one for one in said)
    assert len(said) <= 4  # ever more seldom: at 0.05, 0.1, 0.2 and 0.4 s


def test_a_server_that_answers_is_not_spoken_of(server: FileServer, caplog: pytest.LogCaptureFixture) -> None:
    objects = Objects(server.url, RemoteOptions())
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(50):
            objects.read("a", None)
    assert not caplog.records


def test_silence_ends_a_request(server: FileServer) -> None:
    server.always = "hang"
    server.hang_s = 20
    options = RemoteOptions(tries=1000, backoff_s=0.01, timeout_s=0.1, deadline_s=0.5)
    with pytest.raises(Unreachable, match="doesn't answer"):
        Objects(server.url, options).read("a", [(0, 3)])
    assert 2 <= len(server.gets()) < 50
    server.released.set()


def test_bytes_that_come_do_not(server: FileServer) -> None:
    server.always = "slow"
    server.hang_s = 1.0
    options = RemoteOptions(tries=1, timeout_s=0.6, deadline_s=0.2)
    assert bytes(Objects(server.url, options).read("a", [(0, 100)]).data[0]) == DATA[:100]


@pytest.mark.parametrize(("fault", "is_given_up"), [("drop", False), ("503", True)])
def test_answers_that_break_off_put_the_end_off(
    fault: Fault, is_given_up: bool, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(SlowRequests, "waiting", lambda *_: contextlib.nullcontext())  # its thread would sleep too
    monkeypatch.setattr(_objects, "time", clock)
    monkeypatch.setattr(_objects, "sleep", clock.sleep)
    monkeypatch.setattr(_objects, "_MOST_WAIT_S", 0.5)
    server.fail([fault] * 9)  # after which eight waits or more of a quarter of a second are behind us
    objects = Objects(server.url, RemoteOptions(tries=10, backoff_s=0.5, deadline_s=1.0))
    if is_given_up:
        with pytest.raises(Unreachable):
            objects.read("a", [(0, 100)])
        assert clock.now_s <= 1.0
    else:
        assert bytes(objects.read("a", [(0, 100)]).data[0]) == DATA[:100]
        assert clock.now_s > 2.0


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s


def test_the_thread_ends_with_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_objects, "REPORT_AFTER_S", 0.01)
    watch = SlowRequests()
    with watch.waiting("x"):
        thread = next(one for one in threading.enumerate() if one.name == "penstock-slow-requests")
    thread.join(10)
    assert not thread.is_alive()
    with watch.waiting("x"):
        assert [one for one in threading.enumerate() if one.name == "penstock-slow-requests"]


def test_by_default_after_ten_seconds_and_two_minutes() -> None:
    assert _objects.REPORT_AFTER_S == 10
    assert RemoteOptions().deadline_s == 120

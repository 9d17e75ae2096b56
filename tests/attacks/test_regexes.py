"""Regexes that meet texts at which they never end, and regexes that come with the data."""

from __future__ import annotations

import json
import logging
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.internals import Clock, TookTooLong, each_at_most, replace

from penstock import filter
from penstock.errors import PrepareError

EVIL = {"text": "a" * 60 + "!", "pattern": "(a+)+$"}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in ({"text": "ab", "pattern": "b"}, EVIL)))
    return path


@pytest.mark.parametrize("how", [{"where": "match(text, pattern)"}, {"match": "(a+)+$"}])
def test_a_search_without_end(how: Any, lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "expression_seconds", 0.0)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(PrepareError, match="more than 0 s for the sample at index 1"):
        filter(lines, lines.with_name("out.jsonl"), **how)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert not lines.with_name("out.jsonl").exists()


def test_only_time_at_one_sample_counts() -> None:
    clock = Clock()
    assert [clock.tick() for _ in range(3)] == [1, 2, 3]
    clock.row = 0
    assert [clock.tick() for _ in range(3)] == [0, 1, 2]


def test_an_expression_without_a_regex_needs_no_timer(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "each_at_most", lambda *_: pytest.fail("a timer"))
    assert filter(lines, lines.with_name("out.jsonl"), where="len(text) < 5").dropped == 1


def test_where_no_limit_can_hold_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def look() -> None:
        with each_at_most(1.0):
            pass

    with caplog.at_level(logging.WARNING, "penstock"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        signal.setitimer(signal.ITIMER_REAL, 1000)
        try:
            look()
        finally:
            left = signal.setitimer(signal.ITIMER_REAL, 0)
    assert left[0] > 900  # the timer of somebody else goes on
    assert len(caplog.records) == 2


def test_the_error_reaches_the_loop() -> None:
    def endless() -> None:
        with each_at_most(0.0) as clock:
            clock.row = 0
            while True:
                pass

    with pytest.raises(TookTooLong):
        endless()

"""How far a run of the tests is, in plain lines that a log shows too: `pytest -p tests.progress`.

In place of a dot a test: a line every tenth of the tests and at least every half minute, and one at each failure.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import pytest

EVERY_S = 30.0
SHARE = 0.1


class Progress:
    """Counts the tests that ended and prints lines; the process of an xdist worker prints none."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started = self._told_s = time.monotonic()
        self._done = self._failed = self._told = 0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep it: it knows how many tests there are, once they are collected."""
        self._session = session

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, tuple[str, Any, Any], tuple[str, str, str]]:
        """The category alone counts: no letter a test."""
        return (yield)[0], "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._say(f"FAILED {report.nodeid}" + ("" if report.when == "call" else f" ({report.when})"))
        if report.when == "teardown":
            self._done += 1
            total = self._session.testscollected
            late = time.monotonic() - self._told_s >= EVERY_S
            if late or self._done == total or self._done - self._told >= SHARE * total:
                self._told, self._told_s = self._done, time.monotonic()
                self._say(f"{self._done / max(total, 1):4.0%} {self._done:,} of {total:,}, {self._failed} failed")

    def _say(self, text: str) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        terminal.write_line(f"{text}, {time.monotonic() - self._started:.0f} s")
        terminal.flush()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config), "penstock-progress")

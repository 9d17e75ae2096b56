"""Progress, notes and log messages of commands, on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

import click

from penstock._printable import printable, printable_json, printable_lines
from penstock._secrets import logger, redact
from penstock.cli._options import common, has_color, is_quiet, progress_mode
from penstock.view.draw.words import human_bytes

if TYPE_CHECKING:
    import logging


SECONDS = 30.0


SERVING = frozenset({"mount", "view", "completion"})
"""Commands without progress reports."""


_PATIENCE_SECONDS = 1.0


REPORTS = "reports"
"""Key in the common options: the command reports its progress itself."""


_JSON_SECONDS = 1.0


def note(message: str) -> None:
    """Print a line to standard error, or an object with `--progress json`; nothing with `--quiet`."""
    if is_quiet():
        return
    if progress_mode() == "json":
        bare = message.removeprefix("warning: ")
        tell_object({"level": "info" if bare == message else "warning", "message": bare})
    else:
        click.echo(redact(printable_lines(message)), err=True)


def tell_object(facts: dict[str, Any]) -> None:
    """Print an object as one line to standard error."""
    click.echo(redact(printable_json(json.dumps(facts, ensure_ascii=False))), err=True)


class Advance(Protocol):
    """Function that reports progress."""

    def __call__(self, done: int, extra: str = "", total: int | None = None) -> None:
        """Show that `done` of `total` is done, with a short text such as `"3.1 M tokens"`."""


def _unseen(done: int, extra: str = "", total: int | None = None) -> None:
    pass


@contextlib.contextmanager
def progress(
    label: str, total: int | None, unit: str = "bytes", *, clock: Callable[[], float] = time.monotonic
) -> Generator[Advance]:
    """Show progress on standard error: a bar on a terminal after a second, otherwise a line every 30 seconds.

    `--progress plain` prints lines on a terminal too, `json` an object every second and one at the end, `none` nothing.
    """
    mode = progress_mode()
    common()[REPORTS] = True
    if mode == "none":
        yield _unseen
    elif mode == "json" or mode == "plain" or not sys.stderr.isatty():
        seconds = _JSON_SECONDS if mode == "json" else SECONDS
        lines = _Lines(label, unit, total, seconds, clock, as_json=mode == "json")
        with ticking(lines.tick, seconds):
            yield lines.advance
        if mode == "json":
            lines.say()
    else:
        with _bar(label, total, unit) as advance:
            yield advance


class _Lines:
    """Progress as lines, at most one every `seconds`."""

    def __init__(
        self, label: str, unit: str, total: int | None, seconds: float, clock: Callable[[], float], *, as_json: bool,
        began: float | None = None,
    ) -> None:  # fmt: skip
        self._label, self._unit, self._total, self._as_json = label, unit, total, as_json
        self._seconds, self._clock = seconds, clock
        self._last = clock()
        self._began = self._last if began is None else began
        self._done, self._extra = 0, ""

    def advance(self, done: int, extra: str = "", total: int | None = None) -> None:
        told, extra = _total_in(extra)
        self._done, self._extra, self._total = done, extra, told or total or self._total
        self.tick()

    def tick(self) -> None:
        if self._clock() - self._last >= self._seconds:
            self._last = self._clock()
            self.say()

    def say(self) -> None:
        seconds = max(self._clock() - self._began, 1e-9)
        rate = self._done / seconds
        left_seconds = None if not self._total or not rate else max(0.0, (self._total - self._done) / rate)
        if self._as_json:
            facts = {"label": self._label, "done": self._done, "total": self._total, "unit": self._unit}
            facts |= {"rate": rate, "left_seconds": left_seconds, "seconds": seconds, "extra": self._extra}
            tell_object(facts)
            return
        total = "" if not self._total else f" of {self._amount(self._total)} ({self._done / self._total:.0%})"
        left = "" if left_seconds is None else f", {_duration(left_seconds)} left"
        extra = f"; {self._extra}" if self._extra else ""
        click.echo(
            redact(printable(f"{self._label}: {self._amount(self._done)}{total}, {self._amount(rate)}/s{left}{extra}")),
            err=True,
        )

    def _amount(self, value: float) -> str:
        return human_bytes(value) if self._unit == "bytes" else f"{value:,.0f} {self._unit}"


def _duration(seconds: float) -> str:
    """`2 h 05 min`, `7 min`, `40 s`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


class _LogObjects:
    """Replaces `logging.Formatter`, whose import isn't needed otherwise: one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {"level": record.levelname.lower(), "message": record.getMessage()}
        return redact(printable_json(json.dumps(facts, ensure_ascii=False)))


@contextlib.contextmanager
def logs_as_asked() -> Generator[None]:
    """Hide log messages below errors with `-q`; print log messages as objects with `--progress json`."""
    import logging

    log, level, goes_on = logger(), logger().level, logger().propagate
    handler = None
    if is_quiet():
        log.setLevel("ERROR")
    if progress_mode() == "json":
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(cast("logging.Formatter", _LogObjects()))
        log.addHandler(handler)
        log.propagate = False
    try:
        yield
    finally:
        log.setLevel(level)
        log.propagate = goes_on
        if handler is not None:
            log.removeHandler(handler)


def _total_in(extra: str) -> tuple[int | None, str]:
    """Split `of 1,234 read back` into number and text: `progress=` of a verb takes only a number and a text."""
    told = re.fullmatch(r"of ([\d,]+) ?(.*)", extra)
    return (int(told[1].replace(",", "")), told[2]) if told else (None, extra)


@contextlib.contextmanager
def reporting(label: str) -> Generator[None]:
    """Print every 30 seconds what a command has read, unless it reports its progress itself.

    With `--progress json`, also at the end.
    """
    known, before, began = common(), read_bytes(), time.monotonic()

    def tick() -> None:
        mode = progress_mode(known)
        if mode != "none" and not known.get(REPORTS):
            line = _Lines(label, "bytes", None, 0.0, time.monotonic, as_json=mode == "json", began=began)
            line.advance(read_bytes() - before, f"{_duration(time.monotonic() - began)} elapsed")

    with ticking(tick):
        yield
    if progress_mode(known) == "json":
        tick()
        known[REPORTS] = True  # the group that it is in has nothing to add


@contextlib.contextmanager
def _bar(label: str, total: int | None, unit: str) -> Generator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    started = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%  {task.fields[rate]}  {task.fields[extra]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True, no_color=not has_color()),
        transient=True,
    )
    task = bar.add_task(label, total=total, rate="", extra="")

    def advance(done: int, extra: str = "", total: int | None = None) -> None:
        seconds = time.monotonic() - started
        if seconds < _PATIENCE_SECONDS:
            return
        if not bar.live.is_started:
            bar.start()
        told, extra = _total_in(extra)
        rate = f"{human_bytes(done / seconds)}/s" if unit == "bytes" else f"{done / seconds:,.0f} {unit}/s"
        bar.update(task, completed=done, total=told or total, rate=rate, extra=extra)

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()


@contextlib.contextmanager
def ticking(tick: Callable[[], None], seconds: float = SECONDS) -> Generator[None]:
    """Call `tick` every `seconds` from another thread while the block runs."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            with contextlib.suppress(OSError, ValueError):  # standard error may be closed
                tick()

    thread = threading.Thread(target=run, name="penstock-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def read_bytes() -> int:
    """Return the bytes that this process and its children have read, or 0 if unknown."""
    return sum(map(_read_by, (os.getpid(), *_children())))


def _children() -> Iterator[int]:
    """Yield the processes that the main thread started."""
    path = f"/proc/self/task/{os.getpid()}/children"
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        yield from map(int, file.read().split())


def _read_by(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            found = {name: int(count) for name, _, count in (line.partition(": ") for line in file)}
        return max(found["rchar"], found["read_bytes"])  # read_bytes includes memory maps
    return 0

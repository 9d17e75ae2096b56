"""The output of commands: one JSON document, or text for people; progress as a bar or as lines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import click

from penstock._printable import printable, printable_json, printable_lines
from penstock._secrets import logger, redact
from penstock.cli._common import has_color, is_quiet, progress_mode, said, wants_json
from penstock.cli._heartbeat import SECONDS, read_bytes, ticking

if TYPE_CHECKING:
    import logging

_PATIENCE_SECONDS = 1.0
REPORTS = "reports"
"""Among what was said: the command reports its progress itself."""
_JSON_SECONDS = 1.0


def _json_said(context: click.Context, option: click.Parameter, given: bool) -> bool:
    return wants_json(given)


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_json_said, help="Print one JSON document to standard output."
)

follow_links_option = click.option(
    "--follow-links", is_flag=True, help="Follow symbolic links that lead outside the dataset's directory."
)


class LocalPath(click.Path):
    """A local path or `file://` URL, converted to a `pathlib.Path`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; raises `ConfigError` for a URL of another store."""
        from penstock.store.place import local_path

        name = "this" if param is None else param.human_readable_name
        path = local_path(value, name)
        if not self.exists:
            return Path(os.fsdecode(super().convert(path, param, ctx)))
        try:
            os.stat(path)  # not by the base, which takes every refusal for a file that is not there
        except (FileNotFoundError, NotADirectoryError, ValueError):
            self.fail(f"Path {click.format_filename(path)!r} does not exist.", param, ctx)
        return Path(path)


def emit(data: Any, *, as_json: bool, text: str | Callable[[], str]) -> None:
    """Print `data` as one JSON document, or `text`."""
    if as_json:
        click.echo(redact(printable_json(json.dumps(data, indent=1, ensure_ascii=False, default=str))))
    else:
        say(text if isinstance(text, str) else text())


def emit_line(data: Any, *, as_json: bool, text: str) -> None:
    """Print `data` as one line of JSON, or `text`, immediately, for commands that keep running."""
    click.echo(redact(printable_json(json.dumps(data, ensure_ascii=False))) if as_json else text)


def say(text: str) -> None:
    """Text for people, on standard output."""
    click.echo(redact(printable_lines(text)))


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
    """An object in a line, on standard error."""
    click.echo(redact(printable_json(json.dumps(facts, ensure_ascii=False))), err=True)


def human_bytes(size_bytes: float) -> str:
    """`1.5 GB`, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size_bytes) < 1000 or unit == "TB":
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    raise ValueError("unreachable")


def counted(count: int, noun: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def table(rows: list[tuple[str, ...]], *, header: tuple[str, ...] | None = None) -> str:
    """Left-aligned columns; those of numbers to the right."""
    lines = ([header] if header else []) + [tuple(map(printable, row)) for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]

    bodies = list(zip(*lines[bool(header) :], strict=True))
    of_numbers = [all(map(_is_amount, body)) for body in bodies]

    def cell(text: str, column: int) -> str:
        return text.rjust(widths[column]) if column < len(bodies) and of_numbers[column] else text.ljust(widths[column])

    return "\n".join("  ".join(map(cell, line, range(len(line)))).rstrip() for line in lines)


def _is_amount(text: str) -> bool:
    return text in ("", "-") or (text[:1].isdigit() and "/" not in text)


class Advance(Protocol):
    """Tells a progress bar how far the work is."""

    def __call__(self, done: int, extra: str = "", total: int | None = None) -> None:
        """Show it.

        Args:
            done: so far, absolute.
            extra: a short text such as `"3.1 M tokens"`.
            total: how much there is, where that was not known before.
        """


def _unseen(done: int, extra: str = "", total: int | None = None) -> None:
    """No progress is shown."""


@contextlib.contextmanager
def progress(
    label: str, total: int | None, unit: str = "bytes", *, clock: Callable[[], float] = time.monotonic
) -> Generator[Advance]:
    """Progress on standard error: a bar on a terminal, after a second; into a pipe a line every 30 seconds.

    `--progress` says otherwise: `plain` lines on a terminal too, `json` one object a line every second and one at the
    end, `none` nothing.

    Yields:
        What tells it how far the work is.
    """
    mode = progress_mode()
    said()[REPORTS] = True
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
    """Progress as lines, of which one comes when `seconds` have gone by since the last."""

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
        """See `Advance`."""
        told, extra = _total_in(extra)
        self._done, self._extra, self._total = done, extra, told or total or self._total
        self.tick()

    def tick(self) -> None:
        """Say a line, if it is time for one."""
        if self._clock() - self._last >= self._seconds:
            self._last = self._clock()
            self.say()

    def say(self) -> None:
        """One line."""
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
    """Writes what is logged as objects in a line; stands for a `logging.Formatter`."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        facts = {"level": record.levelname.lower(), "message": record.getMessage()}
        return redact(printable_json(json.dumps(facts, ensure_ascii=False)))


@contextlib.contextmanager
def logs_as_asked() -> Generator[None]:
    """With `-q`, what the library logs below an error stays unsaid; with `--progress json` it is objects too."""
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
    """The number in `of 1,234 read back`, and what follows: a verb's `progress=` takes a number and a text alone."""
    told = re.fullmatch(r"of ([\d,]+) ?(.*)", extra)
    return (int(told[1].replace(",", "")), told[2]) if told else (None, extra)


@contextlib.contextmanager
def reporting(label: str) -> Generator[None]:
    """What every command does: where it does not report its progress itself, say every 30 seconds what it has read.

    With `--progress json` it says so at its end too, however short it was.
    """
    known, before, began = said(), read_bytes(), time.monotonic()

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

"""The output of commands: one JSON document, or text for people; progress on a terminal only."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Protocol

import click

from penstock._printable import printable, printable_json, printable_lines
from penstock._secrets import redact

_PATIENCE_SECONDS = 1.0

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")

follow_links_option = click.option(
    "--follow-links", is_flag=True, help="Read files through links that lead out of a dataset's folder."
)


class LocalPath(click.Path):
    """A path of this machine, `file://` too; passed on as a `pathlib.Path`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; raises `ConfigError` for a URL of another store."""
        from penstock.store.resolve import local_path

        name = "this" if param is None else param.human_readable_name
        path = local_path(value, name)
        if self.exists:
            # The base takes every refusal for a file that is not there.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
                os.stat(path)
        return Path(os.fsdecode(super().convert(path, param, ctx)))


def emit(data: Any, *, as_json: bool, text: str | Callable[[], str]) -> None:
    """Print `data` as one JSON document, or `text`."""
    if as_json:
        click.echo(redact(printable_json(json.dumps(data, indent=1, ensure_ascii=False, default=str))))
    else:
        say(text if isinstance(text, str) else text())


def say(text: str) -> None:
    """Text for people, on standard output."""
    click.echo(redact(printable_lines(text)))


def note(message: str) -> None:
    """A line for people, on standard error."""
    click.echo(redact(printable_lines(message)), err=True)


def human_bytes(size_bytes: float) -> str:
    """`1.5 GB`, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size_bytes) < 1000 or unit == "TB":
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    raise ValueError("unreachable")


def table(rows: list[tuple[str, ...]], *, header: tuple[str, ...] | None = None) -> str:
    """Left-aligned columns; numbers to the right."""
    lines = ([header] if header else []) + [tuple(map(printable, row)) for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]

    def cell(text: str, width: int) -> str:
        return text.rjust(width) if text[:1].isdigit() and not text.count("/") else text.ljust(width)

    return "\n".join("  ".join(map(cell, line, widths)).rstrip() for line in lines)


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
    """No progress bar."""


@contextlib.contextmanager
def progress(label: str, total: int | None, unit: str = "bytes") -> Generator[Advance]:
    """A progress bar on a terminal, after a second; nothing into a pipe.

    Yields:
        What tells it how far the work is.
    """
    if not sys.stderr.isatty():
        yield _unseen
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    started = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%  {task.fields[rate]}  {task.fields[extra]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(label, total=total, rate="", extra="")

    def advance(done: int, extra: str = "", total: int | None = None) -> None:
        seconds = time.monotonic() - started
        if seconds < _PATIENCE_SECONDS:
            return
        if not bar.live.is_started:
            bar.start()
        rate = f"{human_bytes(done / seconds)}/s" if unit == "bytes" else f"{done / seconds:,.0f} {unit}/s"
        bar.update(task, completed=done, total=total, rate=rate, extra=extra)

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()

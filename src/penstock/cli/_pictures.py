"""Samples in a terminal: values as JSON, and pictures in the ways that the terminal supports."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import select
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from penstock.cli._errors import with_options
from penstock.cli._options import has_color, refuse_given, wants_json
from penstock.cli._output import note

if TYPE_CHECKING:
    from penstock.look.head import Decode
    from penstock.view.draw.terminal import Way
    from penstock.view.facts.panel import Panels

    Ask = Callable[[], Way]

_JSON_TOKENS = 4096


WAYS = ("auto", "kitty", "iterm", "sixel", "blocks", "none")


ROWS_OF_A_LINE = 6
"""Rows of a picture below the line of its sample."""


_MOST_PICTURES = 64


_ANSWER_SECONDS = 1.0


_MOST_ANSWER_BYTES = 1024


_ASK = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[c"
"""Asks for kitty's protocol, then for other abilities, which every terminal answers."""


Command = TypeVar("Command", bound=Callable[..., Any])


def pictures_option(command: Command) -> Command:
    """`--pictures WAY`, `--no-pictures`."""
    text = "How to show images. auto: on a terminal, by its image protocol, or as half blocks. Without a value: blocks."
    ways: dict[str, Any] = {"type": click.Choice(WAYS), "is_flag": False, "flag_value": "blocks", "is_eager": True}
    none = click.option(
        "--no-pictures", is_flag=True, expose_value=False, callback=_none, help="Same as --pictures none."
    )
    return click.option("--pictures", help=text, **ways)(none(command))


def _none(context: click.Context, _option: click.Parameter, given: bool) -> None:
    if given:
        refuse_given(("pictures",), "--no-pictures disables images")
        context.params["pictures"] = "none"


def way_of(asked: str | None) -> Ask | None:
    """Return a function that returns the way to show pictures, or None without a terminal or colors.

    The terminal is asked once, when there is a picture.

    Raises:
        UsageError: `--pictures` with `--json`.
    """
    if wants_json():
        if asked not in (None, "none"):
            refuse_given(("pictures",), "--json prints values, not images")
        return None
    if asked not in (None, "auto"):
        # Half blocks are made of colours; a protocol that is asked for by its name is not.
        chosen = None if asked == "none" or (asked == "blocks" and not has_color()) else cast("Way", asked)
        return None if chosen is None else lambda: chosen
    if not (has_color() and sys.stdout.isatty()):
        return None
    return functools.cache(_found_way)


def _found_way() -> Way:
    return known_way(os.environ) or asked_way() or "blocks"


def known_way(environ: Mapping[str, str]) -> Way | None:
    """Return the way that environment variables imply; None if the terminal has to be asked.

    tmux and screen drop escape sequences that they don't know.
    """
    if "TMUX" in environ or environ.get("TERM", "").startswith(("screen", "tmux")):
        return "blocks"
    if environ.get("TERM") == "dumb":
        return "blocks"
    program = environ.get("TERM_PROGRAM", "")
    if "KITTY_WINDOW_ID" in environ or environ.get("TERM") in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm") or environ.get("LC_TERMINAL") == "iTerm2":
        return "iterm"
    return None


def asked_way() -> Way | None:
    """Ask the terminal; return None without an answer in time or a terminal."""
    try:
        import termios
        import tty
    except ImportError:
        return None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    try:
        terminal = sys.stdin.fileno()
        if os.tcgetpgrp(terminal) != os.getpgrp():  # in the background, asking would stop us
            return None
        before = termios.tcgetattr(terminal)
        try:
            tty.setcbreak(terminal, termios.TCSANOW)
            sys.stdout.flush()
            os.write(sys.stdout.fileno(), _ASK)
            return way_in(_answer(terminal))
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, before)
    except (OSError, termios.error):
        return None


def way_in(answer: bytes) -> Way | None:
    if b"\x1b_Gi=31;OK" in answer:
        return "kitty"
    found = re.search(rb"\x1b\[\?([\d;]*)c", answer)
    return "sixel" if found is not None and b"4" in found[1].split(b";")[1:] else None


def _answer(terminal: int) -> bytes:
    found, end = b"", time.monotonic() + _ANSWER_SECONDS
    while len(found) < _MOST_ANSWER_BYTES and not re.search(rb"\x1b\[\?[\d;]*c", found):
        left = end - time.monotonic()
        if left <= 0 or not select.select([terminal], [], [], left)[0]:
            break
        with contextlib.suppress(InterruptedError):
            found += os.read(terminal, 256)
    return found


def stored_pictures(opened: Any, index: int, way: Ask, columns: int, rows: int) -> Callable[[Any], list[str]]:
    """Return a function that draws a part of a stored sample."""
    from penstock.errors import PenstockError
    from penstock.view.facts.bounds import MOST_SAMPLE_BYTES
    from penstock.view.facts.samples import media_of

    def drawn(panel: Any) -> list[str]:
        try:
            data = media_of(opened, index, panel.name).data
            whole = None if data.size_bytes > MOST_SAMPLE_BYTES else bytes(data.read(0, data.size_bytes))
        except PenstockError:  # its line has the error
            return []
        return drawn_picture(whole, way, columns, rows)

    return drawn


def drawn_picture(value: Any, way: Ask, columns: int, rows: int) -> list[str]:
    """Return the lines that show a stored or decoded picture; none if it isn't a picture."""
    from penstock.errors import PenstockError
    from penstock.view.draw.terminal import CELL_HEIGHT, CELL_WIDTH, picture
    from penstock.view.facts.media import small_picture

    try:
        data = None if value is None else small_picture(value, min(columns * CELL_WIDTH, 2 * rows * CELL_HEIGHT))
    except PenstockError:
        return []
    return [] if data is None else picture(data, way(), columns, rows)


def show_tables(
    opened: Any, indices: range, way: Ask | None, *, show_all: bool,
    above: Callable[[int], Sequence[str]] = lambda _: (), asks: bool = False,
) -> None:  # fmt: skip
    """Show each sample as a table of its fields with its pictures; raise the first error of a sample at the end.

    Args:
        opened: the dataset.
        indices: of the samples.
        way: how pictures are shown; None: not at all.
        show_all: include fields that begin with `__`.
        above: lines to print above a sample.
        asks: ask after each sample whether to show the next.
    """
    from penstock.view.draw.terminal import PICTURE_ROWS, sample
    from penstock.view.facts.samples import sample_at

    width = shutil.get_terminal_size().columns
    failed: list[Exception] = []
    for at in indices:
        found = with_command_options(sample_at(opened, at, show_all=show_all, failed=failed.append))
        draws = None if way is None else stored_pictures(opened, at, way, width - 2, PICTURE_ROWS)
        lines = ("", f"sample {at} of {len(opened):,}", *sample(found, width, draws))
        click.echo("\n".join((*above(at), *lines)), color=has_color())
        if at == indices.start and opened.vocabulary is None and any(one.kind == "tokens" for one in found.panels):
            note("token ids; --tokenizer FILE shows their text")
        if asks and at + 1 < indices.stop and not click.confirm("Next?", default=True):
            break
    if failed:
        raise failed[0]


def show_pictures(found: Any, draws: Callable[[Any], list[str]]) -> None:
    """Show the pictures of a stored sample."""
    for panel in found.panels:
        if panel.kind == "image":
            _show(draws(panel))


def decoded_pictures(sample: Mapping[str, Any], way: Ask) -> None:
    """Show the pictures of a sample of a run."""
    columns = shutil.get_terminal_size().columns - 2
    for value in list(sample.values())[:_MOST_PICTURES]:
        _show(drawn_picture(value, way, columns, ROWS_OF_A_LINE))


def _show(lines: list[str]) -> None:
    for text in lines:
        click.echo(f"  {text}", color=True)


def with_command_options(shown: Panels) -> Panels:
    """Return a sample whose error names the options of the current command in place of arguments of Python."""
    if shown.error is None:
        return shown
    return dataclasses.replace(shown, error=with_options(shown.error, click.get_current_context().command))


def require_one() -> None:
    """Raise `click.UsageError` if more than one of `--start`, `--index` and `--key` is given."""
    context = click.get_current_context()
    for name, others in (("key", ("index", "start")), ("index", ("start",))):
        if context.params.get(name) is not None:
            refuse_given(others, f"--{name} selects one sample")


def warn_of(what: str | None) -> None:
    """Print a warning, unless it is None."""
    if what is not None:
        note(f"warning: {what}")


def plain_at(
    source: Any, index: int, decode: Decode | None, *, show_all: bool, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the fields of a sample as JSON values, or the reason if it is excluded."""
    from penstock.errors import Excluded
    from penstock.look.head import visible

    try:
        return plain(visible(source[index], decode, show_all=show_all)) | dict(more or {})
    except Excluded as error:
        return {"excluded": error.what}


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample as JSON values: long arrays of IDs are cut, bytes and images described."""
    return {name: _plain_value(value) for name, value in sample.items()}


def _plain_value(value: Any) -> Any:
    if hasattr(value, "tolist"):
        shown = value[:_JSON_TOKENS].tolist() if getattr(value, "ndim", 0) else value.tolist()
        return [*shown, f"… {len(value)} in all"] if getattr(value, "ndim", 0) and len(value) > _JSON_TOKENS else shown
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    if hasattr(value, "mode") and hasattr(value, "tobytes"):
        return f"<{value.mode} image, {value.width} x {value.height}>"
    if isinstance(value, (list, tuple)):
        return [_plain_value(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: one for name, one in dataclasses.asdict(value).items() if one is not None}
    return value

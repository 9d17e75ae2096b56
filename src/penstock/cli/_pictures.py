"""`--pictures`: which way the terminal shows pictures, by what it says of itself."""

from __future__ import annotations

import contextlib
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

from penstock.cli._common import has_color
from penstock.cli._energon import refuse_given
from penstock.cli._output import note
from penstock.cli._samples import with_command_options

if TYPE_CHECKING:
    from penstock.view.draw.terminal import Way

    Ask = Callable[[], Way]

WAYS = ("auto", "kitty", "iterm", "sixel", "blocks", "none")
ROWS_OF_A_LINE = 6
"""Of a picture below a line of many."""

_MOST_PICTURES = 64
_ANSWER_SECONDS = 1.0
_MOST_ANSWER_BYTES = 1024
_ASK = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[c"
"""Whether kitty's protocol is known; then what else is, which every terminal answers."""

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
        refuse_given(context, ("pictures",), "--no-pictures disables images")
        context.params["pictures"] = "none"


def way_of(asked: str | None, *, as_json: bool) -> Ask | None:
    """What says how pictures are shown; None: not at all, as where there is no terminal, or no colours are wanted.

    The terminal is asked when there is a picture, and once.

    Raises:
        UsageError: pictures are asked for with `--json`.
    """
    if as_json:
        if asked not in (None, "none"):
            refuse_given(click.get_current_context(), ("pictures",), "--json prints values, not images")
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
    """What the environment says of the terminal; None where that has to be asked.

    Between us and the terminal, tmux and screen keep escapes that they don't know to themselves.
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
    """What the terminal itself answers; None where it answers nothing in time, or there is none to ask."""
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
    """What an answer says."""
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
    """What draws a part of a stored sample."""
    from penstock.errors import PenstockError
    from penstock.view.facts.bounds import MOST_SAMPLE_BYTES
    from penstock.view.facts.samples import media_of

    def drawn(panel: Any) -> list[str]:
        try:
            data = media_of(opened, index, panel.name).data
            whole = None if data.size_bytes > MOST_SAMPLE_BYTES else bytes(data.read(0, data.size_bytes))
        except PenstockError:  # its line says what it is
            return []
        return drawn_picture(whole, way, columns, rows)

    return drawn


def drawn_picture(value: Any, way: Ask, columns: int, rows: int) -> list[str]:
    """A picture, stored or decoded, in lines; none where it is none."""
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
    """The pictures of a stored sample, below its line."""
    for panel in found.panels:
        if panel.kind == "image":
            _show(draws(panel))


def decoded_pictures(sample: Mapping[str, Any], way: Ask) -> None:
    """The pictures of a sample as a run makes it, below its line."""
    columns = shutil.get_terminal_size().columns - 2
    for value in list(sample.values())[:_MOST_PICTURES]:
        _show(drawn_picture(value, way, columns, ROWS_OF_A_LINE))


def _show(lines: list[str]) -> None:
    for text in lines:
        click.echo(f"  {text}", color=True)

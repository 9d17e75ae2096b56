"""Facts as lines of a terminal: tokens as text with borders of documents and masks."""

from __future__ import annotations

from collections.abc import Iterator

from penstock._printable import printable_lines
from penstock.view.draw.words import count, plural
from penstock.view.facts.token_run import Token, TokenRun

BEGINS, OFF, OFF_END = "▌", "⟦", "⟧"
_DIM, _BOLD, _END = "\x1b[2m", "\x1b[1m", "\x1b[0m"


def window(run: TokenRun, *, color: bool) -> Iterator[str]:
    """A window as text: `▌` where a document begins; what is no part of the loss dim, without colours in `⟦ ⟧`.

    Args:
        run: its tokens.
        color: whether the terminal shows styles.
    """
    facts = [plural(run.of, "token")]
    facts += [plural(run.documents, "document")] if run.documents is not None else []
    facts += [f"{count(run.counted)} count in the loss"] if run.counted is not None else []
    facts += [f"{count(run.padding)} of padding"] if run.padding else []
    yield ", ".join(facts)
    made: list[str] = []
    is_off = False
    for one in run.tokens:
        off = one.counts is False
        if off != is_off:
            made.append((_DIM if off else _END) if color else OFF if off else OFF_END)
            is_off = off
        made.append(_text(one, run, color=color, is_off=off))
    made.append((_END if color else OFF_END) if is_off else "")
    yield from "".join(made).split("\n")
    if len(run.tokens) < run.of:
        yield f"… {count(run.of - len(run.tokens))} more tokens"


def _text(one: Token, run: TokenRun, *, color: bool, is_off: bool) -> str:
    if one.segment == 0:
        return "·"
    text = printable_lines(one.text) if run.has_texts and one.is_known else f"{one.id} "
    if not one.begins:
        return text
    return f"{_END}{_BOLD}{BEGINS}{_END}{_DIM if is_off else ''}{text}" if color else f"{BEGINS}{text}"

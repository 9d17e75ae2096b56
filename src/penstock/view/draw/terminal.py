"""Facts as lines of a terminal: samples, small pictures, and token text with document borders and masks."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator

from penstock._printable import printable, printable_lines
from penstock.view.draw.words import count, plural, seconds
from penstock.view.facts.panel import JsonNode, Panel, Panels, json_lines
from penstock.view.facts.token_run import Token, TokenRun

BEGINS, OFF, OFF_END = "▌", "⟦", "⟧"
_DIM, _BOLD, _END = "\x1b[2m", "\x1b[1m", "\x1b[0m"
PICTURE_ROWS, TEXT_ROWS = 12, 12
_SHORT, _NUMBERS, _LINE = 60, 12, 200


def window(run: TokenRun, *, color: bool) -> Iterator[str]:
    """Yield a window as text: `▌` starts a document; tokens without loss are dim, or in `⟦ ⟧` without colours."""
    facts = [plural(run.of, "token")]
    facts += [plural(run.documents, "document")] if run.documents is not None else []
    facts += [f"{count(run.counted)} in the loss"] if run.counted is not None else []
    facts += [f"{count(run.padding)} padding"] if run.padding else []
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
    text = printable_lines(one.reads) if one.is_known else f"⟨{one.id}⟩"
    text = text if run.has_texts else f"{one.id} "
    if not one.begins:
        return text
    return f"{_END}{_BOLD}{BEGINS}{_END}{_DIM if is_off else ''}{text}" if color else f"{BEGINS}{text}"


def line(shown: Panels) -> str:
    """Return a sample in one line, in JSON style, truncated if long."""
    if shown.error is not None:
        return _cut(json.dumps({"excluded" if shown.is_excluded else "broken": shown.error}, ensure_ascii=False))
    parts = [] if shown.key is None else [("__key__", json.dumps(shown.key, ensure_ascii=False))]
    parts += [(one.name, _inline(one)) for one in shown.panels]
    told = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in parts)
    return _cut("{" + told + (f", … {shown.more:,} more" if shown.more > 0 else "") + "}")


def sample(shown: Panels, width: int, drawn: Callable[[Panel], list[str]] | None = None) -> Iterator[str]:
    """Yield a sample in lines: its key, the table of its parts, then their contents."""
    if shown.key is not None:
        yield printable(f"key  {shown.key}")
    if shown.error is not None:
        yield printable(shown.error if shown.is_excluded else f"broken: {shown.error}")
    room = min(40, max((len(printable(one.name)) for one in shown.panels), default=0))
    for one in shown.panels:
        yield f"  {printable(one.name).ljust(room)}  {printable(_in_short(one))}"
    if shown.more > 0:
        yield f"  … {'at least ' if shown.of_is_least else ''}{shown.more:,} more parts"
    for one in shown.panels:
        content = list(_in_full(one, width - 2, drawn))
        if content:
            yield from ("", printable(f"{one.name}:"), *(f"  {text}" for text in content))


def _inline(one: Panel) -> str:
    if one.kind == "tokens" and not one.text:
        return f"[{', '.join(map(str, one.ids))}{', …' if one.is_cut else ''}]"
    if one.kind in ("text", "tokens"):
        return json.dumps(one.text[:_LINE], ensure_ascii=False)
    if one.tree is not None:
        return _compact(one.tree)
    if one.kind == "array":
        return f"[{', '.join(one.text.split())}{', …' if one.is_cut else ''}]"
    return f"<{_in_short(one)}>"


def _compact(node: JsonNode) -> str:
    if node.kind not in ("object", "array"):
        return json.dumps(node.text, ensure_ascii=False) if node.kind == "string" else node.text
    inside = [
        ("" if child.name is None else f"{json.dumps(child.name, ensure_ascii=False)}: ") + _compact(child)
        for child in node.children
    ]
    inside += [f"… {node.more:,} more"] if node.more else []
    return f"{{{', '.join(inside)}}}" if node.kind == "object" else f"[{', '.join(inside)}]"


def _in_short(one: Panel) -> str:
    """Return a part's size, and its beginning if that is short."""
    if one.kind == "error":
        return f"broken: {one.text}"
    if one.dtype is not None:
        text = one.text if one.kind == "array" else " ".join(map(str, one.ids))
        first = text.split(" ", _NUMBERS)[:_NUMBERS]
        return f"{one.dtype}{list(one.shape or ())}  {' '.join(first)}{' …' if (one.of or 0) > len(first) else ''}"
    if one.kind == "text":
        return textwrap.shorten(one.text, _SHORT, placeholder="…") or repr(one.text)
    if one.tree is not None:
        is_leaf = one.tree.kind not in ("object", "array")
        return (
            textwrap.shorten(one.tree.text, _SHORT, placeholder="…")
            if is_leaf
            else f"{one.tree.kind} of {one.tree.of:,}"
        )
    return ", ".join(_measures(one))


def _measures(one: Panel) -> Iterator[str]:
    stored = "" if one.size_bytes is None else f"{one.size_bytes:,} bytes"
    if one.kind == "bytes":
        yield stored
        return
    what, _, mode = (one.note or "").partition(", ") if one.kind == "image" else (one.media_type or one.kind, "", "")
    yield f"{stored}{': ' if stored else ''}{what}{' image' if one.kind == 'image' else ''}".strip()
    if one.width is not None and one.height is not None:
        yield f"{one.width} x {one.height}"
    if mode:
        yield mode
    if one.seconds is not None:
        yield seconds(one.seconds)
    if one.sample_rate:
        yield f"{one.sample_rate:,} Hz"
    if one.note and one.kind != "image":
        yield one.note


def _in_full(one: Panel, width: int, drawn: Callable[[Panel], list[str]] | None) -> Iterator[str]:
    if one.kind == "image":
        yield from [] if drawn is None else drawn(one)
        return
    if one.tree is not None and one.tree.children:
        lines = [printable(text) for text in json_lines(one.tree)]
    elif one.kind in ("text", "tokens") and one.text and (len(one.text) > _SHORT or "\n" in one.text or one.ids):
        told = (printable(text) for text in one.text.split("\n"))
        lines = [part for text in told for part in textwrap.wrap(text, max(20, width)) or [""]]
    else:
        return
    yield from lines[:TEXT_ROWS]
    if len(lines) > TEXT_ROWS:
        yield f"… {len(lines) - TEXT_ROWS:,} more lines"
    elif one.is_cut:
        yield f"… {one.shown:,} of {one.of:,} {one.unit} shown"


def _cut(text: str) -> str:
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"

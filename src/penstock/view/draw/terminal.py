"""Facts as lines of a terminal: samples, small pictures, and token text with document borders and masks."""

from __future__ import annotations

import base64
import io
import json
import textwrap
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Literal

from penstock._optional import require
from penstock._printable import printable, printable_lines
from penstock.view.draw.words import count, counted, seconds
from penstock.view.facts.panel import JsonNode, Panel, Panels, json_lines
from penstock.view.facts.token_run import Token, TokenRun

BEGINS, OFF, OFF_END = "▌", "⟦", "⟧"
_DIM, _BOLD, _END = "\x1b[2m", "\x1b[1m", "\x1b[0m"
PICTURE_ROWS, TEXT_ROWS = 12, 12
_SHORT, _NUMBERS, _LINE = 60, 12, 200


def window(run: TokenRun, *, color: bool) -> Iterator[str]:
    """Yield a window as text: `▌` starts a document; tokens without loss are dim, or in `⟦ ⟧` without colours."""
    facts = [counted(run.of, "token")]
    facts += [counted(run.documents, "document")] if run.documents is not None else []
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


Way = Literal["kitty", "iterm", "sixel", "blocks"]

CELL_WIDTH, CELL_HEIGHT = 10, 20
"""Pixels of a cell, approximately right for most terminals: the first two protocols scale to cells, sixel doesn't."""

_HALF = "\u2580"
_KITTY_CHARACTERS = 4096
_SIXEL_COLOURS = 255


def picture(data: bytes, way: Way, columns: int, rows: int) -> list[str]:
    """Return a picture as lines of a terminal; with a protocol, as a single line with its escape sequence.

    At most `columns * rows` cells. kitty's protocol takes PNG in base64, 4,096 characters at a time; iTerm2's takes any
    file, in one piece; sixel takes rows of six pixels, one colour of a palette at a time.
    """
    image: Any = require("PIL.Image", extra="media").open(io.BytesIO(data)).convert("RGB")
    if way == "blocks":
        return _blocks(image, columns, rows)
    scale = min(1.0, columns * CELL_WIDTH / image.width, rows * CELL_HEIGHT / image.height)
    if scale < 1:
        image = image.resize((max(1, int(image.width * scale)), max(1, int(image.height * scale))))
    cells = -(-image.width // CELL_WIDTH), -(-image.height // CELL_HEIGHT)
    return [_sixel(image) if way == "sixel" else _kitty(image, *cells) if way == "kitty" else _iterm(image, *cells)]


def _blocks(image: Any, columns: int, rows: int) -> list[str]:
    """Draw two pixels per cell, in 24-bit colour."""
    scale = min(columns / image.width, 2 * rows / image.height)
    width, height = max(1, round(image.width * scale)), max(2, 2 * round(image.height * scale / 2))
    pixels = image.resize((width, height)).tobytes()

    def colour(column: int, row: int) -> str:
        place = 3 * (row * width + column)
        return ";".join(map(str, pixels[place : place + 3]))

    return [
        "".join(f"\x1b[38;2;{colour(x, y)}m\x1b[48;2;{colour(x, y + 1)}m{_HALF}" for x in range(width)) + "\x1b[0m"
        for y in range(0, height, 2)
    ]


def _png(image: Any) -> str:
    out = io.BytesIO()
    image.save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def _kitty(image: Any, columns: int, rows: int) -> str:
    text = _png(image)
    pieces = [text[place : place + _KITTY_CHARACTERS] for place in range(0, len(text), _KITTY_CHARACTERS)]
    head = f"a=T,f=100,q=2,c={columns},r={rows},"  # q=2: no response from the terminal
    return "".join(
        f"\x1b_G{head if not number else ''}m={int(number + 1 < len(pieces))};{piece}\x1b\\"
        for number, piece in enumerate(pieces)
    )


def _iterm(image: Any, columns: int, rows: int) -> str:
    text = _png(image)
    size = len(text) * 3 // 4 - text[-2:].count("=")
    return f"\x1b]1337;File=inline=1;size={size};width={columns};height={rows};preserveAspectRatio=1:{text}\x07"


def _sixel(image: Any) -> str:
    flat = image.quantize(_SIXEL_COLOURS, dither=0)
    palette, pixels, width = flat.getpalette(), flat.tobytes(), flat.width
    used = sorted(set(pixels))
    parts = [f'\x1bP0;1q"1;1;{flat.width};{flat.height}']
    for one in used:
        red, green, blue = (round(value * 100 / 255) for value in palette[3 * one : 3 * one + 3])
        parts.append(f"#{one};2;{red};{green};{blue}")
    for top in range(0, flat.height, 6):
        rows = [pixels[at * width : (at + 1) * width] for at in range(top, min(top + 6, flat.height))]
        parts.append("$".join(f"#{one}{_sixels(rows, one)}" for one in sorted(set(b"".join(rows)))) + "-")
    return "".join(parts) + "\x1b\\"


def _sixels(rows: list[bytes], colour: int) -> str:
    """Encode one colour of six rows, with run lengths."""
    masks = [sum(1 << bit for bit, one in enumerate(column) if one == colour) for column in zip(*rows, strict=True)]
    told: list[str] = []
    for mask, run in groupby(masks):
        number, char = len(list(run)), chr(63 + mask)
        told.append(f"!{number}{char}" if number > 3 else char * number)
    return "".join(told)
